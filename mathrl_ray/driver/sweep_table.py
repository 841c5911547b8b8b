"""What a person sees of a sweep at its end: settings and stages with means, intervals and seeds, and which neighbours lie apart.

Called by sweep_job.py. Knows rich and plain numbers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from mathrl_ray.core.seed_figures import neighbours

Settings = Sequence[Mapping[str, Any]]
"""`setting`, and `stages` with figures over seeds, as summary.json holds them."""


def sweep_table(settings: Settings, caption: str) -> Table:
    """One row a setting and stage."""
    table = Table(title="Results on held-out problems, over seeds", caption=caption, caption_justify="left", title_justify="left")
    several = len(settings) > 1
    if several:
        table.add_column("setting", overflow="fold")
    table.add_column("stage", no_wrap=True)
    table.add_column("mean accuracy (95 %)", justify="right", no_wrap=True)
    table.add_column("each seed")
    for setting in settings:
        for place, stage in enumerate(setting["stages"]):
            first = [Text(setting["setting"] if place == 0 else "")] if several else []
            table.add_row(*first, stage["name"], _accuracy(stage), Text(_seeds(stage)))
        if several and not setting["stages"]:
            table.add_row(Text(setting["setting"]), "none finished", "", "")
    return table


def _accuracy(stage: Mapping[str, Any]) -> str:
    low, high = stage["ci95"]
    return f"{100 * stage['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _seeds(stage: Mapping[str, Any]) -> str:
    """
    >>> _seeds({"per_seed": [{"seed": 0, "accuracy": 0.412}, {"seed": 1, "accuracy": 0.43}]})
    '0: 41.2, 1: 43.0'
    """
    return ", ".join(f"{run['seed']}: {100 * run['accuracy']:.1f}" for run in stage["per_seed"])


def sentences(settings: Settings) -> list[str]:
    """Neighbours by accuracy: the stages of the one setting, or the settings in their last common stage."""
    if len(settings) == 1:
        return neighbours([(stage["name"], stage) for stage in settings[0]["stages"]])
    of_setting = [{stage["name"]: stage for stage in setting["stages"]} for setting in settings]
    finished = [stages for stages in of_setting if stages]
    common = [name for name in (finished[0] if finished else ()) if all(name in stages for stages in finished)]
    if not common:
        return []
    named = [(setting["setting"], stages[common[-1]]) for setting, stages in zip(settings, of_setting, strict=True) if stages]
    return [f"{common[-1]}: {sentence}" for sentence in neighbours(named)]


CAPTION = (
    "Mean over seeds with Student's interval over seeds, on the same test problems each; for one seed that seed's own interval. "
    "Whether two checkpoints differ on these problems: python -m mathrl_ray compare."
)
