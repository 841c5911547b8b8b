r"""From one row of a data set to a Problem: which column means what, and where a gold answer hides.

Called by problems.py and traces.py. Pure: rows in, records out.

    the file has                                   gold                              solution
    an answer column                               it                                the solution column, if any
    an answer column with `#### 72` (GSM8K)        behind the last ####, no commas   before it
    a solution column and no answer column (MATH)  its last \boxed{...}              the column
"""

import re
from collections.abc import Mapping
from typing import Any

from mathrl_ray.core.grading.extraction import last_single_box
from mathrl_ray.data.rows import DataError, Rows
from mathrl_ray.types import Problem

GOLD_COLUMNS = ("gold", "answer", "ground_truth", "expected_answer", "final_answer", "target")
COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "problem_id": ("problem_id", "id", "unique_id", "source"),
    "problem": ("problem", "question", "prompt", "query"),
    "gold": GOLD_COLUMNS,
    "level": ("level", "difficulty"),
    "subject": ("subject", "type", "category", "topic"),
    "solution": ("solution", "rationale"),
}
"""Our field and the names that files give it, the first that is found."""
REQUIRED = ("problem", "gold")
_GSM8K_MARK = "####"
_MOST_DIGITS_OF_A_LEVEL = 9
_THOUSANDS_COMMA = re.compile(r"(?<=[0-9]),(?=[0-9]{3})")


def column_names(rows: Rows, columns: Mapping[str, str]) -> dict[str, str]:
    r"""Our field -> the file's column, for the fields that the file has. Without a gold column, solutions with a box take its place.

    Args:
        rows: what was read.
        columns: the recipe's data.columns; it wins over the common names. Where a set does not have such a column, the common names of its
            field count: one mapping is for all sets of a recipe.

    Raises:
        DataError: no column for problem or gold, or data.columns names what is not there and no common name is either; the columns found
            are listed.
    """
    found = rows.columns
    if unknown := sorted(set(columns) - set(COLUMN_NAMES)):
        raise DataError(f"data.columns: {', '.join(unknown)} is no field of a problem; the fields are {', '.join(COLUMN_NAMES)}")
    mapped = {field: name for field, name in columns.items() if name in found}
    names = {field: next((name for name in common if name in found), "") for field, common in COLUMN_NAMES.items()} | mapped
    if names["problem_id"] == "source" and "problem_id" not in mapped and not _is_unique("source", rows):
        names["problem_id"] = ""  # many sets say in `source` where a problem is from, which is no id
    may_miss = {"gold"} if names["solution"] and _has_box(names["solution"], rows) else set()
    if absent := sorted(name for field, name in columns.items() if not names[field] and field not in may_miss):
        raise DataError(
            f"data.columns names {', '.join(absent)}, which {rows.source} ({rows.key}) does not have, nor a column of the common names; "
            f"found: {rows.found}"
        )
    for field in REQUIRED:
        if not names[field] and field not in may_miss:
            raise DataError(
                f"{rows.key} = {rows.source}: no column for {field} (looked for {', '.join(COLUMN_NAMES[field])}); found: {rows.found}. "
                f'Name it: data.columns = {{{field} = "..."}}'
            )
    return {field: name for field, name in names.items() if name}


def _is_unique(column: str, rows: Rows) -> bool:
    values = [text(row.get(column)) for _, row in rows.numbered]
    return len(set(values)) == len(values) and "" not in values


def _has_box(column: str, rows: Rows) -> bool:
    return any(last_single_box(text(row.get(column))) for _, row in rows.numbered)


def problem_of(row: Mapping[str, Any], names: Mapping[str, str], default_id: str) -> Problem:
    """The row as a record; `names` is from `column_names`. An empty gold stays empty: the caller decides about bad rows."""
    values = {field: row.get(name) for field, name in names.items()}
    solution = text(values.get("solution"))
    gold, working = gold_and_solution(text(values.get("gold"))) if "gold" in names else (last_single_box(solution) or "", "")
    used = set(names.values())
    return Problem(
        problem_id=text(values.get("problem_id")) or default_id,
        problem=text(values["problem"]),
        gold=gold,
        level=_level(values.get("level")),
        subject=text(values.get("subject")) or None,
        solution=solution or working or None,
        extra={column: value for column, value in row.items() if column not in used},
    )


def gold_and_solution(answer: str) -> tuple[str, str]:
    r"""A raw GSM8K answer in its two parts; any other answer is all gold.

    The comma of 1,080 goes, which no other data set writes in a gold.

    >>> gold_and_solution("48/2 = 24 clips\n#### 1,080")
    ('1080', '48/2 = 24 clips')
    """
    working, mark, gold = answer.rpartition(_GSM8K_MARK)
    return (_THOUSANDS_COMMA.sub("", gold.strip()), working.strip()) if mark else (answer, "")


def text(value: Any) -> str:
    """ "" for a missing value: null, and the NaN that Parquet files have in its place."""
    return "" if value is None or value != value else str(value)


def _level(value: Any) -> int | None:
    """3 from 3, 3.0 and "Level 3"; None where there is no number ("Level ?")."""
    digits = text(value).lower().removeprefix("level").strip().removesuffix(".0")
    return int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS_OF_A_LEVEL else None
