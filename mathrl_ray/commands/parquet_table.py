"""Rows as a Parquet table, and which value of which row cannot stand in one.

Called by graded_rows.py before anything is graded, and by row_files.py. Parquet gives a column one type, its whole numbers 64 bits, its
texts UTF-8, and knows no object without a field; JSON knows none of this. Decides nothing about columns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mathrl_ray.data.json_lines import NumberedRow
from mathrl_ray.data.rows import DataError

_MOST_CHARACTERS_SHOWN = 60


def table_of(rows: Sequence[NumberedRow], source: str, output: str, types: Mapping[str, Any] | None = None) -> Any:
    """A pyarrow table of every column of any row, in the order in which they come up.

    Args:
        rows: plain values, with their lines.
        source: where they are from, for messages.
        output: the option and the file that they shall go to, for messages.
        types: pyarrow types of columns, which are there even without a row; pyarrow finds out the others.

    Raises:
        DataError: a value that Parquet cannot hold beside those before it, with its column and line, and what to do.
    """
    import pyarrow as pa

    types = types or {}
    names = [*dict.fromkeys(name for _, row in rows for name in row)] or list(types)
    arrays = {}
    for name in names:
        values = [row.get(name) for _, row in rows]
        try:
            arrays[name] = _column(name, values, types.get(name))
        except _errors() as error:
            line, value = _culprit(name, rows, types.get(name))
            raise DataError(
                f"{output}: Parquet cannot hold the column {name!r} of {source}: line {line} has {value}, and {_one_line(error)}. "
                "Nothing is lost: write .jsonl instead, which keeps every value as it is"
            ) from error
    return pa.table(arrays)


def with_columns(table: Any, columns: Mapping[str, Sequence[Any]], renamed: Mapping[str, str], types: Mapping[str, Any]) -> Any:
    """A table with columns added, its own types and metadata as they were.

    Args:
        table: with columns of other names, once they are renamed.
        columns: what to add, one value a row: ours, which never fail. Lists in some rows only become lists in all, and a text that is no
            UTF-8 gets its escapes.
        renamed: columns of the table -> the names that they get.
        types: pyarrow types of added columns; pyarrow finds out the others.
    """
    import pyarrow as pa

    table = table.rename_columns([renamed.get(name, name) for name in table.column_names])
    for name, values in columns.items():
        table = table.append_column(name, pa.array(holdable(values), type=types.get(name)))
    return table


def holdable(values: Sequence[Any]) -> list[Any]:
    r"""Values of one column that Parquet can hold, if they are numbers and texts, or lists of them in some rows.

    >>> holdable([0.5, [1.0, 0.0]]), holdable(["a", None, "\ud800"])
    ([[0.5], [1.0, 0.0]], ['a', None, '\\ud800'])
    """
    if any(isinstance(value, list) for value in values):
        return [[utf8_text(each) for each in (value if isinstance(value, list) else [value])] for value in values]
    return [utf8_text(value) for value in values]


def utf8_text(value: Any) -> Any:
    """A text with escapes for what UTF-8 cannot hold (lone surrogates); what is no text as it is."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _errors() -> tuple[type[Exception], ...]:
    """What pyarrow raises for values that it cannot hold: UnicodeError for lone surrogates, OverflowError for long numbers."""
    import pyarrow as pa

    return (pa.ArrowException, OverflowError, UnicodeError)


def _column(name: str, values: Sequence[Any], kind: Any) -> Any:
    """The values as an array that can be written too, which is not said of every array: a struct may have no field."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    array = pa.array(values, type=kind)
    pq.write_table(pa.table({name: array.slice(0, 1)}), pa.BufferOutputStream())
    return array


def _culprit(name: str, rows: Sequence[NumberedRow], kind: Any) -> tuple[int, str]:
    """The line of the first value that cannot stand in one column with those before it, and the value; by halves."""
    values = [row.get(name) for _, row in rows]
    fits, fails = 0, len(values)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            _column(name, values[:middle], kind)
            fits = middle
        except _errors():
            fails = middle
    shown = ascii(values[fails - 1])
    return rows[fails - 1][0], shown[:_MOST_CHARACTERS_SHOWN] + ("..." if len(shown) > _MOST_CHARACTERS_SHOWN else "")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
