"""A comparison of two evaluations as a sentence that a person may quote.

Called by stages/comparisons.py. Pure.
"""

from mathrl_ray.core.paired_evaluations import Comparison
from mathrl_ray.core.paired_tests import TEST_NAMES, p_text

CLEAR = 0.05
"""A p-value below it is called a difference, as everywhere; the text names it either way."""


def sentence(found: Comparison) -> str:
    """What the second is beside the first: how far apart, how sure, and whether their own intervals overlap."""
    value = p_text(found.p_value)
    points = f"{100 * found.difference:+.1f} points (95 %: {100 * found.low:+.1f} to {100 * found.high:+.1f})"
    sure = f"{TEST_NAMES[found.test]} p {value if value.startswith('<') else f'= {value}'}, {found.num_problems} problems"
    if found.p_value >= CLEAR:
        return f"{found.second} and {found.first} cannot be told apart: {points}; {sure}{_overlap(found)}"
    side = "above" if found.difference > 0 else "below"
    return f"{found.second} is {side} {found.first}: {points}; {sure}{_overlap(found)}"


def _overlap(found: Comparison) -> str:
    one, other = found.first_accuracy, found.second_accuracy
    return "; their intervals overlap" if one.low <= other.high and other.low <= one.high else "; their intervals do not overlap"
