"""What a paper states and what the code does: predicted beside measured."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Statement:
    """One line of the table.

    Attributes:
        about: Objective or paper.
        text: What is stated.
        relation: How `measured` relates to `predicted`.
        predicted: From the formula.
        measured: From the objective's own code, or by enumeration.
        tolerance: Of an equality; for an inequality the least distance that counts.
    """

    about: str
    text: str
    relation: Literal["=", ">", "<="]
    predicted: float
    measured: float
    tolerance: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the measurement agrees."""
        if self.relation == "=":
            return abs(self.measured - self.predicted) <= self.tolerance
        if self.relation == ">":
            return self.measured > self.predicted + self.tolerance
        return self.measured <= self.predicted + self.tolerance
