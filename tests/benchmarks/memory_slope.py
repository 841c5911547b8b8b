"""Behaviour 25: does anything grow? 200 asynchronous steps with the real engines, the memory of every process and of the object store.

`python tests/benchmarks/memory_slope.py` takes about 3 minutes; a number of steps and "default" may follow. Every process of the run is
looked at after each step (unique set size: what would be free if it ended). The slope is Theil and Sen's over the steps after the first
60, in which caches fill; flat means at most 20 KiB a step, 4 MiB over the whole run, for each process.

What is wanted is the memory in use, and malloc keeps freed memory: up to 30 MiB of it come and go with the lengths of the batches, in
which a slope of 20 KiB is not to be seen. So malloc is told to give back what is freed, unless "default" is given.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil
import ray
from ray._private import internal_api  # no public call says how full the object store is
from rich.console import Console
from rich.table import Table
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from samples import make_run, recipe_for
from transformers import AutoTokenizer

from mathrl_ray.actors.placement import placement, plan_device
from mathrl_ray.data.tiny_model import ensure_base_model
from mathrl_ray.driver.canary import begin_stage
from mathrl_ray.driver.loops import PolicyLoops

NUM_STEPS, NUM_FILLING = 200, 60
GIVES_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": str(2**20), "MALLOC_MMAP_THRESHOLD_": str(2**17)}
"""Read by malloc when a process starts."""
CALLS_KEPT = 1000
"""Ray's gcs_server keeps the last 100,000 calls for the dashboard, 1.3 KiB each: it would fill up for 2,500 steps."""
TARGET_KIB_A_STEP = 20.0
MODELS = Path(tempfile.gettempdir()) / "mathrl-benchmark-models"


def processes() -> Iterator[tuple[str, int, int]]:
    """(name, pid, unique bytes) of the driver, of Ray's processes and of all that they started."""
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            title = (process.cmdline() or ["?"])[0].rsplit("/", 1)[-1]
            name = "driver" if process.pid == me.pid else title.partition(".")[0]
            yield name, process.pid, process.memory_full_info().uss
        except psutil.Error:  # it has ended meanwhile
            continue


def object_store_bytes() -> int:
    state = internal_api.get_state_from_address(None)
    return int(internal_api.get_memory_info_reply(state).store_stats.object_store_bytes_used)


async def series(folder: Path, model: Path, num_steps: int) -> dict[str, list[int]]:
    """Bytes after each step of each process that was there at every step, and of the object store."""
    recipe = recipe_for(
        folder,
        driver={"max_staleness": 2, "canary_every": 10},
        grpo={"num_steps": num_steps, "prompts_per_step": 8, "group_size": 4},
        reward={"format": 0.5},
        learner={"learning_rate": 1e-4},
        eval={"num_problems": 1},
    )
    found: dict[str, list[int]] = defaultdict(list)
    titles: dict[int, str] = {}  # the first seen: an actor's changes with the method that it runs

    def look(*_: object) -> None:
        for name, pid, uss in processes():
            found[f"{titles.setdefault(pid, name)} ({pid})"].append(uss)
        found["object store"].append(object_store_bytes())

    async with placement(recipe, plan_device(recipe)) as placed:
        actors, _ = await placed.start(str(model))
        run = make_run(recipe, actors, tokenizer=AutoTokenizer.from_pretrained(model), model_folder=str(model), num_train_problems=512)
        await begin_stage(run, "grpo", learning_rate=1e-4, num_optimizer_steps=num_steps)
        await PolicyLoops(run, "grpo", num_steps, look).train()
    return {name: values for name, values in found.items() if len(values) == num_steps}


def main(num_steps: int, *, gives_back: bool) -> int:
    model = ensure_base_model(MODELS, seed=0)
    os.environ.update(GIVES_BACK if gives_back else {})
    own = {"task_events_max_num_task_in_gcs": CALLS_KEPT}
    ray.init(address="local", num_cpus=2, namespace="memory", log_to_driver=False, include_dashboard=False, _system_config=own)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(series(Path(folder), model, num_steps))
    ray.shutdown()
    slopes = {name: float(stats.theilslopes(values[NUM_FILLING:]).slope) / 2**10 for name, values in found.items()}
    table = Table(title=f"{num_steps} asynchronous steps", title_justify="left")
    for name in ("process", "after the first step", f"after {NUM_FILLING}", f"after {num_steps}", "most", "KiB a step"):
        table.add_column(name, justify="left" if name == "process" else "right", no_wrap=True)
    for name, values in sorted(found.items(), key=lambda item: -slopes[item[0]]):
        moments = (values[0], values[NUM_FILLING], values[-1], max(values))
        table.add_row(name, *(f"{value / 2**20:.1f} MiB" for value in moments), f"{slopes[name]:+.1f}")
    Console(width=120).print(table)
    steepest = max(slopes, key=lambda name: slopes[name])
    figure = {"steepest_kib_a_step": round(slopes[steepest], 1), "whose": steepest.partition(" (")[0], "num_processes": len(found) - 1}
    ok = slopes[steepest] <= TARGET_KIB_A_STEP
    print(json.dumps({"name": "memory_slope", "figure": figure, "target": {"kib_a_step": TARGET_KIB_A_STEP}, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    steps = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    sys.exit(main(steps[0] if steps else NUM_STEPS, gives_back="default" not in sys.argv[1:]))
