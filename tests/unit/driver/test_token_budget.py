"""study.generated_tokens: where GRPO ends, with made-up engines. Expert iteration's rounds are in stages/test_expert_iteration.py."""

import pytest
from fakes import scene
from loop_scene import LoopScene

from mathrl_ray.driver.checkpoint import whole_checkpoints


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


@scene
async def test_a_stage_whose_budget_is_spent_is_done_for_a_run_that_goes_on(tmp_path):
    loop = LoopScene(tmp_path, grpo={"num_steps": 50}, study={"generated_tokens": 1}, run={"checkpoint_every": 1})
    await loop.train()
    (checkpoint,) = whole_checkpoints(loop.run.recorder.folder)
    assert checkpoint.is_trained
    assert checkpoint.step == 1


@scene
async def test_no_budget_is_no_limit(tmp_path):
    loop = LoopScene(tmp_path, grpo={"num_steps": 4})
    assert await loop.train() == 4
    assert not loop.run.is_budget_spent
