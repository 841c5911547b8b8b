r"""Spelling: one text for answers that differ only in how they are typeset, cheap enough for every response.

Called by grade.py for the quick verdict, and by canonical.py. Pure text; knows no mathematics beyond what a comma between digits means.
Every function is linear in the text.
"""

import re

from mathrl_ray.core.grading.extraction import Box, boxes

_MATH_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_LEFT_RIGHT = re.compile(r"\\(?:left|right)(?![a-zA-Z])")
_FRAC_VARIANT = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_SPACES = re.compile(r"(?:(?<!\\)\\[,;: ]|(?<=\S)~|\s)+")  # a `~` at the head of a number is no space: about
_SPACE_THAT_SAYS_NOTHING = re.compile(r"(?<![0-9]) (?![A-Za-z])|(?<![A-Za-z]) (?![0-9])")
_TYPESET_THOUSANDS_COMMA = re.compile(r"(?<=[0-9])(?:\{,\}|,\s?\\!\s?|\s?\\,\s?)(?=[0-9]{3}(?![0-9]))")
_NUMBER_WITH_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_PRODUCT_OF_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9,])(?:(?!\b(?:and|or)\b)[^,])*")
_OPENING_AND_CLOSING = re.compile(r"\\([{}])|\\.|([{}])|([(\[])|([)\]])")
_OPERATORS_AT_AN_END = ("+", "-", "*", "/", "=", "^", "_", "\\", "<", ">")
_WHOLE_NUMBER = re.compile(r"([-+]?)([0-9]+)")


def normalise(text: str) -> str:
    r"""One spelling for answers that differ only in how they are typeset. Its cost is linear in the text.

    Removes what carries no meaning and never reorders or computes; a space between two digits or two letters stays, so that the
    mixed number `1 3/4` does not become `13/4`.

    >>> normalise(r"$\boxed{\dfrac{1}{2}}$.")
    '\\frac{1}{2}'
    >>> normalise(r"\left( 1, \, x \right)"), normalise("12{,}345.50")
    ('(1,x)', '12345.50')
    """
    text = without_full_stop(text.strip())
    text = without_delimiters(without_box(without_delimiters(text)))
    text = _LEFT_RIGHT.sub("", text)
    text = _FRAC_VARIANT.sub(r"\\frac", text)
    text = without_thousands_commas(text)
    text = _without_spaces(text)
    return without_full_stop(text)


def is_whole(text: str) -> bool:
    r"""Whether a text could be read: every bracket is closed by one (`(0,1]` by another kind) and no operator stands at its end.

    A gold that is not whole is left to the parser: two equal texts of it are no right answer, if nobody can say what they mean.

    >>> [is_whole(text) for text in (r"\frac{1}{2}", "(0,1]", r"\{1,2\}", r"\frac{1", "(1,2", "3+", r"\{\}\{")]
    [True, True, True, False, False, False, False]
    """
    if text.endswith(_OPERATORS_AT_AN_END):
        return False
    open_sets = open_groups = open_brackets = 0
    for set_brace, group_brace, opening, closing in _OPENING_AND_CLOSING.findall(text):
        open_sets += {"{": 1, "}": -1, "": 0}[set_brace]
        open_groups += {"{": 1, "}": -1, "": 0}[group_brace]
        open_brackets += bool(opening) - bool(closing)
        if min(open_sets, open_groups, open_brackets) < 0:
            return False
    return open_sets == open_groups == open_brackets == 0


def without_full_stop(text: str) -> str:
    """Drop full stops at the end; the three of an ellipsis stay."""
    if not text.endswith("."):  # nearly always
        return text
    end = len(text)
    while text[max(end - 1, 0) : end] == "." and text[max(end - 3, 0) : end] != "...":
        end -= 1
        while text[max(end - 1, 0) : end].isspace():
            end -= 1
    return text[:end]


def without_delimiters(text: str) -> str:
    """Drop `$...$` and its like where one pair spans the whole text: `$3$ and $4$` and `\\$5` stay as they are."""
    for opening, closing in _MATH_DELIMITERS:
        inner = text[len(opening) : len(text) - len(closing)]
        if text == opening + inner + closing and opening not in inner and closing not in inner and not inner.endswith("\\"):
            return inner.strip()
    return text


def without_box(text: str) -> str:
    r"""Drop one `\boxed{...}` that spans the whole text."""
    if not (text.startswith((r"\boxed", r"\fbox")) and text.endswith("}")):
        return text
    start, end, inside = (boxes(text) or [Box(-1, -1, slice(0))])[0]
    content = text[inside].strip()
    return content if (start, end) == (0, len(text)) else text


def _without_spaces(text: str) -> str:
    r"""Drop LaTeX's and plain spaces, except one that parts two digits or two letters (`1 3/4`, `\pi r`)."""
    text = _SPACES.sub(" ", text.replace(r"\!", ""))
    return _SPACE_THAT_SAYS_NOTHING.sub("", text)


def without_thousands_commas(text: str) -> str:
    r"""Drop the commas of `12{,}345` and `12,\!345` anywhere, and those of `12,345` where it is the whole answer.

    In `(1,234)` and in `1, 234` the comma parts two numbers, so this comes before the spaces go.
    """
    text = _TYPESET_THOUSANDS_COMMA.sub("", text)
    return text.replace(",", "") if _NUMBER_WITH_THOUSANDS.fullmatch(text) else text


def thousands_as_list(text: str) -> str | None:
    """`81,256` and `1,296\\sqrt{3}` as the lists that they may be too: `81, 256`; None for any other text."""
    return text.replace(",", ", ") if _PRODUCT_OF_THOUSANDS.fullmatch(text) else None


def whole_number(text: str) -> str | None:
    """Sign and digits without leading zeros; text, because int() refuses more than 4,300 digits. None for anything else.

    >>> whole_number("-007"), whole_number("-0"), whole_number("7.0")
    ('-7', '0', None)
    """
    match = _WHOLE_NUMBER.fullmatch(text)
    if match is None:
        return None
    digits = match[2].lstrip("0") or "0"
    return "-" + digits if match[1] == "-" and digits != "0" else digits
