"""What was spent: seconds of each role, generated tokens, graded responses, optimizer steps; and when each actor worked at what.

Written by the loops, read by the stages for metrics.jsonl and summary.json. Knows a clock and numbers.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

ROLES = ("generator", "learner", "scorer")


@dataclass(slots=True)
class _Busy:
    """Time during which at least one of several pieces of work goes on: their union, not their sum."""

    num_open: int = 0
    since_s: float = 0.0

    def enter(self, now_s: float) -> None:
        if self.num_open == 0:
            self.since_s = now_s
        self.num_open += 1

    def leave(self, now_s: float) -> tuple[float, float] | None:
        """(start, end) where this was the last open piece."""
        self.num_open -= 1
        return None if self.num_open else (self.since_s, now_s)

    def cut(self, now_s: float) -> tuple[float, float] | None:
        """(start, now) of what is still open; it goes on from now."""
        if not self.num_open:
            return None
        start_s, self.since_s = self.since_s, now_s
        return start_s, now_s


@dataclass(slots=True)
class Counts:
    """Of a stage, from its beginning."""

    generated_tokens: int = 0
    """Tokens sampled for learning."""
    consumed_tokens: int = 0
    """Of these, what the learner has taken or the stage has dropped: what the weights so far have cost. The rest is in flight."""
    graded: int = 0
    optimizer_steps: int = 0
    trained_tokens: int = 0
    dropped_tokens: int = 0
    """Of responses that were not trained on: too old, replaced, ungraded; in expert iteration all that the pool refused."""
    zero_variance_tokens: int = 0
    """Of groups whose graded siblings all earned the same. GRPO drops them; in expert iteration the pool may hold them."""
    redone: int = 0
    """Requests to an actor that were sent again, since it died, did not answer or refused."""


class Ledger:
    """Counts since the stage began, and since the last `lap`. An actor that does several things at once is busy once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: seconds since the run began, in which the spans are given.
        """
        self._clock = clock
        self._doing: dict[tuple[str, str], _Busy] = defaultdict(_Busy)
        self._busy: dict[str, _Busy] = defaultdict(_Busy)
        self._actors = [f"{role}-0" for role in ROLES]
        self.begin_stage()

    def begin_stage(self) -> None:
        """Forget what was counted; nobody may be at work."""
        self.counts = Counts()
        self._began_s = self._lap_began_s = self._clock()
        self._busy_s: dict[str, float] = dict.fromkeys(self._actors, 0.0)
        self._lap_busy_s: dict[str, float] = dict(self._busy_s)
        self._spans: list[tuple[str, str, float, float]] = []

    def state(self) -> dict[str, Any]:
        """What was counted since the stage began, as plain values; work that goes on counts when it ends."""
        return {"counts": asdict(self.counts), "wall_s": self.wall_s, "busy_s": dict(self._busy_s)}

    def totals(self) -> dict[str, float]:
        """Since the stage began, as metrics.jsonl names them: those counts that leave out what is in flight. Of a step they are asked for
        when its training ends; later, where steps overlap, they count the next batch too."""
        names = ("consumed_tokens", "trained_tokens", "dropped_tokens", "zero_variance_tokens", "redone")
        return {f"{name}_total": getattr(self.counts, name) for name in names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what another ledger had counted; nobody may be at work."""
        self.begin_stage()
        self.counts = Counts(**state["counts"])
        self._began_s -= state["wall_s"]
        self._busy_s |= state["busy_s"]

    def enrol(self, *actors: str) -> None:
        """Name actors, so that one that only waits is in its role's mean too; the first of each role need not be named."""
        self._actors += [actor for actor in actors if actor not in self._actors]
        for seconds in (self._busy_s, self._lap_busy_s):
            seconds |= {actor: 0.0 for actor in actors if actor not in seconds}

    @contextlib.contextmanager
    def work(self, actor: str, what: str) -> Iterator[None]:
        """Count the block as work of one actor, named <role>-<number>."""
        now_s = self._clock()
        self._doing[actor, what].enter(now_s)
        self._busy[actor].enter(now_s)
        try:
            yield
        finally:
            now_s = self._clock()
            self._note(actor, what, self._doing[actor, what].leave(now_s))
            self._add(actor, self._busy[actor].leave(now_s))

    def _note(self, actor: str, what: str, span: tuple[float, float] | None) -> None:
        if span:
            self._spans.append((actor, what, round(span[0], 4), round(span[1], 4)))

    def _add(self, actor: str, span: tuple[float, float] | None) -> None:
        if span:
            for seconds in (self._busy_s, self._lap_busy_s):
                seconds[actor] = seconds.get(actor, 0.0) + span[1] - span[0]

    @property
    def now_s(self) -> float:
        return self._clock()

    @property
    def wall_s(self) -> float:
        return self._clock() - self._began_s

    @property
    def work_s(self) -> dict[str, float]:
        """Busy seconds of each role, summed over its actors."""
        return {role: sum(_of_role(self._busy_s, role)) for role in ROLES}

    def lap(self) -> dict[str, float]:
        """Since the last lap: its `step_s`, `<role>_work_s` and `<role>_wait_s` (means over the role's actors), `overlap_efficiency`.

        overlap_efficiency is the busy share of the busiest role: 1 where that role never waited, and then nothing more can be hidden.
        """
        now_s = self._clock()
        for (actor, what), doing in self._doing.items():
            self._note(actor, what, doing.cut(now_s))
        for actor, busy in self._busy.items():
            self._add(actor, busy.cut(now_s))
        wall_s = now_s - self._lap_began_s
        metrics = {"step_s": wall_s}
        for role in ROLES:
            seconds = _of_role(self._lap_busy_s, role)
            work_s = min(sum(seconds) / len(seconds), wall_s)
            metrics |= {f"{role}_work_s": work_s, f"{role}_wait_s": wall_s - work_s}
        metrics["overlap_efficiency"] = max(metrics[f"{role}_work_s"] for role in ROLES) / wall_s if wall_s > 0 else 0.0
        self._lap_began_s, self._lap_busy_s = now_s, dict.fromkeys(self._lap_busy_s, 0.0)
        return metrics

    def take_spans(self) -> list[tuple[str, str, float, float]]:
        """(actor, what, start_s, end_s) of each piece of work that has ended, or was cut by a lap, since the last call; by start."""
        spans, self._spans = sorted(self._spans, key=lambda span: span[2]), []
        return spans


def _of_role(seconds: dict[str, float], role: str) -> list[float]:
    return [value for actor, value in seconds.items() if actor.rpartition("-")[0] == role]
