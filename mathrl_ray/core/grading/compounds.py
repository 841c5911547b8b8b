r"""Compound quantities: `3 ft 4 in`, `3 hours and 20 minutes`, `3 boys 5 girls`.

Called by reading.py with canonical text. Pure text and Fraction. Several units of one dimension add up to one value; numbers of different
things stay beside each other. Read as one expression, the parser would multiply all of them.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from mathrl_ray.core.grading.leaves import read_leaf
from mathrl_ray.core.grading.rationals import read_rational
from mathrl_ray.core.grading.shapes import Leaf, Listing
from mathrl_ray.core.grading.units import Unit

_WORDY_COMMAND = re.compile(r"\\text\s*\{([^{}]*)\}")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:\s+[0-9]+/[0-9]+|/[0-9]+|\s*\\frac\s*\{[0-9]+\}\s*\{[0-9]+\})?|\\frac\s*\{[0-9]+\}\s*\{[0-9]+\}"
_PART = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<unit>[A-Za-z]+\.?(?:\s+[A-Za-z]+)*?)\s*(?P<join>,\s*and\b|,|\band\b|(?=[0-9\\])|$)")


def read_compound(text: str) -> Leaf | Listing | None:
    """A sum in the first part's unit, or a list of quantities; None for any other text, and for a single quantity.

    A comma or an `and` also parts the items of a list. They join where each part is less than one of the unit before it: 3 hours and 20
    minutes are one time, 5 cm and 30 mm are two lengths.

    >>> read_compound("3 ft 6 in").text, read_compound("5 cm, 30 mm"), len(read_compound("3 boys 5 girls").items)
    ('7/2', None, 2)
    """
    parts, joins = _parts(_WORDY_COMMAND.sub(r" \1 ", text).strip())
    if len(parts) < 2:
        return None
    units = [part.unit for part in parts if part.unit is not None]
    if len(units) < len(parts):
        return None
    if len({(unit.dimension, unit.power) for unit in units}) == 1 and units[0].dimension and not units[0].thing:
        return _sum(parts, units, is_juxtaposed=not any(joins))
    return None if any(joins) else Listing(tuple(parts), "and")


def _parts(text: str) -> tuple[list[Leaf], list[str]]:
    """The quantities and what joins them; none where something else is left."""
    parts, joins, position = [], [], 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match.end() == position:
            return [], []
        parts.append(
            read_leaf(f"{match['number']} {match['unit']}" if len(match["unit"]) > 1 else rf"{match['number']}\text{{{match['unit']}}}")
        )
        joins.append(match["join"])
        position = match.end()
    return (parts, joins[:-1]) if parts and not joins[-1] else ([], [])


def _sum(parts: Sequence[Leaf], units: Sequence[Unit], *, is_juxtaposed: bool) -> Leaf | None:
    sizes = []
    for part, unit in zip(parts, units, strict=True):
        number = read_rational(part.text)
        if number is None:
            return None
        sizes.append(number.value * unit.factor)
    is_descending = all(later.factor < earlier.factor for earlier, later in pairwise(units))
    carries = all(size < earlier.factor for size, earlier in zip(sizes[1:], units, strict=False))
    if not is_descending or not (is_juxtaposed or carries):
        return None
    return Leaf(str(sum(sizes, Fraction(0)) / units[0].factor), units[0])
