r"""Grading: did a response keep the tag rule, and is its answer equal to the gold?

Called by the scorer, and by anyone with one response in hand. Pure: text in, a verdict out; knows no time, no finish_reason and no
process. math-verify is loaded when the first answer needs it (0.3 s, 40 MB). It can run for ever and fill any memory, so whoever grades
what a model wrote calls `algebraic_verdict` in a process that can be ended (actors/grading_keeper.py).

    response --extract--> answer --quick_verdict--> outcome, or nothing --algebraic_verdict--> outcome --pay--> Grade
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mathrl_ray.core.boxed import last_boxed
from mathrl_ray.types import Grade, Outcome

_THINK_THEN_ANSWER = "</think> <answer>"
_OPENING = "<answer>"
_CLOSING = "</answer>"

_MATH_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_BOXED = r"\boxed{"
_MATH_MARK = re.compile(r"(?<!\\)(?:\$|\\\(|\\\[|\\boxed)")
_LEFT_RIGHT = re.compile(r"\\(?:left|right)(?![a-zA-Z])")
_FRAC_VARIANT = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_SPACES = re.compile(r"(?:(?<!\\)\\[,;: ]|~|\s)+")
_SPACE_THAT_SAYS_NOTHING = re.compile(r"(?<![0-9]) (?![A-Za-z])|(?<![A-Za-z]) (?![0-9])")
_TYPESET_THOUSANDS_COMMA = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!)(?=[0-9]{3})")
_NUMBER_WITH_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_WHOLE_NUMBER = re.compile(r"([-+]?)([0-9]+)")


@dataclass(frozen=True, slots=True)
class Extraction:
    """What the tags of a response say, whatever the gold is."""

    format_ok: bool
    answer: str | None
    """Without surrounding white space. None: there is no complete pair. "": the pair is empty."""

    @property
    def answer_to_judge(self) -> str | None:
        """The answer where the tag rule was kept: nothing else is ever judged, let alone paid."""
        return self.answer if self.format_ok else None


def extract(response: str) -> Extraction:
    """Apply the strict tag rule and take the answer out.

    format_ok: `</think> <answer>` (one space, this case) occurs and `</answer>` follows its last occurrence.
    answer: the text of the last complete pair, which is the last `<answer>` that a `</answer>` follows, up to the first one that does.
    The two are independent: a response may hold an answer and break the rule. Text outside that pair changes neither, as long as it
    names no tag.

    >>> extract("2 and 3 </think> <answer> 5 </answer> as said")
    Extraction(format_ok=True, answer='5')
    >>> extract("2 and 3 </think><answer> 5 </answer>")
    Extraction(format_ok=False, answer='5')
    >>> extract("2 and 3 </think> <answer> </answer> 5")
    Extraction(format_ok=True, answer='')
    >>> extract("2 and 3 </think> <answer> 5")
    Extraction(format_ok=False, answer=None)
    >>> extract("</think> <answer> 5 </answer> no: <answer> 6 </answer> </answer>")
    Extraction(format_ok=True, answer='6')
    >>> extract("</think> <answer> 5 </answer> no: </think> <answer> 6")
    Extraction(format_ok=False, answer='5')
    """
    rule_at = response.rfind(_THINK_THEN_ANSWER)
    last_closing = response.rfind(_CLOSING)
    format_ok = 0 <= rule_at < last_closing
    opening = response.rfind(_OPENING, 0, max(last_closing, 0))
    if opening < 0:
        return Extraction(format_ok, None)
    start = opening + len(_OPENING)
    return Extraction(format_ok, response[start : response.index(_CLOSING, start)].strip())


def normalise(text: str) -> str:
    r"""One spelling for answers that differ only in how they are typeset. Its cost is linear in the text.

    Removes what carries no meaning and never reorders or computes; a space between two digits or two letters stays, so that the
    mixed number `1 3/4` does not become `13/4`.

    >>> normalise(r"$\boxed{\dfrac{1}{2}}$.")
    '\\frac{1}{2}'
    >>> normalise(r"\left( 1, \, x \right)"), normalise("12{,}345.50")
    ('(1,x)', '12345.50')
    """
    text = _without_full_stop(text.strip())
    text = _without_delimiters(_without_box(_without_delimiters(text)))
    text = _LEFT_RIGHT.sub("", text)
    text = _FRAC_VARIANT.sub(r"\\frac", text)
    text = _without_thousands_commas(text)
    text = _without_spaces(text)
    return _without_full_stop(text)


def _without_full_stop(text: str) -> str:
    return text[:-1].rstrip() if text.endswith(".") else text


def _without_delimiters(text: str) -> str:
    """Drop `$...$` and its like where one pair spans the whole text: `$3$ and $4$` and `\\$5` stay as they are."""
    for opening, closing in _MATH_DELIMITERS:
        inner = text[len(opening) : len(text) - len(closing)]
        if text == opening + inner + closing and opening not in inner and closing not in inner and not inner.endswith("\\"):
            return inner.strip()
    return text


def _without_box(text: str) -> str:
    r"""Drop one `\boxed{...}` that spans the whole text."""
    if not (text.startswith(_BOXED) and text.endswith("}")):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == "}" and depth == 0:
            return text[len(_BOXED) : -1].strip() if position == len(text) - 1 else text
    return text


def _without_spaces(text: str) -> str:
    r"""Drop LaTeX's and plain spaces, except one that parts two digits or two letters (`1 3/4`, `\pi r`)."""
    text = _SPACES.sub(" ", text.replace(r"\!", ""))
    return _SPACE_THAT_SAYS_NOTHING.sub("", text)


def _without_thousands_commas(text: str) -> str:
    r"""Drop the commas of `12{,}345` and `12,\!345` anywhere, and those of `12,345` where it is the whole answer.

    In `(1,234)` and in `1, 234` the comma parts two numbers, so this comes before the spaces go.
    """
    text = _TYPESET_THOUSANDS_COMMA.sub("", text)
    return text.replace(",", "") if _NUMBER_WITH_THOUSANDS.fullmatch(text) else text


def quick_verdict(answer: str | None, gold: str) -> Outcome | None:
    """The verdict where none of it needs algebra, in some 10 µs; None where math-verify must say.

    An empty gold is bad_gold for every response, so that all siblings of that problem are left out alike. Two whole numbers are
    compared by their digits, right or wrong, since most answers of arithmetic problems are of this kind.

    >>> quick_verdict("12,345", "12345"), quick_verdict("7", "8"), quick_verdict("", "8"), quick_verdict("8", "")
    ('correct', 'wrong', 'no_answer', 'bad_gold')
    >>> quick_verdict("2/4", "1/2") is None
    True
    """
    wanted = normalise(gold)
    if not wanted:
        return "bad_gold"
    given = normalise(answer or "")
    if not given:
        return "no_answer"
    if given == wanted:
        return "correct"
    wanted_number, given_number = _whole_number(wanted), _whole_number(given)
    if wanted_number is None or given_number is None:
        return None
    return "correct" if given_number == wanted_number else "wrong"


def _whole_number(text: str) -> str | None:
    """Sign and digits without leading zeros; text, because int() refuses more than 4,300 digits."""
    match = _WHOLE_NUMBER.fullmatch(text)
    if match is None:
        return None
    digits = match[2].lstrip("0") or "0"
    return "-" + digits if match[1] == "-" and digits != "0" else digits


def algebraic_verdict(answer: str, gold: str) -> Outcome:
    r"""math-verify's verdict on two texts that are not spelled alike: correct, wrong, unparseable_answer or bad_gold.

    It may run without end: the caller's limit is the end of the process. math-verify's own limit is off, because it is an alarm signal,
    which raises outside the main thread. What math-verify raises becomes bad_gold while the gold is read, unparseable_answer while the
    answer is read, and wrong while they are compared: none of them pays, and none lets a response leave the accuracy's denominator.

    Raises:
        MemoryError: the process is out of memory, which says nothing about the answer.

    >>> algebraic_verdict("0.5", r"\frac{1}{2}"), algebraic_verdict("0.6", r"\frac{1}{2}")
    ('correct', 'wrong')
    """
    wanted = _parse(gold)
    if not wanted:
        return "bad_gold"
    given = _parse(answer)
    if not given:
        return "unparseable_answer"
    return "correct" if _equal(wanted, given) else "wrong"


def _parse(text: str) -> list[Any]:
    """The sympy expressions that math-verify finds in an answer, as it was written; none where nothing can be read."""
    math_verify = _math_verify()
    text = _without_thousands_commas(text)
    # Bare LaTeX is no mathematics to math-verify until something marks it; a text with marks of its own says where to look.
    marked = text if _MATH_MARK.search(text) else _BOXED + text + "}"
    try:
        return math_verify.parse(marked, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    except MemoryError:
        raise
    except (Exception, math_verify.errors.TimeoutException):  # border: any text reaches two parsers here, which may raise anything
        return []


def _equal(wanted: Sequence[Any], given: Sequence[Any]) -> bool:
    """math-verify's comparison. It is not symmetric: the gold comes first."""
    math_verify = _math_verify()
    try:
        return bool(math_verify.verify(wanted, given, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except (Exception, math_verify.errors.TimeoutException):  # border: sympy may raise anything, RecursionError included
        return False


@cache
def _math_verify() -> Any:
    """The module, loaded once, and without its warning that no time limit is set: the limit is the caller's."""
    import math_verify
    import math_verify.errors

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


def pay(extraction: Extraction, outcome: Outcome, grading_s: float = 0.0) -> Grade:
    """The rewards that belong to an outcome: A5's r1_zero rule, by which a response is paid only when tags and answer are right.

    An answer with broken tags is not judged, so its outcome is no_answer, and the answer itself stays in the record.

    >>> pay(Extraction(format_ok=False, answer="5"), "no_answer")
    Grade(format_reward=0.0, answer_reward=0.0, reward=0.0, outcome='no_answer', extracted_answer='5', grading_s=0.0)
    """
    assert extraction.format_ok or outcome != "correct", (extraction, outcome)
    answer_reward = float(outcome == "correct")
    return Grade(float(extraction.format_ok), answer_reward, answer_reward, outcome, extraction.answer, grading_s)


def grade(response: str, gold: str) -> Grade:
    """Grade one response, in this process and without a limit: a scorer does the same with one.

    Raises nothing for any response. An answer that exhausts the memory counts as wrong here; KeyboardInterrupt and SystemExit pass.

    >>> grade("6+3=9 </think> <answer> 9 </answer>", "9")
    Grade(format_reward=1.0, answer_reward=1.0, reward=1.0, outcome='correct', extracted_answer='9', grading_s=0.0)
    """
    extraction = extract(response)
    outcome = quick_verdict(extraction.answer_to_judge, gold)
    if outcome is None:
        try:
            outcome = algebraic_verdict(extraction.answer_to_judge or "", gold)
        except MemoryError:
            outcome = "wrong"
    return pay(extraction, outcome)


def extract_boxed(response: str) -> Extraction:
    r"""The answer of a response to question_only: what its last `\boxed{...}` holds. The format is kept by any complete box.

    >>> extract_boxed(r"So it is $\boxed{5}$.")
    Extraction(format_ok=True, answer='5')
    """
    answer = last_boxed(response)
    return Extraction(answer is not None, answer)
