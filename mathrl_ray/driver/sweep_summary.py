"""A sweep's summary.json, and its failures in words.

    seeds alone   {"seeds", "missing_seeds", "stages": [a stage over the seeds (core/seed_figures.py), ...]}
    a [sweep]     {"settings": [{"setting", "changes", "seeds", "missing_seeds", "stages": [...]}, ...]}, in the order of the variants

Called by sweep_job.py. Knows the sweep's folder and plain values.
"""

from collections.abc import Sequence
from typing import Any

from mathrl_ray.core.masking import masked
from mathrl_ray.core.seed_figures import over_seeds
from mathrl_ray.core.sweep import SEED_KEY
from mathrl_ray.driver.sweep_folder import SweepFolder
from mathrl_ray.sweep_recipe import PlannedRun


class VariantsFailedError(RuntimeError):
    """Runs of a sweep failed; the message names them, their logs and their last lines."""


def settings_of(folder: SweepFolder, runs: Sequence[PlannedRun]) -> list[dict[str, Any]]:
    """Each setting with its stages over those of its seeds that have finished them; `missing_seeds` have not finished them all, or not to
    their ends (run.max_hours), which a seed's `ended_by` says.

    A setting that ended early has the stages that its finished seeds have; sweep.json says why it ended.
    """
    names = dict.fromkeys(run.setting for run in runs)
    return [_setting(folder, name, [run for run in runs if run.setting == name]) for name in names]


def _setting(folder: SweepFolder, setting: str, runs: Sequence[PlannedRun]) -> dict[str, Any]:
    by_stage: dict[str, list[dict[str, Any]]] = {}
    for entry in (folder.entry(run.name) for run in runs):
        for stage in folder.stages_of(entry):
            by_stage.setdefault(stage["name"], []).append({"seed": entry.seed, "folder": entry.folder, **stage})
    entries = [folder.entry(run.name) for run in runs]
    return {
        "setting": setting,
        "changes": masked({key: value for key, value in runs[0].variant.changes.items() if key != SEED_KEY}),
        "seeds": [entry.seed for entry in entries],
        "missing_seeds": [entry.seed for entry in entries if entry.status != "finished"],
        "stages": [over_seeds(name, figures) for name, figures in by_stage.items()],
    }


def summary_of(settings: Sequence[dict[str, Any]], *, is_swept: bool) -> dict[str, Any]:
    """The content of summary.json."""
    return {"settings": list(settings)} if is_swept else {key: settings[0][key] for key in ("seeds", "missing_seeds", "stages")}


def failures(folder: SweepFolder) -> str:
    """One paragraph a failed variant; "" where none has failed."""
    texts = []
    for entry in folder.entries:
        if entry.status == "failed":
            how, *lines = entry.reason.split(" | ")
            texts.append("\n".join([f"{entry.name} {how}; all that it said: {folder.log(entry.name)}", *(f"    {line}" for line in lines)]))
    return "\n".join(texts)
