"""Texts of models and of data as a page shows them: what is unseen is made visible, what is long is cut in its middle.

Called by the page for everything that it prints, by examples.py and failures.py. Pure. Escaping HTML is the template's (autoescape); this
is about what escaping leaves: what cannot be seen (core/visible_text.py), and megabytes.
"""

from dataclasses import dataclass
from html import escape

from mathrl_ray.core.visible_text import visible

LONGEST_SHOWN = 4_000
"""Characters of a text that a page shows without being asked."""
LONGEST_WHOLE = 20_000
"""Characters of a text that a page keeps whole, folded away."""
WHOLE_TEXTS_BYTES = 2_000_000
"""Of all that is folded away in one page, escaped and in UTF-8."""


def brief(text: str | None, most: int = 400) -> str:
    """A text that belongs into a line or a cell: its start, and how long it is where that is not all.

    >>> brief("abcdef", most=3)
    'abc... (6 characters)'
    """
    given = text or ""
    return visible(given) if len(given) <= most else f"{visible(given[:most])}... ({len(given):,} characters)"


def end_of(text: str | None, most: int) -> str:
    """As `brief`, but its end: of a response, where the answer stands.

    >>> end_of("abcdef", most=3)
    '(6 characters) ...def'
    """
    given = text or ""
    return visible(given) if len(given) <= most else f"({len(given):,} characters) ...{visible(given[-most:])}"


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text ready to be printed into a page."""

    start: str
    """All of it where it is short."""
    end: str
    """"" where nothing is left out."""
    num_characters: int
    """Of the whole."""
    num_left_out: int
    whole: str
    """"" where nothing is left out, or where the whole is too long to be kept."""


class TextBudget:
    """Cuts texts, and keeps whole ones as long as a page has room for them."""

    def __init__(self, whole_texts_bytes: int = WHOLE_TEXTS_BYTES) -> None:
        self._left_bytes = whole_texts_bytes

    def shown(self, text: str | None, most: int = LONGEST_SHOWN) -> ShownText:
        """
        Args:
            text: anything; None is an empty text.
            most: characters that are shown at once: a longer text's first and last half of that.

        >>> TextBudget().shown("0123456789", most=4)
        ShownText(start='01', end='89', num_characters=10, num_left_out=6, whole='0123456789')
        """
        given = text or ""
        if len(given) <= most:
            return ShownText(visible(given), "", len(given), 0, "")
        half = most // 2
        left_out = len(given) - 2 * half
        return ShownText(visible(given[:half]), visible(given[-half:]), len(given), left_out, self._whole(given))

    def _whole(self, text: str) -> str:
        if len(text) > LONGEST_WHOLE:
            return ""
        whole = visible(text)
        num_bytes = len(escape(whole).encode())
        if num_bytes > self._left_bytes:
            return ""
        self._left_bytes -= num_bytes
        return whole
