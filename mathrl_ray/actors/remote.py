"""Actors as the driver holds them: a Ray handle behind the Protocol, with a limit on every wait and errors in plain words.

Built by placement.py. Knows Ray's futures; knows no engine.

    call       to the actor that is there when it begins; fails at once when that one dies
    restart    children noted -> actor ended -> its processes and files gone -> name free -> new actor -> its GPUs checked -> setup
    end        the same up to "gone", for every actor that a restart has begun with too
"""

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mathrl_ray.actors.block_carrier import BlockCarrier
from mathrl_ray.actors.footprint import GONE_LIMIT_S, LEAVING_LIMIT_S, Footprint, erase, footprint, process_id
from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.config import Recipe
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
)

SHUTDOWN_LIMIT_S = 15.0
STATISTICS_LIMIT_S = 5.0
"""A row of metrics does not wait longer for numbers that are for looking at."""
_NAME_LIMIT_S = 30.0
_NAME_RETRY_S = 0.02
_TASK_LIMIT_S = LEAVING_LIMIT_S + GONE_LIMIT_S + 20
_LOG = "Its log is in the Ray dashboard under Actors."


@dataclass(frozen=True, slots=True)
class Limit:
    """The longest wait for one call, and the recipe's key that sets it."""

    seconds: float
    key: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor runs."""

    node: str
    gpus: tuple[int, ...]
    process: tuple[int, float]
    """As footprint.py tells processes apart."""


async def call(handle: Any, name: str, method: str, *arguments: Any, limit: Limit) -> Any:
    """Call an actor's method and wait at most for `limit`.

    Raises:
        ActorError: the actor died, the limit passed, or the method failed in a way that is nobody's setting.
        ValueError, FloatingPointError: raised by the method for a person to read (a recipe that cannot work, a loss that is no number).
    """
    return await answer(getattr(handle, method).remote(*arguments), name, method, limit=limit)


async def answer(reference: Any, name: str, method: str, *, limit: Limit) -> Any:
    """Wait at most for `limit` for what a call of an actor's method gives.

    Raises:
        ActorError, ValueError, FloatingPointError: as `call`.
    """
    try:
        async with asyncio.timeout(limit.seconds):
            return await reference
    except ray.exceptions.RayTaskError as error:  # before TimeoutError, which it also is when the method raised one
        if isinstance(error.cause, (ValueError, FloatingPointError)):
            raise error.cause from error
        raise ActorError(f"{name} failed in {method}(): {type(error.cause).__name__}: {error.cause}. {_LOG}") from error
    except ray.exceptions.RayActorError as error:
        last_line = str(error).strip().rpartition("\n")[2]
        raise ActorError(f"{name} died in {method}(): {last_line} {_LOG}") from error
    except ray.exceptions.RayError as error:
        raise ActorError(f"{name}'s answer to {method}() was lost: {type(error).__name__}: {error}") from error
    except TimeoutError as error:
        raise ActorError(
            f"{name} did not answer {method}() within {limit.seconds:g} s ({limit.key}): it hangs, or needs a higher limit. {_LOG}"
        ) from error


async def droppable_call(handle: Any, name: str, method: str, *arguments: Any, limit: Limit) -> Any:
    """As `call`, for a method that may be ended anywhere: where the wait ends without an answer, the actor drops its work on it."""
    reference = getattr(handle, method).remote(*arguments)
    try:
        return await answer(reference, name, method, limit=limit)
    except (ActorError, asyncio.CancelledError):
        if ray.is_initialized():
            ray.cancel(reference)
        raise


def _place(_: Any) -> Place:
    return Place(ray.get_runtime_context().get_node_id(), tuple(ray.get_gpu_ids()), process_id(os.getpid()))


async def on_machine_of(place: Place, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function where an actor runs or ran: here, or in a Ray task there. None where that machine does not answer any more."""
    if place.node == ray.get_runtime_context().get_node_id():
        return await asyncio.to_thread(function, *arguments)
    there = NodeAffinitySchedulingStrategy(place.node, soft=False)
    return await _task(function, there, *arguments)


async def _task(function: Callable[..., Any], there: NodeAffinitySchedulingStrategy, *arguments: Any) -> Any:
    reference = ray.remote(function).options(num_cpus=0, scheduling_strategy=there).remote(*arguments)
    try:
        async with asyncio.timeout(_TASK_LIMIT_S):
            return await reference
    except (ray.exceptions.RayError, TimeoutError):
        return None


class PlacedActor:
    """One actor, from its creation until nothing of it is left."""

    def __init__(self, handle: Any, name: str) -> None:
        """
        Args:
            handle: of an actor that has just been created, and has not been called yet.
            name: its name.
        """
        self.handle, self.name = handle, name
        self._place: Place | None = None
        self._asked_place = handle.__ray_call__.remote(_place)  # before all other calls, which may take long
        self._left = Footprint()

    @property
    def place(self) -> Place | None:
        """Where it runs, once `locate` has said so."""
        return self._place

    async def locate(self, limit: Limit) -> Place:
        """Where it runs, once it does."""
        self._place = await answer(self._asked_place, self.name, "__init__", limit=limit)
        return self._place

    async def note(self) -> None:
        """Write down what it has on its machine, for when it can no longer be asked."""
        if self._place is None and ray.wait([self._asked_place], timeout=0)[0]:
            with contextlib.suppress(ActorError):
                await self.locate(Limit(SHUTDOWN_LIMIT_S, "fixed"))
        if self._place is not None:
            self._left |= await on_machine_of(self._place, footprint, self._place.process) or Footprint()

    async def end(self, limit_s: float = SHUTDOWN_LIMIT_S) -> None:
        """Let it end its processes, for which it gets `limit_s`, then remove it.

        Raises:
            ActorError: as `remove`.
        """
        await self.note()
        with contextlib.suppress(ActorError, ValueError):
            await call(self.handle, self.name, "shutdown", limit=Limit(limit_s, "fixed"))
        await self.remove()

    async def remove(self) -> None:
        """End it, its processes and its files, whatever state it is in.

        Raises:
            ActorError: a process does not end even by force.
        """
        await self.note()
        ray.kill(self.handle)
        if self._place is not None:
            stuck = await on_machine_of(self._place, erase, self._left, self._place.process)
            if stuck:
                raise ActorError(f"processes {stuck} of {self.name} did not end within {GONE_LIMIT_S:g} s of being killed")


async def _nothing() -> None:
    pass


class Replaceable:
    """A named actor, and a new one in its place when it fails. At most one of them has an engine at a time."""

    def __init__(self, name: str, create: Callable[[], Any], recipe: Recipe) -> None:
        """
        Args:
            name: the actor's.
            create: makes the actor with its resources and returns its handle at once.
            recipe: for the limits.
        """
        self.name = name
        self.incarnation = 0
        """How often it was replaced."""
        self.moved: Callable[[str, Place | None], None] = lambda name, place: None
        """Told where each new actor is, and None while there is none; raises RuntimeError or RecipeError where it may not be."""
        self.before_restart: Callable[[], Awaitable[None]] = _nothing
        """Awaited when the old actor is gone, before the new one starts its engine."""
        self._create = create
        self._setup_arguments: tuple[Any, ...] = ()
        self._start_limit = Limit(recipe.driver.start_limit_s, "driver.start_limit_s")
        self._restarting, self._ended = asyncio.Lock(), False
        self._current = PlacedActor(create(), name)
        self._all = {self._current}
        """Actors of which something may be left."""

    @property
    def handle(self) -> Any:
        """The present actor's."""
        return self._current.handle

    async def locate(self, limit: Limit) -> Place:
        """Where the first actor is."""
        return await self._current.locate(limit)

    async def set_up(self, *arguments: Any) -> Any:
        """The first actor's `setup`; its successors get the same arguments."""
        self._setup_arguments = arguments
        return await self._set_up(self._current)

    async def _set_up(self, actor: PlacedActor) -> Any:
        facts = await call(actor.handle, self.name, "setup", *self._setup_arguments, limit=self._start_limit)
        await actor.note()
        return facts

    async def restart(self) -> None:
        """Put a fresh actor in this one's place, whatever state it is in. Who asks while another's restart goes on shares that one.

        Raises:
            ActorError: it did not start within driver.start_limit_s, or the run is at its end.
            RuntimeError: it has other GPUs than it was given.
            RecipeError: it came to a node that weights do not reach.
        """
        asked_of, seconds = self.incarnation, self._start_limit.seconds
        async with self._restarting:
            if self.incarnation != asked_of:
                return
            try:
                async with asyncio.timeout(seconds):
                    await self._replace()
            except TimeoutError as error:
                raise ActorError(f"{self.name} was not replaced within {seconds:g} s ({self._start_limit.key}). {_LOG}") from error

    async def _replace(self) -> None:
        self.moved(self.name, None)
        await asyncio.gather(*(self._forget(each, each.remove) for each in self._all))
        actor = await self._new_actor()
        self.moved(self.name, await actor.locate(self._start_limit))
        await self.before_restart()
        await self._set_up(actor)
        self._current = actor
        self.incarnation += 1

    async def _new_actor(self) -> PlacedActor:
        deadline = time.monotonic() + _NAME_LIMIT_S
        while True:
            if self._ended:
                raise ActorError(f"{self.name} is not replaced: the run is at its end")
            try:
                actor = PlacedActor(self._create(), self.name)
            except ray.exceptions.ActorAlreadyExistsError:  # Ray frees a name some 20 ms after the actor, and tells nobody
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_NAME_RETRY_S)
            else:
                self._all.add(actor)  # before a cancellation can come between, so that `end` knows of it
                return actor

    async def end(self, limit_s: float = SHUTDOWN_LIMIT_S) -> None:
        """Let the actor end its processes, then end it and all that is left of it and its predecessors. Can be called at any time.

        Raises:
            ActorError: a process does not end even by force.
        """
        self._ended = True
        await asyncio.gather(*(self._forget(each, functools.partial(each.end, limit_s)) for each in self._all))

    async def _forget(self, actor: PlacedActor, removal: Callable[[], Awaitable[None]]) -> None:
        await removal()
        self._all.discard(actor)


class RemoteGenerator(Replaceable):
    """`interfaces.Generator` over Ray."""

    def __init__(self, name: str, create: Callable[[], Any], recipe: Recipe) -> None:
        super().__init__(name, create, recipe)
        self._generate_limit = Limit(recipe.generator.limit_s, "generator.limit_s")
        self._sync_limit = Limit(recipe.driver.sync_limit_s, "driver.sync_limit_s")
        self.carrier: BlockCarrier | None = None
        """Of weights to other nodes than the learner's, where the transport is the object store."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        limit = self._generate_limit
        completions: list[Completion] = await droppable_call(self.handle, self.name, "generate", list(requests), limit=limit)
        return completions

    async def apply_weights(self, manifest: WeightManifest) -> float:
        if self.carrier is None or self.is_on(self.carrier.node):
            return await self._apply(manifest)
        return await self._apply(manifest, await self.carrier.block(manifest))

    async def _apply(self, *arguments: Any) -> float:
        pause_s: float = await call(self.handle, self.name, "apply_weights", *arguments, limit=self._sync_limit)
        return pause_s

    def is_on(self, node: str) -> bool:
        """Whether the present actor is on this node, as far as that is known."""
        place = self._current.place
        return place is None or place.node == node

    async def meet(self, meeting: WeightMeeting, index: int) -> None:
        await call(self.handle, self.name, "meet", meeting, index, limit=self._sync_limit)

    async def abort(self) -> None:
        await call(self.handle, self.name, "abort", limit=self._sync_limit)

    async def engine_statistics(self) -> EngineStatistics:
        limit = Limit(STATISTICS_LIMIT_S, "fixed")
        statistics: EngineStatistics = await call(self.handle, self.name, "engine_statistics", limit=limit)
        return statistics

    async def sleep(self) -> None:
        await call(self.handle, self.name, "sleep", limit=self._generate_limit)


class RemoteLearner:
    """`interfaces.Learner` over Ray: one actor a rank, all called at once with the same arguments; rank 0 answers for all."""

    def __init__(self, ranks: Sequence[Any], recipe: Recipe) -> None:
        self._ranks = ranks
        self.before_training: Callable[[], Awaitable[None]] = _nothing
        """Awaited before anything is loaded, trained or computed: where the learner needs memory that generators hold."""
        self._published: str | None = None
        self.carrier: BlockCarrier | None = None
        self._limit = Limit(recipe.learner.limit_s, "learner.limit_s")
        self._sync_limit = Limit(recipe.driver.sync_limit_s, "driver.sync_limit_s")

    async def on_all_ranks(self, method: str, *arguments: Any, limit: Limit) -> Any:
        """Rank 0's answer, once all ranks have answered; the first rank that fails ends the wait.

        Raises:
            ActorError, ValueError, FloatingPointError: as `call`.
        """
        shared = [ray.put(argument) for argument in arguments] if len(self._ranks) > 1 else arguments  # once, not once a rank
        answers = await asyncio.gather(
            *(call(handle, f"learner-{rank}", method, *shared, limit=limit) for rank, handle in enumerate(self._ranks))
        )
        return answers[0]

    async def start_stage(self, settings: StageSettings) -> None:
        await self.before_training()
        await self.on_all_ranks("start_stage", settings, limit=self._limit)

    async def train_sft(self, batch: Sequence[SftExample]) -> dict[str, float]:
        await self.before_training()
        return await self.on_all_ranks("train_sft", list(batch), limit=self._limit)

    async def train_policy(self, batch: Sequence[Trajectory], sampling: SamplingSettings) -> PolicyUpdate:
        await self.before_training()
        return await self.on_all_ranks("train_policy", list(batch), sampling, limit=self._limit)

    async def response_statistics(self, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        await self.before_training()
        return await self.on_all_ranks("response_statistics", list(sequences), sampling, limit=self._limit)

    async def release_memory(self) -> None:
        """Called before a generator starts anew on the learner's GPU."""
        await self.on_all_ranks("release_memory", limit=self._limit)

    async def invite(self, num_generators: int) -> WeightMeeting:
        meeting: WeightMeeting = await self.on_all_ranks("invite", num_generators, limit=self._sync_limit)
        return meeting

    async def meet(self, meeting: WeightMeeting) -> None:
        await self.on_all_ranks("meet", meeting, limit=self._sync_limit)

    async def publish(self, policy_version: int) -> WeightManifest:
        manifest: WeightManifest = await self.on_all_ranks("publish", policy_version, limit=self._sync_limit)
        self._published = manifest.path
        if self.carrier is not None:
            await self.carrier.published(manifest)
        return manifest

    async def send_weights(self, manifest: WeightManifest) -> None:
        if manifest.is_for_all_at_once:  # else shared memory holds them since `publish`
            await self.on_all_ranks("send_weights", manifest, limit=self._sync_limit)

    def carry_to(self, generators: Sequence[RemoteGenerator], node: str) -> None:
        """Let publications go through Ray's object store to generators that are not on `node`, the first rank's."""

        late_limit = Limit(self._limit.seconds + self._sync_limit.seconds, f"{self._limit.key} + {self._sync_limit.key}")

        def wait(made: Any, late: bool) -> Awaitable[Any]:
            return answer(made, "learner-0", "published_block", limit=late_limit if late else self._sync_limit)

        def is_needed() -> bool:
            return not all(generator.is_on(node) for generator in generators)

        self.carrier = BlockCarrier(self._ranks[0], node, is_needed, wait)
        for generator in generators:
            generator.carrier = self.carrier

    def remove_published(self) -> None:
        """Remove the published weights of a learner that was ended by force, if its memory is this machine's."""
        if self._published:
            Path(self._published).unlink(missing_ok=True)

    async def use_average(self) -> dict[str, float]:
        figures: dict[str, float] = await self.on_all_ranks("use_average", limit=self._limit)
        return figures

    async def save(self, folder: str) -> None:
        await self.on_all_ranks("save", folder, limit=self._limit)

    async def save_checkpoint(self, folder: str) -> dict[str, float]:
        figures: dict[str, float] = await self.on_all_ranks("save_checkpoint", folder, limit=self._limit)
        return figures

    async def load_checkpoint(self, folder: str) -> None:
        await self.on_all_ranks("load_checkpoint", folder, limit=self._limit)


class RemoteScorer(Replaceable):
    """`interfaces.Scorer` over Ray."""

    def __init__(self, name: str, create: Callable[[], Any], recipe: Recipe) -> None:
        super().__init__(name, create, recipe)
        self._item_limit_s = recipe.scorer.limit_s
        self._num_waiting = 0

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Grade]:
        self._num_waiting += len(requests)
        # Each item has its own limit inside the scorer; this one only bounds a scorer that is stuck itself. Others' items go first.
        limit = Limit(60 + (self._item_limit_s + 1) * self._num_waiting, "from scorer.limit_s")
        try:
            grades: list[Grade] = await droppable_call(self.handle, self.name, "score", list(requests), limit=limit)
            return grades
        finally:
            self._num_waiting -= len(requests)
