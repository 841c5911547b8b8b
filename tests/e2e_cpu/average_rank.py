"""One rank of a learner that keeps an average, without Ray: `python average_rank.py JOB.json RANK`. For test_learner_average_ranks.py.

Writes what rank 0 has, by variant, to the job's `output` (a .pt file of plain values).
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from samples import made_up_trajectories, recipe_for

from mathrl_ray.actors.learner import Learner
from mathrl_ray.actors.process_group import ProcessGroup, Rendezvous
from mathrl_ray.device import choose_device
from mathrl_ray.types import SamplingSettings, StageSettings

CPU = choose_device("cpu", num_gpus=0, num_engines=2)
SAMPLING = SamplingSettings(temperature=1.0, max_tokens=64)


def variant(job, group, name, zero_stage, go_on):
    """Three updates, a checkpoint, two more, the average; or the last two of these from the checkpoint of another number of ranks."""
    folder = Path(job["folder"]) / name
    keys = {"zero_stage": zero_stage, "num_ranks": group.num_ranks, "micro_batch_tokens": 512, "average": "ema", "ema_decay": 0.5}
    recipe = recipe_for(folder, learner=keys)
    learner = Learner(group.rank, group.num_ranks)
    learner.preload(recipe, CPU)
    learner.setup(recipe, CPU)
    learner.start_stage(StageSettings(job["model"], 1e-3, 10, "grpo", str(folder / "dumps")))
    batch = made_up_trajectories(16, seed=3)
    if go_on:
        learner.load_checkpoint(str(folder / "checkpoint"))
    else:
        for _ in range(3):
            learner.train_policy(batch, SAMPLING)
        (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        learner.save_checkpoint(str(folder / "checkpoint"))
    for _ in range(2):
        learner.train_policy(batch, SAMPLING)
    figures = learner.use_average()
    weights = torch.cat([tensor.flatten().float() for _, tensor in learner._engine.weights()])
    learner.shutdown()
    return figures, weights


def main():
    job, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    torch.set_num_threads(1)
    group = ProcessGroup(rank, job["num_ranks"])
    group.join(Rendezvous("127.0.0.1", job["port"]), "gloo", 120)
    results = {f"zero{stage}": variant(job, group, f"zero{stage}", stage, job["go_on"]) for stage in job["zero_stages"]}
    if rank == 0:
        torch.save(results, job["output"])


if __name__ == "__main__":
    main()
