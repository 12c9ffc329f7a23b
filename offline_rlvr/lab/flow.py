"""Following an objective's expected update: where it goes, and how far that is from Gibbs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from offline_rlvr.errors import QualityGateError
from offline_rlvr.lab.tree import Atoms, Tree
from offline_rlvr.objectives.interface import Objective

#: The behavior that draws for a learner with these logits.
Behavior = Callable[[Tensor], Atoms]


@dataclass(frozen=True)
class Setting:
    """What a flow runs in.

    Attributes:
        tree: The responses.
        behavior: Who draws, for given logits of the learner; a constant when off policy.
        reference: Logits of the reference, fixed.
        size: Responses per group.
    """

    tree: Tree
    behavior: Behavior
    reference: Tensor
    size: int = 2

    def update(self, objective: Objective, logits: Tensor) -> Tensor:
        """The expected update. The old policy is the learner: the limit of short blocks."""
        drawn = self.behavior(logits)
        return self.tree.update(objective, logits, drawn, self.reference, self.size, old=logits)

    def flow(self, objective: Objective, start: Tensor, rate: float = 1.0) -> Iterator[Tensor]:
        """The learner after 0, 1, 2, ... steps of `rate` along the expected update.

        Rare histories move as fast as frequent ones (each row is divided by how often the behavior
        visits its history): a positive rate per history changes the path of a flow, not where it
        can end.
        """
        logits = start
        while True:
            yield logits
            visits = self.tree.visits(self.behavior(logits))
            logits = logits + rate / visits * self.update(objective, logits)

    def settle(
        self,
        objective: Objective,
        start: Tensor,
        rate: float = 1.0,
        steps: int = 2000,
        tolerance: float = 1e-5,
    ) -> Tensor:
        """Where the flow comes to rest.

        Raises:
            QualityGateError: It still moves by more than `tolerance` after `steps` steps.
        """
        moved, before = float("inf"), None
        for step, logits in enumerate(self.flow(objective, start, rate)):
            if before is not None:
                moved = float((logits - before).abs().max())
            if moved < tolerance:
                return logits
            if step == steps:
                break
            before = logits
        raise QualityGateError(
            f"the flow still moves by {moved:.1e} after {steps} steps",
            hint="it may have no resting point; a larger beta rests sooner",
        )


def fixed(atoms: Atoms) -> Behavior:
    """A behavior that never changes: a fixed pool."""
    return lambda logits: atoms
