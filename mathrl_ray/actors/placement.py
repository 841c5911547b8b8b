"""From a recipe to named, pinned, running actors, and their end.

Called by entry.py. Knows Ray and the actor classes; the engines are imported by the actors themselves.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address  # ray.init's own; no public call says where `auto` leads
from ray.experimental.internal_kv import _internal_kv_get  # where Ray's job manager notes jobs; its client would need the dashboard
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mathrl_ray.actors.function_source import FunctionSource
from mathrl_ray.actors.generator import Generator
from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.learner import Learner
from mathrl_ray.actors.own_rewards import function_sources
from mathrl_ray.actors.process_group import Rendezvous, free_port
from mathrl_ray.actors.ray_address import check_address
from mathrl_ray.actors.ray_token import ensure_token, is_authentication_on
from mathrl_ray.actors.remote import (
    SHUTDOWN_LIMIT_S,
    Limit,
    Place,
    PlacedActor,
    RemoteGenerator,
    RemoteLearner,
    RemoteScorer,
    Replaceable,
    answer,
    on_machine_of,
)
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.actors.watchdog import Watchdog
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.device import Device, choose_device

LEARNER_CPUS = GENERATOR_CPUS = 1
MAX_CALLS = 1000
"""Calls that a generator or scorer works on at once. More than a run has: new weights must not wait behind prompts in Ray's queue, and what
must wait does so inside the actor."""


@contextlib.contextmanager
def ray_connection(namespace: str) -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS names, else start Ray here; stop only what was started.

    Raises:
        RecipeError: nothing answers at RAY_ADDRESS, or RAY_AUTH_MODE is neither token nor disabled.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    own: dict[str, Any] = {}
    watchdog: Watchdog | None = None
    is_authentication_on()
    if address:
        check_address(address, canonicalize_bootstrap_address)
    else:
        ensure_token()
        watchdog = Watchdog()  # Ray's agents outlive a killed driver by a minute
        own = {"include_dashboard": True, "dashboard_host": "127.0.0.1"}  # whoever reaches the dashboard can run code
    # The actors' logs stay in the dashboard: the job's own log is for what a person follows.
    ray.init(address=address or "local", namespace=namespace, log_to_driver=False, **own)
    if watchdog is not None:
        watchdog.note()
    try:
        yield
    finally:
        ray.shutdown()


def free_namespace(name: str) -> str:
    """The name, or name-2, -3, ...: the first in which no actor of the joined cluster has a name.

    A run of the same name in another root may have it, or what is left of this one, for the seconds that Ray needs to end it after a kill.
    """
    taken = {actor["namespace"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    candidates = (f"{name}-{number}" if number > 1 else name for number in itertools.count(1))
    return next(candidate for candidate in candidates if candidate not in taken)


def cluster_address() -> str:
    """Where another process joins the joined cluster, as RAY_ADDRESS takes it."""
    return str(ray.get_runtime_context().gcs_address)


def cluster_total() -> dict[str, float]:
    """CPUs, GPUs and what else all nodes of the joined cluster have."""
    return dict(ray.cluster_resources())


def cluster_free() -> dict[str, float]:
    """What nobody has reserved of that at present."""
    return dict(ray.available_resources())


def entrypoint_cpus() -> float:
    """What `ray job submit --entrypoint-num-cpus` keeps for the process of this job for as long as it runs; 0 for any other process."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}").get("metadata", {}).get("job_submission_id", "")
    noted = _internal_kv_get(f"_ray_internal_job_info_{job}", namespace=b"job") if job else None
    return float(json.loads(noted).get("entrypoint_num_cpus") or 0) if noted else 0.0


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
    num_nodes = sum(node["Alive"] for node in ray.nodes())
    return plan_for(recipe, num_cpus=resources.get("CPU", 0), num_gpus=resources.get("GPU", 0), num_nodes=num_nodes)


def plan_for(recipe: Recipe, *, num_cpus: float, num_gpus: float, num_nodes: int = 1) -> Device:
    """As `plan_device`, for a cluster that has these, or would have them once Ray is started."""
    num_engines = recipe.learner.num_ranks + recipe.generator.replicas
    wanted, available = engine_cpus(recipe), num_cpus
    if wanted > available:
        raise RecipeError(
            f"the run needs {wanted} CPUs (learner.num_ranks {recipe.learner.num_ranks} + generator.replicas {recipe.generator.replicas}), "
            f"the cluster has {available:g}: lower learner.num_ranks or generator.replicas, or add a node."
        )
    device = choose_device(
        recipe.device.kind,
        num_gpus=num_gpus,
        num_engines=num_engines,
        weight_transport=recipe.driver.weight_transport,
        placement=recipe.device.placement,
        num_nodes=num_nodes,
    )
    if recipe.generator.sleep and not device.shares_gpu:
        raise RecipeError(
            f"generator.sleep = true is for a GPU that learner and generator share; here {device.reason}. Set it to false, or use a GPU."
        )
    return device


def engine_cpus(recipe: Recipe) -> int:
    """CPUs that a run's engines reserve."""
    return LEARNER_CPUS * recipe.learner.num_ranks + GENERATOR_CPUS * recipe.generator.replicas


def engine_threads(recipe: Recipe) -> int:
    """CPU threads of a run's engines: more than Ray reserves CPUs, where num_threads is above 1."""
    learner, generator = recipe.learner, recipe.generator
    return learner.num_ranks * learner.num_threads + generator.replicas * generator.num_threads


def engine_gpus(recipe: Recipe, device: Device) -> float:
    """And GPUs: one each, or one together."""
    return 1.0 if device.shares_gpu else device.gpus_per_engine * (recipe.learner.num_ranks + recipe.generator.replicas)


@dataclass
class Placement:
    """One run's actors, from their creation to their end."""

    recipe: Recipe
    device: Device
    namespace: str | None = None
    """Of the actors' names; by default that of the connection."""
    shutdown_limit_s: float = SHUTDOWN_LIMIT_S
    """What each actor gets to end by itself, in `stop`."""
    _ranks: list[PlacedActor] = field(default_factory=list)
    _rank_group: Any = None
    _preloads: list[Any] = field(default_factory=list)
    _learner: RemoteLearner | None = None
    _generators: list[RemoteGenerator] = field(default_factory=list)
    _scorers: list[RemoteScorer] = field(default_factory=list)
    _places: dict[str, Place] = field(default_factory=dict)
    """Where each engine's present actor is."""

    def create(self) -> None:
        """Create every actor and let the engines be imported, all side by side; returns at once."""
        # The learner first, so that it gets the first GPUs and the generators the ones after them.
        self._create_ranks()
        for index in range(self.recipe.generator.replicas):
            name = f"generator-{index}"
            generator = RemoteGenerator(name, functools.partial(self._new_generator, name), self.recipe)
            generator.moved = self._moved
            generator.handle.preload.remote(self.recipe, self.device)  # a later one's setup() does that by itself
            self._generators.append(generator)
        functions = function_sources(self.recipe)
        for index in range(self.recipe.scorer.num_actors):
            name = f"scorer-{index}"
            self._scorers.append(RemoteScorer(name, functools.partial(self._new_scorer, name, functions), self.recipe))

    def _new_generator(self, name: str) -> Any:
        options = {"num_cpus": GENERATOR_CPUS, "num_gpus": self.device.gpus_per_engine, "max_concurrency": MAX_CALLS}
        if self.device.shares_gpu:
            options["scheduling_strategy"] = self._bundle(0)
        return self._create(Generator, name, **options)

    def _new_scorer(self, name: str, functions: Sequence[FunctionSource]) -> Any:
        scorer = self.recipe.scorer
        arguments = (scorer.limit_s, int(scorer.memory_gib * 2**30), scorer.num_processes, functions)
        return self._create(Scorer, name, *arguments, num_cpus=0, num_gpus=0, max_concurrency=MAX_CALLS)

    def _create_ranks(self) -> None:
        """One learner actor a rank, reserved together: all or none, and close to each other; with the generator where it shares a GPU."""
        num_ranks, gpus = self.recipe.learner.num_ranks, self.device.gpus_per_engine
        bundle: dict[str, float] = {"CPU": LEARNER_CPUS, "GPU": gpus} if gpus else {"CPU": LEARNER_CPUS}
        if self.device.shares_gpu:
            bundle = {"CPU": LEARNER_CPUS + GENERATOR_CPUS, "GPU": 1}
        self._rank_group = placement_group([bundle] * num_ranks, strategy="PACK")
        for rank in range(num_ranks):
            name, place = f"learner-{rank}", self._bundle(rank)
            learner = self._create(Learner, name, rank, num_ranks, num_cpus=LEARNER_CPUS, num_gpus=gpus, scheduling_strategy=place)
            self._ranks.append(PlacedActor(learner, name))
        rendezvous = self._ranks[0].handle.__ray_call__.remote(_rendezvous)
        self._preloads = [rank.handle.preload.remote(self.recipe, self.device, rendezvous) for rank in self._ranks]

    def _create(self, actor_class: type, name: str, *arguments: Any, **options: Any) -> Any:
        return ray.remote(actor_class).options(name=name, namespace=self.namespace, **options).remote(*arguments)

    def _bundle(self, index: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._rank_group, placement_group_bundle_index=index)

    async def start(self, model_folder: str, quarantine_path: str = "") -> tuple[Actors, dict[str, str]]:
        """Start the engines side by side on a model folder. Returns them with the facts that environment.json keeps.

        Args:
            model_folder: what generators and learner open.
            quarantine_path: where the scorers note inputs that ran into a limit; "" for nowhere.

        Raises:
            ActorError: an engine, or a rank that others wait for, did not start within driver.start_limit_s.
            RuntimeError: an engine has other GPUs than it was given.
        """
        recipe = self.recipe
        limit = Limit(recipe.driver.start_limit_s, "driver.start_limit_s")
        engines: list[PlacedActor | Replaceable] = [*self._ranks, *self._generators]
        places = await asyncio.gather(*(each.locate(limit) for each in engines))
        self._places = {engine.name: place for engine, place in zip(engines, places, strict=True)}
        self._check_gpus()
        self._check_transport()
        await self._check_model(model_folder)
        await asyncio.gather(*(each.locate(limit) for each in self._scorers))
        preloads = zip(self._ranks, self._preloads, strict=True)
        await asyncio.gather(*(answer(reference, rank.name, "preload", limit=limit) for rank, reference in preloads))
        self._learner = learner = RemoteLearner([rank.handle for rank in self._ranks], recipe)
        if self.device.weight_transport == "object_store":
            learner.carry_to(self._generators, self._places["learner-0"].node)
        self._let_make_room(learner)
        # The learner takes no memory of a GPU before `start_stage`: an engine that is measuring what is free would not bear it.
        learner_facts, *others = await asyncio.gather(
            learner.on_all_ranks("setup", recipe, self.device, limit=limit),
            *(each.set_up(recipe, self.device, model_folder) for each in self._generators),
            *(each.set_up(quarantine_path) for each in self._scorers),
        )
        stop_token_ids = others[0].stop_token_ids
        return Actors(learner, tuple(self._generators), tuple(self._scorers), stop_token_ids), learner_facts

    def _let_make_room(self, learner: RemoteLearner) -> None:
        """On one GPU each engine gives up what the other needs now."""
        if self.recipe.generator.sleep:
            learner.before_training = self._put_generators_to_sleep
        if self.device.shares_gpu:
            for generator in self._generators:
                generator.before_restart = learner.release_memory

    async def _put_generators_to_sleep(self) -> None:
        await asyncio.gather(*(each.sleep() for each in self._generators))

    def _moved(self, name: str, place: Place | None) -> None:
        """A generator has left its place (None), or its replacement has one, perhaps on another node or GPU."""
        self._places.pop(name, None)
        if place is not None:
            self._places[name] = place
            self._check_gpus()
            self._check_transport()

    def _check_gpus(self) -> None:
        if not gpus_are_right(self._places.values(), self.device.gpus_per_engine):
            found = {name: (place.node, place.gpus) for name, place in self._places.items()}
            whose = "one GPU that all share" if self.device.shares_gpu else f"{self.device.gpus_per_engine:g} GPUs of its own"
            raise RuntimeError(f"each engine needs {whose}, Ray gave (node, GPUs): {found}")

    def _check_transport(self) -> None:
        """
        Raises:
            RecipeError: weights go through shared memory, which reaches one node only.
        """
        nodes = {name: place.node for name, place in self._places.items()}
        away = sorted(name for name, node in nodes.items() if name.startswith("generator") and node != nodes["learner-0"])
        if away and self.device.weight_transport == "shared_memory":
            raise RecipeError(
                f"{', '.join(away)} came to another node than learner-0, and driver.weight_transport is shared_memory "
                f"({self.device.transport_reason}), which reaches one node only: set it to 'auto' or 'object_store', or lower "
                "generator.replicas so that all fit on one node."
            )

    async def _check_model(self, folder: str) -> None:
        """
        Raises:
            RecipeError: an engine's node does not have the model's folder; it is named.
        """
        engines = {name: place for name, place in self._places.items() if not name.startswith("scorer")}
        found = await asyncio.gather(*(on_machine_of(place, _is_there, folder) for place in engines.values()))
        hosts = {node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in ray.nodes()}
        absent = {name: hosts[place.node] for (name, place), there in zip(engines.items(), found, strict=True) if there is False}
        if absent:
            raise RecipeError(absent_model_text(folder, absent))

    async def stop(self) -> None:
        """Let each actor end its processes, then end the actors; one that does not answer is ended all the same."""
        actors: list[PlacedActor | Replaceable] = [*self._ranks, *self._generators, *self._scorers]
        await asyncio.gather(*(each.end(self.shutdown_limit_s) for each in actors), return_exceptions=True)
        if self._learner is not None:
            self._learner.remove_published()
        if self._rank_group is not None:
            remove_placement_group(self._rank_group)


@contextlib.asynccontextmanager
async def placement(recipe: Recipe, device: Device, namespace: str | None = None) -> AsyncIterator[Placement]:
    """Create a run's actors; they are gone when the block ends, however it ends."""
    placed = Placement(recipe, device, namespace)
    try:
        placed.create()
        yield placed
    finally:
        await placed.stop()


def gpus_are_right(places: Collection[Place], gpus_per_engine: float) -> bool:
    """Whether each engine sees exactly the GPUs that were reserved for it: its own, or the same one as the others where it got a part."""
    taken = [(place.node, gpu) for place in places for gpu in place.gpus]
    if any(len(place.gpus) != ceil(gpus_per_engine) for place in places):
        return False
    return len(set(taken)) <= 1 if 0 < gpus_per_engine < 1 else len(set(taken)) == len(taken)


def absent_model_text(folder: str, absent: Mapping[str, str]) -> str:
    """
    Args:
        folder: of the model.
        absent: engine -> the node that does not have it.
    """
    told = ", ".join(f"{name} is on {node}" for name, node in sorted(absent.items()))
    return (
        f"model.path = {folder} is not there on every node: {told}, which does not have it. Put it into a folder that all nodes see; of a "
        "hub's name set HF_HOME to such a folder where the nodes' Ray is started and for the job itself."
    )


def _is_there(folder: str) -> bool:
    return Path(folder).is_dir()


def _rendezvous(_: Any) -> Rendezvous:
    return Rendezvous(ray.util.get_node_ip_address(), free_port())
