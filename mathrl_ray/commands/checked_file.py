"""One file that `check-data` looks at: its rows as problems, and which of them are bad for which reasons.

Called by check_data.py and clean_files.py. Reads the file; judges nothing itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl_ray.data.columns import REQUIRED, column_names, problem_of
from mathrl_ray.data.gold_lint import REMARKS, Fault
from mathrl_ray.data.json_lines import MalformedLine
from mathrl_ray.data.rows import DataError, Rows, read_rows
from mathrl_ray.types import Problem

KEY = "check-data"


@dataclass(slots=True)
class CheckedFile:
    """Made by `read_checked`; `bad` fills while the file is checked."""

    spec: str
    """As it was named on the command line."""
    name: str
    """For messages and for the file of its good rows; the shortest that tells the files apart."""
    rows: Rows
    problems: list[Problem]
    """One a row that can be one, in their order."""
    lines: dict[int, int]
    """id() of a problem -> its line."""
    unusable: list[tuple[int, str, str]]
    """(line, id, reason) of lines that are no problem: no JSON, a list where a text belongs."""
    bad: dict[int, list[str]] = field(default_factory=dict)
    """line -> why its row is left out of the good ones."""

    @property
    def num_rows(self) -> int:
        return len(self.problems) + len(self.unusable)

    def mark(self, problem: Problem, reason: str) -> None:
        self.bad.setdefault(self.lines[id(problem)], []).append(reason)

    def has(self, problem: Problem) -> bool:
        return id(problem) in self.lines

    def ids(self) -> dict[int, str]:
        """line -> the id of its row. Goes through all rows: ask once for a file, not once for a row."""
        good = {self.lines[id(problem)]: problem.problem_id for problem in self.problems}
        return good | {line: problem_id for line, problem_id, _ in self.unusable}


def read_checked(spec: str, name: str, columns: Mapping[str, str]) -> CheckedFile:
    """Read a file, whatever its rows hold.

    Args:
        spec: a .jsonl or .parquet file, or a name for `datasets`.
        name: for messages.
        columns: our field -> the file's column, where the common names do not fit.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: what cannot be read at all, or has no column for problem or gold.
    """
    malformed: list[MalformedLine] = []
    rows = read_rows(spec, key=KEY, default_split="train", malformed=malformed)
    try:
        names = column_names(rows, columns) if rows.numbered else {}
    except DataError as error:
        raise DataError(f"{error} (here: --columns FIELD=COLUMN)") from error
    problems, lines = [], {}
    unusable = [(line, f"{rows.stem}:{line}", f"no row: {what}") for line, what in malformed]
    for line, row in rows.numbered:
        problem = problem_of(row, names, default_id=f"{rows.stem}:{line}")
        if reason := _no_text(row, names):
            unusable.append((line, problem.problem_id, reason))
        else:
            problems.append(problem)
            lines[id(problem)] = line
    return CheckedFile(spec, name, rows, problems, lines, sorted(unusable), {line: [reason] for line, _, reason in sorted(unusable)})


def _no_text(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    used = [names[required] for required in REQUIRED if required in names]
    wrong = [name for name in used if isinstance(row.get(name), list | dict)]
    return f"{' and '.join(wrong)} is a list or an object" if wrong else ""


def short_names(specs: Iterable[str]) -> dict[str, str]:
    """Each file's own name, or all of what was typed where two have the same.

    >>> short_names(["a/train.jsonl", "a/test.jsonl"]), short_names(["a/x.jsonl", "b/x.jsonl"])
    ({'a/train.jsonl': 'train.jsonl', 'a/test.jsonl': 'test.jsonl'}, {'a/x.jsonl': 'a/x.jsonl', 'b/x.jsonl': 'b/x.jsonl'})
    """
    names = {spec: Path(spec).name for spec in specs}
    taken = list(names.values())
    return {spec: spec if taken.count(name) > 1 else name for spec, name in names.items()}


def mark_bad(files: Iterable[CheckedFile], fault: Fault) -> None:
    """Say which rows a fault costs: the row itself; of duplicates all but the first; of an overlap those of every file but the last.

    A row's reason names one that it is like and not all, or the reasons of n equal rows would hold n * n ids. Remarks cost
    no row.
    """
    if fault.kind in REMARKS:
        return
    owners = [(problem, next(file for file in files if file.has(problem))) for problem in fault.problems]
    stays = fault.problem_ids[0]
    match fault.kind:
        case "duplicate":
            owners = owners[1:]
        case "overlap":
            last = owners[-1][1]
            stays = next(problem.problem_id for problem, file in owners if file is last)
            owners = [(problem, file) for problem, file in owners if file is not last]
    for problem, file in owners:
        file.mark(problem, f"{fault.kind}: {fault.reason}" + (f" (like {stays})" if len(fault.problem_ids) > 1 else ""))
