"""The evaluations of run directories: which file is meant, and its rows.

Called by compare.py and analyse.py. Knows the names that driver/evaluation.py gives, <stage>[-<prompt_name>]-v<policy_version>.parquet, and
the columns of driver/rows.py. Validations (validation-<stage>-...) are found by their path only.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from mathrl_ray.core.one_line import one_line
from mathrl_ray.core.paired_evaluations import Evaluation
from mathrl_ray.driver.rows import EVALUATION_SCHEMA
from mathrl_ray.sections import StageName

_NEWER_COLUMNS = {"graders", "lenient_answer_correct"}
"""Files of older versions lack these, and every reader does without: analyse asks the grader where the second is missing."""
_FILE = re.compile(r"(?P<start>.+)-v(?P<version>\d+)\.parquet")


def evaluation_of(run: Path, stage: str, prompt: str = "") -> Path:
    """The file of a stage's newest weights.

    Args:
        run: a run directory, or a .parquet file, which is meant itself.
        stage: its name; "" for the last stage that has one.
        prompt: the name of a prompt of eval.prompts; "" for the first, which gives a stage's figures.

    Raises:
        ValueError: no such folder, or it holds no such evaluation; the message lists those that it holds.
    """
    if run.is_file():
        return run
    stage = stage or stages_of(run)[-1]
    wanted = f"{stage}-{prompt}" if prompt else stage
    found = [(version, path) for start, version, path in _evaluations(run) if start == wanted]
    if not found and prompt:  # the first prompt's file does not name it
        found = [(version, path) for start, version, path in _evaluations(run) if start == stage and prompt_name_of(path) == prompt]
    if not found:
        told = f"{stage} with the prompt {prompt}" if prompt else stage
        raise ValueError(f"{run}: holds no evaluation of {told}; {_held(run)}")
    return max(found)[1]


def stages_of(run: Path) -> list[StageName]:
    """The stages that have an evaluation, in a study's order.

    Raises:
        ValueError: no such folder, or no evaluation in it.
    """
    if stages := stages_in(run):
        return stages
    raise ValueError(f"{run}: {_held(run)}; a stage writes one at its end, so let one finish first")


def stages_in(run: Path) -> list[StageName]:
    """The same, and none where there is none."""
    starts = {start for start, _, _ in _evaluations(run)}
    return [stage for stage in get_args(StageName) if stage in starts]


def prompts_of(run: Path, stage: str) -> list[Path]:
    """The files of a stage's newest weights, one a prompt: the first prompt's first, the others by name.

    Raises:
        ValueError: the run holds no evaluation of that stage.
    """
    first = evaluation_of(run, stage)
    version = _version(first)
    others = [path for start, held, path in _evaluations(run) if start.startswith(f"{stage}-") and held == version]
    return [first, *sorted(others)]


def read_evaluation(path: Path, name: str = "") -> Evaluation:
    """Its rows.

    Args:
        path: a file.
        name: what to call it; default: run/stage-v3.

    Raises:
        ValueError: no Parquet, a column that is missing, or no row.
        FileNotFoundError: there is no such file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: cannot be read as Parquet ({error})") from error
    missing = set(EVALUATION_SCHEMA.names) - _NEWER_COLUMNS - set(table.column_names)
    if missing:
        raise ValueError(f"{path}: is no evaluation of a run: the columns {', '.join(sorted(missing))} are missing")
    rows: list[dict[str, Any]] = table.to_pylist()
    if not rows:
        raise ValueError(f"{path}: holds no row")
    return Evaluation(name or name_of(path), rows)


def name_of(path: Path) -> str:
    """
    >>> name_of(Path("mathrl_runs/short/evaluations/grpo-v50.parquet"))
    'short/grpo-v50'
    """
    folder = path.resolve().parent
    return f"{folder.parent.name}/{path.stem}" if folder.name == "evaluations" else path.stem


def stage_of(path: Path) -> StageName | None:
    """The stage that a file's name says, also of a validation.

    >>> stage_of(Path("validation-sft_filtered-step10-v1.parquet")), stage_of(Path("grpo-chat-v50.parquet")), stage_of(Path("mine.parquet"))
    ('sft_filtered', 'grpo', None)
    """
    word = re.split("[-.]", path.name.removeprefix("validation-"))[0]
    return next((stage for stage in get_args(StageName) if stage == word), None)


def prompt_name_of(path: Path) -> str:
    import pyarrow.parquet as pq

    names = pq.read_table(path, columns=["prompt_name"]).column(0).to_pylist()
    return str(names[0]) if names else ""


def _version(path: Path) -> int:
    found = _FILE.fullmatch(path.name)
    return int(found["version"]) if found else 0


def _evaluations(run: Path) -> Iterator[tuple[str, int, Path]]:
    """(what stands before the version, version, file) of each."""
    if not run.is_dir():
        raise ValueError(f"{run}: no such run directory (or .parquet file)")
    if sweep := runs_of_sweep(run):
        raise ValueError(sweep)
    if not (run / "evaluations").is_dir():
        raise ValueError(f"{run}: holds no folder evaluations, so it is no run directory; a run's is <run.root>/<run.name>")
    for path in sorted((run / "evaluations").iterdir()):
        if found := _FILE.fullmatch(path.name):
            yield found["start"], int(found["version"]), path


def runs_of_sweep(run: Path) -> str:
    """What to say of a study over seeds or a sweep where one run is wanted; "" where it is none."""
    if not (run / "sweep.json").is_file():
        return ""
    try:
        variants = json.loads((run / "sweep.json").read_text(encoding="utf-8"))["variants"]
        folders = [str(run.parent / variant["folder"]) for variant in variants if variant["folder"]]
    except (json.JSONDecodeError, KeyError, TypeError):
        folders = []  # compare says what is wrong with the file
    named = f": {', '.join(map(one_line, folders))}" if folders else ", and none has begun"
    return f"{run}: is a study over seeds or a sweep, which has a run each; name one of its runs{named}"


def _held(run: Path) -> str:
    names = [path.name for start, _, path in _evaluations(run) if not start.startswith("validation-")]
    return f"it holds {', '.join(map(one_line, names))}" if names else "it holds no evaluation"
