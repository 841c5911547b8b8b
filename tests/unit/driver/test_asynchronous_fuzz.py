"""The loops under random answers, deaths and settings: whatever happens, nothing is lost, doubled, too old or waited for without end."""

import asyncio

import pytest
from fakes import ShuffledTurns, scene
from loop_scene import check_nothing_is_lost_or_doubled, random_scene

FAILING = ("generate", "apply_weights", "meet", "score")


async def run_to_its_end(tmp_path, seed, cue):
    loops = random_scene(tmp_path, seed, cue)
    num_steps = await loops.train()
    await asyncio.gather(loops.run.generators.revived(), loops.run.scorers.revived())
    check_nothing_is_lost_or_doubled(loops, num_steps)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    held = {generator.policy_version for generator in loops.generators}
    assert held == {loops.run.policy_version}
    return loops


@pytest.mark.parametrize("seed", range(30))
@scene
async def test_behaviour_11_answers_in_any_order_lose_and_double_nothing(tmp_path, seed):
    await run_to_its_end(tmp_path, seed, ShuffledTurns(seed))


@pytest.mark.parametrize("seed", range(100, 140))
@scene
async def test_behaviour_21_generators_and_scorers_that_die_at_any_moment_lose_and_double_nothing(tmp_path, seed):
    cue = ShuffledTurns(seed, FAILING, failure_rate=0.15)
    await run_to_its_end(tmp_path, seed, cue)
