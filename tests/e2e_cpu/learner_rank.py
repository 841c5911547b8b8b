"""One rank of a learner, without Ray: `python learner_rank.py JOB.json RANK`. Started by test_learner_ranks.py, once a rank.

Writes its results, as rank 0 has them, to the job's `output` (a .pt file of plain tensors).
"""

import json
import sys
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import get_args

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from samples import made_up_trajectories, recipe_for

from mathrl_ray.actors.deepspeed_engine import Engine
from mathrl_ray.actors.learner import Learner
from mathrl_ray.actors.learner_steps import LearnerSteps, PolicyBatch, example_of, policy_loss_of, sft_loss_of
from mathrl_ray.actors.model_folder import load_model, with_adapters
from mathrl_ray.actors.policy_module import PolicyModule
from mathrl_ray.actors.process_group import ProcessGroup, Rendezvous
from mathrl_ray.config import Recipe
from mathrl_ray.core.batching import micro_batches
from mathrl_ray.core.losses import policy_loss
from mathrl_ray.device import choose_device
from mathrl_ray.methods import Method
from mathrl_ray.types import SamplingSettings, StageSettings

CPU = choose_device("cpu", num_gpus=0, num_engines=2)
SAMPLING = SamplingSettings(temperature=1.0, max_tokens=64)
EXTRAS = {
    "kl": {"kl_coefficient": 0.1},
    "entropy": {"entropy_coefficient": 0.05},
    "truncated": {"correction": "truncated", "correction_high": 1.05},
    "masked sequence": {"correction": "masked", "correction_level": "sequence", "correction_low": 0.8, "correction_high": 1.3},
    "coupled": {"ratio": "coupled"},
}


def loss_cases():
    """(name, [loss] section) of every method with every aggregation, and of what can be added to a loss."""
    for method in get_args(Method):
        for how in ("sequence", "token", "constant"):
            yield f"{method} {how}", Recipe.model_validate({"grpo": {"loss": method}, "loss": {"aggregation": how}}).loss
    for name, keys in EXTRAS.items():
        yield name, Recipe.model_validate({"grpo": {"loss": "grpo_clip"}, "loss": keys}).loss


def budgets(lengths, wanted):
    """Token budgets that cut the lengths into the wanted numbers of micro-batches."""
    found = {len(micro_batches(lengths, budget)): budget for budget in range(sum(lengths) * 2, max(lengths) - 1, -1)}
    return {number: found[number] for number in wanted}


def gradients(job, group):
    """Loss and whole gradient of each case at each cut, by ZeRO stage."""
    return {variant["zero_stage"]: gradients_of(job, group, **variant) for variant in job["variants"]}


def gradients_of(job, group, *, zero_stage, every, cuts):
    keys = {"zero_stage": zero_stage, "num_ranks": group.num_ranks, "betas": (0.0, 0.95), "max_grad_norm": 1e9, "weight_decay": 0.0}
    recipe = recipe_for(Path(job["folder"]), learner=keys)
    model, _ = load_model(job["model"], dtype="float32", attention="sdpa")
    module = PolicyModule(with_adapters(model, recipe.learner), chunk_tokens=50, entropy_gradient=True)
    engine = Engine(module, recipe.learner, dtype="float32", num_ranks=group.num_ranks)
    steps = LearnerSteps(engine, group, pad_id=0, max_tokens=10_000, chunk_tokens=50)
    batch, examples = near_policies(steps, module)
    cases = [(name, policy_loss_of(batch, partial(policy_loss, settings=settings))) for name, settings in loss_cases()]
    results = {}
    for name, loss_of in [*cases, ("sft", sft_loss_of(examples))][::every]:
        for number, budget in budgets([len(example.prompt_ids) + len(example.response_ids) for example in examples], cuts).items():
            steps.max_tokens = budget
            totals, _ = steps.accumulate(examples, SAMPLING, loss_of)
            engine.step(0.0)  # with rate 0 and beta1 0 nothing moves, and Adam's first moment is the gradient
            results[f"{name} | {number}"] = (totals["loss"], whole_gradient(engine))
    engine.close()
    return results


def near_policies(steps, module):
    """A batch whose other policies lie near the learner, so that ratios and clips are those of training."""
    trajectories = made_up_trajectories(16, seed=3)
    examples = [example_of(trajectory) for trajectory in trajectories]
    own = [torch.tensor(found.logprobs) for found in steps.statistics(module, examples, SAMPLING)]
    draw = torch.Generator().manual_seed(5)
    near = [[(row + 0.1 * torch.randn(len(row), generator=draw)).tolist() for row in own] for _ in range(3)]
    behaviour = [
        replace(trajectory, completion=replace(trajectory.completion, logprobs=tuple(row)))
        for trajectory, row in zip(trajectories, near[0], strict=True)
    ]
    return PolicyBatch(behaviour, proximal=near[1], reference=near[2], learner_version=2, max_tokens=64), examples


def whole_gradient(engine):
    from deepspeed.utils import safe_get_full_optimizer_state

    parts = [safe_get_full_optimizer_state(parameter, "exp_avg") for parameter in engine.module.parameters() if parameter.requires_grad]
    return torch.cat([part.flatten().float() for part in parts])


def skipping(job, group):
    """What each step did, by variant."""
    return {variant["name"]: skipping_of(job, group, **variant) for variant in job["variants"]}


def skipping_of(job, group, *, name, dtype, zero_stage):
    """A good step, poisoned ones (the loss, then the gradient's norm alone), and a good one again, with the real learner."""
    folder = Path(job["folder"]) / name
    keys = {"zero_stage": zero_stage, "num_ranks": group.num_ranks, "micro_batch_tokens": 512, "max_skipped_steps": 3}
    recipe = recipe_for(folder, model={"dtype": dtype}, learner=keys)
    learner = Learner(group.rank, group.num_ranks)
    learner.preload(recipe, CPU)
    learner.setup(recipe, CPU)
    learner.start_stage(StageSettings(job["model"], 1e-3, 10, "grpo", str(folder / "dumps")))
    batch = made_up_trajectories(16, seed=3)

    def step(*advantages):
        poisoned = [replace(trajectory, advantage=advantage) for trajectory, advantage in zip(batch, advantages, strict=False)]
        update = learner.train_policy([*poisoned, *batch[len(poisoned) :]], SAMPLING)
        return update.num_optimizer_steps, update.metrics["grad_norm"], flat_weights(learner)

    results = {"good": step(), "NaN loss": step(nan), "inf loss": step(inf), "good again": step(), "huge gradient": step(1e38, -1e38)}
    learner.shutdown()
    return results


def resuming(job, group):
    """Gradient norms and weights of two more steps, in a learner that never stopped and in one that goes on from its checkpoint."""
    return {variant["name"]: resuming_of(job, group, **variant) for variant in job["variants"]}


def resuming_of(job, group, *, name, dtype, zero_stage):
    folder = Path(job["folder"]) / name
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    keys = {"zero_stage": zero_stage, "num_ranks": group.num_ranks, "micro_batch_tokens": 512, "schedule": "linear"}
    recipe = recipe_for(folder, model={"dtype": dtype}, learner=keys)
    batch, results = made_up_trajectories(16, seed=3), {}
    for which in ("whole", "resumed"):
        learner = Learner(group.rank, group.num_ranks)
        learner.preload(recipe, CPU)
        learner.setup(recipe, CPU)
        learner.start_stage(StageSettings(job["model"], 1e-2, 10, "grpo", str(folder / "dumps")))
        if which == "whole":
            learner.train_policy(batch, SAMPLING)
            learner.save_checkpoint(str(checkpoint))
        else:
            learner.load_checkpoint(str(checkpoint))
        norms = [learner.train_policy(batch, SAMPLING).metrics["grad_norm"] for _ in range(2)]
        results[which] = (norms, flat_weights(learner))
        learner.shutdown()
    return results


def flat_weights(learner):
    manifest = learner.publish(1)
    if manifest is None:
        return None
    from mathrl_ray.weight_sync.shared_memory import BlockReader

    return torch.cat([tensor.flatten().float() for _, tensor in BlockReader().tensors(manifest.path, manifest.tensors)])


def main():
    job, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    torch.set_num_threads(1)
    group = ProcessGroup(rank, job["num_ranks"])
    group.join(Rendezvous("127.0.0.1", job["port"]), "gloo", 120)
    results = {"gradients": gradients, "skipping": skipping, "resuming": resuming}[job["what"]](job, group)
    if rank == 0:
        torch.save(results, job["output"])


if __name__ == "__main__":
    main()
