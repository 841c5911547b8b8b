"""`python -m mathrl_ray export RUN [--stage S] --output DIR`: a stage's model as a folder to give away, with a model card.

Called by arguments.py. Copies what a checkpoint holds but the trainer's state, and adds README.md (model_card.py), the recipe and the
stage's figures. Changes nothing in the run; the folder appears whole or not at all.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from mathrl_ray.commands.display import progress
from mathrl_ray.commands.model_card import FIGURES_FILE, Exported, model_card, without_folders
from mathrl_ray.commands.run_files import check_run, checkpoint_names, metrics_rows, recipe_of
from mathrl_ray.driver.whole_folder import whole_folder

RECIPE_FILE, CARD_FILE, TRAINER = "recipe.toml", "README.md", "trainer"
COPY_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """As they are typed."""

    run: Path
    output: Path
    stage: str = ""


def export_model(options: ExportOptions) -> int:
    """Write a stage's model as a folder that transformers and vLLM open, with a model card: results with intervals, recipe, data, licences.

    The model is the one that the stage's figures are of. Returns 0.

    Raises:
        ValueError: RUN is no run directory, the stage has not finished or its checkpoint is gone, or the output is there already.
        OSError: the output cannot be written.
    """
    check_run(options.run)
    _check_output(options.output)
    stages = _finished(options.run)
    stage = _stage(options, stages)
    checkpoint = _checkpoint(options.run, stage)
    exported = Exported(
        recipe=recipe_of(options.run),
        run=options.run.resolve().name,
        stage=stage,
        stages=stages,
        environment=_environment(options.run),
        checkpoint=checkpoint.name,
    )
    asyncio.run(_write(options, checkpoint, exported))
    print(f"{options.output}: the model of {stage['name']} ({checkpoint.name}), with its card in {CARD_FILE}")
    return 0


def _check_output(output: Path) -> None:
    """An earlier export may be replaced, as long as nothing else has come into its folder."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output}: is a file; name a folder, which is made")
    names = set(os.listdir(output)) if output.is_dir() else set()
    ours = json.loads((output / FIGURES_FILE).read_text(encoding="utf-8")).get("files", []) if FIGURES_FILE in names else []
    if others := sorted(names - set(ours)):
        raise ValueError(
            f"--output {output}: holds what no earlier export has written there ({', '.join(others[:3])}); name another folder"
        )


def _finished(run: Path) -> list[dict[str, Any]]:
    path = run / "summary.json"
    stages: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["stages"] if path.is_file() else []
    if not stages:
        raise ValueError(f"{run}: no stage of it has finished yet, so there is no model with figures to export")
    return stages


def _stage(options: ExportOptions, stages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The named one, else the last that trained."""
    trained = [stage for stage in stages if stage["name"] != "baseline"]
    if not options.stage and trained:
        return trained[-1]
    wanted = options.stage or "baseline"
    if wanted == "baseline":
        raise ValueError(f"{options.run}: the baseline is the start model as it was, so there is nothing to export; train a stage first")
    for stage in trained:
        if stage["name"] == wanted:
            return stage
    names = ", ".join(stage["name"] for stage in trained) or "none that trained"
    raise ValueError(f"--stage {wanted}: {options.run} has not finished it; finished: {names}")


def _checkpoint(run: Path, stage: Mapping[str, Any]) -> Path:
    """Where the weights are that the stage's figures are of: those of the step that was evaluated at its end, and no others."""
    name = stage["name"]
    step = next((row["step"] for row in reversed(list(metrics_rows(run))) if row["stage"] == name and "accuracy" in row), None)
    folder = run / "checkpoints" / f"{name}-{step}"
    if folder.name not in checkpoint_names(run):
        held = [each for each in checkpoint_names(run) if re.fullmatch(rf"{name}-\d+", each)]
        raise ValueError(
            f"{run}: the figures of {name} are of the weights after step {step}, whose checkpoint is not there (of {name} it holds "
            f"{', '.join(held) or 'none'}): other weights would not be what the card says"
        )
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder}: holds no whole model (config.json and .safetensors), so the figures of {name} have none to go with")
    return folder


def _environment(run: Path) -> dict[str, Any]:
    path = run / "environment.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


async def _write(options: ExportOptions, checkpoint: Path, exported: Exported) -> None:
    files = [path for path in sorted(checkpoint.iterdir()) if path.is_file()]
    output = options.output.resolve()
    output.parent.mkdir(parents=True, exist_ok=True)
    async with whole_folder(output, replaces=True) as folder:
        with progress("copying the model (MB)", sum(_megabytes(path) for path in files)) as advance:
            for path in files:
                _copy(path, folder / path.name, advance)
        (folder / RECIPE_FILE).write_text(tomli_w.dumps(without_folders(exported.recipe.model_dump(mode="json"))), encoding="utf-8")
        (folder / CARD_FILE).write_text(model_card(exported), encoding="utf-8")
        written = {"files": sorted([FIGURES_FILE, *os.listdir(folder)])}
        (folder / FIGURES_FILE).write_text(json.dumps(exported.figures | written, indent=2) + "\n", encoding="utf-8")


def _megabytes(path: Path) -> int:
    return path.stat().st_size // 10**6


def _copy(source: Path, target: Path, advance: Callable[[int], None]) -> None:
    """In parts, so that a large file does not look like a standstill."""
    copied = told = 0
    with source.open("rb") as reader, target.open("wb") as writer:
        while part := reader.read(COPY_BYTES):
            writer.write(part)
            copied += len(part)
            advance(copied // 10**6 - told)
            told = copied // 10**6
