"""What a person sees of a sweep at its end: settings and stages with means, intervals and seeds, and which neighbours lie apart.

Called by sweep_job.py. Knows rich and plain numbers.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from mathrl_ray.core.equal_cost import RIVALS, are_equal
from mathrl_ray.core.seed_figures import neighbours, over_seeds, seed_interval

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
        seeds = setting.get("seeds", [])
        for place, stage in enumerate(setting["stages"]):
            first = [Text(setting["setting"] if place == 0 else "")] if several else []
            table.add_row(*first, stage["name"], _accuracy(stage), Text(_seeds(stage, seeds)))
        if several and not setting["stages"]:
            table.add_row(Text(setting["setting"]), "none finished", "", "")
    return table


def _accuracy(stage: Mapping[str, Any]) -> str:
    low, high = stage["ci95"]
    return f"{100 * stage['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _seeds(stage: Mapping[str, Any], seeds: Sequence[int] = ()) -> str:
    """
    >>> _seeds({"per_seed": [{"seed": 0, "accuracy": 0.412}, {"seed": 2, "accuracy": 0.43}]}, [0, 1, 2])
    '0: 41.2, 2: 43.0, missing: 1'
    """
    missing = [str(seed) for seed in seeds if seed not in _by_seed(stage)]
    texts = [f"{run['seed']}: {100 * run['accuracy']:.1f}" for run in stage["per_seed"]]
    return ", ".join([*texts, *([f"missing: {' '.join(missing)}"] if missing else [])])


def _by_seed(stage: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {run["seed"]: run for run in stage["per_seed"]}


def sentences(settings: Settings) -> list[str]:
    """Neighbours by accuracy: the stages of the one setting, or the settings in the last stage that any has finished. Two are compared over
    the seeds that both have; what is left out is said."""
    if len(settings) == 1:
        stages = settings[0]["stages"]
        return [*_neighbours([(stage["name"], stage) for stage in stages]), *_rivals({stage["name"]: stage for stage in stages})]
    last = max((setting["stages"] for setting in settings), key=len)[-1:]
    if not last:
        return []
    name = last[0]["name"]
    there = [(setting["setting"], stage) for setting in settings for stage in setting["stages"] if stage["name"] == name]
    lone = [setting["setting"] for setting in settings if setting["setting"] not in dict(there)]
    left_out = [f"{name}: {', '.join(lone)} not compared, having no result of it"] if lone else []
    return [*(f"{name}: {sentence}" for sentence in _neighbours(there)), *left_out]


def _neighbours(blocks: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    ranked = sorted(blocks, key=lambda block: block[1]["accuracy"])
    return [sentence for one, other in pairwise(ranked) for sentence in _pair(one, other)]


def _pair(one: tuple[str, Mapping[str, Any]], other: tuple[str, Mapping[str, Any]]) -> list[str]:
    shared = _shared(one[1], other[1])
    if not shared:
        return [f"{one[0]} and {other[0]} have no seed in common, and are not compared"]
    same = len(shared) == len(one[1]["per_seed"]) == len(other[1]["per_seed"])
    over = "" if same else f" (over the seeds that both have: {', '.join(map(str, shared))})"
    return [sentence + over for sentence in neighbours([(name, _over(stage, shared)) for name, stage in (one, other)])]


def _shared(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[int]:
    return [seed for seed in _by_seed(one) if seed in _by_seed(other)]


def _over(stage: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    return over_seeds(stage["name"], [_by_seed(stage)[seed] for seed in seeds])


def _rivals(stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Expert iteration and GRPO, where they cost the same: seed by seed, on the same problems each."""
    if not all(name in stages for name in RIVALS):
        return []
    seeds = _shared(*(stages[name] for name in RIVALS))
    if not seeds:
        return []  # which their line as neighbours says, or that of what is between them
    one, other = (_over(stages[name], seeds) for name in RIVALS)
    tokens = " and ".join(f"{stage['generated_tokens']:,.0f} ({stage['name']})" for stage in (one, other))
    if not are_equal(one["generated_tokens"], other["generated_tokens"]):
        return [
            f"their results cost {tokens} generated tokens a run, which is not the same: set study.generated_tokens, and "
            "expert_iteration.rounds and grpo.num_steps large enough to spend it"
        ]
    differences = [_by_seed(one)[seed]["accuracy"] - _by_seed(other)[seed]["accuracy"] for seed in seeds]
    text = ", ".join(f"{100 * difference:+.1f}" for difference in differences)
    over = ""
    if max(differences) - min(differences) > ROUNDING:
        low, high = (100 * end for end in seed_interval(differences, bounds=(-1.0, 1.0)))
        over = f", mean {100 * fmean(differences):+.1f} points (95 % over seeds: {low:+.1f} to {high:+.1f})"
    return [f"at equal generated tokens, {tokens} a run: {RIVALS[0]} less {RIVALS[1]} is {text}{over}"]


ROUNDING = 1e-9
"""Differences closer than this are one."""
CAPTION = (
    "Mean over seeds with Student's interval over seeds, on the same test problems each; for one seed that seed's own interval. "
    "Whether two checkpoints differ on these problems: python -m mathrl_ray compare."
)
