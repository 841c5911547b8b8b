"""Two learner ranks, a generator and a scorer as Ray actors, one GRPO step: `python placed_ranks.py MODEL FOLDER`.

Started by test_placement.py. A process of its own, since it is told how many CPUs its Ray has. The last line is JSON.
"""

import asyncio
import json
import sys
from pathlib import Path

import ray
from ray.util import list_named_actors, placement_group_table

sys.path.insert(0, str(Path(__file__).parent.parent))
from samples import make_run, recipe_for
from transformers import AutoTokenizer

from mathrl_ray.actors.placement import placement, plan_device
from mathrl_ray.driver.canary import begin_stage, canary_requests
from mathrl_ray.driver.loops import PolicyLoops


async def main(model, folder):
    keys = {"num_ranks": 2, "zero_stage": 3, "lora_rank": 4, "micro_batch_tokens": 1024}
    recipe = recipe_for(Path(folder), learner=keys, eval={"num_problems": 4}, grpo={"prompts_per_step": 4, "loss": "reinforce"})
    async with placement(recipe, plan_device(recipe)) as placed:
        actors, _ = await placed.start(model)
        run = make_run(recipe, actors, tokenizer=AutoTokenizer.from_pretrained(model), model_folder=model)
        run.canary_requests = canary_requests(run)
        await begin_stage(run, "grpo", learning_rate=1e-2, num_optimizer_steps=2)
        steps: list[dict[str, float]] = []
        await PolicyLoops(run, "grpo", 1, lambda step, groups, metrics: steps.append(metrics)).train()
        names = sorted(list_named_actors())
    states = [group["state"] for group in placement_group_table().values()]
    print(json.dumps({"metrics": steps[0], "names": names, "left": list_named_actors(), "placement_groups": states}))


if __name__ == "__main__":
    ray.init(address="local", num_cpus=4, namespace="ranks", log_to_driver=False)
    asyncio.run(main(*sys.argv[1:]))
    ray.shutdown()
