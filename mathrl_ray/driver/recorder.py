"""The run directory: created once, never overwritten, written as the run goes on.

Called by the job entry and the stages. Knows files and formats (DESIGN "a run directory"); knows no actor. What was written stays
readable when the run ends early: metrics are flushed row by row, every other file appears whole.
"""

import contextlib
import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import masked
from mathrl_ray.driver.file_names import GUARDS_FILE, inside
from mathrl_ray.driver.rows import EVALUATION_SCHEMA, trajectory_row, trajectory_schema
from mathrl_ray.types import TrajectoryGroup

STOPPED = "stopped"
"""The drop reason of a response that was in flight when the run was told to stop."""


class Watcher(Protocol):
    """Is told of what was written, at once; must neither wait nor fail (trackers.py, console.py)."""

    def row(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl."""

    def evaluated(self, path: Path) -> None:
        """An evaluation's file."""

    def rewound(self, metrics_bytes: int) -> None:
        """Files of the run were changed or moved aside by somebody else; metrics.jsonl is as long as this now."""


class Recorder:
    """Writes one run's folder."""

    def __init__(self, folder: Path, *, elapsed_s: float = 0.0) -> None:
        """
        Args:
            folder: exists.
            elapsed_s: how long the run has gone on before.

        Raises:
            RecipeError: another job writes there.
        """
        self.folder = folder
        self._began = time.monotonic() - elapsed_s
        self._lock = (folder / ".lock").open("w")
        try:
            lock_file(self._lock)
        except BlockingIOError as error:  # not where a file system has no locks
            self._lock.close()
            message = f"{folder} is being written to by another job: end that one first, or give this one another run.name"
            raise RecipeError(message) from error
        self._metrics = self._open_metrics()
        self._watchers: list[Watcher] = []

    @contextlib.contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Tell somebody of what is written in the block."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _open_metrics(self) -> TextIO:
        return (self.folder / "metrics.jsonl").open("a", encoding="utf-8")

    @classmethod
    def create(cls, recipe: Recipe) -> "Recorder":
        """Make <root>/<name>, or <name>-2, -3, ... where it exists, and write recipe.toml with every default, secrets masked.

        Raises:
            OSError: run.root cannot be written.
        """
        folder = new_folder(Path(recipe.run.root), recipe.run.name)
        _make_parts(folder)
        recorder = cls(folder)
        recorder.recipe(recipe)
        return recorder

    @classmethod
    def reopen(cls, folder: Path, *, elapsed_s: float) -> "Recorder":
        """Go on in a run's folder; what the mirror that it was brought back from does not have is made.

        Raises:
            RecipeError: another job writes there.
        """
        recorder = cls(folder, elapsed_s=elapsed_s)
        _make_parts(folder)
        return recorder

    def recipe(self, recipe: Recipe) -> None:
        """Of the present start; another one of an earlier start becomes recipe-1.toml (-2, ...)."""
        replace_text(self.folder / "recipe.toml", recipe_text(recipe))

    def digests(self, digests: Mapping[str, Any]) -> None:
        """Of the data and of masked settings (digests.py), to be compared when the run goes on."""
        replace_text(self.folder / "digests.json", json_text(digests))

    def environment(self, facts: Mapping[str, Any]) -> None:
        """Of the present start; that of an earlier start becomes environment-1.json (-2, ...)."""
        replace_text(self.folder / "environment.json", json_text(masked(facts)))

    @property
    def metrics_bytes(self) -> int:
        """Length of metrics.jsonl; each row is there whole."""
        return os.fstat(self._metrics.fileno()).st_size

    def sync_metrics(self) -> None:
        os.fsync(self._metrics.fileno())

    @contextlib.contextmanager
    def closed_metrics(self) -> Iterator[None]:
        """Let somebody else change metrics.jsonl in the block."""
        self._metrics.close()
        try:
            yield
        finally:
            self._metrics = self._open_metrics()
            for watcher in self._watchers:
                watcher.rewound(self.metrics_bytes)

    def elapsed_s(self) -> float:
        """Seconds since the run began: time_s, and the clock of all spans."""
        return time.monotonic() - self._began

    def metrics(self, stage: str, step: int, policy_version: int, numbers: Mapping[str, Any]) -> None:
        """One row; `step` is explicit, so that an evaluation never hides training at the same step.

        numbers: floats and integers by name; a training step's `spans` are [actor, what, start_s, end_s] each.
        """
        row = {
            "time_s": round(self.elapsed_s(), 3),
            "stage": stage,
            "step": step,
            "policy_version": policy_version,
            **numbers,
        }
        self._metrics.write(json.dumps(row) + "\n")
        self._metrics.flush()
        for watcher in self._watchers:
            watcher.row(row)

    def guard_event(self, kind: str, stage: str, step: int, facts: Mapping[str, Any]) -> None:
        """One row of guards.jsonl: a guard that fired, a rollback, or whether its remedy helped (guards.py); nothing is taken back."""
        row = {"kind": kind, "time_s": round(self.elapsed_s(), 3), "stage": stage, "step": step, **facts}
        with (self.folder / GUARDS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def evaluation(self, stage: str, policy_version: int, rows: Sequence[Mapping[str, Any]]) -> Path:
        path = self._write_rows(inside(self.folder / "evaluations", f"{stage}-v{policy_version}.parquet"), rows, EVALUATION_SCHEMA)
        for watcher in self._watchers:
            watcher.evaluated(path)
        return path

    def trajectories(self, stage: str, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
        return self._write_rows(inside(self.folder / "trajectories", f"{stage}-{step}.parquet"), rows, trajectory_schema(rows))

    def partial(self, keeps_kv: bool, groups: Sequence[TrajectoryGroup]) -> Path:
        """Responses that were in flight when the run was stopped, as trajectories; partial/<n>.parquet, a file a stop."""
        rows = [
            trajectory_row(trajectory, None, consumed_step=None, staleness=0, keeps_kv=keeps_kv)
            for group in groups
            for trajectory in group.with_drop_reason(STOPPED).trajectories
        ]
        folder = self.folder / "partial"
        folder.mkdir(exist_ok=True)
        number = next(number for number in itertools.count(1) if not (folder / f"{number}.parquet").exists())
        return self._write_rows(folder / f"{number}.parquet", rows, trajectory_schema(rows))

    def checkpoint_folder(self, stage: str, step: int) -> Path:
        return inside(self.folder / "checkpoints", f"{stage}-{step}")

    def summary(self, stages: Sequence[Mapping[str, Any]], comparisons: Mapping[str, Any] | None = None) -> None:
        """All stages that are finished so far; written again after each. After the last one, how they compare (stages/comparisons.py)."""
        self._write_json("summary.json", {"stages": list(stages), **({"comparisons": comparisons} if comparisons else {})})

    def close(self) -> None:
        self._metrics.close()
        self._lock.close()

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        write_whole(self.folder / name, json_text(value))

    def _write_rows(self, path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> Path:
        aside = path.with_name(f".{path.name}.writing")
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), aside, compression="zstd")
        aside.rename(path)
        return path


def new_folder(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = inside(root, name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()  # the file system decides who is first when two runs start together
            return folder
        except FileExistsError:
            number += 1


def _make_parts(folder: Path) -> None:
    for part in ("evaluations", "trajectories", "checkpoints"):
        (folder / part).mkdir(exist_ok=True)


def lock_file(file: TextIO) -> None:
    """
    Raises:
        BlockingIOError: another process, or another Recorder of this one, has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks: the run goes on without one
        return


def recipe_text(recipe: Recipe) -> str:
    return tomli_w.dumps(masked(recipe.model_dump(mode="json")))


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def replace_text(path: Path, text: str) -> None:
    """Write a file; another text that was there is kept under the next free number. At no time is there none."""
    before = path.read_text(encoding="utf-8") if path.exists() else text
    if before != text:
        numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(1))
        write_whole(next(each for each in numbered if not each.exists()), before)
    write_whole(path, text)


def write_whole(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.writing-{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # else a power cut may leave the name with nothing in it
    aside.rename(path)
