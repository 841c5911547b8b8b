"""The failure analysis: what becomes of responses by format and answer, why, and which command tries a remedy.

Called by `python -m mathrl_ray analyse` and by the report, with the rows of one evaluation. Pure. What is advised is in failure_advice.py.

                     answer right            answer wrong
    format kept      (1, 1) solved           (1, 0) mathematics
    format broken    (0, 1) format only      (0, 0) both

A5's reward cannot tell the two lower ones apart: whether a response in a broken format would be right is asked of the grader with
the format rule waived (Grade.lenient_answer_correct).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mathrl_ray.core.breakdown import check_rows, is_right
from mathrl_ray.core.failure_advice import Advice, AnalysedRun, KindName, advice_for
from mathrl_ray.types import UNGRADED

Row = Mapping[str, Any]
KINDS: dict[KindName, tuple[int, int]] = {"solved": (1, 1), "mathematics": (1, 0), "format": (0, 1), "both": (0, 0)}
"""(format kept, answer right) of each."""
TITLES: dict[KindName, str] = {
    "solved": "format kept, answer right",
    "mathematics": "format kept, answer wrong",
    "format": "format broken, answer would be right",
    "both": "format broken, answer wrong",
}
NUM_EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class Kind:
    """All responses of one of the four kinds."""

    name: KindName
    format_kept: int
    answer_right: int
    num_samples: int
    share: float
    """Of the graded samples."""
    outcomes: Mapping[str, int]
    examples: tuple[Row, ...]
    """Rows, of as many different problems as there are."""
    advice: Advice


@dataclass(frozen=True, slots=True)
class FailureAnalysis:
    kinds: tuple[Kind, ...]
    """All four, in the order of KINDS, also those without a sample."""
    num_graded: int
    num_ungraded: int
    """Neither right nor wrong (grader_error, bad_gold); in none of the kinds."""


def analyse_failures(
    rows: Sequence[Row], would_be_right: Sequence[bool], *, run: AnalysedRun | None = None, num_examples: int = NUM_EXAMPLES
) -> FailureAnalysis:
    """Sort the rows into the four kinds.

    Args:
        rows: of one evaluation.
        would_be_right: of each row, whether its answer is right with the format rule waived; read where the format was broken only.
        run: what the rows are from, as far as it is known; the advice goes by it.
        num_examples: of each kind, or all where there are fewer.

    Raises:
        ValueError: no row, rows of several evaluations, or another number of `would_be_right`.
    """
    check_rows(rows)
    if len(would_be_right) != len(rows):
        raise ValueError(f"{len(rows)} rows and {len(would_be_right)} values of would_be_right: one a row is needed")
    sorted_rows: dict[KindName, list[Row]] = {name: [] for name in KINDS}
    for row, waived in zip(rows, would_be_right, strict=True):
        if row["outcome"] not in UNGRADED:
            sorted_rows[kind_of(row, waived)].append(row)
    num_graded = sum(map(len, sorted_rows.values()))
    known = run or AnalysedRun()
    kinds = tuple(_kind(name, held, num_graded, known, num_examples) for name, held in sorted_rows.items())
    return FailureAnalysis(kinds, num_graded, len(rows) - num_graded)


def kind_of(row: Row, would_be_right: bool) -> KindName:
    """
    >>> kind_of({"format_reward": 0.0, "outcome": "no_answer"}, would_be_right=True)
    'format'
    """
    if row["format_reward"]:
        return "solved" if is_right(row) else "mathematics"
    return "format" if would_be_right else "both"


def _kind(name: KindName, rows: Sequence[Row], num_graded: int, run: AnalysedRun, num_examples: int) -> Kind:
    outcomes = Counter(row["outcome"] for row in rows)
    share = len(rows) / num_graded if num_graded else 0.0
    advice = advice_for(name, rows, outcomes, run)
    return Kind(name, *KINDS[name], len(rows), share, dict(outcomes), _examples(rows, num_examples), advice)


def _examples(rows: Sequence[Row], wanted: int) -> tuple[Row, ...]:
    """Rows spread evenly over all of them; a problem comes a second time only where there are too few problems."""
    firsts: list[Row] = []
    others: list[Row] = []
    seen: set[str] = set()
    for row in rows:
        (others if row["problem_id"] in seen else firsts).append(row)
        seen.add(row["problem_id"])
    return (*_spread(firsts, wanted), *_spread(others, max(wanted - len(firsts), 0)))


def _spread(rows: Sequence[Row], wanted: int) -> list[Row]:
    """
    >>> _spread([{"n": n} for n in range(9)], 3)
    [{'n': 0}, {'n': 3}, {'n': 6}]
    """
    num = min(wanted, len(rows))
    return [rows[index * len(rows) // num] for index in range(num)]
