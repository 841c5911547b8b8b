"""Which curves a report has, and their points: numbers of metrics rows by run, stage and line, against step, generated tokens and time.

Called by curve_figures.py. Pure of drawing: RunData in, points out. Where each x comes from:

    step               of expert iteration the round: a round's row stands at its number r, its k-th of n updates at r - 1 + k / n
    generated_tokens   consumed_tokens_total of the row, of an update that of its round: tokens sampled for learning so far in the stage;
                       None in a stage that samples none
    wall_clock_s       time_s less that of the stage's first row, also where that was moved aside

What a rollback or a resumed run has moved aside is a line of its own for each time, at the tokens and times of its own rows.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, NamedTuple

from mathrl_ray.report.run_data import Row, RunData, StageData

Figures = Mapping[str, Any]
Kind = Literal["line", "superseded", "final"]
Form = Literal["number", "percent", "nats", "whole"]


@dataclass(frozen=True, slots=True)
class Line:
    """One number of a curve."""

    key: str
    """In metrics.jsonl."""
    name: str
    """Beside the curve's other lines; "" where it is the only one."""
    other_keys: Mapping[str, str] = field(default_factory=dict)
    """Stage -> key, where a stage calls it otherwise."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure over time."""

    name: str
    title: str
    what: str
    """What is on the vertical axis, with its unit."""
    lines: tuple[Line, ...]
    form: Form = "number"
    told: str = ""
    """A sentence for the caption."""
    share_y: bool = True
    """Whether stages have the same vertical axis."""
    is_log: bool = False


_PER_TOKEN = "Means over tokens."
CURVES = (
    Curve(
        "reward",
        "Reward",
        "reward per response",
        (Line("reward_mean", ""), Line("format_reward_mean", "format"), Line("answer_reward_mean", "answer")),
        told="Means over the responses that were sampled for learning in each step.",
    ),
    Curve("accuracy", "Accuracy while training", "accuracy", (Line("validation_accuracy", ""),), "percent"),
    Curve(
        "entropy",
        "Entropy",
        "entropy (nats per token)",
        (Line("entropy_nats", "", {"expert_iteration": "response_entropy_nats"}),),
        "nats",
        "Mean over tokens of the learner's distribution at temperature 1: of the batch that is trained on, in expert iteration of the "
        "round's responses; 1 nat is 1.443 bits.",
    ),
    Curve("response_tokens", "Response length", "tokens per response", (Line("response_tokens_mean", ""),), told="Mean over responses."),
    Curve(
        "truncated",
        "Responses cut off",
        "share of responses",
        (Line("truncated_fraction", ""),),
        "percent",
        "Those that generator.max_tokens has ended.",
    ),
    Curve(
        "importance_ratio",
        "Importance ratio",
        "mean importance ratio",
        (Line("importance_ratio_mean", ""),),
        told=f"{_PER_TOKEN} 1 is on-policy.",
    ),
    Curve(
        "mismatch_kl",
        "Learner against generator",
        "mismatch KL (nats per token)",
        (Line("mismatch_kl", ""),),
        told="Mean of exp(d) - 1 - d, d = the learner's log-probability less the generator's.",
    ),
    Curve("clip_fraction", "Clipped tokens", "share of tokens", (Line("clip_fraction", ""),), "percent"),
    Curve(
        "grad_norm",
        "Gradient norm",
        "gradient norm before clipping",
        (Line("grad_norm", ""),),
        told="Logarithmic scale.",
        share_y=False,
        is_log=True,
    ),
    Curve("loss", "Loss", "loss", (Line("loss", ""),), told="Stages have losses of different kinds, and so scales.", share_y=False),
    Curve("learning_rate", "Learning rate", "learning rate", (Line("learning_rate", ""),), share_y=False),
    Curve(
        "staleness",
        "Staleness",
        "policy versions behind",
        (Line("staleness_mean", "mean"), Line("staleness_max", "max")),
        "whole",
        "Learner's policy version less a trajectory's oldest, when it is trained on.",
    ),
    Curve(
        "zero_variance",
        "Groups without a signal",
        "share of groups",
        (Line("zero_variance_fraction", ""),),
        "percent",
        "Groups whose responses all earned the same.",
    ),
)


class Point(NamedTuple):
    """A place on each axis and a value. A tuple, since a report of 20 runs of 1,000 steps makes some 400,000 of them."""

    step: float
    generated_tokens: float | None
    wall_clock_s: float | None
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    """Problems behind an accuracy, or runs behind a mean over seeds."""

    def x(self, axis: str) -> float | None:
        value: float | None = getattr(self, axis)
        return value


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one line of one run in one stage, or of a group's mean (run_index = -1)."""

    run_index: int
    group_index: int
    """-1 outside of groups."""
    stage: str
    line: str
    points: tuple[Point, ...]
    kind: Kind = "line"
    is_of_updates: bool = False
    """Of expert iteration's updates, whose numbers differ between runs."""


class RunCurves:
    """One run's numbers, line after line; where its rows stand on the axes is found once."""

    def __init__(self, run: RunData, run_index: int, group_index: int) -> None:
        self._run, self._run_index, self._group_index = run, run_index, group_index
        self._stretches = {stage.name: _stretches(stage) for stage in run.stages}

    def series_of(self, curve: Curve, line: Line) -> list[Series]:
        """What the run has of one line; stages without it are left out."""
        of_stage = self._accuracies if curve.name == "accuracy" else self._trained
        return [each for stage in self._run.stages for each in of_stage(stage, line)]

    def _trained(self, stage: StageData, line: Line) -> Iterator[Series]:
        key = line.other_keys.get(stage.name, line.key)
        for held in self._stretches[stage.name]:
            yield from self._series(stage, held, held.rows, key, line.name)

    def _accuracies(self, stage: StageData, line: Line) -> Iterator[Series]:
        """The validations, and the final evaluation of the test problems as a point of its own."""
        for held in self._stretches[stage.name]:
            yield from self._series(stage, held, held.validations, line.key, "", _interval)
        if stage.summary and stage.rows:
            final = _final(self._run, stage, stage.summary, self._stretches[stage.name][-1].places)
            yield Series(self._run_index, self._group_index, stage.name, "test", (final,), "final")

    def _series(
        self, stage: StageData, held: "_Stretch", given: Sequence[Row], key: str, name: str, more: Callable[[Row], Figures] = lambda _: {}
    ) -> Iterator[Series]:
        for part, rows in _parts([row for row in given if _number(row.get(key)) is not None]).items():
            points = tuple(held.places.point(row, float(row[key]), **more(row)) for row in rows)
            is_of_updates = any("optimizer_step" in row for row in rows)
            told = " ".join(filter(None, (name, part, held.folder)))
            kind: Kind = "superseded" if held.folder else "line"
            yield Series(self._run_index, self._group_index, stage.name, told, points, kind, is_of_updates)


def _number(value: Any) -> float | None:
    """A finite one: a loss that was not finite is written as NaN."""
    return float(value) if type(value) in (float, int) and isfinite(value) else None


def _parts(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """A sweep of SFT sizes trains one model after the other, each from step 1."""
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        parts[f"{row['sft_size']:g} traces" if _number(row.get("sft_size")) else ""].append(row)
    return dict(parts)


class _Places:
    """Where the rows of one stretch of a stage stand on each axis."""

    def __init__(self, start_s: float, rows: Sequence[Row]) -> None:
        self._start_s = start_s
        num_updates = Counter(row["step"] for row in rows if "optimizer_step" in row)
        self._tokens = {row["step"]: tokens for row in rows if (tokens := _number(row.get("consumed_tokens_total")))}
        self._steps: dict[int, float] = {}
        done: Counter[int] = Counter()
        for row in rows:
            step = row["step"]
            if "optimizer_step" in row:
                done[step] += 1
                self._steps[id(row)] = step - 1 + done[step] / num_updates[step]

    def point(self, row: Row, value: float, **more: Any) -> Point:
        """Of one of the rows."""
        step, time_s = row["step"], _number(row.get("time_s"))
        tokens = _number(row.get("consumed_tokens_total")) or self._tokens.get(step)
        return Point(self._steps.get(id(row), float(step)), tokens, None if time_s is None else time_s - self._start_s, value, **more)


class _Stretch(NamedTuple):
    """Rows of a stage that belong together: what was moved aside at one time, or what stands."""

    folder: str
    """Where the rows are; "" for those that stand."""
    rows: Sequence[Row]
    validations: Sequence[Row]
    places: _Places


def _stretches(stage: StageData) -> list[_Stretch]:
    """What was moved aside comes before what replaced it."""
    given = [*((each.folder, each.rows, each.validations) for each in stage.superseded), ("", stage.rows, stage.validations)]
    return [_Stretch(*each, _Places(stage.start_s, [*each[1], *each[2]])) for each in given]


def _interval(row: Row) -> Figures:
    names = ("ci95_low", "ci95_high", "num_problems", "num_ungraded")
    low, high, num, num_ungraded = (_number(row.get(f"validation_{name}")) for name in names)
    return {"low": low, "high": high, "n": None if num is None else int(num - (num_ungraded or 0))}


def _final(run: RunData, stage: StageData, summary: Figures, places: _Places) -> Point:
    """Where the weights stand that were evaluated: at the best step where early stopping took that one's, else where training ended."""
    low, high = summary["ci95"]
    of_test = {"low": low, "high": high, "n": summary.get("num_graded_problems", summary["num_problems"])}
    evaluated = next((row for row in reversed(run.metrics) if row["stage"] == stage.name and "accuracy" in row), None)
    best = [row for row in stage.rows if evaluated and row["step"] == evaluated["step"] == summary.get("best_step")]
    if best:
        return places.point(best[-1], summary["accuracy"], **of_test)
    last = max(row["step"] for row in stage.rows)
    tokens = summary.get("consumed_tokens") or summary.get("generated_tokens") or None
    elapsed_s = evaluated["time_s"] - stage.start_s if evaluated and "time_s" in evaluated else None
    return Point(float(last), tokens, elapsed_s, summary["accuracy"], **of_test)
