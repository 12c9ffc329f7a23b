"""What flows from problems to the pool: plain frozen records, no torch.

problem  = Problem(id="a-17", question="3 + 4", answer="7")
response = Response(token_ids=(5, 9, 2), behavior_logprobs=(-0.1, -0.7, -0.01), text="\\boxed{7}",
                    finish_reason="stop")
verdict  = Verdict(status="correct", gold="7", answer="7")
group    = Group(group_id=0, problem=problem, prompt_token_ids=(1, 3, 4), responses=(response, ...),
                 verdicts=(verdict, ...))
"""

import re
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
Status = Literal[
    "correct", "incorrect", "no_answer", "gold_unparseable", "timeout", "memory", "crash", "error"
]

#: Statuses that carry a reward; every other status means "could not be scored", which is not 0.
REWARD_OF_STATUS: dict[str, float] = {"correct": 1.0, "incorrect": 0.0, "no_answer": 0.0}

#: Name of a set of held-out problems; it becomes part of a file's name.
SET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with its gold answer. `id` is unique within its source."""

    id: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled answer, exactly as the sampler drew it.

    Attributes:
        token_ids: Sampled ids, the end-of-sequence id included when it was sampled (`stop`).
        behavior_logprobs: One per token, nats, under the distribution the token was drawn from; <=
            0.
        text: The decoded response without special tokens, for people and the verifier only.
        finish_reason: `stop` (ends with EOS) or `length` (cut at the limit, no EOS).
        seed: The sampling seed of this response, where the back-end has one per response.
    """

    token_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    text: str
    finish_reason: FinishReason
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verifier's word on one response.

    Attributes:
        status: See `Status`.
        gold: The gold answer as parsed (for people), or None.
        answer: The response's answer as parsed, or None when there is none.
        reward: 1.0, 0.0, or None when the response could not be scored.
    """

    status: Status
    gold: str | None = None
    answer: str | None = None
    #: A user's own verifier may give a graded reward; None takes the status's own.
    score: float | None = None

    @property
    def reward(self) -> float | None:
        """The reward, or None when the response could not be scored."""
        base = REWARD_OF_STATUS.get(self.status)
        return base if base is None or self.score is None else self.score


@dataclass(frozen=True, slots=True)
class Group:
    """The K responses of one problem under one frozen policy, with their verdicts.

    `group_id` is the position of the problem in the pool's shuffled draw order; `prompt_token_ids`
    are what the model was given, template included.
    """

    group_id: int
    problem: Problem
    prompt_token_ids: tuple[int, ...]
    responses: tuple[Response, ...]
    verdicts: tuple[Verdict, ...]
