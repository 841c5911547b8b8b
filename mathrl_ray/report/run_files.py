"""Files of a run directory, read as far as they are whole: JSON lines, JSON, TOML; and whether a job is writing there.

Called by run_data.py. Knows names and formats. Changes nothing, and takes no lock: a job that is about to begin must not find one.
"""

import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from mathrl_ray.sections import StageName

FRESH_S = 60.0
"""A file that was written to so lately is still being written to, as far as one can tell from elsewhere."""
_STAGES = "|".join(get_args(StageName))
_EVALUATION = re.compile(rf"(?P<stage>{_STAGES})(?:-(?P<prompt>.+))?-v(?P<version>\d+)\.parquet")
_VALIDATION = re.compile(rf"validation-(?P<stage>{_STAGES})(?:-[^-]+)?-step(?P<step>\d+)-v\d+\.parquet")


Object = dict[str, Any]


def rows_of(path: Path, is_whole: Callable[[Object], bool], warnings: list[str]) -> list[Object]:
    """The rows of a JSON-lines file; none where there is no file. A last line without its end is being written, and is left out silently;
    another line that is no object, or not `is_whole`, is left out with a word."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return whole_of([_parsed(line) for line in lines[:-1] if line.strip()], is_whole, warnings, path.name, "lines")


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def whole_of(given: Any, is_whole: Callable[[Object], bool], warnings: list[str], file: str, what: str) -> list[Object]:
    """The objects of a list that are whole; with a word where others are left out, or where it is no list."""
    entries = given if isinstance(given, list) else [given]
    found = [each for each in entries if isinstance(each, dict) and is_whole(each)]
    if num_bad := len(entries) - len(found):
        warnings.append(f"{file}: {num_bad} of {len(entries)} {what} {'is' if num_bad == 1 else 'are'} damaged and left out")
    return found


def is_metrics_row(row: Object) -> bool:
    return isinstance(row.get("stage"), str) and type(row.get("step")) is int and _are_numbers(row.get("time_s", 0))


def is_guard_event(row: Object) -> bool:
    """Also one of a kind that is not known here."""
    changes = row.get("changes", {})
    return (
        isinstance(row.get("kind"), str)
        and is_metrics_row(row)
        and _are_numbers(*(row[key] for key in ("value", "limit") if row.get(key) is not None))
        and (row["kind"] != "rollback" or type(row.get("to_step")) is int)
        and isinstance(changes, dict)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in changes.values())
    )


def is_stage_entry(entry: Object) -> bool:
    """Of summary.json, as far as every stage that has ended has it; NaN is a number: where nothing could be graded."""
    interval = entry.get("ci95")
    return (
        isinstance(entry.get("name"), str)
        and _are_numbers(*(entry.get(key) for key in ("accuracy", "num_problems", "num_ungraded")))
        and isinstance(interval, list)
        and len(interval) == 2
        and _are_numbers(*interval)
    )


def is_comparison(entry: Object) -> bool:
    """Of two stages; one that could not be compared has no difference."""
    counts, tokens = [entry.get(key) or 0 for key in ("gained", "lost")], entry.get("generated_tokens", {})
    figures = [entry.get(key) for key in ("difference", "low", "high", "num_problems", "p_value")]
    names = [entry.get(key) for key in ("first", "second", "test")]
    is_told = all(isinstance(name, str) for name in names) and _are_numbers(*figures, *counts)
    return ("difference" not in entry or is_told) and isinstance(tokens, dict) and _are_numbers(*tokens.values())


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def object_of(path: Path, warnings: list[str], parse: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """What a JSON (or TOML) file holds; {} where there is none, and with a word where it is damaged."""
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:  # a bad escape or byte too
        warnings.append(f"{path.name} is damaged, and what it holds is left out: {error}")
        return {}
    if not isinstance(content, dict):
        warnings.append(f"{path.name} is damaged, and what it holds is left out: an object is wanted")
        return {}
    return content


def toml_of(path: Path, warnings: list[str]) -> dict[str, Any]:
    return object_of(path, warnings, tomllib.loads)


def evaluation_files(run: Path, stage: str) -> list[tuple[int, str, Path]]:
    """(policy_version, prompt or "" for the first one, file) of each final evaluation of a stage; rising, the first prompt's first."""
    found = ((_EVALUATION.fullmatch(path.name), path) for path in _parquet(run))
    return sorted((int(each["version"]), each["prompt"] or "", path) for each, path in found if each and each["stage"] == stage)


def validation_files(run: Path, stage: str) -> list[Path]:
    """Those of a stage, by step."""
    found = ((_VALIDATION.fullmatch(path.name), path) for path in _parquet(run))
    return [path for _, path in sorted((int(each["step"]), path) for each, path in found if each and each["stage"] == stage)]


def _parquet(run: Path) -> Iterator[Path]:
    yield from (run / "evaluations").glob("[!.]*.parquet")


def superseded_rows(run: Path, warnings: list[str]) -> dict[str, list[Object]]:
    """Rows of metrics that rollbacks and resumed runs have moved aside, by the folder where they are, the earliest first."""
    folders = sorted(run.glob("superseded-*"), key=lambda path: (len(path.name), path.name))
    return {folder.name: rows_of(folder / "metrics.jsonl", is_metrics_row, warnings) for folder in folders}


def is_locked(run: Path) -> bool:
    """Whether a job of this machine has the run's lock; one of another machine, or of another container, is not seen."""
    try:
        return lock_name((run / ".lock").stat()) in _locks()
    except OSError:  # a run that was copied without it, or a system without such a list
        return False


def is_fresh_file(path: Path) -> bool:
    """Whether it was written to within the last minute: by a job elsewhere, if none here has the lock."""
    try:
        return time.time() - path.stat().st_mtime < FRESH_S
    except OSError:
        return False


def lock_name(lock: os.stat_result) -> str:
    """As /proc/locks writes it."""
    return f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"


def _locks() -> Sequence[str]:
    """Every file that a process of this machine has locked; Linux alone can tell without taking a lock."""
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return [word for line in lines if " FLOCK " in line for word in line.split() if word.count(":") == 2]
