import asyncio

import pytest
from fakes import Diary, FakeGenerator, FakeLearner, Stage, scene, settle, until

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.driver.ledger import Ledger
from mathrl_ray.driver.replicas import Replicas
from mathrl_ray.driver.waiting import Changes
from mathrl_ray.driver.weights import Weights
from mathrl_ray.sections import DriverSection


class MortalLearner(FakeLearner):
    is_gone = False

    async def invite(self, num_generators):
        if self.is_gone:
            raise ActorError("learner-0 died in invite()")
        return await super().invite(num_generators)


class Sync:
    """Learner, generators and the weights between them."""

    def __init__(self, num_generators, *held, transport="shared_memory", learner=FakeLearner, **settings):
        self.diary, self.stage = Diary(), Stage(*held)
        self.learner = learner(self.diary, transport=transport, cue=self.stage)
        self.actors = [FakeGenerator(self.diary, f"generator-{index}", cue=self.stage) for index in range(num_generators)]
        driver = DriverSection(**settings)
        changes, ledger = Changes(), Ledger()
        self.replicas = Replicas(self.actors, changes, ledger, driver, room=100, limit_s=60)
        self.weights = Weights(self.learner, self.replicas, changes, ledger, driver)

    async def sync(self, version):
        return await self.weights.apply(await self.weights.publish(version))

    def syncing(self, version):
        return asyncio.create_task(self.sync(version))

    def asking(self, size=1):
        return asyncio.create_task(self.replicas.call(size, lambda actor: actor.generate([]), "generate"))

    def hold(self, *what):
        self.stage.held |= set(what)

    @property
    def versions(self):
        return [actor.policy_version for actor in self.actors]

    def events(self, *what):
        return [(actor, event) for actor, event, _ in (self.diary.of(*what) if what else self.diary.entries)]


def restarts(sync):
    return [actor for actor, _ in sync.events("restart")]


@scene
async def test_weights_are_published_then_applied_by_all_then_the_version_moves():
    sync = Sync(2, "publish", "apply_weights")
    syncing = sync.syncing(3)
    await settle()
    assert sync.events() == [("learner-0", "publish")]
    await sync.stage.go_on("publish")
    await settle()
    assert sync.events()[1:] == [("generator-0", "apply_weights"), ("generator-1", "apply_weights")]
    await sync.stage.go_on("apply_weights", "generator-1")
    await settle()
    assert (sync.weights.policy_version, syncing.done()) == (0, False)
    await sync.stage.go_on("apply_weights", "generator-0")
    metrics = await syncing
    assert (sync.weights.policy_version, sync.versions) == (3, [3, 3])
    assert metrics["sync_s"] == 0.01  # the fakes' pause
    assert 0 <= metrics["update_wait_s"] <= metrics["update_s"]


@scene
async def test_shared_memory_is_not_written_while_generators_read_it():
    sync = Sync(1, "apply_weights")
    first = sync.syncing(1)
    await sync.stage.next("apply_weights")
    second = sync.syncing(2)
    await settle()
    assert len(sync.events("publish")) == 1
    sync.stage.let_all_go_on()
    await asyncio.gather(first, second)
    assert sync.versions == [2]


@scene
async def test_behaviour_21_a_generator_that_fails_in_the_update_rejoins_with_the_published_weights_and_the_others_keep_theirs():
    sync = Sync(2, "restart")
    await sync.sync(1)
    sync.hold("apply_weights of generator-1")
    syncing = sync.syncing(2)
    await sync.stage.fail("apply_weights", "generator-1")
    await syncing  # nobody waits for the restart
    assert (sync.weights.policy_version, sync.versions) == (2, [2, 1])
    assert sync.replicas.least_loaded(1).actor.name == "generator-0"
    sync.stage.let_all_go_on()
    await sync.replicas.revived()
    assert (sync.versions, restarts(sync)) == ([2, 2], ["generator-1"])
    assert [detail for actor, _, detail in sync.diary.of("apply_weights") if actor == "generator-0"] == [1, 2]


@scene
async def test_a_generator_that_is_being_replaced_is_left_out_and_comes_back_with_the_newest_weights():
    sync = Sync(2, "restart", "generate")
    await sync.sync(1)
    asked = sync.asking()
    await sync.stage.fail("generate", "generator-0")
    await sync.stage.next("restart")
    await sync.sync(2)
    await sync.sync(3)
    assert (sync.weights.policy_version, sync.versions) == (3, [1, 3])
    sync.stage.let_all_go_on()
    await sync.replicas.revived()
    assert sync.versions == [3, 3]
    await asked
    assert [detail for actor, _, detail in sync.diary.of("apply_weights") if actor == "generator-0"] == [1, 3]


@scene
async def test_a_generator_that_fails_in_its_revival_is_replaced_again():
    sync = Sync(1)
    await sync.sync(1)
    sync.hold("apply_weights")
    syncing = sync.syncing(2)
    await sync.stage.fail("apply_weights")
    await sync.stage.fail("apply_weights")  # the fresh one's
    await sync.stage.go_on("apply_weights")
    await syncing
    await sync.replicas.revived()
    assert (sync.versions, len(restarts(sync)), sync.replicas.num_restarts) == ([2], 2, 2)


@scene
async def test_behaviour_21_updates_that_always_fail_end_with_the_limit_of_replacements():
    sync = Sync(1, max_restarts=2)
    sync.hold("apply_weights")
    syncing = sync.syncing(1)
    for _ in range(3):
        await sync.stage.fail("apply_weights")
    await syncing
    with pytest.raises(ActorError, match=r"driver\.max_restarts = 2 replacements were made, and generator-0 failed again"):
        await sync.replicas.revived()


GROUP = ["nccl", "ipc"]


@pytest.mark.parametrize("transport", GROUP)
@scene
async def test_a_group_meets_once_and_the_learner_sends_while_all_apply(transport):
    sync = Sync(2, transport=transport)
    await sync.sync(1)
    await sync.sync(2)
    assert sync.events("meet") == [("learner-0", "meet"), ("generator-0", "meet"), ("generator-1", "meet")]
    assert [detail for _, _, detail in sync.diary.of("send_weights")] == [1, 2]
    assert sync.versions == [2, 2]


@scene
async def test_a_learner_that_sends_is_asked_before_any_generator_is_done():
    sync = Sync(1, "send_weights", "apply_weights", transport="nccl")
    syncing = sync.syncing(1)
    await settle()
    assert [call[1] for call in sync.stage.calls] == ["send_weights", "apply_weights"]
    sync.stage.let_all_go_on()
    await syncing


@scene
async def test_behaviour_21_after_a_death_in_a_groups_update_all_meet_again_and_all_get_the_weights():
    sync = Sync(3, transport="nccl")
    await sync.sync(1)
    sync.diary.entries.clear()
    sync.hold("apply_weights of generator-1", "restart")
    syncing = sync.syncing(2)
    await sync.stage.fail("apply_weights", "generator-1")
    await sync.stage.next("restart", "generator-1")
    assert (sync.weights.policy_version, syncing.done()) == (1, False)  # a group that lost one has not applied
    sync.stage.let_all_go_on()
    await syncing
    assert (sync.weights.policy_version, sync.versions) == (2, [2, 2, 2])
    assert restarts(sync) == ["generator-1"]
    met = [entry for entry in sync.diary.entries if entry[1] == "meet"]
    assert met == [("learner-0", "meet", 3), ("generator-0", "meet", 0), ("generator-1", "meet", 1), ("generator-2", "meet", 2)]
    assert [detail for _, _, detail in sync.diary.of("send_weights")] == [2, 2]


@scene
async def test_a_whole_group_that_fails_meets_once_when_the_last_one_is_back_and_gets_the_weights_once():
    sync = Sync(2, transport="nccl")
    await sync.sync(1)
    sync.diary.entries.clear()
    sync.hold("apply_weights", "send_weights", "restart")
    syncing = sync.syncing(2)
    await sync.stage.fail("send_weights", error=ActorError("the group is gone"))
    for name in ("generator-0", "generator-1"):
        await sync.stage.fail("apply_weights", name)
    await sync.stage.go_on("restart", "generator-1")
    await settle()
    assert not sync.events("meet")  # one of them is not there yet
    sync.stage.let_all_go_on()
    await syncing
    assert (sync.weights.policy_version, sync.versions) == (2, [2, 2])
    assert len(sync.events("meet")) == 3
    assert len(sync.events("send_weights")) == 2  # the one that failed, and one for both


@scene
async def test_a_group_update_that_comes_while_one_is_replaced_waits_for_it_and_reaches_it():
    sync = Sync(2, transport="nccl")
    await sync.sync(1)
    sync.hold("generate", "restart")
    asked = sync.asking()
    await sync.stage.fail("generate", "generator-0")
    await sync.stage.next("restart")
    syncing = sync.syncing(2)
    await settle()
    assert not syncing.done()
    sync.stage.let_all_go_on()
    await asyncio.gather(syncing, asked)
    assert (sync.weights.policy_version, sync.versions) == (2, [2, 2])
    assert restarts(sync) == ["generator-0"]


@scene
async def test_an_update_between_two_revivals_of_a_group_is_not_lost():
    sync = Sync(3, transport="nccl")
    await sync.sync(1)
    sync.hold("generate", "restart", "apply_weights of generator-2")
    asked = [sync.asking() for _ in range(3)]
    for name in ("generator-0", "generator-1"):
        await sync.stage.fail("generate", name)
    for name in ("generator-0", "generator-1"):
        await sync.stage.go_on("restart", name)
    await sync.stage.next("apply_weights", "generator-2")  # one revival sends version 1 to all, the other waits for its turn
    syncing = sync.syncing(2)
    await settle()
    sync.stage.let_all_go_on()
    await syncing
    assert (sync.weights.policy_version, sync.versions) == (2, [2, 2, 2])
    await asyncio.gather(*asked)


@scene
async def test_a_generator_that_dies_while_the_group_meets_for_another_is_replaced_too():
    sync = Sync(2, transport="nccl")
    await sync.sync(1)
    sync.diary.entries.clear()
    sync.hold("generate of generator-0", "meet of generator-1")
    asked = sync.asking()
    await sync.stage.fail("generate", "generator-0")
    await sync.stage.fail("meet", "generator-1")
    sync.stage.let_all_go_on()
    await asked
    await sync.replicas.revived()
    assert (sync.versions, restarts(sync)) == ([1, 1], ["generator-0", "generator-1"])
    await sync.sync(2)
    assert sync.versions == [2, 2]


@pytest.mark.parametrize("transport", ["shared_memory", *GROUP])
@scene
async def test_the_learners_failure_to_publish_ends_the_update_with_its_own_error(transport):
    sync = Sync(2, "publish", transport=transport)
    syncing = sync.syncing(1)
    await sync.stage.fail("publish", error=ActorError("learner-0 died in publish()"))
    with pytest.raises(ActorError, match="learner-0 died in publish"):
        await syncing
    assert not sync.events("apply_weights", "restart")


@pytest.mark.parametrize("error", [ActorError("learner-0 died in send_weights()"), ValueError("a name comes twice")])
@scene
async def test_the_learners_failure_to_send_ends_the_update_with_its_own_error(error):
    sync = Sync(2, "send_weights", transport="nccl")
    syncing = sync.syncing(1)
    await sync.stage.fail("send_weights", error=error)
    with pytest.raises(type(error), match=str(error)[:12]):
        await syncing
    assert sync.weights.policy_version == 0


@scene
async def test_a_learner_that_died_in_a_transfer_is_not_taken_for_a_victim_of_the_generators():
    sync = Sync(2, transport="nccl", learner=MortalLearner)
    await sync.sync(1)
    sync.hold("send_weights", "apply_weights", "restart")
    syncing = sync.syncing(2)
    await sync.stage.next("send_weights")
    sync.learner.is_gone = True
    await sync.stage.fail("send_weights", error=ActorError("learner-0 died in send_weights()"))
    for name in ("generator-0", "generator-1"):
        await sync.stage.fail("apply_weights", name)
    with pytest.raises(ActorError, match="learner-0 died"):
        await syncing  # without waiting for engines that would start for nothing
    await sync.replicas.close()


@pytest.mark.parametrize("transport", ["shared_memory", "nccl"])
@scene
async def test_behaviour_17_names_that_do_not_fit_end_the_update_and_replace_nobody(transport):
    sync = Sync(2, "apply_weights of generator-1", transport=transport)
    syncing = sync.syncing(1)
    await sync.stage.fail("apply_weights", error=ValueError("lm_head.weight is not expected"))
    with pytest.raises(ValueError, match=r"lm_head\.weight is not expected"):
        await syncing
    assert (restarts(sync), sync.weights.policy_version) == ([], 0)


@scene
async def test_in_flight_updates_do_not_wait_for_responses():
    sync = Sync(1, "generate")
    asked = sync.asking()
    await sync.stage.next("generate")
    await sync.sync(1)
    assert not asked.done()
    sync.stage.let_all_go_on()
    await asked


@scene
async def test_without_in_flight_updates_the_responses_end_first_and_new_ones_come_from_the_new_weights():
    sync = Sync(2, "generate", in_flight_updates=False)
    before = [sync.asking() for _ in range(3)]
    await sync.stage.next("generate")
    syncing = sync.syncing(1)
    await settle()
    after = sync.asking()
    for _ in range(2):
        await sync.stage.go_on("generate")
        await settle()
        assert not sync.events("apply_weights")
    await sync.stage.go_on("generate")
    await syncing
    assert sync.versions == [1, 1]
    sync.stage.let_all_go_on()
    await asyncio.gather(*before, after)
    assert [event for _, event in sync.events("generate", "apply_weights")] == ["generate"] * 3 + ["apply_weights"] * 2 + ["generate"]


@scene
async def test_responses_that_die_while_an_update_waits_for_them_do_not_keep_it_waiting():
    sync = Sync(1, "generate", in_flight_updates=False)
    await sync.sync(1)
    asked = sync.asking()
    await sync.stage.next("generate")
    syncing = sync.syncing(2)
    await settle()
    await sync.stage.fail("generate")
    await syncing
    sync.stage.let_all_go_on()
    await asked
    assert sync.versions == [2]


@scene
async def test_with_one_generator_an_update_waits_for_a_pin_and_the_wait_is_counted():
    sync = Sync(1)
    await sync.sync(1)
    async with sync.weights.pinned() as aside:
        assert aside is None
        syncing = sync.syncing(2)
        await settle()
        assert (sync.versions, sync.weights.policy_version, len(sync.events("publish"))) == ([1], 1, 2)
        assert await sync.asking() == []  # other work goes on
        await asyncio.sleep(0.02)  # so that there is a wait to count
    metrics = await syncing
    assert sync.versions == [2]
    assert metrics["update_wait_s"] >= 0.02


@scene
async def test_with_two_generators_the_last_one_steps_aside_and_takes_the_newest_weights_when_the_pin_ends():
    sync = Sync(2, "generate")
    await sync.sync(1)
    async with sync.weights.pinned() as aside:
        assert aside.actor.name == "generator-1"
        asked = [sync.asking() for _ in range(3)]
        await settle()
        assert sync.events("generate") == [("generator-0", "generate")] * 3
        await sync.sync(2)
        await sync.sync(3)
        assert (sync.versions, sync.weights.policy_version) == ([3, 1], 3)
    assert sync.versions == [3, 3]
    assert [detail for actor, _, detail in sync.diary.of("apply_weights") if actor == "generator-1"] == [1, 3]
    asked.append(sync.asking())
    await settle()
    assert sync.events("generate")[-1][0] == "generator-1"
    sync.stage.let_all_go_on()
    await asyncio.gather(*asked)


@scene
async def test_a_pin_that_ends_before_any_update_moves_nothing():
    sync = Sync(2)
    await sync.sync(1)
    async with sync.weights.pinned():
        pass
    assert len(sync.events("apply_weights")) == 2


@scene
async def test_a_generator_that_is_being_replaced_is_not_chosen_for_a_pin():
    sync = Sync(2, "restart", "generate")
    await sync.sync(1)
    asked = [sync.asking() for _ in range(2)]
    await sync.stage.fail("generate", "generator-1")
    await sync.stage.next("restart")
    async with sync.weights.pinned() as aside:
        assert aside.actor.name == "generator-0"
        sync.stage.let_all_go_on()
        await asyncio.gather(*asked)
    assert restarts(sync) == ["generator-1"]


@scene
async def test_a_second_pin_waits_for_the_end_of_the_first():
    sync = Sync(2)
    await sync.sync(1)
    inside = []

    async def pin():
        async with sync.weights.pinned() as aside:
            inside.append(aside.actor.policy_version)
            await until(lambda: done)

    done = False
    first = asyncio.create_task(pin())
    await settle()
    await sync.sync(2)
    second = asyncio.create_task(pin())
    await settle()
    assert inside == [1]
    done = True
    await asyncio.gather(first, second)
    assert inside == [1, 2]
    assert [replica.pinned for replica in sync.replicas] == [False, False]


@scene
async def test_a_pinned_generator_that_died_is_free_again_and_has_the_newest_weights():
    sync = Sync(2)
    await sync.sync(1)
    sync.hold("generate", "restart")

    async def evaluate():
        async with sync.weights.pinned() as aside:
            await sync.replicas.ask(aside, 1, lambda actor: actor.generate([]), "generate")

    evaluation = asyncio.create_task(evaluate())
    await sync.stage.next("generate", "generator-1")
    await sync.sync(2)
    await sync.stage.fail("generate", "generator-1")
    with pytest.raises(ActorError):
        await evaluation
    sync.stage.let_all_go_on()
    await sync.replicas.revived()
    assert (sync.versions, restarts(sync)) == ([2, 2], ["generator-1"])
    assert [replica.free for replica in sync.replicas] == [True, True]


@pytest.mark.parametrize("transport", GROUP)
@scene
async def test_in_a_group_updates_wait_for_a_pin_since_all_take_part_in_a_transfer(transport):
    sync = Sync(2, transport=transport)
    await sync.sync(1)
    async with sync.weights.pinned() as aside:
        assert aside is None
        syncing = sync.syncing(2)
        await settle()
        assert sync.versions == [1, 1]
    await syncing
    assert sync.versions == [2, 2]


@pytest.mark.parametrize("num_generators", [1, 2])
@scene
async def test_a_cancelled_evaluation_does_not_wait_for_weights_at_its_pins_end(num_generators):
    sync = Sync(num_generators)
    await sync.sync(1)

    async def evaluate():
        async with sync.weights.pinned():
            await asyncio.Event().wait()

    evaluation = asyncio.create_task(evaluate())
    await settle()
    if num_generators == 2:
        await sync.sync(2)
    sync.hold("apply_weights")
    evaluation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await evaluation
    assert not sync.stage.calls
