"""Draws the figures over time: one panel a stage, one line a run, the mean over seeds with its band.

Called by curve_figures.py. Knows curves.py's points and matplotlib's object interface.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log, log10
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogLocator

from mathrl_ray.report.curve_looks import MEAN_WIDTH, PALE, THIN, USUAL, WIDE, Plot, draw_legend, is_wide, legend_of, legend_rows, look_of
from mathrl_ray.report.curves import Curve, Series
from mathrl_ray.report.drawing import REFERENCE, SOFT, RunStyle, new_drawing, number_ticks, percent_ticks, run_style, short_number
from mathrl_ray.report.figure import mark_panel

NATS_PER_BIT = log(2)


def xs_of(series: Series, axis: str) -> list[float]:
    return [x for point in series.points if (x := point.x(axis)) is not None]


def draw_curves(plot: Plot, axis: str) -> Drawing:
    """Panels side by side, two in a row at most; a stage that has no such x (SFT samples no tokens) has none."""
    drawable = [each for each in plot.series if xs_of(each, axis)]
    order = list(dict.fromkeys(stage.name for run in plot.runs for stage in run.stages))
    stages = [name for name in order if any(each.stage == name for each in drawable)]
    keys = legend_of(plot)
    drawing, panels = _panels(stages, keys, has_bits=plot.curve.form == "nats")
    for place, (stage, axes) in enumerate(zip(stages, panels, strict=True)):
        own = [each for each in drawable if each.stage == stage]
        unit, word = _x_unit(axis, stage, own)
        _y_axis(axes, plot, own)
        for number, each in enumerate(own):
            _draw_series(axes, plot, each, axis, unit, f"{plot.name}-{axis}", place * len(plot.series) + number)
        axes.set_xlabel(word)
        axes.set_title(stage.replace("_", " "), pad=6)
        mark_panel(axes, stage, unit)
        _reference(axes, plot, stage, axis)
        whole = axis == "step" and max((max(xs_of(each, axis)) for each in own), default=0) <= 12
        number_ticks(axes, "x", 6 if whole or len(stages) == 1 else 4, whole=whole)
        axes.margins(x=0.04)
        if axis != "step":
            axes.set_xlim(left=0)
    _share_y(panels, plot.curve)
    if stages:
        drawing.text(0.012, 0.985, plot.curve.what if plot.by_line or len(plot.curve.lines) == 1 else _one_line(plot), va="top", color=SOFT)
        if plot.curve.form == "nats":
            drawing.text(0.988, 0.985, "bits", va="top", ha="right", color=SOFT)
    draw_legend(drawing, keys)
    return drawing


def _one_line(plot: Plot) -> str:
    word = plot.name.removeprefix(plot.curve.name).strip("_")
    return f"{plot.curve.what}: {word}" if word else plot.curve.what


def _x_unit(axis: str, stage: str, series: Sequence[Series]) -> tuple[float, str]:
    if axis == "step":
        return 1.0, "round" if stage == "expert_iteration" else "step"
    if axis == "generated_tokens":
        return 1.0, "generated tokens"
    longest_s = max(max(xs_of(each, axis)) for each in series)
    return (3600.0, "hours") if longest_s > 3 * 3600 else (60.0, "minutes") if longest_s > 180 else (1.0, "seconds")


def _draw_series(axes: Axes, plot: Plot, each: Series, axis: str, unit: float, prefix: str, number: int) -> None:
    points = [point for point in each.points if point.x(axis) is not None]
    xs, values = [point.x(axis) / unit for point in points], [point.value for point in points]  # type: ignore[operator]  # not None
    is_mean = each.run_index < 0
    gid = f"{prefix}-group{each.group_index}-{number}" if is_mean else f"{prefix}-run{each.run_index}-{number}"
    look = replace(look_of(plot, each), colour=REFERENCE) if each.kind == "superseded" else look_of(plot, each)
    spans = [point for point in points if point.low is not None and point.high is not None]
    if is_mean and len(spans) > 1:
        floor = axes.get_ylim()[0] if axes.get_yscale() == "log" else -inf  # where an interval reaches below 0, its band leaves the panel
        lows, highs = [max(point.low, floor) for point in spans], [point.high for point in spans]  # type: ignore[type-var]  # no None
        axes.fill_between(xs, lows, highs, color=look.colour, alpha=0.16, linewidth=0, gid=gid)  # type: ignore[arg-type]  # no None
        gid = f"{gid}0000"
    elif spans and not is_mean and not _is_member(each):
        _intervals(axes, xs, points, look, f"{gid}0001")
    axes.plot(xs, values, gid=gid, zorder=4 if is_mean else 3, **_line(plot, each, look, is_dense=len(points) > 30))


def _line(plot: Plot, each: Series, look: RunStyle, *, is_dense: bool) -> dict[str, Any]:
    """matplotlib's words for a line: dense ones have no markers, a final evaluation is a marker alone."""
    match each.kind:
        case "final":
            marked: dict[str, Any] = {"marker": "D", "markersize": 6.5, "markerfacecolor": "white", "markeredgewidth": 1.4}
            return {"color": look.colour, "linestyle": "none", "alpha": 0.55 if _is_member(each) else 1.0, **marked}
        case "superseded":
            marked = {} if is_dense else {"marker": ".", "markersize": 4}
            return {"color": look.colour, "linestyle": (0, (1.2, 1.6)), "linewidth": THIN, **marked}
    width, alpha = USUAL, 1.0
    if each.run_index < 0:
        width = MEAN_WIDTH
    elif is_wide(plot, each):
        width, alpha = WIDE, PALE
    elif _is_member(each) or (is_dense and len(plot.runs) > 3):
        width, alpha = THIN, 0.55 if _is_member(each) else 1.0
    marked = {} if is_dense else {"marker": look.marker, "markersize": 4.5, "markeredgewidth": 0}
    return {"color": look.colour, "linestyle": look.dash, "linewidth": width, "alpha": alpha, "solid_capstyle": "round", **marked}


def _is_member(each: Series) -> bool:
    return each.run_index >= 0 and each.group_index >= 0


def _intervals(axes: Axes, xs: Sequence[float], points: Sequence[Any], look: RunStyle, gid: str) -> None:
    spans = [(x, point.low, point.high) for x, point in zip(xs, points, strict=True) if point.low is not None]
    columns = list(zip(*spans, strict=True))
    axes.vlines(columns[0], columns[1], columns[2], color=look.colour, linewidth=1, alpha=0.6, gid=gid, zorder=2)


def _reference(axes: Axes, plot: Plot, stage: str, axis: str) -> None:
    for index, value in plot.baselines:
        colour = REFERENCE if len(plot.baselines) == 1 else run_style(index).colour
        axes.axhline(value, color=colour, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    if plot.baselines:
        mean = sum(value for _, value in plot.baselines) / len(plot.baselines)
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate("baseline", (1, mean), (-2, 3), **place, ha="right", color=SOFT)
    if axis == "step":
        _rollbacks(axes, plot, stage)
    if plot.curve.name == "importance_ratio":
        axes.axhline(1, color=REFERENCE, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)


def _rollbacks(axes: Axes, plot: Plot, stage: str) -> None:
    """Where a guard took a run back, as a thin line in the run's colour; the first of a single run's has the word."""
    for index, run in enumerate(plot.runs):
        steps = [event["step"] for event in run.guard_events if event.get("kind") == "rollback" and event.get("stage") == stage]
        colour = SOFT if len(plot.runs) == 1 else run_style(index).colour
        for step in dict.fromkeys(steps):
            axes.axvline(step, color=colour, linewidth=0.9, linestyle=(0, (1, 1.5)), gid=f"{plot.name}-step-run{index}-9{step}")
        if steps and len(plot.runs) == 1:
            place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate("rolled back", (steps[0], 1), (0, 2), **place, ha="center", color=SOFT)


def _y_axis(axes: Axes, plot: Plot, series: Sequence[Series]) -> None:
    """Before anything is drawn: a logarithmic axis is as long as the values and the upper ends of their bands need."""
    values = [point.value for each in series for point in each.points]
    low, high = min(values), max([*values, *(point.high for each in series for point in each.points if point.high is not None)])
    if plot.curve.is_log and low > 0:
        _log_axis(axes, low, high)
        return
    match plot.curve.form:
        case "percent":
            percent_ticks(axes, "y", 4)
        case "whole":
            number_ticks(axes, "y", 4, whole=high >= 2)
        case _:
            number_ticks(axes, "y", 4)


def _log_axis(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log")
    decades = log10(high / low)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 1 else (1.0, 3.0) if decades < 2 else (1.0,), numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.yaxis.set_minor_locator(LogLocator(subs=()))
    margin = max(high / low, 10) ** 0.05
    axes.set_ylim(low / margin, high * margin)


def _share_y(panels: Sequence[Axes], curve: Curve) -> None:
    """One vertical axis for all stages, where that is meaningful; from 0 for rewards and shares, which begin there."""
    limits = [axes.get_ylim() for axes in panels]
    for axes, own in zip(panels, limits, strict=True):
        low, high = (min(each[0] for each in limits), max(each[1] for each in limits)) if curve.share_y else own
        axes.set_ylim(*_limits(curve, low, high))
        if curve.form == "nats":
            bits = axes.secondary_yaxis("right", functions=(_bits_of, _nats_of))
            number_ticks(bits, "y", 4)
            bits.spines["right"].set_visible(False)


def _bits_of(nats: Any) -> Any:
    """Of numbers or arrays, as matplotlib asks."""
    return nats / NATS_PER_BIT


def _nats_of(bits: Any) -> Any:
    return bits * NATS_PER_BIT


def _limits(curve: Curve, low: float, high: float) -> tuple[float, float]:
    """A reward may be below 0, a share, an entropy and a count may not."""
    match curve.form:
        case "percent":
            return 0.0, 1.02 if high > 0.9 else max(high, 0.01)
        case "nats":
            return 0.0, max(high, 0.01)
        case "whole":
            return 0.0, max(high, 1.1)
    if curve.name == "importance_ratio":  # what is nearer to 1 is rounding, and no scale of its own
        return min(low, 0.999), max(high, 1.001)
    begins_at_0 = curve.name == "learning_rate" or (curve.name == "reward" and low > -0.1 * high)
    return (0.0, high) if begins_at_0 else (low, high)


def _panels(stages: Sequence[str], keys: Sequence[tuple[str, RunStyle, float]], *, has_bits: bool) -> tuple[Drawing, list[Axes]]:
    """Axes with room for their numbers, in inches, whatever these are; the legend is below."""
    num = max(1, len(stages))
    num_columns = 1 if num == 1 else 2
    num_rows = -(-num // num_columns)
    panel_height = 2.15 if num_rows == 1 else 1.5
    top, between, bottom = 0.54, 0.82, 0.55 + 0.2 * legend_rows(keys)
    height = top + num_rows * panel_height + (num_rows - 1) * between + bottom
    drawing = new_drawing(height)
    width = float(drawing.get_size_inches()[0])
    left, right, gutter = 0.6, (0.55 if has_bits else 0.22), (1.0 if has_bits else 0.62)
    panel_width = (width - left - right - (num_columns - 1) * gutter) / num_columns
    made = []
    for place in range(len(stages)):
        row, column = divmod(place, num_columns)
        x, y = left + column * (panel_width + gutter), height - top - panel_height - row * (panel_height + between)
        made.append(drawing.add_axes((x / width, y / height, panel_width / width, panel_height / height)))
    return drawing, made
