"""The figures of responses: outcomes as stacked bars, and how long right and wrong ones are. Called by figures.py.

Of one run its stages, of several the last stage of each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
from matplotlib.figure import Figure as Drawing

from mathrl_ray.report.curve_words import numbers_of, protocol
from mathrl_ray.report.drawing import INK, REFERENCE, RunStyle, percent_ticks, plain
from mathrl_ray.report.figure import Figure, mark_panel
from mathrl_ray.report.result_axes import fitted, handles_of, rows_of_names, shown_names
from mathrl_ray.report.results import Result, token_lengths
from mathrl_ray.report.run_data import RunData, StageData
from mathrl_ray.types import Outcome

_OUTCOME_LOOKS = {
    "correct": ("#0072B2", "", "white"),
    "wrong": ("#E69F00", "", INK),
    "no_answer": ("#BDBDBD", "", INK),
    "unparseable_answer": ("#D6C6E1", "////", INK),
    "truncated": ("#F4B8A0", "\\\\\\\\", INK),
    "grader_timeout": ("#8C564B", "", "white"),
    "grader_error": ("#555555", "xxxx", "white"),
    "bad_gold": ("#222222", "....", "white"),
}
"""Colour, hatch, and colour of the text on it."""


def outcomes_figure(runs: Sequence[RunData], chosen: Sequence[Result]) -> Figure | None:
    held = [each for each in chosen if each.figures.get("outcomes")]
    if not held:
        return None
    names = shown_names(runs, held)
    shares = [{name: count / sum(each.figures["outcomes"].values()) for name, count in each.figures["outcomes"].items()} for each in held]
    rows = [_outcome_row(each, name, share) for each, of in zip(held, shares, strict=True) for name, share in of.items()]
    said = [_outcomes_said(name, of) for name, of in zip(names, shares, strict=True)]
    numbers = numbers_of(sum(each.figures["outcomes"].values()) for each in held)
    return Figure(
        name="outcomes",
        title="Outcomes",
        caption=f"Share of n = {numbers} responses of the final evaluation by outcome; {protocol(runs)}.",
        alt=f"Outcomes. {' '.join(said)}",
        axes=("",),
        draw=lambda _: _draw_outcomes(held, names, shares),
        data=lambda: rows,
        group="outcomes",
    )


def _outcome_row(each: Result, outcome: str, share: float) -> dict[str, Any]:
    told = {"run": each.name, "run_index": each.run_index, "stage": each.stage, "outcome": outcome}
    return {**told, "value": share, "n": each.figures["outcomes"][outcome]}


def _outcomes_said(name: str, shares: Mapping[str, float]) -> str:
    told = [f"{outcome.replace('_', ' ')} {100 * share:.1f} %" for outcome, share in shares.items()]
    return f"{name}: {', '.join(told)}."


def _draw_outcomes(held: Sequence[Result], names: Sequence[str], shares: Sequence[Mapping[str, float]]) -> Drawing:
    order = [name for name in get_args(Outcome) if any(of.get(name) for of in shares)]
    num_legend = -(-len(order) // 3)
    drawing, axes = rows_of_names(len(held), 0.36 if len(held) <= 10 else 0.26, below=0.4 + 0.21 * num_legend)
    axes.grid(visible=False)
    patches = []
    starts = np.zeros(len(held))
    for outcome in order:
        colour, hatch, ink = _OUTCOME_LOOKS[outcome]
        widths = np.array([of.get(outcome, 0.0) for of in shares])
        bars = axes.barh(range(len(held)), widths, 0.72, left=starts, color=colour, hatch=hatch, edgecolor="white", linewidth=0.8)
        for place, (bar, width) in enumerate(zip(bars, widths, strict=True)):
            bar.set_gid(f"outcomes-run{held[place].run_index}-{place}{order.index(outcome)}")
            if width >= 0.085:
                axes.text(starts[place] + width / 2, place, f"{100 * width:.0f} %", color=ink, ha="center", va="center", fontsize=9.5)
        patches.append(bars[0])
        starts += widths
    axes.set_yticks(range(len(held)), [plain(fitted(name)) for name in names], color=INK)
    axes.set_xlim(0, 1)
    percent_ticks(axes, "x", 4)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", length=0)
    axes.set_axisbelow(True)
    drawing.legend(
        patches, [name.replace("_", " ") for name in order], loc="lower left", bbox_to_anchor=(0.005, 0), ncols=3, handlelength=1.2,
        columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
    mark_panel(axes, "")
    return drawing


def lengths_figure(runs: Sequence[RunData], chosen: Sequence[Result]) -> Figure | None:
    found = [(each, token_lengths(_stage(runs, each))) for each in chosen]
    held = [(each, lengths) for each, lengths in found if any(lengths.values())]
    if not held:
        return None
    names = shown_names(runs, [each for each, _ in held])
    rows = [_length_row(each, kind, values) for each, lengths in held for kind, values in lengths.items() if values]
    said = [f"{row['run'] if len(runs) > 1 else row['stage']}, {row['line']}: median {row['value']:.0f} tokens." for row in rows]
    return Figure(
        name="lengths",
        title="Lengths of right and wrong responses",
        caption="Tokens of the responses of the final evaluation: median (mark) and the middle 80 % (line); what could not be graded is "
        f"left out; n = {numbers_of(sum(map(len, lengths.values())) for _, lengths in held)} responses; {protocol(runs)}.",
        alt=f"Lengths of right and wrong responses. {' '.join(said)}",
        axes=("",),
        draw=lambda _: _draw_lengths(rows, [each for each, _ in held], names),
        data=lambda: rows,
        group="outcomes",
    )


def _stage(runs: Sequence[RunData], each: Result) -> StageData:
    return next(stage for stage in runs[each.run_index].stages if stage.name == each.stage)


def _length_row(each: Result, kind: str, values: Sequence[int]) -> dict[str, Any]:
    low, median, high = (float(value) for value in np.quantile(values, (0.1, 0.5, 0.9)))
    told = {"run": each.name, "run_index": each.run_index, "stage": each.stage, "line": kind}
    return {**told, "value": median, "low": low, "high": high, "mean": float(np.mean(values)), "n": len(values)}


def _draw_lengths(rows: Sequence[Mapping[str, Any]], held: Sequence[Result], names: Sequence[str]) -> Drawing:
    drawing, axes = rows_of_names(len(held), 0.42 if len(held) <= 10 else 0.3, below=0.68)
    places = {(each.run_index, each.stage): place for place, each in enumerate(held)}
    looks = {"right": ("#0072B2", "o", -0.15), "wrong": ("#D55E00", "s", 0.15)}
    for number, row in enumerate(rows):
        colour, marker, offset = looks[row["line"]]
        y = places[row["run_index"], row["stage"]] + offset
        gid = f"lengths-run{row['run_index']}-{number}"
        axes.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=2.2, alpha=0.5, solid_capstyle="butt", gid=f"{gid}00")
        axes.plot([row["value"]], [y], marker=marker, color=colour, markersize=5.5, linestyle="none", gid=gid)
    axes.set_yticks(range(len(held)), [plain(fitted(name)) for name in names], color=INK)
    axes.set_xlim(left=0)
    axes.spines["bottom"].set_color(REFERENCE)
    axes.set_xlabel("tokens per response")
    keys = [(word, RunStyle(colour, "solid", marker)) for word, (colour, marker, _) in looks.items()]
    drawing.legend(*handles_of(keys), loc="lower left", bbox_to_anchor=(0.005, 0), ncols=2, borderaxespad=0.2, handlelength=1.6)
    mark_panel(axes, "")
    return drawing
