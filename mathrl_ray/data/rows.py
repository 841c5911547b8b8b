"""Rows of a data set, as they are: JSON lines, Parquet, or what the `datasets` library opens.

Called by problems.py and traces.py, and by the commands grade and check-data. Knows no column's meaning. A refusal names the recipe's
key (or the option), the file and what is wrong in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.config import RecipeError
from mathrl_ray.data.dataset_name import ROW_SUFFIXES, DatasetName, is_row_file, parse_dataset_name
from mathrl_ray.data.json_lines import MalformedLine, NumberedRow, is_other_unicode, json_rows

MOST_FAULTS_SHOWN = 5


class DataError(RecipeError):
    """A data set that cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What was read, and how to speak of it."""

    key: str
    """The recipe's key that named it."""
    source: str
    """As the recipe names it."""
    stem: str
    """With the line it makes an id for rows that have none: math_train in math_train:12, gsm8k/train in gsm8k/train:12."""
    numbered: list[NumberedRow]

    @property
    def columns(self) -> set[str]:
        return {column for _, row in self.numbered for column in row}

    @property
    def found(self) -> str:
        """The columns, for a message."""
        return ", ".join(sorted(self.columns))

    def refuse(self, faults: Sequence[str], remedy: str = "") -> None:
        """Raise when there are faults.

        Raises:
            DataError: how many there are, the first five, and the remedy.
        """
        if faults:
            raise DataError(_fault_message(self.key, self.source, faults, remedy))


def read_rows(spec: str, *, key: str, default_split: str, malformed: list[MalformedLine] | None = None) -> Rows:
    """Read all rows of a data set.

    Args:
        spec: a .jsonl or .parquet file, or NAME[:CONFIG][@REVISION][#SPLIT] for `datasets`, where NAME is on the hub or a folder.
        key: the recipe's key that named it.
        default_split: what SPLIT is when it is not named.
        malformed: is given the lines that are no JSON object; without it such lines are refused.

    Raises:
        FileNotFoundError: there is no such file or folder.
        DataError: another suffix, malformed lines (each with its number), no rows, or a name that cannot be fetched.
    """
    file = Path(spec)
    if is_row_file(spec) or file.is_file():
        rows = Rows(key, spec, file.stem, _read_file(file, key, malformed))
    else:
        name = parse_dataset_name(spec, key)
        split = name.split or default_split
        rows = Rows(key, spec, f"{Path(name.name).name}/{split}", _load_dataset(name, split, f"{key} = {spec}"))
    if not rows.numbered and not malformed:
        raise DataError(f"{key} = {spec}: it holds no rows")
    return rows


def _read_file(file: Path, key: str, malformed: list[MalformedLine] | None) -> list[NumberedRow]:
    if not file.is_file():
        raise FileNotFoundError(f"{key} = {file}: no such file")
    match file.suffix.lower():
        case ".jsonl":
            return _read_json_lines(file, key, malformed)
        case ".parquet":
            return _read_parquet(file, key)
        case _:
            raise DataError(f"{key} = {file}: the suffix {file.suffix!r} is not known; {' and '.join(ROW_SUFFIXES)} are")


def _read_parquet(file: Path, key: str) -> list[NumberedRow]:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:  # OSError: its beginning and end are right, and what is between is not
        raise DataError(f"{key} = {file}: no Parquet file, or a damaged one ({error})") from error
    try:
        return list(enumerate(table.to_pylist(), start=1))
    except ValueError as error:  # a text that is no UTF-8, a time to the nanosecond
        raise DataError(f"{key} = {file}: {_unreadable_value(table)}") from error


def _unreadable_value(table: Any) -> str:
    """The first value that is none in Python, in words. The columns are looked at one by one."""
    for name in table.column_names:
        for row, value in enumerate(table[name], start=1):
            try:
                value.as_py()
            except ValueError as error:
                return f"row {row}, column {name}: cannot be read ({error})"
    return "a value cannot be read"


def _read_json_lines(file: Path, key: str, malformed: list[MalformedLine] | None) -> list[NumberedRow]:
    data = file.read_bytes()
    if is_other_unicode(data):
        raise DataError(f"{key} = {file}: line 1: is UTF-16 or UTF-32; save the file as UTF-8")
    rows, faults = json_rows(data)
    if faults and malformed is None:
        raise DataError(_fault_message(key, str(file), [f"line {line}: {fault}" for line, fault in faults], ""))
    if malformed is not None:
        malformed += faults
    return rows


def _load_dataset(name: DatasetName, split: str, what: str) -> list[NumberedRow]:
    """Rows through the library, which keeps its own cache and obeys HF_HUB_OFFLINE."""
    if name.is_folder and not Path(name.name).is_dir():
        raise FileNotFoundError(f"{what}: no such file or folder")
    import datasets

    try:
        rows = datasets.load_dataset(name.name, name.config, split=split, revision=name.revision).to_list()
    except Exception as error:  # the library and its hub client raise many kinds; each means that the data is not to be had
        place = "cannot be read" if name.is_folder else "cannot be fetched from the hub"
        raise DataError(
            f"{what}: {place} (name {name.name}, config {name.config}, revision {name.revision}, split {split}): "
            f"{type(error).__name__}: {error}"
        ) from error
    return list(enumerate(rows, start=1))


def line_of(line: int, row_id: str) -> str:
    """Where a row is, for a message.

    >>> line_of(12, "gsm8k/train/7"), line_of(12, "")
    ('line 12 (id gsm8k/train/7)', 'line 12')
    """
    return f"line {line} (id {row_id})" if row_id else f"line {line}"


def _fault_message(key: str, source: str, faults: Sequence[str], remedy: str) -> str:
    shown = "\n  ".join(faults[:MOST_FAULTS_SHOWN])
    more = f"\n  and {len(faults) - MOST_FAULTS_SHOWN} more" if len(faults) > MOST_FAULTS_SHOWN else ""
    return f"{key} = {source}: {len(faults)} rows cannot be used\n  {shown}{more}" + (f"\n{remedy}" if remedy else "")
