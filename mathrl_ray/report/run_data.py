"""Run directories as a report reads them: recipe, environment, the stages' rows, results and files. Also of runs that are at work.

Called by `python -m mathrl_ray report` and by whoever shows a run. Reads only; knows a run directory's names (DESIGN.md) and no figure.
What a run is writing at the moment, or a kill has torn, is left out; what is damaged is left out with a word in `warnings`.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

from mathrl_ray.driver.file_names import GUARDS_FILE, SWEEP_FILE
from mathrl_ray.report.run_files import (
    evaluation_files,
    is_comparison,
    is_fresh_file,
    is_guard_event,
    is_locked,
    is_metrics_row,
    is_stage_entry,
    object_of,
    rows_of,
    superseded_rows,
    toml_of,
    validation_files,
    whole_of,
)

State = Literal["running", "finished", "stopped"]
Row = Mapping[str, Any]
"""One row of metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class MovedAside:
    """What a stage had done when a rollback, or a resumed run, went back behind it."""

    folder: str
    """superseded-<n>"""
    rows: list[Row]
    """Of training steps, as StageData has them."""
    validations: list[Row]


@dataclass(frozen=True, slots=True)
class StageData:
    """One stage of one run, in the order in which the run did them."""

    name: str
    summary: Mapping[str, Any] | None
    """Its entry of summary.json; None while it runs, or where it never ended."""
    rows: list[Row]
    """Of training steps, in order. Of expert iteration both kinds: a round's row, and the rows of its updates (with optimizer_step)."""
    validations: list[Row]
    """Those with validation_accuracy."""
    evaluations: list[Path] = field(default_factory=list)
    """Parquet files of its final evaluation: the first prompt's first."""
    validation_files: list[Path] = field(default_factory=list)
    """By step."""
    superseded: list[MovedAside] = field(default_factory=list)
    """The earliest first."""
    start_s: float = 0.0
    """time_s of its first row of any kind, also where that was moved aside."""


@dataclass(frozen=True, slots=True)
class RunData:
    """One run directory."""

    folder: Path
    name: str
    """The folder's name; with its parent's before it where another run that was read has the same."""
    recipe: Mapping[str, Any]
    """recipe.toml, nested; {} where it is missing or damaged."""
    environment: Mapping[str, Any]
    seed: int
    state: State
    stages: list[StageData]
    comparisons: Mapping[str, Any]
    """summary.json's: {} before the study's end."""
    guard_events: list[Mapping[str, Any]]
    """Rows of guards.jsonl, in order."""
    warnings: list[str]
    metrics: list[Row] = field(default_factory=list)
    """Every row of metrics.jsonl (spans, syncs and checkpoints too), in order."""
    rolled_back: list[Row] = field(default_factory=list)
    """Every row that rollbacks have moved aside: what was done in vain has cost its time all the same. Not those that a resumed run does
    again, whose clock, costs and all, was set back to its checkpoint."""

    @property
    def last_row(self) -> Row | None:
        """The newest: how far a running run is."""
        return self.metrics[-1] if self.metrics else None


def read_runs(paths: Sequence[Path], advance: Callable[[int], None] = lambda _: None, *, have_ended: bool = False) -> list[RunData]:
    """Read run directories; a sweep's folder stands for its runs that have begun. A run that is named twice is read once.

    Args:
        paths: of run directories and of sweeps' folders.
        advance: called with 1 when a path is read.
        have_ended: whatever their locks say: the job that asks is theirs, and does no more with them.

    Raises:
        ValueError: a path is no run directory, or a sweep of which no run has begun.
    """
    runs: dict[Path, RunData] = {}
    for path in paths:
        for folder in run_folders(path):
            if folder.resolve() not in runs:
                runs[folder.resolve()] = _read(folder, have_ended=have_ended)
        advance(1)
    return _told_apart(list(runs.values()))


def run_folders(path: Path) -> list[Path]:
    """The run itself, or a sweep's runs in their order.

    Raises:
        ValueError: neither.
    """
    if (path / SWEEP_FILE).is_file():
        return _runs_of_sweep(path)
    if not path.is_dir():
        raise ValueError(f"{path}: no such run directory. {_WHAT_IT_IS}")
    if not (path / "metrics.jsonl").is_file() and not (path / "recipe.toml").is_file():
        raise ValueError(f"{path}: holds neither metrics.jsonl nor recipe.toml, so it is no run directory. {_WHAT_IT_IS}")
    return [path]


_WHAT_IT_IS = "A run's is <run.root>/<run.name>, which a job prints when it begins; run.root is MATHRL_RUNS, else ~/mathrl_runs"


def _runs_of_sweep(path: Path) -> list[Path]:
    try:
        variants = json.loads((path / SWEEP_FILE).read_text(encoding="utf-8"))["variants"]
        folders = [path.resolve().parent / variant["folder"] for variant in variants if variant["folder"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / SWEEP_FILE} is damaged ({error!r}): name the sweep's runs themselves") from error
    found = [folder for folder in folders if folder.is_dir()]
    if not found:
        raise ValueError(f"{path}: is a sweep or a study over seeds of which no run has begun, or whose runs were moved away from it")
    return found


def _told_apart(runs: list[RunData]) -> list[RunData]:
    """With names that differ."""
    counts = Counter(run.name for run in runs)
    return [replace(run, name=f"{run.folder.resolve().parent.name}/{run.name}") if counts[run.name] > 1 else run for run in runs]


def _read(folder: Path, *, have_ended: bool) -> RunData:
    warnings: list[str] = []
    is_at_work = not have_ended and is_locked(folder)  # first: what ends meanwhile is running, not stopped
    is_fresh = not have_ended and is_fresh_file(folder / "metrics.jsonl")
    recipe = toml_of(folder / "recipe.toml", warnings)
    summary = object_of(folder / "summary.json", warnings)
    metrics = rows_of(folder / "metrics.jsonl", is_metrics_row, warnings)
    finished = whole_of(summary.get("stages", []), is_stage_entry, warnings, "summary.json", "stages")
    aside = superseded_rows(folder, warnings)
    events = rows_of(folder / GUARDS_FILE, is_guard_event, warnings)
    names = dict.fromkeys([*(stage["name"] for stage in finished), *(row["stage"] for rows in (metrics, *aside.values()) for row in rows)])
    stages = [_stage(folder, name, finished, metrics, aside) for name in names]
    return RunData(
        folder=folder,
        name=folder.resolve().name,
        recipe=recipe,
        environment=object_of(folder / "environment.json", warnings),
        seed=int(recipe.get("run", {}).get("seed", 0)),
        state=_state(is_at_work, is_fresh, stages, recipe),
        stages=stages,
        comparisons=_comparisons(summary.get("comparisons") or {}, warnings),
        guard_events=list(events),
        warnings=warnings,
        metrics=list(metrics),
        rolled_back=_rolled_back(list(aside.values()), metrics, events),
    )


def _comparisons(given: Any, warnings: list[str]) -> dict[str, Any]:
    file, what = "summary.json", "comparisons"
    kept: dict[str, Any] = {}
    for held in whole_of(given, lambda _: True, warnings, file, what):
        equal = [held["equal_tokens"]] if held.get("equal_tokens") else []
        kept["neighbours"] = whole_of(held.get("neighbours", []), is_comparison, warnings, file, what)
        kept["equal_tokens"] = next(iter(whole_of(equal, is_comparison, warnings, file, what)), None)
    return kept


def _rolled_back(aside: Sequence[Sequence[Row]], metrics: Sequence[Row], events: Sequence[Row]) -> list[Row]:
    """Of each folder whose rows were written before a rollback of guards.jsonl, and replaced after it."""
    found: list[Row] = []
    for place, rows in enumerate(aside):
        later = [row for others in (*aside[place + 1 :], metrics) for row in others]
        if any(_lies_between(event, rows, later) for event in events if event["kind"] == "rollback"):
            found += rows
    return found


def _lies_between(rollback: Row, rows: Sequence[Row], later: Sequence[Row]) -> bool:
    again = [row for row in later if row["stage"] == rollback["stage"] and row["step"] > rollback["to_step"]]
    before_s, after_s = ([row.get("time_s", 0.0) for row in held] for held in (rows, again))
    is_its_own = all(row["stage"] == rollback["stage"] for row in rows)
    return is_its_own and max(before_s, default=inf) <= rollback.get("time_s", 0.0) <= min(after_s, default=inf)


def _stage(folder: Path, name: str, finished: Sequence[Row], metrics: Sequence[Row], aside: Mapping[str, Sequence[Row]]) -> StageData:
    kept = [row for row in metrics if row["stage"] == name]
    moved = {where: [row for row in rows if row["stage"] == name] for where, rows in aside.items()}
    summary = next((stage for stage in finished if stage["name"] == name), None)
    return StageData(
        name=name,
        summary=summary,
        rows=_training(kept),
        validations=_validations(kept),
        evaluations=_final(folder, name, summary),
        validation_files=validation_files(folder, name),
        superseded=[MovedAside(where, _training(rows), _validations(rows)) for where, rows in moved.items() if rows],
        start_s=min((row["time_s"] for rows in (kept, *moved.values()) for row in rows if "time_s" in row), default=0.0),
    )


def _training(rows: Sequence[Row]) -> list[Row]:
    """Training steps, rounds of expert iteration and updates of these: what has a loss, or was timed as a step."""
    return [row for row in rows if "loss" in row or "step_s" in row]


def _validations(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "validation_accuracy" in row]


def _final(folder: Path, stage: str, summary: Row | None) -> list[Path]:
    """Of the weights that the summary names, else the newest; a stage that has not ended may have those of an earlier start."""
    found = evaluation_files(folder, stage)
    if not found:
        return []
    version = (summary or {}).get("policy_version", found[-1][0])
    return [path for held, _, path in found if held == version]


def _state(is_at_work: bool, is_fresh: bool, stages: Sequence[StageData], recipe: Mapping[str, Any]) -> State:
    """Finished is a run whose last stage has ended, and not by run.max_hours, and which is not between two stages of its recipe's study. A
    job of one stage does not say in its recipe that it is one; where it has ended nothing follows."""
    ended = [stage.name for stage in stages if stage.summary]
    planned = list(recipe.get("study", {}).get("stages", ended))
    if stages and len(ended) == len(stages) and (stages[-1].summary or {}).get("ended_by") != "max_hours":
        is_between = is_at_work or (1 < len(ended) < len(planned) and ended == planned[: len(ended)])
        if ended == planned or not is_between:
            return "finished"
    return "running" if is_at_work or is_fresh else "stopped"
