"""The rows that `grade` writes: the input's, in their order, with the fields of their grades added.

Called by grade.py. Knows the names of columns; judges nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl_ray.commands.audit import DISAGREEMENTS, Audit
from mathrl_ray.commands.parquet_table import table_of, with_columns
from mathrl_ray.commands.row_files import json_line, write_lines, write_table
from mathrl_ray.commands.samples import Sample
from mathrl_ray.data.rows import Rows
from mathrl_ray.types import Grade

OPTION = "--output"
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


def input_table(rows: Rows, output: Path) -> Any:
    """The input's columns as the Parquet table that they will be written as, made before anything is graded; None for JSON lines.

    From Parquet to Parquet the input's own types stay.

    Raises:
        DataError: a value that Parquet cannot hold, with its column and line.
    """
    if output.suffix != ".parquet":
        return None
    source = Path(rows.source)
    if source.suffix.lower() == ".parquet" and source.is_file():
        import pyarrow.parquet as pq

        return pq.read_table(source)
    return table_of(rows.numbered, rows.source, f"{OPTION} = {output}")


def add_columns(rows: Rows, table: Any, columns: Mapping[str, Sequence[Any]], output: Path) -> dict[str, str]:
    """Write the rows with the columns added. No column of the input is lost: one that has such a name gets another.

    Args:
        rows: what was read.
        table: of `input_table`.
        columns: one value a row.
        output: its suffix is the format.

    Returns:
        The names that columns of the input had -> those that they have now.

    Raises:
        DataError: it cannot be written.
    """
    renamed = new_names(rows.columns, list(columns))
    if table is not None:
        write_table(output, with_columns(table, columns, renamed, _types(columns)), OPTION)
        return renamed
    lines = []
    for index, (_, row) in enumerate(rows.numbered):
        kept = {renamed.get(name, name): value for name, value in row.items()}
        lines.append(json_line({**kept, **{name: values[index] for name, values in columns.items()}}))
    write_lines(output, lines, OPTION)
    return renamed


def new_names(present: Iterable[str], added: Iterable[str]) -> dict[str, str]:
    """For each column that is present and added: a name that is neither, so that both stay.

    >>> new_names(["id", "reward"], ["reward"]), new_names(["reward", "previous_reward"], ["reward"])
    ({'reward': 'previous_reward'}, {'reward': 'previous_reward_2'})
    """
    present, added = set(present), list(added)
    taken = present | set(added)
    renamed = {}
    for name in added:
        if name in present:
            tries = (f"{PREVIOUS}{name}{suffix}" for suffix in ("", *(f"_{number}" for number in range(2, len(taken) + 3))))
            renamed[name] = next(candidate for candidate in tries if candidate not in taken)
            taken.add(renamed[name])
    return renamed


def _types(columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Of columns that may hold nothing but null, from which pyarrow could not tell that they are texts."""
    import pyarrow as pa

    return {
        name: pa.list_(pa.string()) if any(isinstance(value, list) for value in values) else pa.string()
        for name, values in columns.items()
        if name in ("extracted_answer", "disagreement")
    }
