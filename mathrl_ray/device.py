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
from mathrl_ray.types import WeightTransport

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Device:
    """The choice for one run."""

    kind: DeviceKind
    reason: str
    gpus_per_engine: float
    """GPUs that Ray reserves for the learner and for each generator; half of one where both share it."""
    communication_backend: Literal["gloo", "nccl"]
    generator_environment: Mapping[str, str]
    """Environment variables of the generator's process, set before vLLM is imported."""
    generator_arguments: Mapping[str, Any]
    """Arguments of vLLM's engine that depend on the device."""
    sizes_kv_cache: bool
    """The KV cache has generator.kv_cache_gib; else it fills generator.gpu_memory_utilization of the device."""
    weight_transport: WeightTransport
    transport_reason: str

    @property
    def shares_gpu(self) -> bool:
        """Whether the learner and the generator are on one GPU."""
        return 0 < self.gpus_per_engine < 1

    @property
    def writes_block(self) -> bool:
        """Whether the learner publishes into a block of shared memory, and not from GPU to GPU."""
        return self.weight_transport in ("shared_memory", "object_store")


def choose_device(
    requested: str, *, num_gpus: float, num_engines: int, weight_transport: str = "auto", placement: str = "separate", num_nodes: int = 1
) -> Device:
    """Pick the device of a run from `device.kind` and the GPUs that the cluster has, and how weights go from learner to generators.

    One learner and one generator share a single GPU only where the recipe says so: both then have to fit.

    Args:
        requested: device.kind.
        num_gpus: of the cluster.
        num_engines: learner.num_ranks + generator.replicas.
        weight_transport: driver.weight_transport; "ipc" says as well that one GPU is shared.
        placement: device.placement.
        num_nodes: of the cluster.

    Raises:
        RecipeError: GPUs are asked for and there are fewer than engines, or a transport that cannot work here.
    """
    wants_to_share = "shared" in (placement, "shared" if weight_transport == "ipc" else "")
    shares = wants_to_share and requested != "cpu" and num_gpus >= 1 and num_engines == 2
    if requested == "cuda" and placement == "shared" and num_gpus < 1:
        raise RecipeError("device.placement = 'shared' needs a GPU, the cluster has none: add one, or set device.kind to 'auto' or 'cpu'.")
    if requested == "cuda" and num_gpus < num_engines and not shares:
        raise RecipeError(
            f"device.kind = 'cuda' needs {num_engines} GPUs (learner.num_ranks + generator.replicas), the cluster has {num_gpus:g}: "
            "lower one of these, set device.placement to 'shared' (one learner and one generator on one GPU), or device.kind to 'auto' or "
            "'cpu'."
        )
    if requested == "cpu":
        return _cpu("device.kind = 'cpu'", weight_transport, num_nodes)
    if shares:
        named = "device.placement = 'shared'" if placement == "shared" else "driver.weight_transport = 'ipc'"
        return _cuda(f"{named}: learner and generator share one GPU", weight_transport, gpus_per_engine=0.5)
    if num_gpus >= num_engines:
        return _cuda(f"the cluster has {num_gpus:g} GPUs for {num_engines} engines", weight_transport, gpus_per_engine=1)
    return _cpu(f"the cluster has {num_gpus:g} GPUs, {num_engines} engines need one each", weight_transport, num_nodes)


def _choose_transport(requested: str, kind: DeviceKind, gpus_per_engine: float, num_nodes: int = 1) -> tuple[WeightTransport, str]:
    """How weights go, and why.

    Raises:
        RecipeError: the recipe names a transport that cannot work here.
    """
    best: WeightTransport
    if kind == "cpu" and num_nodes > 1:
        best, why = "object_store", f"the engines run on the CPU, and the cluster has {num_nodes} nodes"
    elif kind == "cpu":
        best, why = "shared_memory", "the engines run on the CPU"
    elif gpus_per_engine < 1:
        best, why = "ipc", "learner and generator share one GPU, where NCCL allows one rank only"
    else:
        best, why = "nccl", "learner and generators have a GPU each"
    if requested in ("auto", best):
        return best, why
    if requested == "shared_memory":
        return "shared_memory", "driver.weight_transport = 'shared_memory'"
    if requested == "object_store":
        return "object_store", "driver.weight_transport = 'object_store'"
    needs = "a GPU for learner and generators each" if requested == "nccl" else "one learner and one generator on one GPU"
    raise RecipeError(
        f"driver.weight_transport = {requested!r} needs {needs}; here {why}. Set it to 'auto' (which takes {best!r}) or 'shared_memory'."
    )


def _cpu(reason: str, weight_transport: str, num_nodes: int) -> Device:
    transport, transport_reason = _choose_transport(weight_transport, "cpu", 0, num_nodes)
    return Device(
        kind="cpu",
        reason=reason,
        gpus_per_engine=0,
        communication_backend="gloo",
        generator_environment={
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # Ray and the operating system place the threads
            "TORCH_COMPILE_DISABLE": "1",  # compiling the sampler costs 4 to 12 s and gains nothing at this size
            # oneDNN would keep up to 1,024 compiled operations, one a shape: 300 MiB more over 400 steps, and not faster with them.
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0",
        },
        # Seeded requests fail on the CPU where prefill is chunked ("CPU Generator does not use offset").
        generator_arguments={"enforce_eager": True, "enable_chunked_prefill": False},
        sizes_kv_cache=True,
        weight_transport=transport,
        transport_reason=transport_reason,
    )


def _cuda(reason: str, weight_transport: str, *, gpus_per_engine: float) -> Device:
    transport, transport_reason = _choose_transport(weight_transport, "cuda", gpus_per_engine)
    # Handles of GPU memory reach the worker pickled, through this user's own sockets; vLLM wants to be told that this is meant.
    environment = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if transport == "ipc" else {}
    return Device(
        kind="cuda",
        reason=reason,
        gpus_per_engine=gpus_per_engine,
        communication_backend="nccl",
        generator_environment=environment,
        generator_arguments={},
        sizes_kv_cache=False,
        weight_transport=transport,
        transport_reason=transport_reason,
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


def limit_gpu_memory(device: Device, share: float) -> None:
    """Keep this process's tensors within a share of its GPU, where it has a half of one: the other engine counts on the rest.

    Args:
        device: of the run.
        share: of the GPU's memory, above 0 and at most 1.
    """
    if device.shares_gpu:
        import torch

        torch.cuda.set_per_process_memory_fraction(share)


def release_cached_memory(device: Device) -> None:
    """Give what PyTorch keeps for its next tensors back to the GPU, so that the other engine can take it."""
    if device.shares_gpu:
        import torch

        torch.cuda.empty_cache()


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
