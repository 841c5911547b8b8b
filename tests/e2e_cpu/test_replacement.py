"""Killed engines and scorers: what the caller sees, what comes in their place, and that nothing of them is left. Real Ray, real engines.

`python -m pytest -m slow tests/e2e_cpu/test_replacement.py` takes 3 minutes.
"""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import ray
from samples import recipe_for

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.actors.placement import Placement, plan_device
from mathrl_ray.types import GenerationRequest, SamplingSettings, ScoreRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RAYS_OWN = ("raylet", "gcs_server", "ray::IDLE", "python")
MARK = uuid4().hex
SAMPLING = SamplingSettings(temperature=1.0, max_tokens=24, stop=())
REQUESTS = [GenerationRequest("g", sample, "p", (5, 6, 7), seed=100 + sample, sampling=SAMPLING) for sample in range(4)]
LONG = replace(SAMPLING, max_tokens=220, min_tokens=220)
"""Together some seconds of work for one core."""
LONG_REQUESTS = [replace(REQUESTS[0], sample=sample, seed=sample, sampling=LONG) for sample in range(192)]
LONG_GROUPS = [LONG_REQUESTS[start : start + 8] for start in range(0, 192, 8)]


class Placed:
    """A run's actors. All processes that they ever start carry a mark in their environment, by which they are found again."""

    def __init__(self, start_model, folder):
        os.environ["MATHRL_TEST_MARK"] = MARK
        ray.init(address="local", num_cpus=3, include_dashboard=False, namespace="replacement", log_to_driver=False)
        del os.environ["MATHRL_TEST_MARK"]  # of later tests' processes
        recipe = recipe_for(folder, generator={"max_sequences": 64, "kv_cache_gib": 0.25}, driver={"start_limit_s": 240})
        self.loop = asyncio.new_event_loop()
        self.placement = Placement(recipe, plan_device(recipe))
        self.files = set()
        self.placement.create()
        actors, _ = self.run(self.placement.start(str(start_model), str(folder / "quarantine.jsonl")))
        (self.generator,), (self.scorer,) = actors.generators, actors.scorers
        self.note_files()
        self.ids = self.sample()

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 270))

    def sample(self):
        completions = self.run(self.generator.generate(REQUESTS))
        assert all(completion.version_runs == ((0, len(completion.token_ids)),) for completion in completions)
        return [completion.token_ids for completion in completions]

    def actor_pid(self, actor):
        return ray.get(actor.handle.__ray_call__.remote(lambda _: os.getpid()), timeout=20)

    def pid_of(self, who):
        """Of the generator's actor, its child the engine core, or that one's child the worker."""
        actor = psutil.Process(self.actor_pid(self.generator))
        if who == "actor":
            return actor.pid
        (core,) = own_children(actor)
        (worker,) = own_children(core)
        return core.pid if who == "engine core" else worker.pid

    def generator_pids(self):
        actor = psutil.Process(self.actor_pid(self.generator))
        return {actor.pid, *(child.pid for child in actor.children(recursive=True))}

    def note_files(self):
        for process in marked():
            maps = Path(f"/proc/{process.pid}/maps")
            self.files |= {line.split()[-1] for line in maps.read_text().splitlines() if "/dev/shm/psm_" in line}


def own_children(process):
    """Without Python's helper for shared memory."""
    return [child for child in process.children() if "resource_tracker" not in " ".join(child.cmdline())]


def marked():
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MATHRL_TEST_MARK") == MARK and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture(scope="module")
def placed(start_model, tmp_path_factory):
    placed = Placed(start_model, tmp_path_factory.mktemp("runs"))
    yield placed
    if ray.is_initialized():  # not ended by the last test
        placed.run(placed.placement.stop())
        ray.shutdown()
    placed.loop.close()


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("who", ["engine core", "worker", "actor"])
def test_behaviour_21_a_generator_killed_while_it_generates_is_replaced_by_one_that_samples_the_same(placed, who):
    generator, pid = placed.generator, placed.pid_of(who)
    old = placed.generator_pids()
    assert len(old) >= 3
    files = placed.files

    async def kill_meanwhile():
        waits = [asyncio.create_task(generator.generate(group)) for group in LONG_GROUPS]
        await asyncio.sleep(1)  # into the generation, of which nobody tells how far it is
        num_done = sum(wait.done() for wait in waits)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        answers = await asyncio.gather(*waits, return_exceptions=True)
        return num_done, answers, time.monotonic() - began

    num_done, answers, seconds = placed.run(kill_meanwhile())
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert num_done < len(answers)  # it was in the middle of them
    assert failed
    assert all(isinstance(answer, ActorError) and "generator-0" in str(answer) for answer in failed)
    assert seconds < 5
    placed.run(generator.restart())
    assert not [pid for pid in old if is_alive(pid)]
    assert not [file for file in files if Path(file).exists()]
    placed.files = set()
    placed.note_files()
    assert placed.files
    assert placed.sample() == placed.ids


def test_a_cancelled_wait_frees_the_engine(placed):
    async def cancel():
        wait = asyncio.create_task(placed.generator.generate(LONG_REQUESTS))
        await asyncio.sleep(1)  # as above
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        for _ in range(100):  # the engine hears of it some time later
            num_left = await placed.generator.handle.__ray_call__.remote(
                lambda actor: actor._engine.output_processor.get_num_unfinished_requests()
            )
            if not num_left:
                return
            await asyncio.sleep(0.02)  # the engine tells nobody when a request is gone
        raise AssertionError(f"{num_left} requests go on")

    placed.run(cancel())
    assert placed.sample() == placed.ids


def test_behaviour_21_a_scorer_killed_while_it_grades_is_replaced(placed):
    scorer, pid = placed.scorer, placed.actor_pid(placed.scorer)
    old = {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    response = "</think> <answer> \\frac{%d}{7} + \\sqrt{2} </answer>"
    requests = [ScoreRequest(response % number, "\\frac{3}{7}+\\sqrt{2}") for number in range(2000)]

    async def kill_meanwhile():
        wait = asyncio.create_task(scorer.score(requests))
        await asyncio.sleep(0.5)  # into the scoring
        assert not wait.done()
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            return await asyncio.gather(wait, return_exceptions=True)

    (answer,) = placed.run(kill_meanwhile())
    assert isinstance(answer, ActorError)
    placed.run(scorer.restart())
    assert not [pid for pid in old if is_alive(pid)]
    assert [grade.reward for grade in placed.run(scorer.score(requests[:6]))] == [0, 0, 0, 1, 0, 0]


def test_after_the_end_in_the_middle_of_a_restart_nothing_is_left(placed):
    async def stop_meanwhile():
        restart = asyncio.create_task(placed.generator.restart())
        await asyncio.sleep(9)  # the new engine's processes are being started
        placed.note_files()
        names = {process.name() for process in marked()}
        await placed.placement.stop()
        await asyncio.gather(restart, return_exceptions=True)
        return names

    assert {"ray::Generator"} & {name[:14] for name in placed.run(stop_meanwhile())}
    left = [process for process in marked() if not process.name().startswith(RAYS_OWN)]
    assert [(process.name(), process.cmdline()) for process in left] == []
    assert not [file for file in placed.files if Path(file).exists()]
    ray.shutdown()
    assert marked() == []
