"""How long a run would take if nothing but the work itself took time: the gate of core/staleness.py in a discrete-event simulation.

Called by the stub benchmark, which runs the real driver with engines that sleep the same times, and compares. Knows no clock, no actor.

    loop      takes                  for                        then
    prompts   a slot and a room      generation_s of its group  the group is scored
    scoring   a generated group      scoring_s of its group     it is buffered; there are always scorers enough
    train     a ready batch          train_s of its step        it is published as soon as the publication before it has arrived
    weights   one publication        sync_s                     its slots are free

Generators go on while weights arrive. The learner goes on too, as soon as its own publication has begun: before that its weights must not
change. A group's time depends on nothing else in flight, so where it runs makes no difference: the rooms of all generators are counted
together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from mathrl_ray.core.staleness import OnStale, StalenessGate


@dataclass(frozen=True, slots=True)
class StubTimes:
    """Seconds of each piece of work.

    Example: StubTimes(generation_s=[2.0, 3.5], scoring_s=[0.1, 0.1], train_s=[1.5], sync_s=0.05)
    """

    generation_s: Sequence[float]
    """By the group's number."""
    scoring_s: Sequence[float]
    """By the group's number."""
    train_s: Sequence[float]
    """By step, the first is 0."""
    sync_s: float
    """From a publication to all generators holding it."""


def simulate(
    times: StubTimes,
    *,
    num_steps: int,
    batch_groups: int,
    max_staleness: int,
    num_generators: int,
    capacity_groups: int,
    on_stale: OnStale = "wait",
) -> float:
    """Seconds until the weights of the last step have arrived.

    Args:
        times: of at least num_steps * batch_groups groups (under "drop" of those that replace others too) and num_steps steps.
        num_steps: batches to train on.
        batch_groups: groups of a batch.
        max_staleness: as the gate has it.
        num_generators: how many there are.
        capacity_groups: groups that one generator serves at once.
        on_stale: as the gate has it.
    """
    gate = StalenessGate(batch_groups=batch_groups, max_staleness=max_staleness, on_stale=on_stale, total_groups=num_steps * batch_groups)
    return _Simulation(times, gate, num_rooms=num_generators * capacity_groups).run()


class _Simulation:
    def __init__(self, times: StubTimes, gate: StalenessGate, num_rooms: int) -> None:
        self._times, self._gate, self._num_rooms = times, gate, num_rooms
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()  # of events at one time: as they were made
        self._num_steps = 0
        self._learner_is_busy = self._weights_are_ready = self._weights_are_moving = False

    def run(self) -> float:
        self._begin_what_can_begin()
        while not self._gate.exhausted:
            self._now_s, _, event = heappop(self._events)
            event()
            self._begin_what_can_begin()
        return self._now_s

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heappush(self._events, (self._now_s + seconds, next(self._order), event))

    def _begin_what_can_begin(self) -> None:
        if self._weights_are_ready and not self._weights_are_moving:
            self._weights_are_ready = self._learner_is_busy = False
            self._weights_are_moving = True
            self._after(self._times.sync_s, self._applied)
        if not self._learner_is_busy and self._gate.batch_ready:
            self._gate.take()
            self._learner_is_busy = True
            self._after(self._times.train_s[self._num_steps], self._trained)
            self._num_steps += 1
        while self._num_rooms and self._gate.can_admit:
            self._num_rooms -= 1
            self._generate(self._gate.admit())

    def _generate(self, number: int) -> None:
        oldest_version = self._gate.generator_version  # of its first token

        def generated() -> None:
            self._num_rooms += 1
            self._gate.generated(number, oldest_version)
            self._after(self._times.scoring_s[number], lambda: self._gate.scored(number))

        self._after(self._times.generation_s[number], generated)

    def _trained(self) -> None:
        self._gate.stepped(published=True)
        self._weights_are_ready = True

    def _applied(self) -> None:
        self._gate.applied()
        self._weights_are_moving = False
