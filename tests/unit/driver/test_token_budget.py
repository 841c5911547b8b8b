"""A stage's token budget: where GRPO ends, and what each step and validation has cost, with made-up engines. Expert iteration's rounds are
in stages/test_expert_iteration.py, and a study of both."""

import asyncio
import json

import pytest
from fakes import ShuffledTurns, Stage, at_once, scene, until
from loop_scene import LoopScene, sections

from mathrl_ray.driver.checkpoint import read_checkpoint, whole_checkpoints
from mathrl_ray.driver.evaluation import validate
from mathrl_ray.driver.run import Run
from mathrl_ray.types import Completion


@pytest.mark.parametrize("staleness", [0, 1, 2])
@scene
async def test_no_batch_is_begun_once_the_budget_is_spent_and_all_that_was_sampled_is_trained_on(tmp_path, staleness):
    loop = LoopScene(tmp_path, driver={"max_staleness": staleness}, grpo={"num_steps": 50}, study={"generated_tokens": 1})
    num_steps = await loop.train()
    assert 1 <= num_steps <= 1 + staleness  # what is in flight is not counted yet
    assert loop.run.policy_version == num_steps
    rows = loop.rows()
    assert all(row["consumed_step"] for row in rows)
    assert loop.run.ledger.counts.generated_tokens == sum(len(row["response_ids"]) for row in rows)


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("budget", [1, 9, 20])
@pytest.mark.parametrize("order", [None, 1, 2, 3])
@pytest.mark.parametrize("dull", [0, 5])
@scene
async def test_every_batch_is_whole_wherever_the_budget_ends(tmp_path, order, budget, staleness, dull):
    """Groups that dynamic sampling replaces among them, also when the budget is spent already."""
    loop = LoopScene(
        tmp_path,
        at_once if order is None else ShuffledTurns(order),
        num_dull=dull,
        driver={"max_staleness": staleness},
        grpo={"num_steps": 50, "prompts_per_step": 4, "dynamic_sampling": dull > 0, "max_replaced": 5},
        study={"generated_tokens": budget},
    )
    num_steps = await loop.train()
    assert set(loop.num_groups) == {4}
    assert num_steps < 50
    assert loop.run.ledger.counts.generated_tokens >= budget
    assert all(row["consumed_step"] for row in loop.rows() if row["drop_reason"] is None)


@scene
async def test_a_budget_takes_as_many_steps_as_it_has_tokens_for(tmp_path):
    free = LoopScene(tmp_path / "free", grpo={"num_steps": 6})
    await free.train()
    tokens = {step: sum(len(row["response_ids"]) for row in free.rows() if row["consumed_step"] == step) for step in range(1, 7)}
    budget = sum(tokens[step] for step in range(1, 4))
    exact = LoopScene(tmp_path / "exact", grpo={"num_steps": 6}, study={"generated_tokens": budget})
    assert await exact.train() == 3
    assert exact.run.ledger.counts.generated_tokens == budget
    more = LoopScene(tmp_path / "more", grpo={"num_steps": 6}, study={"generated_tokens": budget + 1})
    assert await more.train() == 4


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("order", [None, 1, 2, 3])
@scene
async def test_a_stage_whose_budget_is_spent_is_done_for_a_run_that_goes_on(tmp_path, order, staleness):
    cue = at_once if order is None else ShuffledTurns(order)
    keys = {"grpo": {"num_steps": 50}, "study": {"generated_tokens": 9}, "driver": {"max_staleness": staleness}}
    loop = LoopScene(tmp_path, cue, **sections(), **keys)
    num_steps = await loop.train()
    found = [(checkpoint.step, checkpoint.is_trained) for checkpoint in whole_checkpoints(loop.run.recorder.folder)]
    assert found == [(step, step == num_steps) for step in range(1, num_steps + 1)]


@scene
async def test_no_budget_is_no_limit(tmp_path):
    loop = LoopScene(tmp_path, grpo={"num_steps": 4})
    assert await loop.train() == 4
    assert not loop.run.is_budget_spent


@scene
async def test_behaviour_26_stopped_while_it_samples_a_run_spends_its_budget_as_the_one_that_never_stopped(tmp_path):
    # two groups of two responses of one token each a step: 20 tokens are 5 steps
    keys = {"grpo": {"num_steps": 50}, "study": {"generated_tokens": 20}}
    whole = LoopScene(tmp_path / "whole", **keys)
    assert await whole.train() == 5
    cue = Stage()
    stopped = LoopScene(tmp_path / "stopped", cue, run={"resume": "auto"}, **keys)
    task = asyncio.create_task(stopped.train())
    cue.holds = lambda actor, what, detail: what == "generate" and detail[0][0].startswith("grpo-3/")
    await until(lambda: len(cue.waiting("generate")) == 2)
    for generator in stopped.generators:  # as farewell ends them: cut off after a token, then saved
        generator._answer = lambda request, version: Completion("7", (7,), (-0.5,), ((version, 1),), "abort")
    cue.let_all_go_on()
    await stopped.run.generators.drained()
    await stopped.run.save_now()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    stopped.run.recorder.close()
    assert [group.group_id for group in stopped.run.stopped_groups] == ["grpo-3/0", "grpo-3/1"]
    resumed = LoopScene(tmp_path / "stopped", run={"resume": "auto"}, **keys)
    assert await resumed.train() == 5
    assert resumed.run.ledger.counts == whole.run.ledger.counts
    assert resumed.rows() == whole.rows()


def check_costs(loop: LoopScene, num_steps: int) -> None:
    """Each step's row and each validation's says what was consumed up to that step, whatever went on meanwhile."""
    tokens = {
        step: sum(len(row["response_ids"]) for row in loop.rows() if row["consumed_step"] == step) for step in range(1, num_steps + 1)
    }
    expected = {step: sum(tokens[each] for each in range(1, step + 1)) for step in tokens}
    rows = [json.loads(line) for line in (loop.run.recorder.folder / "metrics.jsonl").read_text().splitlines()]
    steps = {row["step"]: row for row in rows if "reward_mean" in row}
    validations = {row["step"]: row for row in rows if "validation_accuracy" in row}
    assert {step: row["consumed_tokens_total"] for step, row in steps.items()} == expected
    assert {step: row["trained_tokens_total"] for step, row in steps.items()} == expected  # nothing is dropped here
    assert validations
    assert {step: row["consumed_tokens_total"] for step, row in validations.items()} == {step: expected[step] for step in validations}


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("order", [None, 1, 2, 3])
@scene
async def test_a_step_and_its_validation_cost_what_its_weights_have_cost_also_where_steps_overlap(tmp_path, staleness, order):
    def loop(folder, every, resume=""):  # canaries and checkpoints would keep the steps apart
        cue = at_once if order is None else ShuffledTurns(order)
        keys = {"driver": {"max_staleness": staleness, "canary_every": 100}, "eval": {"validate_every": 1}}
        return LoopScene(folder, cue, run={"checkpoint_every": every, "keep_last": 100, "resume": resume}, **keys)

    free = loop(tmp_path / "free", every=0)
    assert await free.train() == 6
    check_costs(free, 6)
    whole = loop(tmp_path / "whole", every=3)
    assert await whole.train() == 6
    whole.run.recorder.close()
    third = whole.run.recorder.checkpoint_folder("grpo", 3)
    with (whole.run.recorder.folder / "metrics.jsonl").open("r+b") as metrics:  # killed before its validation was done
        metrics.truncate(read_checkpoint(third).content["metrics_bytes"])
    resumed = loop(tmp_path / "whole", every=0, resume=str(third))
    assert await resumed.train() == 6
    check_costs(resumed, 6)


@scene
async def test_a_validation_that_a_stage_waits_for_costs_what_was_consumed_not_what_is_in_flight(tmp_path):
    loop = LoopScene(tmp_path)
    loop.run.ledger.counts.generated_tokens, loop.run.ledger.counts.consumed_tokens = 90, 50
    await validate(loop.run, "expert_iteration", 1)
    (row,) = [json.loads(line) for line in (loop.run.recorder.folder / "metrics.jsonl").read_text().splitlines()]
    assert row["consumed_tokens_total"] == 50


@scene
async def test_steps_that_are_left_are_those_that_the_budget_has_tokens_for(tmp_path):
    run: Run = LoopScene(tmp_path, study={"generated_tokens": 100}).run
    assert run.steps_left(4, num_steps=60, consumed_tokens=40) == 6  # 60 tokens at 10 a step
    assert run.steps_left(4, num_steps=6, consumed_tokens=40) == 2
    assert run.steps_left(4, num_steps=60, consumed_tokens=36) == 8  # 64 at 9: 7.1
    assert run.steps_left(9, num_steps=60, consumed_tokens=104) == 0
    run.token_budget = 0
    assert run.steps_left(4, num_steps=60, consumed_tokens=40) == 56
