"""Texts of models and of data, as several lines that a terminal or a page can show and a person can trust.

Called where a whole response is printed, and by the report for all that it prints; what is to be one line is one_line.py's. Pure: text in,
text out. A stranger's text may hold escapes that move the cursor, marks that turn the direction, letters that are drawn as nothing, or a
megabyte: what cannot be seen is written out, and nothing is dropped without a word.
"""

import re
from functools import cache
from unicodedata import category

LONGEST = 4000
"""Characters of one text."""
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Printable to Python: what is drawn as nothing (Unicode's Default_Ignorable_Code_Point: fillers, joiners), and the empty Braille cell."""


def visible(text: str) -> str:
    r"""A text whose characters can all be seen, but for spaces, tabs and line ends, which are \n.

    Control bytes become their pictures, all else that cannot be seen its code point in brackets: marks of direction, halves of pairs,
    letters without a shape, also what only chooses an emoji's style.

    >>> visible("red \x1b[31m\r\n\u202ecba")
    'red ␛[31m\n⟦U+202E⟧cba'
    """
    return "".join(map(_shown, text.replace("\r\n", "\n")))


@cache
def _shown(character: str) -> str:
    is_seen = character.isprintable() and not _BLANK.match(character)
    if is_seen or character in "\n\t" or category(character) == "Zs":
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"⟦U+{code:04X}⟧"


def shortened(text: str, most: int = LONGEST) -> str:
    r"""A text without its middle where it is longer than `most`; its end stays, where a response says its answer.

    >>> shortened("abcdefghij", 4)
    'ab\n[6 characters are left out]\nij'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[: most - half]}\n[{len(text) - most:,} characters are left out]\n{text[len(text) - half :]}"


def counted(counts: dict[str, int]) -> str:
    """Counts by name, the largest first.

    >>> counted({"wrong": 3, "correct": 1200})
    '1,200 correct, 3 wrong'
    """
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
