"""What the live view shows, gathered from a run's rows of metrics and from what its stages tell.

Written by console.py, drawn by live_view.py. Pure: knows no terminal; times are seconds of one clock that the caller reads.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from mathrl_ray.core.masking import masked_text
from mathrl_ray.core.one_line import one_line

ROLES = ("generator", "learner", "scorer")
NUM_WARNINGS = 3
MOST_SHOWN = 400
"""Characters of a problem or a response that are kept; a line shows fewer."""
MOST_POINTS = 400
"""Of a curve."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One number of the steps."""

    label: str
    names: tuple[str, ...]
    """In metrics.jsonl; the first that a row has."""
    unit: str = ""
    is_fraction: bool = False
    """Drawn between 0 and 1, else between 0 and its largest value."""


CURVES = (
    Curve("reward", ("reward_mean",), is_fraction=True),
    Curve("format", ("format_reward_mean",), is_fraction=True),
    Curve("loss", ("loss",)),
    Curve("entropy", ("entropy_nats", "response_entropy_nats"), "nats"),
    Curve("length", ("response_tokens_mean",), "tokens"),
    Curve("pool", ("pool_size",), "responses"),
)
"""In the order in which they are shown, and given up where there is no room."""


@dataclass(frozen=True, slots=True)
class Point:
    """The values of steps that follow each other."""

    place: tuple[int, int]
    """Of the last of them: its step, and in a round the update."""
    total: float
    num: int = 1


@dataclass(frozen=True, slots=True)
class Series:
    """What a curve has so far: at most MOST_POINTS points, so that a frame costs the same in a long run."""

    points: Sequence[Point] = ()
    num_each: int = 1
    """Values of a full point."""
    latest: float = nan

    @property
    def values(self) -> list[float]:
        """The mean of each point."""
        return [point.total / point.num for point in self.points]

    def until(self, step: int) -> "Series":
        """Without the values of later steps."""
        points = [point for point in self.points if point.place[0] <= step]
        return Series(points, self.num_each, points[-1].total / points[-1].num if points else nan)

    def followed_by(self, place: tuple[int, int], value: float) -> "Series":
        """With one value more, in the place of all from there on: the run went back. What is no number is in no mean.

        >>> Series().followed_by((1, 0), 0.5).followed_by((2, 0), 1.5).followed_by((2, 0), 2.5).values
        [0.5, 2.5]
        """
        points = [point for point in self.points if point.place < place]
        if not isfinite(value):
            return Series(points, self.num_each, value)
        if points and points[-1].num < self.num_each:
            points[-1] = Point(place, points[-1].total + value, points[-1].num + 1)
        else:
            points.append(Point(place, value))
        if len(points) <= MOST_POINTS:
            return Series(points, self.num_each, value)
        pairs = [points[start : start + 2] for start in range(0, len(points), 2)]
        halved = [Point(pair[-1].place, sum(each.total for each in pair), sum(each.num for each in pair)) for pair in pairs]
        return Series(halved, 2 * self.num_each, value)


@dataclass(frozen=True, slots=True)
class Measured:
    """An accuracy, with all that it must not be shown without."""

    what: str
    accuracy: float
    low: float | None
    """None in rows of a former version."""
    high: float | None
    num_problems: int
    """That it rests on."""
    step: int
    num_samples: int = 1
    """Of each problem."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response of the last step."""

    problem: str
    response: str
    outcome: str


@dataclass
class LiveState:
    """The present stage, as far as it came."""

    run_name: str
    stages: Sequence[str]
    """All of the job, in order."""
    secrets: Collection[str] = ()
    began_s: float = 0.0
    stage: str = ""
    plan: str = ""
    stage_began_s: float = 0.0
    step: int = 0
    num_steps: int = 0
    remaining_s: float | None = None
    curves: dict[str, Series] = field(default_factory=dict)
    """By label. A series is put in another's place, never changed: the view is drawn by a thread of its own."""
    accuracies: list[Measured] = field(default_factory=list)
    """All that hold, the newest last."""
    load: dict[str, float] = field(default_factory=dict)
    """The share of the last step's time that each role worked."""
    queue: dict[str, int] = field(default_factory=dict)
    staleness: tuple[float, float] | None = None
    """Mean and largest of the last step."""
    sample: Sample | None = None
    warnings: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NUM_WARNINGS))
    """(time since began_s, text), the newest last."""
    doing: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    """What goes on for long: what is done, all, and of what."""

    def begin_stage(self, stage: str, plan: str, now_s: float) -> None:
        """Forget the stage before, but for its accuracy and the warnings."""
        self.stage, self.plan, self.stage_began_s = stage, self._clean(plan), now_s
        self.step, self.num_steps, self.remaining_s = 0, 0, None
        self.curves, self.load, self.queue, self.staleness, self.sample, self.doing = {}, {}, {}, None, None, {}

    @property
    def measured(self) -> Measured | None:
        return self.accuracies[-1] if self.accuracies else None

    def went_back(self, step: int) -> None:
        """The stage is after this step again: forget what is of later ones."""
        self.step, self.remaining_s = step, None
        self.curves = {label: left for label, series in self.curves.items() if (left := series.until(step)).points}
        of_stage = f"{self.stage} "
        self.accuracies = [each for each in self.accuracies if each.step <= step or not each.what.startswith(of_stage)]
        self.load, self.queue, self.staleness, self.sample, self.doing = {}, {}, None, None, {}

    def at_step(self, step: int, num_steps: int, remaining_s: float) -> None:
        self.step, self.num_steps, self.remaining_s = step, num_steps, remaining_s

    def row(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl."""
        if "validation_accuracy" in row:
            self._measured(row, "validation_", f"{row['stage']} validation")
        elif "accuracy" in row:
            self._measured(row, "", f"{row['stage']} test")
        else:
            self._take_curves(row)
        if "step_s" in row and row["step_s"] > 0:
            self.load = {role: row[f"{role}_work_s"] / row["step_s"] for role in ROLES if f"{role}_work_s" in row}
        if "groups_in_flight" in row:
            names = {"in_flight": "in flight", "scoring": "grading", "buffered": "buffered", "free": "free"}
            self.queue = {shown: int(row[f"groups_{name}"]) for name, shown in names.items() if f"groups_{name}" in row}
        if "staleness_mean" in row:
            self.staleness = row["staleness_mean"], row["staleness_max"]

    def _measured(self, row: Mapping[str, Any], prefix: str, what: str) -> None:
        num_samples = int(row.get(f"{prefix}num_samples", 1))
        num_ungraded = row[f"{prefix}num_ungraded"] if num_samples == 1 else 0  # of responses; rows of a former version say no more
        num_problems = int(row.get(f"{prefix}num_graded_problems", row[f"{prefix}num_problems"] - num_ungraded))
        low, high = row.get(f"{prefix}ci95_low"), row.get(f"{prefix}ci95_high")
        self.accuracies.append(Measured(what, row[f"{prefix}accuracy"], low, high, num_problems, row["step"], num_samples))

    def _take_curves(self, row: Mapping[str, Any]) -> None:
        is_update = "optimizer_step" in row  # of a pool: its entropy is of other tokens than the round's
        place = row["step"], row.get("optimizer_step", 0)
        for curve in CURVES:
            name = next((name for name in curve.names if name in row), None)
            if name is None or (is_update and curve.label != "loss"):
                continue
            self.curves[curve.label] = self.curves.get(curve.label, Series()).followed_by(place, float(row[name]))

    def warn(self, text: str, now_s: float) -> None:
        self.warnings.append((now_s - self.began_s, self._clean(text)))

    def take_sample(self, problem: str, response: str, outcome: str) -> None:
        self.sample = Sample(self._clean(problem), self._clean(response, keep_end=True), outcome)

    def progress(self, what: str, num_done: int, num_all: int, unit: str) -> None:
        """Of something long; it is forgotten when all is done."""
        self.doing.pop(what, None)
        if num_done < num_all:
            self.doing[what] = num_done, num_all, unit

    def _clean(self, text: str, *, keep_end: bool = False) -> str:
        """One line without secrets; cut well beside what is kept, so that no half of a secret stays."""
        near = text[-4 * MOST_SHOWN :] if keep_end else text[: 4 * MOST_SHOWN]
        return one_line(masked_text(near, self.secrets), MOST_SHOWN, keep_end=keep_end)
