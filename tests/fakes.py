"""Hand-written actors for tests of order and back-pressure, and real ones without Ray around them.

The fakes follow actors/interfaces.py and write down what was asked of them; they compute nothing that a test could mistake for an engine.
"""

import asyncio
import functools
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.types import (
    Completion,
    EngineStatistics,
    GenerationRequest,
    Grade,
    PolicyUpdate,
    ResponseStatistics,
    SamplingSettings,
    ScoreRequest,
    SftExample,
    StageSettings,
    Trajectory,
    WeightManifest,
    WeightMeeting,
    WeightTransport,
)


@dataclass
class Diary:
    """What was asked of all fakes of a test, in order: (actor, what, detail)."""

    entries: list[tuple[str, str, Any]] = field(default_factory=list)

    def note(self, actor: str, what: str, detail: Any = None) -> None:
        self.entries.append((actor, what, detail))

    def of(self, *what: str) -> list[tuple[str, str, Any]]:
        return [entry for entry in self.entries if entry[1] in what]


Cue = Callable[[str, str, Any], Awaitable[None]]
"""Awaited by a fake between a request, (actor, what, detail) as the diary has it, and its answer; may wait, and may raise."""


async def at_once(actor: str, what: str, detail: Any) -> None:
    pass


class Stage:
    """A cue that holds what a test names until the test lets it go on, or fails it."""

    def __init__(self, *held: str) -> None:
        """held: "generate", or "generate of generator-1"; everything else answers at once."""
        self.held = set(held)
        self.calls: list[tuple[str, str, Any, asyncio.Future[None]]] = []

    async def __call__(self, actor: str, what: str, detail: Any) -> None:
        if self.holds(actor, what, detail):
            call = (actor, what, detail, asyncio.get_running_loop().create_future())
            self.calls.append(call)
            try:
                await call[3]
            finally:
                self.calls.remove(call)

    def holds(self, actor: str, what: str, detail: Any) -> bool:
        return bool({what, f"{what} of {actor}"} & self.held)

    def waiting(self, what: str, actor: str = "") -> list[tuple[str, str, Any, asyncio.Future[None]]]:
        """Calls that wait for the test's word, the oldest first."""
        return [call for call in self.calls if call[1] == what and actor in ("", call[0]) and not call[3].done()]

    async def next(self, what: str, actor: str = "") -> tuple[str, str, Any, asyncio.Future[None]]:
        """The oldest waiting call, once there is one."""
        await until(lambda: bool(self.waiting(what, actor)))
        return self.waiting(what, actor)[0]

    async def go_on(self, what: str, actor: str = "") -> None:
        (await self.next(what, actor))[3].set_result(None)

    async def fail(self, what: str, actor: str = "", error: Exception | None = None) -> None:
        """End the oldest waiting call with an error; by default as one whose actor died."""
        name, _, _, future = await self.next(what, actor)
        future.set_exception(error or ActorError(f"{name} died in {what}()"))

    def let_all_go_on(self) -> None:
        """Hold nothing any more."""
        self.held.clear()
        for call in self.calls:
            if not call[3].done():
                call[3].set_result(None)


class ShuffledTurns:
    """A cue by which answers come in a random order that follows from a seed, and some calls of replaceable actors fail."""

    def __init__(self, seed: int, failing: Sequence[str] = (), failure_rate: float = 0.0, most_turns: int = 12) -> None:
        self._draw, self._failing, self._rate, self._most_turns = random.Random(seed), failing, failure_rate, most_turns
        self.num_failures = 0

    async def __call__(self, actor: str, what: str, detail: Any) -> None:
        for _ in range(self._draw.randrange(self._most_turns)):
            await asyncio.sleep(0)
        if what in self._failing and not actor.startswith("learner") and self._draw.random() < self._rate:
            self.num_failures += 1
            raise ActorError(f"{actor} died in {what}()")


def scene(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An asynchronous test that is ended after a while: what waits for ever fails."""

    async def limited(*arguments: Any, **named: Any) -> None:
        async with asyncio.timeout(15) as limit:
            await test(*arguments, **named)
        assert not limit.expired(), "it hung, and took the end of its time for a cancellation that it expected"

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(limited(*arguments, **named))

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Let the other tasks go on until something holds. For tests only, whose own limit ends a wait that never would."""
    while not condition():
        await asyncio.sleep(0)


async def settle(num_turns: int = 200) -> None:
    """Let the other tasks go on as far as they can without an answer that is held."""
    for _ in range(num_turns):
        await asyncio.sleep(0)


@dataclass
class FakeGenerator:
    """Answers a request with one token whose id is the request's seed modulo 10, stamped with the version that it holds.

    A request during which new weights came gets a second token, of the new version.
    """

    diary: Diary
    name: str = "generator-0"
    policy_version: int = 0
    cue: Cue = at_once
    is_dead: bool = False
    """Until it is restarted: fails every request with ActorError."""
    num_restarts: int = 0

    async def _act(self, what: str, detail: Any = None) -> None:
        self.diary.note(self.name, what, detail)
        if self.is_dead and what != "restart":
            raise ActorError(f"{self.name} died in {what}()")
        asked_of = self.num_restarts
        try:
            await self.cue(self.name, what, detail)
        except ActorError:
            if asked_of == self.num_restarts:
                self.is_dead = True
            raise
        if what != "restart" and (self.is_dead or asked_of != self.num_restarts):  # it died of another request meanwhile
            raise ActorError(f"{self.name} died in {what}()")

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        began_with = self.policy_version
        await self._act("generate", [(request.group_id, request.sample) for request in requests])
        return [self._answer(request, began_with) for request in requests]

    def _answer(self, request: GenerationRequest, began_with: int) -> Completion:
        token = request.seed % 10
        if began_with == self.policy_version:
            return Completion(f"{token}", (token,), (-0.5,), ((began_with, 1),), "stop")
        return Completion(f"{token}", (token, token), (-0.5, -0.5), ((began_with, 1), (self.policy_version, 1)), "stop")

    async def apply_weights(self, manifest: WeightManifest) -> float:
        await self._act("apply_weights", manifest.policy_version)
        self.policy_version = manifest.policy_version
        return 0.01

    async def meet(self, meeting: WeightMeeting, index: int) -> None:
        await self._act("meet", index)

    async def abort(self) -> None:
        await self._act("abort")

    async def engine_statistics(self) -> EngineStatistics:
        if self.is_dead:
            raise ActorError(f"{self.name} died in engine_statistics()")
        return EngineStatistics(0.5, 1, 8, 2, 4, 1)

    async def restart(self) -> None:
        await self._act("restart")
        self.is_dead, self.policy_version = False, 0
        self.num_restarts += 1


@dataclass
class FakeLearner:
    """Agrees with the generators to `gap_nats`, and trains on nothing."""

    diary: Diary
    gap_nats: float = 0.0
    transport: WeightTransport = "shared_memory"
    cue: Cue = at_once
    skips: bool = False
    """Every update, as for a gradient that is no number."""

    async def _act(self, what: str, detail: Any = None) -> None:
        self.diary.note("learner-0", what, detail)
        await self.cue("learner-0", what, detail)

    async def start_stage(self, settings: StageSettings) -> None:
        await self._act("start_stage", settings.model_path)

    async def train_sft(self, batch: Sequence[SftExample]) -> dict[str, float]:
        await self._act("train_sft", len(batch))
        return {"loss": 1.0, "entropy_nats": 0.5}

    async def train_policy(self, batch: Sequence[Trajectory], sampling: SamplingSettings) -> PolicyUpdate:
        await self._act("train_policy", [(t.group_id, t.sample, t.advantage) for t in batch])
        return PolicyUpdate({"loss": 0.0}, tuple(t.completion.logprobs for t in batch), 0 if self.skips else 1)

    async def response_statistics(self, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        await self._act("response_statistics", len(sequences))
        return [ResponseStatistics(tuple(-0.5 + self.gap_nats for _ in sequence.response_ids), 0.1) for sequence in sequences]

    async def invite(self, num_generators: int) -> WeightMeeting:
        self.diary.note("learner-0", "invite", num_generators)
        return WeightMeeting(self.transport, num_generators=num_generators)

    async def meet(self, meeting: WeightMeeting) -> None:
        await self._act("meet", meeting.num_generators)

    async def publish(self, policy_version: int) -> WeightManifest:
        await self._act("publish", policy_version)
        return WeightManifest(policy_version, "nowhere", (), self.transport)

    async def send_weights(self, manifest: WeightManifest) -> None:
        if self.transport != "shared_memory":
            await self._act("send_weights", manifest.policy_version)

    async def use_average(self) -> dict[str, float]:
        """As a learner that keeps none."""
        return {}

    async def save(self, folder: str) -> None:
        await self._act("save", folder)

    async def save_checkpoint(self, folder: str) -> dict[str, float]:
        (Path(folder) / "trainer").mkdir()
        (Path(folder) / "trainer" / "fake.json").write_text(json.dumps(self.state()))
        await self._act("save_checkpoint", folder)
        return {"checkpoint_bytes": 1.0}

    async def load_checkpoint(self, folder: str) -> None:
        await self._act("load_checkpoint", folder)
        self.take(json.loads((Path(folder) / "trainer" / "fake.json").read_text()))

    def state(self) -> Any:
        """What a checkpoint keeps of it."""
        return None

    def take(self, state: Any) -> None:
        pass


@dataclass
class FakeScorer:
    """Right is what equals the gold; an answer of "9" cannot be graded."""

    diary: Diary
    name: str = "scorer-0"
    cue: Cue = at_once

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Grade]:
        self.diary.note(self.name, "score", len(requests))
        await self.cue(self.name, "score", requests)
        return [self._grade(request) for request in requests]

    async def restart(self) -> None:
        self.diary.note(self.name, "restart")
        await self.cue(self.name, "restart", None)

    def _grade(self, request: ScoreRequest) -> Grade:
        if request.response == "9":
            return Grade(1.0, 0.0, 0.0, "grader_error", "9")
        reward = float(request.response == request.gold)
        return Grade(1.0, reward, reward, "correct" if reward else "wrong", request.response)


class LocalLearner:
    """A real Learner, whose methods block, behind the asynchronous Protocol; without Ray."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    async def start_stage(self, settings: StageSettings) -> None:
        self.learner.start_stage(settings)

    async def train_sft(self, batch: Sequence[SftExample]) -> dict[str, float]:
        return self.learner.train_sft(batch)

    async def train_policy(self, batch: Sequence[Trajectory], sampling: SamplingSettings) -> PolicyUpdate:
        return self.learner.train_policy(batch, sampling)

    async def response_statistics(self, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        return self.learner.response_statistics(sequences, sampling)

    async def invite(self, num_generators: int) -> WeightMeeting:
        return self.learner.invite(num_generators)

    async def meet(self, meeting: WeightMeeting) -> None:
        self.learner.meet(meeting)

    async def publish(self, policy_version: int) -> WeightManifest:
        return self.learner.publish(policy_version)

    async def send_weights(self, manifest: WeightManifest) -> None:
        self.learner.send_weights(manifest)

    async def use_average(self) -> dict[str, float]:
        return self.learner.use_average()

    async def save(self, folder: str) -> None:
        self.learner.save(folder)

    async def save_checkpoint(self, folder: str) -> dict[str, float]:
        return self.learner.save_checkpoint(folder)

    async def load_checkpoint(self, folder: str) -> None:
        self.learner.load_checkpoint(folder)
