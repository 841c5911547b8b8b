"""Files of rows as the commands write them: whole or not at all, every column as it was.

Called by grade.py and check_data.py. Knows JSON lines and Parquet; knows no column's meaning.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl_ray.data.dataset_name import ROW_SUFFIXES
from mathrl_ray.data.rows import DataError


def check_output(path: Path, key: str) -> None:
    """Find out now, not after minutes of work, whether a file can be written.

    Args:
        path: the file to be.
        key: the option that named it, for messages.

    Raises:
        DataError: another suffix than .jsonl and .parquet, or a place where nothing can be written.
    """
    if path.suffix not in ROW_SUFFIXES:
        raise DataError(f"{key} = {path}: the suffix {path.suffix!r} is not known; {' and '.join(ROW_SUFFIXES)} are")
    if path.is_dir():
        raise DataError(f"{key} = {path}: is a folder; name a file")
    aside = _aside(path)
    try:
        aside.touch()
        aside.unlink()
    except OSError as error:
        raise DataError(f"{key} = {path}: cannot be written: {error.strerror}") from error


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], key: str, types: Mapping[str, Any] | None = None) -> None:
    """Write rows in the format of the file's suffix.

    Args:
        path: the file.
        rows: plain values.
        key: the option that named it, for messages.
        types: pyarrow types of columns, which are there even without a row; pyarrow finds out the others.

    Raises:
        DataError: values that Parquet cannot hold in one column, or a failure to write.
    """
    if path.suffix == ".parquet":
        import pyarrow as pa

        try:
            table = pa.Table.from_pylist([dict(row) for row in rows], schema=_schema(rows, types or {}))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(f"{key} = {path}: a column holds values of several types ({error}); write .jsonl instead") from error
        write_table(path, table, key)
    else:
        write_lines(path, [json_line(row) for row in rows], key)


def write_lines(path: Path, lines: Sequence[bytes], key: str) -> None:
    """Write lines, each without its end of line.

    Raises:
        DataError: they cannot be written.
    """
    aside = _aside(path)
    try:
        aside.write_bytes(b"".join(line + b"\n" for line in lines))
        aside.rename(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise DataError(f"{key} = {path}: cannot be written: {error.strerror}") from error


def write_table(path: Path, table: Any, key: str) -> None:
    """Write a pyarrow table.

    Raises:
        DataError: it cannot be written.
    """
    import pyarrow.parquet as pq

    aside = _aside(path)
    try:
        pq.write_table(table, aside, compression="zstd")
        aside.rename(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise DataError(f"{key} = {path}: cannot be written: {error.strerror or error}") from error


def with_columns(source: Path, columns: Mapping[str, Sequence[Any]], renamed: Mapping[str, str], types: Mapping[str, Any]) -> Any:
    """A Parquet file's table, with its own types and metadata, and columns added.

    Args:
        source: the file.
        columns: what to add, one value a row.
        renamed: columns of the file -> the names that they get.
        types: pyarrow types of added columns; pyarrow finds out the others.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(source)
    table = table.drop_columns([name for name in renamed.values() if name in table.column_names])
    table = table.rename_columns([renamed.get(name, name) for name in table.column_names])
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values, type=types.get(name)))
    return table


def json_line(row: Mapping[str, Any]) -> bytes:
    r"""A row as one line of UTF-8; characters as they are, but for lone surrogates, which UTF-8 cannot hold. Dates and the like as text.

    >>> json_line({"answer": "½"}).decode(), json_line({"answer": "\ud800"}).decode()
    ('{"answer": "½"}', '{"answer": "\\ud800"}')
    """
    try:
        return json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return json.dumps(row, default=str).encode()


def _schema(rows: Sequence[Mapping[str, Any]], types: Mapping[str, Any]) -> Any:
    """Every column of any row, in the order in which they come up; pyarrow alone would take the first row's for all."""
    import pyarrow as pa

    names = [*dict.fromkeys(name for row in rows for name in row)] or list(types)
    return pa.schema([(name, types.get(name) or pa.array([row.get(name) for row in rows]).type) for name in names])


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.writing-{os.getpid()}")
