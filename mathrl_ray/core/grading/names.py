r"""Names: what stands before `=` or around `<` without being a part of the value.

Called by regions.py and comparison.py. Pure text.
"""

import re

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
    rf"\\?(?:sin|cos|tan|cot|sec|csc)\s*(?:{_ANGLE}|\(\s*{_ANGLE}\s*\))"
    r"|\\?\|(?:[A-Z]{1,2}(?:\s*\\(?:cap|cup)\s*[A-Z])*|\\vec\s*\{?\w\}?)\\?\|"
    r"|\[[A-Z]{3,6}\]|\\(?:det|dim|deg|max|min)\s*(?:[A-Za-z]|\\text\{[A-Za-z]\})"
    r"|(?:\\mathbb\s*\{?[EP]\}?|[EP])\s*[(\[][^()\[\]]*[)\]]|[A-Za-z]{1,2}(?:\s*:\s*[A-Za-z]{1,2})+"
)
r"""What asks for one value: a ratio in a triangle, `|AB|`, `|A \cap B|`, `[ABC]`, `\det A`, `E[X]`, `a:b`."""
_NAMED_FIGURE = re.compile(r"\\(?:text|triangle|angle|overline|odot|Delta)(?![a-zA-Z])")
_SINGLE_UNKNOWN = re.compile(r"(?:\\?(?:sin|cos|tan|cot|sec|csc)\s*)?([A-Za-z]|\\[a-zA-Z]+)")
_WORD = re.compile(r"[^\W\d_]+")
_MORE_THAN_WORDS = re.compile(r"[^\w\s{}(),.'-]|[0-9_]")
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
    if _NUMBERS_WITH_A_NAME.fullmatch(text) or _INVERTIBLE.fullmatch(text) or computes(text):
        return False
    match = _NAME.fullmatch(text)
    if match is not None:
        return not _multiplies_itself(text, match["inside"])
    return _TUPLE_OF_NAMES.fullmatch(text) is not None or _is_label(text)


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
