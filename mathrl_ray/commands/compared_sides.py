"""What the command `compare` holds against what: runs, stages of one run, prompts of one stage, or sets of seeds.

Called by compare.py. Knows the files of run directories (evaluation_files.py) and the sweep.json of a study over seeds or of a sweep:
{"variants": [{"name", "setting", "seed", "folder", "status", ...}]}, one run a variant.

    RUN RUN ...                each run's last stage (or --stage S)
    RUN                        its stages
    RUN --stage S S ...        these stages of it
    RUN --stage S              S with each prompt of eval.prompts
    a study over seeds         as a run, each stage of which has an evaluation a seed
    a sweep                    its settings, each with its seeds
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from mathrl_ray.commands.evaluation_files import evaluation_of, name_of, prompts_of, stages_in, stages_of
from mathrl_ray.sections import StageName


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One evaluation."""

    path: Path
    seed: int | None
    """run.seed; None where no recipe stands beside it."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is compared with another: one checkpoint, or one a seed."""

    name: str
    checkpoints: tuple[Checkpoint, ...]
    is_set: bool = False
    """Of a study over seeds, also where only one seed has come so far."""
    left_out: tuple[str, ...] = ()
    """Variants that have no such evaluation."""


def sides_of(runs: Sequence[Path], stages: Sequence[str], prompt: str) -> list[Side]:
    """At least two, none of which holds an evaluation of another.

    Raises:
        ValueError: no such runs or evaluations, or nothing to compare.
    """
    if len(runs) > 1 and len(stages) > 1:
        raise ValueError(f"compare: several runs and the stages {', '.join(stages)}: name one stage, or one run and its stages")
    if len(runs) == 1:
        sides = _within(runs[0], stages, prompt)
    else:
        stage = stages[0] if stages else ""
        sides = [side for run in runs for side in ([*_sets(run, stage, prompt)] if _is_set(run) else [_plain(run, stage, prompt)])]
    _refuse_twice([checkpoint.path for side in sides for checkpoint in side.checkpoints])
    return _named(sides)


def _within(run: Path, stages: Sequence[str], prompt: str) -> list[Side]:
    """What can be compared inside of one run, study or sweep."""
    if run.is_file():
        raise ValueError(f"compare: {run} alone has nothing beside it: name a second run or file")
    if _is_set(run):
        return _within_set(run, stages, prompt)
    if len(stages) == 1 and prompt:
        raise ValueError("compare: one run, stage and prompt are one evaluation: name a second run, or leave --stage or --prompt out")
    if len(stages) == 1:
        paths = prompts_of(run, stages[0])
        if len(paths) == 1:
            raise ValueError(
                f"{run}: {stages[0]} was evaluated with one prompt only: name a second run or stage, or set eval.prompts to several"
            )
        return [_checkpoint(path) for path in paths]
    held = list(stages) or stages_of(run)
    if len(held) == 1:
        raise ValueError(f"{run}: only {held[0]} has an evaluation, so there is nothing to compare it with: name a second run")
    return [_plain(run, each, prompt) for each in held]


def _within_set(run: Path, stages: Sequence[str], prompt: str) -> list[Side]:
    settings = _settings(run)
    if len(settings) > 1:
        if len(stages) > 1:
            raise ValueError(f"compare: {run} holds {len(settings)} settings, which are compared at one stage: name one --stage")
        return list(_sets(run, stages[0] if stages else "", prompt))
    held = list(stages) or _stages_of_any(run, next(iter(settings.values())))
    if len(held) == 1:
        raise ValueError(f"{run}: {held[0]} alone has nothing beside it: name a second run, study or stage")
    return [side for stage in held for side in _sets(run, stage, prompt)]


def _plain(run: Path, stage: str, prompt: str) -> Side:
    return _checkpoint(evaluation_of(run, stage, prompt))


def _checkpoint(path: Path) -> Side:
    return Side("", (Checkpoint(path, seed_of(path.resolve().parent.parent)),))


def seed_of(run: Path) -> int | None:
    """run.seed of a run directory's recipe; None without one."""
    recipe = run / "recipe.toml"
    return tomllib.loads(recipe.read_text(encoding="utf-8")).get("run", {}).get("seed") if recipe.is_file() else None


def _is_set(run: Path) -> bool:
    return (run / "sweep.json").is_file()


def _settings(run: Path) -> dict[str, list[Mapping[str, Any]]]:
    """The variants by setting, in the file's order.

    Raises:
        ValueError: a sweep.json that is none.
    """
    try:
        variants = json.loads((run / "sweep.json").read_text(encoding="utf-8"))["variants"]
        settings: dict[str, list[Mapping[str, Any]]] = {}
        for variant in variants:
            settings.setdefault(variant["setting"], []).append(variant)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{run / 'sweep.json'}: does not list the variants of a sweep ({error!r})") from error
    if not settings:
        raise ValueError(f"{run / 'sweep.json'}: lists no variant")
    return settings


def _sets(run: Path, stage: str, prompt: str) -> Iterator[Side]:
    """A side a setting."""
    settings = _settings(run)
    for setting, variants in settings.items():
        of_setting = stage or _stages_of_any(run, variants)[-1]
        found: list[Checkpoint] = []
        left_out = []
        for variant in variants:
            folder = _folder(run, variant)
            if folder is None or of_setting not in _stages(folder):
                left_out.append(f"{variant['name']} ({variant.get('status', 'no evaluation')})")
                continue
            found.append(Checkpoint(evaluation_of(folder, of_setting, prompt), _seed(folder, variant)))
        name = "/".join([run.resolve().name, *([setting] if len(settings) > 1 else []), f"{of_setting}-{prompt}" if prompt else of_setting])
        if not found:
            raise ValueError(f"{name}: no variant has an evaluation of {of_setting}: {', '.join(left_out)}")
        yield Side(name, tuple(found), is_set=True, left_out=tuple(left_out))


def _stages_of_any(run: Path, variants: Sequence[Mapping[str, Any]]) -> list[str]:
    folders = [folder for variant in variants if (folder := _folder(run, variant))]
    held = {stage for folder in folders for stage in _stages(folder)}
    if stages := [stage for stage in get_args(StageName) if stage in held]:
        return stages
    states = ", ".join(f"{variant['name']} ({variant.get('status', 'unknown')})" for variant in variants)
    raise ValueError(f"{run}: no variant has an evaluation yet: {states}")


def _stages(folder: Path) -> list[StageName]:
    """Those that have an evaluation; none where the run has not come so far as to have a folder for them."""
    return stages_in(folder) if (folder / "evaluations").is_dir() else []


def _folder(run: Path, variant: Mapping[str, Any]) -> Path | None:
    """The variant's run, which lies beside the sweep; None where it has not begun."""
    said = variant.get("folder")
    folder = run.resolve().parent / said if said else None
    return folder if folder is not None and folder.is_dir() else None


def _seed(folder: Path, variant: Mapping[str, Any]) -> int:
    seed = variant.get("seed", seed_of(folder))
    if seed is None:
        raise ValueError(f"{folder}: neither sweep.json nor a recipe.toml says its run.seed, by which runs are paired")
    return int(seed)


def _refuse_twice(paths: Sequence[Path]) -> None:
    places = [path.resolve() for path in paths]
    if len(set(places)) < len(places):
        twice = next(path for path, place in zip(paths, places, strict=True) if places.count(place) > 1)
        raise ValueError(f"compare: {twice} is named twice, and would be compared with itself")


def _named(sides: Sequence[Side]) -> list[Side]:
    """With names as short as still tell them apart: inside of one run without the run's name, else the paths where short ones are the
    same."""
    paths = [side.checkpoints[0].path for side in sides]
    within_one = len({path.resolve().parent for path in paths}) == 1 and not any(side.is_set for side in sides)
    names = [side.name if side.is_set else path.stem if within_one else name_of(path) for side, path in zip(sides, paths, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{path} and its seeds" if side.is_set else str(path) for side, path in zip(sides, paths, strict=True)]
    return [Side(name, side.checkpoints, side.is_set, side.left_out) for name, side in zip(names, sides, strict=True)]
