"""Actors as the driver holds them: a Ray handle behind the Protocol, with a limit on every wait and errors in plain words.

Built by placement.py. Knows Ray's futures; knows no engine.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from mathrl_ray.config import Recipe
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

_LOG = "Its log is in the Ray dashboard under Actors."


class ActorError(RuntimeError):
    """An actor failed, died or did not answer in time; the message says which, in what call, and where its log is."""


async def call(handle: Any, name: str, method: str, *arguments: Any, limit_s: float) -> Any:
    """Call an actor's method and wait at most `limit_s`.

    Raises:
        ActorError: the actor died, the limit passed, or the method failed in a way that is nobody's setting.
        ValueError, FloatingPointError: raised by the method for a person to read (a recipe that cannot work, a loss that is no number).
    """
    return await answer(getattr(handle, method).remote(*arguments), name, method, limit_s=limit_s)


async def answer(reference: Any, name: str, method: str, *, limit_s: float) -> Any:
    """Wait at most `limit_s` for what a call of an actor's method gives.

    Raises:
        ActorError, ValueError, FloatingPointError: as `call`.
    """
    future = asyncio.wrap_future(reference.future())
    try:
        return await asyncio.wait_for(future, limit_s)
    except TimeoutError as error:
        raise ActorError(f"{name} did not answer {method}() within {limit_s:g} s") from error
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, (ValueError, FloatingPointError)):
            raise error.cause from error
        raise ActorError(f"{name} failed in {method}(): {type(error.cause).__name__}: {error.cause}. {_LOG}") from error
    except ray.exceptions.RayActorError as error:
        raise ActorError(f"{name} died in {method}(). {_LOG}") from error


class RemoteGenerator:
    """`interfaces.Generator` over Ray."""

    def __init__(self, handle: Any, name: str, recipe: Recipe) -> None:
        self.handle, self.name = handle, name
        self._generate_limit_s, self._sync_limit_s = recipe.generator.limit_s, recipe.driver.sync_limit_s

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return await call(self.handle, self.name, "generate", list(requests), limit_s=self._generate_limit_s)

    async def apply_weights(self, manifest: WeightManifest) -> float:
        return await call(self.handle, self.name, "apply_weights", manifest, limit_s=self._sync_limit_s)


class RemoteLearner:
    """`interfaces.Learner` over Ray: one actor a rank, all called at once with the same arguments; rank 0 answers for all."""

    def __init__(self, ranks: Sequence[Any], recipe: Recipe) -> None:
        self._ranks = ranks
        self._published: str | None = None
        self._limit_s, self._sync_limit_s = recipe.learner.limit_s, recipe.driver.sync_limit_s

    async def on_all_ranks(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """Rank 0's answer, once all ranks have answered; the first rank that fails ends the wait.

        Raises:
            ActorError, ValueError, FloatingPointError: as `call`.
        """
        shared = [ray.put(argument) for argument in arguments] if len(self._ranks) > 1 else arguments  # once, not once a rank
        answers = await asyncio.gather(
            *(call(handle, f"learner-{rank}", method, *shared, limit_s=limit_s) for rank, handle in enumerate(self._ranks))
        )
        return answers[0]

    async def start_stage(self, settings: StageSettings) -> None:
        await self.on_all_ranks("start_stage", settings, limit_s=self._limit_s)

    async def train_sft(self, batch: Sequence[SftExample]) -> dict[str, float]:
        return await self.on_all_ranks("train_sft", list(batch), limit_s=self._limit_s)

    async def train_policy(self, batch: Sequence[Trajectory], sampling: SamplingSettings) -> PolicyUpdate:
        return await self.on_all_ranks("train_policy", list(batch), sampling, limit_s=self._limit_s)

    async def response_statistics(self, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        return await self.on_all_ranks("response_statistics", list(sequences), sampling, limit_s=self._limit_s)

    async def publish(self, policy_version: int) -> WeightManifest:
        manifest: WeightManifest = await self.on_all_ranks("publish", policy_version, limit_s=self._sync_limit_s)
        self._published = manifest.path
        return manifest

    def remove_published(self) -> None:
        """Remove the published weights of a learner that was ended by force, if its memory is this machine's."""
        if self._published:
            Path(self._published).unlink(missing_ok=True)

    async def save(self, folder: str) -> None:
        await self.on_all_ranks("save", folder, limit_s=self._limit_s)


class RemoteScorer:
    """`interfaces.Scorer` over Ray."""

    def __init__(self, handle: Any, name: str, recipe: Recipe) -> None:
        self.handle, self.name = handle, name
        self._item_limit_s = recipe.scorer.limit_s

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Grade]:
        # Each item has its own limit inside the scorer; this one only bounds a scorer that is stuck itself.
        limit_s = 60 + (self._item_limit_s + 1) * len(requests)
        return await call(self.handle, self.name, "score", list(requests), limit_s=limit_s)
