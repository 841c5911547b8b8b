"""A gate that goes on from another one's state does what that one would have done."""

import json
import random
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.staleness import GateState, StalenessGate


def settings(draw):
    keys = {"batch_groups": draw.choice([1, 2, 3]), "max_staleness": draw.choice([0, 1, 3]), "total_groups": draw.choice([None, 4, 9])}
    return {**keys, "on_stale": draw.choice(["wait", "drop", "train"])}


class World:
    """A gate and what its caller knows: which groups are where, so that the same word can be told to two gates."""

    def __init__(self, gate, places=None, is_slow=False):
        """is_slow: some groups are finished with the weights that they began with, however many came meanwhile."""
        self.gate, self.places, self.is_slow = gate, dict(places or {}), is_slow

    def act(self, draw):
        """One event that may happen, by chance; what the gate says of it."""
        gate, numbers = self.gate, sorted(self.places)
        choices = ["admit"] if gate.can_admit else []
        choices += [f"{stage} {number}" for number in numbers if (stage := self.places[number]) in ("in flight", "scoring")]
        choices += ["take"] if gate.batch_ready else []
        if not choices:
            return "nothing"
        what, _, number = draw.choice(choices).rpartition(" ")
        return self.tell(what or number, int(number) if number.isdecimal() else -1, draw)

    def tell(self, what, number, draw):
        gate = self.gate
        match what:
            case "admit":
                number = gate.admit()
                self.places[number] = "in flight"
            case "in flight":
                is_old = self.is_slow and draw.random() < 0.5
                gate.generated(number, gate.learner_version - gate.staleness(number) if is_old else gate.generator_version)
                self.places[number] = "scoring"
            case "scoring" if draw.random() < 0.2:
                gate.drop(number, "failed")
                del self.places[number]
            case "scoring":
                gate.scored(number)
                self.places[number] = "buffered"
            case "take":
                batch = gate.take()
                published = draw.random() < 0.9
                gate.stepped(published)
                if published:
                    gate.applied()
                for each in batch:
                    del self.places[each]
                number = batch
        stale = gate.stale()
        for each in stale:
            del self.places[each]
        return what, number, stale, asdict(gate.counts()), gate.batch_ready, gate.exhausted, gate.can_admit


@given(st.integers(0, 10**9))
def test_behaviour_26_a_restored_gate_goes_on_as_the_old_one(seed):
    draw = random.Random(seed)
    keys = settings(draw)
    old = World(StalenessGate(**keys))
    for _ in range(draw.randrange(60)):
        old.act(draw)
    state = GateState(**json.loads(json.dumps(asdict(old.gate.state()))))
    new = World(StalenessGate(**keys, state=state), old.places)
    again = [[number, stage, state.version if stage == "in flight" else version] for number, stage, version in state.alive]
    assert new.gate.state() == replace(state, alive=again)
    assert new.gate.counts() == old.gate.counts()
    for number in range(40):
        assert new.act(random.Random(seed + number)) == old.act(random.Random(seed + number))


@given(st.integers(0, 10**9), st.sampled_from(["wait", "drop", "train"]), st.sampled_from([0, 1, 2, 5]))
def test_a_gate_of_another_mode_or_bound_loses_no_group_of_a_state_hangs_at_none_and_keeps_its_own_bound(seed, on_stale, max_staleness):
    draw = random.Random(seed)
    keys = {**settings(draw), "total_groups": None}
    old = World(StalenessGate(**keys), is_slow=True)
    for _ in range(draw.randrange(60)):
        old.act(draw)
    state = GateState(**json.loads(json.dumps(asdict(old.gate.state()))))
    keys |= {"on_stale": on_stale, "max_staleness": max_staleness}
    new = World(StalenessGate(**keys, state=state), old.places, is_slow=True)
    for number in (stale := new.gate.stale()):
        del new.places[number]
    assert on_stale != "train" or not stale
    new.gate.close()
    while new.places:
        assert new.act(draw) != "nothing", f"it hangs: {new.gate.counts()}"  # take() raises StalenessError where one is too old
    assert new.gate.exhausted
    counts = new.gate.counts()
    assert counts.consumed + sum(counts.dropped.values()) == state.num_admitted


def gate_with(stages, **keys):
    """A gate of batches of one and max_staleness = 2, with a group in each of these stages, all of version 0."""
    gate = StalenessGate(batch_groups=1, max_staleness=2, **keys)
    for _ in stages:
        gate.admit()
    for number, stage in enumerate(stages):
        if stage != "in flight":
            gate.generated(number, 0)
        if stage == "buffered":
            gate.scored(number)
    return gate


@pytest.mark.parametrize("on_stale", ["drop", "train"])
def test_groups_that_had_to_wait_for_one_in_flight_are_ready_where_nobody_waits(on_stale):
    state = gate_with(["in flight", "buffered", "buffered"]).state()
    assert state.ready == []
    gate = StalenessGate(batch_groups=1, max_staleness=2, on_stale=on_stale, state=state)
    assert gate.take() == [1]


def test_groups_that_were_ready_before_one_in_flight_wait_for_it_where_the_order_is_kept():
    state = gate_with(["in flight", "buffered", "buffered"], on_stale="drop").state()
    assert state.ready == [1, 2]
    gate = StalenessGate(batch_groups=1, max_staleness=2, state=state)
    assert not gate.batch_ready
    gate.generated(0, 0)
    gate.scored(0)
    assert gate.take() == [0]


@pytest.mark.parametrize(
    ("on_stale", "max_staleness", "dropped"),
    [("wait", 1, [2]), ("wait", 0, [1, 2]), ("drop", 0, [1, 2]), ("drop", 1, []), ("train", 0, [])],
)
def test_a_lower_bound_drops_what_would_be_too_old_when_its_turn_comes(on_stale, max_staleness, dropped):
    old = gate_with(["buffered"] * 3)
    old.take()
    old.stepped(published=True)
    old.applied()  # groups 1 and 2 of version 0 are left, at version 1: they would be consumed at 1 and 2
    gate = StalenessGate(batch_groups=1, max_staleness=max_staleness, on_stale=on_stale, state=old.state())
    assert gate.stale() == dropped
    assert gate.counts().dropped == ({"stale": len(dropped)} if dropped else {})


def test_a_state_is_known_between_batches_only():
    gate = StalenessGate(batch_groups=1, max_staleness=0)
    gate.admit()
    gate.generated(0, 0)
    gate.scored(0)
    gate.take()
    for go_on in (lambda: gate.stepped(published=True), lambda: gate.applied()):
        assert not gate.is_between_batches
        with pytest.raises(RuntimeError, match="between batches only"):
            gate.state()
        go_on()
    assert gate.state() == GateState(version=1, num_admitted=1, consumed=1, dropped={}, alive=[], ready=[])


def test_a_group_in_flight_is_as_old_as_the_weights_that_will_sample_it_again():
    gate = StalenessGate(batch_groups=1, max_staleness=2)
    for number in (0, 1):
        assert gate.admit() == number
    gate.generated(0, 0)
    gate.scored(0)
    gate.take()
    gate.stepped(published=True)
    gate.applied()
    state = gate.state()
    assert state.alive == [[1, "in flight", 0]]
    restored = StalenessGate(batch_groups=1, max_staleness=2, state=state)
    assert (gate.staleness(1), restored.staleness(1)) == (1, 0)
