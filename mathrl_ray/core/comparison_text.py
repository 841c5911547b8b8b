"""A comparison of two evaluations as a sentence that a person may quote.

Called by stages/comparisons.py and `python -m mathrl_ray compare`. Pure.
"""

from mathrl_ray.core.paired_evaluations import Comparison, Test

CLEAR = 0.05
"""A p-value below it is called a difference, as everywhere; the text names it either way."""


def name_of(test: Test) -> str:
    return "McNemar" if test == "mcnemar_exact" else "sign-flip"


def p_text(p_value: float) -> str:
    """
    >>> p_text(0.03124), p_text(3e-9)
    ('0.031', '< 0.001')
    """
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def sentence(found: Comparison) -> str:
    """What the second is beside the first: how far apart, how sure, and whether their own intervals overlap."""
    points = f"{100 * found.difference:+.1f} points (95 %: {100 * found.low:+.1f} to {100 * found.high:+.1f}"
    value = p_text(found.p_value)
    sure = f"{name_of(found.test)} p {value if value.startswith('<') else f'= {value}'}, {found.num_problems} problems)"
    if found.p_value >= CLEAR:
        return f"{found.second} and {found.first} cannot be told apart: {points}; {sure}{_overlap(found)}"
    side = "above" if found.difference > 0 else "below"
    return f"{found.second} is {side} {found.first}: {points}; {sure}{_overlap(found)}"


def _overlap(found: Comparison) -> str:
    one, other = found.first_accuracy, found.second_accuracy
    return "; their intervals overlap" if one.low <= other.high and other.low <= one.high else "; their intervals do not overlap"
