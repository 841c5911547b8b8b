"""The rows that `grade` writes: the input's, in their order, with the fields of their grades added.

Called by grade.py. Knows the names of columns; judges nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl_ray.commands.audit import DISAGREEMENTS, Audit
from mathrl_ray.commands.row_files import with_columns, write_rows, write_table
from mathrl_ray.commands.samples import Sample
from mathrl_ray.data.rows import Rows
from mathrl_ray.types import Grade

GRADE_FIELDS = (
    "format_reward",
    "answer_reward",
    "reward",
    "outcome",
    "extracted_answer",
    "lenient_answer_correct",
    "grading_s",
)
GRADER = "default"
PREVIOUS = "previous_"
"""Put before the name of an input column that a grade's field takes the place of."""


def grade_columns(
    num_rows: int, samples: Sequence[Sample], grades: Sequence[Grade], second: Sequence[Grade] | None, audits: Sequence[Audit]
) -> dict[str, list[Any]]:
    """The columns to add, one value a row; a list of one a sample where the row holds a list of responses.

    grader says whose fields these are. Where there is an audit, disagreement names each grader that disagrees and how; second_reward is
    what the second grader gave.
    """
    columns = {name: [getattr(grade, name) for grade in grades] for name in GRADE_FIELDS}
    if second is not None:
        columns["second_reward"] = [grade.reward for grade in second]
    if audits:
        columns["disagreement"] = _disagreements(len(samples), audits)
    by_row = {name: _by_row(num_rows, samples, values) for name, values in columns.items()}
    return {**by_row, "grader": [GRADER] * num_rows}


def _disagreements(num_samples: int, audits: Sequence[Audit]) -> list[str | None]:
    found: list[str | None] = []
    for position in range(num_samples):
        entries = [(each.grader, each.entries[position].verdict) for each in audits]
        found.append("; ".join(f"{grader}: {verdict}" for grader, verdict in entries if verdict in DISAGREEMENTS) or None)
    return found


def _by_row(num_rows: int, samples: Sequence[Sample], values: Sequence[Any]) -> list[Any]:
    rows: list[Any] = [[] for _ in range(num_rows)]  # a row with an empty list of responses keeps []
    for sample, value in zip(samples, values, strict=True):
        if sample.sample is None:
            rows[sample.index] = value
        else:
            rows[sample.index].append(value)
    return rows


def add_columns(rows: Rows, columns: Mapping[str, Sequence[Any]], output: Path) -> None:
    """Write the rows with the columns added. A column of the input that has one of their names becomes previous_<name>.

    Args:
        rows: what was read.
        columns: one value a row.
        output: its suffix is the format. From Parquet to Parquet the input's own types stay.

    Raises:
        DataError: it cannot be written.
    """
    renamed = {name: PREVIOUS + name for name in columns if name in rows.columns}
    source = Path(rows.source)
    if output.suffix == ".parquet" and source.suffix == ".parquet" and source.is_file():
        write_table(output, with_columns(source, columns, renamed, _types(columns)), "--output")
        return
    written = []
    for index, (_, row) in enumerate(rows.numbered):
        kept = {name: value for name, value in row.items() if name not in renamed.values()}
        kept = {renamed.get(name, name): value for name, value in kept.items()}
        written.append({**kept, **{name: values[index] for name, values in columns.items()}})
    write_rows(output, written, "--output", _types(columns))


def _types(columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Of columns that may hold nothing but null, from which pyarrow could not tell that they are texts."""
    import pyarrow as pa

    return {
        name: pa.list_(pa.string()) if any(isinstance(value, list) for value in values) else pa.string()
        for name, values in columns.items()
        if name in ("extracted_answer", "disagreement")
    }
