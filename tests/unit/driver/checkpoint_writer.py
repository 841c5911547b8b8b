"""Writes checkpoints of a few MB for ever, as a run does, until it is killed: `python checkpoint_writer.py ROOT`. Started by
test_checkpoint_kills.py, on whose path it finds what it imports; says which package that is, then "ready" after each."""

import asyncio
import os
import sys
from pathlib import Path

from fakes import Diary, FakeLearner
from samples import made_up_trajectories, make_run, recipe_for

import mathrl_ray
from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.core.staleness import GateState
from mathrl_ray.driver.checkpoint import save_checkpoint
from mathrl_ray.driver.loop_state import LoopState
from mathrl_ray.driver.resume import find_resumption
from mathrl_ray.driver.step_record import RecordState
from mathrl_ray.types import TrajectoryGroup

NUM_FILES, FILE_BYTES = 4, 750_000


class BigLearner(FakeLearner):
    """Every byte of its files says the step."""

    step = 0

    async def save_checkpoint(self, folder):
        figures = await super().save_checkpoint(folder)
        for number in range(NUM_FILES):
            (Path(folder) / f"model-{number}.bin").write_bytes(bytes([self.step % 251]) * FILE_BYTES)
        return figures


def loops_at(step):
    """A state with a group that waits."""
    trajectories = tuple(made_up_trajectories(4, seed=step))
    group = TrajectoryGroup(trajectories[0].group_id, trajectories[0].problem_id, trajectories)
    gate = GateState(step, step + 1, step, {}, [[step, "buffered", step]], [step])
    return LoopState(step, gate, 0, 0, {}, {step: group}, RecordState({}, [], {step: 0.0}), [], prompts_per_step=1, is_done=False)


async def write_for_ever(root):
    recipe = recipe_for(root, run={"resume": "auto", "keep_last": 2})
    learner = BigLearner(Diary())
    found = find_resumption(recipe, ["grpo"])
    recorder = found.open(recipe, ["grpo"], print) if found else None
    run = make_run(recipe, Actors(learner, (), (), ()), recorder=recorder)
    step = found.checkpoint.step if found else 0
    while True:
        step += 1
        learner.step = step
        run.recorder.metrics("grpo", step, step, {"loss": 1.0 / step})
        await save_checkpoint(run, "grpo", step, loops_at(step))
        os.write(1, b"ready\n")


if __name__ == "__main__":
    print(mathrl_ray.__path__[0], flush=True)
    asyncio.run(write_for_ever(Path(sys.argv[1])))
