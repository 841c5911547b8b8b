r"""Names: what stands before `=` or around `<` without being a part of the value.

Called by regions.py and comparison.py. Pure text.
"""

import re

_NAME = re.compile(
    r"(?:m\s*)?(?:\\(?:angle|triangle|overline|vec|hat|bar|text)\s*)?"
    r"\{?(?:[A-Za-z]|[A-Z]{2,4}|\\[a-zA-Z]+|[A-Za-z][A-Za-z ]{2,}[A-Za-z])\s*\}?"
    r"(?:_\s*(?:\{[^{}]*\}|\w))?(?:\^\s*(?:\{\s*-\s*1\s*\}|\*))?'*\s*(?:\([^()]*\))?"
)
_TUPLE_OF_NAMES = re.compile(r"\(\s*[A-Za-z](?:_\{?\w\}?)?(?:\s*,\s*[A-Za-z](?:_\{?\w\}?)?)+\s*\)")
_NUMBERS_WITH_A_NAME = re.compile(r"\\(?:pi|infty)|[ei]|\\(?:frac|sqrt).*")


def is_name(text: str) -> bool:
    r"""A variable, a function's value, an angle, a word, or a tuple of variables; no number that has a letter for it.

    >>> is_name("x"), is_name("f(x)"), is_name(r"\text{Area}"), is_name("(x, y)"), is_name("2x"), is_name(r"\pi")
    (True, True, True, True, False, False)
    """
    text = text.strip()
    if _NUMBERS_WITH_A_NAME.fullmatch(text):
        return False
    return bool(_NAME.fullmatch(text) or _TUPLE_OF_NAMES.fullmatch(text))
