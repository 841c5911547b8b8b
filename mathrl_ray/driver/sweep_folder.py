"""The folder of a sweep: which variants there are, how each fares, and where its run is.

    <root>/<name>[-2...]/recipe.toml     the sweep's recipe, resolved
                         sweep.json      {"variants": [Entry, ...], "left_out": [...]}, written whole after each change
                         logs/<variant>.log   all that its runs printed, an earlier start's first
                         summary.json    at the end
    <root>/<name>[-2...]-<variant>/      each variant's run directory, an ordinary one

Called by sweep_job.py. Knows files; starts nothing. A sweep goes on where run.resume is "auto" (the newest sweep of run.name) or a path of
its folder: with the same recipe, where only what is tried may differ, and stages may follow (what is new is run; what is no longer named
stays in left_out, should it be named again). Finished is a run whose own summary has all stages of the job, to their ends.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from pydantic import TypeAdapter

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import masked
from mathrl_ray.driver.digests import masked_digests, read_object
from mathrl_ray.driver.file_names import SWEEP_FILE
from mathrl_ray.driver.recipe_changes import check_recipe
from mathrl_ray.driver.recorder import json_text, lock_file, new_folder, recipe_text, replace_text, write_whole
from mathrl_ray.driver.resume import saved_recipe
from mathrl_ray.sections import SweepSection
from mathrl_ray.sweep_recipe import PlannedRun

Status = Literal["waiting", "running", "finished", "failed", "ended_early", "stopped"]
DONE: tuple[Status, ...] = ("finished", "ended_early")
"""Not run again by a sweep that goes on."""


@dataclass
class Entry:
    """One variant in sweep.json."""

    name: str
    setting: str
    seed: int
    changes: dict[str, Any]
    folder: str = ""
    """Of its run, beside the sweep's, so that all may be moved together; "" until it was started."""
    status: Status = "waiting"
    reason: str = ""
    """Why it failed, ended early, or was stopped by run.max_hours."""
    num_starts: int = 0


class SweepFolder:
    """Writes a sweep's folder. One process has it at a time."""

    def __init__(self, folder: Path, recipe: Recipe, runs: Sequence[PlannedRun], stages: Sequence[str], known: Sequence[Entry]) -> None:
        """
        Args:
            folder: exists.
            recipe: of the sweep.
            runs: that it has now.
            stages: of the job.
            known: entries of an earlier start.

        Raises:
            RecipeError: another job has it, or a run has had other stages.
        """
        self.folder, self.stages, self.remarks = folder, list(stages), list[str]()
        self._lock = locked(folder / ".lock")
        if self._lock is None:
            raise RecipeError(f"{folder} is being written to by another job: end that one first, or give this one another run.name")
        for part in ("logs", ".locks"):
            (folder / part).mkdir(exist_ok=True)
        # By what they try, and not by name: a setting's run of the recipe's own seed is the one that a list of seeds asks for.
        left = {(entry.setting, entry.seed): entry for entry in known}
        try:
            self.entries = [self._entry(run, left.pop((run.setting, run.recipe.run.seed), None), recipe) for run in runs]
            self._left_out = list(left.values())
            self.write()
        except BaseException:  # a stop or Ctrl-C too: nobody would give the lock back
            self.close()
            raise

    @classmethod
    def create(cls, recipe: Recipe, runs: Sequence[PlannedRun], stages: Sequence[str]) -> "SweepFolder":
        """Make <root>/<name>, or <name>-2, -3, ... where it exists."""
        made = cls(new_folder(Path(recipe.run.root), recipe.run.name), recipe, runs, stages, [])
        made._write_recipe(recipe)
        return made

    @classmethod
    def go_on(cls, folder: Path, recipe: Recipe, runs: Sequence[PlannedRun], stages: Sequence[str]) -> "SweepFolder":
        """Open a sweep's folder again.

        Raises:
            RecipeError: another job has it, the recipe or a stage is another one, or sweep.json is damaged.
        """
        try:
            known = _known(folder / SWEEP_FILE)
            _check_recipe(recipe, folder, known)
            name = saved_recipe(folder)["run"]["name"]
        except RecipeError:
            raise
        except (OSError, ValueError) as error:
            raise RecipeError(f"run.resume = {recipe.run.resume}: {folder} cannot go on: {error}") from error
        made = cls(folder, recipe, runs, stages, known)
        made._write_recipe(recipe.model_copy(update={"run": recipe.run.model_copy(update={"name": name})}))
        return made

    def _entry(self, run: PlannedRun, known: Entry | None, recipe: Recipe) -> Entry:
        """What is done stays done; everything else waits again.

        Raises:
            RecipeError: the run has had other stages than the job begins with.
        """
        made = Entry(run.name, run.setting, run.recipe.run.seed, dict(run.variant.changes))
        if known is None:
            return made
        made.folder, made.num_starts = known.folder, known.num_starts
        if self.is_finished(made):
            made.status = "finished"
        elif known.status == "ended_early" and recipe.sweep.end_early != "never":
            made.status, made.reason = known.status, known.reason
        names = [stage["name"] for stage in self.stages_of(made)]
        if known.status == "finished" and not names:
            self.remarks.append(f"warning: {run.name} was finished, but its summary.json in {self.place(made)} is gone: it is run again")
        if names != self.stages[: len(names)]:
            raise RecipeError(
                f"run.resume: {self.place(made)} has run the stages {', '.join(names)}, this job is for {', '.join(self.stages)}: these "
                "must begin with those. Start it with the job file that it was started with, or correct study.stages."
            )
        return made

    def place(self, entry: Entry) -> Path:
        """Of its run's folder; it has one."""
        return self.folder.parent / entry.folder

    def stages_of(self, entry: Entry) -> list[dict[str, Any]]:
        """What its run's summary.json holds so far; nothing where it has none, or one that cannot be read."""
        return _finished_stages(self.place(entry)) if entry.folder else []

    def is_finished(self, entry: Entry) -> bool:
        """Whether its run has done all stages, the last one to its end."""
        stages = self.stages_of(entry)
        return [stage["name"] for stage in stages] == self.stages and stages[-1].get("ended_by") != "max_hours"

    def can_go_on(self, entry: Entry) -> bool:
        """Whether its run left something to go on from."""
        return bool(self.stages_of(entry)) or (bool(entry.folder) and any((self.place(entry) / "checkpoints").glob("[!.]*")))

    def _write_recipe(self, recipe: Recipe) -> None:
        replace_text(self.folder / "recipe.toml", recipe_text(recipe))
        replace_text(self.folder / "digests.json", json_text({"masked": masked_digests(recipe.model_dump(mode="json"))}))

    def entry(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.name == name)

    def note(self, name: str, status: Status, reason: str = "", *, folder: Path | None = None) -> None:
        """A variant fares otherwise now; sweep.json says so when this returns."""
        entry = self.entry(name)
        entry.num_starts += status == "running" and entry.status != "running"
        entry.status, entry.reason = status, reason
        if folder is not None:
            entry.folder = folder.name if folder.parent == self.folder.parent else str(folder)
        self.write()

    def write(self) -> None:
        lists = {"variants": self.entries, "left_out": self._left_out}
        content = {name: [masked(asdict(entry)) for entry in entries] for name, entries in lists.items()}
        write_whole(self.folder / SWEEP_FILE, json_text(content))

    def summary(self, content: Mapping[str, Any]) -> None:
        write_whole(self.folder / "summary.json", json_text(content))

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def lock(self, name: str) -> TextIO | None:
        """A variant's lock, which its process inherits and so has for as long as it lives; None where an earlier one lives on."""
        return locked(self.folder / ".locks" / name)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def _finished_stages(run: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads((run / "summary.json").read_bytes())["stages"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _known(path: Path) -> list[Entry]:
    """All entries of a sweep.json.

    Raises:
        ValueError: it is damaged; it is named.
        OSError: it cannot be read.
    """
    content = read_object(path)
    try:
        return TypeAdapter(list[Entry]).validate_python([*content["variants"], *content.get("left_out", [])])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def locked(path: Path) -> TextIO | None:
    """The open file, locked; None where another process has it."""
    file = path.open("w")
    try:
        lock_file(file)
    except BlockingIOError:
        file.close()
        return None
    return file


def find_sweep(recipe: Recipe) -> Path | None:
    """The folder that run.resume means; None where a new sweep begins.

    Raises:
        RecipeError: run.resume is a path, and no sweep's; or a recipe.toml on the way is damaged.
    """
    match recipe.run.resume:
        case "":
            return None
        case "auto":
            try:
                found = list(_sweeps_named(Path(recipe.run.root), recipe.run.name))
            except ValueError as error:
                raise RecipeError(f"run.resume = auto: {error}") from error
            return found[-1] if found else None
        case path:
            if not (Path(path) / SWEEP_FILE).is_file():
                raise RecipeError(f"run.resume = {path}: no sweep's folder, since it holds no {SWEEP_FILE}; this recipe is a sweep")
            return Path(path)


def _sweeps_named(root: Path, name: str) -> Iterator[Path]:
    """The sweeps <name>, <name>-2, ... that were made under this run.name, the oldest first. Only theirs of all recipes are read.

    Raises:
        ValueError: a recipe.toml is damaged.
    """
    numbered = [(int(path.name.removeprefix(f"{name}-")), path) for path in root.glob(f"{name}-*") if _is_numbered(path.name, name)]
    for _, folder in [(1, root / name), *sorted(numbered)]:
        if (folder / SWEEP_FILE).is_file() and (folder / "recipe.toml").is_file() and saved_recipe(folder)["run"]["name"] == name:
            yield folder


def _is_numbered(folder: str, name: str) -> bool:
    suffix = folder.removeprefix(f"{name}-")
    return suffix.isdecimal() and suffix.isascii()


def free_folder(root: Path, name: str) -> Path:
    """Where a run of this name will be: <root>/<name>, or <name>-2, -3, ... where that exists (recorder.new_folder)."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder for each in names if not (folder := root / each).exists())


def _check_recipe(recipe: Recipe, folder: Path, known: Sequence[Entry]) -> None:
    """
    Raises:
        RecipeError: another recipe was saved, apart from what is tried; also with run.resume_with_changes, where runs have results.
    """
    path = folder / "digests.json"
    saved_masked = read_object(path).get("masked", {}) if path.is_file() else {}
    as_it_was = recipe.model_copy(update={"run": recipe.run.model_copy(update={"resume_with_changes": False})})
    try:
        check_recipe(_untried(as_it_was), _untried_values(saved_recipe(folder)), saved_masked, folder)
    except RecipeError as error:
        done = [each.name for each in known if each.status in DONE or (each.folder and _finished_stages(folder.parent / each.folder))]
        if recipe.run.resume_with_changes and done:
            raise RecipeError(
                f"{error}\nrun.resume_with_changes does not help here: {', '.join(done)} had the recipe that was saved, and a mean over "
                'runs of two recipes says nothing. Put the keys back, or begin a new sweep with run.resume = "".'
            ) from error
        if not recipe.run.resume_with_changes:
            raise


def _untried(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"sweep": SweepSection(), "study": recipe.study.model_copy(update={"seeds": []})})


def _untried_values(saved: Mapping[str, Any]) -> dict[str, Any]:
    study = {key: value for key, value in saved.get("study", {}).items() if key != "seeds"}
    return {**saved, "study": {**study, "seeds": []}, "sweep": SweepSection().model_dump(mode="json")}
