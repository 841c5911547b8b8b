"""The figures of accuracy by level and by subject: of one run its stages, of several the last stage of each. Called by figures.py."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure as Drawing

from mathrl_ray.report.drawing import RunStyle, run_style
from mathrl_ray.report.figure import Figure, mark_panel
from mathrl_ray.report.result_axes import finish, legend_height, results_caption, rows_of_names, shown_names
from mathrl_ray.report.results import Result
from mathrl_ray.report.run_data import RunData


def part_figure(runs: Sequence[RunData], chosen: Sequence[Result], word: str) -> Figure | None:
    key = f"by_{word}"
    held = [each for each in chosen if each.figures.get(key)]
    if not held:
        return None
    names = list(dict.fromkeys(part["name"] for each in held for part in each.figures[key]))
    names = sorted(names, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0)) if word == "level" else names
    rows = [_part_row(each, part) for each in held for part in each.figures[key]]
    said = [_parts_said(each, key, label) for each, label in zip(held, shown_names(runs, held), strict=True)]
    return Figure(
        name=key,
        title=f"Accuracy by {word}",
        caption=results_caption(runs, held, f"Accuracy by {word}"),
        alt=f"Accuracy by {word}. {' '.join(said)}",
        axes=("",),
        draw=lambda _: _draw_parts(runs, held, names, word),
        data=lambda: rows,
        group="parts",
    )


def _part_row(each: Result, part: Mapping[str, Any]) -> dict[str, Any]:
    low, high = part["ci95"]
    told = {"run": each.name, "run_index": each.run_index, "stage": each.stage, "part": part["name"]}
    return {**told, "value": part["accuracy"], "low": low, "high": high, "n": part["num_problems"]}


def _parts_said(each: Result, key: str, label: str) -> str:
    told = [f"{part['name']} {100 * part['accuracy']:.1f} %" for part in each.figures[key]]
    return f"{label}: {', '.join(told)}."


def _draw_parts(runs: Sequence[RunData], held: Sequence[Result], names: Sequence[str], word: str) -> Drawing:
    """A row a level or subject, in it a point a stage or run, in the same place in each row."""
    row = max(0.4, 0.16 + 0.13 * len(held))
    keys = [(name, _part_look(runs, each, place)) for place, (name, each) in enumerate(zip(shown_names(runs, held), held, strict=True))]
    drawing, axes = rows_of_names(len(names), row, below=0.47 + legend_height(keys))
    for place, each in enumerate(held):
        look = keys[place][1]
        offset = (place - (len(held) - 1) / 2) * 0.78 / max(len(held), 2)
        parts = [part for part in each.figures[f"by_{word}"] if part["name"] in names]
        ys = [names.index(part["name"]) + offset for part in parts]
        gid = f"by_{word}-run{each.run_index}-{place}"
        lows, highs = [part["ci95"][0] for part in parts], [part["ci95"][1] for part in parts]
        axes.hlines(ys, lows, highs, color=look.colour, linewidth=1.8, alpha=0.55, gid=f"{gid}00", zorder=2)
        values = [part["accuracy"] for part in parts]
        axes.plot(values, ys, marker=look.marker, color=look.colour, markersize=4.8, linestyle="none", gid=gid, zorder=3)
    finish(drawing, axes, [f"level {name}" if word == "level" else _cut(name) for name in names], keys)
    mark_panel(axes, "")
    return drawing


def _cut(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"


def _part_look(runs: Sequence[RunData], each: Result, place: int) -> RunStyle:
    return run_style(place if len(runs) == 1 else each.run_index)
