"""How published weights come to generators on other nodes: when the object is made, how often, and when it is let go;
and how learner and generators use it. With stand-ins for Ray's handles: no Ray here."""

import asyncio

import pytest
from samples import recipe_for

from mathrl_ray.actors.block_carrier import BlockCarrier
from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.actors.remote import Limit, Place, RemoteGenerator, RemoteLearner
from mathrl_ray.types import WeightManifest


def manifest(version):
    return WeightManifest(version, "/dev/shm/block", (), "object_store")


class Learner:
    """learner-0's handle: notes each object that is made of its block, as (version, number)."""

    def __init__(self):
        self.made, self.late, self.fails = [], [], False
        self.published_block = self

    def options(self, num_returns):
        assert num_returns == 2
        return self

    def remote(self, manifest):
        self.made.append(manifest.policy_version)
        return manifest.policy_version, (manifest.policy_version, len(self.made))


def carrier_of(learner, is_needed=lambda: True):
    async def wait(version, late):
        learner.late.append(late)
        await asyncio.sleep(0)
        if learner.fails:
            raise ActorError("learner-0 died in published_block()")
        return version

    return BlockCarrier(learner, "node-a", is_needed, wait)


def test_a_publication_becomes_one_object_at_once_which_all_generators_take():
    learner, published = Learner(), manifest(1)

    async def script():
        carrier = carrier_of(learner)
        await carrier.published(published)
        return await asyncio.gather(*(carrier.block(published) for _ in range(3)))

    assert asyncio.run(script()) == [(1, 1)] * 3
    assert (learner.made, learner.late) == ([1], [False])


def test_generators_that_ask_at_the_same_time_do_not_make_it_twice():
    learner, published = Learner(), manifest(1)

    async def script():
        carrier = carrier_of(learner, is_needed=lambda: False)
        await carrier.published(published)
        assert learner.made == []  # all were on the learner's node; then one was replaced on another
        return await asyncio.gather(*(carrier.block(published) for _ in range(2)))

    assert asyncio.run(script()) == [(1, 1)] * 2
    assert (learner.made, learner.late) == ([1], [True])  # the learner may be training on by now


def test_there_is_at_most_one_object_and_the_next_publication_lets_it_go_first():
    learner, first, second = Learner(), manifest(1), manifest(2)
    held = []

    async def script():
        carrier = carrier_of(learner, is_needed=lambda: held.append(carrier._block) or True)
        await carrier.published(first)
        await carrier.published(second)
        return await carrier.block(second)

    assert asyncio.run(script()) == (2, 2)
    assert held == [None, None]  # when the next is about to be made, nothing holds the one before


def test_a_learner_that_died_is_told_and_the_next_try_asks_again():
    learner, published = Learner(), manifest(1)

    async def script():
        carrier = carrier_of(learner)
        learner.fails = True
        with pytest.raises(ActorError, match="learner-0 died"):
            await carrier.published(published)
        learner.fails = False
        return await carrier.block(published)

    assert asyncio.run(script()) == (1, 2)


class Method:
    """Of a handle: notes what it was called with, and gives a future as Ray's references can be awaited."""

    def __init__(self, give):
        self.give, self.calls = give, []

    def options(self, num_returns):
        return self

    def remote(self, *arguments):
        self.calls.append(arguments)
        return self.give(*arguments)


def answered(value):
    future = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


class Scene:
    """A learner on node-a and a generator, over handles without actors; the learner's half of `published_block` is `made`."""

    def __init__(self, folder, node, made=lambda: answered(1)):
        recipe = recipe_for(folder, driver={"sync_limit_s": 0.1}, learner={"limit_s": 0.3})
        self.publication, self.block = manifest(1), object()
        self.generator_handle, self.learner_handle = type("Handle", (), {})(), type("Handle", (), {})()
        self.generator_handle.__ray_call__ = Method(lambda _: answered(Place(node, (), (1, 0.0))))
        self.generator_handle.apply_weights = self.applied = Method(lambda *_: answered(0.25))
        self.learner_handle.publish = Method(lambda _: answered(self.publication))
        self.learner_handle.published_block = self.asked = Method(lambda _: (made(), self.block))
        self.generator = RemoteGenerator("generator-0", lambda: self.generator_handle, recipe)
        self.learner = RemoteLearner([self.learner_handle], recipe)
        self.learner.carry_to([self.generator], "node-a")

    async def publish(self):
        await self.generator.locate(Limit(5, "test"))
        assert await self.learner.publish(1) is self.publication


def test_a_generator_on_another_node_gets_the_object_that_the_publication_made(tmp_path):
    async def script():
        scene = Scene(tmp_path, "node-b")
        await scene.publish()
        assert scene.asked.calls == [(scene.publication,)]
        assert await scene.generator.apply_weights(scene.publication) == 0.25
        assert scene.applied.calls == [(scene.publication, scene.block)]
        assert len(scene.asked.calls) == 1

    asyncio.run(script())


def test_a_generator_on_the_learners_node_reads_its_block_and_no_object_is_made(tmp_path):
    async def script():
        scene = Scene(tmp_path, "node-a")
        await scene.publish()
        await scene.generator.apply_weights(scene.publication)
        assert scene.applied.calls == [(scene.publication,)]
        assert scene.asked.calls == []

    asyncio.run(script())


def test_an_object_at_its_time_has_the_limit_of_a_sync_and_a_late_one_that_of_a_training_step_too(tmp_path):
    async def script():
        loop = asyncio.get_running_loop()
        scene = Scene(tmp_path, "node-b", made=loop.create_future)  # a learner that does not answer
        began_s = loop.time()
        with pytest.raises(ActorError, match=r"published_block\(\) within 0\.1 s \(driver\.sync_limit_s\)"):
            await scene.publish()
        assert loop.time() - began_s < 0.4
        with pytest.raises(ActorError, match=r"within 0\.4 s \(learner\.limit_s \+ driver\.sync_limit_s\)"):
            await scene.generator.apply_weights(scene.publication)

    asyncio.run(script())
