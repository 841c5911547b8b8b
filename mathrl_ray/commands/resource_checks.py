"""Whether a run fits its machines: CPUs, GPUs, memory, the KV cache, /dev/shm, disk.

Called by preflight.py. Takes what nodes have and what a model needs as plain records, so that each verdict can be tried by hand; asks no
machine itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from mathrl_ray.actors.nodes import NodeFacts
from mathrl_ray.actors.placement import plan_for
from mathrl_ray.commands.findings import Finding, Verdict, gigabytes, tried
from mathrl_ray.config import Recipe
from mathrl_ray.core.memory_advice import change_that_fits
from mathrl_ray.core.memory_estimate import DTYPE_BYTES, LearnerMemory, LearnerSettings, ModelShape, kv_bytes_per_token, learner_memory
from mathrl_ray.device import Device

LEARNER_PROCESS_BYTES = int(0.6 * 2**30)
"""Python, torch, transformers and DeepSpeed, before any model."""
GENERATOR_PROCESSES_BYTES = int(1.8 * 2**30)
"""vLLM's actor, engine and worker."""
GPU_CONTEXT_BYTES = int(1.5 * 2**30)
"""CUDA's context, cuBLAS and NCCL, outside of torch's own memory; fragments of that too."""
VLLM_WORKSPACE_BYTES = 2 * 2**30
"""vLLM's activations at its largest prefill and its CUDA graphs."""
VLLM_QUEUE_BYTES = 160 * 2**20
"""Shared memory that one engine's message queues may fill (10 chunks of 16 MiB)."""
KV_BLOCK_TOKENS = 128
"""vLLM's block on a CPU; on a GPU it is 16."""
SURE = 1.15
"""An estimate this much over what is there is refused; less over it, or almost as much, is a warning."""
NEAR = 0.9
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


def learner_settings(recipe: Recipe, device: Device) -> LearnerSettings:
    learner = recipe.learner
    return LearnerSettings(
        dtype=recipe.model.dtype,
        max_length=recipe.model.max_length,
        micro_batch_tokens=learner.micro_batch_tokens,
        logits_chunk_tokens=learner.logits_chunk_tokens,
        gradient_checkpointing=learner.gradient_checkpointing,
        attention="eager" if learner.attention == "eager" else "fused",
        num_ranks=learner.num_ranks,
        zero_stage=learner.zero_stage,
        offload=learner.offload,
        lora_rank=learner.lora_rank,
        has_reference=recipe.loss.kl_coefficient > 0,
        on_gpu=device.kind == "cuda",
    )


def check_processors(recipe: Recipe, nodes: Sequence[NodeFacts]) -> Finding:
    """As the placement will plan it."""
    num_cpus, num_gpus = sum(node.num_cpus for node in nodes), sum(node.num_gpus for node in nodes)

    def plan() -> str:
        device = plan_for(recipe, num_cpus=num_cpus, num_gpus=num_gpus)
        return f"{num_cpus:g} CPUs, {num_gpus:g} GPUs: engines on {device.kind}, since {device.reason}"

    return tried("CPUs and GPUs", plan)


def check_memory_needs(recipe: Recipe, device: Device, nodes: Sequence[NodeFacts], model: ModelNeeds) -> Iterator[Finding]:
    """The learner against its device, the KV cache against its own, and all of it against the hosts' memory."""
    settings = learner_settings(recipe, device)
    memory = learner_memory(model.shape, settings, model.num_parameters)
    if device.kind == "cuda" and not any(node.gpus for node in nodes):
        yield Finding("learner memory", "warning", "GPUs whose memory is not known: nvidia-smi does not answer", _parts(memory))
    elif device.kind == "cuda":
        yield from _gpus_in_use(recipe, nodes)
        yield _learner_on_gpu(recipe, device, nodes, model, settings, memory)
        yield _kv_cache(recipe, model, _gpu_cache_bytes(recipe, nodes, model), "generator.gpu_memory_utilization")
    else:
        yield _all_on_host(recipe, nodes, model, settings, memory)
        yield _kv_cache(recipe, model, int(recipe.generator.kv_cache_gib * 2**30), "generator.kv_cache_gib")


def _verdict(needed: float, limit: float) -> Verdict:
    return "failed" if needed > SURE * limit else "warning" if needed > NEAR * limit else "ok"


def _gpus_in_use(recipe: Recipe, nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """GPUs of which others hold so much that vLLM would refuse to start there."""
    share = recipe.generator.gpu_memory_utilization
    taken = [(node.name, gpu) for node in nodes for gpu in node.gpus if gpu.free_bytes < share * gpu.memory_bytes]
    if taken:
        found = "; ".join(f"on {name}: {gpu.name} has {gigabytes(gpu.free_bytes)} free" for name, gpu in taken)
        needed = f"{gigabytes(share * taken[0][1].memory_bytes)} for generator.gpu_memory_utilization = {share:g}"
        change = "end what else uses them (nvidia-smi), hide them by CUDA_VISIBLE_DEVICES, or lower generator.gpu_memory_utilization"
        yield Finding("GPUs in use", "warning", found, needed, change)


def _learner_on_gpu(
    recipe: Recipe, device: Device, nodes: Sequence[NodeFacts], model: ModelNeeds, settings: LearnerSettings, memory: LearnerMemory
) -> Finding:
    smallest = min((gpu for node in nodes for gpu in node.gpus), key=lambda gpu: gpu.memory_bytes)
    share = 1 - recipe.generator.gpu_memory_utilization if device.gpus_per_engine < 1 else 1
    limit = int(share * smallest.memory_bytes) - GPU_CONTEXT_BYTES
    verdict = _verdict(memory.peak, limit)
    found = f"{smallest.name} with {gigabytes(limit)} for one learner rank"
    return Finding("learner memory", verdict, found, _parts(memory), _learner_change(verdict, model, settings, limit))


def _learner_change(verdict: Verdict, model: ModelNeeds, settings: LearnerSettings, limit: int) -> str:
    if verdict == "ok":
        return ""
    if change := change_that_fits(model.shape, settings, limit, model.num_parameters):
        return f"set {change}"
    return "no setting of one rank is enough: raise learner.num_ranks with learner.zero_stage = 3, or choose a smaller model.path"


def _parts(memory: LearnerMemory) -> str:
    named = ", ".join(f"{name} {gigabytes(size)}" for name, size in memory.parts().items())
    return f"about {gigabytes(memory.peak)} a rank ({named})"


def _all_on_host(
    recipe: Recipe, nodes: Sequence[NodeFacts], model: ModelNeeds, settings: LearnerSettings, memory: LearnerMemory
) -> Finding:
    """Learner ranks, generators and the published weights share the hosts' memory where there is no GPU."""
    replicas, ranks = recipe.generator.replicas, recipe.learner.num_ranks
    weights, cache = model.weight_bytes(recipe), int(recipe.generator.kv_cache_gib * 2**30)
    others = replicas * (weights + cache + GENERATOR_PROCESSES_BYTES) + weights * len(nodes)
    learner = memory.peak + memory.host + LEARNER_PROCESS_BYTES
    available = sum(node.memory_bytes for node in nodes)
    verdict = _verdict(others + ranks * learner, available)
    verdict = max(verdict, _verdict(learner, max(node.memory_bytes for node in nodes)), key=("ok", "warning", "failed").index)
    needed = (
        f"about {gigabytes(others + ranks * learner)}: generators {gigabytes(others)}, of which generator.kv_cache_gib {gigabytes(cache)} "
        f"each; learner {_parts(memory)} and {gigabytes(LEARNER_PROCESS_BYTES)} of libraries"
    )
    if verdict == "ok":
        change = ""
    elif others - replicas * cache > available:
        change = "choose a smaller model.path, or lower generator.replicas" if replicas > 1 else "choose a smaller model.path"
    elif others > 0.5 * available:
        room = max(0.1, 0.5 * available / 2**30 / replicas - (weights + GENERATOR_PROCESSES_BYTES) / 2**30)
        now = f"now {recipe.generator.kv_cache_gib:g}, {room:.1f} would leave the learner half"
        change = f"lower generator.kv_cache_gib ({now}) or generator.replicas (now {replicas})"
    else:
        change = _learner_change(verdict, model, settings, (available - others) // ranks - LEARNER_PROCESS_BYTES)
    return Finding("memory", verdict, f"{gigabytes(available)} free on {_count(len(nodes), 'node')}", needed, change)


def _gpu_cache_bytes(recipe: Recipe, nodes: Sequence[NodeFacts], model: ModelNeeds) -> int:
    smallest = min(gpu.memory_bytes for node in nodes for gpu in node.gpus)
    return int(recipe.generator.gpu_memory_utilization * smallest) - model.weight_bytes(recipe) - VLLM_WORKSPACE_BYTES


def _kv_cache(recipe: Recipe, model: ModelNeeds, cache_bytes: int, key: str) -> Finding:
    """One sequence of model.max_length must fit, or vLLM does not start; fewer than max_sequences means fewer at once, which is slower."""
    generator, a_token = recipe.generator, kv_bytes_per_token(model.shape, recipe.model.dtype)
    capacity = max(0, cache_bytes // a_token)
    one = (ceil(recipe.model.max_length / KV_BLOCK_TOKENS) + 1) * KV_BLOCK_TOKENS
    typical = model.prompt_tokens + generator.max_tokens
    found = f"{gigabytes(max(0, cache_bytes))} for the cache: {capacity:,} tokens of {a_token:,} bytes"
    if capacity < one:
        needed = f"{one:,} tokens ({gigabytes(one * a_token)}) for one sequence of model.max_length = {recipe.model.max_length}"
        value = generator.kv_cache_gib if key.endswith("gib") else generator.gpu_memory_utilization
        more = f" to {one * a_token / 2**30 * 1.05:.3g} or more" if key.endswith("gib") else ""
        return Finding("KV cache", "failed", found, needed, f"raise {key} (now {value:g}){more}, or lower model.max_length")
    at_once = int(capacity // typical)
    wanted = min(generator.max_sequences, ceil(recipe.grpo.prompts_per_step * recipe.grpo.group_size / generator.replicas))
    needed = f"{wanted} responses of up to {typical:,.0f} tokens at once"
    if at_once < wanted:
        change = f"about {at_once} fit at their longest, others wait: raise {key}, or lower generator.max_sequences to that"
        return Finding("KV cache", "warning", found, needed, change)
    return Finding("KV cache", "ok", found, needed)


def check_shared_memory(recipe: Recipe, device: Device, nodes: Sequence[NodeFacts], model: ModelNeeds) -> Finding:
    """The published weights lie there whole, and each engine's message queues."""
    weights = model.weight_bytes(recipe) if device.weight_transport == "shared_memory" else 0
    queues = VLLM_QUEUE_BYTES * recipe.generator.replicas
    least = min(nodes, key=lambda node: node.shm_bytes)
    verdict: Verdict = "failed" if least.shm_bytes < weights else "warning" if least.shm_bytes < weights + queues else "ok"
    needed = f"{gigabytes(weights + queues)}: published weights {gigabytes(weights)}, vLLM's queues up to {gigabytes(queues)}"
    size = ceil((weights + queues) / 2**30)
    halve = ', or set model.dtype = "bfloat16"' if recipe.model.dtype == "float32" and weights else ""
    change = "" if verdict == "ok" else f"make /dev/shm larger (docker: --shm-size={size}g){halve}"
    return Finding("/dev/shm", verdict, f"{gigabytes(least.shm_bytes)} free on {least.name}", needed, change)


def check_disk(recipe: Recipe, nodes: Sequence[NodeFacts], model: ModelNeeds, *, num_checkpoints: int, generated_tokens: int) -> Finding:
    """Checkpoints (weights, float32 masters, two moments) and rows, under run.root.

    Args:
        num_checkpoints: kept at the same time, the one that is being written included.
        generated_tokens: of the whole run, at most.
    """
    trained = model.shape.num_adapter_parameters(recipe.learner.lora_rank) if recipe.learner.lora_rank else model.num_parameters
    one = model.weight_bytes(recipe) + 12 * trained
    rows = BYTES_PER_ROW_TOKEN * generated_tokens
    free = min(node.disk_bytes for node in nodes)
    needed = num_checkpoints * one + rows
    verdict: Verdict = "failed" if free < min(one, needed) else "warning" if free < needed else "ok"
    text = f"{gigabytes(needed)}: {_count(num_checkpoints, 'checkpoint')} of {gigabytes(one)}, rows up to {gigabytes(rows)}"
    change = "" if verdict == "ok" else f"name a larger disk in run.root (now {recipe.run.root}), or free some of it"
    return Finding("disk", verdict, f"{gigabytes(free)} free under run.root", text, change)


def num_checkpoints(recipe: Recipe, stages: Sequence[str]) -> int:
    """At most there at the same time: what each training stage keeps, and one that is being written."""
    run, num_trained = recipe.run, sum(stage != "baseline" for stage in stages)
    best = run.keep_best if recipe.eval.validate_every else 0
    kept = run.keep_last + best if run.checkpoint_every or run.checkpoint_minutes else 1
    return num_trained * kept + 1 if num_trained else 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
