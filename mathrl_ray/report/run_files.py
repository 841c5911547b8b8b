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


def rows_of(path: Path, warnings: list[str]) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; none where there is no file. A last line without its end is being written, and is left out silently;
    another line that is no object is left out with a word."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    rows, num_bad = [], 0
    for line in lines[:-1]:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            num_bad += bool(line.strip())
    if num_bad:
        warnings.append(f"{path.name}: {num_bad} {'line is' if num_bad == 1 else 'lines are'} damaged and left out")
    return rows


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


def superseded_rows(run: Path, warnings: list[str]) -> list[dict[str, Any]]:
    """Rows of metrics that a rollback or a resumed run has moved aside, the earliest first."""
    folders = sorted(run.glob("superseded-*"), key=lambda path: (len(path.name), path.name))
    return [row for folder in folders for row in rows_of(folder / "metrics.jsonl", warnings)]


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
