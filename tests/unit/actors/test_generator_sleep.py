"""A generator that makes room while the learner trains: the order of its engine's calls, with an engine written by hand."""

import asyncio
from types import SimpleNamespace

import pytest
from samples import recipe_for

from mathrl_ray.actors.generator import Generator
from mathrl_ray.actors.remote import RemoteLearner
from mathrl_ray.types import GenerationRequest, SamplingSettings, WeightManifest

SAMPLING = SamplingSettings(temperature=1.0, max_tokens=4)
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


def test_generators_make_room_before_each_load_and_update_and_not_for_looking(tmp_path):
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

    asyncio.run(script())
    assert diary == ["room", "start_stage", "room", "train_sft", "room", "train_policy", "response_statistics"]
