"""What overlap is worth: the real engines, generator on one core and learner on the other, asynchronous beside synchronous.

`python tests/benchmarks/pinned_async.py` takes about 6 minutes on two cores. Same engines, same recipe, same pinning, by turns (A B B A,
five pairs, median of the ratios); only driver.max_staleness differs. The recipe balances the work of the two roles, without which nothing
can overlap: the bound is (generation + training) / the larger of the two. For honesty also the same synchronous run with both cores for
both roles, which is what one would do without the driver.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from samples import make_run, recipe_for
from transformers import AutoTokenizer

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.placement import placement, plan_device
from mathrl_ray.config import Recipe
from mathrl_ray.data.tiny_model import ensure_base_model
from mathrl_ray.driver.canary import begin_stage
from mathrl_ray.driver.loops import PolicyLoops

NUM_STEPS, NUM_PAIRS, STALENESS = 16, 5, 2
GENERATOR_CORE, LEARNER_CORE = 0, 1
TARGETS = {"async_over_sync_pinned": 1.5}
MODELS = Path(tempfile.gettempdir()) / "mathrl-benchmark-models"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of NUM_STEPS steps."""

    step_s: float
    generator_s: float
    learner_s: float
    efficiency: float


def recipe(folder: Path, max_staleness: int, num_threads: int) -> Recipe:
    return recipe_for(
        folder,
        run={"name": "pinned"},
        driver={"max_staleness": max_staleness, "canary_every": 10 * NUM_STEPS},
        generator={"num_threads": num_threads, "max_sequences": 256},
        learner={"num_threads": num_threads},
        grpo={"num_steps": NUM_STEPS, "prompts_per_step": 16, "group_size": 8},
        reward={"format": 0.5},
        eval={"num_problems": 1},
    )


def pin(actor: str, core: int) -> None:
    """Bind every thread of an actor and of its engine's processes to one core."""

    def bind(_: object) -> None:
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, {core})

    ray.get(ray.get_actor(actor).__ray_call__.remote(bind))


async def measure(asked: Recipe, actors: Actors, model: Path) -> Measured:
    run = make_run(asked, actors, tokenizer=AutoTokenizer.from_pretrained(model), model_folder=str(model), num_train_problems=512)
    await begin_stage(run, "grpo", learning_rate=1e-4, num_optimizer_steps=NUM_STEPS)
    steps: list[dict[str, float]] = []
    began_s = time.perf_counter()
    await PolicyLoops(run, "grpo", NUM_STEPS, lambda step, groups, metrics: steps.append(metrics)).train()
    step_s = (time.perf_counter() - began_s) / NUM_STEPS
    means = [statistics.fmean(step[name] for step in steps) for name in ("generator_work_s", "learner_work_s", "overlap_efficiency")]
    return Measured(step_s, *means)


async def by_turns(folder: Path, model: Path) -> tuple[list[Measured], list[Measured]]:
    """Asynchronous and synchronous runs on the same pinned engines, in the order A B B A ..."""
    first = recipe(folder, STALENESS, num_threads=1)
    async with placement(first, plan_device(first)) as placed:
        actors, _ = await placed.start(str(model))
        pin("generator-0", GENERATOR_CORE)
        pin("learner-0", LEARNER_CORE)
        kinds = {"async": first, "sync": recipe(folder, 0, num_threads=1)}
        for asked in kinds.values():
            await measure(asked, actors, model)  # warm
        found: dict[str, list[Measured]] = {"async": [], "sync": []}
        for pair in range(NUM_PAIRS):
            for kind in ("async", "sync") if pair % 2 == 0 else ("sync", "async"):
                found[kind].append(await measure(kinds[kind], actors, model))
    return found["async"], found["sync"]


async def with_both_cores(folder: Path, model: Path) -> list[Measured]:
    """Synchronous, with two threads and both cores for each role."""
    asked = recipe(folder, 0, num_threads=2)
    async with placement(asked, plan_device(asked)) as placed:
        actors, _ = await placed.start(str(model))
        return [await measure(asked, actors, model) for _ in range(4)][1:]


def main() -> int:
    model = ensure_base_model(MODELS, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        ray.init(address="local", num_cpus=2, namespace="pinned", log_to_driver=False, include_dashboard=False)
        asynchronous, synchronous = asyncio.run(by_turns(Path(folder), model))
        both_cores = asyncio.run(with_both_cores(Path(folder), model))
        ray.shutdown()
    ratios = [slow.step_s / fast.step_s for fast, slow in zip(asynchronous, synchronous, strict=True)]
    table = Table(title=f"{NUM_STEPS} steps a run, {NUM_PAIRS} pairs, medians", title_justify="left")
    for name in ("run", "step", "generator", "learner", "busiest role"):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    rows = {f"asynchronous, staleness {STALENESS}": asynchronous, "synchronous": synchronous, "synchronous, both cores": both_cores}
    for name, runs in rows.items():
        table.add_row(
            name,
            *(f"{median(runs, field):.2f} s" for field in ("step_s", "generator_s", "learner_s")),
            f"{100 * median(runs, 'efficiency'):.0f} %",
        )
    Console().print(table)
    generator_s, learner_s = median(synchronous, "generator_s"), median(synchronous, "learner_s")
    figure = {
        "async_over_sync_pinned": round(statistics.median(ratios), 3),
        "smallest_and_largest_pair": [round(min(ratios), 3), round(max(ratios), 3)],
        "bound_by_balance": round((generator_s + learner_s) / max(generator_s, learner_s), 3),
        "async_over_sync_with_both_cores": round(median(both_cores, "step_s") / median(asynchronous, "step_s"), 3),
    }
    ok = figure["async_over_sync_pinned"] >= TARGETS["async_over_sync_pinned"]
    print(json.dumps({"name": "pinned_async", "figure": figure, "target": TARGETS, "ok": ok}))
    return 0 if ok else 1


def median(runs: Sequence[Measured], field: str) -> float:
    return statistics.median(getattr(each, field) for each in runs)


if __name__ == "__main__":
    sys.exit(main())
