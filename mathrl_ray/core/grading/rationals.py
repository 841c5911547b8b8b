r"""Numbers that can be read exactly: integers, decimals, fractions, mixed numbers, scientific notation, repeating decimals.

Called by leaves.py with canonical text. Pure arithmetic on Fraction: no sympy, and no number whose digits could fill the memory. Most
answers end here, in some 20 µs, right or wrong.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_MOST_DIGITS = 4000
"""Python's int() refuses more than 4,300."""
_LARGEST_EXPONENT = 4000
_DOUBLE_DIGITS = 15
"""Decimal digits that a double always keeps."""
_DOUBLE_TOLERANCE = Fraction(1, 10**14)
"""Relative: one unit in the 15th digit of a number that begins with 1, whether it was rounded or cut off."""

_SIGNS = re.compile(r"(?:[-+]\s*)*")
_UNSIGNED = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_DECIMAL = re.compile(rf"({_UNSIGNED})")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*\{?([0-9]+)\}?")
_GOES_ON = re.compile(r"([0-9]*)\.(?=[0-9]{1,300}\s*(?:\.{3}|\\ldots)$)([0-9]*?)([0-9]{1,6}?)\3{2,}\s*(?:\.{3}|\\ldots)")
_THOUSANDS = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+)(\.[0-9]+)?")
_FRACTION = re.compile(
    rf"\\frac\s*(?:\{{\s*(?P<a>[-+]?\s*{_UNSIGNED})\s*\}}|(?P<a1>[0-9]))\s*(?:\{{\s*(?P<b>[-+]?\s*{_UNSIGNED})\s*\}}|(?P<b1>[0-9]))"
)
_QUOTIENT = re.compile(rf"({_UNSIGNED})\s*/\s*([-+]?\s*{_UNSIGNED})")
_MIXED_LATEX = re.compile(r"([0-9]+)\s*(\\frac.*)")
_MIXED_PLAIN = re.compile(r"([0-9]+) +([0-9]+\s*/\s*[0-9]+)")
_SCIENTIFIC = re.compile(
    rf"(?P<m>{_UNSIGNED})\s*(?:[eE]|(?:\\times|\\cdot|\*)\s*10\s*(?:\^|\*\*))\s*(?:\{{\s*(?P<x>[-+]?\s*[0-9]+)\s*\}}|\(?(?P<y>[-+]?[0-9]+)\)?)"
)
_POWER_OF_TEN = re.compile(r"10\s*(?:\^|\*\*)\s*(?:\{\s*(?P<x>[-+]?\s*[0-9]+)\s*\}|\(?(?P<y>[-+]?[0-9]+)\)?)")
_DIGITS = re.compile(r"[0-9]")


@dataclass(frozen=True, slots=True)
class Rational:
    """A number as written."""

    value: Fraction
    num_digits: int | None = None
    """Significant digits of a decimal fraction; None where the writing is exact: integers and fractions of integers."""

    @property
    def is_as_long_as_a_double(self) -> bool:
        return self.num_digits is not None and self.num_digits >= _DOUBLE_DIGITS


def read_rational(text: str) -> Rational | None:
    r"""The number that the whole text is, or None.

    >>> read_rational(r"3\frac{1}{4}").value, read_rational("-3 1/4").value, read_rational("4.2e5").value
    (Fraction(13, 4), Fraction(-13, 4), Fraction(420000, 1))
    >>> read_rational(r"0.\overline{3}").value, read_rational("12,345").value, read_rational("x")
    (Fraction(1, 3), Fraction(12345, 1), None)
    """
    text = _without_brackets(text.strip())
    if len(text) > _MOST_DIGITS or not _DIGITS.search(text):
        return None
    signs = _SIGNS.match(text)
    assert signs is not None  # it matches the empty text
    number = _unsigned(text[signs.end() :].strip())
    if number is None or signs[0].count("-") % 2 == 0:
        return number
    return Rational(-number.value, number.num_digits)


def same_number(gold: Rational, answer: Rational) -> bool:
    r"""Whether two numbers are equal: exactly, for six correct decimals are still not one third.

    Only where no decimal of any length equals the gold (1/3 is such a one), the digits of a double are taken for it.
    """
    if gold.value == answer.value:
        return True
    return _never_ends(gold.value) and answer.is_as_long_as_a_double and close_as_doubles(gold.value, answer.value)


def close_as_doubles(gold: Fraction, answer: Fraction) -> bool:
    return abs(gold - answer) <= abs(gold) * _DOUBLE_TOLERANCE


def _never_ends(value: Fraction) -> bool:
    """Whether the decimal expansion goes on for ever: the denominator has a prime factor other than 2 and 5."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1


def _without_brackets(text: str) -> str:
    while len(text) > 1 and (text[0], text[-1]) in (("(", ")"), ("{", "}")) and not re.search(r"[(){},]", text[1:-1]):
        text = text[1:-1].strip()
    return text


def _unsigned(text: str) -> Rational | None:
    if match := _DECIMAL.fullmatch(text):
        return _decimal(match[1])
    if match := _THOUSANDS.fullmatch(text):
        return _decimal(re.sub("[, ]", "", match[1]) + (match[2] or ""))
    if match := _FRACTION.fullmatch(text):
        return _quotient(match["a"] or match["a1"], match["b"] or match["b1"])
    if match := _QUOTIENT.fullmatch(text):
        return _quotient(match[1], match[2])
    if match := _MIXED_LATEX.fullmatch(text) or _MIXED_PLAIN.fullmatch(text):
        return _mixed(match[1], match[2])
    if match := _SCIENTIFIC.fullmatch(text):
        return _scientific(match["m"], match["x"] or match["y"])
    if match := _POWER_OF_TEN.fullmatch(text):
        return _scientific("1", match["x"] or match["y"])
    if match := _REPEATING.fullmatch(text) or _GOES_ON.fullmatch(text):
        return _repeating(*match.groups())
    return None


def _decimal(text: str) -> Rational:
    whole, point, decimals = text.partition(".")
    exact = Fraction(int(whole + decimals or "0"), 10 ** len(decimals))
    return Rational(exact, len((whole + decimals).lstrip("0")) if point and decimals else None)


def _signed(text: str) -> Fraction:
    text = text.replace(" ", "")
    value = _decimal(text.lstrip("+-")).value
    return -value if text.startswith("-") else value


def _quotient(numerator: str, denominator: str) -> Rational | None:
    below = _signed(denominator)
    return Rational(_signed(numerator) / below) if below else None


def _mixed(whole: str, part: str) -> Rational | None:
    """A whole number beside a proper fraction is their sum; beside an improper one nobody knows what is meant."""
    fraction = _unsigned(part)
    if fraction is None or not 0 < fraction.value < 1:
        return None
    return Rational(int(whole) + fraction.value)


def _scientific(mantissa: str, exponent: str) -> Rational | None:
    power = int(exponent.replace(" ", ""))
    if abs(power) > _LARGEST_EXPONENT:
        return None
    return Rational(_decimal(mantissa).value * Fraction(10) ** power)


def _repeating(whole: str, start: str, period: str) -> Rational:
    scale = 10 ** len(start)
    repeated = Fraction(int(period), (10 ** len(period) - 1) * scale)
    return Rational(Fraction(int((whole + start) or "0"), scale) + repeated)
