"""What a run directory holds, finished or at work: its settings, its rows of metrics, and which Parquet file is of what.

Called by show.py and replay.py. Knows the names that the recorder and the evaluations give (driver/superseded.py lists them all). Each
Parquet file appears whole; a run at work may move one aside between two looks, and its last row of metrics may be half there.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mathrl_ray.commands.evaluation_files import runs_of_sweep
from mathrl_ray.config import Recipe
from mathrl_ray.driver.superseded import row_of
from mathrl_ray.sections import StageName

Kind = Literal["trajectories", "validation", "evaluation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
STAGES = get_args(StageName)
_STAGE = f"(?P<stage>{'|'.join(STAGES)})"
_TRAJECTORIES = re.compile(rf"{_STAGE}-(?P<step>\d+)\.parquet")
_VALIDATION = re.compile(rf"validation-{_STAGE}(?:-(?P<part>[^-]+))?-step(?P<step>\d+)-v(?P<version>\d+)\.parquet")
_EVALUATION = re.compile(rf"{_STAGE}(?:-(?P<part>.+))?-v(?P<version>\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class SampleFile:
    """One Parquet file with responses.

    Example: SampleFile(Path("run/evaluations/validation-grpo-step10-v10.parquet"), "validation", "grpo", 10, 10)
    """

    path: Path
    kind: Kind
    stage: str
    step: int | None
    """None of an evaluation, which is made after the stage's last step."""
    version: int | None
    """The policy_version that an evaluation is of; of trajectories each row says it."""
    part: str = ""
    """Which of a stage's trainings, or which further prompt."""

    @property
    def order(self) -> tuple[int, bool, int, int, str]:
        """The order in which a run writes them: by stage and step; a validation behind its step, an evaluation at the end of its stage."""
        return (STAGES.index(self.stage), self.step is None, self.step or 0, KINDS.index(self.kind), self.part)

    @property
    def title(self) -> str:
        """
        >>> SampleFile(Path("x.parquet"), "validation", "grpo", 10, 9).title
        'grpo, validation after step 10'
        """
        part = f" ({self.part})" if self.part else ""
        match self.kind:
            case "trajectories":
                return f"{self.stage} step {self.step}"
            case "validation":
                return f"{self.stage}{part}, validation after step {self.step}"
            case "evaluation":
                return f"{self.stage}{part}, evaluation of version {self.version}"


def check_run(run: Path) -> None:
    """
    Raises:
        ValueError: no run directory, or a sweep's, whose runs are named then.
    """
    if run.is_file():
        raise ValueError(f"{run}: is a file; name the run's directory, <run.root>/<run.name>, which holds recipe.toml{_likely(run)}")
    if not run.is_dir():
        raise ValueError(f"{run}: no such run directory; a run's is <run.root>/<run.name>")
    if sweep := runs_of_sweep(run):
        raise ValueError(sweep)
    if not (run / "recipe.toml").is_file():
        raise ValueError(f"{run}: holds no recipe.toml, so it is no run directory; a run's is <run.root>/<run.name>")


def _likely(file: Path) -> str:
    folders = [folder for folder in file.resolve().parents if (folder / "recipe.toml").is_file()]
    return f": {folders[0]}" if folders else ""


def recipe_of(run: Path) -> Recipe:
    """The settings of the run's present start.

    Raises:
        ValueError: it is damaged, or of another version of this program.
    """
    try:
        return Recipe.model_validate(tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{run / 'recipe.toml'} cannot be read: {error}") from error


def sample_files(run: Path) -> list[SampleFile]:
    """All that are there now, in the order of the run."""
    paths = [path for part in ("trajectories", "evaluations") for path in (run / part).glob("[!.]*.parquet")]
    return sorted((found for path in paths if (found := _sample_file(path))), key=lambda file: file.order)


def _sample_file(path: Path) -> SampleFile | None:
    if path.parent.name == "trajectories":
        found = _TRAJECTORIES.fullmatch(path.name)
        return SampleFile(path, "trajectories", found["stage"], int(found["step"]), None) if found else None
    if found := _VALIDATION.fullmatch(path.name):
        return SampleFile(path, "validation", found["stage"], int(found["step"]), int(found["version"]), found["part"] or "")
    found = _EVALUATION.fullmatch(path.name)
    return SampleFile(path, "evaluation", found["stage"], None, int(found["version"]), found["part"] or "") if found else None


def metrics_rows(run: Path, name: str = "metrics.jsonl") -> Iterator[dict[str, Any]]:
    """The whole rows of metrics.jsonl, or of another file of rows with a stage and a step; none where there is no such file."""
    path = run / name
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else []:
        if (row := row_of(line)) is not None:
            yield row


def step_rows(run: Path, stage: str) -> dict[int, dict[str, Any]]:
    """The row of each training step on rollouts, by its number."""
    return {row["step"]: row for row in metrics_rows(run) if row["stage"] == stage and "reward_mean" in row}


def checkpoint_names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("[!.]*") if path.is_dir())


def read_rows(file: SampleFile, **columns_or_filters: Any) -> list[dict[str, Any]]:
    """Its rows; none where the run has moved it aside since it was listed.

    Args:
        file: which.
        columns_or_filters: as pyarrow.parquet.read_table takes them.

    Raises:
        ValueError: it cannot be read as Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.read_table(file.path, **columns_or_filters).to_pylist()
    except FileNotFoundError:
        return []
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file.path}: cannot be read as Parquet ({error})") from error
    return rows


def numbers(steps: Sequence[int]) -> str:
    """Whole numbers for a person, three and more at equal distances shortened.

    >>> numbers([1, 2, 3, 7, 9, 10]), numbers([10, 20, 30, 40]), numbers([4, 5])
    ('1 to 3, 7, 9, 10', '10 to 40 by 10', '4, 5')
    """
    left, told = sorted(steps), []
    while left:
        gap = left[1] - left[0] if len(left) > 1 else 1
        num = 1
        while num < len(left) and left[num] - left[num - 1] == gap:
            num += 1
        num = num if num > 2 else 1
        told.append(str(left[0]) if num == 1 else f"{left[0]} to {left[num - 1]}" + (f" by {gap}" if gap > 1 else ""))
        left = left[num:]
    return ", ".join(told)
