"""run.resume_with_changes: a run that goes on with another recipe or other data, as far as its saved groups still fit these."""

import asyncio

import pytest
from fakes import Stage, scene, settle, until
from loop_scene import LoopScene, place, sections

from mathrl_ray.config import RecipeError
from mathrl_ray.driver.checkpoint import whole_checkpoints

CHANGES = {"run": {"resume": "auto", "resume_with_changes": True}}


async def stopped_while_grading(folder):
    """A run that was killed after its first step, while the groups of two further steps were graded. Returns these by number."""
    cue = Stage("score")
    each = LoopScene(folder, cue, run={"checkpoint_every": 1}, driver={"max_staleness": 2})
    task = asyncio.create_task(each.train())
    for _ in range(2):  # the groups of the first step
        await cue.go_on("score")
    await until(lambda: len(whole_checkpoints(each.run.recorder.folder)) == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    each.run.recorder.close()
    (checkpoint,) = whole_checkpoints(each.run.recorder.folder)
    return checkpoint.loops().sampled


@pytest.mark.parametrize("changes", [{"run": {**CHANGES["run"], "seed": 7}}, {**CHANGES, "num_problems": 11}])
@scene
async def test_responses_to_a_problem_that_another_has_the_place_of_are_dropped_and_that_one_is_sampled(tmp_path, changes):
    saved = await stopped_while_grading(tmp_path)
    resumed = LoopScene(tmp_path, **changes, driver={"max_staleness": 2})
    graded = []
    for scorer in resumed.scorers:
        scorer.score = noting(graded, scorer.score)
    assert await resumed.train() == 6
    rows = resumed.rows()
    golds = {problem.problem_id: problem.gold for problem in resumed.run.train_problems}
    texts = {(row["group_id"], row["sample"]): row for row in rows if row["drop_reason"] is None}
    dropped = {row["group_id"]: row["problem_id"] for row in rows if row["drop_reason"] == "other_problem"}
    assert dropped
    for group in saved.values():
        now = {row["problem_id"] for key, row in texts.items() if key[0] == group.group_id}
        assert len(now) == 1
        assert (group.group_id in dropped) == (now != {group.problem_id})
    assert all(row["learner_logprobs"] is None for row in rows if row["drop_reason"] == "other_problem")
    assert {gold for gold in graded if gold.startswith("gold")} <= set(golds.values())
    assert sum(row.get("num_dropped_other_problem", 0) for row in resumed.metrics()) == len(dropped)
    assert [text for text in resumed.said if f"{len(dropped)} groups that were saved answer other problems" in text]
    counts = resumed.run.ledger.counts
    assert counts.generated_tokens == sum(len(row["response_ids"]) for row in rows)
    assert counts.generated_tokens == counts.trained_tokens + counts.dropped_tokens


@scene
async def test_saved_responses_are_graded_by_the_gold_of_their_own_problem(tmp_path):
    saved = await stopped_while_grading(tmp_path)
    again = LoopScene(tmp_path, run={"resume": "auto"}, driver={"max_staleness": 2})
    assert await again.train() == 6
    assert not {group.group_id for group in saved.values()} & set(again.generated())


def noting(graded, score):
    async def noted(requests):
        graded.extend(request.gold for request in requests)
        return await score(requests)

    return noted


@scene
async def test_another_number_of_prompts_a_step_is_refused_by_name_since_groups_are_numbered_by_it(tmp_path):
    await stopped_while_grading(tmp_path)
    resumed = LoopScene(tmp_path, **CHANGES, driver={"max_staleness": 2}, grpo={"prompts_per_step": 3})
    with pytest.raises(RecipeError, match=r"grpo\.prompts_per_step: 2 was saved, 3 is given: .* cannot change in the middle of a stage"):
        await resumed.train()


async def stopped_with_groups_behind_one_in_flight(folder):
    """Of steps 2 and 3 the second and the first group are buffered, their siblings are in flight."""
    cue = Stage("generate of generator-0")
    each = LoopScene(folder, cue, driver={"max_staleness": 2})
    task = asyncio.create_task(each.train())

    async def answered(*names):
        for name in names:
            await until(lambda name=name: name in {call[2][0][0] for call in cue.waiting("generate")})
            next(call for call in cue.waiting("generate") if call[2][0][0] == name)[3].set_result(None)
        await settle()

    await answered("grpo-1/0", "grpo-1/1", "grpo-2/1", "grpo-3/0", "canary/0")
    await each.run.save_now()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    each.run.recorder.close()
    (checkpoint,) = whole_checkpoints(each.run.recorder.folder)
    assert {group.group_id for group in checkpoint.loops().buffered.values()} == {"grpo-2/1", "grpo-3/0"}


@pytest.mark.parametrize("driver", [{"on_stale": "drop"}, {"on_stale": "train"}, {"max_staleness": 0}, {"max_staleness": 1}])
@scene
async def test_another_mode_or_bound_of_staleness_loses_no_group_and_does_not_hang(tmp_path, driver):
    await stopped_with_groups_behind_one_in_flight(tmp_path)
    driver = {"max_staleness": 2, **driver}
    resumed = LoopScene(tmp_path, **CHANGES, driver=driver)
    assert await resumed.train() == 6
    rows = resumed.rows()
    groups = {row["group_id"]: row["drop_reason"] for row in rows}
    assert len(rows) == 2 * len(groups)
    assert {"grpo-2/1", "grpo-3/0"} <= set(groups)
    assert sum(reason is None for reason in groups.values()) == 12
    assert all(row["staleness"] <= driver["max_staleness"] for row in rows if row["consumed_step"])
    in_order = sorted(map(place, groups))
    assert driver["max_staleness"] < 2 or in_order == [(step, index) for step in range(1, 7) for index in range(2)]
    lost = sum(row.get("num_dropped_stale", 0) for row in resumed.metrics())
    assert (lost > 0) == (driver["max_staleness"] < 2)


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
