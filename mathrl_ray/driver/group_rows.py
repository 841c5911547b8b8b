"""Groups of trajectories as Parquet rows and back, so that a resumed run trains on what the stopped one had sampled.

Called by checkpoint.py. The rows of a run's trajectories/ are for people and lack what only the program needs (the text, parts of the
grade), hence a schema of its own: every field of Trajectory, Completion and Grade, exactly.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mathrl_ray.types import Completion, Grade, Trajectory, TrajectoryGroup

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("group_id", pa.string()),
        ("problem_id", pa.string()),
        ("sample", pa.int64()),
        ("prompt_ids", pa.list_(pa.int64())),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int64())),
        ("logprobs", pa.list_(pa.float64())),
        ("version_runs", pa.list_(pa.list_(pa.int64()))),
        ("finish_reason", pa.string()),
        ("format_reward", pa.float64()),
        ("answer_reward", pa.float64()),
        ("reward", pa.float64()),
        ("outcome", pa.string()),
        ("extracted_answer", pa.string()),
        ("grading_s", pa.float64()),
        ("lenient_answer_correct", pa.bool_()),
        ("parts", pa.map_(pa.string(), pa.float64())),
        ("remark", pa.string()),
        ("from_quarantine", pa.bool_()),
        ("advantage", pa.float64()),
        ("drop_reason", pa.string()),
    ]
)
NumberedGroup = tuple[int, TrajectoryGroup]
"""A group with its number in the order of admission; -1 where it was dropped and only has to be written down."""


def write_groups(path: Path, groups: Iterable[NumberedGroup]) -> None:
    rows = [_row(number, trajectory) for number, group in groups for trajectory in group.trajectories]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, compression="zstd")


def read_groups(path: Path) -> list[NumberedGroup]:
    """In the order in which they were written."""
    found: dict[tuple[int, str], list[Trajectory]] = {}
    for row in pq.read_table(path, schema=SCHEMA).to_pylist():
        found.setdefault((row["number"], row["group_id"]), []).append(_trajectory(row))
    return list(_groups(found))


def _groups(found: dict[tuple[int, str], list[Trajectory]]) -> Iterator[NumberedGroup]:
    for (number, group_id), trajectories in found.items():
        yield number, TrajectoryGroup(group_id, trajectories[0].problem_id, tuple(trajectories))


def _row(number: int, trajectory: Trajectory) -> dict[str, Any]:
    completion, grade = trajectory.completion, trajectory.grade
    return {
        "number": number,
        "group_id": trajectory.group_id,
        "problem_id": trajectory.problem_id,
        "sample": trajectory.sample,
        "prompt_ids": trajectory.prompt_ids,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "version_runs": completion.version_runs,
        "finish_reason": completion.finish_reason,
        **{name: getattr(grade, name) for name in _GRADE},
        "parts": list(grade.parts.items()),
        "advantage": trajectory.advantage,
        "drop_reason": trajectory.drop_reason,
    }


_GRADE = (
    "format_reward",
    "answer_reward",
    "reward",
    "outcome",
    "extracted_answer",
    "grading_s",
    "lenient_answer_correct",
    "remark",
    "from_quarantine",
)


def _trajectory(row: dict[str, Any]) -> Trajectory:
    return Trajectory(
        group_id=row["group_id"],
        sample=row["sample"],
        problem_id=row["problem_id"],
        prompt_ids=tuple(row["prompt_ids"]),
        completion=Completion(
            text=row["text"],
            token_ids=tuple(row["token_ids"]),
            logprobs=tuple(row["logprobs"]),
            version_runs=_pairs(row["version_runs"]),
            finish_reason=row["finish_reason"],
        ),
        grade=Grade(**{name: row[name] for name in _GRADE}, parts=dict(row["parts"])),
        advantage=row["advantage"],
        drop_reason=row["drop_reason"],
    )


def _pairs(runs: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((version, num_tokens) for version, num_tokens in runs)
