"""How published weights come to generators on other nodes: when the object is made, how often, and when it is let go. No Ray here."""

import asyncio

import pytest

from mathrl_ray.actors.block_carrier import BlockCarrier
from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.types import WeightManifest


def manifest(version):
    return WeightManifest(version, "/dev/shm/block", (), "object_store")


class Learner:
    """learner-0's handle: notes each object that is made of its block, as (version, number)."""

    def __init__(self):
        self.made, self.fails = [], False
        self.published_block = self

    def options(self, num_returns):
        assert num_returns == 2
        return self

    def remote(self, manifest):
        self.made.append(manifest.policy_version)
        return manifest.policy_version, (manifest.policy_version, len(self.made))


def carrier_of(learner, is_needed=lambda: True):
    async def wait(version):
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
    assert learner.made == [1]


def test_generators_that_ask_at_the_same_time_do_not_make_it_twice():
    learner, published = Learner(), manifest(1)

    async def script():
        carrier = carrier_of(learner, is_needed=lambda: False)
        await carrier.published(published)
        assert learner.made == []  # all were on the learner's node; then one was replaced on another
        return await asyncio.gather(*(carrier.block(published) for _ in range(2)))

    assert asyncio.run(script()) == [(1, 1)] * 2
    assert learner.made == [1]


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
