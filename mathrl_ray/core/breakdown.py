"""One evaluation in parts: by level, by subject, by outcome, with pass@k, maj@k and the lengths of right and wrong answers.

Called by `python -m mathrl_ray analyse`, the stages and the report, with the rows of one evaluation (driver/rows.py, EVALUATION_SCHEMA).
Pure: rows in, figures out. An accuracy is the mean over problems of the share of right samples; what could not be graded is left out.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, get_args

from mathrl_ray.core.grading.spelling import normalise
from mathrl_ray.core.intervals import Estimate, accuracy_estimate
from mathrl_ray.core.one_line import one_line
from mathrl_ray.core.pass_at_k import maj_at_k, pass_at_k, votes_of
from mathrl_ray.types import UNGRADED, Outcome

Row = Mapping[str, Any]
"""One (problem, sample)."""
Rows = Sequence[Row]
Key = Hashable | None
KeyOf = Callable[[Row], Key]
UNKNOWN = "unknown"
"""Stands for the level or subject of a problem that has none, or whose subject is this word."""


@dataclass(frozen=True, slots=True)
class AtK:
    """What k samples a problem would give, over the problems that have at least k graded ones."""

    k: int
    pass_at_k: float
    maj_at_k: float
    num_problems: int


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of one level, subject, or of all."""

    name: str
    num_problems: int
    num_samples: int
    num_ungraded: int
    accuracy: Estimate
    format_rate: float
    """Share of all samples; it does not depend on the verdict."""
    mean_right_tokens: float | None
    """Mean length of the right responses; None without any."""
    mean_wrong_tokens: float | None
    """Of the graded ones that are not right."""
    at_k: tuple[AtK, ...]


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    outcome: str
    num_samples: int
    share: float
    mean_response_tokens: float


def answer_key(row: Row) -> Key:
    """What a sample votes for, by spelling: its answer, as the grader's fast path writes it; None where it gives none by its format's
    rule, or one that the grader could not judge in time.

    Two spellings of one wrong value stay two candidates, so maj@k may come out too high where wrong answers agree by value only;
    commands/answer_keys.py asks the grader.

    >>> answer_key({"format_reward": 1.0, "extracted_answer": " 7 ", "outcome": "wrong"})
    '7'
    """
    if row["format_reward"] == 0 or row["outcome"] == "grader_timeout":
        return None
    return normalise(row["extracted_answer"] or "") or None


def whole(rows: Rows, *, seed: int = 0, ks: Sequence[int] = (1, 4, 8), key: KeyOf = answer_key) -> Part:
    """The figures of all rows.

    Args:
        rows: of one evaluation.
        seed: of the bootstrap, where problems have several samples.
        ks: those that no problem has enough samples for are left out.
        key: what a sample votes for in maj@k.

    Raises:
        ValueError: no row; a (problem, sample) that comes twice; rows of several prompts, settings, graders or versions of weights.
    """
    check_rows(rows)
    return _part("all", rows, seed, ks, key)


def by_level(rows: Rows, *, seed: int = 0, ks: Sequence[int] = (1, 4, 8), key: KeyOf = answer_key) -> list[Part]:
    """As `whole`, a part each level: rising, UNKNOWN last."""
    check_rows(rows)
    levels = sorted({row["level"] for row in rows if row["level"] is not None})
    parts = [_part(str(level), [row for row in rows if row["level"] == level], seed, ks, key) for level in levels]
    rest = [row for row in rows if row["level"] is None]
    return [*parts, _part(UNKNOWN, rest, seed, ks, key)] if rest else parts


def by_subject(rows: Rows, *, seed: int = 0, ks: Sequence[int] = (1, 4, 8), key: KeyOf = answer_key) -> list[Part]:
    """As `whole`, a part each subject: by name, UNKNOWN last."""
    check_rows(rows)
    subjects = sorted({_subject(row) for row in rows}, key=lambda name: (name == UNKNOWN, name))
    return [_part(subject, [row for row in rows if _subject(row) == subject], seed, ks, key) for subject in subjects]


def _subject(row: Row) -> str:
    return row["subject"] or UNKNOWN


def by_outcome(rows: Rows) -> list[OutcomeCount]:
    """How many samples came to each outcome that occurs, in the order of types.Outcome."""
    check_rows(rows)
    counts = Counter(row["outcome"] for row in rows)
    return [
        OutcomeCount(
            outcome,
            counts[outcome],
            counts[outcome] / len(rows),
            fmean(row["num_response_tokens"] for row in rows if row["outcome"] == outcome),
        )
        for outcome in get_args(Outcome)
        if counts[outcome]
    ]


def graded_by_problem(rows: Rows) -> dict[str, list[Row]]:
    """The rows that could be graded, by problem, in the order of the rows; a problem without any has an empty list."""
    problems: dict[str, list[Row]] = {row["problem_id"]: [] for row in rows}
    for row in rows:
        if row["outcome"] not in UNGRADED:
            problems[row["problem_id"]].append(row)
    return problems


def is_right(row: Row) -> bool:
    """What counts for the accuracy: the verdict, whatever a recipe pays in training."""
    return bool(row["outcome"] == "correct")


def check_rows(rows: Rows) -> None:
    """
    Raises:
        ValueError: they are not the rows of one evaluation.
    """
    if not rows:
        raise ValueError("an evaluation without rows has no figures")
    for column in ("prompt_name", "policy_version", "temperature", "top_p", "max_tokens", "grader"):
        if len(held := {row[column] for row in rows}) > 1:
            shown = ", ".join(sorted(map(str, held)))
            raise ValueError(f"rows of one evaluation are wanted, and these hold several values of {column}: {shown}")
    (pair, number), *_ = Counter((row["problem_id"], row["sample"]) for row in rows).most_common(1)
    if number > 1:
        raise ValueError(
            f"sample {pair[1]} of the problem {one_line(pair[0])} comes {number} times: each (problem_id, sample) may come once"
        )


def _part(name: str, rows: Rows, seed: int, ks: Sequence[int], key: KeyOf) -> Part:
    problems = graded_by_problem(rows)
    graded = [row for samples in problems.values() for row in samples]
    return Part(
        name=name,
        num_problems=len(problems),
        num_samples=len(rows),
        num_ungraded=len(rows) - len(graded),
        accuracy=accuracy_estimate([[is_right(row) for row in samples] for samples in problems.values()], seed=seed),
        format_rate=fmean(row["format_reward"] for row in rows),
        mean_right_tokens=_mean_tokens([row for row in graded if is_right(row)]),
        mean_wrong_tokens=_mean_tokens([row for row in graded if not is_right(row)]),
        at_k=tuple(found for k in ks if (found := _at_k(list(problems.values()), k, key))),
    )


def _mean_tokens(rows: Rows) -> float | None:
    return fmean(row["num_response_tokens"] for row in rows) if rows else None


def _at_k(problems: Sequence[Rows], k: int, key: KeyOf) -> AtK | None:
    # a right answer's own key is not asked for: it may be spelled as one that ran into a limit elsewhere
    votes = [
        votes_of([None if is_right(row) else key(row) for row in rows], [is_right(row) for row in rows])
        for rows in problems
        if len(rows) >= k
    ]
    if not votes:
        return None
    return AtK(
        k,
        fmean(pass_at_k(each.num_samples, each.num_right, k) for each in votes),
        fmean(maj_at_k(each, k) for each in votes),
        len(votes),
    )
