"""Behaviour 26 with made-up engines: a run that goes on from any of its checkpoints equals the one that never stopped; and one that is
killed again and again while its loops overlap loses no group and trains on none twice."""

import asyncio
import json
import random
import shutil
from dataclasses import replace

import pytest
from fakes import ShuffledTurns, Stage, at_once, scene, settle, until
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_scene import LoopScene, place

from mathrl_ray.config import RecipeError
from mathrl_ray.driver.canary import canary
from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.loops import PolicyLoops
from mathrl_ray.types import Completion

NUM_STEPS = 6
TIMES = ("_s", "_s_mean", "_s_max")
OF_THE_CLOCK = {"spans", "overlap_efficiency", "checkpoint_bytes"}
SETTINGS = {
    "plain": {},
    "replaced": {"num_dull": 5, "grpo": {"dynamic_sampling": True, "max_replaced": 3}},
    "epochs": {"grpo": {"num_epochs": 1}, "num_problems": 11},
    "broken": {"num_broken": 3, "grpo": {"group_size": 3}},
    "validated": {"eval": {"validate_every": 2}},
}


def numbers_of(row):
    """A row of metrics without what a clock says."""
    return {name: value for name, value in row.items() if not name.endswith(TIMES) and name not in OF_THE_CLOCK}


def all_metrics(scene):
    lines = (scene.run.recorder.folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "checkpoint_s" not in row]


def sections(resume="", **more):
    return {"run": {"checkpoint_every": 1, "keep_last": 100, "resume": resume}, **more}


@pytest.mark.parametrize("which", SETTINGS)
@scene
async def test_behaviour_26_resumed_at_every_step_a_synchronous_run_equals_the_one_that_never_stopped(tmp_path, which):
    whole = LoopScene(tmp_path / "whole", **sections(), **SETTINGS[which])
    num_steps = await whole.train()
    whole.run.recorder.close()
    assert num_steps >= 4
    assert [each.step for each in whole_checkpoints(whole.run.recorder.folder)] == list(range(1, num_steps + 1))
    for step in range(1, num_steps + 1):
        root = tmp_path / f"from-{step}"
        shutil.copytree(tmp_path / "whole", root)
        resumed = LoopScene(root, **sections(resume=str(root / "test" / "checkpoints" / f"grpo-{step}")), **SETTINGS[which])
        assert await resumed.train() == num_steps
        assert resumed.batches() == whole.batches()[step:]
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
    return {**made, "grpo": grpo, "driver": driver, "eval": {"validate_every": draw.choice([0, 2])}}


async def run_with_kills(root, seed):
    """The last of a run's scenes, and how often it was killed."""
    draw = random.Random(seed)
    keys, every, num_kills, num_turns = random_keys(draw), draw.choice([1, 2]), 0, 40
    while True:
        run = {"checkpoint_every": every, "keep_last": draw.choice([1, 3]), "resume": "auto"}
        each = LoopScene(root, ShuffledTurns(draw.randrange(10**6)), run=run, **keys)
        task = asyncio.create_task(each.train())
        for _ in range(draw.randrange(num_turns)):
            await asyncio.sleep(0.0005 if draw.random() < 0.1 else 0)
            if task.done():
                break
        num_turns = int(num_turns * 1.3)  # so that every run ends
        if task.done():
            await task
            return each, num_kills
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        each.run.recorder.close()
        num_kills += 1


@settings(max_examples=15)
@given(st.integers(0, 10**9))
def test_a_run_killed_at_random_moments_trains_on_every_group_once(tmp_path_factory, seed):
    last, _ = asyncio.run(run_with_kills(tmp_path_factory.mktemp("run"), seed))
    run, rows = last.run, last.rows()
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
    assert sum(asyncio.run(run_with_kills(tmp_path / str(seed), seed))[1] for seed in range(4)) >= 4


@scene
async def test_save_now_waits_for_the_learners_step_and_no_other_begins_before_it_is_done(tmp_path):
    cue = Stage("train_policy", "save_checkpoint")
    each = LoopScene(tmp_path, cue, run={"checkpoint_minutes": 0}, driver={"max_staleness": 1})
    task = asyncio.create_task(each.train())
    await cue.next("train_policy")
    saving = asyncio.create_task(each.run.save_now())
    await asyncio.sleep(0.01)
    assert not cue.waiting("save_checkpoint")
    await cue.go_on("train_policy")
    await cue.next("save_checkpoint")
    await settle()
    assert len(each.batches()) == 1  # although the next batch is there
    await cue.go_on("save_checkpoint")
    await saving
    assert [checkpoint.step for checkpoint in whole_checkpoints(each.run.recorder.folder)] == [1]
    cue.let_all_go_on()
    assert await task == 6
    assert each.run.save_now is None


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
        again = PolicyLoops(whole.run, "grpo", 6, whole.after_step, state)._state()
        ages_s = [each.record.ages_s for each in (again, state)]
        assert ages_s[0] == pytest.approx(ages_s[1], abs=1)
        alive = [[number, stage, state.gate.version if stage == "in flight" else old] for number, stage, old in state.gate.alive]
        expected = replace(state, gate=replace(state.gate, alive=alive), record=again.record, validating=[])
        assert again == expected
        assert (again.record.drop_counts, again.record.dropped) == (state.record.drop_counts, state.record.dropped)


@scene
async def test_generation_and_grading_go_on_while_a_checkpoint_is_written(tmp_path):
    cue = Stage("save_checkpoint", "generate")
    each = LoopScene(tmp_path, cue, run={"checkpoint_every": 2}, driver={"max_staleness": 4, "canary_every": 9})
    task = asyncio.create_task(each.train())
    for _ in range(4):  # the groups of two steps
        await cue.go_on("generate")
    await cue.next("save_checkpoint")
    num_graded, num_in_flight = len(each.diary.of("score")), len(cue.waiting("generate"))
    assert num_in_flight > 0
    for _ in range(num_in_flight):
        await cue.go_on("generate")
    await until(lambda: len(each.diary.of("score")) == num_graded + num_in_flight)  # else the scene's limit ends the test
    assert len(each.batches()) == 2
    cue.let_all_go_on()
    assert await task == 6


@scene
async def test_a_full_disk_costs_the_checkpoint_and_not_the_run(tmp_path):
    async def full(actor, what, detail):
        if what == "save_checkpoint" and ".grpo-2." in detail:
            raise OSError(28, "No space left on device")

    each = LoopScene(tmp_path, full, run={"checkpoint_every": 2, "keep_last": 9})
    assert await each.train() == 6
    assert [checkpoint.step for checkpoint in whole_checkpoints(each.run.recorder.folder)] == [4, 6]
    assert [text for text in each.said if "No space left" in text and "The run goes on" in text]
    assert sorted(path.name for path in (each.run.recorder.folder / "checkpoints").iterdir()) == ["grpo-4", "grpo-6"]


@scene
async def test_the_best_validated_checkpoint_stays_beside_the_last(tmp_path):
    each = LoopScene(tmp_path, at_once, run={"checkpoint_every": 1, "keep_last": 1, "keep_best": 1}, eval={"validate_every": 1})
    planned = {1: 0.1, 2: 0.9, 3: 0.2, 4: 0.3, 5: 0.1, 6: 0.0}
    each.after_step = lambda step, groups, metrics: None

    class Planned(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, planned[key[1]])

    each.run.validated = Planned()
    await each.train()
    assert [checkpoint.step for checkpoint in whole_checkpoints(each.run.recorder.folder)] == [2, 6]


@scene
async def test_a_finished_run_gets_more_steps_from_its_last_checkpoint_by_name(tmp_path):
    short = LoopScene(tmp_path / "runs", **sections(grpo={"num_steps": 3}))
    await short.train()
    short.run.recorder.close()
    last = str(tmp_path / "runs" / "test" / "checkpoints" / "grpo-3")
    with pytest.raises(RecipeError, match=r"grpo.num_steps: 3 was saved, 6 is given"):
        LoopScene(tmp_path / "runs", **sections(resume=last))
    changed = sections(resume=last)
    changed["run"]["resume_with_changes"] = True
    longer = LoopScene(tmp_path / "runs", **changed)
    assert await longer.train() == 6
    whole = LoopScene(tmp_path / "whole", **sections())
    await whole.train()
    assert longer.rows() == whole.rows()


@scene
async def test_a_canary_whose_generation_was_aborted_does_not_end_the_loops_before_the_save(tmp_path):
    each = LoopScene(tmp_path)
    each.generators[0]._answer = lambda request, began_with: Completion("", (), (), ((0, 0),), "abort")
    assert await canary(each.run) == 0.0


def abort_generation(each):
    """As a job that is told to stop does it: all that is in flight, and comes later, ends where it is."""
    for generator in each.generators:
        generator._answer = lambda request, began_with: Completion("", (), (), ((began_with, 0),), "abort")
    each.learner.cue.let_all_go_on()


@pytest.mark.parametrize("max_staleness", [0, 2])
@scene
async def test_a_stopped_run_saves_its_last_step_although_a_validation_was_cut_off_and_does_that_again(tmp_path, max_staleness):
    keys = {"driver": {"max_staleness": max_staleness}, "eval": {"validate_every": 2}}
    cue = Stage()
    each = LoopScene(tmp_path, cue, run={"resume": "auto"}, **keys)
    held = cue.holds
    cue.holds = lambda actor, what, detail: held(actor, what, detail) or (what == "generate" and "validation" in detail[0][0])
    task = asyncio.create_task(each.train())
    await cue.next("generate")  # of the validation
    await until(lambda: each.learner.num_updates >= 2)
    abort_generation(each)
    cue.holds = held
    await each.run.save_now()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    each.run.recorder.close()
    (checkpoint,) = whole_checkpoints(each.run.recorder.folder)
    resumed = LoopScene(tmp_path, run={"resume": "auto"}, **keys)
    assert await resumed.train() == NUM_STEPS
    assert [row["step"] for row in resumed.metrics()] == list(range(1, NUM_STEPS + 1))
    keys_of_rows = [(row["group_id"], row["sample"]) for row in resumed.rows()]
    assert len(keys_of_rows) == len(set(keys_of_rows)) == NUM_STEPS * 2 * 2
    validated = [row["step"] for row in all_metrics(resumed) if "validation_accuracy" in row]
    assert validated == ([2, 4, 6] if checkpoint.step == 2 else [4, 6])
    assert max_staleness > 0 or checkpoint.step == 2
