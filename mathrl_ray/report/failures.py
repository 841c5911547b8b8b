"""The failure analysis in the report: what became of the responses of a run's first and last evaluation, why, and what to try.

Called by page.py. The analysis is core/failure_analysis.py's, as the command `analyse` shows it. Whether an answer in a broken format would
be right stands in the rows; only rows of older runs lack it, and of these the command can ask the grader, which a report does not.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import get_args

from mathrl_ray.config import Recipe
from mathrl_ray.core.breakdown import is_right
from mathrl_ray.core.failure_advice import AnalysedRun
from mathrl_ray.core.failure_analysis import FailureAnalysis, analyse_failures
from mathrl_ray.report.evaluation_rows import Row, held_rows
from mathrl_ray.report.run_data import RunData, StageData
from mathrl_ray.sections import StageName

NUM_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class StageFailures:
    """One evaluation, analysed."""

    stage: str
    found: FailureAnalysis
    num_not_asked: int
    """Rows that do not say whether their answer would be right in another format; they are counted as wrong."""


def failures_of(run: RunData) -> list[StageFailures]:
    """Of the first and the last stage that has an evaluation that can be read."""
    stages = [stage for stage in run.stages if stage.evaluations]
    chosen = [stages[0], stages[-1]] if len(stages) > 1 else stages
    return [found for stage in chosen if (found := _analysed(run, stage, [each.name for each in stages]))]


def _analysed(run: RunData, stage: StageData, stages: Collection[str]) -> StageFailures | None:
    rows = held_rows(stage.evaluations[0])
    if not rows:
        return None
    waived = [bool(row.get("lenient_answer_correct")) or is_right(row) for row in rows]
    try:
        found = analyse_failures(rows, waived, run=_known(run, stage.name, stages), num_examples=NUM_EXAMPLES)
    except ValueError:  # border: rows that somebody has put together of several evaluations
        return None
    return StageFailures(stage.name, found, sum(_lacks(row) for row in rows))


def _lacks(row: Row) -> bool:
    return not row["format_reward"] and row.get("lenient_answer_correct") is None


def _known(run: RunData, stage: str, stages: Collection[str]) -> AnalysedRun:
    """What the advice goes by; of a stage of a name that this program does not know, nothing."""
    try:
        recipe = Recipe.model_validate(dict(run.recipe))
    except ValueError:  # border: of another version of this program; the figures stand without it
        recipe = Recipe()
    known: list[StageName] = [name for name in get_args(StageName) if name in stages]
    of: StageName = next((name for name in known if name == stage), "baseline")
    return AnalysedRun(of, known, recipe, str(run.folder / "recipe.toml"))
