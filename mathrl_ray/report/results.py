"""The results that figures and tables show: a stage of a run, or the mean of a stage over seeds. Times the baseline, and lengths.

Called by result_figures.py and tables.py. RunData in; reads the evaluations' Parquet files where summary.json does not hold the numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mathrl_ray.core.seed_figures import over_seeds, seed_interval
from mathrl_ray.core.times_baseline import times_baseline
from mathrl_ray.report.run_data import RunData, StageData
from mathrl_ray.report.seed_groups import SeedGroup
from mathrl_ray.types import UNGRADED

BASELINE = "baseline"
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Times:
    """How many times the baseline's accuracy; None where that says nothing."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """One stage that has ended."""

    run_index: int
    """-1 for a mean."""
    group_index: int
    """-1 for a run."""
    name: str
    """The run's, or the group's."""
    stage: str
    figures: Mapping[str, Any]
    """Its entry of summary.json; of a mean core/seed_figures.py's over_seeds."""
    times: Times | None

    @property
    def is_mean(self) -> bool:
        return self.run_index < 0


def results(runs: Sequence[RunData], groups: Sequence[SeedGroup]) -> list[Result]:
    """Of each run its stages that have ended; then each group's means, of the stages that all of its runs have ended."""
    own = [_result(index, run, stage) for index, run in enumerate(runs) for stage in run.stages if stage.summary]
    means = [mean for place, group in enumerate(groups) for mean in _means(place, group, runs, own)]
    return [*own, *means]


def model_words(figures: Mapping[str, Any]) -> str:
    """Whose figures a stage has, where they are not of the weights after its last step; "" else.

    >>> model_words({"ended_by": "early stopping", "best_step": 20, "last_step": 40}), model_words({"average": {"num_averaged": 5.0}})
    ('stopped early after step 40, model of step 20', 'average of 5 weights')
    """
    told = []
    if figures.get("best_step") is not None:
        told.append(f"stopped early after step {figures.get('last_step', '?')}, model of step {figures['best_step']}")
    elif figures.get("ended_by"):
        told.append("ended by run.max_hours" if figures["ended_by"] == "max_hours" else str(figures["ended_by"]))
    average = figures.get("average")
    if isinstance(average, Mapping) and "num_averaged" in average:
        told.append(f"average of {average['num_averaged']:g} weights")
    return ", ".join(told)


def _result(index: int, run: RunData, stage: StageData) -> Result:
    return Result(index, -1, run.name, stage.name, stage.summary or {}, _times(run, stage))


def _times(run: RunData, stage: StageData) -> Times | None:
    """With an interval where both evaluations are there, of the same problems."""
    baseline = next((each for each in run.stages if each.name == BASELINE and each.summary), None)
    if baseline is None or baseline is stage or not (baseline.summary or {}).get("accuracy"):
        return None
    value = (stage.summary or {})["accuracy"] / (baseline.summary or {})["accuracy"]
    pairs = _pairs(baseline, stage)
    interval = times_baseline(pairs, seed=run.seed) if pairs else None
    return Times(value, *interval) if interval else Times(value)


def _pairs(baseline: StageData, stage: StageData) -> list[tuple[float, float]]:
    """(baseline's, stage's) share of right samples of each problem that both were graded on; none where their problems differ."""
    shares = [_shares(each.evaluations[0]) if each.evaluations else {} for each in (baseline, stage)]
    if shares[0].keys() != shares[1].keys():
        return []
    return [(before, after) for key, before in shares[0].items() if (after := shares[1][key]) is not None and before is not None]


def _shares(path: Path) -> dict[str, float | None]:
    """Of each problem the share of right samples among the graded; None without any."""
    try:
        return _shares_at(path, path.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=512)
def _shares_at(path: Path, mtime_ns: int) -> dict[str, float | None]:
    """Kept: a baseline is set beside each of its run's stages, in figures and in tables. Another time of writing is another file."""
    right: dict[str, list[bool]] = {}
    for row in read_columns(path, ("problem_id", "outcome")):
        held = right.setdefault(row["problem_id"], [])
        if row["outcome"] not in UNGRADED:
            held.append(row["outcome"] == "correct")
    return {key: fmean(held) if held else None for key, held in right.items()}


def read_columns(path: Path, columns: Sequence[str]) -> Rows:
    """Some columns of an evaluation; no row where the file is gone or damaged, or lacks one."""
    try:
        rows: Rows = pq.read_table(path, columns=list(columns)).to_pylist()
    except (OSError, pa.ArrowException):
        return []
    return rows


def _means(place: int, group: SeedGroup, runs: Sequence[RunData], own: Sequence[Result]) -> list[Result]:
    members = [each for each in own if each.run_index in group.members]
    means = []
    for stage in dict.fromkeys(each.stage for each in members):
        ended = [each for each in members if each.stage == stage]
        if len(ended) == len(group.members):
            block = over_seeds(stage, [{"seed": runs[each.run_index].seed, **each.figures} for each in ended])
            means.append(Result(-1, place, group.name, stage, block, _mean_times([each.times for each in ended])))
    return means


def _mean_times(times: Sequence[Times | None]) -> Times | None:
    """Mean of the seeds' own, with Student's interval over them."""
    values = [each.value for each in times if each]
    if not values or len(values) < len(times):
        return None
    return Times(fmean(values), *seed_interval(values, bounds=(0.0, float("inf"))))


def token_lengths(stage: StageData) -> dict[str, list[int]]:
    """Lengths in tokens of the right and of the wrong responses (graded, not right) of the final evaluation, with the first prompt."""
    found: dict[str, list[int]] = {"right": [], "wrong": []}
    for row in read_columns(stage.evaluations[0], ("outcome", "num_response_tokens")) if stage.evaluations else []:
        if row["outcome"] not in UNGRADED:
            found["right" if row["outcome"] == "correct" else "wrong"].append(row["num_response_tokens"])
    return found
