"""Checkpoints while the loops go on: when one is written, what waits for it, what a stop or a full disk does to it, and which stay."""

import asyncio

import pytest
from fakes import Stage, at_once, scene, settle, until
from loop_scene import LoopScene, all_metrics

from mathrl_ray.driver.canary import canary, sync_weights
from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.types import Completion

NUM_STEPS = 6
FULL = OSError(28, "No space left on device")


def saved_steps(each):
    return [checkpoint.step for checkpoint in whole_checkpoints(each.run.recorder.folder)]


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
            raise FULL

    each = LoopScene(tmp_path, full, run={"checkpoint_every": 2, "keep_last": 9})
    assert await each.train() == 6
    assert [checkpoint.step for checkpoint in whole_checkpoints(each.run.recorder.folder)] == [4, 6]
    assert [text for text in each.said if "No space left" in text and "The run goes on" in text]
    assert sorted(path.name for path in (each.run.recorder.folder / "checkpoints").iterdir()) == ["grpo-4", "grpo-6"]


@scene
async def test_a_disk_that_is_full_at_the_end_costs_no_evaluation_and_the_stage_can_be_saved_after_it(tmp_path):
    is_full = True

    async def full(actor, what, detail):
        if what == "save_checkpoint" and is_full:
            raise FULL

    each = LoopScene(tmp_path, full, run={"checkpoint_every": 2})
    assert await each.train() == NUM_STEPS
    assert saved_steps(each) == []
    with pytest.raises(OSError, match="No space left"):
        await each.run.save_now()
    is_full = False
    for _ in range(2):
        await each.run.save_now()
        assert saved_steps(each) == [NUM_STEPS]


@scene
async def test_a_stop_that_waits_for_a_save_that_fails_saves_again(tmp_path):
    cue = Stage("save_checkpoint")
    each = LoopScene(tmp_path, cue, run={"checkpoint_every": 1}, driver={"max_staleness": 1})
    task = asyncio.create_task(each.train())
    await cue.next("save_checkpoint")
    saving = asyncio.create_task(each.run.save_now())
    await settle()
    cue.held.clear()
    await cue.fail("save_checkpoint", error=FULL)
    await saving
    assert saved_steps(each)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def hold_the_first_validation(each, cue):
    """Its grading, until the test lets it go on."""
    golds, num_seen, held = {problem.gold for problem in each.run.validation_problems}, 0, cue.holds

    def holds(actor, what, detail):
        nonlocal num_seen
        if what == "score" and any(request.gold in golds for request in detail):
            num_seen += 1
            return num_seen == 1
        return held(actor, what, detail)

    cue.holds = holds


@scene
async def test_the_checkpoint_of_a_step_whose_validation_goes_on_is_not_removed_for_it_may_be_the_best(tmp_path):
    cue, keys = Stage(), {"driver": {"max_staleness": 2, "canary_every": 99}, "eval": {"validate_every": 3}}
    each = LoopScene(tmp_path, cue, num_generators=2, run={"checkpoint_every": 1, "keep_last": 1, "keep_best": 1}, **keys)

    class Planned(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, {3: 0.9, 6: 0.1}[key[1]])

    each.run.validated = Planned()
    hold_the_first_validation(each, cue)
    task = asyncio.create_task(each.train())
    await until(lambda: saved_steps(each) == [3, 6])  # else the scene's limit ends the test
    cue.let_all_go_on()
    await task
    assert (saved_steps(each), each.run.validated) == ([3, 6], {("grpo", 3): 0.9, ("grpo", 6): 0.1})


@scene
async def test_a_validation_of_an_earlier_step_that_a_kill_cut_off_is_named_at_resume(tmp_path):
    cue, keys = Stage(), {"driver": {"max_staleness": 2, "canary_every": 99}, "eval": {"validate_every": 2}}
    each = LoopScene(tmp_path, cue, num_generators=2, run={"checkpoint_every": 1}, **keys)
    hold_the_first_validation(each, cue)
    task = asyncio.create_task(each.train())
    await until(lambda: 3 in saved_steps(each))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    each.run.recorder.close()
    resumed = LoopScene(tmp_path, run={"checkpoint_every": 1, "resume": "auto"}, **keys)
    await resumed.train()
    assert [text for text in resumed.said if text.startswith("warning: no validation of grpo step 2: it was cut off")]
    assert set(resumed.run.validated) == {("grpo", 4), ("grpo", 6)}


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
async def test_a_canary_whose_generation_was_aborted_does_not_end_the_loops_before_the_save(tmp_path):
    each = LoopScene(tmp_path)
    each.generators[0]._answer = lambda request, began_with: Completion("", (), (), ((0, 0),), "abort")
    assert await canary(each.run) is None
    assert "canary_max_logprob_diff" not in await sync_weights(each.run, policy_version=0)


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
