"""Engines on one GPU that make room for each other: the order of their calls, with a vLLM engine written by hand."""

import asyncio
from types import SimpleNamespace

import pytest
from samples import recipe_for

from mathrl_ray.actors.generator import Generator
from mathrl_ray.actors.learner import Learner
from mathrl_ray.actors.placement import Placement
from mathrl_ray.actors.remote import RemoteLearner
from mathrl_ray.device import choose_device
from mathrl_ray.types import GenerationRequest, SamplingSettings, StageSettings, WeightManifest

SAMPLING = SamplingSettings(temperature=1.0, max_tokens=4)
SHARED = choose_device("cuda", num_gpus=1, num_engines=2, placement="shared")
REQUEST = GenerationRequest("g", 0, "p", (1, 2), 0, SAMPLING)


class Engine:
    """AsyncLLM's methods that are used here. It notes them, and answers no request while it sleeps."""

    def __init__(self):
        self.diary, self.asleep, self.answer_after = [], False, asyncio.Event()
        self.answer_after.set()
        self.at_work = 0

    async def generate(self, prompt, params, request_id):
        assert not self.asleep, "a request in its sleep would wait for ever"
        self.at_work += 1
        await self.answer_after.wait()
        self.at_work -= 1
        self.diary.append("answer")
        yield SimpleNamespace(outputs=[SimpleNamespace(text="a", token_ids=[3], logprobs=None, weight_versions=(), finish_reason="stop")])

    async def sleep(self, level, mode):
        assert (level, mode) == (1, "wait")  # weights go to the host; what is in flight ends first
        while self.at_work:
            await asyncio.sleep(0)
        self.asleep = True
        self.diary.append("sleep")

    async def wake_up(self):
        self.asleep = False
        self.diary.append("wake")

    async def pause_generation(self, mode, clear_cache):
        assert not self.asleep
        self.diary.append("pause")

    async def resume_generation(self):
        self.diary.append("resume")


class Receiver:
    async def prepare(self, manifest):
        pass

    async def update(self, engine, manifest):
        await asyncio.sleep(0.01)
        engine.diary.append("update")


@pytest.fixture
def generator(monkeypatch):
    made = Generator()
    made._engine, made._receiver, made._clears_cache = Engine(), Receiver(), True
    monkeypatch.setattr(made, "_sampling_params", lambda *_, **__: None)
    monkeypatch.setattr("mathrl_ray.actors.generator._completion", lambda output: output.text)
    return made


def test_it_wakes_for_the_next_request_and_sleeps_only_once(generator):
    async def script():
        await generator.sleep()
        await generator.sleep()
        assert await generator.generate([REQUEST, REQUEST]) == ["a", "a"]
        await generator.sleep()

    asyncio.run(script())
    assert generator._engine.diary == ["sleep", "wake", "answer", "answer", "sleep"]


def test_it_falls_asleep_only_after_what_is_in_flight(generator):
    async def script():
        engine = generator._engine
        engine.answer_after.clear()
        asked = asyncio.ensure_future(generator.generate([REQUEST]))
        await asyncio.sleep(0.01)
        sleeping = asyncio.ensure_future(generator.sleep())
        await asyncio.sleep(0.01)
        assert not sleeping.done()
        engine.answer_after.set()
        await asyncio.gather(asked, sleeping)

    asyncio.run(script())
    assert generator._engine.diary == ["answer", "sleep"]


def test_it_does_not_fall_asleep_between_a_calls_waking_and_its_request(generator):
    async def script():
        # Both begin in this order: the sleep when the call is awake, and its request has not reached the engine.
        await asyncio.gather(generator.generate([REQUEST]), generator.sleep())

    asyncio.run(script())
    assert generator._engine.diary == ["answer", "sleep"]


def test_what_comes_while_it_waits_to_sleep_wakes_it_again(generator):
    async def script():
        engine = generator._engine
        engine.answer_after.clear()
        first = asyncio.ensure_future(generator.generate([REQUEST]))
        await asyncio.sleep(0.01)
        sleeping = asyncio.ensure_future(generator.sleep())
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(generator.generate([REQUEST]))
        await asyncio.sleep(0.01)
        engine.answer_after.set()
        await asyncio.gather(first, sleeping, second)

    asyncio.run(script())
    assert generator._engine.diary == ["answer", "sleep", "wake", "answer"]


def test_it_does_not_fall_asleep_while_new_weights_are_loaded(generator):
    async def script():
        updating = asyncio.ensure_future(generator.apply_weights(WeightManifest(1, "", ())))
        while not generator._engine.diary:
            await asyncio.sleep(0)
        await generator.sleep()
        await updating

    asyncio.run(script())
    assert generator._engine.diary == ["pause", "update", "resume", "sleep"]


def test_calls_that_fail_or_are_given_up_do_not_keep_it_awake(generator):
    async def script():
        engine = generator._engine
        engine.answer_after.clear()
        given_up = asyncio.ensure_future(generator.generate([REQUEST]))
        await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        engine.at_work, engine.resume_generation = 0, None  # vLLM ends such a request
        with pytest.raises(RuntimeError, match="failed half-way"):
            await generator.apply_weights(WeightManifest(1, "", ()))
        generator._failure = None
        await asyncio.wait_for(generator.sleep(), 5)

    asyncio.run(script())
    assert generator._engine.diary == ["pause", "update", "sleep"]


def test_new_weights_wake_it_before_they_are_loaded(generator):
    async def script():
        await generator.sleep()
        await generator.apply_weights(WeightManifest(1, "", ()))

    asyncio.run(script())
    assert generator._engine.diary == ["sleep", "wake", "pause", "update", "resume"]


def test_a_wake_that_failed_is_tried_again(generator):
    async def script():
        await generator.sleep()
        wake_up, generator._engine.wake_up = generator._engine.wake_up, None
        with pytest.raises(TypeError):
            await generator.generate([REQUEST])
        generator._engine.wake_up = wake_up
        await generator.generate([REQUEST])

    asyncio.run(script())
    assert generator._engine.diary == ["sleep", "wake", "answer"]


class Noting(RemoteLearner):
    """Notes what its ranks are told, in place of telling them."""

    def __init__(self, recipe, diary):
        super().__init__([], recipe)
        self._diary = diary

    async def on_all_ranks(self, method, *arguments, limit):
        self._diary.append(method)


def test_generators_make_room_before_whatever_the_learner_computes_and_not_for_a_publication(tmp_path):
    diary = []
    learner = Noting(recipe_for(tmp_path), diary)

    async def make_room():
        diary.append("room")

    async def script():
        learner.before_training = make_room
        await learner.start_stage(None)
        await learner.train_sft([])
        await learner.train_policy([], SAMPLING)
        await learner.response_statistics([], SAMPLING)
        await learner.invite(1)

    asyncio.run(script())
    assert diary == ["room", "start_stage", "room", "train_sft", "room", "train_policy", "room", "response_statistics", "invite"]


@pytest.mark.parametrize(("device", "sleep"), [(SHARED, True), (SHARED, False), (choose_device("cuda", num_gpus=2, num_engines=2), False)])
def test_on_a_shared_gpu_the_generator_sleeps_if_it_may_and_the_learner_makes_room_for_a_new_one(tmp_path, device, sleep):
    diary = []
    placed = Placement(recipe_for(tmp_path, generator={"sleep": sleep}, device={"placement": "shared"}), device)
    learner, generator = Noting(placed.recipe, diary), SimpleNamespace(before_restart=None)

    async def fall_asleep():
        diary.append("sleep")

    async def script():
        generator.sleep = fall_asleep
        placed._generators.append(generator)
        placed._let_make_room(learner)
        await learner.train_sft([])
        if generator.before_restart:
            await generator.before_restart()

    asyncio.run(script())
    assert diary == ["sleep"] * sleep + ["train_sft"] + ["release_memory"] * device.shares_gpu


def test_the_learner_first_touches_a_shared_gpu_when_a_stage_begins_and_then_keeps_within_its_share(tmp_path, monkeypatch):
    import torch

    shares, emptied = [], []

    def note(share):
        shares.append(share)
        raise InterruptedError

    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", note)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    learner, recipe = Learner(), recipe_for(tmp_path, generator={"gpu_memory_utilization": 0.3}, device={"placement": "shared"})
    learner.setup(recipe, SHARED)  # while vLLM measures what is free
    assert shares == []
    with pytest.raises(InterruptedError):
        learner.start_stage(StageSettings("grpo", "/no/model", 1e-5, 1))
    assert shares == [pytest.approx(0.68)]
    learner.release_memory()
    assert emptied == [True]
