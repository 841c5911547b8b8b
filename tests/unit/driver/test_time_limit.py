"""run.max_hours: how many steps fit, with a clock that a test sets."""

import asyncio

import pytest
from fakes import scene
from hypothesis import given
from hypothesis import strategies as st
from loop_scene import LoopScene

from mathrl_ray.driver.time_limit import MARGIN, TimeIsUpError, TimeLimit
from mathrl_ray.stages.study import run_study


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def pass_s(self, seconds):
        self.now_s += seconds


def limit_of(hours, clock, num_evaluated=100, num_prompts=1):
    return TimeLimit(hours, num_evaluated=num_evaluated, num_prompts=num_prompts, clock=clock)


def measured(limit, clock, *, evaluation_s, num_responses, checkpoint_s):
    with limit.evaluating(num_responses):
        clock.pass_s(evaluation_s)
    with limit.saving():
        clock.pass_s(checkpoint_s)


def test_without_a_limit_time_is_never_up():
    clock = Clock()
    limit = limit_of(0, clock)
    clock.pass_s(1e9)
    assert not limit.is_up()
    limit.begin_stage("grpo")


def test_what_was_not_measured_yet_gets_a_tenth_of_the_limit_and_a_tenth_of_that():
    # 1 h: 360 s for the evaluation, 36 s for the checkpoint
    assert limit_of(1, Clock()).room_s == pytest.approx(396)


def test_room_is_what_was_measured_scaled_to_the_full_evaluation_with_a_margin():
    clock = Clock()
    limit = limit_of(1, clock)
    measured(limit, clock, evaluation_s=10, num_responses=20, checkpoint_s=5)  # 0.5 s a response: 50 s for 100
    assert limit.room_s == pytest.approx(MARGIN * (50 + 5))
    measured(limit, clock, evaluation_s=1, num_responses=20, checkpoint_s=1)  # the longest counts
    assert limit.room_s == pytest.approx(MARGIN * (50 + 5))


def test_a_full_evaluation_that_was_measured_counts_and_not_what_a_validation_would_make_of_it():
    clock = Clock()
    limit = limit_of(1, clock, num_evaluated=100, num_prompts=2)
    measured(limit, clock, evaluation_s=8, num_responses=8, checkpoint_s=0)  # alone: 1 s a response, 200 s for all
    assert limit.room_s == pytest.approx(MARGIN * 200)
    measured(limit, clock, evaluation_s=25, num_responses=100, checkpoint_s=0)  # all at once, with one of the two prompts
    assert limit.room_s == pytest.approx(MARGIN * 50)
    measured(limit, clock, evaluation_s=16, num_responses=8, checkpoint_s=0)
    assert limit.room_s == pytest.approx(MARGIN * 50)


def test_an_evaluation_that_failed_is_not_taken_for_a_short_one():
    clock = Clock()
    limit = limit_of(1, clock)
    before = limit.room_s
    with pytest.raises(ValueError, match="died"), limit.evaluating(10):
        raise ValueError("died")
    assert limit.room_s == before


def test_a_step_that_would_end_in_the_room_is_not_begun():
    # 3600 s, room 1.2 (50 + 5) = 66 s; steps of 100 s: 3600 - 15 (measured before) - 66 = 3519: 35 steps, the 36th would not fit
    clock = Clock()
    limit = limit_of(1, clock)
    measured(limit, clock, evaluation_s=10, num_responses=20, checkpoint_s=5)
    num_steps = 0
    while not limit.is_up():
        num_steps += 1
        clock.pass_s(100)
    assert num_steps == 35


def test_the_longest_step_of_the_stage_counts_and_another_stage_forgets_it():
    clock = Clock()
    limit = limit_of(1, clock)
    measured(limit, clock, evaluation_s=1, num_responses=100, checkpoint_s=1)  # room 2.4 s
    assert not limit.is_up()
    clock.pass_s(2000)  # with a validation in it, say
    assert limit.is_up()  # 2002 + 2000 > 3600
    limit.begin_stage("grpo")
    assert not limit.is_up()


def test_a_stage_that_cannot_even_be_evaluated_does_not_begin_and_the_key_is_named():
    clock = Clock()
    limit = limit_of(1, clock)
    clock.pass_s(3300)
    with pytest.raises(TimeIsUpError, match=r"run\.max_hours = 1 leaves no time for the stage grpo .*396 s.*study\.stages"):
        limit.begin_stage("grpo")


@given(
    hours=st.floats(0.01, 100),
    step_s=st.floats(0.1, 1000),
    evaluation_s=st.floats(0.1, 1000),
    checkpoint_s=st.floats(0.1, 100),
    num_responses=st.integers(1, 1000),
)
def test_where_later_ones_take_as_long_as_earlier_ones_the_job_ends_within_its_limit(
    hours, step_s, evaluation_s, checkpoint_s, num_responses
):
    clock = Clock()
    limit = limit_of(hours, clock, num_evaluated=2 * num_responses)
    measured(limit, clock, evaluation_s=evaluation_s, num_responses=num_responses, checkpoint_s=checkpoint_s)
    num_steps = 0
    while not limit.is_up() and num_steps < 2000:
        clock.pass_s(step_s)
        num_steps += 1
    clock.pass_s(2 * evaluation_s + checkpoint_s)
    first_step_is_unknown = num_steps <= 1
    assert first_step_is_unknown or clock.now_s <= hours * 3600 + 1e-6


@scene
async def test_a_stage_whose_time_is_up_ends_in_order_and_counts_what_it_drops(tmp_path):
    loop = LoopScene(tmp_path, driver={"max_staleness": 2}, grpo={"num_steps": 50})
    steps = iter(range(4))  # asked before each step: three are made
    loop.run.time_limit.is_up = lambda: next(steps) == 3
    num_steps = await loop.train()
    assert num_steps == 3
    assert loop.steps == [1, 2, 3]
    trained = {row["group_id"] for row in loop.rows() if row["consumed_step"]}
    dropped = [row for row in loop.rows() if row["drop_reason"] == "time_is_up"]
    assert len(trained) == 3 * 2
    assert all(row["consumed_step"] is None and row["group_id"] not in trained for row in dropped)
    assert loop.run.policy_version == 3
    lines = (loop.run.recorder.folder / "metrics.jsonl").read_text().splitlines()
    assert "num_dropped_time_is_up" in lines[-1]
    assert not [task for task in asyncio.all_tasks() if "PolicyLoops" in repr(task.get_coro())]
    for replica in loop.run.generators:
        assert not replica.load


@scene
async def test_a_stage_that_the_limit_has_cut_short_says_so_in_its_summary_and_no_other_does(tmp_path):
    loop = LoopScene(tmp_path, grpo={"num_steps": 3}, run={"checkpoint_minutes": 0})
    # the second step is not begun: 3,500 s have passed when the first has been made
    loop.run.time_limit = TimeLimit(1, num_evaluated=4, clock=lambda: 3500.0 if loop.diary.of("train_policy") else 0.0)
    await run_study(loop.run, ["baseline", "grpo"])
    assert [stage.get("ended_by") for stage in loop.run.stages] == [None, "max_hours"]
    assert len(loop.diary.of("train_policy")) == 1


def test_a_stage_that_was_cut_stays_so_though_less_room_is_kept_later():
    now_s = [85.5]
    limit = TimeLimit(100 / 3600, num_evaluated=10, began_s=0.0, clock=lambda: now_s[0])
    limit.begin_stage("baseline")  # at 85.5 of 100 s, 11 are kept
    now_s[0] = 89.5
    assert limit.is_up()
    with limit.evaluating(10):
        now_s[0] += 0.1
    assert not limit.is_up()
    assert limit.has_ended_stage
    limit.begin_stage("sft")
    assert not limit.has_ended_stage
