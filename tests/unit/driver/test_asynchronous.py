import asyncio

import pytest
from fakes import ShuffledTurns, Stage, scene, settle, until
from loop_scene import LoopScene, check_nothing_is_lost_or_doubled

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.driver.canary import CanaryError
from mathrl_ray.driver.prompt_stream import PromptStream
from mathrl_ray.driver.replicas import GivenUpError


def keys(max_staleness, **driver):
    return {"max_staleness": max_staleness, "canary_every": 1000, **driver}


class Refusing(Stage):
    """Refuses every request for the named groups, as an engine does a prompt that is too long."""

    def __init__(self, *held, refused=(), what="generate"):
        super().__init__(*held)
        self.refused, self.what, self.num_refused = refused, what, 0

    async def __call__(self, actor, what, detail):
        await super().__call__(actor, what, detail)
        if what == self.what and self.refused(detail):
            self.num_refused += 1
            raise ValueError("the prompt is too long")


class Holding(Stage):
    """Holds the requests for the responses of certain groups."""

    def __init__(self, selects):
        super().__init__("these groups")
        self.selects = selects

    def holds(self, actor, what, detail):
        return bool(self.held) and what == "generate" and self.selects(detail[0][0])


# What overlaps, and what does not


@pytest.mark.parametrize("max_staleness", [1, 2, 4])
@scene
async def test_generation_goes_on_while_the_learner_trains_until_every_slot_is_full(tmp_path, max_staleness):
    cue = Stage("train_policy")
    loops = LoopScene(tmp_path, cue, driver=keys(max_staleness))
    training = asyncio.create_task(loops.train())
    await cue.next("train_policy")
    await settle()
    # (max_staleness + 1) batches of 2 are alive, or all 6 of them: one is trained on, the others are sampled meanwhile
    assert len(loops.generated()) == min(max_staleness + 1, 6) * 2
    assert loops.run.scorers.actors[0].diary.of("score") != []
    cue.let_all_go_on()
    assert await training == 6
    check_nothing_is_lost_or_doubled(loops, 6)


@scene
async def test_the_learner_trains_on_while_generators_take_its_last_weights(tmp_path):
    cue = Stage("apply_weights")
    loops = LoopScene(tmp_path, cue, driver=keys(1))
    training = asyncio.create_task(loops.train())
    await cue.next("apply_weights")
    await until(lambda: len(loops.batches()) == 2)
    await settle()
    assert len(loops.diary.of("publish")) == 2  # version 2 is trained, and waits: the memory is still read
    cue.let_all_go_on()
    await training
    check_nothing_is_lost_or_doubled(loops, 6)


@scene
async def test_a_learner_that_sends_the_weights_itself_does_not_train_before_they_are_sent(tmp_path):
    cue = Stage("apply_weights", "send_weights")
    loops = LoopScene(tmp_path, cue, transport="nccl", driver=keys(2))
    training = asyncio.create_task(loops.train())
    for _ in range(2):
        await cue.next("apply_weights")
        await settle()
        assert len(loops.diary.of("send_weights")) == len(loops.batches()) + 1  # the start model's too
        await cue.go_on("send_weights")
        await cue.go_on("apply_weights")
    cue.let_all_go_on()
    await training
    events = [what for actor, what, _ in loops.diary.entries if what in ("train_policy", "publish", "send_weights")]
    assert events == ["publish", "send_weights"] + ["train_policy", "publish", "send_weights"] * 6


@scene
async def test_behaviour_22_without_staleness_nothing_is_sampled_between_a_batch_and_its_weights(tmp_path):
    cue = Stage("train_policy", "publish", "apply_weights")
    loops = LoopScene(tmp_path, cue, driver={"max_staleness": 0}, num_generators=2)
    training = asyncio.create_task(loops.train())
    for step in range(1, 7):
        for what in ("train_policy", "publish", "apply_weights"):
            await cue.next(what)
            await settle()
            assert len(loops.generated()) == 2 * step
            assert not any(replica.load for replica in loops.run.generators)
            await cue.go_on(what)
        await cue.go_on("apply_weights")
    assert await training == 6
    check_nothing_is_lost_or_doubled(loops, 6)
    assert {row["staleness"] for row in loops.rows()} == {0}
    assert loops.batches() == [[f"grpo-{step}/0", f"grpo-{step}/1"] for step in range(1, 7)]


@scene
async def test_a_batch_is_taken_in_the_order_of_admission_though_its_groups_end_in_the_other(tmp_path):
    cue = Stage("generate")
    loops = LoopScene(tmp_path, cue, driver=keys(1), grpo={"prompts_per_step": 4, "num_steps": 1})
    training = asyncio.create_task(loops.train())
    await until(lambda: len(cue.waiting("generate")) == 4)
    for call in reversed(cue.waiting("generate")):
        assert loops.batches() == []
        call[3].set_result(None)
        await settle()
    await training
    assert loops.batches() == [["grpo-1/0", "grpo-1/1", "grpo-1/2", "grpo-1/3"]]


@scene
async def test_a_slow_generator_gets_fewer_groups_and_holds_up_none_of_the_others(tmp_path):
    cue = Stage("generate of generator-1")
    loops = LoopScene(tmp_path, cue, num_generators=2, driver=keys(4, on_stale="train"), grpo={"num_steps": 20})
    training = asyncio.create_task(loops.train())
    await until(lambda: len(loops.batches()) >= 15)
    assert len(cue.waiting("generate", "generator-1")) <= 3
    cue.let_all_go_on()
    await training
    check_nothing_is_lost_or_doubled(loops, 20)


# What gets too old


async def one_slow_group(folder, on_stale):
    """S = 1, B = 1: the first group's responses do not come while others do."""
    cue = Holding(lambda group: group == "grpo-1/0")
    loops = LoopScene(folder, cue, driver=keys(1, on_stale=on_stale), grpo={"prompts_per_step": 1, "num_steps": 5})
    training = asyncio.create_task(loops.train())
    await cue.next("generate")
    return loops, training, cue


@scene
async def test_on_stale_wait_the_learner_waits_for_the_oldest_group(tmp_path):
    loops, training, cue = await one_slow_group(tmp_path, "wait")
    await settle()
    assert (loops.batches(), loops.generated()) == ([], ["grpo-1/0", "grpo-2/0"])
    cue.let_all_go_on()
    await training
    check_nothing_is_lost_or_doubled(loops, 5)
    assert loops.batches()[0] == ["grpo-1/0"]


@scene
async def test_on_stale_drop_what_comes_too_late_is_written_down_and_never_trained_on(tmp_path):
    loops, training, cue = await one_slow_group(tmp_path, "drop")
    await until(lambda: len(loops.batches()) == 4)  # the fifth needs the slow one's replacement, since no more than 5 are ever alive
    cue.let_all_go_on()
    assert await training == 5
    check_nothing_is_lost_or_doubled(loops, 5)
    late = [row for row in loops.rows() if row["group_id"] == "grpo-1/0"]
    assert [(row["sample"], row["drop_reason"], row["consumed_step"], row["learner_logprobs"]) for row in late] == [
        (0, "stale", None, None),
        (1, "stale", None, None),
    ]
    assert all(row["advantage"] is None for row in late)
    assert all(row["staleness"] > 1 for row in late)
    counted = [row for row in loops.metrics() if row.get("num_dropped_stale")]
    assert [row["num_dropped_stale"] for row in counted] == [1]
    num_tokens = sum(len(row["response_ids"]) for row in late)
    assert counted[0]["dropped_response_tokens_mean"] == num_tokens / 2
    assert counted[0]["kept_response_tokens_mean"] > 0
    assert loops.run.ledger.counts.dropped_tokens == num_tokens


@scene
async def test_on_stale_train_what_comes_too_late_is_trained_on_and_its_staleness_logged(tmp_path):
    loops, training, cue = await one_slow_group(tmp_path, "train")
    await until(lambda: len(loops.batches()) == 4)
    cue.let_all_go_on()
    assert await training == 5
    check_nothing_is_lost_or_doubled(loops, 5)
    (step,) = {row["consumed_step"] for row in loops.rows() if row["group_id"] == "grpo-1/0"}
    row = loops.metrics()[step - 1]
    assert (row["staleness_max"], row["mixed_version_fraction"]) == (step - 1, 1.0)
    assert step == 5


# Replaced and failed prompts


@scene
async def test_dynamic_sampling_replaces_groups_without_contrast_and_counts_them(tmp_path):
    loops = LoopScene(tmp_path, num_dull=8, driver=keys(1), grpo={"num_steps": 8, "dynamic_sampling": True})
    await loops.train()
    check_nothing_is_lost_or_doubled(loops, 8)
    assert all(len(batch) == 2 for batch in loops.batches())
    assert len(loops.batches()) == 8  # every step had a whole batch to learn from
    replaced = {row["group_id"] for row in loops.rows() if row["drop_reason"] == "zero_variance"}
    metrics = loops.metrics()
    assert 0 < sum(row.get("num_dropped_zero_variance", 0) for row in metrics) <= len(replaced)
    for row in metrics:
        num = row.get("num_dropped_zero_variance", 0)
        assert row["zero_variance_fraction"] == num / (2 + num)
    num_tokens = sum(len(row["response_ids"]) for row in loops.rows() if row["drop_reason"] == "zero_variance")
    assert loops.run.ledger.counts.zero_variance_tokens == num_tokens


@scene
async def test_a_reward_schedule_follows_the_step_that_trains_and_not_the_prompts_that_were_replaced(tmp_path):
    rising = {"answer": [[0, 0.0], [1000, 1000.0]]}  # a right answer is paid the step's number
    loops = LoopScene(tmp_path, num_dull=8, driver=keys(0), grpo={"num_steps": 8, "dynamic_sampling": True}, reward=rising)
    await loops.train()
    paid = {(row["consumed_step"], row["reward"]) for row in loops.rows() if row["consumed_step"] and row["reward"]}
    assert paid == {(step, step) for step in range(1, 9)}


@pytest.mark.parametrize("max_staleness", [0, 2])
@scene
async def test_dynamic_sampling_ends_where_no_prompt_has_contrast(tmp_path, max_staleness):
    grpo = {"num_steps": 3, "prompts_per_step": 2, "dynamic_sampling": True, "max_replaced": 3}
    loops = LoopScene(tmp_path, num_dull=16, driver=keys(max_staleness), grpo=grpo)
    assert await loops.train() == 3
    check_nothing_is_lost_or_doubled(loops, 3)
    assert loops.batches() == []
    replaced = [row.get("num_dropped_zero_variance", 0) for row in loops.metrics()]
    assert sum(replaced) <= 3 * 3 * 2  # steps x max_replaced x batch
    assert max_staleness > 0 or replaced == [3 * 2] * 3
    assert [row["zero_variance_fraction"] for row in loops.metrics()] == [1.0] * 3
    assert loops.run.policy_version == 0


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
@scene
async def test_behaviour_21_a_prompt_that_always_fails_is_dropped_after_its_tries_and_counted(tmp_path, max_staleness):
    cue = Refusing(refused=lambda detail: detail[0][0] == "grpo-2/1")
    loops = LoopScene(tmp_path, cue, num_generators=2, driver=keys(max_staleness, max_tries=4))
    assert await loops.train() == 6
    check_nothing_is_lost_or_doubled(loops, 6)
    assert cue.num_refused == 4
    assert loops.generated().count("grpo-2/1") == 4
    assert "grpo-2/1" not in {row["group_id"] for row in loops.rows()}  # it has no responses
    assert sum(row.get("num_dropped_failed", 0) for row in loops.metrics()) == 1
    assert loops.num_groups == [2] * 6  # another prompt took its place
    (said,) = [text for text in loops.said if "is dropped" in text]
    assert "the prompt is too long (tried 4 times, driver.max_tries)" in said
    assert loops.run.ledger.counts.redone == 3


@scene
async def test_behaviour_21_failing_prompts_with_others_between_them_do_not_end_the_run(tmp_path):
    loops = LoopScene(tmp_path, Refusing(refused=lambda detail: detail[0][0] in ("grpo-2/1", "grpo-4/0", "grpo-5/1")), driver=keys(0))
    assert await loops.train() == 6
    check_nothing_is_lost_or_doubled(loops, 6)
    assert sum(row.get("num_dropped_failed", 0) for row in loops.metrics()) == 3


@scene
async def test_behaviour_21_a_whole_batch_of_failing_prompts_ends_the_run(tmp_path):
    cue = Refusing(refused=lambda detail: detail[0][0].startswith("grpo-") and detail[0][0] > "grpo-2")
    loops = LoopScene(tmp_path, cue, driver=keys(1))
    with pytest.raises(GivenUpError, match=r"8 prompts in a row failed, the last one \(.*\): the prompt is too long"):
        await loops.train()
    assert loops.batches() == [["grpo-1/0", "grpo-1/1"]] or loops.batches() == []


@scene
async def test_responses_that_no_scorer_can_grade_are_kept_as_dropped(tmp_path):
    loops = LoopScene(tmp_path, cue := Refusing(what="score", refused=lambda requests: requests[0].gold == "gold 0"), driver=keys(1))
    assert await loops.train() == 6
    assert cue.num_refused == 3
    lost = [row for row in loops.rows() if row["drop_reason"] == "failed"]
    assert [(row["sample"], row["consumed_step"]) for row in lost] == [(0, None), (1, None)]
    assert sum(row.get("num_dropped_failed", 0) for row in loops.metrics()) == 1
    check_nothing_is_lost_or_doubled(loops, 6)


@scene
async def test_what_is_dropped_after_the_last_batch_is_written_down_too(tmp_path):
    # 3 problems in batches of 2, one epoch: the third has no contrast, is replaced by nothing, and no step comes after it
    loops = LoopScene(tmp_path, num_problems=3, driver=keys(1), grpo={"num_epochs": 1, "dynamic_sampling": True})
    loops.scorers[0].dull = frozenset({PromptStream(loops.run, "grpo").at(2).problem.gold})
    assert await loops.train() == 1
    check_nothing_is_lost_or_doubled(loops, 1)
    assert {(row["group_id"], row["drop_reason"]) for row in loops.rows()} == {
        ("grpo-1/0", None),
        ("grpo-1/1", None),
        ("grpo-2/0", "zero_variance"),
    }


# Ends


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
@pytest.mark.parametrize(("num_problems", "num_groups"), [(7, [3, 3, 1]), (6, [3, 3]), (3, [3])])
@scene
async def test_behaviour_22_one_epoch_ends_by_itself_with_a_smaller_last_batch(tmp_path, max_staleness, num_problems, num_groups):
    grpo = {"num_epochs": 1, "prompts_per_step": 3}
    loops = LoopScene(tmp_path, num_problems=num_problems, driver=keys(max_staleness), grpo=grpo)
    assert await loops.train() == len(num_groups)
    assert loops.num_groups == num_groups
    check_nothing_is_lost_or_doubled(loops, len(num_groups))
    assert len({row["problem_id"] for row in loops.rows()}) == num_problems


ENDINGS = {
    "train_policy": FloatingPointError("the loss is no number"),
    "publish": OSError("no space left"),
    "apply_weights": ValueError("lm_head.weight is not expected"),
    "generate": RuntimeError("a fault of our own"),
    "score": RuntimeError("a fault of our own"),
    "response_statistics": MemoryError("no memory"),
}


@pytest.mark.parametrize("max_staleness", [0, 2])
@pytest.mark.parametrize("what", ENDINGS)
@scene
async def test_an_error_anywhere_ends_all_loops_and_is_the_one_that_is_raised(tmp_path, what, max_staleness):
    cue = Stage()
    loops = LoopScene(tmp_path, cue, num_generators=2, driver=keys(max_staleness, canary_every=1))
    training = asyncio.create_task(loops.train())
    await until(lambda: len(loops.batches()) == 2)
    cue.held = {what}
    await cue.fail(what, error=ENDINGS[what])
    cue.let_all_go_on()
    with pytest.raises(type(ENDINGS[what]), match=str(ENDINGS[what])):
        await training
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("max_staleness", [0, 2])
@scene
async def test_an_error_of_what_looks_at_each_step_ends_all_loops(tmp_path, max_staleness):
    loops = LoopScene(tmp_path, driver=keys(max_staleness))
    loops.after_step = lambda *_: {}["nothing"]
    with pytest.raises(KeyError, match="nothing"):
        await loops.train()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@scene
async def test_behaviour_17_weights_that_did_not_arrive_end_the_run(tmp_path):
    loops = LoopScene(tmp_path, num_generators=2, driver={"max_staleness": 2})
    training = asyncio.create_task(loops.train())
    await until(lambda: len(loops.batches()) == 2)

    async def forget(manifest):
        return 0.01

    loops.generators[1].apply_weights = forget
    with pytest.raises(CanaryError, match=r"generator-1 and the learner differ by 0\.1 nats at policy version"):
        await training


@pytest.mark.parametrize("held", ["generate", "score", "train_policy", "publish", "apply_weights", "restart", "response_statistics"])
@pytest.mark.parametrize("max_staleness", [0, 2])
@scene
async def test_behaviour_23_a_cancelled_run_leaves_no_task_behind(tmp_path, held, max_staleness):
    cue = Stage("generate") if held == "restart" else Stage()
    loops = LoopScene(tmp_path, cue, num_generators=2, driver=keys(max_staleness, canary_every=1), eval={"validate_every": 1})
    training = asyncio.create_task(loops.train())
    if held == "restart":
        cue.held.add("restart")
        await cue.fail("generate")
    else:
        await until(lambda: len(loops.batches()) == 1)
        cue.held = {held}
    await cue.next(held)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    await loops.run.generators.close()  # replacements belong to the run, not to its loops
    assert asyncio.all_tasks() == {asyncio.current_task()}


# Updates that change nothing, canaries


@pytest.mark.parametrize("max_staleness", [0, 1])
@scene
async def test_a_skipped_update_publishes_nothing_and_frees_its_slots(tmp_path, max_staleness):
    loops = LoopScene(tmp_path, driver=keys(max_staleness))
    loops.learner.skips = True
    assert await loops.train() == 6
    assert [version for _, _, version in loops.diary.of("publish")] == [0]
    check_nothing_is_lost_or_doubled(loops, 6)
    assert loops.run.ledger.counts.optimizer_steps == 0


@scene
async def test_an_update_that_is_skipped_between_others_frees_its_slots_while_theirs_are_on_the_way(tmp_path):
    cue = Stage("apply_weights")
    loops = LoopScene(tmp_path, cue, driver=keys(2), grpo={"num_steps": 9})
    training = asyncio.create_task(loops.train())
    await cue.next("apply_weights")  # version 1 is on its way
    loops.learner.skips = True
    await settle()
    loops.learner.skips = False
    cue.let_all_go_on()
    assert await training == 9
    check_nothing_is_lost_or_doubled(loops, 9)


@pytest.mark.parametrize("max_staleness", [0, 2])
@scene
async def test_behaviour_17_a_canary_comes_every_so_many_steps(tmp_path, max_staleness):
    loops = LoopScene(tmp_path, num_generators=2, driver={"max_staleness": max_staleness, "canary_every": 3}, grpo={"num_steps": 7})
    await loops.train()
    assert [row["step"] for row in loops.metrics() if "canary_max_logprob_diff" in row] == [3, 6]
    assert all(row["canary_max_logprob_diff"] == 0 for row in loops.metrics() if "canary_max_logprob_diff" in row)
    assert all("sync_s" in row for row in loops.metrics())


# Validation


@scene
async def test_a_validation_beside_training_stays_at_one_version_while_two_generators_train_on(tmp_path):
    cue = Holding(lambda group: "validation" in group)
    loops = LoopScene(tmp_path, cue, num_generators=2, driver={"max_staleness": 1}, grpo={"num_steps": 8}, eval={"validate_every": 4})
    training = asyncio.create_task(loops.train())
    assert (await cue.next("generate"))[0] == "generator-1"
    await until(lambda: loops.run.policy_version >= 6)  # canaries at each of them, with the learner that trains on
    assert loops.generators[1].policy_version == 4
    cue.let_all_go_on()
    assert await training == 8
    check_nothing_is_lost_or_doubled(loops, 8)
    rows = loops.validations()
    assert sorted(rows) == ["validation-grpo-step4-v4", "validation-grpo-step8-v8"]
    assert {row["policy_version"] for row in rows["validation-grpo-step4-v4"]} == {4}
    assert len(rows["validation-grpo-step4-v4"]) == 8
    assert all(row["mean_token_entropy_nats"] is None for row in rows["validation-grpo-step4-v4"])
    assert [generator.policy_version for generator in loops.generators] == [8, 8]


@scene
async def test_with_one_generator_updates_wait_for_a_validation_while_the_learner_trains_the_next_step(tmp_path):
    cue = Holding(lambda group: "validation" in group)
    loops = LoopScene(tmp_path, cue, driver=keys(1), eval={"validate_every": 2})
    training = asyncio.create_task(loops.train())
    await cue.next("generate")
    await until(lambda: len(loops.batches()) == 4)  # the third is published and waits, the fourth is trained on meanwhile
    await settle()
    assert len(loops.diary.of("publish")) == 4  # 0, 1, 2, 3
    assert (loops.run.policy_version, loops.generators[0].policy_version) == (2, 2)
    cue.let_all_go_on()
    assert await training == 6
    check_nothing_is_lost_or_doubled(loops, 6)
    assert sorted(loops.validations()) == [f"validation-grpo-step{step}-v{step}" for step in (2, 4, 6)]
    assert all({row["policy_version"] for row in rows} == {int(name[-1])} for name, rows in loops.validations().items())


@scene
async def test_a_validation_whose_generator_came_back_with_newer_weights_is_given_up(tmp_path):
    cue = Holding(lambda group: "validation" in group)
    loops = LoopScene(tmp_path, cue, driver=keys(1), eval={"validate_every": 5})
    training = asyncio.create_task(loops.train())
    await cue.next("generate")  # of version 5, pinned
    await until(lambda: len(loops.diary.of("publish")) == 7)  # version 6 is there, and its update waits for the pin
    await cue.fail("generate")
    cue.let_all_go_on()
    assert await training == 6
    assert loops.validations() == {}
    assert "warning: no validation of grpo step 5: its generator was replaced meanwhile" in loops.said
    check_nothing_is_lost_or_doubled(loops, 6)


@scene
async def test_without_staleness_a_validation_is_inline_and_has_entropies(tmp_path):
    loops = LoopScene(tmp_path, driver={"max_staleness": 0}, eval={"validate_every": 3})
    await loops.train()
    rows = loops.validations()
    assert sorted(rows) == ["validation-grpo-step3-v3", "validation-grpo-step6-v6"]
    assert all(row["mean_token_entropy_nats"] == 0.1 for row in rows["validation-grpo-step3-v3"])
    check_nothing_is_lost_or_doubled(loops, 6)


@pytest.mark.parametrize("num_generators", [1, 2])
@scene
async def test_a_validation_whose_generator_dies_is_given_up_with_a_warning_and_the_run_goes_on(tmp_path, num_generators):
    cue = Refusing(refused=lambda detail: "validation" in detail[0][0])
    loops = LoopScene(tmp_path, cue, num_generators=num_generators, driver=keys(1), eval={"validate_every": 5})
    if num_generators == 2:

        async def die(actor, what, detail):
            if what == "generate" and "validation" in detail[0][0]:
                raise ActorError(f"{actor} died in generate()")

        for generator in loops.generators:
            generator.cue = die
    assert await loops.train() == 6
    await loops.run.generators.revived()
    assert loops.validations() == {}
    assert [text for text in loops.said if text.startswith("warning: no validation of grpo step 5: ")]
    check_nothing_is_lost_or_doubled(loops, 6)
    assert {generator.policy_version for generator in loops.generators} == {6}


@scene
async def test_a_validation_that_cannot_be_graded_is_given_up_and_the_run_goes_on(tmp_path):
    cue = Refusing(what="score", refused=lambda requests: not requests[0].gold.startswith("gold "))
    loops = LoopScene(tmp_path, cue, driver=keys(1), eval={"validate_every": 5})
    assert await loops.train() == 6
    assert loops.validations() == {}
    assert [text for text in loops.said if text.startswith("warning: no validation of grpo step 5: the prompt is too long (tried 3 times")]
    check_nothing_is_lost_or_doubled(loops, 6)


# Deaths


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
@pytest.mark.parametrize("what", ["generate", "apply_weights", "score"])
@scene
async def test_behaviour_21_an_actor_that_dies_is_replaced_and_its_work_done_once(tmp_path, what, max_staleness):
    cue = Stage()
    loops = LoopScene(tmp_path, cue, num_generators=2, num_scorers=2, driver={"max_staleness": max_staleness}, grpo={"num_steps": 12})
    training = asyncio.create_task(loops.train())
    await until(lambda: len(loops.batches()) == 2)
    cue.held = {what}
    name = (await cue.next(what))[0]
    for _ in range(len(cue.waiting(what, name))):
        await cue.fail(what, name)
    cue.let_all_go_on()
    assert await training == 12
    await loops.run.generators.revived()
    assert [entry[0] for entry in loops.diary.of("restart")] == [name]
    assert not loops.diary.of("invite")  # shared memory needs no meeting, for which a learner that trains would keep all waiting
    assert [text.partition(": ")[2].split(" (")[0] for text in loops.said if "driver.max_restarts" in text] == [f"{name} is replaced"]
    check_nothing_is_lost_or_doubled(loops, 12)


@scene
async def test_behaviour_21_an_actor_that_cannot_be_replaced_ends_the_run(tmp_path):
    cue = Stage()
    loops = LoopScene(tmp_path, cue, driver=keys(1, max_restarts=0))
    training = asyncio.create_task(loops.train())
    await until(lambda: len(loops.batches()) == 1)
    cue.held = {"generate"}
    await cue.fail("generate")
    with pytest.raises(RuntimeError, match=r"driver\.max_restarts = 0 replacements were made, and generator-0 failed again"):
        await training
    assert asyncio.all_tasks() == {asyncio.current_task()}


# What is written down


@scene
async def test_behaviour_16_each_step_logs_rewards_lengths_ages_queues_and_the_work_of_each_role(tmp_path):
    loops = LoopScene(tmp_path, num_generators=2, num_dull=5, driver={"max_staleness": 1})
    await loops.train()
    wanted = {"reward_mean", "format_reward_mean", "answer_reward_mean", "response_tokens_mean", "truncated_fraction", "staleness_mean"}
    wanted |= {"staleness_max", "zero_variance_fraction", "sample_age_s_mean", "sample_age_s_max", "mixed_version_fraction", "step_s"}
    wanted |= {"groups_in_flight", "groups_scoring", "groups_buffered", "groups_free", "overlap_efficiency", "spans"}
    wanted |= {f"{role}_{part}_s" for role in ("generator", "learner", "scorer") for part in ("work", "wait")}
    for row in loops.metrics():
        assert wanted <= set(row)
        assert row["groups_in_flight"] + row["groups_scoring"] + row["groups_buffered"] + row["groups_free"] <= 4
        assert 0 <= row["overlap_efficiency"] <= 1
    spans = [tuple(span) for row in loops.metrics() for span in row["spans"]]
    assert {(actor, what) for actor, what, _, _ in spans} >= {
        ("generator-0", "generate"),
        ("generator-1", "apply_weights"),
        ("learner-0", "train_policy"),
        ("learner-0", "publish"),
        ("scorer-0", "score"),
    }
    assert all(start <= end for _, _, start, end in spans)
    assert sum(what == "train_policy" for _, what, _, _ in spans) >= len(loops.batches())  # one each, or more where a lap cut it


@scene
async def test_behaviour_12_a_reward_that_is_no_number_masks_its_sample_only(tmp_path):
    loops = LoopScene(tmp_path, num_broken=16, driver=keys(1), grpo={"group_size": 4})
    assert await loops.train() == 6
    check_nothing_is_lost_or_doubled(loops, 6)
    assert {(row["sample"], row["drop_reason"]) for row in loops.rows()} == {(0, None), (1, "ungraded"), (2, None), (3, None)}
    for _, _, batch in loops.diary.of("train_policy"):
        advantages = {}
        for group, _, advantage in batch:
            advantages.setdefault(group, []).append(advantage)
        assert all(len(each) == 3 and sum(each) == pytest.approx(0) for each in advantages.values())  # behaviour 11


@scene
async def test_behaviour_11_each_response_keeps_its_reward_from_prompt_to_loss_when_groups_overtake_each_other(tmp_path):
    loops = LoopScene(tmp_path, ShuffledTurns(5), num_generators=3, num_scorers=3, driver=keys(2), grpo={"num_steps": 10, "group_size": 4})
    await loops.train()
    check_nothing_is_lost_or_doubled(loops, 10)
    golds = {problem.problem_id: problem for problem in loops.run.train_problems}
    for row in loops.rows():
        assert row["reward"] == row["sample"] % 2  # as the scorer was told to pay
        assert row["problem_id"] in golds
    sampled = {(row["group_id"], row["sample"]): row["advantage"] for row in loops.rows()}
    given = {(group, sample): advantage for _, _, batch in loops.diary.of("train_policy") for group, sample, advantage in batch}
    assert given == sampled
    assert all((advantage > 0) == (sample % 2 == 1) for (_, sample), advantage in given.items())
