"""Which colour, dashes and width each line of a figure over time has, and its legend. Called by curve_drawing.py."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from mathrl_ray.report.curves import Curve, Series
from mathrl_ray.report.drawing import COLOURS, DASHES, RunStyle, plain, row_by_row, run_style, short_names
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.seed_groups import SeedGroup, group_of

MEAN_COLOUR = "#222222"
WIDE, MEAN_WIDTH, USUAL, THIN = 4.0, 2.4, 1.5, 0.9
"""Line widths in points."""
PALE = 0.4
"""How much of the wide line covers what lies under it."""


@dataclass(frozen=True, slots=True)
class Plot:
    """What one figure draws."""

    curve: Curve
    name: str
    runs: Sequence[RunData]
    groups: Sequence[SeedGroup]
    series: Sequence[Series]
    """Thinned; means last."""
    by_line: bool
    """Colours tell the lines of a single run apart, and not the runs."""
    baselines: Sequence[tuple[int, float]] = ()
    """(run, accuracy) of each that has one."""


def look_of(plot: Plot, each: Series) -> RunStyle:
    if plot.by_line:
        names = list(dict.fromkeys(one.line for one in plot.series if one.kind == "line"))
        return line_style(names.index(each.line) if each.line in names else 0)
    if each.run_index < 0:
        return RunStyle(_group_colour(plot, each.group_index), "solid", "o")
    if each.group_index >= 0 and len(plot.groups) > 1:  # members have their group's colour: the question is between settings
        return replace(run_style(each.run_index), colour=_group_colour(plot, each.group_index))
    return run_style(each.run_index)


def line_style(place: int) -> RunStyle:
    """Of one run's lines, which may lie on each other: the first is wide, the others are dashed."""
    return replace(run_style(place), dash=DASHES[place % len(DASHES)])


def is_wide(plot: Plot, each: Series) -> bool:
    return plot.by_line and each.kind == "line" and look_of(plot, each).dash == "solid"


def _group_colour(plot: Plot, place: int) -> str:
    return MEAN_COLOUR if len(plot.groups) == 1 else COLOURS[place % len(COLOURS)]


def legend_of(plot: Plot) -> list[tuple[str, RunStyle, float]]:
    """(text, look, line width); nothing where there is one line only."""
    if plot.by_line:
        names = list(dict.fromkeys(each.line for each in plot.series if each.kind == "line"))
        return (
            [(name or "mean", line_style(place), WIDE if place == 0 else USUAL) for place, name in enumerate(names)]
            if len(names) > 1
            else []
        )
    shown = sorted({each.run_index for each in plot.series if each.run_index >= 0})
    names = short_names([run.name for run in plot.runs])
    means = [each.group_index for each in plot.series if each.run_index < 0]
    places = {index: group_of(plot.groups, index) for index in shown}
    keys = [
        (names[index], look_of(plot, Series(index, place, "", "", ())), THIN if place >= 0 else USUAL) for index, place in places.items()
    ]
    keys += [(_group_name(plot, place), RunStyle(_group_colour(plot, place), "solid", "o"), MEAN_WIDTH) for place in sorted(set(means))]
    return keys if len(keys) > 1 else []


def _group_name(plot: Plot, place: int) -> str:
    if len(plot.groups) == 1:
        return plot.groups[place].name
    return f"{plot.groups[place].name} ({short_names([run.name for run in plot.runs])[plot.groups[place].members[0]]}, …)"


def legend_rows(keys: Sequence[tuple[str, RunStyle, float]]) -> int:
    return -(-len(keys) // _legend_columns(keys)) if keys else 0


def _legend_columns(keys: Sequence[tuple[str, RunStyle, float]]) -> int:
    longest = max(len(text) for text, _, _ in keys)
    return max(1, min(len(keys), 4, 68 // (longest + 7)))


def draw_legend(drawing: Drawing, keys: Sequence[tuple[str, RunStyle, float]]) -> None:
    if not keys:
        return
    lines, texts = [], []
    for text, look, width in row_by_row(keys, _legend_columns(keys)):
        key = Line2D([], [], color=look.colour, linestyle=look.dash, linewidth=width, marker=look.marker, markersize=4)
        key.set_alpha(PALE if width == WIDE else 1.0)
        lines.append(key)
        texts.append(plain(text))
    drawing.legend(
        lines, texts, loc="lower left", bbox_to_anchor=(0.005, 0), ncols=_legend_columns(keys), handlelength=2.2, columnspacing=1.4,
        borderaxespad=0.2, labelspacing=0.35,
    )  # fmt: skip
