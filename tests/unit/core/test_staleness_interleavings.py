"""What the gate's docstring states, over random interleavings of its events; test_staleness.py has cases worked by hand."""

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mathrl_ray.core.staleness import STALE, StalenessGate


class Interleavings(RuleBasedStateMachine):
    """Any order of events, each group's versions drawn from those that a generator can have held, beside a model that only keeps lists."""

    @initialize(
        batch_groups=st.integers(1, 4),
        max_staleness=st.integers(0, 3),
        on_stale=st.sampled_from(["wait", "drop", "train"]),
        total=st.none() | st.integers(1, 60),
    )
    def start(self, batch_groups, max_staleness, on_stale, total):
        self.batch_groups, self.max_staleness, self.on_stale, self.total = batch_groups, max_staleness, on_stale, total
        self.gate = StalenessGate(batch_groups=batch_groups, max_staleness=max_staleness, on_stale=on_stale, total_groups=total)
        self.closed = False
        self.in_flight, self.scoring, self.buffered = [], [], []  # buffered: in the order of completion
        self.taken, self.published = [], []
        self.consumed, self.dropped, self.num_consumed_batches = [], {}, 0
        self.admitted_at, self.min_version = {}, {}
        self.last_batch_was_partial = False

    # What the model knows

    @property
    def training(self):
        return [number for batch in self.taken + self.published for number in batch]

    @property
    def alive(self):
        return self.in_flight + self.scoring + self.buffered + self.training

    def no_more(self):
        return self.closed or (self.total is not None and len(self.alive) + len(self.consumed) >= self.total)

    def may_admit(self):
        return len(self.alive) < (self.max_staleness + 1) * self.batch_groups and not self.no_more()

    def next_batch(self):
        """By definition, from lists: None where there is none."""
        if self.on_stale == "wait":
            candidates = sorted(self.in_flight + self.scoring + self.buffered)[: self.batch_groups]
        else:
            candidates = self.buffered[: self.batch_groups]
        finished = bool(candidates) and set(candidates) <= set(self.buffered)
        whole = len(candidates) == self.batch_groups
        last = self.no_more() and not self.in_flight and not self.scoring
        return candidates if finished and (whole or last) else None

    def collect_stale(self):
        oldest_allowed = self.gate.learner_version + len(self.taken) - self.max_staleness
        too_old = [number for number in self.buffered if self.on_stale == "drop" and self.min_version[number] < oldest_allowed]
        assert self.gate.stale() == too_old
        for number in too_old:
            event("a group got too old")
            self.buffered.remove(number)
            self.dropped[number] = STALE

    # Events

    @precondition(lambda self: self.may_admit())
    @rule()
    def admit(self):
        number = self.gate.admit()
        assert number == len(self.admitted_at)
        self.admitted_at[number] = self.gate.generator_version
        self.in_flight.append(number)

    @precondition(lambda self: self.may_admit())
    @rule()
    def fill(self):
        while self.may_admit():
            self.admit()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def generated(self, data):
        number = data.draw(st.sampled_from(self.in_flight))
        self.min_version[number] = data.draw(st.integers(self.admitted_at[number], self.gate.learner_version))
        self.gate.generated(number, self.min_version[number])
        self.in_flight.remove(number)
        self.scoring.append(number)

    @precondition(lambda self: self.scoring)
    @rule(data=st.data())
    def scored(self, data):
        number = data.draw(st.sampled_from(self.scoring))
        self.gate.scored(number)
        self.scoring.remove(number)
        self.buffered.append(number)
        self.collect_stale()

    @precondition(lambda self: self.in_flight)
    @rule(num_batches=st.integers(1, 4))
    def overtake(self, num_batches):
        """The oldest in flight stays there, while all others are finished by engines that are up to date, and trained on."""
        for _ in range(num_batches):
            self.fill()
            for number in self.in_flight[1:]:
                self.finish(number)
            if self.next_batch() is not None:
                self.train()

    def finish(self, number):
        self.in_flight.remove(number)
        self.min_version[number] = self.gate.generator_version
        self.gate.generated(number, self.min_version[number])
        self.gate.scored(number)
        self.buffered.append(number)
        self.collect_stale()

    @precondition(lambda self: self.in_flight or self.scoring or self.buffered)
    @rule(data=st.data(), reason=st.sampled_from(["failed", "zero_variance"]))
    def drop(self, data, reason):
        stage = data.draw(st.sampled_from([stage for stage in (self.in_flight, self.scoring, self.buffered) if stage]))
        number = data.draw(st.sampled_from(stage))
        self.gate.drop(number, reason)
        stage.remove(number)
        self.dropped[number] = reason

    @precondition(lambda self: self.next_batch() is not None)
    @rule()
    def take(self):
        expected = self.next_batch()
        assert not self.last_batch_was_partial, "only the last batch may be smaller"
        if self.on_stale != "train":
            oldest = min(self.min_version[number] for number in expected)
            assert self.gate.learner_version + len(self.taken) - oldest <= self.max_staleness
        assert self.gate.take() == expected
        self.last_batch_was_partial = len(expected) < self.batch_groups
        for number in expected:
            self.buffered.remove(number)
        self.taken.append(expected)
        self.collect_stale()

    @precondition(lambda self: self.taken)
    @rule(published=st.integers(0, 3).map(bool))
    def stepped(self, published):
        batch = self.taken.pop(0)
        if self.on_stale != "train":
            assert max(self.gate.staleness(number) for number in batch) <= self.max_staleness
        self.gate.stepped(published)
        if published:
            self.published.append(batch)
        else:
            self.consumed += batch
            self.num_consumed_batches += 1

    @precondition(lambda self: self.published)
    @rule()
    def applied(self):
        self.gate.applied()
        self.consumed += self.published.pop(0)
        self.num_consumed_batches += 1

    @precondition(lambda self: self.next_batch() is not None)
    @rule()
    def train(self):
        """All that is under way, then one batch, to the generators."""
        self.take()
        while self.taken:
            self.stepped(published=True)
        while self.published:
            self.applied()

    @precondition(lambda self: len(self.admitted_at) > 30)
    @rule()
    def close(self):
        self.gate.close()
        self.closed = True

    @precondition(lambda self: self.gate.exhausted)
    @rule()
    def rest(self):
        """Nothing comes behind the end."""
        assert not self.alive
        with pytest.raises(RuntimeError):
            self.gate.admit()

    # What holds after each

    @invariant()
    def every_slot_is_counted(self):
        counts = self.gate.counts()
        assert counts.in_flight == len(self.in_flight)
        assert counts.scoring == len(self.scoring)
        assert counts.buffered == len(self.buffered)
        assert counts.training == len(self.training)
        assert counts.consumed == len(self.consumed)
        assert sum(counts.dropped.values()) == len(self.dropped)
        slots = (self.max_staleness + 1) * self.batch_groups
        assert counts.free + counts.in_flight + counts.scoring + counts.buffered + counts.training == slots
        assert sorted(self.alive + self.consumed + list(self.dropped)) == list(range(self.gate.num_admitted))

    @invariant()
    def the_gate_opens_and_gives_when_the_definition_says_so(self):
        assert self.gate.can_admit == self.may_admit()
        assert self.gate.batch_ready == (self.next_batch() is not None)

    @invariant()
    def never_more_than_the_formula_admits(self):
        alive_or_consumed = self.gate.num_admitted - len(self.dropped)
        assert alive_or_consumed <= (self.num_consumed_batches + self.max_staleness + 1) * self.batch_groups
        if self.total is not None:
            assert alive_or_consumed <= self.total
        if self.max_staleness == 0 and self.training:  # exactly one batch is alive
            assert self.alive == self.training
            assert len(self.taken + self.published) == 1

    @invariant()
    def something_can_happen_until_all_is_done(self):
        possible = self.may_admit() or self.in_flight or self.scoring or self.training or self.gate.batch_ready
        assert bool(possible) != self.gate.exhausted

    def teardown(self):
        """From wherever the interleaving stopped, the run comes to its end, each group in exactly one place."""
        if not hasattr(self, "gate"):
            return
        if self.total is None:
            self.close()
        for _ in range(2000):
            if self.gate.exhausted:
                break
            self.finish_one()
            self.every_slot_is_counted()
            self.something_can_happen_until_all_is_done()
        assert self.gate.exhausted
        assert sorted(self.consumed + list(self.dropped)) == list(range(self.gate.num_admitted))
        if self.total is not None and not self.closed:
            assert len(self.consumed) == self.total

    def finish_one(self):
        if self.may_admit():
            self.admit()
        elif self.in_flight:
            self.finish(self.in_flight[-1])
        elif self.scoring:
            number = self.scoring.pop()
            self.gate.scored(number)
            self.buffered.append(number)
            self.collect_stale()
        elif self.next_batch() is not None:
            self.take()
        elif self.taken:
            self.stepped(published=True)
        else:
            self.applied()


Interleavings.TestCase.settings = settings(max_examples=150, stateful_step_count=80, deadline=None)
test_any_interleaving_keeps_the_slots_and_the_bound = Interleavings.TestCase
