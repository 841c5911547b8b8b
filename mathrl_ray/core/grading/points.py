r"""Points: where two expressions are compared.

Called by expressions.py with sympy's trees. The Schwartz-Zippel idea: two different expressions of the size of an answer agree at none of a
few points but by a miracle. That holds for polynomials and what is built smoothly of them, so a tree with absolute values, roots or steps
is looked at on many more.
"""

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from typing import Any

from mathrl_ray.core.grading.values import has_symbolic_bound, symbols_of

_SMOOTH = (
    ((1, 1), (137, 100), (31, 100)),
    ((1, 1), (53, 100), (17, 100)),
    ((1, -1), (167, 100), (29, 100)),
    ((-1, -1), (113, 100), (37, 100)),
    ((1, 1), (7, 1), (3, 1)),
)
"""For each point: the signs of every other variable, the first one's size, and the step from one to the next.

Positive and negative, above and below 1, and whole numbers, because some expressions are only defined or only differ on some of them.
"""
_SIGNS = ((1, 1), (-1, -1), (1, -1), (-1, 1))
_FAR = tuple(Fraction(size, 10) for size in (29, 110, 430, 10090))
_STEP = Fraction(29, 100)
_OFF_A_CONSTANT = Fraction(1, 3)
_MOST_CONSTANTS = 6
_LARGEST_CONSTANT = 10**9
_WHOLE = range(1, 31)
_FEW = range(1, 13)
"""For sums and products of so many terms, whose factorials and powers grow."""
_NUM_WHOLE_TUPLES = 40
_COUNTERS = frozenset("jklmn")
"""Letters that stand for whole numbers beside a floor, a ceiling and in `(-1)^n`; `i` is the imaginary unit."""


def points(left: Any, right: Any) -> Iterator[dict[str, Fraction]]:
    """Values for the variables of both expressions, point after point."""
    names = sorted({symbol.name for expression in (left, right) for symbol in symbols_of(expression)} - {"i"})
    steps = [argument for expression in (left, right) for argument in _arguments_of_steps(expression)]
    if has_symbolic_bound(left) or has_symbolic_bound(right):
        yield from _whole_points(names, _FEW)
        return
    letters = {symbol.name.partition("_")[0] for argument in steps for symbol in symbols_of(argument)}
    if letters:
        yield from _whole_points(names, _WHOLE)
    if letters and letters <= _COUNTERS:
        return
    for signs, first, step in _SMOOTH:
        yield _point(names, signs, Fraction(*first), Fraction(*step))
    if names and (_has_corners(left) or _has_corners(right)):
        yield from _corner_points(names, _constants(left) | _constants(right))


def _whole_points(names: list[str], numbers: range) -> Iterator[dict[str, Fraction]]:
    if len(names) < 2:
        yield from ({name: Fraction(number) for name in names} for number in numbers[: None if names else 1])
        return
    drawn = random.Random(0)  # the same for every pair
    for _ in range(_NUM_WHOLE_TUPLES):
        yield {name: Fraction(drawn.choice(numbers[1:])) for name in names}  # at 1 many a quotient is 0/0


def _corner_points(names: list[str], constants: set[Fraction]) -> Iterator[dict[str, Fraction]]:
    """Of several magnitudes, and on both sides of what stands in the trees, where `|x-8|` turns."""
    near = [abs(constant) for constant in sorted(constants, key=abs)[-_MOST_CONSTANTS:]]
    sizes = [*_FAR, *(constant + off for constant in near for off in (_OFF_A_CONSTANT, -_OFF_A_CONSTANT))]
    for size in sizes:
        for signs in _SIGNS if len(names) > 1 else _SIGNS[:2]:
            yield _point(names, signs, size, _STEP)


def _point(names: list[str], signs: tuple[int, int], first: Fraction, step: Fraction) -> dict[str, Fraction]:
    return {name: signs[index % 2] * (first + step * index) for name, index in zip(names, count(), strict=False)}


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "args", ()):
        yield from _nodes(child)


def _has_corners(expression: Any) -> bool:
    """Whether it is no analytic function: an absolute value, a root, a logarithm, a step."""
    import sympy

    corners = (sympy.Abs, sympy.floor, sympy.ceiling, sympy.Max, sympy.Min, sympy.sign, sympy.log)
    return any(
        isinstance(node, corners) or (isinstance(node, sympy.Pow) and not node.exp.is_Integer and not node.exp.free_symbols)
        for node in _nodes(expression)
        if getattr(node, "free_symbols", None)
    )


def _constants(expression: Any) -> set[Fraction]:
    found = {Fraction(int(node.p), int(node.q)) for node in _nodes(expression) if getattr(node, "is_Rational", False)}
    return {number for number in found if 1 < abs(number) <= _LARGEST_CONSTANT}


def _arguments_of_steps(expression: Any) -> Iterator[Any]:
    r"""What stands in a floor or ceiling, above a negative base, and beside the pi of `\cos \pi n`."""
    import sympy

    for node in _nodes(expression):
        if isinstance(node, sympy.floor | sympy.ceiling):
            yield node.args[0]
        elif isinstance(node, sympy.Pow) and node.base.is_number and node.base.is_negative and node.exp.free_symbols:
            yield node.exp
        elif isinstance(node, sympy.cos | sympy.sin) and node.args[0].free_symbols and node.args[0].has(sympy.pi):
            yield node.args[0]
