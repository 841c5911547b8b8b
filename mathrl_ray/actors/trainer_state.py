"""A learner's part of a checkpoint: the model as a folder that others open, and beside it what training needs to go on.

Called by learner.py, on every rank together. Knows torch and the engine's names; knows no loop. Nothing in these files is code:

    config.json, tokenizer files, model.safetensors     AutoModelForCausalLM and vLLM open the folder
    trainer/optimizer.safetensors                       <what>/<parameter>: float32 value, exp_avg, exp_avg_sq of each trained weight, whole
    trainer/average.safetensors                         <n>/<parameter>: what learner.average keeps (weight_average.py), where it does
    trainer/random-rank<N>.safetensors                  the bytes of torch's random states on a rank
    trainer/learner.json                                counters, and the random state that shuffles minibatches

In a folder of its own, since vLLM takes every .safetensors file beside config.json for weights. The weights' parts are whole, so that
another number of ranks or ZeRO stage can go on from them. With adapters, optimizer.safetensors holds the adapters, and the model is the
merged one; the stage's start model is needed again.
"""

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open

from mathrl_ray.actors.model_folder import write_model
from mathrl_ray.actors.tensor_file import TensorPlan, write_tensors
from mathrl_ray.actors.weight_average import WeightAverage

TRAINER, AVERAGE_FILE = "trainer", "average.safetensors"


@dataclass(frozen=True, slots=True)
class Counters:
    """Where a learner is in its stage."""

    optimizer_step: int
    """Which learning rate comes next."""
    policy_version: int
    skipped_in_a_row: int
    random_state: tuple[Any, ...]
    """Python's, which shuffles minibatches."""
    average: str = "none"
    """What kind of average average.safetensors is of."""
    num_averaged_sets: int = 0
    """How many sets of weights are there."""
    num_taken: int = 0
    """How many the average has taken in."""


def weight_plans(engine: Any, dtype: str) -> list[TensorPlan]:
    """What `engine.weights()` gives, in its order."""
    return [TensorPlan(name, getattr(torch, dtype), tuple(empty.shape)) for name, empty in engine.weight_shapes()]


def write_checkpoint(
    folder: Path, engine: Any, tokenizer: Any, counters: Counters, *, rank: int, dtype: str, average: WeightAverage | None = None
) -> dict[str, float]:
    """
    Args:
        folder: exists, seen by all ranks.
        engine: a deepspeed_engine.Engine.
        tokenizer: saved with the model.
        counters: the same on every rank.
        rank: this one; the first writes, the others take part in gathering what is divided.
        dtype: model.dtype.
        average: of the stage's weights, where one is kept.

    Raises:
        OSError: a file could not be written; this rank has taken part in all of the gathering.
    """
    trainer = folder / TRAINER
    weights, state = engine.weights(), engine.trainer_tensors()
    averaged = average.tensors(engine) if average else iter(())
    try:
        trainer.mkdir(exist_ok=True)
        _write_random(trainer / f"random-rank{rank}.safetensors")
        if rank != 0:
            return {}
        watch = _Memory()
        write_model(engine.module.model, tokenizer, folder, weight_plans(engine, dtype), watch.over(weights))
        plans = [TensorPlan(name, torch.float32, shape) for name, shape in engine.trainer_shapes()]
        write_tensors(trainer / "optimizer.safetensors", plans, watch.over(state))
        if average and average.sets:
            plans = [TensorPlan(name, torch.float32, shape) for name, shape in average.shapes(engine)]
            write_tensors(trainer / AVERAGE_FILE, plans, watch.over(averaged))
        content = json.dumps({**asdict(counters), "num_adam_steps": engine.num_optimizer_steps})
        _write_synced(trainer / "learner.json", content)
        sizes = (path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return {"checkpoint_bytes": float(sum(sizes)), "checkpoint_memory_gib": watch.growth_bytes / 2**30}
    finally:
        # On every rank, and also where this one's disk is full: the ranks gather each tensor together, and would wait for one that left.
        for _ in itertools.chain(weights, state, averaged):
            pass


def read_checkpoint(folder: Path, engine: Any, *, rank: int, average: WeightAverage | None = None) -> Counters:
    """Bring an engine that holds the stage's start model to where another one was when it wrote the folder.

    Raises:
        ValueError: other weights are trained here.
    """
    trainer = folder / TRAINER
    content = json.loads((trainer / "learner.json").read_text(encoding="utf-8"))
    num_adam_steps = content.pop("num_adam_steps")
    with safe_open(trainer / "optimizer.safetensors", framework="pt") as file:
        _check_shapes(folder, file, engine)
        if average and content.get("num_averaged_sets") and content["average"] == average.kind:  # else it begins here
            with safe_open(trainer / AVERAGE_FILE, framework="pt") as kept:
                average.restore(kept.get_tensor, content["num_averaged_sets"], content["num_taken"], engine)
        engine.restore(file.get_tensor, num_adam_steps)
    own_random = trainer / f"random-rank{rank}.safetensors"
    if own_random.exists():  # not where there were fewer ranks
        _read_random(own_random)
    version, internal, gauss = content["random_state"]
    return Counters(**{**content, "random_state": (version, tuple(internal), gauss)})


def _check_shapes(folder: Path, file: Any, engine: Any) -> None:
    saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys() if name.startswith("master/")}  # noqa: SIM118, no dict
    here = {name: shape for name, shape in engine.trainer_shapes() if name.startswith("master/")}
    if saved == here:
        return
    differing = sorted(name.removeprefix("master/") for name in saved.keys() | here.keys() if saved.get(name) != here.get(name))
    raise ValueError(
        f"{folder}: its trained weights are not those of this model; {len(differing)} differ in name or shape, the first {differing[0]}: "
        "model.path, learner.lora_rank and the model itself must be as they were"
    )


def _write_random(path: Path) -> None:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    write_tensors(path, [TensorPlan(name, state.dtype, tuple(state.shape)) for name, state in states.items()], iter(states.items()))


def _read_random(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        torch.set_rng_state(file.get_tensor("cpu"))
        if "cuda" in file.keys() and torch.cuda.is_available():  # noqa: SIM118, no dict
            torch.cuda.set_rng_state(file.get_tensor("cuda"))


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class _Memory:
    """How much this process grows while tensors go by."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before_bytes = self._process.memory_info().rss
        self.growth_bytes = 0

    def over(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for item in tensors:
            yield item
            self.growth_bytes = max(self.growth_bytes, self._process.memory_info().rss - self._before_bytes)
