"""Runs that differ by their seed alone, and the means of their curves.

Called by curve_figures.py, result_figures.py and tables.py. Pure: RunData and points in and out. The interval is core/seed_figures.py's.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mathrl_ray.core.seed_figures import mean_interval, seed_interval
from mathrl_ray.driver.recipe_changes import CHANGEABLE
from mathrl_ray.report.curves import Point, Series
from mathrl_ray.report.run_data import RunData

_IGNORED = (CHANGEABLE - {"run.commit", "study.stages"}) | {"run.seed", "study.seeds"}


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """At least two runs with one recipe and different seeds."""

    members: tuple[int, ...]
    """Places of the runs in the report."""
    name: str


def seed_groups(runs: Sequence[RunData]) -> list[SeedGroup]:
    """The groups, in the order of their first runs. Of two runs with one recipe and one seed only the one that got farther is in any (the
    first named, where that is the same): what is the same twice would make the interval too narrow. Nor is a run whose recipe could not
    be read."""
    alike: dict[str, dict[int, int]] = defaultdict(dict)
    for index, run in enumerate(runs):
        if run.recipe:
            of_seed = alike[_without_seed(run.recipe)]
            of_seed[run.seed] = max(of_seed.get(run.seed, index), index, key=lambda place: _how_far(runs[place]))
    found = [tuple(sorted(members.values())) for members in alike.values() if len(members) > 1]
    return [SeedGroup(members, f"mean of {len(members)} seeds") for members in found]


def _how_far(run: RunData) -> tuple[int, int]:
    """Stages that have ended, then rows."""
    return sum(stage.summary is not None for stage in run.stages), len(run.metrics)


def _without_seed(recipe: Mapping[str, Any]) -> str:
    """What makes two recipes one: all but the seed and what changes nothing that is learned."""
    kept = {
        section: {key: value for key, value in values.items() if f"{section}.{key}" not in _IGNORED} if isinstance(values, dict) else values
        for section, values in recipe.items()
        if section != "sweep"
    }
    return repr(sorted((section, sorted(values.items()) if isinstance(values, dict) else values) for section, values in kept.items()))


def group_of(groups: Sequence[SeedGroup], run_index: int) -> int:
    """Its place among the groups; -1 for a run that is in none."""
    return next((place for place, group in enumerate(groups) if run_index in group.members), -1)


def group_means(groups: Sequence[SeedGroup], series: Sequence[Series], bounds: tuple[float, float], most: int) -> list[Series]:
    """For each group, stage and line the mean over its seeds with Student's 95 % interval, at the steps that all of them have.

    On the other axes a mean stands at the mean of the runs' x. The updates of expert iteration have no mean: their numbers differ. Where
    all seeds have the same accuracy, the interval reaches as far as their own do, as everywhere.

    Args:
        groups: with their members.
        series: of one curve's runs, whole.
        bounds: that no mean can leave.
        most: points of a mean, which is `thinned`.
    """
    means = []
    for place, group in enumerate(groups):
        lines: dict[tuple[str, str, str], list[Series]] = defaultdict(list)
        for each in series:
            if each.group_index == place and each.kind != "superseded" and not each.is_of_updates:
                lines[each.stage, each.line, each.kind].append(each)
        for members in lines.values():
            points = _means(members, bounds, most) if len(members) == len(group.members) else ()
            if points:
                means.append(Series(-1, place, members[0].stage, members[0].line, points, members[0].kind))
    return means


def _means(members: Sequence[Series], bounds: tuple[float, float], most: int) -> tuple[Point, ...]:
    if members[0].kind == "final":  # each run's stands where its training ended, which may be a step apart
        shared = [[each.points[0] for each in members]]
    else:
        by_step = [{point.step: point for point in each.points} for each in members]
        shared = [[points[step] for points in by_step] for step in by_step[0] if all(step in points for points in by_step)]
    values = [Point(float(place), None, None, fmean(point.value for point in points)) for place, points in enumerate(shared)]
    return tuple(_mean(shared[int(kept.step)], bounds) for kept in thinned(values, most))  # intervals of those only that are shown


def _mean(points: Sequence[Point], bounds: tuple[float, float]) -> Point:
    values = [point.value for point in points]
    own = [(point.low, point.high) for point in points if point.low is not None and point.high is not None]
    low, high = mean_interval(values, own) if len(own) == len(points) else seed_interval(values, bounds=bounds)
    xs = {axis: [point.x(axis) for point in points] for axis in ("generated_tokens", "wall_clock_s")}
    means = {axis: fmean(given) if len(given := [x for x in each if x is not None]) == len(points) else None for axis, each in xs.items()}
    step = points[0].step if len({point.step for point in points}) == 1 else fmean(point.step for point in points)
    return Point(step, means["generated_tokens"], means["wall_clock_s"], fmean(values), low, high, len(points))


def thinned(points: Sequence[Point], most: int) -> tuple[Point, ...]:
    """At most `most` points (4 at least): the first, the last, and the lowest and highest of equal parts between, so that spikes stay.

    >>> spike = [Point(step, None, None, 9.0 if step == 57 else 0.0) for step in range(100)]
    >>> [(point.step, point.value) for point in thinned(spike, 6)]
    [(0, 0.0), (1, 0.0), (50, 0.0), (57, 9.0), (99, 0.0)]
    """
    if len(points) <= most:
        return tuple(points)
    num_parts = max(1, (most - 2) // 2)
    inner = range(1, len(points) - 1)
    kept = {0, len(points) - 1}
    for part in range(num_parts):
        places = inner[part * len(inner) // num_parts : (part + 1) * len(inner) // num_parts]
        kept |= {min(places, key=lambda place: points[place].value), max(places, key=lambda place: points[place].value)}
    return tuple(points[place] for place in sorted(kept))
