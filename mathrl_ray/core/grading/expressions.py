r"""Expressions: math-verify's parser, behind guards, and a comparison that neither rounds nor hangs on large numbers.

Called by leaves.py with one expression on each side: no list, no equation, no unit. Knows sympy; loads it (0.4 s, 40 MB) with the first
expression. math-verify's own comparison decides only what numbers cannot, because it takes 1/2^70 for 1/2^71 (it rounds a difference to
zero) and expands (x+y+z+w)^60. Two expressions are compared by their values (values.py) at fixed points of the variables (points.py).
"""

import logging
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mathrl_ray.core.grading.points import points
from mathrl_ray.core.grading.values import Value, has_symbolic_bound, num_digits_for, symbols_of, value_of
from mathrl_ray.core.grading.writings import as_the_parser_writes, unbearable

_LARGEST_LOG10 = 1e6
"""Of any number on the way: `9^{9^{9}}` would have 3.7e8 digits."""
_MOST_TERMS_LOG10 = 4
"""Of a sum or product, which sympy adds up one by one."""
_FEWEST_POINTS = 3


class UnreadableError(ValueError):
    """No expression, or one too large to be looked at."""


def same_expression(gold: str, answer: str) -> bool:
    r"""Whether two expressions are equal wherever both are defined.

    Raises:
        UnreadableError: one of them is no expression.

    >>> same_expression(r"2\cdot 2^n", "2^{n+1}"), same_expression(r"\frac{1}{2^{71}}", r"\frac{1}{2^{70}}")
    (True, False)
    """
    left, right = parse_expression(gold), parse_expression(answer)
    if left == right:
        return True
    any_value = False
    for one, other in _value_pairs(left, right):
        any_value = True
        if not one.equals(other):
            return False
    if not any_value and (has_symbolic_bound(left) or has_symbolic_bound(right)):  # math-verify would look for a closed form
        raise UnreadableError(f"a sum or product that cannot be added up: {answer[:80]}")
    return any_value or _math_verify_says(left, right)


def proportional(gold: str, answer: str, *, even_negative: bool) -> bool:
    """Whether one expression is a constant multiple of the other, and not zero: then both are 0 at the same places.

    Args:
        even_negative: whether the constant may be negative; not for inequalities.

    Raises:
        UnreadableError: one of them is no expression.
    """
    left, right = parse_expression(gold), parse_expression(answer)
    if not symbols_of(left) or not symbols_of(right):
        return False
    pairs = list(_value_pairs(left, right))
    known = [pair for pair in pairs if pair[0].size and pair[1].size]
    if len(known) < _FEWEST_POINTS or any(bool(one.size) != bool(other.size) for one, other in pairs):
        return False
    first = known[0]
    return all(
        first[0].times(pair[1]).equals(first[1].times(pair[0])) and (even_negative or pair[0].real * pair[1].real > 0) for pair in known
    )


def constant_value(text: str) -> Fraction | None:
    """The value of a real expression without variables, to 80 digits; None for any other.

    Raises:
        UnreadableError: it is no expression.
    """
    expression = parse_expression(text)
    if getattr(expression, "free_symbols", True):
        return None
    value = value_of(expression, {})
    return value.real if value is not None and value.imaginary == 0 else None


@lru_cache(maxsize=256)
def parse_expression(text: str) -> Any:
    """What math-verify's parser makes of it, not evaluated. Golds come again with each sibling, so the last ones are kept.

    Raises:
        UnreadableError: it is no expression, or too long, too deep, or a number with over a million digits.
    """
    if (reason := unbearable(text)) is not None:
        raise UnreadableError(f"{reason}: {text[:80]}")
    try:
        expression = _parser()(as_the_parser_writes(text))
    except MemoryError:
        raise
    except Exception as error:  # border: the parser raises plain Exception for a syntax error, and sympy whatever it likes
        raise UnreadableError(f"no expression: {text[:80]}") from error
    if _log10(expression) > _LARGEST_LOG10:
        raise UnreadableError(f"a number too large to be computed: {text[:80]}")
    return expression


def _value_pairs(left: Any, right: Any) -> Iterator[tuple[Value, Value]]:
    """The values of both at each point where both have one.

    Raises:
        UnreadableError: a number in them is too small to be told from nothing.
    """
    num_digits = num_digits_for(left, right)
    if num_digits is None:
        num_digits = 0
    for point in points(left, right):
        one = value_of(left, point, num_digits or 80)
        other = None if one is None else value_of(right, point, num_digits or 80)
        if one is None or other is None:
            continue
        if not num_digits and not (one.is_exact and other.is_exact):
            raise UnreadableError("a number too small to be told from nothing")
        yield one, other


@lru_cache(maxsize=1)
def _parser() -> Any:
    """latex2sympy2_extended is the parser of math-verify; called directly, it parses the whole text and no part that a pattern found."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    config = ConversionConfig(lowercase_symbols=False)
    return lambda text: latex2sympy(text, is_real=True, normalization_config=None, convert_degrees=False, conversion_config=config)


def _log10(node: Any) -> float:
    """About the decimal logarithm of the largest number in the tree: what an evaluation would have to hold. A variable counts as 10."""
    import sympy

    if isinstance(node, sympy.Integer):
        return math.log10(max(abs(int(node)), 1)) if abs(int(node)) < 10**4000 else math.inf
    sizes = [_log10(child) for child in getattr(node, "args", ())]
    inside = max(sizes, default=1.0)
    if isinstance(node, sympy.Pow):
        return max(inside, sizes[0] * 10 ** min(sizes[1], 300))
    if isinstance(node, sympy.Mul):
        return sum(sizes)
    if isinstance(node, sympy.factorial):
        return max(inside, 10 ** min(inside, 300))
    if isinstance(node, sympy.Sum | sympy.Product):
        last = max(_log10(bound) for limit in node.limits for bound in limit[1:])
        return inside if last <= _MOST_TERMS_LOG10 else math.inf
    return inside


def _math_verify_says(left: Any, right: Any) -> bool:
    """math-verify's comparison, for what has no numeric value. It is not symmetric: the gold comes first."""
    from math_verify import verify
    from math_verify.errors import TimeoutException

    try:
        return bool(verify([left], [right], timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except (Exception, TimeoutException):  # border: sympy may raise anything; a caller's alarm may be math-verify's own exception
        return False
