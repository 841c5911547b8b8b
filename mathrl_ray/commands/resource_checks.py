"""Whether a run fits its machines: CPUs, GPUs, /dev/shm, disk. Memory is in memory_checks.py.

Called by preflight.py. Takes what nodes have and what a model needs as plain records, so that each verdict can be tried by hand; asks no
machine itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from mathrl_ray.actors.nodes import NodeFacts
from mathrl_ray.actors.placement import plan_for
from mathrl_ray.commands.findings import Finding, Verdict, counted, gigabytes, tried
from mathrl_ray.config import Recipe
from mathrl_ray.core.memory_estimate import DTYPE_BYTES, ModelShape
from mathrl_ray.device import Device

VLLM_QUEUE_BYTES = 160 * 2**20
"""Shared memory that one engine's message queues may fill (10 chunks of 16 MiB)."""
BYTES_PER_ROW_TOKEN = 16
"""Of a trajectory's token in Parquet: an id, two log-probs, text."""


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What is known of the start model before it is loaded."""

    shape: ModelShape
    num_parameters: int
    prompt_tokens: float
    """Mean of the run's prompts."""

    def weight_bytes(self, recipe: Recipe) -> int:
        return DTYPE_BYTES[recipe.model.dtype] * self.num_parameters


def engine_nodes(device: Device, nodes: Sequence[NodeFacts]) -> Sequence[NodeFacts]:
    """Those on which Ray may place a learner or a generator; all where no node could hold one, which is a finding of its own."""
    return [node for node in nodes if node.num_cpus > 0 and (device.kind == "cpu" or node.num_gpus > 0)] or nodes


def check_processors(recipe: Recipe, nodes: Sequence[NodeFacts]) -> Finding:
    """As the placement will plan it."""
    num_cpus, num_gpus = sum(node.num_cpus for node in nodes), sum(node.num_gpus for node in nodes)

    def plan() -> str:
        device = plan_for(recipe, num_cpus=num_cpus, num_gpus=num_gpus)
        return f"{num_cpus:g} CPUs, {num_gpus:g} GPUs: engines on {device.kind}, since {device.reason}"

    return tried("CPUs and GPUs", plan)


def check_threads(recipe: Recipe, nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """More threads than any machine has CPUs: the engine works, and slower than with fewer."""
    most = max(node.num_cpus for node in nodes)
    for key, threads in (("generator.num_threads", recipe.generator.num_threads), ("learner.num_threads", recipe.learner.num_threads)):
        if threads > most:
            yield Finding(
                "threads", "warning", f"{most:g} CPUs on the largest node", f"{key} = {threads}", f"lower {key} to {most:g} or less"
            )


def check_shared_memory(recipe: Recipe, device: Device, nodes: Sequence[NodeFacts], model: ModelNeeds) -> Finding:
    """The published weights lie there whole, and each engine's message queues."""
    weights = model.weight_bytes(recipe) if device.writes_block else 0
    queues = VLLM_QUEUE_BYTES * recipe.generator.replicas
    least = min(engine_nodes(device, nodes), key=lambda node: node.shm_bytes)
    verdict: Verdict = "failed" if least.shm_bytes < weights else "warning" if least.shm_bytes < weights + queues else "ok"
    needed = f"{gigabytes(weights + queues)}: published weights {gigabytes(weights)}, vLLM's queues up to {gigabytes(queues)}"
    size = ceil((weights + queues) / 2**30)
    halve = ', or set model.dtype = "bfloat16"' if recipe.model.dtype == "float32" and weights else ""
    change = "" if verdict == "ok" else f"make /dev/shm larger (docker: --shm-size={size}g){halve}"
    return Finding("/dev/shm", verdict, f"{gigabytes(least.shm_bytes)} free on {least.name}", needed, change)


def check_disk(
    recipes: Sequence[Recipe], nodes: Sequence[NodeFacts], model: ModelNeeds, stages: Sequence[str], *, generated_tokens: int
) -> Finding:
    """Checkpoints (weights, float32 masters, two moments) and rows, under run.root.

    Args:
        recipes: one, or those of all variants of a sweep, whose folders all stay.
        stages: of each.
        generated_tokens: of all of them, at most.
    """
    sizes, numbers = [_checkpoint_bytes(recipe, model) for recipe in recipes], [num_checkpoints(recipe, stages) for recipe in recipes]
    largest, checkpoints = max(sizes), sum(size * number for size, number in zip(sizes, numbers, strict=True))
    rows = BYTES_PER_ROW_TOKEN * generated_tokens
    free = min(node.disk_bytes for node in nodes)
    needed = checkpoints + rows
    verdict: Verdict = "failed" if free < min(largest, needed) else "warning" if free < needed else "ok"
    of_runs = f" of {counted(len(recipes), 'run')}" if len(recipes) > 1 else ""
    up_to = "up to " if len(set(sizes)) > 1 else ""
    text = (
        f"{gigabytes(needed)}: {counted(sum(numbers), 'checkpoint')}{of_runs} of {up_to}{gigabytes(largest)}, rows up to {gigabytes(rows)}"
    )
    change = "" if verdict == "ok" else f"name a larger disk in run.root (now {recipes[0].run.root}), or free some of it"
    return Finding("disk", verdict, f"{gigabytes(free)} free under run.root", text, change)


def _checkpoint_bytes(recipe: Recipe, model: ModelNeeds) -> int:
    trained = model.shape.num_adapter_parameters(recipe.learner.lora_rank) if recipe.learner.lora_rank else model.num_parameters
    return model.weight_bytes(recipe) + 12 * trained


def num_checkpoints(recipe: Recipe, stages: Sequence[str]) -> int:
    """At most there at the same time: what each training stage keeps, and one that is being written."""
    trained = [stage for stage in stages if stage != "baseline"]
    return sum(_num_kept(recipe, stage) for stage in trained) + 1 if trained else 0


def _num_kept(recipe: Recipe, stage: str) -> int:
    run = recipe.run
    if stage == "expert_iteration":  # saves and validates every round
        return min(recipe.expert_iteration.rounds, run.keep_last + run.keep_best)
    best = run.keep_best if recipe.eval.validate_every else 0
    return run.keep_last + best if run.checkpoint_every or run.checkpoint_minutes else 1
