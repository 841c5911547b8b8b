"""Whether a run's memory is enough: the learner and the KV cache on GPUs, and all processes on the hosts.

Called by preflight.py. Takes what nodes have and what a model needs as plain records, as resource_checks.py does; asks no machine itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor

from mathrl_ray.actors.gpus import Gpu
from mathrl_ray.actors.nodes import NodeFacts
from mathrl_ray.commands.findings import Finding, Verdict, counted, gigabytes
from mathrl_ray.commands.resource_checks import ModelNeeds, engine_nodes
from mathrl_ray.config import Recipe
from mathrl_ray.core.memory_advice import change_that_fits
from mathrl_ray.core.memory_estimate import LearnerMemory, LearnerSettings, kv_bytes_per_token, learner_memory
from mathrl_ray.device import Device
from mathrl_ray.recipe_checks import SFT_STAGES

LEARNER_PROCESS_BYTES = int(0.6 * 2**30)
"""Python, torch, transformers and DeepSpeed, before any model."""
GENERATOR_PROCESSES_BYTES = int(1.8 * 2**30)
"""vLLM's actor, engine and worker."""
SCORER_PROCESS_BYTES = 100 * 2**20
"""The actor itself, without torch."""
GRADING_PROCESS_BYTES = 60 * 2**20
"""With math-verify, before it grades anything."""
GPU_CONTEXT_BYTES = int(1.5 * 2**30)
"""CUDA's context, cuBLAS and NCCL, outside of torch's own memory; fragments of that too. Of one process."""
VLLM_WORKSPACE_BYTES = 2 * 2**30
"""vLLM's activations at its largest prefill and its CUDA graphs."""
KV_BLOCK_TOKENS = 128
"""vLLM's block on a CPU; on a GPU it is 16."""
SURE = 1.15
"""An estimate this much over what is there is refused; less over it, or almost as much, is a warning."""
NEAR = 0.9


def check_memory_needs(
    recipe: Recipe, device: Device, nodes: Sequence[NodeFacts], model: ModelNeeds, stages: Sequence[str]
) -> Iterator[Finding]:
    """The hosts' memory against all processes; then the learner and the KV cache against the GPUs, where there are any."""
    case = _Case(recipe, device, engine_nodes(device, nodes), model, learner_settings(recipe, device, stages))
    yield _on_hosts(case)
    if device.kind == "cuda":
        yield from _on_gpus(case)
    else:
        yield _kv_cache(case, case.cache_bytes, "generator.kv_cache_gib")


def run_memory_bytes(recipe: Recipe, device: Device, nodes: Sequence[NodeFacts], model: ModelNeeds, stages: Sequence[str]) -> int:
    """What one run takes on the hosts, of all nodes together; an estimate."""
    return _host_memory(_Case(recipe, device, engine_nodes(device, nodes), model, learner_settings(recipe, device, stages))).total


def learner_settings(recipe: Recipe, device: Device, stages: Sequence[str]) -> LearnerSettings:
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
        has_reference=recipe.loss.kl_coefficient > 0 or recipe.guards.may_need_reference,
        on_gpu=device.kind == "cuda",
        sends_weights=not device.writes_block,
        num_averaged_sets=learner.num_averaged_sets,
        num_rows=_largest_batch(recipe, stages),
    )


def _largest_batch(recipe: Recipe, stages: Sequence[str]) -> int:
    """Rows of one update; 0 where no stage trains."""
    grpo, sft = recipe.grpo, recipe.sft
    of_grpo = ceil(grpo.prompts_per_step * grpo.group_size / grpo.minibatches) if "grpo" in stages else 0
    of_rounds = recipe.expert_iteration.batch_size if "expert_iteration" in stages else 0
    return max(of_grpo, of_rounds, sft.batch_size if SFT_STAGES & set(stages) else 0)


@dataclass(frozen=True, slots=True)
class _Case:
    """What the checks look at."""

    recipe: Recipe
    device: Device
    nodes: Sequence[NodeFacts]
    """That can hold engines."""
    model: ModelNeeds
    settings: LearnerSettings

    @property
    def learner(self) -> LearnerMemory:
        return learner_memory(self.model.shape, self.settings, self.model.num_parameters)

    @property
    def num_gpus(self) -> int:
        """That the engines take."""
        return 1 if self.device.gpus_per_engine < 1 else self.recipe.learner.num_ranks + self.recipe.generator.replicas

    @property
    def cache_bytes(self) -> int:
        """Of one generator, on its host."""
        return int(self.recipe.generator.kv_cache_gib * 2**30) if self.device.sizes_kv_cache else 0

    @property
    def one_sequence_tokens(self) -> int:
        """That the cache must hold, in whole blocks, or vLLM does not start."""
        return (ceil(self.recipe.model.max_length / KV_BLOCK_TOKENS) + 1) * KV_BLOCK_TOKENS

    @property
    def token_bytes(self) -> int:
        bytes_in_model_dtype = kv_bytes_per_token(self.model.shape, self.recipe.model.dtype)
        match self.recipe.generator.kv_cache_dtype:
            case "auto":
                return bytes_in_model_dtype
            case "bfloat16":
                return kv_bytes_per_token(self.model.shape, "bfloat16")
            case "fp8_e4m3" | "fp8_e5m2":
                return kv_bytes_per_token(self.model.shape, "bfloat16") // 2


def _verdict(needed: float, limit: float) -> Verdict:
    return "failed" if needed > SURE * limit else "warning" if needed > NEAR * limit else "ok"


def _parts(memory: LearnerMemory) -> str:
    named = ", ".join(f"{name} {gigabytes(size)}" for name, size in memory.parts().items())
    return f"about {gigabytes(memory.peak)} a rank ({named})"


# Hosts ----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _HostMemory:
    """Bytes of all nodes together."""

    generators: int
    published: int
    """Weights in shared memory, once a node."""
    scorers: int
    learner: int
    """One rank's."""
    num_ranks: int

    @property
    def total(self) -> int:
        return self.generators + self.published + self.scorers + self.num_ranks * self.learner


def _host_memory(case: _Case) -> _HostMemory:
    recipe, learner, weights = case.recipe, case.learner, case.model.weight_bytes(case.recipe)
    on_host = case.device.kind == "cpu"
    weights_on_host = weights if on_host or recipe.generator.sleep else 0  # a sleeping engine's lie there
    return _HostMemory(
        generators=recipe.generator.replicas * (GENERATOR_PROCESSES_BYTES + case.cache_bytes + weights_on_host),
        published=weights * len(case.nodes) if case.device.writes_block else 0,
        scorers=recipe.scorer.num_actors * (SCORER_PROCESS_BYTES + recipe.scorer.num_processes * GRADING_PROCESS_BYTES),
        learner=LEARNER_PROCESS_BYTES + learner.host + on_host * learner.peak,
        num_ranks=recipe.learner.num_ranks,
    )


def _on_hosts(case: _Case) -> Finding:
    """Every process, the published weights and what is offloaded; where there is no GPU, the engines' memory as well."""
    needs = _host_memory(case)
    available, largest = sum(node.memory_bytes for node in case.nodes), max(node.memory_bytes for node in case.nodes)
    verdicts = _verdict(needs.total, available), _verdict(needs.learner, largest)
    verdict = max(verdicts, key=("ok", "warning", "failed").index)
    found = f"{gigabytes(available)} free on {counted(len(case.nodes), 'node')}"
    cache = f", of which generator.kv_cache_gib {gigabytes(case.cache_bytes)} each" if case.cache_bytes else ""
    on_host = "offloaded or averaged" if case.settings.num_averaged_sets else "offloaded"
    rank = f"{gigabytes(case.learner.host)} {on_host}" if case.device.kind == "cuda" else _parts(case.learner)
    needed = (
        f"about {gigabytes(needs.total)}: generators {gigabytes(needs.generators)}{cache}; published weights {gigabytes(needs.published)}; "
        f"scorers {gigabytes(needs.scorers)}; learner {rank} and {gigabytes(LEARNER_PROCESS_BYTES)} of libraries"
    )
    return Finding("memory", verdict, found, needed, _host_change(case, needs, available, largest) if verdict != "ok" else "")


def _host_change(case: _Case, needs: _HostMemory, available: int, largest: int) -> str:
    """What leaves some room, or what is just enough; else a smaller model."""
    for share in (NEAR, 1.0):
        if needs.total > share * available or needs.learner > share * largest:
            change = _change_to(case, needs, share * available, share * largest)
            if change:
                return change
    numbers = {"generator.replicas": case.recipe.generator.replicas, "learner.num_ranks": case.recipe.learner.num_ranks}
    fewer = [f"lower {key} (now {number})" for key, number in numbers.items() if number > 1]
    return ", or ".join(["choose a smaller model.path", *fewer, "add a node"])


def _change_to(case: _Case, needs: _HostMemory, total: float, largest: float) -> str:
    """What brings all under `total` and a rank under `largest` bytes, the first of: fewer graders, a smaller cache, less for the learner,
    the last two together; "" where none does."""
    recipe, missing = case.recipe, needs.total - total

    def learner_change(spared: float) -> str:
        rank = min((spared - missing) / needs.num_ranks + needs.learner, largest) - LEARNER_PROCESS_BYTES
        change = change_that_fits(case.model.shape, case.settings, int(rank), case.model.num_parameters)
        return f"set {change}" if change else ""

    least_cache = 1.05 * case.one_sequence_tokens * case.token_bytes
    spared = recipe.generator.replicas * max(0.0, case.cache_bytes - least_cache)
    if needs.learner <= largest:
        if fewer := _fewer_graders(recipe, needs.scorers, missing):
            return fewer
        if missing <= spared:
            return _smaller_cache(recipe, case.cache_bytes - missing / recipe.generator.replicas)
    if case.device.kind == "cuda":
        return _host_change_beside_gpus(case)
    if change := learner_change(0):
        return change
    both = learner_change(spared) if spared else ""
    return f"{both}, and {_smaller_cache(recipe, least_cache)}" if both else ""


def _fewer_graders(recipe: Recipe, scorers_bytes: int, missing: float) -> str:
    scorer = recipe.scorer
    number = scorer.num_actors * scorer.num_processes
    enough = floor((scorers_bytes - missing) / (scorers_bytes / number))
    now = f"now {scorer.num_actors} x {scorer.num_processes}"
    return f"lower scorer.num_actors x scorer.num_processes ({now}) to {enough} in all" if 1 <= enough < number else ""


def _smaller_cache(recipe: Recipe, size: float) -> str:
    return f"lower generator.kv_cache_gib (now {recipe.generator.kv_cache_gib:g}) to {0.999 * size / 2**30:.3g}"


def _host_change_beside_gpus(case: _Case) -> str:
    if case.recipe.learner.average == "last_k":
        return f'lower learner.average_last (now {case.recipe.learner.average_last}) or set learner.average = "ema", which keeps one set'
    if case.recipe.learner.offload != "none":
        return f'set learner.offload = "none" (now "{case.recipe.learner.offload}"), where the GPUs hold it, or use hosts with more memory'
    if case.settings.num_averaged_sets:
        return 'set learner.average = "none", or use hosts with more memory'
    return "end what else uses the hosts' memory, or use hosts with more of it"


# GPUs -----------------------------------------------------------------------------------------------------------------------------------


def _on_gpus(case: _Case) -> Iterator[Finding]:
    """Judged by those GPUs that have most to give, as many as the engines take."""
    known = [gpu for node in case.nodes for gpu in node.gpus if gpu.memory_bytes is not None]
    if len(known) < case.num_gpus:
        yield Finding("learner memory", "warning", "GPUs whose memory is not known: nvidia-smi does not tell it", _parts(case.learner))
        return
    tightest = sorted(known, key=_free, reverse=True)[case.num_gpus - 1]
    yield from _gpus_in_use(case, known)
    yield _learner_on_gpu(case, tightest, known)
    if case.recipe.generator.sleep and case.device.shares_gpu:
        yield _both_awake(case, tightest)
    yield _gpu_kv_cache(case, tightest)


def _free(gpu: Gpu) -> int:
    return (gpu.memory_bytes or 0) if gpu.free_bytes is None else gpu.free_bytes


def _share(case: _Case, gpu: Gpu) -> float:
    """What vLLM wants to find free at its start, and takes."""
    return case.recipe.generator.gpu_memory_utilization * (gpu.memory_bytes or 0)


def _gpus_in_use(case: _Case, known: Sequence[Gpu]) -> Iterator[Finding]:
    """GPUs of which others hold so much that vLLM would refuse to start there. Ray hands out each node's first ones."""
    first = [(node.name, gpu) for node in case.nodes for gpu in node.gpus[: case.num_gpus] if gpu.memory_bytes is not None]
    busy = [(name, gpu) for name, gpu in first if _free(gpu) < _share(case, gpu)]
    num_free = sum(_free(gpu) >= _share(case, gpu) for gpu in known)
    if not busy:
        return
    found = "; ".join(f"on {name}: {gpu.name} has {gigabytes(_free(gpu))} free" for name, gpu in busy)
    share, number = case.recipe.generator.gpu_memory_utilization, counted(case.num_gpus, "GPU")
    needed = f"{number} with {gigabytes(_share(case, busy[0][1]))} free for generator.gpu_memory_utilization = {share:g}"
    change = "end what else uses them (nvidia-smi), hide them by CUDA_VISIBLE_DEVICES, or lower generator.gpu_memory_utilization"
    yield Finding("GPUs in use", "failed" if num_free < case.num_gpus else "warning", found, needed, change)


def _learner_on_gpu(case: _Case, gpu: Gpu, known: Sequence[Gpu]) -> Finding:
    memory, limit = case.learner, _learner_limit(case, gpu)
    found, verdict = f"{gpu.name} with {gigabytes(limit)} for one learner rank", _verdict(memory.peak, limit)
    if verdict != "ok":
        return Finding("learner memory", verdict, found, _parts(memory), _learner_change(case, limit))
    smallest = min(known, key=lambda gpu: gpu.memory_bytes or 0)
    if _verdict(memory.peak, (smallest.memory_bytes or 0) - GPU_CONTEXT_BYTES) == "failed":
        found = f"{found}; but Ray may hand out a {smallest.name}"
        change = "start that node with --num-gpus=0, or without the GPU in CUDA_VISIBLE_DEVICES"
        return Finding("learner memory", "warning", found, _parts(memory), change)
    return Finding("learner memory", "ok", found, _parts(memory))


def _learner_limit(case: _Case, gpu: Gpu) -> int:
    return max(0, int(_free(gpu) - _generator_bytes(case, gpu)) - GPU_CONTEXT_BYTES)


def _generator_bytes(case: _Case, gpu: Gpu) -> float:
    """What the generator holds of the learner's GPU while that trains."""
    if not case.device.shares_gpu:
        return 0
    return GPU_CONTEXT_BYTES + (0 if case.recipe.generator.sleep else _share(case, gpu))


def _both_awake(case: _Case, gpu: Gpu) -> Finding:
    """A generator that sleeps while the learner trains is awake when weights are published, and holds its share beside the resting learner;
    one that replaces another asks for as much at its start."""
    resting, share, room = case.learner.at_rest, _share(case, gpu), _free(gpu) - 2 * GPU_CONTEXT_BYTES
    verdict, utilization = _verdict(resting, max(0.0, room - share)), case.recipe.generator.gpu_memory_utilization
    needed = f"learner at rest {gigabytes(resting)}, generator {gigabytes(share)} (generator.gpu_memory_utilization = {utilization:g})"
    change = "" if verdict == "ok" else _change_for_both(case, gpu, room)
    return Finding("memory with both awake", verdict, f"{gpu.name} with {gigabytes(max(0, room))} for both", needed, change)


def _change_for_both(case: _Case, gpu: Gpu, room: int) -> str:
    """A smaller share of the generator's, where its weights and one sequence still fit into that; else less of the learner."""
    share = (room - case.learner.at_rest / NEAR) / (gpu.memory_bytes or 1)
    least = case.model.weight_bytes(case.recipe) + VLLM_WORKSPACE_BYTES + case.one_sequence_tokens * case.token_bytes
    if floor(100 * share) / 100 * (gpu.memory_bytes or 0) >= least:
        return f"lower generator.gpu_memory_utilization to {floor(100 * share) / 100:g}"
    return 'set learner.offload = "optimizer" or learner.lora_rank, or choose a smaller model.path'


def _learner_change(case: _Case, limit: int) -> str:
    if change := change_that_fits(case.model.shape, case.settings, limit, case.model.num_parameters):
        return f"set {change}"
    return "no setting of one rank is enough: raise learner.num_ranks with learner.zero_stage = 3, or choose a smaller model.path"


def _gpu_kv_cache(case: _Case, gpu: Gpu) -> Finding:
    """A size that is given must fit into what the share leaves: vLLM takes all of it, whatever its share."""
    left = int(min(_share(case, gpu), _free(gpu))) - case.model.weight_bytes(case.recipe) - VLLM_WORKSPACE_BYTES
    share, given_gib = case.recipe.generator.gpu_memory_utilization, case.recipe.generator.gpu_kv_cache_gib
    if not given_gib:
        return _kv_cache(case, left, "generator.gpu_memory_utilization")
    if given_gib * 2**30 <= left:
        return _kv_cache(case, int(given_gib * 2**30), "generator.gpu_kv_cache_gib")
    found = f"{gigabytes(max(0, left))} left for the cache by generator.gpu_memory_utilization = {share:g} on a {gpu.name}"
    lower = f"lower generator.gpu_kv_cache_gib to {floor(10 * left / 2**30) / 10:g}, or " if left > 2**30 else ""
    change = f"{lower}raise generator.gpu_memory_utilization"
    return Finding("KV cache", "failed", found, f"generator.gpu_kv_cache_gib = {given_gib:g}", change)


def _kv_cache(case: _Case, cache_bytes: int, key: str) -> Finding:
    """One sequence of model.max_length must fit, or vLLM does not start; fewer than max_sequences means fewer at once, which is slower.

    key: the recipe's, which limits the cache.
    """
    recipe, generator, a_token, one = case.recipe, case.recipe.generator, case.token_bytes, case.one_sequence_tokens
    capacity = max(0, cache_bytes // a_token)
    typical = case.model.prompt_tokens + generator.max_tokens
    found = f"{gigabytes(max(0, cache_bytes))} for the cache: {capacity:,} tokens of {a_token:,} bytes"
    if capacity < one:
        needed = f"{one:,} tokens ({gigabytes(one * a_token)}) for one sequence of model.max_length = {recipe.model.max_length}"
        value = getattr(generator, key.removeprefix("generator."))
        more = f" to {one * a_token / 2**30 * 1.05:.3g} or more" if key.endswith("gib") else ""
        return Finding("KV cache", "failed", found, needed, f"raise {key} (now {value:g}){more}, or lower model.max_length")
    at_once = int(capacity // typical)
    wanted = min(generator.max_sequences, ceil(recipe.grpo.prompts_per_step * recipe.grpo.group_size / generator.replicas))
    needed = f"{wanted} responses of up to {typical:,.0f} tokens at once"
    if at_once < wanted:
        change = f"about {at_once} fit at their longest, others wait: raise {key}, or lower generator.max_sequences to that"
        return Finding("KV cache", "warning", found, needed, change)
    return Finding("KV cache", "ok", found, needed)
