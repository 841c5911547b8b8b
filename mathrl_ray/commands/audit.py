"""The disagreement audit: our verdict beside another grader's, sample by sample.

Called by grade.py, with what a file's own grader paid or with a second grader's rewards. Pure: grades in, counts and rows out.

                     they pay        they refuse
    we pay           agree           only we pay: they refused wrongly, if we are right
    we refuse        only they pay   agree
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mathrl_ray.commands.foreign_rows import paid
from mathrl_ray.commands.samples import Sample
from mathrl_ray.types import UNGRADED, Grade

Basis = Literal["reward", "answer"]
"""What of ours is compared: the reward, or whether the answer is right, the format rule waived."""
Verdict = Literal["both_pay", "only_they_pay", "only_we_pay", "neither_pays", "no_verdict"]
DISAGREEMENTS: tuple[Verdict, ...] = ("only_they_pay", "only_we_pay")


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample by both graders."""

    sample: Sample
    grade: Grade
    theirs: float | None
    """Their reward; None where they gave none."""
    remark: str
    """Why they gave none."""
    verdict: Verdict

    @property
    def is_about_format(self) -> bool:
        """They pay, and we find the answer right too, but not in the format that was asked for."""
        return self.verdict == "only_they_pay" and self.grade.lenient_answer_correct


@dataclass(frozen=True, slots=True)
class Audit:
    """One other grader's verdicts on the samples that it has one of."""

    grader: str
    basis: Basis
    entries: tuple[Entry, ...]

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(entry.verdict for entry in self.entries)

    @property
    def disagreements(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.verdict in DISAGREEMENTS]

    @property
    def num_about_format(self) -> int:
        return sum(entry.is_about_format for entry in self.entries)


def audit(grader: str, basis: Basis, samples: Sequence[Sample], grades: Sequence[Grade], theirs: Sequence[tuple[Any, str]]) -> Audit:
    """Compare.

    Args:
        grader: the other one's name.
        basis: what of ours is compared.
        samples: in the order of all that follows.
        grades: ours.
        theirs: (reward or None, remark) of each.
    """
    entries = []
    for sample, grade, (reward, remark) in zip(samples, grades, theirs, strict=True):
        number = None if paid(reward) is None else _number(reward)
        entries.append(Entry(sample, grade, number, remark, _verdict(we_pay(grade, basis), paid(reward))))
    return Audit(grader, basis, tuple(entries))


def _number(reward: float) -> float:
    """A file may say 10**400 where a reward belongs, which no float holds."""
    try:
        return float(reward)
    except OverflowError:
        return math.inf if reward > 0 else -math.inf


def we_pay(grade: Grade, basis: Basis) -> bool | None:
    """None where we could not judge: bad_gold, grader_error, grader_timeout."""
    if grade.outcome in UNGRADED or grade.outcome == "grader_timeout":
        return None
    return grade.lenient_answer_correct if basis == "answer" else grade.reward > 0


def _verdict(ours: bool | None, theirs: bool | None) -> Verdict:
    match ours, theirs:
        case True, True:
            return "both_pay"
        case False, True:
            return "only_they_pay"
        case True, False:
            return "only_we_pay"
        case False, False:
            return "neither_pays"
    return "no_verdict"


def second_rewards(grades: Sequence[Grade]) -> list[tuple[Any, str]]:
    """A second grader's grades as `audit` wants them: no reward where it ran into a limit or failed."""
    failed = ("grader_timeout", "grader_error")
    return [
        (None, f"{grade.outcome}: {grade.remark}" if grade.remark else grade.outcome) if grade.outcome in failed else (grade.reward, "")
        for grade in grades
    ]


def disagreement_types() -> dict[str, Any]:
    """pyarrow types of the columns of `disagreement_rows`, for a file without any."""
    import pyarrow as pa

    texts = ("id", "grader", "gold", "answer", "verdict", "outcome", "remark")
    numbers = {"row": pa.int64(), "sample": pa.int64(), "ours": pa.float64(), "theirs": pa.float64(), "about_format": pa.bool_()}
    return {**dict.fromkeys(texts, pa.string()), **numbers}


def disagreement_rows(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """What goes into the file beside the output: each disagreement, and each sample on which a second grader failed."""
    return [
        {
            "id": entry.sample.row_id,
            "row": entry.sample.index + 1,
            "sample": entry.sample.sample,
            "grader": found.grader,
            "gold": " or ".join(entry.sample.golds),
            "answer": entry.grade.extracted_answer,
            "ours": entry.grade.reward if found.basis == "reward" else float(entry.grade.lenient_answer_correct),
            "theirs": entry.theirs,
            "verdict": entry.verdict,
            "outcome": entry.grade.outcome,
            "about_format": entry.is_about_format,
            "remark": entry.remark or None,
        }
        for found in audits
        for entry in found.entries
        if entry.verdict in DISAGREEMENTS or entry.remark
    ]
