"""The run directory: created once, never overwritten, written as the run goes on.

Called by the job entry and the stages. Knows files and formats (DESIGN "a run directory"); knows no actor. What was written stays
readable when the run ends early: metrics are flushed row by row, every other file appears whole.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from mathrl_ray.config import Recipe
from mathrl_ray.driver.rows import EVALUATION_SCHEMA, trajectory_schema


class Recorder:
    """Writes one run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._began = time.monotonic()
        self._metrics = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    @classmethod
    def create(cls, recipe: Recipe) -> "Recorder":
        """Make <root>/<name>, or <name>-2, -3, ... where it exists, and write recipe.toml with every default.

        Raises:
            OSError: run.root cannot be written.
        """
        folder = _new_folder(Path(recipe.run.root), recipe.run.name)
        for part in ("evaluations", "trajectories", "checkpoints"):
            (folder / part).mkdir()
        _write_whole(folder / "recipe.toml", tomli_w.dumps(recipe.model_dump(mode="json")))
        return cls(folder)

    def environment(self, facts: Mapping[str, Any]) -> None:
        self._write_json("environment.json", facts)

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

    def evaluation(self, stage: str, policy_version: int, rows: Sequence[Mapping[str, Any]]) -> Path:
        return self._write_rows(self.folder / "evaluations" / f"{stage}-v{policy_version}.parquet", rows, EVALUATION_SCHEMA)

    def trajectories(self, stage: str, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
        return self._write_rows(self.folder / "trajectories" / f"{stage}-{step}.parquet", rows, trajectory_schema(rows))

    def checkpoint_folder(self, stage: str, step: int) -> Path:
        return self.folder / "checkpoints" / f"{stage}-{step}"

    def summary(self, stages: Sequence[Mapping[str, Any]]) -> None:
        """All stages that are finished so far; written again after each."""
        self._write_json("summary.json", {"stages": list(stages)})

    def close(self) -> None:
        self._metrics.close()

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        _write_whole(self.folder / name, json.dumps(value, indent=2) + "\n")

    def _write_rows(self, path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> Path:
        aside = path.with_name(f".{path.name}.writing")
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), aside, compression="zstd")
        aside.rename(path)
        return path


def _new_folder(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = root / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()  # the file system decides who is first when two runs start together
            return folder
        except FileExistsError:
            number += 1


def _write_whole(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.writing-{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    aside.rename(path)
