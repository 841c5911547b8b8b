"""What the live view shows, gathered from a run's rows of metrics and from what its stages tell.

Written by console.py, drawn by live_view.py. Pure: knows no terminal; times are seconds of one clock that the caller reads.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mathrl_ray.core.masking import masked_text
from mathrl_ray.core.one_line import one_line

ROLES = ("generator", "learner", "scorer")
NUM_WARNINGS = 3
MOST_SHOWN = 400
"""Characters of a problem or a response that are kept; a line shows fewer."""


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
class Measured:
    """An accuracy, with all that it must not be shown without."""

    what: str
    accuracy: float
    low: float | None
    """None in rows of a former version."""
    high: float | None
    num_problems: int
    step: int


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
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """(step, value) by label."""
    measured: Measured | None = None
    load: dict[str, float] = field(default_factory=dict)
    """The share of the last step's time that each role worked."""
    queue: dict[str, int] = field(default_factory=dict)
    staleness: tuple[float, float] | None = None
    """Mean and largest of the last step."""
    sample: Sample | None = None
    warnings: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NUM_WARNINGS))
    """(time since began_s, text), the newest last."""
    doing: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Evaluations that go on: responses that are there, and all."""

    def begin_stage(self, stage: str, plan: str, now_s: float) -> None:
        """Forget the stage before, but for its accuracy and the warnings."""
        self.stage, self.plan, self.stage_began_s = stage, self._clean(plan), now_s
        self.step, self.num_steps, self.remaining_s = 0, 0, None
        self.curves, self.load, self.queue, self.staleness, self.sample, self.doing = {}, {}, {}, None, None, {}

    def at_step(self, step: int, num_steps: int, remaining_s: float) -> None:
        self.step, self.num_steps, self.remaining_s = step, num_steps, remaining_s

    def row(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl."""
        step = row["step"]
        if "validation_accuracy" in row:
            self._measured(row, "validation_", f"{row['stage']} validation")
        elif "accuracy" in row:
            self._measured(row, "", f"{row['stage']} test")
        else:
            self._take_curves(row, step)
        if "step_s" in row and row["step_s"] > 0:
            self.load = {role: row[f"{role}_work_s"] / row["step_s"] for role in ROLES if f"{role}_work_s" in row}
        if "groups_in_flight" in row:
            names = {"in_flight": "in flight", "scoring": "grading", "buffered": "buffered", "free": "free"}
            self.queue = {shown: int(row[f"groups_{name}"]) for name, shown in names.items() if f"groups_{name}" in row}
        if "staleness_mean" in row:
            self.staleness = row["staleness_mean"], row["staleness_max"]

    def _measured(self, row: Mapping[str, Any], prefix: str, what: str) -> None:
        num_problems = int(row[f"{prefix}num_problems"] - row[f"{prefix}num_ungraded"])
        low, high = row.get(f"{prefix}ci95_low"), row.get(f"{prefix}ci95_high")
        self.measured = Measured(what, row[f"{prefix}accuracy"], low, high, num_problems, row["step"])

    def _take_curves(self, row: Mapping[str, Any], step: int) -> None:
        is_update = "optimizer_step" in row  # of a pool: its entropy is of other tokens than the round's
        step = row["optimizer_step"] if is_update else step
        for curve in CURVES:
            name = next((name for name in curve.names if name in row), None)
            if name is None or (is_update and curve.label != "loss"):
                continue
            points = self.curves.setdefault(curve.label, [])
            while points and points[-1][0] >= step:  # the run went back
                points.pop()
            points.append((step, float(row[name])))

    def warn(self, text: str, now_s: float) -> None:
        self.warnings.append((now_s - self.began_s, self._clean(text)))

    def take_sample(self, problem: str, response: str, outcome: str) -> None:
        self.sample = Sample(self._clean(problem), self._clean(response, keep_end=True), outcome)

    def progress(self, what: str, num_done: int, num_all: int) -> None:
        """Of an evaluation; it is forgotten when all are there."""
        self.doing.pop(what, None)
        if num_done < num_all:
            self.doing[what] = num_done, num_all

    def _clean(self, text: str, *, keep_end: bool = False) -> str:
        """One line without secrets; cut well beside what is kept, so that no half of a secret stays."""
        near = text[-4 * MOST_SHOWN :] if keep_end else text[: 4 * MOST_SHOWN]
        return one_line(masked_text(near, self.secrets), MOST_SHOWN, keep_end=keep_end)
