"""Where a run goes on: which folder, which checkpoint, and whether the recipe is still the one that it was saved with.

Called by job.py before anything is started, and by the stages for their first step. run.resume is

    ""      a new run, in a folder of its own
    "auto"  the run of this name (<name>, <name>-2, ...) that was written to last, from its furthest whole checkpoint; else a new run
    a path  of a checkpoint, or of a run's folder

The run goes on in its own folder; what it wrote after that point is moved aside there (superseded.py). Finished stages are not run again.
Keys that may differ are CHANGEABLE; any other difference is refused, unless run.resume_with_changes says that it is meant.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import masked
from mathrl_ray.driver.canary import stage_settings, sync_weights
from mathrl_ray.driver.checkpoint import TRAINER, Checkpoint, data_digest, read_checkpoint, whole_checkpoints
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.superseded import Position, row_of, supersede
from mathrl_ray.driver.whole_folder import remove_leftovers

CHANGEABLE = frozenset(
    {
        *(f"run.{key}" for key in ("name", "root", "commit", "mirror", "resume", "resume_with_changes", "max_hours")),
        *(f"run.{key}" for key in ("checkpoint_every", "checkpoint_minutes", "keep_last", "keep_best")),
        *("generator.limit_s", "learner.limit_s", "driver.sync_limit_s", "driver.start_limit_s", "driver.max_restarts"),
        "study.stages",  # further stages may follow; those before are looked at by name
    }
)
"""None of them changes what is learned. More steps do: the learning rate's schedule is as long as the stage."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A run that goes on."""

    folder: Path
    checkpoint: Checkpoint | None
    """None: at the beginning of the stage after the finished ones."""
    finished: list[dict[str, Any]] = field(default_factory=list)
    """Summaries of the stages that are not run again."""
    remarks: list[str] = field(default_factory=list)

    def check_data(self, recipe: Recipe, *parts: Sequence[Any]) -> None:
        """
        Args:
            recipe: says whether changes are meant.
            parts: train problems and traces, as they were read now.

        Raises:
            RecipeError: they are not those that the checkpoint was trained on.
        """
        if self.checkpoint is None or recipe.run.resume_with_changes or self.checkpoint.content["data"] == data_digest(*parts):
            return
        raise RecipeError(
            f"run.resume: the problems or traces are not those that {self.checkpoint.folder} was trained on, although the recipe's keys "
            "are: put the data back as they were, or set run.resume_with_changes = true"
        )

    def open(self, recipe: Recipe, stages: Sequence[str], say: Callable[[str], None]) -> Recorder:
        """Move aside what was written after the point, and open the folder again.

        Raises:
            RecipeError: another job is writing there.
        """
        checkpoint = self.checkpoint
        elapsed_s = checkpoint.content["elapsed_s"] if checkpoint else _last_time_s(self.folder)
        recorder = Recorder.reopen(self.folder, recipe, elapsed_s=elapsed_s)
        remove_leftovers(self.folder / "checkpoints")
        names = [summary["name"] for summary in self.finished]
        position = Position(names)
        if checkpoint:
            position = Position(names, checkpoint.stage, checkpoint.step, checkpoint.content["metrics_bytes"])
        with recorder.closed_metrics():
            aside = supersede(self.folder, position)
        self._write_summary(recorder, aside)
        for remark in self.remarks:
            say(remark)
        say(f"resumed: {self._where(stages)}" + (f"; what was written after that is in {aside.name}" if aside else ""))
        return recorder

    def _write_summary(self, recorder: Recorder, aside: Path | None) -> None:
        """Stages that are run again leave the summary; it is kept with what else was moved aside."""
        path = self.folder / "summary.json"
        if path.exists() and aside is not None and len(json.loads(path.read_text(encoding="utf-8"))["stages"]) > len(self.finished):
            path.rename(aside / path.name)
        recorder.summary(self.finished)

    def _where(self, stages: Sequence[str]) -> str:
        done = f"; done already: {', '.join(summary['name'] for summary in self.finished)}" if self.finished else ""
        if self.checkpoint is not None:
            return f"from checkpoint {self.checkpoint.folder.name} ({self.checkpoint.stage} after step {self.checkpoint.step}){done}"
        if len(self.finished) == len(stages):
            return f"nothing is left to do{done}"
        return f"at the beginning of {stages[len(self.finished)]}{done}"

    def restore(self, run: Run) -> None:
        """What the run itself has to know; the stage takes its checkpoint by `take_checkpoint`."""
        run.stages[:] = self.finished
        run.validated.update(_validations(self.folder))
        run.checkpoint = self.checkpoint
        if self.checkpoint is not None:
            run.canary_limit_nats = self.checkpoint.content["canary_limit_nats"]


def find_resumption(recipe: Recipe, stages: Sequence[str]) -> Resumption | None:
    """Where the recipe says that the run goes on; None for a new run.

    Raises:
        RecipeError: nothing is there, it was another recipe, or other stages.
    """
    if not recipe.run.resume:
        return None
    found = _last_run(recipe) if recipe.run.resume == "auto" else _named(Path(recipe.run.resume))
    if found is None:
        return None
    _check_recipe(found, recipe)
    _check_stages(found, stages)
    return found


def _last_run(recipe: Recipe) -> Resumption | None:
    root, name = Path(recipe.run.root), recipe.run.name
    folders = [folder for folder in (root / name, *root.glob(f"{name}-*")) if _is_run_named(folder, name)]
    found = [resumption for folder in folders if (resumption := _in_folder(folder)) is not None]
    return max(found, key=_written_s, default=None)


def _is_run_named(folder: Path, name: str) -> bool:
    """Whether a run has or would have had this name: run-2 may be a second `run`, or a run of its own name."""
    suffix = folder.name.removeprefix(name).removeprefix("-")
    return (folder / "recipe.toml").is_file() and (not suffix or suffix.isdecimal()) and _saved_recipe(folder)["run"]["name"] == name


def _named(path: Path) -> Resumption:
    if (path / TRAINER).is_dir() and (path.parent.parent / "recipe.toml").is_file():
        try:
            checkpoint = read_checkpoint(path)
        except (OSError, ValueError) as error:
            raise RecipeError(f"run.resume = {path}: cannot be read ({error})") from error
        return Resumption(path.parent.parent, checkpoint, checkpoint.finished)
    found = _in_folder(path) if (path / "recipe.toml").is_file() else None
    if found is None:
        raise RecipeError(
            f'run.resume = {path}: give "auto", a run directory with checkpoints or finished stages, or <run>/checkpoints/<stage>-<step> '
            "with its trainer/ in it; the run goes on in its own directory"
        )
    return found


def _in_folder(folder: Path) -> Resumption | None:
    """The furthest point of a run: a checkpoint whose stage is not finished, else the end of the last finished stage."""
    summary = folder / "summary.json"
    finished = json.loads(summary.read_text(encoding="utf-8"))["stages"] if summary.is_file() else []
    checkpoint = next(reversed(whole_checkpoints(folder)), None)
    if checkpoint is not None:
        is_over = len(finished) > len(checkpoint.finished) and checkpoint.is_trained
        if not is_over:  # its stage was not evaluated, or run.max_hours ended it before its last step
            return Resumption(folder, checkpoint, checkpoint.finished, _damaged(folder))
    return Resumption(folder, None, finished, _damaged(folder)) if finished else None


def _damaged(folder: Path) -> list[str]:
    """Folders that look like checkpoints and cannot be read: no kill leaves one, so a person should know."""
    read = {each.folder for each in whole_checkpoints(folder)}
    candidates = sorted(path for path in (folder / "checkpoints").glob("[!.]*") if (path / TRAINER).is_dir() and path not in read)
    return [f"warning: {path.name} is no checkpoint that this program can read; it is left out" for path in candidates]


def _written_s(resumption: Resumption) -> float:
    files = [resumption.folder / "summary.json", *(resumption.folder / "checkpoints").glob(f"[!.]*/{TRAINER}/*.json")]
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _saved_recipe(folder: Path) -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))


def _check_recipe(found: Resumption, recipe: Recipe) -> None:
    saved = found.checkpoint.content["recipe"] if found.checkpoint else _saved_recipe(found.folder)
    now = json.loads(json.dumps(masked(recipe.model_dump(mode="json"))))
    differing = [f"  {key}: {before!r} was saved, {after!r} is given" for key, before, after in differences(saved, now)]
    if differing and not recipe.run.resume_with_changes:
        place = found.checkpoint.folder if found.checkpoint else found.folder
        raise RecipeError(
            f"run.resume: the recipe is not the one of {place}:\n" + "\n".join(differing) + "\nPut these keys back, or set "
            'run.resume_with_changes = true to go on with them, or run.resume = "" to begin anew.'
        )


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(key, saved, now) of each setting that is not the same, apart from those that may change; None where one has no such key.

    >>> list(differences({"grpo": {"num_steps": 5}, "run": {"max_hours": 1}}, {"grpo": {"num_steps": 6}, "run": {"max_hours": 2}}))
    [('grpo.num_steps', 5, 6)]
    """
    for section in sorted(saved.keys() | now.keys()):
        before, after = saved.get(section, {}), now.get(section, {})
        for name in sorted(before.keys() | after.keys()):
            key = f"{section}.{name}"
            if before.get(name) != after.get(name) and key not in CHANGEABLE:
                yield key, before.get(name), after.get(name)


def _check_stages(found: Resumption, stages: Sequence[str]) -> None:
    before = [summary["name"] for summary in found.finished] + ([found.checkpoint.stage] if found.checkpoint else [])
    if list(stages[: len(before)]) != before:
        raise RecipeError(
            f"run.resume: {found.folder} has run the stages {', '.join(before)}, this job is for {', '.join(stages)}: "
            "these must begin with those. Start it with the job file that it was started with, or correct study.stages."
        )


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        if (row := row_of(line)) is not None:
            yield row


def _validations(folder: Path) -> dict[tuple[str, int], float]:
    return {(row["stage"], row["step"]): row["validation_accuracy"] for row in _rows(folder) if "validation_accuracy" in row}


def _last_time_s(folder: Path) -> float:
    return max((row["time_s"] for row in _rows(folder)), default=0.0)


def take_checkpoint(run: Run, stage: str) -> Checkpoint | None:
    """The checkpoint that this stage goes on from, once; None where it begins."""
    checkpoint, run.checkpoint = run.checkpoint, None
    assert checkpoint is None or checkpoint.stage == stage, (checkpoint, stage)
    return checkpoint


async def go_on(run: Run, checkpoint: Checkpoint, *, learning_rate: float, num_optimizer_steps: int) -> None:
    """What `begin_stage` is for a stage that begins: the checkpoint's state in the learner, its weights in every generator.

    Args:
        run: the run.
        checkpoint: of the stage.
        learning_rate: of the stage.
        num_optimizer_steps: the length of its learning-rate schedule.
    """
    run.ledger.restore(checkpoint.content["ledger"])
    settings = stage_settings(run, checkpoint.stage, learning_rate=learning_rate, num_optimizer_steps=num_optimizer_steps)
    with run.ledger.work("learner-0", "load_checkpoint"):
        await run.actors.learner.start_stage(settings)
        await run.actors.learner.load_checkpoint(str(checkpoint.folder))
    await sync_weights(run, policy_version=checkpoint.content["policy_version"])  # no row: this step has one
