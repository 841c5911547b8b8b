"""Gradients beside each other: how long each is, and which way it points.

Called by commands/replay.py. Pure: tensors in, numbers out. A gradient is a list with one tensor a trained weight, in the weights' order;
one of a whole model stays in its parts, since a copy of all of them as one vector would need its memory again.
"""

from collections.abc import Sequence
from math import isfinite, sqrt

import torch
from torch import Tensor

Gradient = Sequence[Tensor]
Cosines = list[list[float | None]]
"""[K][K]; None where one of the two has no direction."""


def dot(first: Gradient, second: Gradient) -> float:
    """Sum over all weights of the products, added up in float64.

    Raises:
        ValueError: they are of different weights.

    >>> dot([torch.tensor([1.0, 2.0]), torch.tensor([3.0])], [torch.tensor([4.0, 0.5]), torch.tensor([2.0])])
    11.0
    """
    if [part.shape for part in first] != [part.shape for part in second]:
        raise ValueError(f"two gradients of {len(first)} and {len(second)} tensors are not of the same weights")
    return sum(_dot(*parts) for parts in zip(first, second, strict=True))


def _dot(first: Tensor, second: Tensor) -> float:
    return float(torch.dot(first.flatten().double(), second.flatten().double()))


def norm(gradient: Gradient) -> float:
    """Euclidean norm over all weights; not finite where one of its numbers is not.

    >>> norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
    5.0
    """
    return sqrt(dot(gradient, gradient))


def cosine(first: Gradient, second: Gradient) -> float | None:
    """Cosine of the angle between two gradients, in [-1, 1]; None where one is 0 or not finite, and so has no direction.

    1: both losses push the weights the same way, 0: what one wants is nothing to the other, -1: each undoes the other's step.

    >>> cosine([torch.tensor([1.0, 0.0])], [torch.tensor([1.0, 1.0])])
    0.7071067811865475
    """
    lengths = norm(first) * norm(second)
    if not lengths or not isfinite(lengths):
        return None
    return max(-1.0, min(1.0, dot(first, second) / lengths))


def cosines(gradients: Sequence[Gradient | None]) -> Cosines:
    """Of every pair; symmetric. None stands for a loss that had nothing to take a gradient of."""
    return [[None if first is None or second is None else cosine(first, second) for second in gradients] for first in gradients]


def mean_cosines(parts: Sequence[Cosines]) -> Cosines:
    """Means over several updates of one batch, over those in which both gradients have a direction."""
    size = range(len(parts[0]))
    return [[_mean([part[row][column] for part in parts]) for column in size] for row in size]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
