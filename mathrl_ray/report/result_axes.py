"""What the figures of results share: which results, their names and caption, and axes with a name at the left of each row.

Called by stage_figure.py, part_figures.py and response_figures.py.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from mathrl_ray.report.curve_words import interval_words, numbers_of, protocol
from mathrl_ray.report.drawing import INK, RunStyle, new_drawing, percent_ticks, plain, row_by_row, short_names
from mathrl_ray.report.results import Result
from mathrl_ray.report.run_data import RunData

LEFT, RIGHT = 1.35, 0.25
"""Inches: room for names."""


def chosen_results(runs: Sequence[RunData], found: Sequence[Result]) -> list[Result]:
    own = [each for each in found if not each.is_mean]
    if len(runs) == 1:
        return own
    return [[each for each in own if each.run_index == index][-1] for index in dict.fromkeys(each.run_index for each in own)]


def shown_names(runs: Sequence[RunData], chosen: Sequence[Result]) -> list[str]:
    """Of one run the stages, of several the runs, with their stages where these differ."""
    if len(runs) == 1:
        return [each.stage.replace("_", " ") for each in chosen]
    names, stages = short_names([run.name for run in runs]), {each.stage for each in chosen}
    return [names[each.run_index] + ("" if len(stages) == 1 else f", {each.stage.replace('_', ' ')}") for each in chosen]


def results_caption(runs: Sequence[RunData], chosen: Sequence[Result], what: str, *, of_last: bool = True) -> str:
    """With n, interval and protocol; `of_last` where only the last stage of each run is shown."""
    numbers = numbers_of(each.figures.get("num_graded_problems", each.figures["num_problems"]) for each in chosen)
    stages = {each.stage for each in chosen}
    which = f" of the stage {next(iter(stages))}" if len(stages) == 1 else " of each run's last stage"
    of = which if of_last and len(runs) > 1 else ""
    return f"{what}{of}, n = {numbers} held-out problems, 95 % {interval_words(runs)}; {protocol(runs)}."


def rows_of_names(num_rows: int, row_height: float, *, below: float = 0.45, above: float = 0.1) -> tuple[Drawing, Axes]:
    """Axes with names at the left and rows of a fixed height, the first at the top."""
    height = above + below + num_rows * row_height
    drawing = new_drawing(height)
    width = float(drawing.get_size_inches()[0])
    axes = drawing.add_axes((LEFT / width, below / height, (width - LEFT - RIGHT) / width, num_rows * row_height / height))
    axes.set_ylim(num_rows - 0.5, -0.5)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    return drawing, axes


def handles_of(keys: Sequence[tuple[str, RunStyle]]) -> tuple[list[Any], list[str]]:
    lines = [Line2D([], [], color=look.colour, linewidth=2, marker=look.marker, markersize=5) for _, look in keys]
    return lines, [plain(text) for text, _ in keys]


def fitted(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:8]}…{name[-8:]}"


def finish(drawing: Drawing, axes: Axes, names: Sequence[str], keys: Sequence[tuple[str, RunStyle]]) -> None:
    """Names at the rows, accuracy along the other axis, a legend below."""
    axes.set_yticks(range(len(names)), [plain(name) for name in names], color=INK)
    axes.set_xlim(0, 1.02)
    percent_ticks(axes, "x")
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("accuracy")
    if len(keys) > 1:
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.005, 0), "borderaxespad": 0.2}
        num = legend_columns(keys)
        drawing.legend(*handles_of(row_by_row(keys, num)), **place, ncols=num, columnspacing=1.2, handlelength=1.6)


def legend_columns(keys: Sequence[tuple[str, RunStyle]]) -> int:
    """As many as their longest text leaves room for."""
    return max(1, min(4, 66 // (max(len(text) for text, _ in keys) + 6)))


def legend_height(keys: Sequence[tuple[str, RunStyle]]) -> float:
    """Inches."""
    return 0.2 * -(-len(keys) // legend_columns(keys)) if len(keys) > 1 else 0.0
