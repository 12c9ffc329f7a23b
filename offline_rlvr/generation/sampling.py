"""How responses are sampled: every setting, explicit and in full. No torch here."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.records import Response

#: Stored log-probs are those of the distribution the token was drawn from: after temperature and
#: truncation.
LOGPROB_MODE = "sampled_distribution"
#: Those of a pool made of texts: the model that is said to have written them has scored them
#: afterwards. Its kernels, and perhaps its tokens, are not those of the sampling.
RESCORED = "rescored"
#: A log-prob may exceed 0 by rounding only.
MAX_LOGPROB = 1e-6
#: vLLM silently raises lower temperatures to the lower end, and refuses higher ones.
VLLM_TEMPERATURES = (0.01, 2.0)


@dataclass(frozen=True)
class Sampling:
    """Sampling settings; what is not here (penalties, minimum length, suppressed tokens) is off.

    Attributes:
        max_new_tokens: Limit of a response, in tokens, EOS included; >= 1.
        temperature: Logits are divided by it; > 0.
        top_p: Smallest set of tokens with this probability mass; 1 is off.
        top_k: Number of tokens kept; 0 is off.
        min_p: Keep tokens at least this likely relative to the likeliest; 0 is off.
        stop_token_ids: Ids that end a response, itself included. Empty: every response runs to the
            limit.

    Raises:
        ConfigError: A value is out of range.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # "not (a <= x)" rather than "x < a": NaN fails every comparison and must be refused too.
        if not self.max_new_tokens >= 1:
            _refuse("max_new_tokens", self.max_new_tokens, "a whole number >= 1")
        if not 0 < self.temperature < float("inf"):
            _refuse(
                "temperature",
                self.temperature,
                "a number > 0",
                hint="greedy decoding samples from no distribution; use a small one such as 0.1",
            )
        if not 0 < self.top_p <= 1:
            _refuse("top_p", self.top_p, "a number > 0 and <= 1 (1 is off)")
        if not self.top_k >= 0:
            _refuse("top_k", self.top_k, "a whole number >= 0 (0 is off)")
        if not 0 <= self.min_p < 1:
            _refuse("min_p", self.min_p, "a number >= 0 and < 1 (0 is off)")
        if any(token < 0 for token in self.stop_token_ids):
            _refuse("stop_token_ids", self.stop_token_ids, "token ids >= 0")

    @property
    def truncated(self) -> bool:
        """Whether some tokens can never be drawn, so that stored log-probs are renormalized."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def as_dict(self) -> dict[str, Any]:
        """The settings in effect, those that are off included, for a pool's identity."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "stop_token_ids": list(self.stop_token_ids),
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "min_new_tokens": 0,
            "logprobs": LOGPROB_MODE,
        }


def seed_for(run_seed: int, group_id: int, index: int) -> int:
    """The 63-bit sampling seed of response `index` of a group: a pure function of its arguments."""
    digest = hashlib.sha256(f"{run_seed}/{group_id}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def check_vllm_temperature(sampling: Sampling) -> None:
    """Refuse what vLLM would not do as told.

    Raises:
        ConfigError: The temperature is out of its range.
    """
    low, high = VLLM_TEMPERATURES
    if not low <= sampling.temperature <= high:
        raise ConfigError(
            f"sampling.temperature is {sampling.temperature}; vLLM samples at {low} to {high}",
            hint="set generation.name: hf for any other",
        )


def check_lengths(
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[int]],
    sampling: Sampling,
    limit: float,
    holder: str = "the model",
) -> None:
    """Refuse a submission that cannot be sampled, before anything is.

    Args:
        prompts: Token ids of each prompt.
        seeds: One list per prompt.
        sampling: Its `max_new_tokens` must fit behind every prompt.
        limit: Positions that there are; infinity where there is no limit.
        holder: Who has them, for the message.

    Raises:
        ConfigError: The numbers of prompts and of lists of seeds differ.
        DataError: A prompt is empty.
        IncompatibleError: A prompt and its response do not fit.
    """
    if len(prompts) != len(seeds):
        raise ConfigError(f"{len(prompts)} prompts but {len(seeds)} lists of seeds")
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise DataError(f"prompt {i} is empty; a model needs at least one token to start from")
        if len(prompt) + sampling.max_new_tokens > limit:
            raise IncompatibleError(
                f"prompt {i} has {len(prompt)} tokens and max_new_tokens is "
                f"{sampling.max_new_tokens}, but {holder} has only {limit} positions",
                hint="lower max_new_tokens or drop prompts longer than "
                f"{limit - sampling.max_new_tokens} tokens",
            )


def checked_response(
    prompt: int,
    ids: Sequence[int],
    logprobs: Sequence[float | None],
    text: str,
    sampling: Sampling,
    seed: int | None,
) -> Response:
    """A back-end's response, or an error that says where it is not what it must be.

    It ends with a stop token (`stop`) or at the length limit (`length`), and nowhere else.

    Args:
        prompt: Position of its prompt in the submission, for the message.
        ids: Token ids as drawn, the stop token included.
        logprobs: Their log-probs in nats, one for each.
        text: The ids decoded.
        sampling: The settings they were drawn with.
        seed: Of its random stream; None where the engine has only one for all.

    Raises:
        DataError: Lengths differ, a log-prob is missing, not finite or positive, or the response
            ends in an impossible place.
    """
    if len(ids) != len(logprobs):
        raise DataError(f"prompt {prompt}: {len(ids)} token ids but {len(logprobs)} log-probs")
    for t, logprob in enumerate(logprobs):
        if logprob is None or not -math.inf < logprob <= MAX_LOGPROB:
            raise DataError(
                f"prompt {prompt}: token {t} of a response (id {ids[t]}) has log-prob "
                f"{logprob}; it must be finite and <= 0",
                hint="the model's logits are not finite here: check its weights and its dtype",
            )
    stops = [t for t, token in enumerate(ids) if token in sampling.stop_token_ids]
    end = stops[0] + 1 if stops else sampling.max_new_tokens
    if len(ids) != end:
        raise DataError(
            f"prompt {prompt}: a response of {len(ids)} tokens should have {end}: it ends with the "
            f"first of the stop tokens {sampling.stop_token_ids}, or after max_new_tokens",
            hint="the engine follows other stop or length rules; see its log",
        )
    finish = "stop" if stops else "length"
    return Response(tuple(ids), tuple(map(float, logprobs)), text, finish, seed)  # type: ignore[arg-type]


def _refuse(name: str, value: object, allowed: str, hint: str | None = None) -> None:
    raise ConfigError(f"sampling.{name} is {value!r}; it must be {allowed}", hint=hint)
