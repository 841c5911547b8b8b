r"""Leaves: one value with its unit, and when two of them are equal.

Called by reading.py with a text that has no further parts, and by comparison.py with two leaves. Numbers are compared exactly without
sympy; everything else by expressions.py.
"""

import re
from fractions import Fraction

from mathrl_ray.core.grading.canonical import DOLLAR
from mathrl_ray.core.grading.expressions import constant_value, same_expression
from mathrl_ray.core.grading.rationals import Rational, close_as_doubles, read_rational, same_number
from mathrl_ray.core.grading.sentences import MONTH, changes_the_meaning
from mathrl_ray.core.grading.shapes import Leaf
from mathrl_ray.core.grading.units import DEGREE, is_known_unit, read_unit, value_factors

_FUNCTION_WORD = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|max|min|gcd|lcm|mod|sqrt|pi|theta|inf(?:inity|ty)?")
_CURRENCY = re.compile(rf"([-+]?)\s*((?:US|A|C|HK)?\s*[{DOLLAR}$€£¥₹]|Rs\.?)\s*(?=[-+]?[0-9.\\])")
_TEXT_UNIT = re.compile(r"\s*\\text\s*\{([^{}]*)\}\s*((?:\^\s*\{?\s*[0-9]\s*\}?)?)$")
_SIGN_UNIT = re.compile(rf"\s*(\\?%|\^\s*\{{?\s*\\circ\s*\}}?(?:\s*(?:\\text\s*\{{\s*)?[CF]\}}?)?|[¢{DOLLAR}$€£¥₹])$")
_WORD_UNIT = re.compile(r"(?<![\\A-Za-z])((?:[^\W\d_]+\.?(?:\s*/\s*|\s+|$))*[^\W\d_]+\.?)((?:\s*\^\s*\{?\s*[0-9]\s*\}?)?)\s*$")
_ENDS_LIKE_A_VALUE = re.compile(r"[0-9}).%\s]$|\\[a-zA-Z]+\s*$")
_LETTER_UNIT = re.compile(r"(.*[0-9}])\s+([A-Za-z])$")
_ANGLE_FUNCTION = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_PI = re.compile(r"\\pi(?![a-zA-Z])")


def read_leaf(text: str) -> Leaf:
    r"""Part a value from the units around it.

    >>> read_leaf(r"24\text{ cm}").text, read_leaf("24 cm").text, read_leaf("2ab").text
    ('24', '24', '2ab')
    """
    value, words = text.strip(), ""
    if match := _CURRENCY.match(value):
        value, words = match[1] + value[match.end() :], match[2]
    while found := _trailing_unit(value):
        value, unit = found
        words = f"{unit} {words}"
    return Leaf(value, read_unit(words)) if value else Leaf(text.strip())


def _trailing_unit(text: str) -> tuple[str, str] | None:
    """(value, unit) with what stands last taken off; None where that is no unit, or all there is."""
    match = _TEXT_UNIT.search(text) or _SIGN_UNIT.search(text)
    if match is not None:
        value, unit = text[: match.start()], " ".join(group for group in match.groups() if group)
        if _ANGLE_FUNCTION.search(value) and r"\circ" in unit:  # the degrees of `\sin 30^\circ` belong to the 30
            return None
    elif (match := _WORD_UNIT.search(text)) and _is_unit(match[1], after_space=text[: match.start()].endswith(" ")):
        value, unit = text[: match.start()], match[1] + match[2]
    else:
        return None
    return (value.rstrip(), unit) if _ENDS_LIKE_A_VALUE.search(value) and value.strip() else None


def _is_unit(words: str, *, after_space: bool) -> bool:
    """Known units, or words too long to be a product of variables, unless they turn the value into another or into a date."""
    if after_space and "/" in words:  # `m/s`: the slash makes units of single letters
        return all(is_known_unit(word) for word in re.split(r"[\s/.]+", words) if word)
    return (
        not changes_the_meaning(words)
        and not MONTH.search(words)
        and all(
            (is_known_unit(word) and len(word) > 1) or ((len(word) > 2 or not word.isascii()) and not is_function_word(word))
            for word in re.split(r"[\s/.]+", words)
            if word
        )
    )


def is_function_word(word: str) -> bool:
    """Whether a bare word is mathematics without its backslash."""
    return _FUNCTION_WORD.fullmatch(word.lower()) is not None


def with_letter_unit(leaf: Leaf) -> Leaf | None:
    """`24 m` read as metres, which only makes sense beside a gold that is a number; None where the text does not end so."""
    match = _LETTER_UNIT.fullmatch(leaf.text)
    if match is None or leaf.unit is not None or not is_known_unit(match[2]):
        return None
    return Leaf(match[1], read_unit(match[2]))


def same_leaf(gold: Leaf, answer: Leaf) -> bool:
    """Whether two values are equal, with their units.

    Raises:
        UnreadableError: one of them is no expression.
    """
    if any(_same_value(gold.text, gold_factor, answer.text, factor) for gold_factor, factor in value_factors(gold.unit, answer.unit)):
        return True
    if _is_angle_in_degrees(gold) and answer.unit is None and _PI.search(answer.text):
        return same_expression(rf"({gold.text})\cdot\frac{{\pi}}{{180}}", answer.text)
    if _is_angle_in_degrees(answer) and gold.unit is None and _PI.search(gold.text):
        return same_expression(gold.text, rf"({answer.text})\cdot\frac{{\pi}}{{180}}")
    shorter = with_letter_unit(answer) if read_rational(gold.text) else None
    return shorter is not None and same_leaf(gold, shorter)


def _is_angle_in_degrees(leaf: Leaf) -> bool:
    return leaf.unit is not None and leaf.unit.dimension == DEGREE


def _same_value(gold: str, gold_factor: Fraction, answer: str, factor: Fraction) -> bool:
    gold_number, number = read_rational(gold), read_rational(answer)
    if gold_number and number:
        if gold_factor == factor == 1:
            return same_number(gold_number, number)
        return gold_number.value * gold_factor == number.value * factor
    if number and number.is_as_long_as_a_double and _close_to_constant(number, factor, gold, gold_factor):
        return True
    return same_expression(_times(gold, gold_factor), _times(answer, factor))


def _close_to_constant(number: Rational, factor: Fraction, gold: str, gold_factor: Fraction) -> bool:
    value = constant_value(_times(gold, gold_factor))
    return value is not None and close_as_doubles(value, number.value * factor)


def _times(text: str, factor: Fraction) -> str:
    """As LaTeX. A number that only read_rational knows (a mixed one, one with commas) becomes a fraction that the parser knows."""
    number = read_rational(text)
    if number is not None:
        text = rf"\frac{{{number.value.numerator}}}{{{number.value.denominator}}}"
    return text if factor == 1 else rf"({text})\cdot\frac{{{factor.numerator}}}{{{factor.denominator}}}"
