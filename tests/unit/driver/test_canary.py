import asyncio
import json

import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer, Stage, scene, settle, until
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import ActorError, Actors
from mathrl_ray.driver.canary import CanaryError, begin_stage, canary, sync_weights
from mathrl_ray.types import Completion


@pytest.fixture
def diary():
    return Diary()


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def run_with(tmp_path, diary, stage):
    def make(*, num_generators=1, num_scorers=1, gap_nats=0.0, **sections):
        actors = Actors(
            learner=FakeLearner(diary, gap_nats),
            generators=tuple(FakeGenerator(diary, f"generator-{index}", cue=stage) for index in range(num_generators)),
            scorers=tuple(FakeScorer(diary, f"scorer-{index}") for index in range(num_scorers)),
            stop_token_ids=(0,),
        )
        sections = {"eval": {"num_problems": 10}, "grpo": {"num_steps": 2, "prompts_per_step": 3, "group_size": 4}, **sections}
        return make_run(recipe_for(tmp_path, **sections), actors)

    return make


def test_a_publication_goes_publish_apply_version_canary(run_with, diary):
    run = run_with(num_generators=2)
    diary.entries.clear()
    asyncio.run(sync_weights(run, policy_version=5))
    assert [(actor, what) for actor, what, _ in diary.entries] == [
        ("learner-0", "publish"),
        ("generator-0", "apply_weights"),
        ("generator-1", "apply_weights"),
        ("generator-0", "generate"),
        ("learner-0", "response_statistics"),
        ("generator-1", "generate"),
        ("learner-0", "response_statistics"),
    ]
    assert run.policy_version == 5


def test_behaviour_17_a_canary_over_its_limit_ends_the_run_and_names_the_generator(run_with):
    run = run_with(gap_nats=0.01)
    with pytest.raises(CanaryError, match=r"generator-0 and the learner differ by 0\.01 nats .*driver\.canary_max_logprob_diff = 0\.001 "):
        asyncio.run(sync_weights(run, policy_version=1))


def test_behaviour_17_a_gap_of_precision_before_any_update_widens_the_limit_to_three_times_it(run_with):
    run = run_with(gap_nats=0.01)
    asyncio.run(begin_stage(run, "grpo", learning_rate=1e-3, num_optimizer_steps=1))
    run.actors.learner.gap_nats = 0.025
    asyncio.run(sync_weights(run, policy_version=1))
    run.actors.learner.gap_nats = 0.035
    with pytest.raises(CanaryError, match=r"differ by 0\.035 nats .* more than 0\.03 "):
        asyncio.run(sync_weights(run, policy_version=2))


def test_a_canary_that_is_not_a_number_ends_the_run(run_with):
    with pytest.raises(CanaryError):
        asyncio.run(sync_weights(run_with(gap_nats=float("nan")), policy_version=1))


def test_each_stage_starts_from_the_start_model(run_with, diary):
    run = run_with()
    asyncio.run(begin_stage(run, "grpo", learning_rate=1e-3, num_optimizer_steps=1))
    assert diary.of("start_stage") == [("learner-0", "start_stage", "start")]
    assert run.policy_version == 0


@scene
async def test_a_pinned_generator_is_left_out_since_it_holds_older_weights(run_with, diary):
    run = run_with(num_generators=2)
    async with run.weights.pinned():
        diary.entries.clear()
        await sync_weights(run, policy_version=1)
        assert [actor for actor, _, _ in diary.of("generate")] == ["generator-0"]
    await canary(run)
    assert [actor for actor, _, _ in diary.of("generate")] == ["generator-0"] * 2 + ["generator-1"]


@scene
async def test_behaviour_21_a_generator_that_dies_of_the_canary_is_replaced_and_the_others_are_compared(run_with, stage):
    run = run_with(num_generators=2)
    await sync_weights(run, policy_version=1)
    stage.held = {"generate of generator-0", "restart"}
    asked = asyncio.create_task(canary(run))
    await stage.fail("generate", "generator-0")
    assert await asked == 0.0
    assert run.generators.num_restarts == 1
    stage.let_all_go_on()
    await run.generators.revived()


@scene
async def test_the_only_generator_is_compared_when_it_is_back_with_the_published_weights(run_with, stage, diary):
    run = run_with()
    await sync_weights(run, policy_version=1)
    stage.held = {"apply_weights", "restart"}
    syncing = asyncio.create_task(sync_weights(run, policy_version=2))
    await stage.fail("apply_weights")
    await stage.next("restart")
    await settle()
    diary.entries.clear()
    stage.let_all_go_on()
    await syncing
    assert [what for _, what, _ in diary.entries] == ["apply_weights", "generate", "response_statistics"]
    assert (run.policy_version, run.actors.generators[0].policy_version, run.generators.num_restarts) == (2, 2, 1)


@scene
async def test_behaviour_21_a_canary_that_kills_every_time_ends_with_the_limit_of_replacements(run_with, stage):
    run = run_with(driver={"max_restarts": 2})
    await sync_weights(run, policy_version=1)
    stage.held = {"generate"}
    asked = asyncio.create_task(canary(run))
    for _ in range(3):
        await stage.fail("generate")
    with pytest.raises(ActorError, match=r"driver\.max_restarts = 2 replacements were made"):
        await asked
    await until(lambda: not stage.calls)


@scene
async def test_a_canary_whose_generation_was_aborted_says_nothing_and_sets_no_limit(run_with):
    run = run_with()
    run.actors.generators[0]._answer = lambda request, began_with: Completion("", (), (), ((0, 0),), "abort")
    assert await canary(run) is None
    await begin_stage(run, "grpo", learning_rate=1e-3, num_optimizer_steps=1)
    assert run.canary_limit_nats is None
    (row,) = map(json.loads, (run.recorder.folder / "metrics.jsonl").read_text().splitlines())
    assert "sync_s" in row
    assert "canary_max_logprob_diff" not in row


@scene
async def test_the_canary_counts_as_work_of_both(run_with):
    run = run_with()
    await canary(run)
    assert {(actor, what) for actor, what, _, _ in run.ledger.take_spans()} == {("generator-0", "canary"), ("learner-0", "canary")}
