"""Where the engines run and what follows from it, with the reason as text.

Called by placement.py, the generator and the learner. The only file that tells a CPU from a GPU; knows no engine, only the names of
their settings.
"""

import importlib.util
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mathrl_ray.config import RecipeError

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Device:
    """The choice for one run."""

    kind: DeviceKind
    reason: str
    gpus_per_engine: int
    """GPUs that Ray reserves for the learner and for each generator."""
    communication_backend: Literal["gloo", "nccl"]
    generator_environment: Mapping[str, str]
    """Environment variables of the generator's process, set before vLLM is imported."""
    generator_arguments: Mapping[str, Any]
    """Arguments of vLLM's engine that depend on the device."""
    sizes_kv_cache: bool
    """The KV cache has generator.kv_cache_gib; else it fills generator.gpu_memory_utilization of the device."""


def choose_device(requested: str, *, num_gpus: float, num_engines: int) -> Device:
    """Pick the device of a run from `device.kind` and the GPUs that the cluster has.

    Raises:
        RecipeError: GPUs are asked for and there are fewer than engines.
    """
    if requested == "cuda" and num_gpus < num_engines:
        raise RecipeError(
            f"device.kind = 'cuda' needs {num_engines} GPUs (learner.num_ranks + generator.replicas), the cluster has {num_gpus:g}: "
            "lower one of these, or set device.kind to 'auto' or 'cpu'."
        )
    if requested == "cpu":
        return _cpu("device.kind = 'cpu'")
    if num_gpus >= num_engines:
        return _cuda(f"the cluster has {num_gpus:g} GPUs for {num_engines} engines")
    return _cpu(f"the cluster has {num_gpus:g} GPUs, {num_engines} engines need one each")


def _cpu(reason: str) -> Device:
    return Device(
        kind="cpu",
        reason=reason,
        gpus_per_engine=0,
        communication_backend="gloo",
        generator_environment={
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # Ray and the operating system place the threads
            "TORCH_COMPILE_DISABLE": "1",  # compiling the sampler costs 4 to 12 s and gains nothing at this size
        },
        # Seeded requests fail on the CPU where prefill is chunked ("CPU Generator does not use offset").
        generator_arguments={"enforce_eager": True, "enable_chunked_prefill": False},
        sizes_kv_cache=True,
    )


def _cuda(reason: str) -> Device:
    return Device(
        kind="cuda",
        reason=reason,
        gpus_per_engine=1,
        communication_backend="nccl",
        generator_environment={},
        generator_arguments={},
        sizes_kv_cache=False,
    )


def device_name(kind: DeviceKind) -> str:
    """The name that a GPU's maker gives it; "" for a CPU, whose peak rate is not known."""
    if kind == "cpu":
        return ""
    import torch

    return str(torch.cuda.get_device_name())


def peak_memory_gib(kind: DeviceKind) -> float:
    """The most memory that this process has held so far: of the GPU, or resident where there is none."""
    if kind == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
    import torch

    return float(torch.cuda.max_memory_allocated()) / 2**30


def attention_implementation(requested: str, kind: DeviceKind, dtype: str) -> tuple[str, str]:
    """The learner's attention, in the names of transformers, and why.

    Raises:
        RecipeError: FlashAttention-2 is asked for and cannot work here.
    """
    obstacle = _flash_attention_obstacle(kind, dtype)
    if requested == "flash_attention_2" and obstacle:
        raise RecipeError(f"learner.attention = 'flash_attention_2': {obstacle}. Set learner.attention to 'auto' or 'sdpa'.")
    if requested != "auto":
        return requested, f"learner.attention = {requested!r}"
    return ("sdpa", obstacle) if obstacle else ("flash_attention_2", "the flash-attn package is installed")


def _flash_attention_obstacle(kind: DeviceKind, dtype: str) -> str:
    if kind != "cuda":
        return "FlashAttention-2 needs a GPU"
    if dtype != "bfloat16":
        return f"FlashAttention-2 needs model.dtype = 'bfloat16', not {dtype!r}"
    if importlib.util.find_spec("flash_attn") is None:
        return "the flash-attn package is not installed"
    return ""
