"""Figures as a page shows them: inline SVG for each axis, and the numbers behind it for the readout and the table under the chart.

Called by page.py. Knows Figure; draws nothing itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from mathrl_ray.report.figure import AXES, Figure, svg_of
from mathrl_ray.report.shown_text import brief
from mathrl_ray.report.svg_paths import with_short_paths

MOST_ROWS = 6_000
"""Rows of a figure that is no curve (bars, lanes) that a page keeps."""
_LONGEST_CELL = 200


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure in a page."""

    name: str
    title: str
    caption: str
    notes: tuple[str, ...]
    group: str
    drawings: tuple[tuple[str, str], ...]
    """(axis, SVG); one with the axis "" where the figure has only one form."""
    numbers: dict[str, Any]
    """For page.js, as JSON: `curve_numbers` or `row_numbers`."""


def chart_of(figure: Figure) -> Chart:
    rows = figure.data()
    return Chart(
        name=figure.name,
        title=figure.title,
        caption=figure.caption,
        notes=figure.notes,
        group=figure.group,
        drawings=tuple((axis, with_short_paths(svg_of(figure, axis))) for axis in figure.axes),
        numbers=curve_numbers(rows) if figure.axes != ("",) else row_numbers(rows),
    )


def curve_numbers(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Points by line, each [x, value] or [x, value, low, high, n], where x is the place of its (step, tokens, seconds) in `xs`.

    The xs are written once for all lines: mean, format and answer reward of a step share one.
    """
    xs: dict[tuple[Any, ...], int] = {}
    series: dict[tuple[Any, ...], list[list[Any]]] = {}
    for row in rows:
        if row.get("value") is None:
            continue
        x = xs.setdefault(tuple(_place(row.get(axis), axis) for axis in AXES), len(xs))
        key = (row.get("run_index", -1), *(_figures(row.get(name, "")) for name in ("run", "group", "stage", "line")))
        point = [x, _figures(row["value"])]
        if row.get("low") is not None:
            point += [_figures(row["low"]), _figures(row["high"]), row.get("n")]
        series.setdefault(key, []).append(point)
    names = ("run", "name", "group", "stage", "line")
    return {"xs": [list(x) for x in xs], "series": [{**dict(zip(names, key, strict=True)), "points": held} for key, held in series.items()]}


def row_numbers(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows as they are: {"columns": names, "rows": values, "num_rows": of all}."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    kept = rows[:MOST_ROWS]
    return {"columns": columns, "rows": [[_figures(row.get(name)) for name in columns] for row in kept], "num_rows": len(rows)}


def _figures(value: Any) -> Any:
    """A number with five significant digits, a text without unseen marks; null for what JSON has no number for."""
    match value:
        case float():
            return float(f"{value:.5g}") if isfinite(value) else None
        case str():
            return brief(value, _LONGEST_CELL)
        case bool() | int() | None:
            return value
        case _:
            return brief(str(value), _LONGEST_CELL)


def _place(value: Any, axis: str) -> Any:
    """On an axis: a tenth of a second is enough; an update of expert iteration stands at a part of its round.

    >>> _place(2.345, "wall_clock_s"), _place(1 / 3, "step"), _place(float("nan"), "step"), _place(None, "generated_tokens")
    (2.3, 0.3333, None, None)
    """
    if isinstance(value, float):
        return round(value, 1 if axis == "wall_clock_s" else 4) if isfinite(value) else None
    return value if isinstance(value, int) else None
