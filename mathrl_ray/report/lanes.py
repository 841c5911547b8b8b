"""The lanes: what each actor of a run did over time, with its idle time. Two figures a run: the whole run, and its last steps in detail.

Called by the page and by the export. Knows spans (lane_spans.py) and matplotlib's object interface.

    whole run    a lane an actor; its height is the busy share of a 240th of the run, so what is white is idle; its idle share at the right
    last steps   every single piece of work of the last three steps, by kind
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from mathrl_ray.report.drawing import GRID, INK, REFERENCE, SOFT, WIDTH
from mathrl_ray.report.figure import Figure, mark_panel
from mathrl_ray.report.lane_spans import Span, Window, actors_of, busy_by_actor, busy_s, busy_shares, last_steps, spans_of, stage_windows
from mathrl_ray.report.run_data import Row, RunData
from mathrl_ray.report.table import Cell, Table

MOST_RUNS = 4
"""Whose lanes are drawn; lanes of more runs say little beside each other and make a page heavy."""
MOST_ACTORS = 24
"""Of one run; its further ones are in the table of idle time."""
NUM_BINS = 240
NUM_STEPS = 3
_ROLE_COLOURS = {"generator": "#0072b2", "learner": "#d55e00", "scorer": "#009e73"}
_OTHER_COLOUR = "#6b6f76"
Busy = Sequence[tuple[float, float]]
"""Stretches of work, apart from each other, rising."""
_STYLES = {
    "generate": ("#0072b2", ""),
    "train_policy": ("#d55e00", ""),
    "train_sft": ("#d55e00", ""),
    "score": ("#009e73", ""),
    "publish": ("#cc79a7", "////"),
    "apply_weights": ("#e69f00", "\\\\\\\\"),
    "canary": ("#9aa0a6", "...."),
    "response_statistics": ("#8c6d31", "----"),
    "save_checkpoint": ("#56b4e9", "xxxx"),
    "start_stage": ("#5d4f9e", "||||"),
}
"""Colour and hatch of each kind of work, so that none is told by its colour alone."""
_OTHER_STYLE = (_OTHER_COLOUR, "++")


def lane_figures(runs: Sequence[RunData]) -> list[Figure]:
    """Of the first MOST_RUNS runs that have spans: the whole run, and its last steps."""
    figures = []
    for index, run in enumerate(runs[:MOST_RUNS]):
        if windows := stage_windows(_work(run)):
            figures.append(_whole_run(index, run, _all_of(windows), windows))
        if window := last_steps(run.metrics, NUM_STEPS):
            figures.append(_last_steps(index, run, window))
    return figures


def idle_table(runs: Sequence[RunData]) -> Table | None:
    """Busy and idle time of each actor in each stage of the runs that have lanes; None where nobody has worked."""
    rows = [row for run in runs[:MOST_RUNS] for row in _idle_rows(run)]
    if not rows:
        return None
    is_one = len(runs) == 1  # and its name says nothing in a table
    left_out = f" The further {len(runs) - MOST_RUNS} runs are left out." if len(runs) > MOST_RUNS else ""
    return Table(
        "idle",
        "Idle time",
        f"From the first piece of work of a stage to its last; an actor that does two things at once is busy once.{left_out}",
        ("run", "stage", "actor", "time (s)", "busy (s)", "idle (s)", "idle share")[is_one:],
        tuple(row[is_one:] for row in rows),
        num_heads=3 - is_one,
    )


def _work(run: RunData) -> list[Row]:
    """Rows of all that was done, also of what a rollback has thrown away: it has kept the actors busy."""
    return [*run.metrics, *run.rolled_back]


def _idle_rows(run: RunData) -> list[tuple[Cell, ...]]:
    windows, spans = stage_windows(_work(run)), spans_of(_work(run))
    busy, rows = busy_by_actor(spans), []
    for window in [*windows, *([_all_of(windows)] if len(windows) > 1 else [])]:
        for actor in actors_of(spans):
            worked_s = busy_s(busy[actor], window)
            seconds = (window.length_s, worked_s, window.length_s - worked_s)
            share = _idle_share(busy[actor], window)
            heads = (Cell(run.name), Cell(window.name), Cell(actor))
            rows.append((*heads, *(Cell(f"{each:,.1f}", each) for each in seconds), Cell(f"{100 * share:.1f} %", share)))
    return rows


def _all_of(windows: Sequence[Window]) -> Window:
    return Window("whole run", windows[0].start_s, max(window.end_s for window in windows))


def _idle_share(busy: Busy, window: Window) -> float:
    return 1 - busy_s(busy, window) / window.length_s if window.length_s > 0 else 0.0


def _whole_run(index: int, run: RunData, whole: Window, windows: Sequence[Window]) -> Figure:
    spans = spans_of(_work(run))
    busy = busy_by_actor(spans)
    idle, told = _idle_of(spans, busy, whole)
    return Figure(
        name=f"lanes-{index}",
        title=f"{run.name}: who worked when",
        caption=f"Busy share of each actor in {NUM_BINS} equal pieces of {whole.length_s:,.0f} s; white is idle. Over all: {told}.",
        alt=f"Lanes of the run {run.name} over {whole.length_s:,.0f} seconds. {told}.",
        axes=("",),
        draw=lambda axis: _draw_whole(busy, idle, whole, windows),
        data=lambda: _pieces(run.name, busy, list(idle), whole),
        group="lanes",
    )


def _idle_of(spans: Sequence[Span], busy: Mapping[str, Busy], window: Window) -> tuple[dict[str, float], str]:
    """The idle share of each actor that is shown, and the same in words."""
    actors = actors_of(spans)
    idle = {actor: _idle_share(busy[actor], window) for actor in actors[:MOST_ACTORS]}
    told = ", ".join(f"{actor} idle {100 * share:.0f} %" for actor, share in idle.items())
    return idle, told + (f"; {len(actors) - MOST_ACTORS} further actors are not shown" if len(actors) > MOST_ACTORS else "")


def _pieces(run: str, busy: Mapping[str, Busy], actors: Sequence[str], whole: Window) -> list[dict[str, Any]]:
    edges = np.linspace(whole.start_s, whole.end_s, NUM_BINS + 1).round(3).tolist()
    return [
        {"run": run, "actor": actor, "start_s": start_s, "end_s": end_s, "busy_share": round(share, 4)}
        for actor in actors
        for start_s, end_s, share in zip(edges, edges[1:], busy_shares(busy[actor], whole, NUM_BINS).tolist(), strict=False)
    ]


def _draw_whole(busy: Mapping[str, Busy], idle: Mapping[str, float], whole: Window, windows: Sequence[Window]) -> Drawing:
    drawing, axes = _frame(idle, whole)
    edges = np.linspace(whole.start_s, whole.end_s, NUM_BINS + 1)
    for place, actor in enumerate(idle):
        floor = len(idle) - 1 - place
        heights = floor + 0.86 * busy_shares(busy[actor], whole, NUM_BINS)
        axes.stairs(heights, edges, baseline=floor, fill=True, color=_colour(actor), linewidth=0)
        axes.plot([whole.start_s, whole.end_s], [floor, floor], color=GRID, linewidth=0.6)
    for window in windows:
        axes.axvline(window.start_s, color=REFERENCE, linewidth=0.7, linestyle=(0, (2, 2)))
        if window.length_s > 0.021 * len(window.name) * whole.length_s:
            axes.text(window.start_s, len(idle) + 0.06, f" {window.name.replace('_', ' ')}", color=SOFT, va="bottom")
    return drawing


def _last_steps(index: int, run: RunData, window: Window) -> Figure:
    spans = [span for span in spans_of(_work(run)) if span.end_s > window.start_s and span.start_s < window.end_s]
    idle, told = _idle_of(spans, busy_by_actor(spans), window)
    return Figure(
        name=f"lanes-{index}-last-steps",
        title=f"{run.name}: {window.name.replace('_', ' ')}, in detail",
        caption=f"Every piece of work in {window.length_s:,.1f} s; an actor that does two things at once is busy once. {told}.",
        alt=f"Lanes of the run {run.name}, {window.name}, {window.length_s:,.1f} seconds. {told}.",
        axes=("",),
        draw=lambda axis: _draw_steps(spans, idle, window),
        data=lambda: [_piece(run.name, span) for span in spans],
        group="lanes",
    )


def _piece(run: str, span: Span) -> dict[str, Any]:
    return {"run": run, "actor": span.actor, "start_s": span.start_s, "end_s": span.end_s, "what": span.what}


def _draw_steps(spans: Sequence[Span], idle: Mapping[str, float], window: Window) -> Drawing:
    drawing, axes = _frame(idle, window)
    handles = {}
    for what in sorted({span.what for span in spans}, key=lambda what: ([*_STYLES, what].index(what), what)):
        for place, actor in enumerate(idle):
            pieces = [(span.start_s, span.end_s - span.start_s) for span in spans if span.actor == actor and span.what == what]
            if pieces:
                handles[what] = axes.broken_barh(pieces, (len(idle) - 1 - place, 0.8), **_style(what))
    drawing.legend(
        handles.values(), [what.replace("_", " ") for what in handles], loc="outside lower center", ncols=3,
        handlelength=1.6, columnspacing=1.4,
    )  # fmt: skip
    return drawing


def _style(what: str) -> dict[str, Any]:
    colour, hatch = _STYLES.get(what, _OTHER_STYLE)
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}


def _frame(idle: Mapping[str, float], window: Window) -> tuple[Drawing, Axes]:
    """A lane for each actor, the first on top, with its idle share at the right."""
    drawing = Drawing(figsize=(WIDTH, 1.4 + 0.5 * len(idle)), layout="constrained")
    axes = drawing.subplots()
    axes.set_xlim(window.start_s, max(window.end_s, window.start_s + 0.001))
    axes.set_ylim(-0.12, len(idle) + 0.02)
    places = [len(idle) - 1 - place + 0.4 for place in range(len(idle))]
    axes.set_yticks(places, list(idle), parse_math=False)
    shares = axes.secondary_yaxis("right")
    shares.set_yticks(places, [f"idle {100 * share:.0f} %" for share in idle.values()])
    shares.spines["right"].set_visible(False)
    axes.set_xlabel("seconds since the run began", color=SOFT)
    for each in (axes, shares):
        each.tick_params(axis="y", length=0, labelcolor=INK)
    axes.tick_params(axis="x", color=SOFT)
    axes.grid(visible=False)
    mark_panel(axes, "")
    return drawing, axes


def _colour(actor: str) -> str:
    return _ROLE_COLOURS.get(actor.rpartition("-")[0], _OTHER_COLOUR)
