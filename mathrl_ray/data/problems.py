"""Problems and traces from files, with every bad row named.

Called by stages/inputs.py. Reads JSON lines and Parquet; knows no tokenizer and no engine. A refusal says which key names the file, which
lines are wrong, and what would do.
"""

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.config import BUILTIN
from mathrl_ray.core.sampling import epoch_order
from mathrl_ray.data.arithmetic import Split, make_problems
from mathrl_ray.types import Problem

COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "problem_id": ("problem_id", "id", "unique_id", "source"),
    "problem": ("problem", "question", "prompt"),
    "gold": ("gold", "answer", "ground_truth", "final_answer"),
    "level": ("level",),
    "subject": ("subject", "type"),
    "solution": ("solution",),
}
"""Our field and the names that files give it, the first that is found."""
REQUIRED = ("problem", "gold")
MOST_FAULTS_SHOWN = 5


class DataError(ValueError):
    """A file that cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class SftRow:
    """One trace: a full prompt text and the response that is learned."""

    problem_id: str
    prompt: str
    response: str


def load_split(spec: str, *, split: Split, num_problems: int, seed: int, key: str, columns: Mapping[str, str]) -> list[Problem]:
    """The problems that `key` of a recipe names: made (builtin:arithmetic) or read, at most `num_problems`.

    Which ones of a larger file follows from `seed`; they keep the file's order.

    Raises:
        DataError, FileNotFoundError: as `load_problems`.
    """
    if spec == BUILTIN:
        return make_problems(split, num_problems, seed)
    problems = load_problems(spec, key=key, columns=columns)
    chosen = sorted(epoch_order(len(problems), seed, 0)[:num_problems])
    return [problems[index] for index in chosen]


def load_problems(path: str, *, key: str = "data.test", columns: Mapping[str, str] | None = None) -> list[Problem]:
    """Read a .jsonl or .parquet file of problems.

    Args:
        path: the file.
        key: the recipe's key that named it, for messages.
        columns: our field -> the file's column, where the common names do not fit.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: another suffix, an empty file, a row that cannot be used (with its line), two rows with one id, a missing column.
    """
    file = Path(path)
    rows = list(_read_rows(file, key))
    names = _column_names(file, key, columns or {}, rows)
    faults: list[str] = []
    problems: list[Problem] = []
    for line, row in rows:
        problem = _problem(row, names, default_id=f"{file.stem}:{line}")
        faults += [f"line {line}: {field} is empty" for field in REQUIRED if not getattr(problem, field).strip()]
        faults += [f"line {line}: {field} is a list or an object" for field in REQUIRED if isinstance(row.get(names[field]), list | dict)]
        problems.append(problem)
    faults += _duplicates([problem.problem_id for problem in problems], [line for line, _ in rows])
    _refuse(file, key, faults)
    return problems


def load_traces(path: str, *, key: str = "sft.traces") -> list[SftRow]:
    """Read a .jsonl or .parquet file of {"prompt", "response"} rows, where the prompt is the full text (A5's sft.jsonl).

    Raises:
        FileNotFoundError, DataError: as `load_problems`.
    """
    file = Path(path)
    rows = list(_read_rows(file, key))
    missing = sorted({"prompt", "response"} - {column for _, row in rows for column in row})
    if missing:
        raise DataError(f"{key} = {file}: no column {' and '.join(missing)}; found: {_found(rows)}")
    faults = [
        f"line {line}: {field} is empty" for line, row in rows for field in ("prompt", "response") if not _text(row.get(field)).strip()
    ]
    _refuse(file, key, faults)
    return [SftRow(_text(row.get("id")) or f"{file.stem}:{line}", _text(row["prompt"]), _text(row["response"])) for line, row in rows]


def _read_rows(file: Path, key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row) of each row; the lines of a Parquet file are its row numbers, from 1."""
    if not file.is_file():
        raise FileNotFoundError(f"{key} = {file}: no such file")
    match file.suffix:
        case ".jsonl":
            rows = _read_json_lines(file, key)
        case ".parquet":
            rows = _read_parquet(file, key)
        case suffix:
            raise DataError(f"{key} = {file}: the suffix {suffix!r} is not known; .jsonl and .parquet are")
    if not rows:
        raise DataError(f"{key} = {file}: the file holds no rows")
    yield from rows


def _read_parquet(file: Path, key: str) -> list[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        return list(enumerate(pq.read_table(file).to_pylist(), start=1))
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{key} = {file}: no Parquet file ({error})") from error


def _read_json_lines(file: Path, key: str) -> list[tuple[int, dict[str, Any]]]:
    rows, faults = [], []
    for line, raw in enumerate(file.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        text = raw.decode("utf-8", errors="replace").strip()
        if not text:
            continue
        try:
            row = json.loads(raw)
        except UnicodeDecodeError:
            faults.append(f"line {line}: not UTF-8: {text[:80]}")
            continue
        except json.JSONDecodeError as error:
            faults.append(f"line {line}: no JSON ({error.msg}): {text[:80]}")
            continue
        if isinstance(row, dict):
            rows.append((line, row))
        else:
            faults.append(f"line {line}: no JSON object: {text[:80]}")
    _refuse(file, key, faults)
    return rows


def _column_names(file: Path, key: str, columns: Mapping[str, str], rows: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, str]:
    """Our field -> the file's column, for the fields that the file has."""
    if unknown := sorted(set(columns) - set(COLUMN_NAMES)):
        raise DataError(f"data.columns: {', '.join(unknown)} is no field of a problem; the fields are {', '.join(COLUMN_NAMES)}")
    found = {column for _, row in rows for column in row}
    if absent := sorted(set(columns.values()) - found):
        raise DataError(f"data.columns names {', '.join(absent)}, which {file} ({key}) does not have; found: {_found(rows)}")
    names = {field: next((name for name in common if name in found), "") for field, common in COLUMN_NAMES.items()} | dict(columns)
    for field in REQUIRED:
        if not names[field]:
            raise DataError(
                f"{key} = {file}: no column for {field} (looked for {', '.join(COLUMN_NAMES[field])}); found: {_found(rows)}. "
                f'Name it: data.columns = {{{field} = "..."}}'
            )
    return {field: name for field, name in names.items() if name}


def _problem(row: Mapping[str, Any], names: Mapping[str, str], default_id: str) -> Problem:
    values = {field: row.get(name) for field, name in names.items()}
    used = set(names.values())
    return Problem(
        problem_id=_text(values.get("problem_id")) or default_id,
        problem=_text(values["problem"]),
        gold=_text(values["gold"]),
        level=_level(values.get("level")),
        subject=_text(values.get("subject")) or None,
        solution=_text(values.get("solution")) or None,
        extra={column: value for column, value in row.items() if column not in used},
    )


def _text(value: Any) -> str:
    """ "" for a missing value: null, and the NaN that Parquet files have in its place."""
    return "" if value is None or value != value else str(value)


def _level(value: Any) -> int | None:
    """3 from 3, 3.0 and "Level 3"; None where there is no number ("Level ?")."""
    digits = _text(value).lower().removeprefix("level").strip().removesuffix(".0")
    return int(digits) if digits.isdecimal() else None


def _duplicates(problem_ids: Sequence[str], lines: Sequence[int]) -> list[str]:
    first: dict[str, int] = {}
    faults = []
    for problem_id, line in zip(problem_ids, lines, strict=True):
        if problem_id in first:
            faults.append(f"lines {first[problem_id]} and {line} both have the id {problem_id!r}")
        first.setdefault(problem_id, line)
    return faults


def _found(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    return ", ".join(sorted({column for _, row in rows for column in row}))


def _refuse(file: Path, key: str, faults: Sequence[str]) -> None:
    if not faults:
        return
    shown = "\n  ".join(faults[:MOST_FAULTS_SHOWN])
    more = f"\n  and {len(faults) - MOST_FAULTS_SHOWN} more" if len(faults) > MOST_FAULTS_SHOWN else ""
    raise DataError(f"{key} = {file}: {len(faults)} rows cannot be used\n  {shown}{more}")
