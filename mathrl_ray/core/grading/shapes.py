r"""Shapes: what kind of answer a text is. Made by reading.py, compared by comparison.py; knows neither sympy nor math-verify.

A list is no tuple, an interval is no number and 2021 in base 3 is no 2021 in base 4. math-verify takes some of these for each other, and
reads a part of a text when it cannot read the whole; here the whole text has one shape, and parts are compared with parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mathrl_ray.core.grading.units import Unit


@dataclass(frozen=True, slots=True)
class Words:
    """A text answer: `Tuesday`, `(C)`, `no solution`."""

    text: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """One expression, with the unit that stood around it."""

    text: str
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Values beside each other: `1, 4 and 9`. In no order, for the roots of an equation have none."""

    items: tuple[Shape, ...]
    conjunction: str = ""
    """`and`, `or`, or "" for commas alone."""


@dataclass(frozen=True, slots=True)
class Bracketed:
    """`(2, 9]`: a point, a tuple or an interval; what it is does not matter until it meets an inequality."""

    opening: str
    closing: str
    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class FiniteSet:
    r"""`\{1, 2\}`; no items for the empty set."""

    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Described:
    r"""`\{2k \mid k \in \mathbb{Z}\}`: what is collected, and under which condition."""

    collected: str
    condition: Shape


@dataclass(frozen=True, slots=True)
class Union:
    r"""`A \cup B`."""

    parts: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    r"""`A \setminus B`."""

    whole: Shape
    without: Shape


@dataclass(frozen=True, slots=True)
class Matrix:
    kind: str
    """`vmatrix` is a determinant; the brackets of the others say nothing."""
    rows: tuple[tuple[Shape, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    r"""`a < b \le c`, `x = 5`, `x \in S`: as many operators as sides, less one."""

    sides: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Residue:
    r"""`x \equiv 5 \pmod 7`: all numbers that leave this rest; no number by itself."""

    number: Shape
    modulus: Shape


@dataclass(frozen=True, slots=True)
class Progression:
    r"""`1, 4, 9, \ldots`: in this order, and what is left out is left out in the same place."""

    items: tuple[Shape | None, ...]


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day."""

    hour: int
    minute: int
    second: int
    half: str
    """`am`, `pm` or ""."""


@dataclass(frozen=True, slots=True)
class Based:
    """Digits with the base they are written in. The digits are the answer: the number in base 10 was the question."""

    digits: str
    base: str
    sign: str = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """`2:3`, `1:2:3`."""

    terms: tuple[str, ...]
    as_clock: tuple[int, int] | None = None
    """(hour, minute) where it could be a time; then only the same one equals it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the real line; None for an end at infinity."""

    low: Fraction | None
    high: Fraction | None
    low_closed: bool = False
    high_closed: bool = False


Shape = (
    Words
    | Leaf
    | Listing
    | Bracketed
    | FiniteSet
    | Described
    | Union
    | Difference
    | Matrix
    | Relation
    | Residue
    | Progression
    | Clock
    | Based
    | Ratio
)
