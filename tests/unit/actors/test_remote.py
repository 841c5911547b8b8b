"""Calls of actors and their replacement, on a real Ray with an engine that starts in no time."""

import asyncio
import functools
import logging
import os
import signal
from pathlib import Path

import psutil
import pytest
import ray
import stub_engine
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from samples import recipe_for

from mathrl_ray.actors.footprint import process_id
from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.actors.remote import Limit, RemoteGenerator, RemoteLearner, _task, call
from mathrl_ray.types import WeightManifest

pytestmark = pytest.mark.timeout(120)
SOON = Limit(20, "test")


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    ray.cloudpickle.register_pickle_by_value(stub_engine)  # the actors' processes do not know the tests' folder
    ray.init(address="local", num_cpus=2, include_dashboard=False, namespace="remote", log_to_driver=False)
    yield
    ray.shutdown()


def new_engine(name):
    return ray.remote(stub_engine.StubEngine).options(name=name, num_cpus=0, max_concurrency=100).remote()


class Steps:
    """One generator in its own event loop; all that it ever had is noted, and must be gone after `end`."""

    def __init__(self, folder, **driver):
        self.loop = asyncio.new_event_loop()
        self.recipe = recipe_for(folder, driver={"start_limit_s": 20, "sync_limit_s": 0.5, **driver}, generator={"limit_s": 20})
        self.generator = RemoteGenerator("generator-0", functools.partial(new_engine, "generator-0"), self.recipe)
        self.children, self.files, self.actors = set(), set(), set()

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    def start(self, *arguments):
        self.run(self.generator.locate(SOON))
        assert self.run(self.generator.set_up(*arguments)) == "facts"
        self.note()

    def note(self):
        child, file = self.run(call(self.generator.handle, "generator-0", "has", limit=SOON))
        self.children.add(child)
        self.files.add(file)
        self.actors.add(self.actor_pid())

    def actor_pid(self):
        return ray.get(self.generator.handle.__ray_call__.remote(lambda _: os.getpid()), timeout=20)

    def kill_actor(self):
        os.kill(self.actor_pid(), signal.SIGKILL)

    def dead(self):
        return all(
            not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie" for pid in self.children | self.actors
        ) and not any(Path(file).exists() for file in self.files)


@pytest.fixture
def steps(tmp_path):
    steps = Steps(tmp_path)
    yield steps
    steps.run(steps.generator.end())
    assert steps.dead()
    with pytest.raises(ValueError, match="generator-0"):
        ray.get_actor("generator-0")
    steps.loop.close()


@pytest.fixture
def started(steps):
    steps.start()
    return steps


def test_behaviour_19_the_limit_names_who_did_not_answer_what_and_the_key(started):
    with pytest.raises(ActorError, match=r"^generator-0 did not answer apply_weights\(\) within 0\.5 s \(driver\.sync_limit_s\)"):
        started.run(started.generator.apply_weights(WeightManifest(1, "", ())))


def test_a_method_that_raises_a_timeout_itself_has_failed_and_is_not_late(started):
    with pytest.raises(ActorError, match=r"generator-0 failed in generate\(\): TimeoutError: of its own"):
        started.run(started.generator.generate([("raise", TimeoutError("of its own"))]))


def test_a_value_error_comes_as_such(started):
    with pytest.raises(ValueError, match="too long"):
        started.run(started.generator.generate([("raise", ValueError("too long"))]))


def test_a_cancelled_wait_ends_the_work_and_leaves_no_complaint(started, caplog):
    complaints = []
    started.loop.set_exception_handler(lambda _, context: complaints.append(context))

    async def cancel():
        waits = [asyncio.create_task(started.generator.generate([("wait", 30)])) for _ in range(8)]
        failing = asyncio.create_task(started.generator.generate([("wait", 0.3), ("raise", RuntimeError("late"))]))
        await asyncio.sleep(0.2)
        for task in [*waits, failing]:
            task.cancel()
        answers = await asyncio.gather(*waits, failing, return_exceptions=True)
        await asyncio.sleep(0.4)
        return answers

    with caplog.at_level(logging.WARNING):
        answers = started.run(cancel())
    assert all(isinstance(each, asyncio.CancelledError) for each in answers)
    assert complaints == []
    assert "never retrieved" not in caplog.text
    assert started.run(call(started.generator.handle, "generator-0", "dropped", limit=SOON)) == 9


def test_behaviour_21_a_killed_actor_is_replaced_behind_the_same_object_and_name(started):
    generator, first = started.generator, ray.get_actor("generator-0")
    started.kill_actor()
    with pytest.raises(ActorError, match=r"generator-0 died in generate\(\)"):
        started.run(generator.generate([("say", 1)]))
    started.run(generator.restart())
    assert started.dead()
    started.note()
    assert generator.incarnation == 1
    assert started.run(generator.generate([("say", 2)])) == [2]
    assert ray.get_actor("generator-0") == generator.handle != first


def test_before_a_new_actor_sets_up_its_engine_room_is_made_and_the_old_ones_is_gone(started):
    seen = []

    async def make_room():
        seen.append((started.dead(), await call(ray.get_actor("generator-0"), "generator-0", "is_set_up", limit=SOON)))

    started.generator.before_restart = make_room
    started.run(started.generator.restart())
    assert seen == [(True, False)]
    started.note()


def test_what_is_in_flight_when_an_actor_is_killed_fails_at_once(started):
    async def kill_meanwhile():
        waits = [asyncio.create_task(started.generator.generate([("wait", 30)])) for _ in range(20)]
        await asyncio.sleep(0.3)
        os.kill(next(iter(started.actors)), signal.SIGKILL)
        async with asyncio.timeout(5):
            return await asyncio.gather(*waits, return_exceptions=True)

    assert all(isinstance(each, ActorError) for each in started.run(kill_meanwhile()))


def test_an_actor_that_hangs_is_replaced_all_the_same(started):
    async def hang_and_restart():
        hanging = asyncio.create_task(started.generator.generate([("hang", 600)]))
        await asyncio.sleep(0.3)
        await started.generator.restart()
        return await asyncio.gather(hanging, return_exceptions=True)

    (answer,) = started.run(hang_and_restart())
    assert isinstance(answer, ActorError)
    assert started.dead()
    started.note()


def test_all_who_ask_at_once_share_one_restart_and_who_asks_later_gets_another(started):
    async def ask(times):
        await asyncio.gather(*(started.generator.restart() for _ in range(times)))

    started.run(ask(5))
    assert started.generator.incarnation == 1
    started.note()
    started.run(ask(1))
    assert started.generator.incarnation == 2
    started.note()


def test_a_start_that_takes_too_long_names_the_key_and_can_be_tried_again(steps):
    steps.start()
    steps.generator._start_limit = Limit(2.0, "driver.start_limit_s")
    steps.generator._setup_arguments = (30.0,)
    with pytest.raises(ActorError, match=r"generator-0 was not replaced within 2 s \(driver\.start_limit_s\)"):
        steps.run(steps.generator.restart())
    assert steps.generator.incarnation == 0
    steps.generator._start_limit, steps.generator._setup_arguments = SOON, ()
    steps.run(steps.generator.restart())
    assert steps.dead()
    steps.note()


@pytest.mark.parametrize("cancelled_after_s", [0.0, 0.02, 0.1, 0.3, 0.6, 1.0, 2.0])
def test_a_restart_that_was_cancelled_anywhere_leaves_nothing_after_the_end(steps, cancelled_after_s):
    steps.start()
    steps.generator._setup_arguments = (1.0,)

    async def cancel():
        restart = asyncio.create_task(steps.generator.restart())
        await asyncio.sleep(cancelled_after_s)
        restart.cancel()
        await asyncio.gather(restart, return_exceptions=True)
        await steps.generator.end()

    steps.run(cancel())
    assert _stub_children() == set()


def test_the_end_in_the_middle_of_a_restart_ends_that_too(steps):
    steps.start()

    async def end_meanwhile():
        restart = asyncio.create_task(steps.generator.restart())
        await asyncio.sleep(0)
        await steps.generator.end()
        return await asyncio.gather(restart, return_exceptions=True)

    (answer,) = steps.run(end_meanwhile())
    assert isinstance(answer, ActorError)
    assert _stub_children() == set()


def test_what_another_machine_must_do_goes_there_as_a_task(started):
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    nowhere = NodeAffinitySchedulingStrategy("0" * 56, soft=False)
    assert started.run(_task(process_id, here, os.getpid())) == process_id(os.getpid())
    assert started.run(_task(process_id, nowhere, os.getpid())) is None


def test_a_publication_in_shared_memory_is_sent_without_a_call(steps):
    learner = RemoteLearner([], steps.recipe)  # no rank to call
    steps.run(learner.send_weights(WeightManifest(1, "", ())))
    with pytest.raises(IndexError):
        steps.run(learner.send_weights(WeightManifest(1, "", (), transport="nccl")))


def _stub_children():
    """Of this test run."""
    found = set()
    for process in psutil.process_iter(["cmdline", "status"]):
        if stub_engine.MARK in (process.info["cmdline"] or []) and process.info["status"] != "zombie":
            found.add(process.pid)
    return found
