"""What a person sees of a sweep at its end: settings and stages with means, intervals and seeds, and which neighbours lie apart.

Called by sweep_job.py. Knows rich and plain numbers.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from mathrl_ray.core.equal_cost import RIVALS, are_equal
from mathrl_ray.core.seed_figures import neighbours, seed_interval

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
        stages = settings[0]["stages"]
        return [*neighbours([(stage["name"], stage) for stage in stages]), *_rivals({stage["name"]: stage for stage in stages})]
    of_setting = [{stage["name"]: stage for stage in setting["stages"]} for setting in settings]
    finished = [stages for stages in of_setting if stages]
    common = [name for name in (finished[0] if finished else ()) if all(name in stages for stages in finished)]
    if not common:
        return []
    named = [(setting["setting"], stages[common[-1]]) for setting, stages in zip(settings, of_setting, strict=True) if stages]
    return [f"{common[-1]}: {sentence}" for sentence in neighbours(named)]


def _rivals(stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Expert iteration and GRPO, where they cost the same: seed by seed, on the same problems each."""
    if not all(name in stages for name in RIVALS):
        return []
    one, other = (stages[name] for name in RIVALS)
    tokens = " and ".join(f"{stages[name]['generated_tokens']:,.0f} ({name})" for name in RIVALS)
    if not are_equal(one["generated_tokens"], other["generated_tokens"]):
        return [f"their results cost {tokens} generated tokens a run, which is not the same: set study.generated_tokens"]
    accuracies = [{run["seed"]: run["accuracy"] for run in stage["per_seed"]} for stage in (one, other)]
    seeds = [seed for seed in accuracies[0] if seed in accuracies[1]]
    differences = [accuracies[0][seed] - accuracies[1][seed] for seed in seeds]
    text = ", ".join(f"{100 * difference:+.1f}" for difference in differences)
    over = ""
    if len(set(differences)) > 1:
        low, high = (100 * end for end in seed_interval(differences, bounds=(-1.0, 1.0)))
        over = f", mean {100 * fmean(differences):+.1f} points (95 % over seeds: {low:+.1f} to {high:+.1f})"
    return [f"at equal generated tokens, {tokens} a run: {RIVALS[0]} less {RIVALS[1]} is {text}{over}"]


CAPTION = (
    "Mean over seeds with Student's interval over seeds, on the same test problems each; for one seed that seed's own interval. "
    "Whether two checkpoints differ on these problems: python -m mathrl_ray compare."
)
