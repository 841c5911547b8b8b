"""The generator: one vLLM engine that samples responses and takes new weights without losing what is in flight.

Wrapped by Ray in placement.py, seen by the driver as `interfaces.Generator`. Knows vLLM; knows no learner, no reward, no Ray.
"""

import asyncio
import importlib
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from safetensors import safe_open

from mathrl_ray.actors.engine_statistics import EngineNotes, stat_loggers
from mathrl_ray.actors.watchdog import Watchdog
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.device import Device
from mathrl_ray.types import (
    OWN_DISTRIBUTION,
    Completion,
    EngineStatistics,
    GenerationRequest,
    SamplingSettings,
    WeightManifest,
    WeightMeeting,
)
from mathrl_ray.weight_sync.carried_block import CarriedBlock
from mathrl_ray.weight_sync.receiver import Receiver, receiver_for
from mathrl_ray.weight_sync.shared_memory import SHARED_MEMORY_FOLDER, block_prefix

SHUTDOWN_GRACE_S = 1.0
"""What the engine's processes get to end by themselves; nothing of theirs needs saving."""
NOTE_EVERY_S = 0.5
ABORT_AGAIN_S = 0.02
SHORT_TOKENS = 16
PAUSE_TAIL_S = 0.02
"""vLLM's pause_generation returns this long after generation has stopped."""


@dataclass(frozen=True, slots=True)
class GeneratorFacts:
    """What the driver and the learner need to know of a started engine."""

    stop_token_ids: tuple[int, ...]
    """Ids that end a response and that min_tokens masks; the learner masks the same ones."""


class Generator:
    """See `interfaces.Generator`. One instance owns one engine; its methods may run at the same time."""

    name: str = "generator"

    def __init__(self) -> None:
        self._engine: Any = None
        self._request_numbers = itertools.count()
        self._expected_names: frozenset[str] = frozenset()
        self._failure: str | None = None
        self._shared_memory_files: list[Path] = []
        self._processes: list[BaseProcess] = []
        """The engine's, which this one has started."""
        self._receiver: Receiver | None = None
        self._carried = CarriedBlock()
        # The engine's sockets, which it never removes, go into a folder that is.
        self._sockets = tempfile.TemporaryDirectory(prefix="mathrl-", ignore_cleanup_errors=True)
        self._watchdog: Watchdog | None = None
        self._request_ids: set[str] = set()
        """Of the requests that the engine works on and that `abort` ends."""
        self._is_stopping = False
        self._notes = EngineNotes()
        self._is_asleep, self._falling_asleep = False, asyncio.Lock()
        self._num_at_work, self._is_idle = 0, asyncio.Event()
        self._is_idle.set()

    async def preload(self, recipe: Recipe, device: Device) -> None:
        """Set the process's environment and import the engine, which takes seconds, while the driver still prepares."""
        os.environ.update(device.generator_environment)
        os.environ.update(OMP_NUM_THREADS=str(recipe.generator.num_threads), VLLM_RPC_BASE_PATH=self._sockets.name)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if self._watchdog is None:
            blocks = f"{SHARED_MEMORY_FOLDER}/{block_prefix()}*"
            self._watchdog = await asyncio.to_thread(Watchdog, patterns=[blocks], folders=[self._sockets.name])
        await asyncio.to_thread(importlib.import_module, "vllm.v1.engine.async_llm")

    async def setup(self, recipe: Recipe, device: Device, model_folder: str) -> GeneratorFacts:
        """Start the engine on a model folder; policy_version is 0 afterwards."""
        await self.preload(recipe, device)
        from vllm.v1.engine.async_llm import AsyncLLM

        self._expected_names = checkpoint_names(Path(model_folder))
        self._receiver = receiver_for(device.weight_transport, recipe.driver.sync_limit_s)
        # Kept, it stays the old weights' where responses are in flight; new ones share none of it, since prefix caching is off then.
        self._clears_cache = recipe.generator.kv_on_update == "recompute"
        # The constructor blocks while the engine's processes start: in a thread, so that this actor can still be asked and ended.
        async with self._noting():
            arguments, loggers = engine_arguments(recipe, device, model_folder), stat_loggers(self._notes)
            self._engine = await asyncio.to_thread(AsyncLLM.from_engine_args, arguments, stat_loggers=loggers)
        self._shared_memory_files, self._processes = _shared_memory_files(), multiprocessing.active_children()
        await self._engine.update_weight_version("0")
        return GeneratorFacts(self._stop_token_ids())

    @asynccontextmanager
    async def _noting(self) -> AsyncIterator[None]:
        """Tell the watchdog again and again what there is while the engine starts, and once more afterwards."""
        assert self._watchdog is not None, "preload() comes first"
        watchdog = self._watchdog

        async def note() -> None:
            while True:
                await asyncio.to_thread(watchdog.note)
                await asyncio.sleep(NOTE_EVERY_S)

        noting = asyncio.ensure_future(note())
        try:
            yield
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)
            await asyncio.to_thread(watchdog.note)

    def _stop_token_ids(self) -> tuple[int, ...]:
        """As the engine itself finds them, from the tokenizer and the model's generation config."""
        params = self._sampling_params(OWN_DISTRIBUTION, seed=0)
        generation_config = self._engine.model_config.try_get_generation_config()
        params.update_from_generation_config(generation_config, self._engine.get_tokenizer().eos_token_id)
        return tuple(sorted(params.all_stop_token_ids))

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """One completion a request, in the requests' order, whatever order they finish in.

        Raises:
            ValueError: the engine refuses a request (too long a prompt); the others of this call are given up, those of other calls go on.
            RuntimeError: the engine has died, or failed in an update.
        """
        self._check_usable()
        async with self._awake():
            tasks = [asyncio.ensure_future(self._complete(request)) for request in requests]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()  # those of a call that failed or was given up must not fill the engine

    async def _complete(self, request: GenerationRequest) -> Completion:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        params = self._sampling_params(request.sampling, request.seed)
        request_id = f"{request.group_id}/{request.sample}#{next(self._request_numbers)}"
        if request.sampling.max_tokens > SHORT_TOKENS:
            if self._is_stopping:
                return Completion("", (), (), (), "abort")
            self._request_ids.add(request_id)
        final = None
        # Errors become plain ones: to unpickle vLLM's, the driver would have to import vLLM.
        try:
            async for output in self._engine.generate({"prompt_token_ids": list(request.prompt_ids)}, params, request_id):
                final = output
        except VLLMClientError as error:
            raise ValueError(f"the engine refuses the request for {request.problem_id}: {error}") from error
        except EngineDeadError:
            self._failure = self._failure or "the engine's processes have ended"
            # Not its cause: every request gets the same exception, whose traceback grows with each, and printing them takes seconds.
            raise RuntimeError(self._failure) from None
        finally:
            self._request_ids.discard(request_id)
        assert final is not None, request_id
        return _completion(final.outputs[0])

    async def abort(self) -> None:
        """End all generation: what is in flight comes back as far as it is, with finish_reason abort, and so does, empty, what comes later.

        Requests for a few tokens are answered as ever: a step that is under way needs its canary to come to its end, and be saved.

        Raises:
            RuntimeError: the engine has died.
        """
        self._check_usable()
        self._is_stopping = True
        while self._request_ids:  # again: a request that was on its way to the engine has not been in it yet
            await self._engine.abort(list(self._request_ids))
            await asyncio.sleep(ABORT_AGAIN_S)

    async def engine_statistics(self) -> EngineStatistics:
        """Of the engine, since the last call."""
        return self._notes.take()

    async def sleep(self) -> None:
        """Give the GPU's memory back, weights to the host's, once nothing is in flight; the next request or update wakes the engine.

        Raises:
            RuntimeError: the engine has died, or failed in an update.
        """
        self._check_usable()
        async with self._falling_asleep:
            if not self._is_asleep:
                await self._is_idle.wait()  # nothing can begin meanwhile: it would need the lock
                self._is_asleep = True  # first: a call that is given up half-way leaves an engine that must be woken
                await self._engine.sleep(level=1, mode="wait")

    @asynccontextmanager
    async def _awake(self) -> AsyncIterator[None]:
        """Wake the engine where it sleeps, and keep it awake for the block."""
        async with self._falling_asleep:
            if self._is_asleep:
                await self._engine.wake_up()
                self._is_asleep = False
            self._num_at_work += 1
            self._is_idle.clear()
        try:
            yield
        finally:
            self._num_at_work -= 1
            if self._num_at_work == 0:
                self._is_idle.set()

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

    async def meet(self, meeting: WeightMeeting, index: int) -> None:
        """Join the learner and the other generators, as number `index` of them, where the transport needs it.

        Raises:
            RuntimeError: the learner was not there, or the group did not come about.
        """
        self._check_usable()
        assert self._receiver is not None, "setup() comes first"
        try:
            await self._receiver.meet(self._engine, meeting, index)
        except Exception as error:  # plain, as in `_complete`
            raise RuntimeError(f"the meeting with the learner failed: {error}") from error

    async def apply_weights(self, manifest: WeightManifest, block: Any = None) -> float:
        """Freeze requests in flight, load the weights, clear the cache (or keep it), go on. Returns seconds that generation stood still.

        Args:
            manifest: what was published.
            block: the bytes of `manifest.path`, [num_bytes] uint8, where that is on another machine.

        Raises:
            ValueError: the names differ from those of the folder that the engine was started on; nothing was changed.
            RuntimeError: the published weights are not what was announced, and nothing was changed; or the update failed half-way, and the
                engine refuses all further work.
        """
        self._check_usable()
        assert self._receiver is not None, "setup() comes first"
        try:
            check_names(manifest.names, self._expected_names)
        except ValueError as error:
            await self._receiver.refuse(str(error))
            raise
        if block is not None:
            manifest = await asyncio.to_thread(self._carried.take, manifest, block)
        await self._receiver.prepare(manifest)
        try:
            stopped = await self._unless_dead(self._update(manifest))
        except BaseException as error:  # a cancelled call too
            # Whatever went wrong, the model may hold a mix of old and new weights: it must not sample another token.
            self._failure = f"the update to policy version {manifest.policy_version} failed half-way: {error or type(error).__name__}"
            if isinstance(error, Exception):
                raise RuntimeError(self._failure) from error
            raise  # the caller has given up
        return time.monotonic() - stopped

    async def _update(self, manifest: WeightManifest) -> float:
        """Returns when generation stood still."""
        assert self._receiver is not None
        async with self._awake():
            await self._engine.pause_generation(mode="keep", clear_cache=self._clears_cache)
            stopped = time.monotonic() - PAUSE_TAIL_S
            await self._receiver.update(self._engine, manifest)
            await self._engine.resume_generation()
        return stopped

    async def _unless_dead(self, work: Coroutine[Any, Any, float]) -> float:
        """What `work` gives, unless the engine's process ends first: vLLM would leave its calls unanswered, until a limit."""
        loop, task, death = asyncio.get_running_loop(), asyncio.ensure_future(work), asyncio.Event()
        ended = asyncio.ensure_future(death.wait())
        for process in self._processes:
            loop.add_reader(process.sentinel, death.set)
        try:
            await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise RuntimeError("the engine's process has ended")
            return task.result()
        finally:
            task.cancel()
            ended.cancel()
            for process in self._processes:
                loop.remove_reader(process.sentinel)

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
        if self._receiver is not None:
            self._receiver.close()
        self._carried.close()
        for file in self._shared_memory_files:
            file.unlink(missing_ok=True)
        self._sockets.cleanup()  # what is left now, the watchdog removes when this process has ended


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

    generator = recipe.generator
    cache_gib = generator.kv_cache_gib if device.sizes_kv_cache else generator.gpu_kv_cache_gib
    arguments = {
        "model": model_folder,
        "trust_remote_code": recipe.model.trust_remote_code,
        "load_format": "safetensors",  # "auto" would take pickled weights where there are no others
        "dtype": recipe.model.dtype,
        "max_model_len": recipe.model.max_length,
        "max_num_seqs": generator.max_sequences + recipe.driver.canary_prompts,  # a canary does not queue behind a full engine
        "max_num_batched_tokens": max(recipe.model.max_length, generator.max_batched_tokens),  # prefill is not chunked on every device
        "enable_chunked_prefill": generator.chunked_prefill,
        "enforce_eager": not generator.cuda_graphs,
        "enable_sleep_mode": generator.sleep,
        "kv_cache_dtype": generator.kv_cache_dtype,
        "kv_cache_memory_bytes": int(cache_gib * 2**30) or None,
        "gpu_memory_utilization": generator.gpu_memory_utilization,
        "enable_prefix_caching": generator.prefix_caching and generator.kv_on_update == "recompute",
        "seed": recipe.run.seed,
        "logprobs_mode": "processed_logprobs",  # after temperature and min_tokens: what training compares with
        "disable_log_stats": True,  # vLLM's own loggers; those of engine_statistics.py are told all the same
    }
    return AsyncEngineArgs(**{**arguments, **_transfer_arguments(device), **device.generator_arguments})


def _transfer_arguments(device: Device) -> dict[str, Any]:
    """nccl and ipc are vLLM's own on this side; shared memory is ours."""
    from vllm.config import WeightTransferConfig

    from mathrl_ray.weight_sync.vllm_engine import BACKEND, WORKER_EXTENSION

    if not device.writes_block:
        return {"weight_transfer_config": WeightTransferConfig(backend=device.weight_transport)}
    return {"weight_transfer_config": WeightTransferConfig(backend=BACKEND), "worker_extension_cls": WORKER_EXTENSION}


def _completion(output: Any) -> Completion:
    spans = output.weight_versions or ()
    return Completion(
        text=output.text,
        token_ids=tuple(output.token_ids),
        logprobs=tuple(position[token].logprob for token, position in zip(output.token_ids, output.logprobs or (), strict=True)),
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
