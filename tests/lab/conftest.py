"""The laboratory: a tabular policy on a small tree of tokens, with every expectation exact.

A response is a path of at most `steps` tokens; token 0 stops it. A policy is one row of logits per
history. Groups of m responses are enumerated with their probabilities, so the *expected* update of
an objective is computed by the objective's own code: its coefficients, weighted by the probability
of each group.
"""

import itertools
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives.interface import Objective


@dataclass(frozen=True)
class Atoms:
    """What one draw can give: a response, its stored log-probs, its probability."""

    responses: Tensor  # [A]
    logprobs: Tensor  # [A, T]
    probability: Tensor  # [A]

    def mixed_with(self, other: "Atoms", share: float) -> "Atoms":
        """A mixture in which each response keeps the log-probs of the policy that drew it."""
        return Atoms(
            torch.cat([self.responses, other.responses]),
            torch.cat([self.logprobs, other.logprobs]),
            torch.cat([self.probability * (1 - share), other.probability * share]),
        )


@cache
def _draws(atoms: int, size: int) -> Tensor:
    """[atoms^size, size] every group."""
    return torch.tensor(list(itertools.product(range(atoms), repeat=size)))


class Tree:
    """All responses of at most `steps` tokens from a vocabulary, and their rewards."""

    def __init__(self, vocabulary: int = 3, steps: int = 3) -> None:
        paths, frontier = [], [()]
        histories = {}
        for step in range(steps):
            children = []
            for history in frontier:
                histories[history] = len(histories)
                for token in range(vocabulary):
                    path = (*history, token)
                    ended = token == 0 or step == steps - 1
                    (paths if ended else children).append(path)
            frontier = children
        self.paths = paths
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
        # Right: the responses in which token 1 comes an odd number of times.
        self.rewards = torch.tensor([float(p.count(1) % 2) for p in paths], dtype=torch.float64)

    def random(self, seed: int, scale: float = 1.0) -> Tensor:
        """Random logits, one row per history."""
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
        """The policy with these response probabilities."""
        table = torch.zeros(self.histories, self.vocabulary, dtype=torch.float64)
        for t in range(self.mask.shape[1]):
            alive = self.mask[:, t]
            place = (self.history[alive, t], self.token[alive, t])
            table.index_put_(place, probability[alive], accumulate=True)
        return table.log()

    def gibbs(self, reference: Tensor, beta: float) -> Tensor:
        """Logits of `pi_ref exp(r / beta)`, normalized."""
        weights = self.probability(reference).log() + self.rewards / beta
        return self.logits_of(weights.softmax(-1))

    def success(self, logits: Tensor) -> float:
        """Probability of a right response."""
        return float((self.probability(logits) * self.rewards).sum())

    def kl(self, first: Tensor, second: Tensor) -> float:
        """KL(first || second) over responses, nats."""
        p, q = self.probability(first), self.probability(second)
        return float((p * (p / q).log()).sum())

    def atoms(self, logits: Tensor) -> Atoms:
        """Draws from one policy."""
        logprobs = self.token_logprobs(logits)
        return Atoms(torch.arange(len(self.paths)), logprobs, logprobs.sum(-1).exp())

    def groups(
        self, logits: Tensor, behavior: Atoms, reference: Tensor, size: int
    ) -> tuple[TokenBatch, Tensor]:
        """Every group of `size` draws as one batch, and each group's probability."""
        draws = _draws(len(behavior.responses), size)
        y = behavior.responses[draws]
        batch = TokenBatch(
            policy_logprobs=self.token_logprobs(logits)[y],
            behavior_logprobs=behavior.logprobs[draws],
            rewards=self.rewards[y],
            response_mask=self.mask[y],
            ref_logprobs=self.token_logprobs(reference)[y],
            old_logprobs=behavior.logprobs[draws],
        )
        return batch, behavior.probability[draws].prod(-1)

    def update(
        self,
        objective: Objective,
        logits: Tensor,
        behavior: Atoms,
        reference: Tensor,
        size: int = 2,
    ) -> Tensor:
        """The exact expected update of the logits: `E[(1/m) sum_it c_it grad p_it]`."""
        leaf = logits.detach().clone().requires_grad_()
        batch, probability = self.groups(leaf, behavior, reference, size)
        detached = replace(batch, policy_logprobs=batch.policy_logprobs.detach())
        totals = Totals(len(batch.rewards), int(batch.response_mask.sum()))
        c = objective(detached, totals).coefficients
        c = c if c.ndim == 3 else c[..., None]
        scores = (c * batch.policy_logprobs).sum((1, 2)) / size
        (probability * scores).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    def visits(self, behavior: Atoms) -> Tensor:
        """[H, 1] how often the behavior comes by each history."""
        count = torch.zeros(self.histories, dtype=torch.float64)
        y = behavior.responses
        weights = behavior.probability[:, None].expand(-1, self.mask.shape[1])
        alive = self.mask[y]
        count.index_put_((self.history[y][alive],), weights[alive], accumulate=True)
        return count[:, None]

    def flow(
        self,
        objective: Objective,
        start: Tensor,
        behavior: Atoms,
        reference: Tensor,
        size: int = 2,
        rate: float = 1.0,
        steps: int = 2000,
        tolerance: float = 1e-5,
    ) -> Tensor:
        """Follow the expected update until it vanishes; fails where it does not.

        Rare histories are updated as fast as frequent ones: a positive rate per history changes the
        path of the flow, not where it ends.
        """
        logits = start.clone()
        rates = rate / self.visits(behavior)
        for _ in range(steps):
            step = rates * self.update(objective, logits, behavior, reference, size)
            if float(step.abs().max()) < tolerance:
                return logits
            logits = logits + step
        raise AssertionError(f"still moving by {float(step.abs().max()):.1e} after {steps} steps")


@pytest.fixture(scope="session")
def tree() -> Tree:
    return Tree()


@pytest.fixture(scope="session")
def make_tree():
    return Tree
