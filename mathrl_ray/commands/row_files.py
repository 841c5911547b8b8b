"""Files of rows as the commands write them: whole or not at all, every column as it was.

Called by grade.py and check_data.py. Knows JSON lines and Parquet; knows no column's meaning.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl_ray.commands.parquet_table import table_of
from mathrl_ray.data.dataset_name import ROW_SUFFIXES, is_row_file, parse_dataset_name
from mathrl_ray.data.json_lines import NumberedRow
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


def check_not_an_input(paths: Iterable[Path], inputs: Iterable[str], key: str) -> None:
    """Refuse to overwrite what is read. Links are followed; a folder of data counts with all that it holds.

    Args:
        paths: the files to be.
        inputs: files, folders and names of data sets.
        key: the option that named the outputs, for messages.

    Raises:
        DataError: one of the paths is one of the inputs, or exists inside of one.
    """
    read = {_local(spec, key): spec for spec in inputs if spec}
    for path in paths:
        place = path.resolve()
        for each in (place, *(place.parents if place.exists() else ())):
            if each in read:
                raise DataError(f"{key} = {path}: would overwrite {read[each]}, which is read; name another file")


def _local(spec: str, key: str) -> Path:
    """Where a data set is, if it is on this machine; a hub's name becomes a path that is nowhere."""
    if is_row_file(spec) or Path(spec).exists():
        return Path(spec).resolve()
    return Path(parse_dataset_name(spec, key).name).resolve()


def write_rows(path: Path, rows: Sequence[NumberedRow], key: str, source: str, types: Mapping[str, Any] | None = None) -> None:
    """Write rows in the format of the file's suffix.

    Args:
        path: the file.
        rows: plain values, with their lines.
        key: the option that named it, for messages.
        source: where the rows are from, for messages.
        types: as in `table_of`.

    Raises:
        DataError: values that Parquet cannot hold, or a failure to write.
    """
    if path.suffix == ".parquet":
        write_table(path, table_of(rows, source, f"{key} = {path}", types), key)
    else:
        write_lines(path, [json_line(row) for _, row in rows], key)


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


def json_line(row: Mapping[str, Any]) -> bytes:
    r"""A row as one line of UTF-8; characters as they are, but for lone surrogates, which UTF-8 cannot hold. Dates and the like as text.

    >>> json_line({"answer": "½"}).decode(), json_line({"answer": "\ud800"}).decode()
    ('{"answer": "½"}', '{"answer": "\\ud800"}')
    """
    try:
        return json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return json.dumps(row, default=str).encode()


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.writing-{os.getpid()}")
