"""Bounded staleness: which groups may be admitted, which batch may be taken, and what is too old, as a state machine without a clock.

Called by the driver's loops, which tell it each event, and by tests/benchmarks/stub_simulation.py. Pure: knows numbers of groups and of
versions; no group's content, no actor, no asyncio.

    free --admit--> in flight --generated--> scoring --scored--> buffered --take--> training --stepped, applied--> consumed (slot free)
                        \\_______________________\\__________________\\______drop, or too old under "drop"_________> dropped  (slot free)

Formula. There are (S + 1) B slots, for S = driver.max_staleness and B = grpo.prompts_per_step, and a group holds one from its admission
until all generators hold the weights that were trained on it. While v batches have been consumed (each a published version), at most

    N <= (v + S + 1) B

groups are admitted and not dropped: AReaL's floor((N - 1) / B) <= v + S (Fu et al. 2025, eq. 3), where N counts what is generated or being
generated. With S = 0 exactly one batch is alive, which is the synchronous loop.

Invariant, checked at each `counts()`:

    free + in_flight + scoring + buffered + training = (S + 1) B
    admitted = in_flight + scoring + buffered + training + consumed + sum(dropped)

Under "wait" no group is consumed at a staleness beyond S. Proof: let group g be admitted while the generators hold version v, so that the
oldest version of its tokens is at least v. Let k be the number of batches that are taken before g's and are not consumed at g's admission.
Publications beyond v come from these only, one a batch at most, so g's batch meets a learner at v + k or below. Batches are taken in
admission order: the groups of those k were admitted before g, and each held a slot when g got its own. All k batches are full, since only
the last of all is ever smaller. So k B + 1 <= (S + 1) B, hence k <= S. Drops change nothing: a group that was dropped is in no batch. A
skipped update publishes nothing, so that its slots may be free at once, although older publications are still on their way.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

OnStale = Literal["wait", "drop", "train"]
"""driver.on_stale: batches in admission order; or as groups finish, where the too old ones are dropped; or as they finish, all trained."""
STALE = "stale"
"""The drop reason of what got too old."""

_Stage = Literal["in flight", "scoring", "buffered", "training"]


class StalenessError(RuntimeError):
    """A group is older than driver.max_staleness allows at the moment it is consumed."""


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Where all slots are, and all groups that ever were admitted. Made by `StalenessGate.counts`, logged by the driver.

    Example: SlotCounts(free=1, in_flight=2, scoring=0, buffered=1, training=4, consumed=8, dropped={"stale": 1})
    """

    free: int
    in_flight: int
    scoring: int
    buffered: int
    training: int
    """Taken, and the weights trained on them are not yet in all generators."""
    consumed: int
    dropped: Mapping[str, int]
    """By reason."""

    @property
    def alive(self) -> int:
        """Groups that hold a slot."""
        return self.in_flight + self.scoring + self.buffered + self.training


@dataclass(frozen=True, slots=True)
class GateState:
    """All that a gate needs to go on elsewhere, between batches. Made by `StalenessGate.state`, kept in checkpoints; plain values.

    Example: GateState(version=3, num_admitted=15, consumed=6, dropped={"stale": 1}, alive=[[8, "buffered", 2], [9, "in flight", 3]],
                       ready=[8])
    """

    version: int
    """Of learner and generators; publications since the stage began."""
    num_admitted: int
    consumed: int
    dropped: Mapping[str, int]
    alive: list[list[Any]]
    """[number, "in flight" or "scoring" or "buffered", oldest version] of each group that holds a slot, in the order of admission."""
    ready: list[int]
    """Of the buffered ones those that no other has to precede, in the order of taking."""


@dataclass(slots=True)
class _Group:
    stage: _Stage
    min_version: int
    """Until it is generated: what the generators held at its admission, below which it cannot come to be."""


class StalenessGate:
    """The slots of one stage. Every event costs O(1), amortised, apart from O(S + 1) a group under "drop".

    An event that cannot happen in the present state is a fault of the caller and raises RuntimeError; nothing is changed.

    >>> gate = StalenessGate(batch_groups=1, max_staleness=1)
    >>> gate.admit(), gate.admit(), gate.can_admit
    (0, 1, False)
    >>> gate.generated(1, min_version=0); gate.scored(1); gate.batch_ready  # 0 comes first
    False
    """

    def __init__(
        self,
        *,
        batch_groups: int,
        max_staleness: int,
        on_stale: OnStale = "wait",
        total_groups: int | None = None,
        state: GateState | None = None,
    ) -> None:
        """
        Args:
            batch_groups: groups of one batch; only the last may be smaller.
            max_staleness: publications that a group may be behind when it is taken.
            on_stale: what happens so that, or when, one would be more.
            total_groups: how many are to be consumed in all; no more than that are ever alive or consumed, dropped ones are replaced.
            state: of the gate that this one goes on from; its groups in flight are to be sampled again, at state.version or later. Its
                mode and its max_staleness may have been others: what is too old for these is dropped (`stale()`), and no group is
                admitted until as few are alive as these have slots.
        """
        if batch_groups < 1:
            raise ValueError(f"grpo.prompts_per_step = {batch_groups}: at least 1 is needed")
        if max_staleness < 0:
            raise ValueError(f"driver.max_staleness = {max_staleness}: at least 0 is needed")
        if total_groups is not None and total_groups < 1:
            raise ValueError(f"{total_groups} groups to train on: at least 1 is needed; raise grpo.num_steps or grpo.num_epochs")
        self._batch_groups, self._max_staleness, self._on_stale, self._total = batch_groups, max_staleness, on_stale, total_groups
        self.num_slots = self._free = (max_staleness + 1) * batch_groups
        self.num_admitted = 0
        self.learner_version = 0
        """Publications that the learner's steps have made or are about to make."""
        self.generator_version = 0
        """The version that every generator holds at least."""
        self._closed = False
        self._alive: dict[int, _Group] = {}
        self._stages: Counter[_Stage] = Counter()
        self._line: OrderedDict[int, None] = OrderedDict()  # "wait" only: in admission order, from the first that is not buffered
        self._ready: OrderedDict[int, None] = OrderedDict()  # buffered groups that no other has to precede, in the order of taking
        self._taken: deque[list[int]] = deque()  # batches before the learner's step
        self._published: deque[list[int]] = deque()  # batches whose weights are on their way to the generators
        self._consumed = 0
        self._dropped: Counter[str] = Counter()
        self._stale: list[int] = []
        if state is not None:
            self._restore(state)

    def _restore(self, state: GateState) -> None:
        self.num_admitted, self._consumed, self._dropped = state.num_admitted, state.consumed, Counter(state.dropped)
        self.learner_version = self.generator_version = state.version
        self._free = self.num_slots - len(state.alive)
        for number, stage, min_version in state.alive:
            self._alive[number] = _Group(stage, state.version if stage == "in flight" else min_version)
            self._stages[stage] += 1
        if self._on_stale == "wait":
            self._line = OrderedDict.fromkeys(self._alive)
            self._advance_line()
            self._drop_what_would_come_too_late()
        else:
            buffered = (number for number, group in self._alive.items() if group.stage == "buffered")
            self._ready = OrderedDict.fromkeys([*state.ready, *buffered])  # the latter were behind others, if it was "wait" before
            self._drop_stale([number for number in self._ready if self._is_too_old(self._alive[number])])
        self.counts()

    def _drop_what_would_come_too_late(self) -> None:
        """Where the state was made under another mode or max_staleness: under "wait" each batch before a group's makes it older by one.

        A state of the same settings loses nothing by this, as the proof above has it.
        """
        place = 0
        for number, group in list(self._alive.items()):
            if self.learner_version + place // self._batch_groups - group.min_version > self._max_staleness:
                self.drop(number, STALE)
                self._stale.append(number)
            else:
                place += 1

    def state(self) -> GateState:
        """
        Raises:
            RuntimeError: a batch is with the learner or on its way to the generators (see `is_between_batches`).
        """
        if not self.is_between_batches:
            raise RuntimeError(f"the state of a gate is known between batches only: {self.counts()}")
        assert not self._stale, "ask `stale()` first: these groups are neither alive nor told"
        alive = [[number, group.stage, group.min_version] for number, group in self._alive.items()]
        return GateState(self.learner_version, self.num_admitted, self._consumed, dict(self._dropped), alive, list(self._ready))

    @property
    def is_between_batches(self) -> bool:
        """Whether no batch is taken whose weights the generators do not hold."""
        return not self._taken and not self._published

    @property
    def can_admit(self) -> bool:
        return self._free > 0 and not self._no_more

    def admit(self) -> int:
        """Number of a new group, in flight from now on: 0, 1, ..."""
        if not self.can_admit:
            raise RuntimeError(f"no group can be admitted: {self.counts()}")
        number = self.num_admitted
        self.num_admitted += 1
        self._free -= 1
        self._alive[number] = _Group("in flight", self.generator_version)
        self._stages["in flight"] += 1
        if self._on_stale == "wait":
            self._line[number] = None
        return number

    def generated(self, number: int, min_version: int) -> None:
        """All its responses are there; `min_version` is the oldest version that sampled a token of them."""
        if min_version > self.learner_version:
            raise RuntimeError(f"group {number} was sampled at policy version {min_version}, the learner is at {self.learner_version}")
        self._move(number, "in flight", "scoring").min_version = min_version

    def scored(self, number: int) -> None:
        """It may be trained on. One that should not be (zero variance, say) is dropped in place of this call."""
        group = self._move(number, "scoring", "buffered")
        if self._on_stale == "wait":
            self._advance_line()
        else:
            self._ready[number] = None
            if self._is_too_old(group):
                self._drop_stale([number])

    def drop(self, number: int, reason: str) -> None:
        """It will not be trained on, and its slot is free. Not for one in training."""
        group = self._alive.get(number)
        if group is None or group.stage == "training":
            raise RuntimeError(f"group {number} cannot be dropped: it is {group.stage if group else 'not alive'}")
        self._end(number)
        self._dropped[reason] += 1
        self._line.pop(number, None)
        self._ready.pop(number, None)
        self._advance_line()

    def stale(self) -> list[int]:
        """Numbers that were dropped as too old since this was asked last, counted under `STALE`: by "drop", or when a state was taken over.

        A group is dropped as soon as it is buffered and the next batch would consume it too old, if each step under way publishes: by
        `scored()` and by `take()`. So its slot is never held by what nobody can take. Ask after either, to record what was lost.
        """
        numbers, self._stale = self._stale, []
        return numbers

    @property
    def batch_ready(self) -> bool:
        """Whether `take()` gives a batch: a full one, or what is left where no further group can come."""
        waiting = self._stages["in flight"] + self._stages["scoring"]
        return len(self._ready) >= self._batch_groups or (bool(self._ready) and self._no_more and not waiting)

    def take(self) -> list[int]:
        """The next batch: under "wait" the oldest groups by admission, else the first that were buffered; in training from now on.

        Another may be taken before the learner has made its step on this one; it is then held to the version that this step leads to.

        Raises:
            StalenessError: one of them is too old, under "wait" or "drop"; nothing is taken. With versions that are true (`generated`)
                this does not happen: a replaced engine that sampled before it got the current weights makes it.
        """
        if not self.batch_ready:
            raise RuntimeError(f"no batch is ready: {self.counts()}")
        batch = list(islice(self._ready, self._batch_groups))
        if self._on_stale != "train":
            self._refuse_too_old(batch)
        for number in batch:
            del self._ready[number]
            self._move(number, "buffered", "training")
        self._taken.append(batch)
        self._drop_stale([number for number in self._ready if self._is_too_old(self._alive[number])])
        return list(batch)

    def stepped(self, published: bool) -> None:
        """The learner has made its step on the oldest batch that waited for it.

        Args:
            published: False for a skipped update (or a batch with nothing to learn from), of which no weights are to come: the batch is
                consumed at once, and `applied()` is not called for it.
        """
        if not self._taken:
            raise RuntimeError("the learner made a step, but no batch was taken for it")
        batch = self._taken.popleft()
        if published:
            self.learner_version += 1
            self._published.append(batch)
        else:
            self._consume(batch)

    def applied(self) -> None:
        """All generators hold the weights of the oldest publication on its way: its batch is consumed."""
        if not self._published:
            raise RuntimeError("weights were applied, but none were published")
        self.generator_version += 1
        self._consume(self._published.popleft())

    def close(self) -> None:
        """The prompts are at their end: no more admissions."""
        self._closed = True

    @property
    def exhausted(self) -> bool:
        """Whether all is done: nothing is alive, and nothing can come."""
        return not self._alive and self._no_more

    def staleness(self, number: int) -> int:
        """The learner's version less the group's oldest one, now: ask when its batch is taken. Of a group in flight: at most that."""
        group = self._alive.get(number)
        if group is None:
            raise RuntimeError(f"group {number} is not alive")
        return self.learner_version - group.min_version

    def counts(self) -> SlotCounts:
        stages = self._stages
        counts = SlotCounts(
            self._free, stages["in flight"], stages["scoring"], stages["buffered"], stages["training"], self._consumed, dict(self._dropped)
        )
        assert counts.free + counts.alive == self.num_slots, f"a slot was lost or doubled: {counts}"
        assert counts.alive + counts.consumed + sum(counts.dropped.values()) == self.num_admitted, f"a group was lost or doubled: {counts}"
        return counts

    @property
    def _no_more(self) -> bool:
        """No group will be admitted, however many slots get free; with a total, a drop takes that back."""
        return self._closed or (self._total is not None and len(self._alive) + self._consumed >= self._total)

    def _is_too_old(self, group: _Group) -> bool:
        next_version = self.learner_version + len(self._taken)  # at which a batch that is taken now meets the learner
        return next_version - group.min_version > self._max_staleness

    def _refuse_too_old(self, batch: list[int]) -> None:
        for number in batch:
            if self._is_too_old(self._alive[number]):
                raise StalenessError(
                    f"group {number} was sampled at policy version {self._alive[number].min_version} and is consumed at "
                    f"{self.learner_version + len(self._taken)}: more than driver.max_staleness = {self._max_staleness}"
                )

    def _drop_stale(self, numbers: list[int]) -> None:
        if self._on_stale == "drop":
            for number in numbers:
                self.drop(number, STALE)
            self._stale += numbers

    def _advance_line(self) -> None:
        """Under "wait": buffered groups at the head of the line get ready."""
        while self._line and self._alive[head := next(iter(self._line))].stage == "buffered":
            del self._line[head]
            self._ready[head] = None

    def _move(self, number: int, stage: _Stage, to: _Stage) -> _Group:
        group = self._alive.get(number)
        if group is None or group.stage != stage:
            raise RuntimeError(f"group {number} is not {stage}: it is {group.stage if group else 'not alive'}")
        group.stage = to
        self._stages[stage] -= 1
        self._stages[to] += 1
        return group

    def _consume(self, batch: list[int]) -> None:
        for number in batch:
            self._end(number)
        self._consumed += len(batch)

    def _end(self, number: int) -> None:
        self._stages[self._alive.pop(number).stage] -= 1
        self._free += 1
