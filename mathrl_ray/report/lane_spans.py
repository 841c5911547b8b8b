"""When each actor of a run worked, from the spans in its rows of metrics. Called by lanes.py. Pure: rows in, times out.

A span is [actor, what, start_s, end_s], in seconds since the run began. An actor that does two things at once is busy once.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROLES = ("generator", "learner", "scorer")


@dataclass(frozen=True, slots=True)
class Span:
    actor: str
    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run."""

    name: str
    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def spans_of(rows: Iterable[Mapping[str, Any]]) -> list[Span]:
    """All spans of some rows that can be read, by start."""
    found = []
    for row in rows:
        given = row.get("spans")
        for span in given if isinstance(given, list) else ():
            try:
                actor, what, start_s, end_s = span
                found.append(Span(str(actor), str(what), float(start_s), float(end_s)))
            except (TypeError, ValueError):  # border: a row that somebody has edited
                continue
    return sorted((span for span in found if 0 <= span.end_s - span.start_s < inf), key=lambda span: span.start_s)


def stage_windows(rows: Iterable[Mapping[str, Any]]) -> list[Window]:
    """From the first span of each stage to its last, in the order of the run."""
    ends: dict[str, list[float]] = {}
    for row in rows:
        for span in spans_of([row]):
            held = ends.setdefault(str(row["stage"]), [span.start_s, span.end_s])
            held[0], held[1] = min(held[0], span.start_s), max(held[1], span.end_s)
    return sorted((Window(name, *held) for name, held in ends.items()), key=lambda window: window.start_s)


def last_steps(rows: Sequence[Mapping[str, Any]], num_steps: int) -> Window | None:
    """The newest training steps of the last stage that sampled in its steps; of the last stage at all where none did."""
    with_spans = [row for row in rows if row.get("spans")]
    trained = [row for row in with_spans if "loss" in row and {"generate"} & {span.what for span in spans_of([row])}]
    chosen = trained or with_spans
    if not chosen:
        return None
    last = [row for row in chosen if row["stage"] == chosen[-1]["stage"]][-num_steps:]
    spans = spans_of(last)
    steps = list(dict.fromkeys(row["step"] for row in last))
    name = f"{last[-1]['stage']}, step{f's {steps[0]} to' if len(steps) > 1 else ''} {steps[-1]}"
    return Window(name, spans[0].start_s, max(span.end_s for span in spans)) if spans else None


def actors_of(spans: Iterable[Span]) -> list[str]:
    """By role, then by number.

    >>> actors_of([Span("learner-0", "", 0, 1), Span("generator-10", "", 0, 1), Span("generator-2", "", 0, 1)])
    ['generator-2', 'generator-10', 'learner-0']
    """
    return sorted({span.actor for span in spans}, key=_place)


def _place(actor: str) -> tuple[int, str, int, str]:
    role, _, number = actor.rpartition("-")
    return ROLES.index(role) if role in ROLES else len(ROLES), role, int(number) if number.isdecimal() else 0, actor


def busy_by_actor(spans: Iterable[Span]) -> dict[str, list[tuple[float, float]]]:
    """Stretches in which an actor did at least one thing: apart from each other, rising.

    >>> busy_by_actor([Span("g-0", "a", 0, 2), Span("g-0", "b", 1, 3), Span("g-0", "a", 5, 6)])
    {'g-0': [(0, 3), (5, 6)]}
    """
    merged: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in sorted(spans, key=lambda each: each.start_s):
        held = merged[span.actor]
        if held and span.start_s <= held[-1][1]:
            held[-1] = (held[-1][0], max(held[-1][1], span.end_s))
        else:
            held.append((span.start_s, span.end_s))
    return dict(merged)


def busy_s(busy: Iterable[tuple[float, float]], window: Window) -> float:
    """Seconds of the window in which an actor worked.

    >>> busy_s([(0, 3), (5, 6)], Window("", 2, 10))
    2
    """
    return sum(max(min(end, window.end_s) - max(start, window.start_s), 0) for start, end in busy)


def busy_shares(busy: Sequence[tuple[float, float]], window: Window, num_bins: int) -> NDArray[np.float64]:
    """[num_bins] the share of each of equally long pieces of the window in which an actor worked.

    >>> busy_shares([(0, 3)], Window("", 0, 4), 2).tolist()
    [1.0, 0.5]
    """
    edges = np.linspace(window.start_s, window.end_s, num_bins + 1)
    if not len(busy) or window.length_s <= 0:
        return np.zeros(num_bins)
    starts, ends = np.array(busy, dtype=np.float64).T
    # the busy time up to a moment is piecewise linear, with its corners at the stretches' ends
    corners = np.stack([starts, ends], axis=1).ravel()
    lengths = np.cumsum(ends - starts)
    heights = np.stack([lengths - (ends - starts), lengths], axis=1).ravel()
    return np.clip(np.diff(np.interp(edges, corners, heights)) / np.diff(edges), 0.0, 1.0)
