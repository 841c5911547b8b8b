r"""Leaves: one value with its unit, and when two of them are equal.

Called by reading.py with a text that has no further parts, and by comparison.py with two leaves. Numbers are compared exactly without
sympy; everything else by expressions.py.
"""

import re
from fractions import Fraction

from mathrl_ray.core.grading.canonical import DOLLAR
from mathrl_ray.core.grading.expressions import constant_value, same_expression
from mathrl_ray.core.grading.names import is_function_word
from mathrl_ray.core.grading.rationals import Rational, close_as_doubles, read_rational, same_number
from mathrl_ray.core.grading.sentences import MONTH, changes_the_meaning
from mathrl_ray.core.grading.shapes import Leaf
from mathrl_ray.core.grading.things import AFTER_A_THING, names_a_thing
from mathrl_ray.core.grading.units import DEGREE, PERCENT, RADIAN, is_known_unit, is_unit_phrase, read_unit, value_factors

_CURRENCY = re.compile(rf"([-+]?)\s*((?:US|A|C|HK)?\s*[{DOLLAR}$€£¥₹]|Rs\.?)\s*(?=[-+]?[0-9.\\])")
_TEXT_UNIT = re.compile(r"\s*\\text\s*\{([^{}]*)\}\s*((?:\^\s*\{?\s*[0-9]\s*\}?)?)$")
_SIGN_UNIT = re.compile(rf"\s*(\\?%|\^\s*\{{?\s*\\circ\s*\}}?(?:\s*(?:\\text\s*\{{\s*)?[CF]\}}?)?|[¢{DOLLAR}$€£¥₹])$")
_WORD_UNIT = re.compile(r"(?<![\\A-Za-z])((?:[^\W\d_]+\.?(?:\s*/\s*|\s+|$))*[^\W\d_]+\.?)((?:\s*\^\s*\{?\s*[0-9]\s*\}?)?)\s*$")
_ENDS_LIKE_A_VALUE = re.compile(r"[0-9}).%\s]$|\\[a-zA-Z]+\s*$")
_LETTER_UNIT = re.compile(r"(.*[0-9}])\s+([A-Za-z])$")
_ANGLE_FUNCTION = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_POWER_OF_A_UNIT = re.compile(r"\b([a-z]+)\s+(?:squared|cubed)\s*$", re.IGNORECASE)
_PER = re.compile(r"\s*/\s*|\s+per\s+")
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
    if match := _SIGN_UNIT.search(text):
        value = text[: match.start()]
        if _ANGLE_FUNCTION.search(value) and r"\circ" in match[1]:  # the degrees of `\sin 30^\circ` belong to the 30
            return None
    elif match := _TEXT_UNIT.search(text):
        value = text[: match.start()]
        if not _is_unit_or_thing(match[1], value):
            return None
    elif (match := _WORD_UNIT.search(text)) and _is_unit(match[1], text[: match.start()]):
        value = text[: match.start()]
    else:
        return None
    unit = " ".join(group for group in match.groups() if group)
    return (value.rstrip(), unit) if _ENDS_LIKE_A_VALUE.search(value) and value.strip() else None


def _is_unit(words: str, value: str) -> bool:
    """Bare words: known units, or words too long to be a product of variables that name a thing."""
    if value.endswith(" ") and "/" in words:  # `m/s`: the slash makes units of single letters
        return all(is_known_unit(word) for word in _words_of(words))
    is_no_product = all(
        (is_known_unit(word) and len(word) > 1)
        or word in AFTER_A_THING
        or ((len(word) > 2 or not word.isascii()) and not is_function_word(word))
        for word in _words_of(words)
    )
    return is_no_product and _is_unit_or_thing(words, value)


def _is_unit_or_thing(words: str, value: str) -> bool:
    """Unless they turn the value into another or into a date. `miles per hour`: each side of the `per` is one."""
    if changes_the_meaning(_POWER_OF_A_UNIT.sub(r"\1", words)) or MONTH.search(words):
        return False
    sides = [_words_of(side) for side in _PER.split(words.removeprefix("per ").strip())]
    return all(
        side and (is_unit_phrase(side) or names_a_thing(" ".join(side), is_singular=bool(at) or _is_one(value)))
        for at, side in enumerate(sides)
    )


def _words_of(words: str) -> list[str]:
    return [word for word in re.split(r"[\s/.]+", words) if word]


def _is_one(value: str) -> bool:
    """Whether a thing behind the value stands in the singular: 1 way, 3/4 cup."""
    number = read_rational(value)
    return number is not None and 0 < abs(number.value) <= 1


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
    if any(_same_value(gold.text, gold_factor, answer.text, factor) for gold_factor, factor in _factors(gold, answer)):
        return True
    if _is_angle_in_degrees(gold) and _is_in_radians(answer):
        return same_expression(rf"({gold.text})\cdot\frac{{\pi}}{{180}}", answer.text)
    if _is_angle_in_degrees(answer) and _is_in_radians(gold):
        return same_expression(gold.text, rf"({answer.text})\cdot\frac{{\pi}}{{180}}")
    shorter = with_letter_unit(answer) if read_rational(gold.text) else None
    return shorter is not None and same_leaf(gold, shorter)


def _factors(gold: Leaf, answer: Leaf) -> list[tuple[Fraction, Fraction]]:
    """As `value_factors`, where the values say more about units that are left out.

    A bare multiple of pi is in radians. A bare gold below 1 is a proportion, so `0.5\\%` is no 0.5; from 1 on it may be a percentage.
    """
    factors = value_factors(gold.unit, answer.unit)
    if gold.unit is not None or answer.unit is None:
        return factors
    if answer.unit.dimension == RADIAN and _PI.search(gold.text):
        return [(Fraction(1), Fraction(1))]
    number = read_rational(gold.text)
    if answer.unit.dimension == PERCENT and number is not None and 0 < abs(number.value) < 1:
        return [(Fraction(1), answer.unit.factor)]
    return factors


def _is_angle_in_degrees(leaf: Leaf) -> bool:
    return leaf.unit is not None and leaf.unit.dimension == DEGREE


def _is_in_radians(leaf: Leaf) -> bool:
    """Radians are mostly left out beside a pi."""
    return leaf.unit.dimension == RADIAN if leaf.unit is not None else _PI.search(leaf.text) is not None


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
