"""The folder of a sweep: which variants there are, how each fares, and where its run is.

    <root>/<name>[-2...]/recipe.toml     the sweep's recipe, resolved
                         sweep.json      {"variants": [Entry, ...]}, written whole after each change
                         logs/<variant>.log   all that its runs printed, an earlier start's first
                         summary.json    at the end
    <root>/<name>[-2...]-<variant>/      each variant's run directory, an ordinary one

Called by sweep_job.py. Knows files; starts nothing. A sweep goes on where run.resume is "auto" (the newest sweep of run.name) or a path of
its folder: with the same recipe, where only what is tried may differ (what is new is run, what is no longer named is left alone).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import masked
from mathrl_ray.driver.digests import masked_digests, read_object
from mathrl_ray.driver.recipe_changes import check_recipe
from mathrl_ray.driver.recorder import json_text, lock_file, new_folder, recipe_text, replace_text, write_whole
from mathrl_ray.driver.resume import saved_recipe
from mathrl_ray.sections import SweepSection
from mathrl_ray.sweep_recipe import PlannedRun

SWEEP_FILE = "sweep.json"
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
    """Of its run, absolute; "" until there is one."""
    status: Status = "waiting"
    reason: str = ""
    """Why it failed, or ended early."""
    num_starts: int = 0


class SweepFolder:
    """Writes a sweep's folder. One process has it at a time."""

    def __init__(self, folder: Path, runs: Sequence[PlannedRun], known: Mapping[str, Mapping[str, Any]]) -> None:
        """
        Args:
            folder: exists.
            runs: that the sweep has now.
            known: entries of an earlier start, by name.

        Raises:
            RecipeError: another job has it.
        """
        self.folder = folder
        self._lock = locked(folder / ".lock")
        if self._lock is None:
            raise RecipeError(f"{folder} is being written to by another job: end that one first, or give this one another run.name")
        for part in ("logs", ".locks"):
            (folder / part).mkdir(exist_ok=True)
        self.entries = [_entry(run, known.get(run.name, {})) for run in runs]
        self.write()

    @classmethod
    def create(cls, recipe: Recipe, runs: Sequence[PlannedRun]) -> "SweepFolder":
        """Make <root>/<name>, or <name>-2, -3, ... where it exists."""
        made = cls(new_folder(Path(recipe.run.root), recipe.run.name), runs, {})
        made._write_recipe(recipe)
        return made

    @classmethod
    def go_on(cls, folder: Path, recipe: Recipe, runs: Sequence[PlannedRun]) -> "SweepFolder":
        """Open a sweep's folder again.

        Raises:
            RecipeError: another job has it, the recipe is another one, or sweep.json is damaged.
        """
        try:
            known = {entry["name"]: entry for entry in read_object(folder / SWEEP_FILE)["variants"]}
            _check_recipe(recipe, folder)
        except RecipeError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecipeError(f"run.resume = {recipe.run.resume}: {folder} cannot go on: {error}") from error
        made = cls(folder, runs, known)
        made._write_recipe(recipe.model_copy(update={"run": recipe.run.model_copy(update={"name": saved_recipe(folder)["run"]["name"]})}))
        return made

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
            entry.folder = str(folder)
        self.write()

    def write(self) -> None:
        write_whole(self.folder / SWEEP_FILE, json_text({"variants": [masked(asdict(entry)) for entry in self.entries]}))

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


def locked(path: Path) -> TextIO | None:
    """The open file, locked; None where another process has it."""
    file = path.open("w")
    try:
        lock_file(file)
    except BlockingIOError:
        file.close()
        return None
    return file


def _entry(run: PlannedRun, known: Mapping[str, Any]) -> Entry:
    """What is done stays done; everything else waits again."""
    made = Entry(run.name, run.setting, run.recipe.run.seed, dict(run.variant.changes))
    made.folder, made.num_starts = str(known.get("folder", "")), int(known.get("num_starts", 0))
    if known.get("status") in DONE:
        made.status, made.reason = known["status"], str(known.get("reason", ""))
    return made


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
                found = [folder for folder in folders_named(Path(recipe.run.root), recipe.run.name) if (folder / SWEEP_FILE).is_file()]
            except ValueError as error:
                raise RecipeError(f"run.resume = auto: {error}") from error
            return found[-1] if found else None
        case path:
            if not (Path(path) / SWEEP_FILE).is_file():
                raise RecipeError(f"run.resume = {path}: no sweep's folder, since it holds no {SWEEP_FILE}; this recipe is a sweep")
            return Path(path)


def folders_named(root: Path, name: str) -> Iterator[Path]:
    """The run directories <name>, <name>-2, ... that were made under this run.name, the oldest first.

    Raises:
        ValueError: a recipe.toml is damaged.
    """
    numbered = [(int(path.name.removeprefix(f"{name}-")), path) for path in root.glob(f"{name}-*") if _is_numbered(path.name, name)]
    for _, folder in [(1, root / name), *sorted(numbered)]:
        if (folder / "recipe.toml").is_file() and saved_recipe(folder)["run"]["name"] == name:
            yield folder


def _is_numbered(folder: str, name: str) -> bool:
    suffix = folder.removeprefix(f"{name}-")
    return suffix.isdecimal() and suffix.isascii()


def _check_recipe(recipe: Recipe, folder: Path) -> None:
    """
    Raises:
        RecipeError: another recipe was saved, apart from what is tried.
    """
    path = folder / "digests.json"
    saved_masked = read_object(path).get("masked", {}) if path.is_file() else {}
    check_recipe(_untried(recipe), _untried_values(saved_recipe(folder)), saved_masked, folder)


def _untried(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"sweep": SweepSection(), "study": recipe.study.model_copy(update={"seeds": []})})


def _untried_values(saved: Mapping[str, Any]) -> dict[str, Any]:
    study = {key: value for key, value in saved.get("study", {}).items() if key != "seeds"}
    return {**saved, "study": {**study, "seeds": []}, "sweep": SweepSection().model_dump(mode="json")}


def finished_stages(folder: str) -> list[dict[str, Any]]:
    """What a run's summary.json holds so far; nothing where it has none, or one that cannot be read."""
    path = Path(folder) / "summary.json"
    try:
        stages = json.loads(path.read_bytes())["stages"] if folder else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return list(stages)
