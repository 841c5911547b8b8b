r"""Approximations: whether a decimal is a value, correctly rounded.

Called by comparison.py for `2/3 \approx 0.67`, where both sides are one answer only if the second is what rounding makes of the first:
else `100 \approx 101` would be two answers in one.
"""

import re
from fractions import Fraction

from mathrl_ray.core.grading.leaves import read_leaf
from mathrl_ray.core.grading.rationals import read_rational
from mathrl_ray.core.grading.regions import number_of
from mathrl_ray.core.grading.units import value_factors

_DECIMAL = re.compile(
    r"[-+]?[0-9, ]*(?:\.(?P<decimals>[0-9]*))?(?:\s*(?:\\times|\\cdot)\s*10\s*\^\s*\{?\s*(?P<exponent>[-+]?[0-9]{1,3})\s*\}?)?"
)


def is_rounded(exact: str, rounded: str) -> bool:
    r"""Whether the second text is a decimal that differs from the first by no more than half a unit of its last digit.

    >>> is_rounded(r"\frac{2}{3}", "0.67"), is_rounded(r"\frac{2}{3}", "0.66"), is_rounded("5", "5.05"), is_rounded("0.4", "0")
    (True, False, False, False)
    """
    exact_leaf, leaf = read_leaf(exact), read_leaf(rounded)
    match, number, value = _DECIMAL.fullmatch(leaf.text), read_rational(leaf.text), number_of(exact_leaf.text)
    if match is None or number is None or value is None or (value and not number.value):  # nothing is left of 0.4 in a 0
        return False
    half_a_unit = Fraction(1, 2) * Fraction(10) ** (int(match["exponent"] or 0) - len(match["decimals"] or ""))
    return any(
        abs(value * factor / rounded_factor - number.value) <= half_a_unit
        for factor, rounded_factor in value_factors(exact_leaf.unit, leaf.unit)
    )
