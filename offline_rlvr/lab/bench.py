"""The one arrangement in which everything is measured: a reference, three behaviors, a beta."""

from dataclasses import dataclass

from torch import Tensor

from offline_rlvr.lab.flow import Behavior, Setting, fixed
from offline_rlvr.lab.tree import Tree

#: Seeds of the policies of one bench; other benches take other hundreds.
REFERENCE, OLDER, OLDEST, OTHERS = 0, 1, 2, 10


@dataclass(frozen=True)
class Bench:
    """A token tree with random policies.

    Attributes:
        tree: 3 tokens, 3 steps, 15 responses.
        beta: Temperature of the Gibbs policy, in units of reward.
        size: Responses per group.
        seed: Of the random policies.
    """

    tree: Tree
    beta: float = 0.5
    size: int = 2
    seed: int = 0

    @property
    def reference(self) -> Tensor:
        """Logits of the reference, from which learners start."""
        return self.policy(REFERENCE)

    @property
    def target(self) -> Tensor:
        """Logits of the Gibbs policy."""
        return self.tree.gibbs(self.reference, self.beta)

    def policy(self, number: int) -> Tensor:
        """Logits of one of the bench's random policies."""
        return self.tree.random(100 * self.seed + number)

    @property
    def behaviors(self) -> dict[str, Behavior]:
        """`on policy`: the learner itself; `stale`: a fixed older policy; `mixed`: that one and a
        still older one, half and half, each response with the log-probs of the one that drew it."""
        older, oldest = (self.tree.atoms(self.policy(number)) for number in (OLDER, OLDEST))
        return {
            "on policy": self.tree.atoms,
            "stale": fixed(older),
            "mixed": fixed(older.mixed_with(oldest, 0.5)),
        }

    def setting(self, behavior: str, reference: Tensor | None = None) -> Setting:
        """A flow's surroundings; the reference is the bench's unless another one is given."""
        anchor = self.reference if reference is None else reference
        return Setting(self.tree, self.behaviors[behavior], anchor, self.size)
