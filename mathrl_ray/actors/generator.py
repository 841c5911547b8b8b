"""The generator: one vLLM engine that samples responses and takes new weights without losing what is in flight.

Wrapped by Ray in placement.py, seen by the driver as `interfaces.Generator`. Knows vLLM; knows no learner, no reward, no Ray.
"""

import asyncio
import importlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from safetensors import safe_open

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.device import Device
from mathrl_ray.types import OWN_DISTRIBUTION, Completion, GenerationRequest, SamplingSettings, WeightManifest

MAX_BATCHED_TOKENS = 8192
"""Prompt tokens that one engine step may take; at least model.max_length, since prefill is not chunked on every device."""
SHUTDOWN_GRACE_S = 1.0
"""What the engine's processes get to end by themselves; nothing of theirs needs saving."""


@dataclass(frozen=True, slots=True)
class GeneratorFacts:
    """What the driver and the learner need to know of a started engine."""

    stop_token_ids: tuple[int, ...]
    """Ids that end a response and that min_tokens masks; the learner masks the same ones."""


class Generator:
    """See `interfaces.Generator`. One instance owns one engine; its methods may run at the same time."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._request_numbers = itertools.count()
        self._expected_names: frozenset[str] = frozenset()
        self._failure: str | None = None
        self._shared_memory_files: list[Path] = []
        # The engine's sockets, which it never removes, go into a folder that is.
        self._sockets = tempfile.TemporaryDirectory(prefix="mathrl-", ignore_cleanup_errors=True)

    async def preload(self, recipe: Recipe, device: Device) -> None:
        """Set the process's environment and import the engine, which takes seconds, while the driver still prepares."""
        os.environ.update(device.generator_environment)
        os.environ.update(OMP_NUM_THREADS=str(recipe.generator.num_threads), VLLM_RPC_BASE_PATH=self._sockets.name)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        await asyncio.to_thread(importlib.import_module, "vllm.v1.engine.async_llm")

    async def setup(self, recipe: Recipe, device: Device, model_folder: str) -> GeneratorFacts:
        """Start the engine on a model folder; policy_version is 0 afterwards."""
        await self.preload(recipe, device)
        from vllm.v1.engine.async_llm import AsyncLLM

        self._expected_names = checkpoint_names(Path(model_folder))
        # The constructor blocks while the engine's processes start: in a thread, so that this actor can still be asked and ended.
        self._engine = await asyncio.to_thread(AsyncLLM.from_engine_args, engine_arguments(recipe, device, model_folder))
        self._shared_memory_files = _shared_memory_files()
        await self._engine.update_weight_version("0")
        return GeneratorFacts(stop_token_ids=self._stop_token_ids())

    def _stop_token_ids(self) -> tuple[int, ...]:
        """As the engine itself finds them, from the tokenizer and the model's generation config."""
        params = self._sampling_params(OWN_DISTRIBUTION, seed=0)
        generation_config = self._engine.model_config.try_get_generation_config()
        params.update_from_generation_config(generation_config, self._engine.get_tokenizer().eos_token_id)
        return tuple(sorted(params.all_stop_token_ids))

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """One completion a request, in the requests' order, whatever order they finish in."""
        self._check_usable()
        return list(await asyncio.gather(*(self._complete(request) for request in requests)))

    async def _complete(self, request: GenerationRequest) -> Completion:
        params = self._sampling_params(request.sampling, request.seed)
        request_id = f"{request.group_id}/{request.sample}#{next(self._request_numbers)}"
        final = None
        async for output in self._engine.generate({"prompt_token_ids": list(request.prompt_ids)}, params, request_id):
            final = output
        assert final is not None, request_id
        return _completion(final.outputs[0])

    def _sampling_params(self, sampling: SamplingSettings, seed: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            stop=list(sampling.stop),
            include_stop_str_in_output=True,
            logprobs=0,  # the sampled token's only
            seed=seed,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    async def apply_weights(self, manifest: WeightManifest) -> float:
        """Freeze requests in flight, load the weights, clear the cache, go on. Returns seconds that generation stood still.

        Raises:
            ValueError: the names differ from those of the folder that the engine was started on; nothing was changed.
            RuntimeError: the update failed half-way; the engine refuses all further work.
        """
        self._check_usable()
        check_names(manifest.names, self._expected_names)
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        began = time.monotonic()
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        update = {"path": manifest.path, "tensors": [asdict(entry) for entry in manifest.tensors]}
        try:
            await self._engine.start_weight_update()
            await self._engine.update_weights(WeightTransferUpdateRequest(update_info=update))
            await self._engine.finish_weight_update(str(manifest.policy_version))
        except Exception as error:
            # Whatever went wrong, the model may hold a mix of old and new weights: it must not sample another token.
            self._failure = f"the update to policy version {manifest.policy_version} failed half-way: {error}"
            raise RuntimeError(self._failure) from error
        await self._engine.resume_generation()
        return time.monotonic() - began

    async def policy_version(self) -> int:
        return int(await self._engine.get_weight_version())

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise RuntimeError(self._failure)

    async def shutdown(self) -> None:
        """End the engine's processes. They do not end in time by themselves, and leave their shared memory behind: it is removed here."""
        if self._engine is not None:
            await asyncio.to_thread(self._engine.shutdown, SHUTDOWN_GRACE_S)
            self._engine = None
        for file in self._shared_memory_files:
            file.unlink(missing_ok=True)
        self._sockets.cleanup()


def _shared_memory_files() -> list[Path]:
    """Files that Python's shared memory (psm_*) has mapped into this process's children: the engine's message queues."""
    files: set[str] = set()
    for child in psutil.Process().children(recursive=True):
        try:
            files.update(mapping.path for mapping in child.memory_maps() if mapping.path.startswith("/dev/shm/psm_"))
        except psutil.NoSuchProcess:  # a helper that has ended meanwhile holds nothing
            continue
    return [Path(file) for file in sorted(files)]


def engine_arguments(recipe: Recipe, device: Device, model_folder: str) -> Any:
    """vLLM's arguments for a recipe on a device."""
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig

    from mathrl_ray.weight_sync.vllm_engine import BACKEND, WORKER_EXTENSION

    arguments = {
        "model": model_folder,
        "dtype": recipe.model.dtype,
        "max_model_len": recipe.model.max_length,
        "max_num_seqs": recipe.generator.max_sequences,
        "max_num_batched_tokens": max(recipe.model.max_length, MAX_BATCHED_TOKENS),
        "kv_cache_memory_bytes": int(recipe.generator.kv_cache_gib * 2**30) if device.sizes_kv_cache else None,
        "gpu_memory_utilization": recipe.generator.gpu_memory_utilization,
        "seed": recipe.run.seed,
        "logprobs_mode": "processed_logprobs",  # after temperature and min_tokens: what training compares with
        "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
        "worker_extension_cls": WORKER_EXTENSION,
        "disable_log_stats": True,
    }
    return AsyncEngineArgs(**{**arguments, **device.generator_arguments})


def _completion(output: Any) -> Completion:
    spans = output.weight_versions or ()
    return Completion(
        text=output.text,
        token_ids=tuple(output.token_ids),
        logprobs=tuple(position[token].logprob for token, position in zip(output.token_ids, output.logprobs, strict=True)),
        version_runs=tuple((int(span.version), span.end - span.start) for span in spans),
        finish_reason=output.finish_reason,
    )


def checkpoint_names(folder: Path) -> frozenset[str]:
    """The tensors of a model folder, which are what an engine started on it expects at every update.

    Raises:
        RecipeError: the folder holds no safetensors files, from which alone names can be read without running code.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RecipeError(f"model.path = {folder}: holds no .safetensors files; save the model with save_pretrained")
    names: set[str] = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            names.update(tensors.keys())
    return frozenset(names)


def check_names(sent: Iterable[str], expected: Iterable[str]) -> None:
    """Compare the names of a publication with the receiver's, before anything is changed.

    Raises:
        ValueError: they differ; at most five names of each side are shown.
    """
    missing, unknown = sorted(set(expected) - set(sent)), sorted(set(sent) - set(expected))
    if missing or unknown:
        raise ValueError(
            f"the published weights are not those that the generator expects: {len(missing)} missing {missing[:5]}, "
            f"{len(unknown)} unknown {unknown[:5]}"
        )
