"""Examples in the report: what the model answered at the beginning, at the end, and to the problems that changed most.

Called by page.py. Reads the evaluation files of a run; judges nothing anew.

    first, last     of the run's first and last evaluation: one right, one wrong, one in a broken format, as far as there are
    most changed    problems of both, by how much the share of right responses rose or fell; in a run with one evaluation, between
                    the first and the last validation of a stage
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mathrl_ray.core.breakdown import graded_by_problem, is_right
from mathrl_ray.report.evaluation_rows import Row, held_rows
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.shown_text import ShownText, TextBudget, brief

NUM_GAINED, NUM_LOST = 3, 2
PROMPT_CHARACTERS = 1_500
"""Of a prompt; its beginning is the same in all of them."""


@dataclass(frozen=True, slots=True)
class Response:
    """One response as it is shown."""

    label: str
    """Which evaluation it is of."""
    text: ShownText
    outcome: str
    finish_reason: str
    answer: str
    """As it was extracted; "" where there was none."""
    rewards: tuple[tuple[str, float], ...]
    """(part, what it paid): format, answer, and the whole."""
    num_tokens: int
    entropy_nats: float | None
    policy_version: int
    sample: int


@dataclass(frozen=True, slots=True)
class Example:
    """A problem with one response, or with one before and one after."""

    problem_id: str
    problem: ShownText
    prompt: ShownText
    gold: str
    level: str
    subject: str
    responses: tuple[Response, ...]
    change: str = ""
    """What changed, of the most changed ones."""


@dataclass(frozen=True, slots=True)
class ExampleGroup:
    title: str
    note: str
    examples: list[Example]


def examples_of(run: RunData, budget: TextBudget) -> list[ExampleGroup]:
    """First, last and most changed; fewer while the run has no such evaluation yet."""
    pair = _two_evaluations(run)
    if not pair:
        return []
    groups = []
    for title, (label, rows) in zip(("First", "Last"), pair, strict=False):
        shown = [_example([(label, row)], budget) for row in _one_of_each(rows)]
        groups.append(ExampleGroup(f"{title}: {label}", "", shown))
    if len(pair) == 2:
        groups.append(_changed_group(pair[0], pair[1], budget))
    return [group for group in groups if group.examples]


_Labelled = tuple[str, list[dict[str, Any]]]


def _two_evaluations(run: RunData) -> list[_Labelled]:
    """The first and last final evaluation that can be read; else the first and last validation of the last stage; else what there is."""
    finals = [(stage.name, stage.evaluations[0]) for stage in run.stages if stage.evaluations]
    tests = [(f"{stage.name}, {_moment(path)}", path) for stage in run.stages[-1:] for path in stage.validation_files]
    for files in (finals, tests):
        found = [(label, rows) for label, path in dict.fromkeys((*files[:1], *files[-1:])) if (rows := held_rows(path))]
        if len(found) == 2:
            return found
    return [(label, rows) for label, path in (*finals[:1], *tests[:1]) if (rows := held_rows(path))][:1]


def _moment(path: Path) -> str:
    """
    >>> _moment(Path("validation-grpo-step40-v40.parquet")), _moment(Path("mine.parquet"))
    ('validation at step 40', 'mine')
    """
    found = re.search(r"-step(\d+)-v\d+$", path.stem)
    return f"validation at step {found[1]}" if found else path.stem


def _one_of_each(rows: Sequence[Row]) -> list[Row]:
    """The first right one, the first wrong one in the right format, the first in a broken format."""
    tests = (
        is_right,
        lambda row: bool(row["format_reward"]) and not is_right(row),
        lambda row: not row["format_reward"],
    )
    return [row for holds in tests if (row := next(filter(holds, rows), None)) is not None]


def _changed_group(before: _Labelled, after: _Labelled, budget: TextBudget) -> ExampleGroup:
    changes = _changes(before[1], after[1])
    risen = [change for change in changes if change[0] > 0][:NUM_GAINED]
    fallen = [change for change in reversed(changes) if change[0] < 0][:NUM_LOST]
    shown = []
    for change, old, new in (*risen, *fallen):
        text = _told(change)
        shown.append(_example([(before[0], old), (after[0], new)], budget, text))
    num_up, num_down = sum(change[0] > 0 for change in changes), sum(change[0] < 0 for change in changes)
    note = f"{num_up:,} problems rose, {num_down:,} fell, of {len(changes):,} that both evaluations graded."
    return ExampleGroup(f"Most changed: {before[0]} to {after[0]}", note, shown)


def _told(change: float) -> str:
    """
    >>> _told(1.0), _told(-0.25)
    ('wrong before, right after', 'share of right responses down by 25 points')
    """
    if abs(change) == 1:
        return "wrong before, right after" if change > 0 else "right before, wrong after"
    return f"share of right responses {'up' if change > 0 else 'down'} by {100 * abs(change):.0f} points"


def _changes(before: Sequence[Row], after: Sequence[Row]) -> list[tuple[float, Row, Row]]:
    """(change of the share of right responses, a row before, a row after) of each problem of both; the largest rise first, the highest
    level first among equals. The rows are ones that show the change: a wrong before and a right after where it rose."""
    first, second = graded_by_problem(before), graded_by_problem(after)
    changes = []
    for problem_id, olds in first.items():
        news = second.get(problem_id, [])
        if olds and news:
            change = fmean(map(is_right, news)) - fmean(map(is_right, olds))
            changes.append((change, _row_that(olds, right=change < 0), _row_that(news, right=change > 0)))
    return sorted(changes, key=lambda each: (-each[0], -(each[1]["level"] or 0) if each[0] > 0 else (each[1]["level"] or 0)))


def _row_that(rows: Sequence[Row], *, right: bool) -> Row:
    return next((row for row in rows if is_right(row) == right), rows[0])


def _example(labelled: Sequence[tuple[str, Row]], budget: TextBudget, change: str = "") -> Example:
    row = labelled[0][1]
    return Example(
        problem_id=row["problem_id"],
        problem=budget.shown(row["problem"]),
        prompt=budget.shown(row["prompt"], PROMPT_CHARACTERS),
        gold=brief(row["gold"]),
        level="" if row["level"] is None else str(row["level"]),
        subject=row["subject"] or "",
        responses=tuple(_response(label, each, budget) for label, each in labelled),
        change=change,
    )


def _response(label: str, row: Row, budget: TextBudget) -> Response:
    parts = (("format", row["format_reward"]), ("answer", row["answer_reward"]), ("reward", row["reward"]))
    return Response(
        label=label,
        text=budget.shown(row["response"]),
        outcome=row["outcome"],
        finish_reason=row["finish_reason"] or "",
        answer=brief(row["extracted_answer"]),
        rewards=tuple((name, float(value)) for name, value in parts if value is not None),
        num_tokens=row["num_response_tokens"],
        entropy_nats=row.get("mean_token_entropy_nats"),
        policy_version=row["policy_version"],
        sample=row["sample"],
    )
