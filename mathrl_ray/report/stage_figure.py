"""The figure of results: each stage's accuracy with its interval, times the baseline beside, means over seeds. Called by figures.py."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from mathrl_ray.report.drawing import COLOURS, INK, RunStyle, run_style, short_names
from mathrl_ray.report.figure import Figure, mark_panel
from mathrl_ray.report.result_axes import finish, legend_height, results_caption, rows_of_names
from mathrl_ray.report.results import Result
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.seed_groups import SeedGroup


def stages_figure(runs: Sequence[RunData], groups: Sequence[SeedGroup], found: Sequence[Result]) -> Figure:
    means = [each for each in found if each.is_mean]
    told = results_caption(runs, [each for each in found if not each.is_mean], "Final evaluation of each stage", of_last=False)
    bars = "; black: mean over seeds with Student's interval" if means else ""
    times = " \N{MULTIPLICATION SIGN}: times the baseline." if any(each.times for each in found) else ""
    spoken = means or list(found)
    names = {each.name for each in spoken}
    return Figure(
        name="stages",
        title="Accuracy of the stages",
        caption=f"{told.rstrip('.')}{bars}.{times}",
        alt="Accuracy of the stages. " + " ".join(_said(each, with_name=len(names) > 1) for each in spoken[:24]),
        axes=("",),
        draw=lambda _: _draw_stages(runs, groups, found),
        data=lambda: [_stage_row(each) for each in found],
        group="stages",
    )


def _said(each: Result, *, with_name: bool) -> str:
    low, high = each.figures["ci95"]
    who = f"{each.name}, " if with_name else ""
    return f"{who}{each.stage.replace('_', ' ')}: {100 * each.figures['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})."


def _stage_row(each: Result) -> dict[str, Any]:
    low, high = each.figures["ci95"]
    number = each.figures.get("num_graded_problems", each.figures["num_problems"])
    times = {"times": each.times.value, "times_low": each.times.low, "times_high": each.times.high} if each.times else {}
    return {
        "run": "" if each.is_mean else each.name,
        "run_index": each.run_index,
        "group": each.name if each.is_mean else "",
        "stage": each.stage,
        "value": each.figures["accuracy"],
        "low": low,
        "high": high,
        "n": number,
        **{key: times.get(key) for key in ("times", "times_low", "times_high")},
    }


def _draw_stages(runs: Sequence[RunData], groups: Sequence[SeedGroup], found: Sequence[Result]) -> Drawing:
    """A row a stage, in it a line a run; the means below their runs, with times the baseline beside."""
    stages = list(dict.fromkeys(each.stage for each in found))
    per_stage = max(sum(each.stage == stage for each in found) for stage in stages)
    row = max(0.42, 0.17 + per_stage * (0.15 if per_stage <= 8 else 0.1))
    keys = _run_keys(runs, groups)
    drawing, axes = rows_of_names(len(stages), row, below=0.47 + legend_height(keys))
    for place, stage in enumerate(stages):
        own = [each for each in found if each.stage == stage]
        for number, each in enumerate(own):
            y = place + (number - (len(own) - 1) / 2) * 0.8 / max(per_stage, 3)
            _draw_result(axes, groups, each, y, place * len(found) + number, is_alone=len(own) == 1)
    finish(drawing, axes, [stage.replace("_", " ") for stage in stages], keys)
    mark_panel(axes, "")
    return drawing


def _draw_result(axes: Axes, groups: Sequence[SeedGroup], each: Result, y: float, number: int, *, is_alone: bool) -> None:
    look = _look(each, groups)
    low, high = each.figures["ci95"]
    value = each.figures["accuracy"]
    gid = f"stages-group{each.group_index}-{number}" if each.is_mean else f"stages-run{each.run_index}-{number}"
    line: dict[str, Any] = {"color": look.colour, "solid_capstyle": "butt", "zorder": 3}
    axes.plot([low, high], [y, y], linewidth=3.2 if each.is_mean else 2.0, alpha=0.55, gid=f"{gid}00", **line)
    axes.plot([value], [y], marker=look.marker, markersize=6.5 if each.is_mean or is_alone else 4.5, linestyle="none", gid=gid, **line)
    if is_alone or each.is_mean:
        times = f"  \N{MULTIPLICATION SIGN}{each.times.value:.1f}" if each.times else ""
        is_right = high < 0.66
        axes.annotate(
            f"{100 * value:.1f} %{times}", (high if is_right else low, y), (8 if is_right else -8, 0), textcoords="offset points",
            va="center", ha="left" if is_right else "right", color=INK, fontsize=10,
        )  # fmt: skip


def _look(each: Result, groups: Sequence[SeedGroup]) -> RunStyle:
    if each.is_mean:
        return RunStyle(INK if len(groups) == 1 else COLOURS[each.group_index % len(COLOURS)], "solid", "o")
    return run_style(each.run_index)


def _run_keys(runs: Sequence[RunData], groups: Sequence[SeedGroup]) -> list[tuple[str, RunStyle]]:
    if len(runs) == 1:
        return []
    names = short_names([run.name for run in runs])
    keys = [(name, run_style(index)) for index, name in enumerate(names)]
    means = [(group.name, RunStyle(INK if len(groups) == 1 else COLOURS[place], "solid", "o")) for place, group in enumerate(groups[:7])]
    return [*keys, *means]
