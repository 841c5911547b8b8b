"""The driver's own cost: the real loops on real Ray actors that only sleep, beside a simulation in which only the sleeping takes time.

`python tests/benchmarks/stub_async.py` takes about 5 minutes, almost all of it asleep. 100 steps each at max_staleness 0, 1, 2 and 4;
generation times are log-normal with a long tail, the same for the actors and for the simulation (stub_simulation.py).

The control plane's cost is processor time of the event loop's thread a group of 8 responses of 32 tokens. It is measured twice: with the
stubs as plain objects in the driver's process, which is the driver's own, and as Ray actors; the difference is what Ray takes in that
thread for two calls a group and their answers.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ray
from rich.console import Console
from rich.table import Table
from stub_simulation import StubTimes, simulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.remote import RemoteGenerator, RemoteLearner, RemoteScorer
from mathrl_ray.config import Recipe
from mathrl_ray.driver.loops import PolicyLoops
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
    Trajectory,
    WeightManifest,
    WeightMeeting,
)

NUM_STEPS, BATCH_GROUPS, GROUP_SIZE, NUM_TOKENS = 100, 8, 8, 32
NUM_GENERATORS, CAPACITY_GROUPS = 2, 4
GENERATION_MEDIAN_S, GENERATION_SIGMA, SCORING_S, SYNC_S = 0.22, 0.7, 0.02, 0.03
TRAIN_S = (0.24, 0.4)
STALENESS = (0, 1, 2, 4)
WARM_UP = [GenerationRequest("stub-1/0", 0, "warm-up", (1,), 0, SamplingSettings(1.0, NUM_TOKENS))]
TARGETS = {"wall_over_simulation": 1.05, "control_plane_ms_a_group": 1.0}


def made_up_times(seed: int) -> StubTimes:
    draw = random.Random(seed)
    num_groups = (NUM_STEPS + max(STALENESS)) * BATCH_GROUPS
    generation_s = [GENERATION_MEDIAN_S * draw.lognormvariate(0, GENERATION_SIGMA) for _ in range(num_groups)]
    return StubTimes(generation_s, [SCORING_S] * num_groups, [draw.uniform(*TRAIN_S) for _ in range(NUM_STEPS)], SYNC_S)


class StubGenerator:
    """Answers after the time of the request's group."""

    def __init__(self, generation_s: Sequence[float], name: str = "") -> None:
        self.name, self._generation_s, self._version = name, generation_s, 0

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        version = self._version
        step, index = requests[0].group_id.partition("-")[2].split("/")
        await asyncio.sleep(self._generation_s[(int(step) - 1) * BATCH_GROUPS + int(index)])
        ids, logprobs = tuple(range(NUM_TOKENS)), (-0.5,) * NUM_TOKENS
        return [Completion(str(request.sample % 2), ids, logprobs, ((version, NUM_TOKENS),), "stop") for request in requests]

    async def apply_weights(self, manifest: WeightManifest) -> float:
        await asyncio.sleep(SYNC_S)
        self._version = manifest.policy_version
        return SYNC_S

    async def engine_statistics(self) -> EngineStatistics:
        return EngineStatistics(0.0, 0, 0, 0, 0, 0)


class StubLearner:
    def __init__(self, train_s: Sequence[float]) -> None:
        self._train_s = iter(train_s)

    async def train_policy(self, batch: Sequence[Trajectory], sampling: SamplingSettings) -> PolicyUpdate:
        await asyncio.sleep(next(self._train_s))
        return PolicyUpdate({"loss": 0.0}, tuple(trajectory.completion.logprobs for trajectory in batch), 1)

    async def response_statistics(self, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        return [ResponseStatistics((-0.5,) * len(sequence.response_ids), 0.1) for sequence in sequences]

    async def invite(self, num_generators: int) -> WeightMeeting:
        return WeightMeeting("shared_memory")

    async def publish(self, policy_version: int) -> WeightManifest:
        return WeightManifest(policy_version, "", ())

    async def send_weights(self, manifest: WeightManifest) -> float:
        return 0.0

    async def save_checkpoint(self, folder: str) -> dict[str, float]:
        Path(folder, "trainer").mkdir()
        return {}


class StubScorer:
    name = "scorer-0"

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Grade]:
        await asyncio.sleep(SCORING_S)
        return [Grade(1.0, float(request.response), float(request.response), "correct", request.response) for request in requests]


@dataclass(frozen=True, slots=True)
class Measured:
    wall_s: float
    simulated_s: float
    cpu_ms: float
    """Of the event loop's thread, a group."""
    staleness_max: float
    overlap_efficiency: float


def recipe(folder: Path, max_staleness: int) -> Recipe:
    return recipe_for(
        folder,
        run={"name": f"stub-{max_staleness}"},
        generator={"max_sequences": CAPACITY_GROUPS * GROUP_SIZE, "replicas": NUM_GENERATORS},
        driver={"max_staleness": max_staleness, "canary_every": 10 * NUM_STEPS},
        grpo={"num_steps": NUM_STEPS, "prompts_per_step": BATCH_GROUPS, "group_size": GROUP_SIZE},
        eval={"num_problems": 1},
    )


def actors(recipe: Recipe, times: StubTimes) -> Actors:
    """The stubs behind the driver's own remote classes."""

    def stub(actor_class: type, *arguments: object, **options: object) -> object:
        return ray.remote(actor_class).options(num_cpus=0, **options).remote(*arguments)

    def generator() -> object:
        return stub(StubGenerator, times.generation_s, max_concurrency=64)

    return Actors(
        learner=RemoteLearner([stub(StubLearner, times.train_s)], recipe),
        generators=tuple(RemoteGenerator(f"generator-{index}", generator, recipe) for index in range(NUM_GENERATORS)),
        scorers=(RemoteScorer("scorer-0", lambda: stub(StubScorer, max_concurrency=64), recipe),),
        stop_token_ids=(0,),
    )


def actors_here(times: StubTimes) -> Actors:
    """The stubs themselves."""
    generators = tuple(StubGenerator(times.generation_s, f"generator-{index}") for index in range(NUM_GENERATORS))
    return Actors(StubLearner(times.train_s), generators, (StubScorer(),), stop_token_ids=(0,))


async def measure(folder: Path, times: StubTimes, max_staleness: int, *, here: bool) -> Measured:
    asked = recipe(folder, max_staleness)
    given = actors_here(times) if here else actors(asked, times)
    run = make_run(asked, given, num_train_problems=512)
    await asyncio.gather(*(generator.generate(WARM_UP) for generator in given.generators))  # until the actors are there
    steps: list[dict[str, float]] = []
    began_s, cpu_began_s = time.perf_counter(), time.thread_time()
    await PolicyLoops(run, "stub", NUM_STEPS, lambda step, groups, metrics: steps.append(metrics)).train()
    wall_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - cpu_began_s
    simulated_s = simulate(
        times,
        num_steps=NUM_STEPS,
        batch_groups=BATCH_GROUPS,
        max_staleness=max_staleness,
        num_generators=NUM_GENERATORS,
        capacity_groups=CAPACITY_GROUPS,
    )
    efficiency = sum(step["overlap_efficiency"] * step["step_s"] for step in steps) / sum(step["step_s"] for step in steps)
    staleness_max = max(step["staleness_max"] for step in steps)
    return Measured(wall_s, simulated_s, 1000 * cpu_s / (NUM_STEPS * BATCH_GROUPS), staleness_max, efficiency)


def main() -> int:
    ray.init(address="local", num_cpus=2, namespace="stub", log_to_driver=False, include_dashboard=False)
    times = made_up_times(seed=0)

    def measured(max_staleness: int, *, here: bool) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(measure(Path(folder), times, max_staleness, here=here))

    found = {staleness: measured(staleness, here=False) for staleness in STALENESS}
    ray.shutdown()
    own = {staleness: measured(staleness, here=True) for staleness in STALENESS}
    table = Table(title=f"{NUM_STEPS} steps of {BATCH_GROUPS} groups of {GROUP_SIZE}", title_justify="left")
    for name in ("max_staleness", "wall", "simulation", "ratio", "driver + Ray, a group", "staleness", "busiest role"):
        table.add_column(name, justify="right", no_wrap=True)
    for staleness, each in found.items():
        ratio, own_ms = each.wall_s / each.simulated_s, own[staleness].cpu_ms
        shown = (f"{each.wall_s:.2f} s", f"{each.simulated_s:.2f} s", f"{ratio:.3f}", f"{own_ms:.2f} + {each.cpu_ms - own_ms:.2f} ms")
        table.add_row(str(staleness), *shown, f"{each.staleness_max:.0f}", f"{100 * each.overlap_efficiency:.0f} %")
    Console(width=120).print(table)
    figure = {
        "wall_over_simulation": {str(staleness): round(each.wall_s / each.simulated_s, 3) for staleness, each in found.items()},
        "control_plane_ms_a_group": {str(staleness): round(each.cpu_ms, 2) for staleness, each in own.items()},
        "with_ray_ms_a_group": {str(staleness): round(each.cpu_ms, 2) for staleness, each in found.items()},
    }
    ok = all(max(figure[name].values()) <= target for name, target in TARGETS.items())
    print(json.dumps({"name": "stub_async", "figure": figure, "target": TARGETS, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
