"""What a run wrote after the point that it is resumed from: moved aside, so that every step is in its files once.

Called by resume.py before the run goes on. Knows a run directory's names and the stages', nothing else. Nothing is deleted: all of it
goes to <run>/superseded-<n>/, rows of metrics included, where a person may look at it.

    stays   all of the stages that are finished; of the present stage what is of its step or an earlier one, but for its evaluation; the
            memory of problems and the elite pool likewise, which a run that goes on reads
    goes    the rest; and the last line of metrics.jsonl where a kill has torn it
"""

import json
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from mathrl_ray.sections import StageName


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run goes on."""

    finished: Collection[str]
    """Names of stages."""
    stage: str = ""
    """The one that goes on in its middle, or "" for the beginning of the next."""
    step: int = 0
    metrics_bytes: int = 0
    """Rows in this part of metrics.jsonl stay, whatever they are: the checkpoint was written after them."""

    def keeps(self, stage: str, step: int) -> bool:
        return stage in self.finished or (stage == self.stage and step <= self.step)


def supersede(folder: Path, position: Position) -> Path | None:
    """Move what the run wrote after a position. Returns where it is now; None where there was nothing."""
    kept, gone = _split_rows(folder / "metrics.jsonl", position)
    paths = [path for path in _files(folder) if not _keeps_file(path, position)]
    if not gone and not paths:
        return None
    aside = _new_folder(folder)
    for path in paths:
        there = aside / path.relative_to(folder)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, there)
    if gone:
        (aside / "metrics.jsonl").write_bytes(b"".join(gone))
        writing = folder / ".metrics.jsonl.writing"
        writing.write_bytes(b"".join(kept))
        writing.rename(folder / "metrics.jsonl")
    return aside


def _split_rows(path: Path, position: Position) -> tuple[list[bytes], list[bytes]]:
    kept: list[bytes] = []
    gone: list[bytes] = []
    num_bytes = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        num_bytes += len(line)
        row = row_of(line)
        stays = row is not None and (num_bytes <= position.metrics_bytes or _keeps_row(row, position))
        (kept if stays else gone).append(line)
    return kept, gone


def _keeps_row(row: dict[str, Any], position: Position) -> bool:
    """A validation that ended after its step's checkpoint stays; the evaluation at the stage's end is done again."""
    return position.keeps(row["stage"], row["step"]) and (row["stage"] in position.finished or "accuracy" not in row)


def row_of(line: bytes) -> dict[str, Any] | None:
    """A row of metrics; None for a line that was not written to its end."""
    if not line.endswith(b"\n"):
        return None
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row if "stage" in row and "step" in row else None


def _files(folder: Path) -> Iterator[Path]:
    # Checkpoints first: where a kill comes in between, the run goes on from one whose other files are still there, or are done again.
    for part in ("checkpoints", "trajectories", "evaluations", "problem_memory", "elite_pool"):
        yield from sorted((folder / part).glob("[!.]*"))


_STAGE = f"(?P<stage>{'|'.join(get_args(StageName))})"
_STEP = re.compile(rf"{_STAGE}-(?P<step>\d+)")
_VALIDATION = re.compile(rf"validation-{_STAGE}(?:-(?P<part>[^-]+))?-step(?P<step>\d+)-v\d+")
_EVALUATION = re.compile(rf"{_STAGE}(?:-.+)?-v\d+")


def is_own_checkpoint(name: str) -> bool:
    """Whether a run may have given this name to a checkpoint.

    >>> is_own_checkpoint("grpo-30"), is_own_checkpoint("grpo-30-copy"), is_own_checkpoint("backup-3")
    (True, False, False)
    """
    return _STEP.fullmatch(name) is not None


def _keeps_file(path: Path, position: Position) -> bool:
    """Names are <stage>-<step>, validation-<stage>[-<part>]-step<step>-v<n>, <stage>[-<prompt>]-v<n>; all else is not the run's own."""
    name = path.name.removesuffix(".parquet")
    if path.parent.name != "evaluations":
        found = _STEP.fullmatch(name)
        return found is None or position.keeps(found["stage"], int(found["step"]))
    if found := _VALIDATION.fullmatch(name):
        if found["part"] and found["stage"] == position.stage:  # of a sweep, which has a checkpoint at its end only
            return True
        return position.keeps(found["stage"], int(found["step"]))
    found = _EVALUATION.fullmatch(name)
    return found is None or found["stage"] in position.finished  # a stage is evaluated at its end


def _new_folder(folder: Path) -> Path:
    number = 1
    while (aside := folder / f"superseded-{number}").exists():
        number += 1
    aside.mkdir()
    return aside
