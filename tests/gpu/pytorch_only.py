"""What the learner's arithmetic does on a GPU, on a machine that has only PyTorch and transformers: no Ray, no vLLM, no DeepSpeed.

    python tests/gpu/pytorch_only.py                              # the shapes of Qwen2.5-Math-1.5B, random weights: under 8 minutes
    python tests/gpu/pytorch_only.py --shapes tiny --device cpu   # every part of it in seconds, to see that it works

From the repository's root. It measures core/logprobs, core/batching and actors/policy_module as they are; without a GPU it says `skipped`
and ends with 0. A part that runs out of memory says so, and the others go on; one that is at work when the time is over is given up.
The table comes last, then one line of JSON; the status is 1 where a check failed.
"""

import argparse
import gc
import json
import math
import random
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen2Config

from mathrl_ray.actors.policy_module import PolicyModule
from mathrl_ray.core.batching import micro_batches, padding_fraction
from mathrl_ray.core.logprobs import chunked_response_log_probs
from mathrl_ray.core.throughput import peak_flops, training_flops
from mathrl_ray.core.tokenization import pad_batch
from mathrl_ray.types import OWN_DISTRIBUTION, SftExample

LIMIT_S = 450.0
"""Of all parts together."""


@dataclass(frozen=True)
class Shapes:
    """A model and the work that it is given."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    length: int
    """Tokens of a sequence, a quarter of them prompt."""
    num_sequences: int
    repeats: int


SHAPES = {
    "qwen": Shapes(151936, 1536, 8960, 28, 12, 2, length=1024, num_sequences=8, repeats=3),
    "tiny": Shapes(512, 64, 128, 2, 4, 2, length=64, num_sequences=4, repeats=2),
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    part: str
    what: str
    figure: str
    holds: bool = True


class Machine:
    """The device, its clock and its memory."""

    def __init__(self, device: str) -> None:
        self.device, self.is_gpu = torch.device(device), device == "cuda"

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name() if self.is_gpu else "CPU"

    def seconds(self, work: Callable[[], Any], repeats: int) -> float:
        """Median, after one run that is not counted."""
        work()
        times = []
        for _ in range(repeats):
            self._wait()
            began = time.perf_counter()
            work()
            self._wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def peak_gib(self, work: Callable[[], Any]) -> float:
        """What `work` takes at most above what is there before; NaN on a CPU, where PyTorch does not count it."""
        if not self.is_gpu:
            work()
            return float("nan")
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        self._wait()
        return (torch.cuda.max_memory_allocated() - before) / 2**30

    def _wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()


@contextmanager
def model_of(machine: Machine, shapes: Shapes, dtype: torch.dtype, attention: str = "sdpa", checkpointing: bool = False) -> Iterator[Any]:
    """The policy with random weights from a seed; its memory is free after the block, whoever still holds the module."""
    config = Qwen2Config(
        vocab_size=shapes.vocab_size, hidden_size=shapes.hidden_size, intermediate_size=shapes.intermediate_size,
        num_hidden_layers=shapes.num_layers, num_attention_heads=shapes.num_heads, num_key_value_heads=shapes.num_kv_heads,
        max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(machine.device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    try:
        yield PolicyModule(model, chunk_tokens=4096)
    finally:
        model.to("meta")
        gc.collect()
        if machine.is_gpu:
            torch.cuda.empty_cache()


def sequences(shapes: Shapes, lengths: list[int]) -> list[SftExample]:
    draw = random.Random(0)
    made = [[draw.randrange(shapes.vocab_size) for _ in range(length)] for length in lengths]
    return [SftExample(tuple(ids[: len(ids) // 4]), tuple(ids[len(ids) // 4 :])) for ids in made]


def full_batch(machine: Machine, shapes: Shapes) -> Any:
    return pad_batch(sequences(shapes, [shapes.length] * shapes.num_sequences), pad_id=0).to(machine.device)


def train(policy: Any, batch: Any) -> torch.Tensor:
    """Forward and backward of the mean log-probability; the gradients are those of this call."""
    policy.zero_grad(set_to_none=True)
    log_probs, _ = policy(batch, OWN_DISTRIBUTION)
    loss = -log_probs.sum() / sum(batch.response_lengths)
    loss.backward()
    return loss.detach()


def gradient(policy: Any) -> torch.Tensor:
    return torch.cat([parameter.grad.float().flatten() for parameter in policy.parameters()])


def _gib(*sizes: float) -> str:
    return "not counted on a CPU" if any(math.isnan(size) for size in sizes) else f"{' and '.join(f'{size:.2f}' for size in sizes)} GiB"


# --- the parts ----------------------------------------------------------------------------------------------------------


def chunked_log_probs(machine: Machine, shapes: Shapes) -> list[Row]:
    """The head in chunks against the head at once in float32, on hidden states in bfloat16."""
    num, part = shapes.length * shapes.num_sequences, "chunked log-probs"
    torch.manual_seed(0)
    hidden = torch.randn(num, shapes.hidden_size, device=machine.device, dtype=torch.bfloat16)
    weight = torch.randn(shapes.vocab_size, shapes.hidden_size, device=machine.device, dtype=torch.bfloat16) * shapes.hidden_size**-0.5
    labels = torch.randint(shapes.vocab_size, (num,), device=machine.device)
    position = torch.arange(num, device=machine.device)

    def run(chunk_tokens: int) -> torch.Tensor:
        log_probs, _ = chunked_response_log_probs(
            hidden, lambda rows: rows @ weight.T, labels, position,
            temperature=1.0, min_tokens=0, stop_token_ids=(), chunk_tokens=chunk_tokens, with_entropy=True,
        )  # fmt: skip
        return log_probs

    with torch.no_grad():
        chunked, whole = run(num // 8), run(num)
        parts = zip(hidden.split(512), labels.split(512), strict=True)
        exact = torch.cat([torch.log_softmax(h.float() @ weight.float().T, -1).gather(-1, y[:, None])[:, 0] for h, y in parts])
        gap, error = (chunked - whole).abs().max().item(), (chunked - exact).abs().max().item()
        memory = [machine.peak_gib(lambda size=size: run(size)) for size in (num // 8, num)]
        seconds = [machine.seconds(lambda size=size: run(size), shapes.repeats) for size in (num // 8, num)]
    return [
        Row(part, "8 chunks against one, largest difference", f"{gap:.1e} nats", gap < 1e-3),
        Row(part, "bfloat16 head against float32, largest difference", f"{error:.3f} nats", error < 0.2),
        Row(part, "memory, 8 chunks and one", _gib(*memory), not machine.is_gpu or memory[0] < memory[1]),
        Row(part, "time, 8 chunks and one", f"{1e3 * seconds[0]:.1f} and {1e3 * seconds[1]:.1f} ms"),
    ]


def batching(machine: Machine, shapes: Shapes) -> list[Row]:
    """Sequences of lengths that differ as MATH's do: sorted into full micro-batches, and eight at a time as they come."""
    draw, part = random.Random(0), "batching"
    longest = shapes.length
    lengths = [max(8, min(longest, round(draw.lognormvariate(0, 0.6) * longest / 3))) for _ in range(8 * shapes.num_sequences)]
    rows = sequences(shapes, lengths)
    sorted_groups = micro_batches(lengths, max_tokens=longest * shapes.num_sequences)
    plain_groups = [list(range(start, start + shapes.num_sequences)) for start in range(0, len(rows), shapes.num_sequences)]

    with model_of(machine, shapes, torch.bfloat16, checkpointing=True) as policy:

        def run(groups: list[list[int]]) -> None:
            for group in groups:
                train(policy, pad_batch([rows[index] for index in group], pad_id=0).to(machine.device))

        seconds = [machine.seconds(lambda groups=groups: run(groups), 1) for groups in (sorted_groups, plain_groups)]
    paddings = [padding_fraction(lengths, groups) for groups in (sorted_groups, plain_groups)]
    return [
        Row(part, "padding, sorted and as they come", f"{paddings[0]:.1%} and {paddings[1]:.1%}", paddings[0] < paddings[1]),
        Row(part, "real tokens a second, sorted and as they come", " and ".join(f"{sum(lengths) / each:,.0f}" for each in seconds)),
    ]


def checkpointing(machine: Machine, shapes: Shapes) -> list[Row]:
    """Gradient checkpointing: the same gradient in less memory and more time."""
    part, figures, gradients = "checkpointing", [], []
    for on in (True, False):
        with model_of(machine, shapes, torch.bfloat16, checkpointing=on) as policy:
            batch = full_batch(machine, shapes)
            memory = machine.peak_gib(lambda: train(policy, batch))  # noqa: B023 -- called at once
            figures.append((memory, machine.seconds(lambda: train(policy, batch), shapes.repeats)))  # noqa: B023 -- called at once
            gradients.append(gradient(policy).cpu())
    gap = ((gradients[0] - gradients[1]).norm() / gradients[1].norm()).item()
    (memory_on, seconds_on), (memory_off, seconds_off) = figures
    return [
        Row(part, "gradients differ by (of their norm)", f"{gap:.1e}", gap < 1e-2),
        Row(part, "memory with and without", _gib(memory_on, memory_off), not machine.is_gpu or memory_on < memory_off),
        Row(part, "time with and without", f"{1e3 * seconds_on:.0f} and {1e3 * seconds_off:.0f} ms"),
    ]


def attention(machine: Machine, shapes: Shapes) -> list[Row]:
    """PyTorch's sdpa against FlashAttention-2 where that is installed, else against transformers' own eager attention."""
    part, found, seconds = "attention", [], []
    other = "flash_attention_2" if machine.is_gpu and transformers.utils.is_flash_attn_2_available() else "eager"
    for name in ("sdpa", other):
        with model_of(machine, shapes, torch.bfloat16, attention=name, checkpointing=True) as policy:
            batch = full_batch(machine, shapes)
            with torch.no_grad():
                found.append(policy(batch, OWN_DISTRIBUTION)[0])
            seconds.append(machine.seconds(lambda: train(policy, batch), shapes.repeats))  # noqa: B023 -- called at once
    gap = (found[0] - found[1]).abs().sum().item() / sum(batch.response_lengths)
    return [
        Row(part, "log-probs differ by, mean", f"{gap:.4f} nats", gap < 0.05),
        Row(part, f"time, sdpa and {other}", f"{1e3 * seconds[0]:.0f} and {1e3 * seconds[1]:.0f} ms"),
    ]


def precision(machine: Machine, shapes: Shapes) -> list[Row]:
    """The same weights in bfloat16 and float32."""
    part, found, seconds = "precision", [], []
    for dtype in (torch.bfloat16, torch.float32):
        with model_of(machine, shapes, torch.bfloat16, checkpointing=True) as policy:
            policy.to(dtype)
            batch = full_batch(machine, shapes)
            with torch.no_grad():
                found.append(policy(batch, OWN_DISTRIBUTION)[0])
            seconds.append(machine.seconds(lambda: train(policy, batch), 1))  # noqa: B023 -- called at once
    gap = (found[0] - found[1]).abs().sum().item() / sum(batch.response_lengths)
    return [
        Row(part, "log-probs differ by, mean", f"{gap:.4f} nats", gap < 0.05),
        Row(part, "time, bfloat16 and float32", f"{1e3 * seconds[0]:.0f} and {1e3 * seconds[1]:.0f} ms"),
    ]


def utilisation(machine: Machine, shapes: Shapes) -> list[Row]:
    """A training step with AdamW in float32 beside bfloat16 weights: tokens a second, and the share of the device's peak that is used."""
    part = "training step"
    with model_of(machine, shapes, torch.bfloat16) as policy:
        batch = full_batch(machine, shapes)
        parameters = list(policy.parameters())
        masters = [parameter.detach().float().clone() for parameter in parameters]
        optimizer = torch.optim.AdamW(masters, lr=1e-6, fused=machine.is_gpu)

        def step() -> None:
            train(policy, batch)
            for master, parameter in zip(masters, parameters, strict=True):
                master.grad = parameter.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, parameters, strict=True):
                    parameter.copy_(master)

        memory = machine.peak_gib(step)
        seconds = machine.seconds(step, shapes.repeats)
        num_parameters = sum(parameter.numel() for parameter in parameters)
    num_tokens = batch.input_ids.numel()
    flops = training_flops(num_parameters, shapes.num_layers, shapes.hidden_size, num_tokens, shapes.length)
    rows = [
        Row(part, f"{num_parameters / 1e9:.3f}e9 weights, tokens a second", f"{num_tokens / seconds:,.0f}"),
        Row(part, "peak memory", _gib(memory)),
    ]
    if peak := peak_flops(machine.name):
        share = flops / seconds / peak
        rows.append(Row(part, "share of the peak rate (MFU)", f"{share:.1%}", 0 < share <= 1))
    else:
        rows.append(Row(part, "rate (no peak known for this device)", f"{flops / seconds / 1e12:.3g} TFLOP/s"))
    return rows


PARTS = (chunked_log_probs, batching, checkpointing, attention, precision, utilisation)


class OutOfTime(BaseException):
    """Not an Exception, which a library at work might take for its own."""


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Give the block up when the time is over; a single operation of PyTorch ends first.

    Raises:
        OutOfTime: it was not done by then.
    """

    def give_up(*_: Any) -> None:
        raise OutOfTime

    handler, timer = signal.signal(signal.SIGALRM, give_up), signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def run_parts(machine: Machine, shapes: Shapes, limit_s: float) -> list[Row]:
    end_s, rows = time.monotonic() + limit_s, list[Row]()
    for part in PARTS:
        name = part.__name__.replace("_", " ")
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            rows.append(Row(name, "left out", f"{limit_s:g} s were over", False))
            continue
        print(f"{name} ...", flush=True)
        try:
            with within(left_s):
                rows += part(machine, shapes)
        except torch.OutOfMemoryError:
            rows.append(Row(name, "left out", "the device's memory is too small", False))
        except OutOfTime:
            rows.append(Row(name, "given up", f"{limit_s:g} s were over", False))
    return rows


def table(rows: list[Row]) -> str:
    widths = [max(len(getattr(row, name)) for row in rows) for name in ("part", "what")]
    return "\n".join(
        f"{row.part:<{widths[0]}}  {row.what:<{widths[1]}}  {row.figure}{'' if row.holds else '   <-- FAILED'}" for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=SHAPES, default="qwen")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help=f"of all parts together ({LIMIT_S:g})")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU here")
        print(json.dumps({"name": "pytorch_only", "skipped": True}))
        return 0
    warnings.filterwarnings("ignore", message=".*flash.*")  # transformers warns of float32 weights before they are cast
    machine, began = Machine(given.device), time.monotonic()
    rows = run_parts(machine, SHAPES[given.shapes], given.limit_s)
    print(f"\n{machine.name}, torch {torch.__version__}, transformers {transformers.__version__}, shapes {given.shapes}")
    print(table(rows))
    ok = all(row.holds for row in rows)
    figures = {f"{row.part}: {row.what}": row.figure for row in rows}
    print(json.dumps({"name": "pytorch_only", "device": machine.name, "seconds": round(time.monotonic() - began), "ok": ok, **figures}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
