"""From a recipe to named, pinned, running actors, and their end.

Called by entry.py. Knows Ray and the actor classes; the engines are imported by the actors themselves.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.exceptions
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mathrl_ray.actors.generator import Generator
from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.learner import Learner
from mathrl_ray.actors.own_rewards import function_sources
from mathrl_ray.actors.process_group import Rendezvous, free_port
from mathrl_ray.actors.remote import ActorError, RemoteGenerator, RemoteLearner, RemoteScorer, answer, call
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.device import Device, choose_device

SHUTDOWN_LIMIT_S = 15.0
LEARNER_CPUS = GENERATOR_CPUS = 1


@contextlib.contextmanager
def ray_connection(namespace: str) -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS names, else start Ray here; stop only what was started."""
    address = os.environ.get("RAY_ADDRESS", "")
    own = {} if address else {"include_dashboard": True}
    # The actors' logs stay in the dashboard: the job's own log is for what a person follows.
    ray.init(address=address or "local", namespace=namespace, log_to_driver=False, **own)
    try:
        yield
    finally:
        ray.shutdown()


def dashboard_url() -> str:
    """Address of the dashboard of the joined cluster."""
    url = ray._private.worker.get_dashboard_url()  # Ray prints this at start and has no public call for it
    return f"http://{url}" if url else ""


def plan_device(recipe: Recipe) -> Device:
    """Choose the device for the joined cluster.

    Raises:
        RecipeError: the cluster has less than the recipe asks for; wanted stands beside available.
    """
    resources = ray.cluster_resources()
    num_engines = recipe.learner.num_ranks + recipe.generator.replicas
    wanted, available = LEARNER_CPUS * recipe.learner.num_ranks + GENERATOR_CPUS * recipe.generator.replicas, resources.get("CPU", 0)
    if wanted > available:
        raise RecipeError(
            f"the run needs {wanted} CPUs (learner.num_ranks {recipe.learner.num_ranks} + generator.replicas {recipe.generator.replicas}), "
            f"the cluster has {available:g}: lower learner.num_ranks or generator.replicas, or add a node."
        )
    return choose_device(recipe.device.kind, num_gpus=resources.get("GPU", 0), num_engines=num_engines)


@dataclass
class Placement:
    """One run's actors, from their creation to their end."""

    recipe: Recipe
    device: Device
    _ranks: list[Any] = field(default_factory=list)
    _rank_group: Any = None
    _preloads: list[Any] = field(default_factory=list)
    _learner: RemoteLearner | None = None
    _generators: list[Any] = field(default_factory=list)
    _scorers: list[Any] = field(default_factory=list)

    def create(self) -> None:
        """Create every actor and let the engines be imported, all side by side; returns at once."""
        gpus = self.device.gpus_per_engine
        # The learner first, so that it gets the first GPUs and the generators the ones after them.
        self._create_ranks(gpus)
        for index in range(self.recipe.generator.replicas):
            generator = _create(Generator, f"generator-{index}", num_cpus=GENERATOR_CPUS, num_gpus=gpus, max_concurrency=64)
            generator.preload.remote(self.recipe, self.device)
            self._generators.append(generator)
        scorer, functions = self.recipe.scorer, function_sources(self.recipe)
        for index in range(scorer.num_actors):
            arguments = (scorer.limit_s, int(scorer.memory_gib * 2**30), scorer.num_processes, functions)
            self._scorers.append(_create(Scorer, f"scorer-{index}", *arguments, num_cpus=0, num_gpus=0, max_concurrency=4))

    def _create_ranks(self, gpus: int) -> None:
        """One learner actor a rank, reserved together: all or none, and close to each other."""
        num_ranks = self.recipe.learner.num_ranks
        self._rank_group = placement_group([{"CPU": LEARNER_CPUS, **({"GPU": gpus} if gpus else {})}] * num_ranks, strategy="PACK")
        for rank in range(num_ranks):
            place = PlacementGroupSchedulingStrategy(self._rank_group, placement_group_bundle_index=rank)
            options = {"num_cpus": LEARNER_CPUS, "num_gpus": gpus, "scheduling_strategy": place}
            self._ranks.append(_create(Learner, f"learner-{rank}", rank, num_ranks, **options))
        rendezvous = self._ranks[0].__ray_call__.remote(_rendezvous)
        self._preloads = [handle.preload.remote(self.recipe, self.device, rendezvous) for handle in self._ranks]

    async def start(self, model_folder: str, quarantine_path: str = "") -> tuple[Actors, dict[str, str]]:
        """Start the engines side by side on a model folder. Returns them with the facts that environment.json keeps.

        Args:
            model_folder: what generators and learner open.
            quarantine_path: where the scorers note inputs that ran into a limit; "" for nowhere.

        Raises:
            ActorError: an engine, or a rank that others wait for, did not start within driver.start_limit_s.
            RuntimeError: an engine has other GPUs than it was given.
        """
        recipe, limit_s = self.recipe, self.recipe.driver.start_limit_s
        await asyncio.gather(*(answer(each, f"learner-{rank}", "preload", limit_s=limit_s) for rank, each in enumerate(self._preloads)))
        self._check_gpus()
        self._learner = learner = RemoteLearner(self._ranks, recipe)
        generators = [RemoteGenerator(handle, f"generator-{index}", recipe) for index, handle in enumerate(self._generators)]
        scorers = [RemoteScorer(handle, f"scorer-{index}", recipe) for index, handle in enumerate(self._scorers)]
        learner_facts, *others = await asyncio.gather(
            learner.on_all_ranks("setup", recipe, self.device, limit_s=limit_s),
            *(call(each.handle, each.name, "setup", recipe, self.device, model_folder, limit_s=limit_s) for each in generators),
            *(call(each.handle, each.name, "setup", quarantine_path, limit_s=limit_s) for each in scorers),
        )
        actors = Actors(learner=learner, generators=tuple(generators), scorers=tuple(scorers), stop_token_ids=others[0].stop_token_ids)
        return actors, learner_facts

    def _check_gpus(self) -> None:
        """Each engine must see exactly the GPUs that were reserved for it, and no GPU may have two engines."""
        learners = {f"learner-{rank}": handle for rank, handle in enumerate(self._ranks)}
        engines = learners | {f"generator-{index}": handle for index, handle in enumerate(self._generators)}
        answers = [handle.__ray_call__.remote(_node_and_gpus) for handle in engines.values()]
        try:
            found = dict(zip(engines, ray.get(answers, timeout=self.recipe.driver.start_limit_s), strict=True))
        except ray.exceptions.GetTimeoutError as error:
            raise ActorError(f"{', '.join(engines)} were not all there within driver.start_limit_s") from error
        taken = [(node, gpu) for node, gpus in found.values() for gpu in gpus]
        wrong_number = any(len(gpus) != self.device.gpus_per_engine for _, gpus in found.values())
        if wrong_number or len(set(taken)) != len(taken):
            raise RuntimeError(f"each engine needs {self.device.gpus_per_engine} GPUs of its own, Ray gave (node, GPUs): {found}")

    async def stop(self) -> None:
        """Let each actor end its processes, then end the actors; one that does not answer is ended all the same."""
        handles = [*self._ranks, *self._generators, *self._scorers]
        endings = (call(handle, "actor", "shutdown", limit_s=SHUTDOWN_LIMIT_S) for handle in handles)
        await asyncio.gather(*endings, return_exceptions=True)
        for handle in handles:
            ray.kill(handle)
        if self._learner is not None:
            self._learner.remove_published()
        if self._rank_group is not None:
            remove_placement_group(self._rank_group)


@contextlib.asynccontextmanager
async def placement(recipe: Recipe, device: Device) -> AsyncIterator[Placement]:
    """Create a run's actors; they are gone when the block ends, however it ends."""
    placed = Placement(recipe, device)
    try:
        placed.create()
        yield placed
    finally:
        await placed.stop()


def _create(actor_class: type, name: str, *arguments: Any, **options: Any) -> Any:
    return ray.remote(actor_class).options(name=name, **options).remote(*arguments)


def _rendezvous(_: Any) -> Rendezvous:
    return Rendezvous(ray.util.get_node_ip_address(), free_port())


def _node_and_gpus(_: Any) -> tuple[str, list[int]]:
    return ray.get_runtime_context().get_node_id(), ray.get_gpu_ids()
