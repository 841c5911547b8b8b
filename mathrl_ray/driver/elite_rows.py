"""The elite pool and the memory of problems as Parquet, in a run's folder and back: for people, and for a run that goes on.

Called by stages/expert_iteration.py, and for the attempts by step_record.py and prompt_stream.py. Knows files and columns.

    <run>/elite_pool/<stage>-<round>.parquet      the pool after each round, best first; its threshold and round are in the file's metadata
    <run>/problem_memory/<stage>-<step>.parquet   the attempts of one step; all files up to a step are the memory after it

Each file appears whole, and is on disk before a checkpoint can name its step. A run that goes on from an earlier step reads none of a
later one; superseded.py moves those aside.

A file a step, as trajectories/ has it, also for thousands of steps: a file that grows would have to be written anew each step, or be torn
by a kill, and what is after a checkpoint could not be moved aside by its name. They are small beside trajectories (256 attempts: 3 to
4 kB, written in 4 ms), and only a run that goes on with a filter reads them, some 700 of them a second.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mathrl_ray.core.elite_pool import ElitePool, EliteResponse
from mathrl_ray.core.problem_memory import Attempt
from mathrl_ray.driver.file_names import inside

POOL_SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("group_id", pa.string()),
        ("sample", pa.int64()),
        ("prompt_ids", pa.list_(pa.int64())),
        ("response_ids", pa.list_(pa.int64())),
        ("text", pa.string()),
        ("quality", pa.float64()),
        ("round", pa.int64()),
        ("policy_version", pa.int64()),
        ("temperature", pa.float64()),
        ("reward", pa.float64()),
        ("format_reward", pa.float64()),
        ("answer_reward", pa.float64()),
        ("outcome", pa.string()),
    ]
)
ATTEMPT_SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("group_id", pa.string()),
        ("step", pa.int64()),
        ("sample", pa.int64()),
        ("solved", pa.bool_()),
        ("num_tokens", pa.int64()),
        ("policy_version", pa.int64()),
    ]
)


def pool_path(run_folder: Path, stage: str, round_number: int) -> Path:
    return inside(run_folder / "elite_pool", f"{stage}-{round_number}.parquet")


def attempts_path(run_folder: Path, stage: str, step: int) -> Path:
    return inside(run_folder / "problem_memory", f"{stage}-{step}.parquet")


def write_pool(path: Path, pool: ElitePool) -> None:
    facts = {"threshold": repr(pool.threshold), "round": str(pool.round)}
    _write(path, [asdict(each) for each in pool.members], POOL_SCHEMA.with_metadata(facts))


def read_pool(path: Path) -> ElitePool:
    """
    Raises:
        OSError: there is none.
    """
    table = pq.read_table(path)
    facts = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    members = tuple(_response(row) for row in table.to_pylist())
    return ElitePool(members, threshold=float(facts["threshold"]), round=int(facts["round"]))


def _response(row: dict[str, Any]) -> EliteResponse:
    return EliteResponse(**{**row, "prompt_ids": tuple(row["prompt_ids"]), "response_ids": tuple(row["response_ids"])})


def write_attempts(path: Path, attempts: Sequence[Attempt]) -> None:
    _write(path, [asdict(each) for each in attempts], ATTEMPT_SCHEMA)


def read_attempts(run_folder: Path, stage: str, last_step: int) -> Iterator[Attempt]:
    """All attempts of a stage up to a step, in the order of the steps."""
    for path in (attempts_path(run_folder, stage, step) for step in range(1, last_step + 1)):
        if path.exists():
            yield from (Attempt(**row) for row in pq.read_table(path, schema=ATTEMPT_SCHEMA).to_pylist())


def missing_attempts(run_folder: Path, stage: str, last_step: int) -> list[int]:
    """Steps up to a last one that have no file: where the run came back from a mirror, or a program wrote it that kept no memory."""
    return [step for step in range(1, last_step + 1) if not attempts_path(run_folder, stage, step).exists()]


def _write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.name}.writing-{os.getpid()}")
    with aside.open("wb") as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())  # a checkpoint that names this step must not outlive it in a power cut
    aside.rename(path)
