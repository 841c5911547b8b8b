"""Texts of models and of data, as one line that a terminal can show.

Called wherever an id, an answer or a response is printed. Pure: text in, text out. A stranger's text may hold line ends, escapes that move
the cursor or rename the window, marks that turn the direction, or a megabyte.
"""

LONGEST = 160
"""Characters."""


def one_line(text: str | None, most: int = LONGEST, *, keep_end: bool = False) -> str:
    """A text without line ends and non-printables, shortened to its start; "" of None.

    Args:
        text: anything.
        most: characters that are kept.
        keep_end: keep its end instead, where a response has its answer.

    >>> one_line("two\\n lines \\x1b[31m"), one_line("abcdef", 3), one_line("abcdef", 3, keep_end=True)
    ('two lines [31m', 'abc...', '...def')
    """
    # what is far beyond the limit is cut before it is looked at
    part = (text or "")[-4 * most :] if keep_end else (text or "")[: 4 * most]
    line = " ".join("".join(each for each in part if each.isprintable() or each.isspace()).split())
    if len(line) <= most and len(part) == len(text or ""):
        return line
    return f"...{line[-most:]}" if keep_end else f"{line[:most]}..."
