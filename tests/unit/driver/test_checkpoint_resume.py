"""Behaviour 26 with made-up engines: a run that goes on from any of its checkpoints equals the one that never stopped; and one that is
killed again and again while its loops overlap loses no group and trains on none twice."""

import asyncio
import json
import random
import shutil
from dataclasses import replace

import pytest
from fakes import ShuffledTurns, Stage, scene, until
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_scene import FILTERS, LoopScene, all_metrics, check_memory_is_of_the_rows, numbers_of, place, sections

from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.loops import PolicyLoops

SYNCHRONOUS = st.fixed_dictionaries(
    {
        "num_problems": st.integers(4, 12),
        "num_dull": st.sampled_from([0, 0, 3]),
        "num_broken": st.sampled_from([0, 0, 2]),
        "num_generators": st.integers(1, 2),
        "eval": st.fixed_dictionaries({"validate_every": st.integers(0, 3)}),
        "driver": st.fixed_dictionaries({"on_stale": st.sampled_from(["wait", "drop", "train"]), "canary_every": st.integers(1, 3)}),
        "grpo": st.fixed_dictionaries(
            {
                "num_steps": st.integers(1, 5),
                "num_epochs": st.sampled_from([0, 0, 1]),
                "prompts_per_step": st.integers(1, 4),
                "group_size": st.integers(2, 3),
                "dynamic_sampling": st.booleans(),
                "max_replaced": st.integers(1, 3),
            }
        ),
    }
)
"""Of loops with max_staleness = 0, whatever else is asked of them."""


@settings(max_examples=12)
@given(keys=SYNCHRONOUS)
@scene
async def test_behaviour_26_resumed_at_every_step_a_synchronous_run_equals_the_one_that_never_stopped(tmp_path_factory, keys):
    folder = tmp_path_factory.mktemp("runs")
    whole = LoopScene(folder / "whole", **sections(), **keys)
    num_steps = await whole.train()
    whole.run.recorder.close()
    consumed = {row["group_id"]: row["consumed_step"] for row in whole.rows()}
    assert [each.step for each in whole_checkpoints(whole.run.recorder.folder)] == list(range(1, num_steps + 1))
    for step in range(1, num_steps + 1):
        root = folder / f"from-{step}"
        shutil.copytree(folder / "whole", root)
        resumed = LoopScene(root, **sections(resume=str(root / "test" / "checkpoints" / f"grpo-{step}")), **keys)
        assert await resumed.train() == num_steps
        assert resumed.batches() == [batch for batch in whole.batches() if consumed[batch[0]] > step]
        assert repr(resumed.rows()) == repr(whole.rows())  # a reward may be NaN
        in_order = [sorted(map(json.dumps, map(numbers_of, all_metrics(each)))) for each in (resumed, whole)]
        assert in_order[0] == in_order[1]
        assert resumed.validations() == whole.validations()
        assert resumed.run.ledger.counts == whole.run.ledger.counts
        assert resumed.run.policy_version == whole.run.policy_version
        assert resumed.learner.num_updates == whole.learner.num_updates
        resumed.run.recorder.close()


@scene
async def test_groups_that_wait_are_trained_on_after_a_resume_and_not_asked_for_again(tmp_path):
    keys = {"driver": {"max_staleness": 3}}
    whole = LoopScene(tmp_path / "whole", ShuffledTurns(3), **sections(), **keys)
    await whole.train()
    whole.run.recorder.close()
    num_kept = 0
    for checkpoint in whole_checkpoints(whole.run.recorder.folder):
        loops = checkpoint.loops()
        kept = {group.group_id for group in (*loops.sampled.values(), *loops.buffered.values())}
        num_kept += len(kept)
        root = tmp_path / f"from-{checkpoint.step}"
        shutil.copytree(tmp_path / "whole", root)
        resumed = LoopScene(root, ShuffledTurns(4), **sections(resume=str(root / "test" / "checkpoints" / checkpoint.folder.name)), **keys)
        await resumed.train()
        assert not kept & set(resumed.generated())
        assert kept <= {row["group_id"] for row in resumed.rows() if row["consumed_step"]}
        resumed.run.recorder.close()
    assert num_kept > 5, "nothing waited: the test shows nothing"


def random_keys(draw):
    """Settings of loops that overlap; no scene of their own, since the same ones are used again after each kill."""
    grpo = {"prompts_per_step": draw.choice([1, 2, 3]), "group_size": 2, "num_steps": draw.randint(3, 7)}
    grpo |= {"dynamic_sampling": draw.random() < 0.4, "num_epochs": draw.choice([0, 0, 1])}
    driver = {"max_staleness": draw.choice([0, 1, 2, 4]), "on_stale": draw.choice(["wait", "wait", "drop", "train"])}
    driver |= {"canary_every": draw.choice([1, 3]), "in_flight_updates": draw.random() < 0.7}
    made = {"num_generators": draw.choice([1, 2]), "num_problems": draw.randint(4, 12), "num_dull": draw.choice([0, 2])}
    filtered = {} if grpo["num_epochs"] else draw.choice(FILTERS)
    return {**made, "grpo": grpo, "driver": driver, "eval": {"validate_every": draw.choice([0, 2])}, "curriculum": filtered}


def run_with_kills(root, seed):
    """The last of a run's scenes, and how often it was killed."""
    draw = random.Random(seed)
    keys, every, num_kills, num_turns = random_keys(draw), draw.choice([1, 2]), 0, 40
    while True:
        run = {"checkpoint_every": every, "keep_last": draw.choice([1, 3]), "resume": "auto"}
        each = LoopScene(root, ShuffledTurns(draw.randrange(10**6)), run=run, **keys)
        if asyncio.run(ends_within(each, draw, draw.randrange(num_turns))):  # which waits for its threads
            return each, num_kills
        each.run.recorder.close()
        num_turns = int(num_turns * 1.3)  # so that every run ends
        num_kills += 1


async def ends_within(each, draw, num_turns):
    """Whether a scene's training ends within so many turns, after which it is killed."""
    task = asyncio.create_task(each.train())
    for _ in range(num_turns):
        await asyncio.sleep(0.0005 if draw.random() < 0.1 else 0)
        if task.done():
            await task
            return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False


@settings(max_examples=15)
@given(st.integers(0, 10**9))
def test_a_run_killed_at_random_moments_trains_on_every_group_once(tmp_path_factory, seed):
    last, _ = run_with_kills(tmp_path_factory.mktemp("run"), seed)
    run, rows = last.run, last.rows()
    check_memory_is_of_the_rows(last)
    assert not any("other problems" in text for text in last.said)
    grpo, driver = run.recipe.grpo, run.recipe.driver
    metrics = last.metrics()
    assert [row["step"] for row in metrics] == list(range(1, len(metrics) + 1))
    keys = [(row["group_id"], row["sample"]) for row in rows]
    assert len(keys) == len(set(keys)), "a sample was consumed twice"
    groups = {group for group, _ in keys}
    assert set(keys) == {(group, sample) for group in groups for sample in range(grpo.group_size)}, "a sibling was lost"
    size = grpo.prompts_per_step
    numbers = sorted((place(group)[0] - 1) * size + place(group)[1] for group in groups)
    assert numbers == list(range(len(numbers))), "a group was lost"
    consumed = [row for row in rows if row["consumed_step"]]
    if not grpo.num_epochs:
        assert len(consumed) == grpo.num_steps * size * grpo.group_size
    assert all(row["staleness"] <= driver.max_staleness for row in consumed if driver.on_stale != "train")
    counts = run.ledger.counts
    assert counts.generated_tokens == sum(len(row["response_ids"]) for row in rows)
    assert counts.generated_tokens == counts.trained_tokens + counts.dropped_tokens
    assert run.policy_version == last.learner.num_updates == metrics[-1]["policy_version"]
    validated = [row["step"] for row in all_metrics(last) if "validation_accuracy" in row]
    assert len(validated) == len(set(validated))
    run.recorder.close()


def test_the_kills_of_that_test_do_happen(tmp_path):
    assert sum(run_with_kills(tmp_path / str(seed), seed)[1] for seed in range(4)) >= 4


@scene
async def test_groups_that_are_being_graded_are_graded_again_and_not_sampled_again(tmp_path):
    cue = Stage("score")
    each = LoopScene(tmp_path, cue, run={"checkpoint_every": 1, "resume": "auto"}, driver={"max_staleness": 2})
    task = asyncio.create_task(each.train())
    for _ in range(2):  # the groups of one step
        await cue.go_on("score")
    await until(lambda: len(whole_checkpoints(each.run.recorder.folder)) == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    each.run.recorder.close()
    (checkpoint,) = whole_checkpoints(each.run.recorder.folder)
    sampled = {group.group_id for group in checkpoint.loops().sampled.values()}
    assert len(sampled) >= 4
    resumed = LoopScene(tmp_path, run={"checkpoint_every": 1, "resume": "auto"}, driver={"max_staleness": 2})
    assert await resumed.train() == 6
    assert not sampled & set(resumed.generated())
    assert sampled <= {row["group_id"] for row in resumed.rows()}


@scene
async def test_loops_that_go_on_have_the_state_that_was_saved(tmp_path):
    whole = LoopScene(tmp_path, ShuffledTurns(5), num_dull=6, **sections(grpo={"dynamic_sampling": True}, driver={"max_staleness": 3}))
    await whole.train()
    whole.run.recorder.close()
    states = [each.loops() for each in whole_checkpoints(whole.run.recorder.folder)]
    states.append(replace(states[0], num_replaced=3, failed_in_a_row=1))
    assert any(state.record.drop_counts for state in states)
    for state in states:
        again = PolicyLoops(whole.run, "grpo", 6, whole.after_step, state).state()
        ages_s = [each.record.ages_s for each in (again, state)]
        assert ages_s[0] == pytest.approx(ages_s[1], abs=1)
        alive = [[number, stage, state.gate.version if stage == "in flight" else old] for number, stage, old in state.gate.alive]
        expected = replace(state, gate=replace(state.gate, alive=alive), record=again.record, validating=[])
        assert again == expected
        assert (again.record.drop_counts, again.record.dropped) == (state.record.drop_counts, state.record.dropped)
