r"""Extraction: which part of a response is its answer, and did the response keep the rule of its style?

Called by grade.py and by the scorer with one response. Pure text: knows no gold, no mathematics, no verdict. Every function is linear in
the response, so that 50 KB of reasoning cost less than a millisecond.

    r1_zero                   `</think> <answer> ... </answer>`: A5's rule, strict to the space
    question_only, boxed      the last `\boxed{...}`; boxes that only a comma, `and`, `or`, `not` and a name parts are one list
"""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

Style = Literal["r1_zero", "question_only", "boxed"]

_THINK_THEN_ANSWER = "</think> <answer>"
_OPENING = "<answer>"
_CLOSING = "</answer>"
_ANY_TAG_PAIR = re.compile(r"<answer>(?P<inside>(?:(?!<answer>).)*?)(?:</answer>|$)", re.IGNORECASE | re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX_CONTENT = re.compile(r"\\?[^\s{}$\\]+")
_BETWEEN_BOXES = re.compile(r"(?:[,;]|\\text\{ ?(?:and|or) ?\}|,? ?(?:\b(?:and|or|but)\b)?(?: ?\bnot\b)?)(?: ?[A-Za-z](?:_\{?\w\}?)? ?=)?")
_LONGEST_BETWEEN_BOXES = 200
"""Characters, white space included; what is longer parts nothing, and looking at it would cost more than a response may."""
_ANNOUNCED = re.compile(r"(?:####|\banswer(?:\s++is|:))[ \t]*+:?[ \t]*+(?P<value>\S[^\n]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a response gives as its answer, whatever the gold is.

    Example: Extraction(format_ok=False, answer=None, elsewhere="5") for " so it is \\boxed{5}" under the tag rule.
    """

    format_ok: bool
    answer: str | None
    """Without surrounding white space. None: there is no complete pair (or no box). "": it is empty."""
    elsewhere: str | None = None
    """Only where `answer` is None: what the response gives as its answer in another way. It is judged, never paid."""

    @property
    def answer_to_judge(self) -> str | None:
        """What is compared with the gold; it pays only where `format_ok`, else it tells how many right answers the rule cost."""
        return self.elsewhere if self.answer is None else self.answer


def extract(response: str, style: Style = "r1_zero") -> Extraction:
    r"""Apply the rule of a style and take the answer out.

    r1_zero: the format is kept if and only if `</think> <answer>` (one space, this case) occurs and `</answer>` follows its last
    occurrence. The answer is the text of the last complete pair, which is the last `<answer>` that a `</answer>` follows, up to the
    first one that does. The two are independent: a response may hold an answer and break the rule.
    question_only, boxed: the format is kept if and only if there is a complete box; the answer is the last one's content.

    >>> extract("2 and 3 </think> <answer> 5 </answer> as said")
    Extraction(format_ok=True, answer='5', elsewhere=None)
    >>> extract("2 and 3 </think><answer> 5 </answer>")
    Extraction(format_ok=False, answer='5', elsewhere=None)
    >>> extract("2 and 3 </think> <answer> 5")
    Extraction(format_ok=False, answer=None, elsewhere='5')
    >>> extract(r"not \boxed{4}, so $\boxed{5}$.", "boxed")
    Extraction(format_ok=True, answer='5', elsewhere=None)
    """
    match style:
        case "r1_zero":
            format_ok, answer = _by_tags(response)
        case "question_only" | "boxed":
            answer = last_boxed(response)
            format_ok = answer is not None
        case _:
            raise ValueError(f"style = {style!r} is not known; r1_zero, question_only and boxed are")
    return Extraction(format_ok, answer, _elsewhere(response) if answer is None else None)


def _by_tags(response: str) -> tuple[bool, str | None]:
    rule_at = response.rfind(_THINK_THEN_ANSWER)
    last_closing = response.rfind(_CLOSING)
    format_ok = 0 <= rule_at < last_closing
    opening = response.rfind(_OPENING, 0, max(last_closing, 0))
    if opening < 0:
        return format_ok, None
    start = opening + len(_OPENING)
    return format_ok, response[start : response.index(_CLOSING, start)].strip()


def _elsewhere(response: str) -> str | None:
    """Where a response without a complete pair or box says its answer: tags in another case or cut off, a box, `answer is`, `####`."""
    tagged = _last(_ANY_TAG_PAIR, response) if "<answer>" in response.lower() else None
    if tagged is not None:
        return tagged["inside"].strip()
    boxed = last_boxed(response)
    if boxed is not None:
        return boxed
    announced = _last(_ANNOUNCED, response)
    return announced["value"].strip() if announced else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    *_, found = (None, *pattern.finditer(text))
    return found


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}` or `\fbox{...}`, also of a bare `\boxed 5`; None where there is none.

    Boxes that nothing but a separator parts give one list, because `\boxed{3}, \boxed{4}` says both: neither "the last" nor a guess.

    >>> last_boxed(r"so \boxed{\frac{1}{2}}."), last_boxed(r"$\boxed{3}$ and $\boxed{4}$"), last_boxed("5")
    ('\\frac{1}{2}', '3, 4', None)
    """
    found = boxes(text)
    if not found:
        return None
    contents = {_content(text, found[-1]): None}
    for earlier, later in zip(reversed(found[:-1]), reversed(found), strict=False):
        if not _parts_boxes(text, earlier.end, later.start):
            break
        contents[_content(text, earlier)] = None
    return ", ".join(reversed(contents))


def _parts_boxes(text: str, start: int, end: int) -> bool:
    """Whether nothing but a separator stands between two boxes."""
    if end - start > _LONGEST_BETWEEN_BOXES:
        return False
    between = " ".join(text[start:end].replace("$", " ").split())
    return any(character.isalpha() or character in ",;" for character in between) and _BETWEEN_BOXES.fullmatch(between) is not None


def last_single_box(text: str) -> str | None:
    r"""The content of the last complete box alone, as data sets take golds from their solutions; None where there is none.

    >>> last_single_box(r"$\boxed{3}$ and $\boxed{4}$")
    '4'
    """
    found = boxes(text)
    return _content(text, found[-1]) if found else None


class Box(NamedTuple):
    """Where one box stands in a text."""

    start: int
    end: int
    inside: slice
    """Its content; cut out only where it is needed, since boxes inside boxes would copy the text again and again."""


def boxes(text: str) -> list[Box]:
    """Each complete box in the order of their starts."""
    if "\\boxed" not in text and "\\fbox" not in text:
        return []
    closing = _closing_braces(text)
    found = []
    for match in _BOX.finditer(text):
        if text.startswith("{", match.end()):
            end = closing.get(match.end())
            if end is not None:
                found.append(Box(match.start(), end + 1, slice(match.end() + 1, end)))
        elif bare := _BARE_BOX_CONTENT.match(text, match.end()):
            found.append(Box(match.start(), bare.end(), slice(bare.start(), bare.start() + len(bare[0].rstrip(".,;")))))
    return found


def _content(text: str, box: Box) -> str:
    return text[box.inside].strip()


def _closing_braces(text: str) -> dict[int, int]:
    """Where each opening brace is closed; an escaped brace is a character."""
    open_at: list[int] = []
    closing = {}
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            open_at.append(match.start())
        elif match[0] == "}" and open_at:
            closing[open_at.pop()] = match.start()
    return closing
