"""The samples of a file's rows, graded: a row holds one response or a list of them, a sample one gold or alternatives.

Called by grade.py. Knows the scorer; knows no file. Every list here is in the rows' order, whatever finishes first.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.commands.foreign_rows import Layout, finish_reasons
from mathrl_ray.core.grading.extraction import Style
from mathrl_ray.data.rows import Rows
from mathrl_ray.types import UNGRADED, FinishReason, Grade, Problem, ScoreRequest

_BATCH = 16
"""Requests between two steps of the progress bar; all batches are with the scorer at once."""
Advance = Callable[[int], None]
"""Told how many more are done."""
See = Callable[[Sequence[Grade]], None]
"""Shown what is done, as it is done."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response of one row."""

    index: int
    """Of its row, from 0."""
    row_id: str
    sample: int | None
    """Its place in the row's list; None where the row holds a single response."""
    response: str
    golds: tuple[str, ...]
    """At least one; any of them is right."""
    finish_reason: FinishReason


def samples_of(rows: Rows, layout: Layout, golds: Sequence[Sequence[str]] | None = None) -> list[Sample]:
    """All samples of a file.

    Args:
        rows: what was read.
        layout: of these rows.
        golds: the alternatives of each row, where they do not stand in it.
    """
    samples = []
    for index, (line, row) in enumerate(rows.numbered):
        responses, is_list = layout.responses(row)
        row_golds = tuple(layout.golds(row) if golds is None else golds[index])
        row_id = layout.row_id(row, f"{rows.stem}:{line}")
        for number, (response, reason) in enumerate(zip(responses, finish_reasons(row, len(responses)), strict=True)):
            samples.append(Sample(index, row_id, number if is_list else None, response, row_golds, reason))
    return samples


async def graded(scorer: Scorer, samples: Sequence[Sample], style: Style, advance: Advance) -> list[Grade]:
    """Our grade of each sample; of several golds the one that pays."""
    box = "question_only" if style == "boxed" else style
    requests = [
        ScoreRequest(sample.response, gold, finish_reason=sample.finish_reason, style=box) for sample in samples for gold in sample.golds
    ]
    return _best_of_each(samples, await _scored(scorer, requests, lambda grades: advance(len(grades)), _BATCH))


async def graded_by(function: str, scorer: Scorer, samples: Sequence[Sample], rows: Sequence[Mapping[str, Any]], see: See) -> list[Grade]:
    """What a function that the scorer was given says of each sample.

    Args:
        function: its spec.
        scorer: that has it.
        samples: of the rows.
        rows: the rows themselves, which the function may look at.
        see: is shown each grade as soon as it is there.
    """
    requests = [
        ScoreRequest(sample.response, gold, function=function, problem=Problem(sample.row_id, "", gold, extra=rows[sample.index]))
        for sample in samples
        for gold in sample.golds
    ]
    return _best_of_each(samples, await _scored(scorer, requests, see, 1))


async def _scored(scorer: Scorer, requests: Sequence[ScoreRequest], see: See, batch_size: int) -> list[Grade]:
    async def score(batch: Sequence[ScoreRequest]) -> list[Grade]:
        grades = await scorer.score(batch)
        see(grades)
        return grades

    batches = [requests[start : start + batch_size] for start in range(0, len(requests), batch_size)]
    return [grade for grades in await asyncio.gather(*map(score, batches)) for grade in grades]


def _best_of_each(samples: Sequence[Sample], grades: Sequence[Grade]) -> list[Grade]:
    remaining = iter(grades)
    return [best([next(remaining) for _ in sample.golds]) for sample in samples]


def best(grades: Sequence[Grade]) -> Grade:
    """The grade by the alternative that pays most; the first of equals. A gold that cannot be graded does not hide one that can.

    Its grading_s is that of all.
    """
    chosen = max(grades, key=lambda grade: (grade.reward, grade.lenient_answer_correct, grade.outcome not in UNGRADED))
    return replace(chosen, grading_s=sum(grade.grading_s for grade in grades))


def num_requests(samples: Sequence[Sample]) -> int:
    return sum(len(sample.golds) for sample in samples)
