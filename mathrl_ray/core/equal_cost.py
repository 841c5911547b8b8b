"""Two ways to train, at the same cost in generated tokens: which of their validations may be put beside each other?

Called by stages/comparisons.py. Pure: points in, points out.

A stage's curve is its validation accuracy over the sampled tokens that its weights have cost by then. Comparing the ends of two curves
rewards whichever ran longer; so of all pairs of validations that cost the same, the one that cost most is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

RIVALS = "expert_iteration", "grpo"
"""The two stages that spend generated tokens."""
EQUAL_WITHIN = 0.05
"""Costs that differ by no more than this share of the larger one are called equal: batches are whole."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One validation of a stage."""

    generated_tokens: int
    """Sampled since the stage began, and taken by the learner or dropped since; what is in flight has not cost these weights anything."""
    step: int
    accuracy: float


def are_equal(one: int, other: int) -> bool:
    """Whether two costs may be called equal.

    >>> are_equal(96_000, 100_000), are_equal(90_000, 100_000)
    (True, False)
    """
    return abs(one - other) <= EQUAL_WITHIN * max(one, other)


def at_equal_cost(first: Sequence[CostPoint], second: Sequence[CostPoint]) -> tuple[CostPoint, CostPoint] | None:
    """The pair of validations, one of each curve, that cost the same and most of all such pairs; None where no two cost the same.

    Of two pairs that cost as much together the nearer costs are taken, then the later steps.

    >>> short = [CostPoint(50, 1, 0.4), CostPoint(100, 2, 0.7)]
    >>> long = [CostPoint(60, 10, 0.3), CostPoint(98, 20, 0.6), CostPoint(200, 40, 0.9)]
    >>> at_equal_cost(short, long)[1]
    CostPoint(generated_tokens=98, step=20, accuracy=0.6)
    """

    def worth(pair: tuple[CostPoint, CostPoint]) -> tuple[int, int, int]:
        one, other = (point.generated_tokens for point in pair)
        return one + other, -abs(one - other), sum(point.step for point in pair)

    pairs = [(one, other) for one in first for other in second if are_equal(one.generated_tokens, other.generated_tokens)]
    return max(pairs, key=worth, default=None)
