"""Cases worked by hand; test_staleness_interleavings.py holds the invariants over random ones."""

import time

import pytest

from mathrl_ray.core.staleness import STALE, SlotCounts, StalenessError, StalenessGate


def finish(gate: StalenessGate, number: int, min_version: int) -> None:
    gate.generated(number, min_version)
    gate.scored(number)


def train(gate: StalenessGate, published: bool = True) -> list[int]:
    """One batch from its taking to the generators."""
    batch = gate.take()
    gate.stepped(published)
    if published:
        gate.applied()
    return batch


def test_in_turns_one_batch_is_alive_and_the_next_comes_when_the_generators_hold_its_weights():
    gate = StalenessGate(batch_groups=2, max_staleness=0)
    assert [gate.admit(), gate.admit()] == [0, 1]
    assert not gate.can_admit
    finish(gate, 1, 0)
    assert not gate.batch_ready
    finish(gate, 0, 0)
    assert gate.take() == [0, 1]
    assert gate.counts() == SlotCounts(free=0, in_flight=0, scoring=0, buffered=0, training=2, consumed=0, dropped={})
    gate.stepped(published=True)
    assert (gate.learner_version, gate.generator_version, gate.can_admit) == (1, 0, False)
    gate.applied()
    assert (gate.learner_version, gate.generator_version, gate.can_admit) == (1, 1, True)
    assert gate.counts() == SlotCounts(free=2, in_flight=0, scoring=0, buffered=0, training=0, consumed=2, dropped={})
    assert gate.admit() == 2


def test_each_event_moves_one_group_on():
    gate = StalenessGate(batch_groups=2, max_staleness=1)
    for _ in range(4):
        gate.admit()
    gate.generated(0, 0)
    assert gate.counts() == SlotCounts(free=0, in_flight=3, scoring=1, buffered=0, training=0, consumed=0, dropped={})
    gate.scored(0)
    gate.drop(1, "failed")
    assert gate.counts() == SlotCounts(free=1, in_flight=2, scoring=0, buffered=1, training=0, consumed=0, dropped={"failed": 1})


def test_a_batch_waits_for_its_slowest_group_under_wait_and_takes_the_first_finished_otherwise():
    for on_stale, expected in (("wait", [0, 1]), ("drop", [2, 1]), ("train", [2, 1])):
        gate = StalenessGate(batch_groups=2, max_staleness=1, on_stale=on_stale)
        for _ in range(4):
            gate.admit()
        finish(gate, 2, 0)
        finish(gate, 1, 0)
        assert gate.batch_ready == (on_stale != "wait")  # 0 is before both
        finish(gate, 0, 0)
        assert gate.take() == expected


def test_the_bound_is_reached_but_not_passed():
    # S = 2, B = 1: 0, 1 and 2 are admitted while the generators hold version 0. Before 2 come 0 and 1, so it meets version 2: 2 - 0 = 2.
    # 3 gets the slot of 0, at version 1, and meets version 3: 3 - 1 = 2 again.
    gate = StalenessGate(batch_groups=1, max_staleness=2)
    for number in range(3):
        gate.admit()
        finish(gate, number, 0)
    train(gate)
    assert gate.admit() == 3
    finish(gate, 3, gate.generator_version)
    train(gate)
    assert (gate.staleness(2), train(gate)) == (2, [2])
    assert (gate.staleness(3), train(gate)) == (2, [3])


def test_a_slot_is_held_until_the_weights_have_arrived_not_until_the_step():
    gate = StalenessGate(batch_groups=1, max_staleness=1)
    for number in range(2):
        gate.admit()
        finish(gate, number, 0)
    gate.take()
    gate.stepped(published=True)
    assert not gate.can_admit
    gate.take()  # while the first publication is on its way
    gate.stepped(published=True)
    assert (gate.learner_version, gate.generator_version, gate.can_admit) == (2, 0, False)
    gate.applied()  # the older one
    assert (gate.generator_version, gate.counts().free, gate.counts().training) == (1, 1, 1)


def test_a_skipped_update_moves_no_version_and_frees_its_slots_at_once():
    gate = StalenessGate(batch_groups=1, max_staleness=1)
    for number in range(2):
        gate.admit()
        finish(gate, number, 0)
    gate.take()
    gate.stepped(published=True)
    gate.take()
    gate.stepped(published=False)
    assert (gate.learner_version, gate.generator_version) == (1, 0)
    assert gate.counts() == SlotCounts(free=1, in_flight=0, scoring=0, buffered=0, training=1, consumed=1, dropped={})


def test_a_group_from_an_engine_that_missed_the_weights_is_refused_where_it_is_consumed():
    for on_stale in ("wait", "train"):
        gate = StalenessGate(batch_groups=1, max_staleness=0, on_stale=on_stale)
        gate.admit()
        finish(gate, 0, 0)
        train(gate)
        gate.admit()
        finish(gate, 1, min_version=0)  # though version 1 is in all generators
        before = gate.counts()
        if on_stale == "wait":
            with pytest.raises(StalenessError, match=r"group 1 .*version 0 .*consumed at 1: more than driver\.max_staleness = 0"):
                gate.take()
            assert gate.counts() == before
        else:
            assert gate.take() == [1]


def test_a_batch_taken_ahead_of_the_learners_step_is_held_to_the_version_that_this_leads_to():
    gate = StalenessGate(batch_groups=1, max_staleness=1)
    gate.admit()
    finish(gate, 0, 0)
    train(gate)
    for number in (1, 2):
        gate.admit()
        finish(gate, number, min_version=0)  # a version too old for a slot of version 1
    assert gate.take() == [1]  # at version 1: 1 - 0 = 1
    with pytest.raises(StalenessError, match=r"group 2 .*consumed at 2"):
        gate.take()


def test_under_drop_what_got_too_old_gives_its_slot_back_and_is_told_once():
    # S = 1, B = 1: 0 is slow. 1 is trained on (version 1), then 2 (version 2): 0 would be 2 behind, and 3 takes its place.
    gate = StalenessGate(batch_groups=1, max_staleness=1, on_stale="drop", total_groups=3)
    gate.admit()
    gate.admit()
    finish(gate, 1, 0)
    assert train(gate) == [1]
    assert gate.admit() == 2
    finish(gate, 2, 1)
    assert train(gate) == [2]
    assert not gate.can_admit  # 1 and 2 are consumed, 0 is alive: 3 in all
    finish(gate, 0, 0)
    assert (gate.batch_ready, gate.stale(), gate.stale()) == (False, [0], [])
    assert gate.counts() == SlotCounts(free=2, in_flight=0, scoring=0, buffered=0, training=0, consumed=2, dropped={STALE: 1})
    assert gate.admit() == 3


def test_under_drop_a_buffered_group_is_dropped_when_the_batch_before_it_is_taken():
    # 1 and 2 are of version 0 although admitted at 1 (an engine that missed it): 1 is taken 1 behind, and 2 would then be 2 behind.
    gate = StalenessGate(batch_groups=1, max_staleness=1, on_stale="drop")
    gate.admit()
    finish(gate, 0, 0)
    train(gate)
    gate.admit()
    gate.admit()
    finish(gate, 1, 0)
    finish(gate, 2, 0)
    assert (gate.take(), gate.stale(), gate.can_admit) == ([1], [2], True)


def test_under_train_nothing_is_too_old():
    gate = StalenessGate(batch_groups=1, max_staleness=1, on_stale="train")
    gate.admit()
    for number in range(1, 4):
        gate.admit()
        finish(gate, number, number - 1)
        train(gate)
    finish(gate, 0, 0)
    assert (gate.staleness(0), gate.take(), gate.stale()) == (3, [0], [])


def test_an_epoch_that_is_no_multiple_of_the_batch_ends_with_a_smaller_one():
    gate = StalenessGate(batch_groups=2, max_staleness=1)
    for _ in range(3):
        gate.admit()
    gate.close()
    assert not gate.can_admit
    finish(gate, 2, 0)
    finish(gate, 0, 0)
    assert not gate.batch_ready  # 1 is not here
    finish(gate, 1, 0)
    assert train(gate) == [0, 1]
    assert not gate.exhausted
    assert train(gate) == [2]
    assert gate.exhausted


def test_the_last_batch_waits_for_a_group_that_can_still_come():
    gate = StalenessGate(batch_groups=2, max_staleness=0, total_groups=2, on_stale="train")
    gate.admit()
    gate.admit()
    finish(gate, 0, 0)
    gate.drop(1, "zero_variance")
    assert (gate.can_admit, gate.batch_ready) == (True, False)  # 2 will take the place of 1
    gate.close()
    assert (gate.can_admit, gate.batch_ready) == (False, True)  # there is no 2


def test_a_total_counts_what_is_trained_on_and_not_what_was_dropped():
    gate = StalenessGate(batch_groups=1, max_staleness=3, total_groups=2)
    gate.admit()
    gate.admit()
    assert not gate.can_admit
    gate.drop(0, "failed")
    assert gate.admit() == 2
    for number in (1, 2):
        finish(gate, number, 0)
        train(gate)
    assert gate.exhausted
    assert gate.counts() == SlotCounts(free=4, in_flight=0, scoring=0, buffered=0, training=0, consumed=2, dropped={"failed": 1})


def test_a_drop_at_the_head_of_the_line_lets_those_behind_it_pass():
    gate = StalenessGate(batch_groups=2, max_staleness=1)
    for _ in range(3):
        gate.admit()
    finish(gate, 1, 0)
    finish(gate, 2, 0)
    assert not gate.batch_ready
    gate.drop(0, "failed")
    assert (gate.batch_ready, gate.take()) == (True, [1, 2])


def test_a_closed_gate_without_groups_is_exhausted():
    gate = StalenessGate(batch_groups=2, max_staleness=0)
    assert not gate.exhausted
    gate.close()
    assert (gate.exhausted, gate.batch_ready) == (True, False)


def test_events_that_cannot_be_are_refused_and_change_nothing():
    gate = StalenessGate(batch_groups=1, max_staleness=0)
    gate.admit()
    before = gate.counts()
    for event in (
        gate.admit,
        lambda: gate.scored(0),
        lambda: gate.generated(1, 0),
        lambda: gate.generated(0, 1),  # a version that the learner has not made
        lambda: gate.drop(1, "failed"),
        gate.take,
        lambda: gate.stepped(published=True),
        gate.applied,
        lambda: gate.staleness(1),
    ):
        with pytest.raises(RuntimeError):
            event()
        assert gate.counts() == before
    finish(gate, 0, 0)
    gate.take()
    with pytest.raises(RuntimeError, match="group 0 cannot be dropped: it is training"):
        gate.drop(0, "failed")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"batch_groups": 0, "max_staleness": 0}, "grpo.prompts_per_step = 0"),
        ({"batch_groups": 1, "max_staleness": -1}, "driver.max_staleness = -1"),
        ({"batch_groups": 1, "max_staleness": 0, "total_groups": 0}, "grpo.num_steps"),
    ],
)
def test_settings_without_sense_are_refused_with_the_key_to_change(settings, key):
    with pytest.raises(ValueError, match=key):
        StalenessGate(**settings)


@pytest.mark.parametrize("on_stale", ["wait", "drop", "train"])
def test_the_cost_of_a_group_does_not_grow_with_the_number_of_slots(on_stale):
    # The driver's control plane may cost 1 ms a group in all; a scan of 4,096 slots at each event would take about as long by itself.
    gate = StalenessGate(batch_groups=1024, max_staleness=3, on_stale=on_stale, total_groups=8192)
    began = time.process_time()
    while not gate.exhausted:
        admitted = []
        while gate.can_admit:
            admitted.append(gate.admit())
        for number in reversed(admitted):  # so that under "wait" the line moves once, at the last of them
            finish(gate, number, gate.generator_version)
            assert gate.batch_ready in (True, False)  # the driver asks after each event
        train(gate)
    assert (time.process_time() - began) / 8192 < 1e-4
