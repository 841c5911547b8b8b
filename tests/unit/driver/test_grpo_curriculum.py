"""The difficulty filter in GRPO's loops, with a made-up policy that always solves some problems and never others: what it gains, what it
says, and that a run which goes on asks what the run left alone asks."""

import json
import shutil
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from fakes import ShuffledTurns, scene
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_scene import (
    LoopScene,
    all_metrics,
    check_memory_is_of_the_rows,
    check_nothing_is_lost_or_doubled,
    memory_files,
    numbers_of,
    sections,
)

from mathrl_ray.driver.checkpoint import whole_checkpoints

TWELVE_STEPS = {"grpo": {"num_steps": 12, "prompts_per_step": 4, "group_size": 2}}
"""48 groups of 16 problems: three passes."""
FILTERED = st.fixed_dictionaries(
    {"skip_after": st.integers(1, 2), "retry_after": st.integers(0, 3), "order": st.sampled_from(["shuffled", "level"])}
)


def contrasts(each):
    """By step, how many of its groups had a non-zero advantage."""
    groups = {(row["consumed_step"], row["group_id"]): False for row in each.rows() if row["consumed_step"]}
    for row in each.rows():
        if row["consumed_step"] and row["advantage"]:
            groups[row["consumed_step"], row["group_id"]] = True
    return [sum(has for (of, _), has in groups.items() if of == step) for step in each.steps]


def asked(each):
    """The problem of each group."""
    return {row["group_id"]: row["problem_id"] for row in each.rows()}


# 4 problems are always solved, 4 never, 8 by every other sibling. Without a filter half of 48 groups have a contrast: 24. With
# skip_after = 1 the first pass is as before, 8 of 16; then only the 8 are left, and all 32 have one: 40. With 2 it is two passes, 16 of 32,
# and then 16: 32.
@pytest.mark.parametrize(("skip_after", "expected"), [(0, 24), (1, 40), (2, 32)])
@scene
async def test_the_filter_raises_the_share_of_groups_with_a_non_zero_advantage(tmp_path, skip_after, expected):
    each = LoopScene(tmp_path, num_dull=4, num_hopeless=4, curriculum={"skip_after": skip_after}, **TWELVE_STEPS)
    assert await each.train() == 12
    assert sum(contrasts(each)) == expected
    assert sum(4 * (1 - row["zero_variance_fraction"]) for row in each.metrics()) == pytest.approx(expected)
    check_nothing_is_lost_or_doubled(each, 12)


@pytest.mark.parametrize("max_staleness", [1, 2])
@scene
async def test_with_overlap_it_comes_into_effect_as_many_steps_later(tmp_path, max_staleness):
    driver = {"max_staleness": max_staleness}
    each = LoopScene(tmp_path, ShuffledTurns(1), num_dull=4, num_hopeless=4, driver=driver, curriculum={"skip_after": 1}, **TWELVE_STEPS)
    assert await each.train() == 12
    assert sum(contrasts(each)[:4]) == 8
    assert contrasts(each)[4 + max_staleness :] == [4] * (8 - max_staleness)  # the first step that knows all of steps 1 to 4
    check_nothing_is_lost_or_doubled(each, 12)


@scene
async def test_a_row_says_how_many_problems_are_passed_over_and_a_line_says_once_when_it_is_more_than_half(tmp_path):
    half, more = (
        LoopScene(tmp_path / str(num_dull), num_dull=num_dull, num_hopeless=4, curriculum={"skip_after": 1}, **TWELVE_STEPS)
        for num_dull in (4, 5)
    )
    await half.train()
    await more.train()
    for each, expected in ((half, 8), (more, 9)):
        skipped = [row["num_skipped_problems"] for row in each.metrics()]
        assert skipped[0] == 0
        assert skipped == sorted(skipped)
        assert skipped[4:] == [expected] * 8
    assert not [text for text in half.said if "passed over" in text]
    (told,) = (text for text in more.said if "passed over" in text)
    assert "grpo step 5: 9 of 16 train problems are passed over, since their last 1 groups were all solved or all failed" in told
    assert "curriculum.retry_after" in told


@scene
async def test_without_a_filter_the_memory_is_written_all_the_same_and_no_row_speaks_of_it(tmp_path):
    each = LoopScene(tmp_path, num_dull=4, **TWELVE_STEPS)
    await each.train()
    assert len(memory_files(each)) == 12
    check_memory_is_of_the_rows(each)
    assert not any("num_skipped_problems" in row for row in each.metrics())


@scene
async def test_a_solved_problem_comes_again_after_its_rest(tmp_path):
    each = LoopScene(tmp_path, num_problems=4, num_dull=2, curriculum={"skip_after": 1, "retry_after": 3}, grpo={"num_steps": 9})
    await each.train()
    for problem in each.run.train_problems[:2]:
        came = [row["consumed_step"] for row in each.rows() if row["problem_id"] == problem.problem_id and row["sample"] == 0]
        assert len(came) >= 2
        assert min(later - earlier for earlier, later in pairwise(came)) >= 3


@scene
async def test_groups_that_were_replaced_are_remembered_too(tmp_path):
    grpo = {**TWELVE_STEPS["grpo"], "dynamic_sampling": True}
    each = LoopScene(tmp_path, num_dull=4, num_hopeless=4, curriculum={"skip_after": 1}, grpo=grpo)
    await each.train()
    assert contrasts(each) == [4] * 12
    lost = [row["problem_id"] for row in each.rows() if row["drop_reason"] == "zero_variance" and row["sample"] == 0]
    assert len(lost) == len(set(lost)) == 8  # each was answered once, in the first pass, and never again
    check_nothing_is_lost_or_doubled(each, 12)


SYNCHRONOUS = st.fixed_dictionaries(
    {
        "num_problems": st.integers(4, 12),
        "num_dull": st.integers(0, 3),
        "num_hopeless": st.integers(0, 3),
        "num_broken": st.sampled_from([0, 0, 2]),
        "curriculum": FILTERED,
        "driver": st.fixed_dictionaries({"on_stale": st.sampled_from(["wait", "drop", "train"])}),
        "grpo": st.fixed_dictionaries(
            {
                "num_steps": st.integers(1, 6),
                "prompts_per_step": st.integers(1, 4),
                "group_size": st.just(2),
                "dynamic_sampling": st.booleans(),
                "max_replaced": st.integers(1, 3),
            }
        ),
    }
)


@settings(max_examples=12)
@given(keys=SYNCHRONOUS)
@scene
async def test_behaviour_26_resumed_at_every_step_a_filtered_run_equals_the_one_that_never_stopped(tmp_path_factory, keys):
    folder = tmp_path_factory.mktemp("runs")
    whole = LoopScene(folder / "whole", **sections(), **keys)
    num_steps = await whole.train()
    whole.run.recorder.close()
    for step in range(1, num_steps + 1):
        resumed = await gone_on(folder, step, None, keys)
        assert repr(resumed.rows()) == repr(whole.rows())  # a reward may be NaN
        in_order = [sorted(map(json.dumps, map(numbers_of, all_metrics(each)))) for each in (resumed, whole)]
        assert in_order[0] == in_order[1]
        assert [pq.read_table(path) for path in memory_files(resumed)] == [pq.read_table(path) for path in memory_files(whole)]


async def gone_on(folder, step, turns, keys):
    """The run in folder / "whole" as it goes on, in a copy, after a step."""
    root = folder / f"from-{step}"
    shutil.copytree(folder / "whole", root)
    checkpoint = str(root / "test" / "checkpoints" / f"grpo-{step}")
    cue = {} if turns is None else {"cue": ShuffledTurns(turns)}
    resumed = LoopScene(root, **cue, **sections(resume=checkpoint), **keys)
    assert not [path for path in memory_files(resumed) if int(path.stem.rpartition("-")[2]) > step]  # moved aside
    await resumed.train()
    resumed.run.recorder.close()
    return resumed


OVERLAPPING = st.fixed_dictionaries(
    {
        "num_problems": st.integers(4, 6),
        "num_dull": st.integers(0, 3),
        "num_hopeless": st.integers(0, 3),
        "curriculum": FILTERED,
        "driver": st.fixed_dictionaries({"max_staleness": st.integers(1, 2), "on_stale": st.sampled_from(["wait", "wait", "train"])}),
        "generator": st.fixed_dictionaries({"max_sequences": st.sampled_from([2, 64])}),  # with 2, groups are admitted late
        "grpo": st.just({"num_steps": 8}),
    }
)


@settings(max_examples=4)
@given(st.integers(0, 10**6), OVERLAPPING)
@scene
async def test_behaviour_26_with_overlap_a_run_that_goes_on_asks_what_the_run_left_alone_asked(tmp_path_factory, turns, keys):
    # Under "wait" a batch is what was admitted, so that every run asks the same, whoever was fast. Under "train" what is known depends on
    # who was fast; what was in flight or waited at the checkpoint is the same nevertheless.
    folder, waits = tmp_path_factory.mktemp("runs"), keys["driver"]["on_stale"] == "wait"
    whole = LoopScene(folder / "whole", ShuffledTurns(turns), **sections(), **keys)
    assert await whole.train() == 8
    whole.run.recorder.close()
    for checkpoint in whole_checkpoints(whole.run.recorder.folder):
        resumed = await gone_on(folder, checkpoint.step, turns + checkpoint.step, keys)
        num_admitted = checkpoint.loops().gate.num_admitted
        same = {group: problem for group, problem in asked(whole).items() if waits or number_of(group) < num_admitted}
        assert {group: asked(resumed)[group] for group in same} == same
        assert len(asked(resumed)) == len(asked(whole)) == 16


def number_of(group_id):
    step, index = group_id.removeprefix("grpo-").split("/")
    return (int(step) - 1) * 2 + int(index)


@pytest.mark.parametrize("driver", [{"on_stale": "wait"}, {"on_stale": "drop"}])
@pytest.mark.parametrize("max_staleness", [0, 1, 2])
@scene
async def test_where_groups_are_dropped_and_replaced_those_that_were_saved_keep_their_problems(tmp_path, max_staleness, driver):
    keys = {"curriculum": {"skip_after": 1, "retry_after": 4}, "num_dull": 5, "num_hopeless": 3, "grpo": {"dynamic_sampling": True}}
    keys |= {"driver": {"max_staleness": max_staleness, **driver}}
    whole = LoopScene(tmp_path / "whole", ShuffledTurns(7), **sections(), **keys)
    assert await whole.train() == 6
    whole.run.recorder.close()
    check_nothing_is_lost_or_doubled(whole, 6)
    num_replaced = sum(row["drop_reason"] == "zero_variance" for row in whole.rows())
    assert num_replaced > 2
    num_kept = 0
    for checkpoint in whole_checkpoints(whole.run.recorder.folder):
        resumed = await gone_on(tmp_path, checkpoint.step, checkpoint.step, keys)
        alive = [number for number, _, _ in checkpoint.loops().gate.alive]
        num_kept += len(alive)
        kept = {group for group in asked(whole) if number_of(group) in alive}
        assert {group: asked(resumed)[group] for group in kept} == {group: asked(whole)[group] for group in kept}
        assert not any("other problems" in text for text in resumed.said)
        check_memory_is_of_the_rows(resumed)
    assert num_kept > 4 or max_staleness == 0


@scene
async def test_prompts_that_always_fail_do_not_stop_a_choice_that_would_wait_for_their_step(tmp_path):
    each = LoopScene(
        tmp_path,
        ShuffledTurns(3, failing=["generate"], failure_rate=0.3),
        num_dull=3,
        num_hopeless=3,
        curriculum={"skip_after": 1},
        driver={"max_tries": 1, "max_restarts": 10_000, "max_staleness": 1},
        grpo={"num_steps": 10},
    )
    assert await each.train() == 10
    assert sum(row.get("num_dropped_failed", 0) for row in each.metrics()) > 2
    check_nothing_is_lost_or_doubled(each, 10)
