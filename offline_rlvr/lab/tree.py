"""A tabular policy on a small tree of tokens, with every expectation exact.

A response is a path of at most `steps` tokens; token 0 stops it. A policy is one row of logits per
history. Groups of m responses are enumerated with their probabilities, so the *expected* update of
an objective is computed by the objective's own code: its coefficients, weighted by the probability
of each group. Everything is float64.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives.interface import Objective


@dataclass(frozen=True)
class Atoms:
    """What one draw can give.

    Attributes:
        responses: [A] index of the response.
        logprobs: [A, T] its log-probs as stored at sampling, nats, 0 after its end.
        probability: [A] of this draw; sums to 1.
    """

    responses: Int[Tensor, " A"]
    logprobs: Float[Tensor, "A T"]
    probability: Float[Tensor, " A"]

    def mixed_with(self, other: "Atoms", share: float) -> "Atoms":
        """A mixture in which each response keeps the log-probs of the policy that drew it."""
        return Atoms(
            torch.cat([self.responses, other.responses]),
            torch.cat([self.logprobs, other.logprobs]),
            torch.cat([self.probability * (1 - share), other.probability * share]),
        )


class Tree:
    """All responses of at most `steps` tokens, and their rewards.

    Args:
        vocabulary: Tokens, the stop token 0 included.
        steps: Most tokens of a response.

    Attributes:
        mask: [Y, T] True where a response has a token.
        history, token: [Y, T] row and column of each token in a policy's table.
        rewards: [Y] 1 where token 1 comes an odd number of times, else 0.
    """

    def __init__(self, vocabulary: int = 3, steps: int = 3) -> None:
        paths, frontier = [], [()]
        histories: dict[tuple[int, ...], int] = {}
        for step in range(steps):
            children = []
            for history in frontier:
                histories[history] = len(histories)
                for token in range(vocabulary):
                    ended = token == 0 or step == steps - 1
                    (paths if ended else children).append((*history, token))
            frontier = children
        size = (len(paths), steps)
        self.mask = torch.zeros(size, dtype=torch.bool)
        self.token = torch.zeros(size, dtype=torch.long)
        self.history = torch.zeros(size, dtype=torch.long)
        for y, path in enumerate(paths):
            for t, token in enumerate(path):
                self.mask[y, t] = True
                self.token[y, t] = token
                self.history[y, t] = histories[path[:t]]
        self.histories, self.vocabulary = len(histories), vocabulary
        self.rewards = torch.tensor([float(p.count(1) % 2) for p in paths], dtype=torch.float64)

    def random(self, seed: int, scale: float = 1.0) -> Tensor:
        """[H, V] random logits."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.histories, self.vocabulary)
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    def token_logprobs(self, logits: Tensor) -> Tensor:
        """[Y, T] log-prob of each token of each response, 0 after its end."""
        table = logits.log_softmax(-1)
        return table[self.history, self.token].masked_fill(~self.mask, 0.0)

    def probability(self, logits: Tensor) -> Tensor:
        """[Y] probability of each response."""
        return self.token_logprobs(logits).sum(-1).exp()

    def logits_of(self, probability: Tensor) -> Tensor:
        """[H, V] the policy with these response probabilities."""
        return self._table(probability[:, None].expand(self.mask.shape)).log()

    def gibbs(self, reference: Tensor, beta: float) -> Tensor:
        """[H, V] logits of `pi_ref exp(r / beta)`, normalized."""
        weights = self.probability(reference).log() + self.rewards / beta
        return self.logits_of(weights.softmax(-1))

    def success(self, logits: Tensor) -> float:
        """Probability of a right response."""
        return float((self.probability(logits) * self.rewards).sum())

    def log_odds(self, logits: Tensor) -> float:
        """Success log-odds."""
        success = self.success(logits)
        return math.log(success / (1 - success))

    def kl(self, first: Tensor, second: Tensor) -> float:
        """KL(first || second) over responses, nats."""
        p, q = self.probability(first), self.probability(second)
        return float((p * (p / q).log()).sum())

    def total_variation(self, first: Tensor, second: Tensor) -> float:
        """Half the summed difference over responses, in [0, 1]."""
        return float((self.probability(first) - self.probability(second)).abs().sum() / 2)

    def atoms(self, logits: Tensor) -> Atoms:
        """Draws from one policy."""
        logprobs = self.token_logprobs(logits)
        return Atoms(torch.arange(len(logprobs)), logprobs, logprobs.sum(-1).exp())

    def groups(
        self,
        logits: Tensor,
        behavior: Atoms,
        reference: Tensor,
        size: int,
        old: Tensor | None = None,
    ) -> tuple[TokenBatch, Float[Tensor, " G"]]:
        """Every group of `size` draws, in no order, as one batch; and each group's probability.

        Args:
            logits: The learner.
            behavior: What is drawn from.
            reference: Logits of the reference.
            size: Responses per group.
            old: Logits of the old policy; None: each response's own behavior.
        """
        draws, orders = _draws(len(behavior.responses), size)
        y = behavior.responses[draws]
        stored = behavior.logprobs[draws]
        batch = TokenBatch(
            policy_logprobs=self.token_logprobs(logits)[y],
            behavior_logprobs=stored,
            rewards=self.rewards[y],
            response_mask=self.mask[y],
            ref_logprobs=self.token_logprobs(reference)[y],
            old_logprobs=stored if old is None else self.token_logprobs(old)[y],
        )
        return batch, orders * behavior.probability[draws].prod(-1)

    def update(
        self,
        objective: Objective,
        logits: Tensor,
        behavior: Atoms,
        reference: Tensor,
        size: int = 2,
        old: Tensor | None = None,
    ) -> Tensor:
        """[H, V] the exact expected update of the logits: `E[(1/m) sum_it c_it grad p_it]`."""
        batch, probability = self.groups(logits, behavior, reference, size, old)
        draws, _ = _draws(len(behavior.responses), size)
        c = objective(batch, totals_of(batch)).coefficients
        c = c if c.ndim == 3 else c[..., None].expand(batch.response_mask.shape)
        weighted = probability[:, None, None] * c / size
        of_response = torch.zeros_like(self.mask, dtype=torch.float64)
        of_response.index_add_(0, behavior.responses[draws].flatten(), weighted.flatten(0, 1))
        # The score of a token is (one-hot - policy) in the row of its history.
        of_token = self._table(of_response)
        return of_token - of_token.sum(-1, keepdim=True) * logits.softmax(-1)

    def visits(self, behavior: Atoms) -> Tensor:
        """[H, 1] how often the behavior comes by each history."""
        of_response = torch.zeros(len(self.mask), dtype=torch.float64)
        of_response.index_add_(0, behavior.responses, behavior.probability)
        return self._table(of_response[:, None].expand(self.mask.shape)).sum(-1, keepdim=True)

    def _table(self, of_response: Tensor) -> Tensor:
        """[Y, T] values summed into the [H, V] places of their tokens."""
        table = torch.zeros(self.histories, self.vocabulary, dtype=torch.float64)
        place = (self.history[self.mask], self.token[self.mask])
        return table.index_put_(place, of_response[self.mask], accumulate=True)


def totals_of(batch: TokenBatch) -> Totals:
    """The totals of an update that consists of this batch."""
    return Totals(len(batch.rewards), int(batch.response_mask.sum()))


@cache
def _draws(atoms: int, size: int) -> tuple[Tensor, Tensor]:
    """[G, size] every multiset of draws, and [G] in how many orders each can come."""
    found = list(itertools.combinations_with_replacement(range(atoms), size))
    repeats = (math.prod(map(math.factorial, Counter(draw).values())) for draw in found)
    orders = [math.factorial(size) / repeat for repeat in repeats]
    return torch.tensor(found), torch.tensor(orders, dtype=torch.float64)
