r"""Names: what stands before `=` or around `<` without being a part of the value.

Called by regions.py and comparison.py. Pure text.
"""

import re
from collections.abc import Sequence

from mathrl_ray.core.grading.sentences import computes

_NAME = re.compile(
    r"(?:m\s*)?(?:\\(?:angle|triangle|overline|vec|hat|bar|text)\s*)?"
    r"(?:(?<=\\text)\s*\{[A-Za-z][A-Za-z ]*\}|\{?(?:[A-Za-z]|[A-Z]{2,4}|\\[a-zA-Z]+|[A-Za-z][A-Za-z ]{2,}[A-Za-z])\s*\}?)"
    r"(?:_\s*(?:\{[^{}]*\}|\w))?(?:(?:(?<=[A-Z])|(?=[^()]*\())\^\s*\{\s*-\s*1\s*\}|\^\s*\*)?'*\s*(?:\((?P<inside>[^()]*)\))?"
)
_TUPLE_OF_NAMES = re.compile(r"\(\s*[A-Za-z](?:_\{?\w\}?)?(?:\s*,\s*[A-Za-z](?:_\{?\w\}?)?)+\s*\)")
_NUMBERS_WITH_A_NAME = re.compile(r"\\(?:pi|infty)|[ei]|\\(?:frac|sqrt).*")
_INVERTIBLE = re.compile(r"\\?(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|exp)(?![a-zA-Z]).*")
_ANGLE = r"(?:\\angle\s*)?(?:[A-Z]{1,3}|\\(?:theta|alpha|beta|gamma|phi|angle))"
_MEASURE = re.compile(
    rf"\\?(?:sin|cos|tan|cot|sec|csc)\s*(?:[0-9]?\s*{_ANGLE}|\(\s*[0-9]?\s*{_ANGLE}\s*\))"
    r"|\\?\|(?:[A-Z]{1,2}(?:\s*\\(?:cap|cup)\s*[A-Z])*|[zw](?:_\{?\w\}?)?|\\vec\s*\{?\w\}?)\\?\||(?:\\\||\|\|)\s*\{?(?:\\vec\s*\{?)?\w\}*\s*(?:\\\||\|\|)"
    r"|\[[A-Z]{3,6}\]|\\(?:det|dim|deg|max|min)\s*(?:[A-Za-z]|\\text\{[A-Za-z]\})"
    r"|(?:\\mathbb\s*\{?[EP]\}?|[EP])\s*[(\[][^()\[\]]*[)\]]|[A-Za-z]{1,2}(?:\s*:\s*[A-Za-z]{1,2})+"
)
r"""What asks for one value: a ratio in a triangle, `|AB|`, `|A \cap B|`, `[ABC]`, `\det A`, `E[X]`, `a:b`."""
_COMPUTABLE = re.compile(r"(?:\\(?:text\s*\{\s*)?)?(?:gcd|lcm|max|min)\s*\}?\s*\\?[({][^a-zA-Z]*\\?[)}]")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|\\(?:alpha|beta|gamma|delta|theta|phi|omega|lambda|mu|rho|sigma)(?![a-zA-Z])")
_PRODUCT_OF_LETTERS = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,3}(?![A-Za-z])")
_WORDY = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{4,}|\\(?:text|int|pm|mp)(?![a-zA-Z])")
_CONSTANTS = frozenset("ei")
_VALUE_OF_A_FUNCTION = re.compile(
    r"(?<![A-Za-z\\])[fghpqFGHPQ](?:_\{?\w\}?)?'*\s*\((?:[-+0-9.,/ \x00]|\\(?:frac|pi|sqrt)(?![a-zA-Z])|[{}])*\)"
)
_NAME_OF_A_FUNCTION = re.compile(r"(?<![A-Za-z\\])[fghpqFGHPQ](?=(?:_\{?\w\}?)?'*\s*\()")
_IN_THIS_ORDER = ("xyz", "abcd", "mb")
"""Coordinates, coefficients, and the slope before the intercept."""
_NAMED_FIGURE = re.compile(r"\\(?:text|triangle|angle|overline|odot|Delta)(?![a-zA-Z])")
_SINGLE_UNKNOWN = re.compile(r"(?:\\?(?:sin|cos|tan|cot|sec|csc)\s*)?([A-Za-z]|\\[a-zA-Z]+)")
_WORD = re.compile(r"[^\W\d_]+")
_MORE_THAN_WORDS = re.compile(r"[^\w\s{}(),.'-]|[0-9_]")
_FUNCTION_WORD = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|max|min|gcd|lcm|mod|sqrt|pi|theta|inf(?:inity|ty)?")
_SHORT_WORDS = frozenset({"of", "in", "is", "to", "a", "the", "by", "at", "on", "an"})


def is_name(text: str) -> bool:
    r"""A variable, a function's value, an angle, a word, or a tuple of variables; no number that has a letter for it.

    What has still to be solved for a variable is none: `2x`, `x^{-1}`, `x(x+1)`, `\ln x`, `twice x`.

    >>> is_name("x"), is_name("f(x)"), is_name(r"\text{Area}"), is_name("(x, y)"), is_name("2x"), is_name(r"\pi"), is_name("x(x+1)")
    (True, True, True, True, False, False, False)
    """
    text = text.strip()
    if _MEASURE.fullmatch(text):
        return True
    if _COMPUTABLE.fullmatch(text):  # `\gcd(12, 18)` is a number, to be compared
        return False
    if _NUMBERS_WITH_A_NAME.fullmatch(text) or _INVERTIBLE.fullmatch(text) or computes(text):
        return False
    match = _NAME.fullmatch(text)
    if match is not None:
        return not _multiplies_itself(text, match["inside"])
    return _TUPLE_OF_NAMES.fullmatch(text) is not None or _is_label(text)


def asks_for_a_value(side: str) -> bool:
    r"""Whether an expression before `=` is what was asked for: of two letters or more (`m + n`, `AB^2`), or of function's values.

    Of one letter (`2x`, `x^2`, `|x|`) it has still to be solved for it.

    >>> [asks_for_a_value(side) for side in ("m+n", "xy", "f(1)+f(2)", "f(g(2))", "2x", "x^2+x", "f(x)+3", "twice x")]
    [True, True, True, True, False, False, False, False]
    """
    if side.strip() == "e":  # an eccentricity
        return True
    if _WORDY.search(side) or computes(side):
        return False
    while (bare := _VALUE_OF_A_FUNCTION.sub("\x00", side)) != side:
        side = bare
    side = _NAME_OF_A_FUNCTION.sub("", side)
    letters = {*_LETTER.findall(side), *"".join(word for word in _PRODUCT_OF_LETTERS.findall(side) if not is_function_word(word))}
    letters -= _CONSTANTS
    return len(letters) > 1 or (not letters and "\x00" in side)


def order_of_names(names: Sequence[str]) -> list[int] | None:
    """The places of coordinates, of coefficients and of one letter's indices in their order; None for names that only a question orders.

    >>> order_of_names(["y", "x"]), order_of_names(["b", "m"]), order_of_names(["x_2", "x_1"]), order_of_names(["p", "n"])
    ([1, 0], [1, 0], [1, 0], None)
    """
    places = range(len(names))
    if len({name.partition("_")[0] for name in names}) == 1:
        return sorted(places, key=lambda place: names[place])
    letters = next((letters for letters in _IN_THIS_ORDER if set(names) <= set(letters)), None)
    return sorted(places, key=lambda place: letters.index(names[place])) if letters else None


def _multiplies_itself(text: str, inside: str | None) -> bool:
    """`x(x+1)` is a product, no function's value."""
    return inside is not None and text[0].isalpha() and text[0] in _WORD.findall(inside)


def _is_label(text: str) -> bool:
    r"""`\text{Area of } \triangle ABC`: words, with the capitals of a figure between them."""
    bare = _NAMED_FIGURE.sub(" ", text)
    if "\\" in bare or _MORE_THAN_WORDS.search(bare):
        return False
    words = _WORD.findall(bare)
    has_a_word = any(len(word) > 2 and not word.isupper() for word in words)
    return has_a_word and all(len(word) > 2 or word.isupper() or word.lower() in _SHORT_WORDS for word in words)


def unknown_of(name: str) -> str | None:
    r"""The letter that must not occur in the value of a name: `x`, and the angle of `\tan A`. None for a function's value or a word.

    >>> unknown_of("x"), unknown_of(r"\tan \theta"), unknown_of("f(x)")
    ('x', '\\theta', None)
    """
    match = _SINGLE_UNKNOWN.fullmatch(name.strip())
    return match[1] if match else None


def is_function_word(word: str) -> bool:
    """Whether a bare word is mathematics without its backslash."""
    return _FUNCTION_WORD.fullmatch(word.lower()) is not None
