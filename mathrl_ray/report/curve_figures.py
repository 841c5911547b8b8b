"""The figures over time: which there are, with their captions, and the rows of what they draw.

Called by figures.py. One run: its lines (mean, format, answer) in one figure. Several: a figure a line, where runs differ by colour and
dashes; runs that differ by their seed alone are thin, and their mean is thick. They are drawn by curve_drawing.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mathrl_ray.report.curve_drawing import Plot, draw_curves, xs_of
from mathrl_ray.report.curve_words import accuracy_caption, alt_text, caption_of
from mathrl_ray.report.curves import CURVES, Curve, Line, RunCurves, Series
from mathrl_ray.report.figure import AXES, Figure
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.seed_groups import SeedGroup, group_means, group_of, seed_groups, thinned

MOST_POINTS, MOST_OF_ALL = 400, 4500
"""Of one line, and of all lines of a figure together: the page must stay small."""
FEWEST_POINTS = 40


def curve_figures(runs: Sequence[RunData]) -> list[Figure]:
    """Those for which any run has numbers."""
    groups = seed_groups(runs)
    curves_of = [RunCurves(run, index, group_of(groups, index)) for index, run in enumerate(runs)]
    found = []
    for curve in CURVES:
        sets: list[tuple[Line, ...]] = [curve.lines] if len(runs) == 1 else [(line,) for line in curve.lines]
        for lines in sets:
            series = [each for one in curves_of for line in lines for each in one.series_of(curve, line)]
            if series:
                found.append(_figure(curve, lines, runs, groups, series))
    return found


def _figure(curve: Curve, lines: Sequence[Line], runs: Sequence[RunData], groups: Sequence[SeedGroup], found: list[Series]) -> Figure:
    bounds = (0.0, 1.0) if curve.form == "percent" else (float("-inf"), float("inf"))
    most = max(FEWEST_POINTS, min(MOST_POINTS, MOST_OF_ALL // len(found)))
    means = group_means(groups, found, bounds, most)
    series = [*(replace(each, points=thinned(each.points, most)) for each in found), *means]
    is_one = len(runs) == 1
    word = "" if is_one else lines[0].name
    name, title = "_".join(filter(None, (curve.name, word))), " ".join(filter(None, (curve.title, f"({word})" if word else "")))
    plot = Plot(curve, name, runs, groups, series, is_one and len(lines) > 1, _baselines(curve, runs))
    is_thinned = any(len(each.points) > most for each in found)
    told = accuracy_caption(runs, series) if curve.name == "accuracy" else caption_of(curve, runs, groups, series)
    return Figure(
        name=name,
        title=title,
        caption=told + (f" Thinned to {most} points a line: first, last, and the extremes between." if is_thinned else ""),
        alt=alt_text(title, curve, runs, groups, series),
        axes=tuple(axis for axis in AXES if any(xs_of(each, axis) for each in series)),
        draw=lambda axis: draw_curves(plot, axis),
        data=lambda: curve_rows(plot),
    )


def _baselines(curve: Curve, runs: Sequence[RunData]) -> list[tuple[int, float]]:
    if curve.name != "accuracy":
        return []
    found = [(index, stage.summary) for index, run in enumerate(runs) for stage in run.stages if stage.name == "baseline"]
    return [(index, float(summary["accuracy"])) for index, summary in found if summary]


def curve_rows(plot: Plot) -> list[dict[str, Any]]:
    """Of every point that is drawn; figure.Figure.data says which columns."""
    return [
        {
            "run": plot.runs[each.run_index].name if each.run_index >= 0 else "",
            "run_index": each.run_index,
            "group": plot.groups[each.group_index].name if each.group_index >= 0 else "",
            "stage": each.stage,
            "line": each.line,
            "step": point.step,
            "generated_tokens": point.generated_tokens,
            "wall_clock_s": point.wall_clock_s,
            "value": point.value,
            "low": point.low,
            "high": point.high,
            "n": point.n,
        }
        for each in plot.series
        for point in each.points
    ]
