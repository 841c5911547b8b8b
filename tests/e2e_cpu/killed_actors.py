"""A GRPO run whose actors are killed one after the other, beside the same run left alone: `python killed_actors.py MODEL FOLDER REPLICAS`.

Started by test_killed_actors.py. A process of its own, since it owns a Ray. The last line is JSON.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import ray

sys.path.insert(0, str(Path(__file__).parent.parent))
from samples import make_run, recipe_for
from transformers import AutoTokenizer

from mathrl_ray.actors.placement import placement, plan_device
from mathrl_ray.driver.canary import begin_stage
from mathrl_ray.driver.loops import PolicyLoops

NUM_STEPS = 6
KILLS = {
    1: (
        ("generate", 1, "generator-0", "actor"),
        ("score", 5, "generator-0", "worker"),
        ("apply_weights", 2, "generator-0", "core"),
        ("score", 9, "scorer-0", "actor"),
    ),
    2: (("generate", 2, "generator-1", "worker"), ("apply_weights", 3, "generator-0", "core")),
}
"""By the number of generators: at which call of which method, counted anew after each kill, which process of whose dies."""


def victim(name: str, what: str) -> int:
    """The pid of an actor, of its engine's core, or of the core's worker."""
    actor = ray.get(ray.get_actor(name).__ray_call__.remote(lambda _: os.getpid()))
    if what == "actor":
        return actor
    core = next(child for child in own_children(actor))
    return core.pid if what == "core" else next(own_children(core.pid)).pid


def own_children(pid: int) -> Iterator[psutil.Process]:
    """Without Python's helper for shared memory."""
    return (child for child in psutil.Process(pid).children() if "resource_tracker" not in " ".join(child.cmdline()))


class Assassin:
    """Kills what is next in KILLS when its call comes."""

    def __init__(self, num_generators):
        self.kills, self.calls, self.done = list(KILLS[num_generators]), 0, []

    def watch(self, method, caller):
        if not self.kills or method != self.kills[0][0]:
            return
        if method == "generate" and caller != self.kills[0][2]:  # it is to die at work
            return
        self.calls += 1
        _, number, name, what = self.kills[0]
        if self.calls == number:
            asyncio.get_running_loop().call_later(0.02, self._kill, name, what)

    def _kill(self, name, what):
        os.kill(victim(name, what), signal.SIGKILL)
        self.done.append(f"{what} of {name} in {self.kills.pop(0)[0]}")
        self.calls = 0


class Watched:
    """An actor as the driver holds it, whose calls the assassin hears of."""

    def __init__(self, actor, assassin):
        self._actor, self._assassin, self.name = actor, assassin, actor.name

    def __getattr__(self, method):
        if method in ("generate", "score", "apply_weights"):
            self._assassin.watch(method, self.name)
        return getattr(self._actor, method)


async def trained(recipe, actors, model, name):
    """Rows of all trajectories and the losses, with the run."""
    named = recipe.model_copy(update={"run": recipe.run.model_copy(update={"name": name})})
    run = make_run(named, actors, tokenizer=AutoTokenizer.from_pretrained(model), model_folder=model)
    await begin_stage(run, "grpo", learning_rate=3e-3, num_optimizer_steps=NUM_STEPS)
    steps = []
    await PolicyLoops(run, "grpo", NUM_STEPS, lambda step, groups, metrics: steps.append(metrics)).train()
    files = [run.recorder.folder / "trajectories" / f"grpo-{step}.parquet" for step in range(1, NUM_STEPS + 1)]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return run, rows, steps


def those_who_worked(recipe, name):
    """Names of the actors that have generated in a run, from the spans of its metrics."""
    lines = (Path(recipe.run.root) / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    spans = [span for line in lines for span in json.loads(line).get("spans", ())]
    return sorted({who for who, what, *_ in spans if what == "generate"})


async def main(model, folder, num_generators):
    grpo = {"num_steps": NUM_STEPS, "prompts_per_step": 6, "group_size": 4}
    learner = {"learning_rate": 3e-3, "micro_batch_tokens": 1024}
    own = {"kv_cache_gib": 0.25, "replicas": num_generators}
    recipe = recipe_for(Path(folder), generator=own, grpo=grpo, reward={"format": 0.5}, learner=learner, eval={"num_problems": 1})
    async with placement(recipe, plan_device(recipe)) as placed:
        actors, _ = await placed.start(model)
        _, rows, steps = await trained(recipe, actors, model, "alone")
        assassin = Assassin(num_generators)
        watched = replace(
            actors,
            generators=tuple(Watched(actor, assassin) for actor in actors.generators),
            scorers=tuple(Watched(actor, assassin) for actor in actors.scorers),
        )
        run, killed_rows, killed_steps = await trained(recipe, watched, model, "killed")
        found = {
            "killed": assassin.done,
            "restarts": [run.generators.num_restarts, run.scorers.num_restarts],
            "generators": those_who_worked(recipe, "killed"),
            "num_rows": len(rows),
            "rows_differ": [name for name in rows[0] if [row[name] for row in rows] != [row[name] for row in killed_rows]],
            "losses": [[step["loss"] for step in part] for part in (steps, killed_steps)],
            "redone": run.ledger.counts.redone,
            "dropped_tokens": run.ledger.counts.dropped_tokens,
            "canary": max(step["canary_max_logprob_diff"] for step in killed_steps),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    ray.init(address="local", num_cpus=4, namespace="killed", log_to_driver=False, include_dashboard=False)
    asyncio.run(main(*sys.argv[1:3], int(sys.argv[3])))
    ray.shutdown()
