r"""Expressions: math-verify's parser, behind guards, and a comparison that neither rounds nor hangs on large numbers.

Called by leaves.py with one expression on each side: no list, no equation, no unit. Knows sympy; loads it (0.4 s, 40 MB) with the first
expression. math-verify's own comparison decides only what numbers cannot, because it takes 1/2^70 for 1/2^71 (it rounds a difference to
zero) and expands (x+y+z+w)^60.

Two expressions are compared by their values, to 80 digits, at fixed points of the variables (the Schwartz-Zippel idea: two different
expressions of this size agree at no such point but by a miracle).
"""

import logging
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

_LONGEST_TEXT = 1500
"""Characters; the parser is Python and takes some 50 µs each."""
_DEEPEST_NESTING = 15
"""Brackets; the parser takes more than 10 of Python's 1,000 frames for each."""
_LARGEST_LOG10 = 1e6
"""Of any number on the way: `9^{9^{9}}` would have 3.7e8 digits."""
_MOST_TERMS_LOG10 = 4
"""Of a sum or product, which sympy adds up one by one."""
_NUM_DIGITS = 80
_MOST_DIGITS_INSIDE = 400
_RELATIVE_TOLERANCE = Fraction(1, 10**60)
_MOST_BITS_OF_A_POWER = 1_000_000
_NOISE_BITS = 20
"""sympy marks what is left of a difference of equal numbers by a precision of a few bits."""

_LARGEST_EXACT_FACTORIAL = 3000
_FEWEST_POINTS = 3

_PRIMED = re.compile(r"(?<![\\a-zA-Z])([a-zA-Z])('+)")
"""`y'` is another variable than `y`; a quotation mark anywhere else says nothing."""
_INDEXED_NUMBER = re.compile(r"[0-9)]\s*_")
_SIMPLE = r"(?:[0-9]|[a-zA-Z]|\\[a-zA-Z]+|\{[^{}]*\})"
_WRITINGS = (
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![\\a-zA-Z])(sqrt|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|pi|theta|infty)(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10}"),
    (re.compile(r"\\[bp]mod(?![a-zA-Z])"), r"\\mod"),
    (re.compile(rf"\\(frac|binom)\s*({_SIMPLE})\s*({_SIMPLE})"), lambda match: rf"\{match[1]}{_braced(match[2])}{_braced(match[3])}"),
    (re.compile(r"\\(frac|binom)\s*\{([^{}]*)\}\s*([0-9a-zA-Z])"), r"\\\1{\2}{\3}"),
    (re.compile(r"\\(frac|binom)\s*([0-9a-zA-Z])\s*\{"), r"\\\1{\2}{"),
    (re.compile(r"\\binom\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}"), r"\\frac{(\1)!}{(\2)!((\1)-(\2))!}"),
    (re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*\(([^()]*)\)"), r"\\sqrt\1{\2}"),
    (re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*([0-9a-zA-Z])"), r"\\sqrt\1{\2}"),
    (re.compile(r"\^\s*\(([^()]*)\)"), r"^{\1}"),
    (re.compile(r"\^\s*([-+]?\s*[0-9]+(?:\.[0-9]+)?)"), r"^{\1}"),
    (re.compile(r"(?<![0-9.^_}])([0-9]+)\s*/\s*([0-9]+)\s*(?=[a-zA-Z(\\])(?!\\(?:cdot|times|div))"), r"\\frac{\1}{\2}"),
    (re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*\^\s*\{?\s*\\circ\s*\}?"), r"{(\1\\cdot\\frac{\\pi}{180})}"),
    (re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]+)(?![0-9.])"), lambda match: rf"{{\frac{{{match[1]}{match[2]}}}{{1{'0' * len(match[2])}}}}}"),
    (re.compile(r"([0-9)])\s*(?=\(|\\(?:binom|gcd|lcm|lfloor|lceil)(?![a-zA-Z]))"), r"\1\\cdot "),
)
"""What the parser does not read, or reads as something else: `\frac12`, `2(3)` (5, a mixed number), `0.1` (a float), `30^\\circ` (30); and
what it computes at once, however large: `\binom`."""


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
    verdicts = [same for point in range(len(_POINTS)) if (same := _same_at(left, right, point)) is not None]
    if not verdicts:
        return _math_verify_says(left, right)
    return all(verdicts)


def proportional(gold: str, answer: str, *, even_negative: bool) -> bool:
    """Whether one expression is a constant multiple of the other, and not zero: then both are 0 at the same places.

    Args:
        even_negative: whether the constant may be negative; not for inequalities.

    Raises:
        UnreadableError: one of them is no expression.
    """
    left, right = parse_expression(gold), parse_expression(answer)
    if not _symbols(left) or not _symbols(right):
        return False
    pairs = [pair for point in range(len(_POINTS)) if (pair := _values_at(left, right, point)) is not None]
    known = [pair for pair in pairs if pair[0].size and pair[1].size]
    if len(known) < _FEWEST_POINTS or len(known) < len(pairs):
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
    value = _value(expression, {})
    return value.real if value is not None and value.imaginary == 0 else None


@lru_cache(maxsize=256)
def parse_expression(text: str) -> Any:
    """What math-verify's parser makes of it, not evaluated. Golds come again with each sibling, so the last ones are kept.

    Raises:
        UnreadableError: it is no expression, or too long, too deep, or a number with over a million digits.
    """
    _refuse_what_the_parser_cannot_bear(text)
    try:
        expression = _parser()(_as_the_parser_writes(text))
    except MemoryError:
        raise
    except Exception as error:  # border: the parser raises plain Exception for a syntax error, and sympy whatever it likes
        raise UnreadableError(f"no expression: {text[:80]}") from error
    if _log10(expression) > _LARGEST_LOG10:
        raise UnreadableError(f"a number too large to be computed: {text[:80]}")
    return expression


def _refuse_what_the_parser_cannot_bear(text: str) -> None:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if _INDEXED_NUMBER.search(text):
        raise UnreadableError(f"a base or an index below a number, which the parser drops: {text[:80]}")
    if len(text) > _LONGEST_TEXT or deepest > _DEEPEST_NESTING:
        raise UnreadableError(f"an expression of {len(text)} characters, nested {deepest} deep: {text[:80]}")


def _as_the_parser_writes(text: str) -> str:
    for pattern, replacement in _WRITINGS:
        text = pattern.sub(replacement, text)
    return _PRIMED.sub(lambda match: f"{match[1]}_{{{'p' * len(match[2])}}}", text).replace("'", "").strip()


def _braced(text: str) -> str:
    return text if text.startswith("{") else f"{{{text}}}"


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


_POINTS = (
    ((1, 1), (137, 100), (31, 100)),
    ((1, 1), (53, 100), (17, 100)),
    ((1, -1), (167, 100), (29, 100)),
    ((-1, -1), (113, 100), (37, 100)),
    ((1, 1), (7, 1), (3, 1)),
)
"""For each point: the signs of every other variable, the first one's size, and the step from one to the next.

Positive and negative, above and below 1, and whole numbers, because some expressions are only defined or only differ on some of them.
"""


def _same_at(left: Any, right: Any, point: int) -> bool | None:
    """Whether both have the same value there; None where one of them has none."""
    pair = _values_at(left, right, point)
    return None if pair is None else pair[0].equals(pair[1])


def _values_at(left: Any, right: Any, point: int) -> tuple["_Value", "_Value"] | None:
    names = {symbol.name for expression in (left, right) for symbol in _symbols(expression)}
    values = dict(zip(sorted(names - {"i"}), _coordinates(point), strict=False))
    one, other = (_value(expression, values) for expression in (left, right))
    return None if one is None or other is None else (one, other)


def _coordinates(point: int) -> Any:
    signs, (first, scale), (step, step_scale) = _POINTS[point]
    for index in range(1000):
        yield signs[index % 2] * (Fraction(first, scale) + Fraction(step, step_scale) * index)


def _symbols(expression: Any) -> set[Any]:
    return getattr(expression, "free_symbols", set())


@dataclass(frozen=True, slots=True)
class _Value:
    real: Fraction
    imaginary: Fraction = Fraction(0)
    is_exact: bool = False

    @property
    def size(self) -> Fraction:
        return max(abs(self.real), abs(self.imaginary))

    def times(self, other: "_Value") -> "_Value":
        real = self.real * other.real - self.imaginary * other.imaginary
        return _Value(real, self.real * other.imaginary + self.imaginary * other.real, self.is_exact and other.is_exact)

    def equals(self, other: "_Value") -> bool:
        if self.is_exact and other.is_exact:
            return self == other
        size = max(self.size, other.size)
        return max(abs(self.real - other.real), abs(self.imaginary - other.imaginary)) <= size * _RELATIVE_TOLERANCE


def _value(expression: Any, values: dict[str, Fraction]) -> _Value | None:
    """None where sympy finds no finite number."""
    import sympy

    substitution = {
        symbol: sympy.I if symbol.name == "i" else sympy.Rational(values[symbol.name].numerator, values[symbol.name].denominator)
        for symbol in _symbols(expression)
    }
    try:
        exact = _exact(expression, substitution)
        if exact is not None:
            return _Value(exact, is_exact=True)
        value = expression.evalf(_NUM_DIGITS, subs=substitution, maxn=_MOST_DIGITS_INSIDE)
        parts = value.as_real_imag()
        return _Value(_fraction(parts[0]), _fraction(parts[1])) if all(part.is_Number and part.is_finite for part in parts) else None
    except MemoryError:
        raise
    except Exception:  # border: sympy raises anything for what has no value, a matrix or a set included
        return None


def _exact(node: Any, substitution: dict[Any, Any]) -> Fraction | None:
    """The value without rounding, where the tree only adds, multiplies and raises to whole powers: 2^100 is not 2^100 + 1."""
    import sympy

    node = substitution.get(node, node)
    if node.is_Rational:
        return Fraction(int(node.p), int(node.q))
    if not isinstance(node, sympy.Add | sympy.Mul | sympy.Pow | sympy.factorial):
        return None
    parts = []
    for child in node.args:
        part = _exact(child, substitution)
        if part is None:
            return None
        parts.append(part)
    if isinstance(node, sympy.Pow):
        return _whole_power(*parts)
    if isinstance(node, sympy.factorial):
        whole = parts[0].denominator == 1 and 0 <= parts[0] <= _LARGEST_EXACT_FACTORIAL
        return Fraction(math.factorial(int(parts[0]))) if whole else None
    return sum(parts, Fraction(0)) if isinstance(node, sympy.Add) else math.prod(parts, start=Fraction(1))


def _whole_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    size = max(abs(base.numerator), base.denominator).bit_length() * abs(exponent)
    if exponent.denominator != 1 or size > _MOST_BITS_OF_A_POWER or (base == 0 and exponent < 0):
        return None
    return base ** int(exponent)


def _fraction(number: Any) -> Fraction:
    if number.is_Float and number._prec < _NOISE_BITS:
        return Fraction(0)
    if number.is_Float:
        sign, mantissa, exponent, _ = number._mpf_
        return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return Fraction(int(number.p), int(number.q))


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
