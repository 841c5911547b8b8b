"""Problems from a data set, with every bad row named.

Called by splits.py, and by whoever wants the problems of one file. Knows no tokenizer and no engine. A refusal says which key names the
data, which lines are wrong, and what would do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mathrl_ray.data.columns import REQUIRED, column_names, problem_of, text
from mathrl_ray.data.rows import Rows, line_of, read_rows
from mathrl_ray.types import Problem

BadRows = Literal["refuse", "drop"]
_REMEDY = 'Correct these rows, or set data.bad_rows = "drop" to leave them out.'


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no use as a problem."""

    line: int
    problem_id: str
    fault: str
    """In words, with the line."""
    refusal: str
    """The same with the row's id, where it has one of its own, for a list that does not begin with ids."""


def load_problems(
    spec: str, *, key: str = "data.test", columns: Mapping[str, str] | None = None, default_split: str = "train"
) -> list[Problem]:
    """`read_problems`, refusing bad rows."""
    return read_problems(spec, key=key, columns=columns or {}, bad_rows="refuse", default_split=default_split)[0]


def read_problems(
    spec: str, *, key: str, columns: Mapping[str, str], bad_rows: BadRows, default_split: str
) -> tuple[list[Problem], list[str]]:
    """The problems of a data set, and remarks for a person on what was left out.

    A row is bad when its problem or its gold is empty or no plain value, or when an earlier row has its id or its text.

    Args:
        spec: a file, a folder or a hub name (rows.py).
        key: the recipe's key that named it, for messages.
        columns: our field -> the file's column, where the common names do not fit.
        bad_rows: refuse, or drop and name every id in the remarks.
        default_split: of a folder or a hub name that names none.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: what cannot be read, a missing column, bad rows that are refused, or nothing but bad rows.
    """
    rows = read_rows(spec, key=key, default_split=default_split)
    names = column_names(rows, columns)
    problems, bad = _sort_out(rows, names)
    if bad and (bad_rows == "refuse" or not problems):
        rows.refuse([row.refusal for row in bad], remedy=_REMEDY if problems else "")
    ids = ", ".join(f"{row.problem_id} ({row.fault})" for row in bad)
    left_out = [f'{key}: {len(bad)} rows left out (data.bad_rows = "drop"): {ids}'] if bad else []
    return problems, [*_stand_ins(rows, columns, names), *left_out]


def _stand_ins(rows: Rows, columns: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """A remark for each field that this set has under a common name instead of the one in data.columns."""
    return [
        f"{rows.key}: it has no column {mapped}, which data.columns names for {field}; {names.get(field, 'the box in solutions')} is used"
        for field, mapped in columns.items()
        if mapped not in rows.columns
    ]


def _sort_out(rows: Rows, names: Mapping[str, str]) -> tuple[list[Problem], list[BadRow]]:
    """Good rows as problems, bad ones with their first fault."""
    problems: list[Problem] = []
    bad: list[BadRow] = []
    seen_ids: dict[str, int] = {}
    seen_texts: dict[str, str] = {}
    for line, row in rows.numbered:
        problem = problem_of(row, names, default_id=f"{rows.stem}:{line}")
        own_fault = _own_fault(row, names, problem)
        fault = f"line {line}: {own_fault}" if own_fault else ""
        refusal = f"{line_of(line, text(row.get(names.get('problem_id', ''))))}: {own_fault}" if own_fault else ""
        if not fault and problem.problem_id in seen_ids:
            fault = f"lines {seen_ids[problem.problem_id]} and {line} both have the id {problem.problem_id!r}"
        elif not fault and problem.problem.strip() in seen_texts:
            fault = f"line {line}: {problem.problem_id} has the same text as {seen_texts[problem.problem.strip()]}"
        if fault:
            bad.append(BadRow(line, problem.problem_id, fault, refusal or fault))
        else:
            problems.append(problem)
        seen_ids.setdefault(problem.problem_id, line)
        seen_texts.setdefault(problem.problem.strip(), problem.problem_id)
    return problems, bad


def _own_fault(row: Mapping[str, Any], names: Mapping[str, str], problem: Problem) -> str:
    """What makes a row bad by itself; "" for nothing."""
    values: Sequence[tuple[str, Any, str]] = [(field, row.get(names.get(field, "")), getattr(problem, field)) for field in REQUIRED]
    for field, value, found in values:
        if isinstance(value, list | dict):
            return f"{field} is a list or an object"
        if not found.strip():
            return f"{field} is empty" + ("" if field in names else f", since {names['solution']} holds no complete box")
    return ""
