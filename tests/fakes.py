"""Hand-written actors for tests of order and back-pressure, and real ones without Ray around them.

The fakes follow actors/interfaces.py and write down what was asked of them; they compute nothing that a test could mistake for an engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mathrl_ray.types import (
    Completion,
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
)


@dataclass
class Diary:
    """What was asked of all fakes of a test, in order: (actor, what, detail)."""

    entries: list[tuple[str, str, Any]] = field(default_factory=list)

    def note(self, actor: str, what: str, detail: Any = None) -> None:
        self.entries.append((actor, what, detail))

    def of(self, *what: str) -> list[tuple[str, str, Any]]:
        return [entry for entry in self.entries if entry[1] in what]


@dataclass
class FakeGenerator:
    """Answers a request with one token whose id is the request's seed modulo 10, stamped with the version that it holds."""

    diary: Diary
    name: str = "generator-0"
    policy_version: int = 0

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        self.diary.note(self.name, "generate", [(request.group_id, request.sample) for request in requests])
        return [self._answer(request) for request in requests]

    def _answer(self, request: GenerationRequest) -> Completion:
        token = request.seed % 10
        return Completion(f"{token}", (token,), (-0.5,), ((self.policy_version, 1),), "stop")

    async def apply_weights(self, manifest: WeightManifest) -> float:
        self.diary.note(self.name, "apply_weights", manifest.policy_version)
        self.policy_version = manifest.policy_version
        return 0.01


@dataclass
class FakeLearner:
    """Agrees with the generators to `gap_nats`, and trains on nothing."""

    diary: Diary
    gap_nats: float = 0.0

    async def start_stage(self, settings: StageSettings) -> None:
        self.diary.note("learner-0", "start_stage", settings.model_path)

    async def train_sft(self, batch: Sequence[SftExample]) -> dict[str, float]:
        self.diary.note("learner-0", "train_sft", len(batch))
        return {"loss": 1.0, "entropy_nats": 0.5}

    async def train_policy(self, batch: Sequence[Trajectory], sampling: SamplingSettings) -> PolicyUpdate:
        self.diary.note("learner-0", "train_policy", [(t.group_id, t.sample, t.advantage) for t in batch])
        return PolicyUpdate({"loss": 0.0}, tuple(t.completion.logprobs for t in batch), 1)

    async def response_statistics(self, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        self.diary.note("learner-0", "response_statistics", len(sequences))
        return [ResponseStatistics(tuple(-0.5 + self.gap_nats for _ in sequence.response_ids), 0.1) for sequence in sequences]

    async def publish(self, policy_version: int) -> WeightManifest:
        self.diary.note("learner-0", "publish", policy_version)
        return WeightManifest(policy_version, "nowhere", ())

    async def save(self, folder: str) -> None:
        self.diary.note("learner-0", "save", folder)


@dataclass
class FakeScorer:
    """Right is what equals the gold; an answer of "9" cannot be graded."""

    diary: Diary
    name: str = "scorer-0"

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Grade]:
        self.diary.note(self.name, "score", len(requests))
        return [self._grade(request) for request in requests]

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

    async def publish(self, policy_version: int) -> WeightManifest:
        return self.learner.publish(policy_version)

    async def save(self, folder: str) -> None:
        self.learner.save(folder)
