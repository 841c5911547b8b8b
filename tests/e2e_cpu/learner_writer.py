"""Trains the real learner and saves it after every step: `python learner_writer.py ROOT MODEL [NUM_STEPS]`, without a number until it is
killed. Started by test_learner_kills.py; says "saving" and "saved" with the step. Where ROOT has a run, it goes on."""

import asyncio
import itertools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "driver"))
from checkpoint_writer import loops_at
from fakes import LocalLearner
from samples import made_up_trajectories, make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.learner import Learner
from mathrl_ray.device import choose_device
from mathrl_ray.driver.checkpoint import save_checkpoint
from mathrl_ray.driver.resume import find_resumption
from mathrl_ray.types import SamplingSettings, StageSettings

CPU = choose_device("cpu", num_gpus=0, num_engines=2)
BATCH = made_up_trajectories(16, seed=3)
SECTIONS = {"learner": {"schedule": "cosine", "warmup_steps": 3}, "grpo": {"loss": "grpo_clip", "minibatches": 2}}


def recipe_of(root: Path):
    return recipe_for(root, run={"resume": "auto", "keep_last": 2}, **SECTIONS)


async def write(root: Path, model: str, last: int | None) -> None:
    recipe, learner = recipe_of(root), Learner()
    learner.preload(recipe, CPU)
    learner.setup(recipe, CPU)
    found = find_resumption(recipe, ["grpo"])
    recorder = found.open(recipe, ["grpo"], print) if found else None
    learner.start_stage(StageSettings(model, 1e-2, 1000, "grpo", str(root / "dumps")))
    step = 0
    if found:
        step = found.checkpoint.step
        learner.load_checkpoint(str(found.checkpoint.folder))
    run = make_run(recipe, Actors(LocalLearner(learner), (), (), ()), recorder=recorder)
    for number in itertools.count(step + 1) if last is None else range(step + 1, last + 1):
        update = learner.train_policy(BATCH, SamplingSettings(temperature=1.0, max_tokens=64))
        run.recorder.metrics("grpo", number, number, {name: update.metrics[name] for name in ("loss", "grad_norm", "learning_rate")})
        os.write(1, f"saving {number}\n".encode())
        await save_checkpoint(run, "grpo", number, loops_at(number))
        os.write(1, f"saved {number}\n".encode())
    run.recorder.close()
    learner.shutdown()


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None))
