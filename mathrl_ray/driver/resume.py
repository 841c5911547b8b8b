"""Where a run goes on: which folder, which checkpoint, and whether recipe and data are still those that it was saved with.

Called by job.py before anything is started, and by the stages for their first step. run.resume is

    ""      a new run, in a folder of its own
    "auto"  the run of this name (<name>, <name>-2, ...) that was written to last, from its furthest whole checkpoint; else a new run
    a path  of a checkpoint, or of a run's folder

The run goes on in its own folder and under its own name; what it wrote after that point is moved aside there (superseded.py). Finished
stages are not run again. A damaged checkpoint is named, and the one before it taken; one that was asked for by its path is refused.
Other keys than CHANGEABLE (recipe_changes.py) that differ are refused, unless run.resume_with_changes says that they are meant.
"""

import contextlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.driver.canary import stage_settings, sync_weights
from mathrl_ray.driver.checkpoint import (
    FILES_FILE,
    TRAINER,
    Checkpoint,
    check_whole,
    read_checkpoint,
    unreadable_checkpoints,
    whole_checkpoints,
)
from mathrl_ray.driver.digests import read_object
from mathrl_ray.driver.file_names import SWEEP_FILE
from mathrl_ray.driver.guards import Guards
from mathrl_ray.driver.recipe_changes import check_recipe
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.superseded import Position, is_own_checkpoint, row_of, supersede
from mathrl_ray.driver.whole_folder import remove_leftovers
from mathrl_ray.sections import StageName
from mathrl_ray.types import StageSettings

METRICS_FILE = "metrics.jsonl"
Sight = frozenset[tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class Resumption:
    """A run that goes on."""

    folder: Path
    checkpoint: Checkpoint | None
    """None: at the beginning of the stage after the finished ones."""
    finished: list[dict[str, Any]]
    """Summaries of the stages that are not run again."""
    sight: Sight
    """The folder as it was looked at (`_sight`)."""
    remarks: list[str] = field(default_factory=list)

    @property
    def place(self) -> Path:
        """Of what was saved."""
        return self.checkpoint.folder if self.checkpoint else self.folder

    @property
    def digests(self) -> Mapping[str, Mapping[str, str]]:
        """Of data and masked settings, as they were saved (`run_digests`)."""
        if self.checkpoint is not None:
            return dict(self.checkpoint.content["digests"])
        path = self.folder / "digests.json"
        return read_object(path) if path.exists() else {}  # not where the run came back from a mirror

    def check_data(self, recipe: Recipe, digests: Mapping[str, Mapping[str, str]]) -> None:
        """
        Args:
            recipe: says whether changes are meant.
            digests: of the data as they were read now (`run_digests`).

        Raises:
            RecipeError: they are not those that the run had. A set that one of the two jobs did not read says nothing.
        """
        saved, now = self.digests.get("data", {}), digests["data"]
        differing = [name for name, digest in now.items() if digest and saved.get(name) and saved[name] != digest]
        if differing and not recipe.run.resume_with_changes:
            raise RecipeError(
                f"run.resume: the {' and the '.join(differing)} rows are not those that {self.place} had, although the recipe's keys "
                "are: put the data back as they were, or set run.resume_with_changes = true"
            )

    def open(self, recipe: Recipe, stages: Sequence[str], say: Callable[[str], None]) -> Recorder:
        """Move aside what was written after the point, and open the folder again.

        Raises:
            RecipeError: another job is writing there, or has written there since the point was chosen.
        """
        checkpoint = self.checkpoint
        elapsed_s = checkpoint.content["elapsed_s"] if checkpoint else _last_time_s(self.folder)
        recorder = Recorder.reopen(self.folder, elapsed_s=elapsed_s)
        if self._went_on():
            recorder.close()
            raise RecipeError(f"run.resume: the run in {self.folder} went on while this job looked at it: start this job again")
        name = saved_recipe(self.folder)["run"]["name"]
        recorder.recipe(recipe.model_copy(update={"run": recipe.run.model_copy(update={"name": name})}))
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
        if name != recipe.run.name:
            say(f'run.name = "{recipe.run.name}" is left out: the run goes on as {name}')
        say(f"resumed: {self._where(stages)}" + (f"; what was written after that is in {aside.name}" if aside else ""))
        return recorder

    def _went_on(self) -> bool:
        """Whether anything was saved or finished since, or what was chosen is gone; that older ones are removed does not matter."""
        is_gone = self.checkpoint is not None and not self.checkpoint.folder.exists()
        return is_gone or not _sight(self.folder) <= self.sight

    def _write_summary(self, recorder: Recorder, aside: Path | None) -> None:
        """Stages that are run again leave the summary; it is kept with what else was moved aside."""
        path = self.folder / "summary.json"
        if aside is not None and len(_finished(self.folder)) > len(self.finished):
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
        RecipeError: nothing is there, it is damaged, it was another recipe, or other stages.
    """
    if not recipe.run.resume:
        return None
    try:
        found = _last_run(recipe) if recipe.run.resume == "auto" else _named(Path(recipe.run.resume))
        if found is not None:
            own, _ = saved_recipe(found.folder), _finished(found.folder)  # what is damaged is named before anything is moved
            saved = found.checkpoint.content["recipe"] if found.checkpoint else own
            check_recipe(recipe, saved, found.digests.get("masked", {}), found.place)
            _check_stages(found, stages)
    except RecipeError:
        raise
    except (OSError, ValueError) as error:
        raise RecipeError(f"run.resume = {recipe.run.resume}: {error}") from error
    return found


def _last_run(recipe: Recipe) -> Resumption | None:
    """
    Raises:
        ValueError: there are runs of this name, all of them damaged.
    """
    root, name = Path(recipe.run.root), recipe.run.name
    remarks: list[str] = []
    for folder in sorted((root / name, *root.glob(f"{name}-*")), key=_written_ns, reverse=True):
        try:
            if _is_run_named(folder, name) and (found := _in_folder(folder)) is not None:
                return replace(found, remarks=[*remarks, *found.remarks])
        except (OSError, ValueError) as error:
            remarks.append(f"warning: {folder} is left out: {error}")
    if remarks:
        raise ValueError("\n".join([*remarks, 'Put back what is named, or set run.resume = "" to begin anew.']))
    return None


def _is_run_named(folder: Path, name: str) -> bool:
    """Whether a run has or would have had this name: run-2 may be a second `run`, or a run of its own name."""
    suffix = folder.name.removeprefix(name).removeprefix("-")
    return _is_run(folder) and (not suffix or suffix.isdecimal()) and saved_recipe(folder)["run"]["name"] == name


def _is_run(folder: Path) -> bool:
    """And not a sweep, whose runs have folders of their own."""
    return (folder / "recipe.toml").is_file() and not (folder / SWEEP_FILE).exists()


def _named(path: Path) -> Resumption:
    folder = path.parent.parent
    if (path / TRAINER).is_dir() and (folder / "recipe.toml").is_file():
        sight, checkpoint = _sight(folder), read_checkpoint(path)
        check_whole(checkpoint, folder / METRICS_FILE)
        return Resumption(folder, checkpoint, checkpoint.finished, sight)
    found = _in_folder(path) if _is_run(path) else None
    if found is None:
        raise RecipeError(
            f'run.resume = {path}: give "auto", a run directory with checkpoints or finished stages, or <run>/checkpoints/<stage>-<step> '
            "with its trainer/ in it; the run goes on in its own directory"
        )
    return found


def _in_folder(folder: Path) -> Resumption | None:
    """The furthest point of a run: a checkpoint whose stage is not finished, else the end of the last finished stage.

    Raises:
        ValueError, OSError: there is none, and a damaged file is why.
    """
    sight, remarks, finished = _sight(folder), _damaged(folder), _finished(folder)
    for checkpoint in reversed(whole_checkpoints(folder)):
        if len(finished) > len(checkpoint.finished) and checkpoint.is_trained:
            break  # its stage was evaluated, and not ended by run.max_hours before its last step
        try:
            check_whole(checkpoint, folder / METRICS_FILE)
        except (OSError, ValueError) as error:
            remarks.append(f"warning: {checkpoint.folder.name} is left out: {error}")
        else:
            return Resumption(folder, checkpoint, checkpoint.finished, sight, remarks)
    if remarks and not finished:
        raise ValueError("\n".join(remarks))
    return Resumption(folder, None, finished, sight, remarks) if finished else None


def _finished(folder: Path) -> list[dict[str, Any]]:
    """
    Raises:
        ValueError: summary.json is damaged; it is named.
    """
    path = folder / "summary.json"
    return list(read_object(path).get("stages", [])) if path.is_file() else []


def _damaged(folder: Path) -> list[str]:
    """Checkpoints of the run that cannot be read: no kill leaves one, so a person should know."""
    own = {path: error for path, error in unreadable_checkpoints(folder).items() if is_own_checkpoint(path.name)}
    return [f"warning: {path.name} is left out: {error}" for path, error in own.items()]


def _sight(folder: Path) -> Sight:
    """What tells whether a run has saved or finished anything since: its files that say so, with their times and lengths."""
    sight = set()
    for path in (folder / "summary.json", *sorted((folder / "checkpoints").glob(f"[!.]*/{TRAINER}/{FILES_FILE}"))):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the run may be at work, and remove old ones
            facts = path.stat()
            sight.add((str(path), facts.st_mtime_ns, facts.st_size))
    return frozenset(sight)


def _written_ns(folder: Path) -> int:
    return max((modified_ns for _, modified_ns, _ in _sight(folder)), default=0)


def saved_recipe(folder: Path) -> Mapping[str, Any]:
    """A run's recipe.toml, which names run.name.

    Raises:
        ValueError: recipe.toml is damaged; it is named.
    """
    path = folder / "recipe.toml"
    try:
        saved = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if "name" not in saved.get("run", {}):
        raise ValueError(f"{path} is damaged: it has no run.name")
    return saved


def _check_stages(found: Resumption, stages: Sequence[str]) -> None:
    before = [summary["name"] for summary in found.finished] + ([found.checkpoint.stage] if found.checkpoint else [])
    if list(stages[: len(before)]) != before:
        raise RecipeError(
            f"run.resume: {found.folder} has run the stages {', '.join(before)}, this job is for {', '.join(stages)}: "
            "these must begin with those. Start it with the job file that it was started with, or correct study.stages."
        )


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / METRICS_FILE
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        if (row := row_of(line)) is not None:
            yield row


def _validations(folder: Path) -> dict[tuple[str, int], float]:
    return {(row["stage"], row["step"]): row["validation_accuracy"] for row in _rows(folder) if "validation_accuracy" in row}


def _last_time_s(folder: Path) -> float:
    return max((row["time_s"] for row in _rows(folder)), default=0.0)


def take_checkpoint(run: Run, stage: StageName) -> Checkpoint | None:
    """The checkpoint that this stage goes on from, once; None where it begins. With it the run takes what was counted until then, what its
    guards had seen, and what they had changed in the recipe."""
    checkpoint, run.checkpoint = run.checkpoint, None
    assert checkpoint is None or checkpoint.stage == stage, (checkpoint, stage)
    run.change_recipe(_remedies_that_hold(run, checkpoint) if checkpoint else {})
    run.guards = Guards(run, stage, checkpoint.guards if checkpoint else None)
    if checkpoint is not None:
        run.ledger.restore(checkpoint.content["ledger"])
        if run.recipe.run.resume_with_changes:
            run.guards.num_rollbacks = run.guards.num_remedies = 0  # a person has taken it in hand
    return checkpoint


def _remedies_that_hold(run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """What guards have changed, without the keys that the recipe gives another value now than when it was saved."""
    now, saved, held = run.given_recipe.model_dump(mode="json"), checkpoint.content["recipe"], {}
    for key, value in checkpoint.remedies.items():
        section, _, name = key.partition(".")
        if now[section][name] == saved[section][name]:
            held[key] = value
        else:
            run.console.say(f"{key} = {now[section][name]} is what the recipe says now; a guard's remedy, {value}, no longer holds")
    if held:
        run.console.say(f"guards' remedies hold on: {', '.join(f'{key} = {value:g}' for key, value in held.items())}")
    return held


async def go_on(
    run: Run,
    checkpoint: Checkpoint,
    *,
    learning_rate: float,
    num_optimizer_steps: int,
    with_optimizer: bool = True,
    model_folder: str = "",
) -> None:
    """What `begin_stage` is for a stage that begins: the checkpoint's state in the learner, its weights in every generator.

    Args:
        run: the run.
        checkpoint: of the stage.
        learning_rate: of the stage.
        num_optimizer_steps: the length of its learning-rate schedule.
        with_optimizer: False takes the checkpoint's model only, as a start model. For a stage whose every round begins a new optimizer: its
            adapters may belong to another model than the run's, which the checkpoint's folder holds with them.
        model_folder: without the optimizer, a model in the checkpoint's place.
    """
    settings = stage_settings(run, checkpoint.stage, learning_rate=learning_rate, num_optimizer_steps=num_optimizer_steps)
    with run.ledger.work("learner-0", "load_checkpoint"):
        if with_optimizer:
            await run.actors.learner.start_stage(settings)
            await run.actors.learner.load_checkpoint(str(checkpoint.folder))
        else:
            await run.actors.learner.start_stage(_start_from(run, checkpoint, settings, model_folder))
    await sync_weights(run, policy_version=checkpoint.content["policy_version"])  # no row: this step has one


def _start_from(run: Run, checkpoint: Checkpoint, settings: StageSettings, model_folder: str) -> StageSettings:
    """A new optimizer on another model: in a rollback at the checkpoint's place in the schedule, and with the stage's own reference."""
    if not model_folder:
        return replace(settings, model_path=str(checkpoint.folder))
    updates = checkpoint.step * (run.recipe.grpo.updates_per_step if checkpoint.stage == "grpo" else 1)
    return replace(settings, model_path=model_folder, first_step=updates, reference_path=run.model_folder)
