"""Run directories as a report reads them: recipe, environment, the stages' rows, results and files. Also of runs that are at work.

Called by `python -m mathrl_ray report` and by whoever shows a run. Reads only; knows a run directory's names (DESIGN.md) and no figure.
What a run is writing at the moment, or a kill has torn, is left out; what is damaged is left out with a word in `warnings`.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mathrl_ray.driver.file_names import SWEEP_FILE
from mathrl_ray.report.run_files import (
    evaluation_files,
    is_fresh_file,
    is_locked,
    object_of,
    rows_of,
    superseded_rows,
    toml_of,
    validation_files,
)

State = Literal["running", "finished", "stopped"]
Row = Mapping[str, Any]
"""One row of metrics.jsonl."""


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
    superseded: list[Row] = field(default_factory=list)
    """Rows of training steps that a rollback or a resumed run has moved aside, in order."""
    start_s: float = 0.0
    """time_s of its first row of any kind."""


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
    metrics = [row for row in rows_of(folder / "metrics.jsonl", warnings) if "stage" in row and "step" in row]
    finished = [stage for stage in summary.get("stages", []) if isinstance(stage, dict) and "name" in stage]
    aside = superseded_rows(folder, warnings)
    names = dict.fromkeys([*(stage["name"] for stage in finished), *(row["stage"] for row in metrics)])
    stages = [_stage(folder, name, finished, metrics, aside) for name in names]
    return RunData(
        folder=folder,
        name=folder.resolve().name,
        recipe=recipe,
        environment=object_of(folder / "environment.json", warnings),
        seed=int(recipe.get("run", {}).get("seed", 0)),
        state=_state(is_at_work, is_fresh, stages, recipe),
        stages=stages,
        comparisons=summary.get("comparisons") or {},
        guard_events=[dict(row) for row in rows_of(folder / "guards.jsonl", warnings)],
        warnings=warnings,
        metrics=list(metrics),
    )


def _stage(folder: Path, name: str, finished: Sequence[Row], metrics: Sequence[Row], aside: Sequence[Row]) -> StageData:
    rows = [row for row in metrics if row["stage"] == name]
    summary = next((stage for stage in finished if stage["name"] == name), None)
    return StageData(
        name=name,
        summary=summary,
        rows=[row for row in rows if is_training(row)],
        validations=[row for row in rows if "validation_accuracy" in row],
        evaluations=_final(folder, name, summary),
        validation_files=validation_files(folder, name),
        superseded=[row for row in aside if row.get("stage") == name and is_training(row)],
        start_s=min((row["time_s"] for row in rows if "time_s" in row), default=0.0),
    )


def is_training(row: Row) -> bool:
    """A training step, a round of expert iteration, or an update of one: what has a loss, or was timed as a step."""
    return "loss" in row or "step_s" in row


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
