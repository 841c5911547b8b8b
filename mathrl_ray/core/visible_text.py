"""Texts of models and of data, as several lines that a terminal can show and a person can trust.

Called where a whole response is printed; what is to be one line is one_line.py's. Pure: text in, text out. A stranger's text may hold
escapes that move the cursor, marks that turn the direction, or a megabyte: what cannot be seen is written out, and nothing is dropped
without a word.
"""

from unicodedata import category

LONGEST = 4000
"""Characters of one text."""


def visible(text: str) -> str:
    r"""A text whose line ends are \n and whose other characters can all be seen: controls, marks and halves of pairs as \x1b, \u202e, ...

    >>> visible("red \x1b[31m\r\nnext\tcolumn")
    'red \\x1b[31m\nnext\\tcolumn'
    """
    return "".join(_shown(each) for each in text.replace("\r\n", "\n"))


def _shown(character: str) -> str:
    if character == "\n" or character.isprintable() or category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")


def shortened(text: str, most: int = LONGEST) -> str:
    """A text without its middle where it is longer than `most`; its end stays, where a response says its answer.

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
