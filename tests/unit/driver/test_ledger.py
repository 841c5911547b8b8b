from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.driver.ledger import ROLES, Ledger


class Clock:
    """Shows the time that a test sets."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(clock):
    return Ledger(clock)


def test_overlapping_work_of_one_actor_counts_once(ledger, clock):
    first, second = ledger.work("generator-0", "generate"), ledger.work("generator-0", "generate")
    clock.now_s = 1
    first.__enter__()
    clock.now_s = 3
    second.__enter__()
    clock.now_s = 4
    first.__exit__(None, None, None)
    clock.now_s = 6
    second.__exit__(None, None, None)
    clock.now_s = 10
    assert ledger.work_s["generator"] == 5  # from 1 to 6
    assert ledger.take_spans() == [("generator-0", "generate", 1, 6)]


def test_different_work_of_one_actor_has_spans_of_its_own_and_is_busy_once(ledger, clock):
    with ledger.work("learner-0", "train_policy"):
        clock.now_s = 2
        with ledger.work("learner-0", "publish"):
            clock.now_s = 3
        clock.now_s = 4
    assert ledger.work_s["learner"] == 4
    assert ledger.take_spans() == [("learner-0", "train_policy", 0, 4), ("learner-0", "publish", 2, 3)]


def test_a_lap_cuts_work_that_goes_on_and_the_pieces_add_up(ledger, clock):
    work = ledger.work("scorer-0", "score")
    clock.now_s = 1
    work.__enter__()
    clock.now_s = 4
    first = ledger.lap()
    assert (first["step_s"], first["scorer_work_s"], first["scorer_wait_s"]) == (4, 3, 1)
    clock.now_s = 6
    work.__exit__(None, None, None)
    clock.now_s = 9
    second = ledger.lap()
    assert (second["step_s"], second["scorer_work_s"], second["scorer_wait_s"]) == (5, 2, 3)
    assert ledger.take_spans() == [("scorer-0", "score", 1, 4), ("scorer-0", "score", 4, 6)]
    assert ledger.take_spans() == []
    assert ledger.work_s["scorer"] == 5


def test_overlap_efficiency_is_the_busy_share_of_the_busiest_role(ledger, clock):
    with ledger.work("learner-0", "train_policy"):
        clock.now_s = 8
    with ledger.work("generator-0", "generate"):
        clock.now_s = 10
    assert ledger.lap()["overlap_efficiency"] == 0.8
    with ledger.work("generator-0", "generate"):
        clock.now_s = 15
    assert ledger.lap()["overlap_efficiency"] == 1.0


def test_a_lap_without_time_has_no_efficiency(ledger):
    assert ledger.lap()["overlap_efficiency"] == 0.0


def test_several_actors_of_a_role_give_its_mean_those_that_only_waited_included(ledger, clock):
    ledger.enrol("generator-0", "generator-1")
    with ledger.work("generator-1", "generate"):
        clock.now_s = 6
    clock.now_s = 8
    lap = ledger.lap()
    assert (lap["generator_work_s"], lap["generator_wait_s"]) == (3, 5)  # (0 + 6) / 2
    assert ledger.work_s["generator"] == 6
    ledger.begin_stage()
    with ledger.work("generator-0", "generate"):
        clock.now_s = 10
    assert ledger.lap()["generator_work_s"] == 1  # (2 + 0) / 2: both are still there in the next stage


def test_work_that_fails_is_work(ledger, clock):
    def fail():
        with ledger.work("learner-0", "train_policy"):
            clock.now_s = 2
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert ledger.work_s["learner"] == 2
    clock.now_s = 5
    assert ledger.lap()["learner_work_s"] == 2  # nothing stays open


def test_a_new_stage_counts_from_nothing(ledger, clock):
    with ledger.work("learner-0", "train_sft"):
        clock.now_s = 3
    ledger.counts.graded = 7
    ledger.begin_stage()
    clock.now_s = 5
    assert (ledger.counts.graded, ledger.wall_s, ledger.work_s["learner"]) == (0, 2, 0)
    assert ledger.lap()["step_s"] == 2
    assert ledger.take_spans() == []


actors = st.sampled_from(["generator-0", "generator-1", "learner-0", "scorer-0"])
events = st.lists(st.tuples(st.sampled_from(["begin", "end", "lap"]), actors, st.sampled_from("ab"), st.integers(0, 5)), max_size=40)


@given(events)
def test_work_and_waiting_of_each_role_add_up_to_the_lap_and_spans_to_the_work(events):
    clock = Clock()
    ledger = Ledger(clock)
    ledger.enrol("generator-0", "generator-1")
    opened, spans, laps = {}, [], []
    busy_s = dict.fromkeys(["generator-0", "generator-1", "learner-0", "scorer-0"], 0.0)  # independent: every second looked at by itself

    def pass_time(seconds):
        for actor in {actor for actor, _ in opened}:
            busy_s[actor] += seconds
        clock.now_s += seconds

    def lap():
        laps.append(ledger.lap())
        spans.extend(ledger.take_spans())

    for kind, actor, what, seconds in [*events]:
        pass_time(seconds)
        if kind == "begin":
            opened.setdefault((actor, what), []).append(work := ledger.work(actor, what))
            work.__enter__()
        elif kind == "end" and (actor, what) in opened:
            opened[actor, what].pop().__exit__(None, None, None)
            if not opened[actor, what]:
                del opened[actor, what]
        elif kind == "lap":
            lap()
    for works in opened.values():
        for work in works:
            work.__exit__(None, None, None)
    opened.clear()
    lap()
    for metrics in laps:
        for role in ROLES:
            assert metrics[f"{role}_work_s"] + metrics[f"{role}_wait_s"] == pytest.approx(metrics["step_s"])
    assert sum(metrics["step_s"] for metrics in laps) == clock.now_s
    generators_s = busy_s["generator-0"] + busy_s["generator-1"]
    assert sum(metrics["generator_work_s"] for metrics in laps) == pytest.approx(generators_s / 2)
    assert ledger.work_s == {"generator": generators_s, "learner": busy_s["learner-0"], "scorer": busy_s["scorer-0"]}
    for actor, seconds in busy_s.items():  # a second of an actor's is in a span of its own where anything goes on
        covered = {t for name, _, start, end in spans if name == actor for t in range(int(start), int(end))}
        assert len(covered) == seconds
    for key in {(actor, what) for actor, what, _, _ in spans}:  # and spans of the same work do not overlap
        same = [(start, end) for actor, what, start, end in spans if (actor, what) == key]
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(same))
