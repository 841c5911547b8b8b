"""Training of the built-in base model: plain PyTorch on one thread.

Called by tiny_model.py only. This makes test data; it is not the system's training, which is the learner's. Knows the built-in problems and
the r1_zero prompt; knows no file, no Ray, no engine.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from mathrl_ray.core.prompts import render
from mathrl_ray.data.arithmetic import draw_problem, make_traces

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

    from mathrl_ray.data.tiny_model import TrainingPhase

IGNORED = -100
Example = tuple[list[int], list[int]]
"""Input ids and labels of one prompt with its response, both [T]; a label is IGNORED within the prompt."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Examples laid one behind the other into as few rows as hold them: a third of a padded batch would be padding."""

    input_ids: torch.Tensor
    """[R, T]"""
    labels: torch.Tensor
    """[R, T]; IGNORED within prompts and on padding."""
    position_ids: torch.Tensor
    """[R, T]; from 0 in each example."""
    attention_mask: torch.Tensor
    """[R, 1, T, T], bool; a token sees the earlier ones of its own example only."""


def train_base_model(
    model: "Qwen2ForCausalLM",
    tokenizer: "Qwen2Tokenizer",
    *,
    seed: int,
    batch_size: int,
    phases: Sequence["TrainingPhase"],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Train in place through the phases, each with an optimizer and a learning rate of its own.

    The result depends on the arguments alone: data come from the seed, and one thread adds in one order.
    """
    num_steps = sum(phase.num_steps for phase in phases)
    num_done = 0
    model.train()
    with _one_thread():
        for index, phase in enumerate(phases):
            optimizer = torch.optim.AdamW(model.parameters(), lr=phase.learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
            for step, batch in enumerate(_batches(tokenizer, phase, batch_size, f"{seed}/{index}")):
                for group in optimizer.param_groups:
                    group["lr"] = _learning_rate(phase, step)
                _train_step(model, optimizer, batch)
                num_done += 1
                if progress:
                    progress(num_done, num_steps)
    model.eval()


def _learning_rate(phase: "TrainingPhase", step: int) -> float:
    warmup = min(1.0, (step + 1) / (phase.num_warmup_steps + 1))
    return phase.learning_rate * warmup * (1 - 0.9 * step / phase.num_steps)


def _train_step(model: "Qwen2ForCausalLM", optimizer: torch.optim.Optimizer, batch: PackedBatch) -> None:
    """One step on the cross-entropy, mean over the batch's response tokens; logits are computed there only."""
    is_response = batch.labels != IGNORED
    output = model.model(input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=batch.attention_mask, use_cache=False)
    loss = F.cross_entropy(model.lm_head(output.last_hidden_state[is_response]), batch.labels[is_response])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _batches(tokenizer: "Qwen2Tokenizer", phase: "TrainingPhase", batch_size: int, seed: str) -> Iterator[PackedBatch]:
    """The phase's batches. An end token follows every response: a response without tags has to end by itself."""
    generator = random.Random(f"arithmetic/base/{seed}")
    problems = [draw_problem("train", generator, str(index)) for index in range(phase.num_steps * batch_size)]
    traces = make_traces(problems, phase.mix, generator.getrandbits(32))
    prompts = tokenizer([render("r1_zero", problem.problem) for problem, _ in traces], add_special_tokens=False)["input_ids"]
    responses = tokenizer([response for _, response in traces], add_special_tokens=False)["input_ids"]
    examples = [_example(prompt, [*ids, tokenizer.eos_token_id]) for prompt, ids in zip(prompts, responses, strict=True)]
    for start in range(0, len(examples), batch_size):
        yield pack(examples[start : start + batch_size], tokenizer.pad_token_id)


def _example(prompt: Sequence[int], response: Sequence[int]) -> Example:
    return [*prompt, *response[:-1]], [IGNORED] * (len(prompt) - 1) + [*response]


def pack(examples: Sequence[Example], pad_token_id: int) -> PackedBatch:
    """Longest first, each into the first row that has room; a row holds as many tokens as the longest example."""
    width = max(len(ids) for ids, _ in examples)
    rows: list[list[Example]] = []
    for example in sorted(examples, key=lambda example: -len(example[0])):
        room = (row for row in rows if sum(len(ids) for ids, _ in row) + len(example[0]) <= width)
        row = next(room, None)
        if row is None:
            rows.append(row := [])
        row.append(example)
    shape = (len(rows), width)
    input_ids, labels = torch.full(shape, pad_token_id), torch.full(shape, IGNORED)
    position_ids, owners = torch.zeros(shape, dtype=torch.long), torch.full(shape, -1)
    for index, row in enumerate(rows):
        start = 0
        for owner, (ids, targets) in enumerate(row):
            span = slice(start, start := start + len(ids))
            input_ids[index, span], labels[index, span] = torch.tensor(ids), torch.tensor(targets)
            position_ids[index, span], owners[index, span] = torch.arange(len(ids)), owner
    same_owner = owners[:, :, None] == owners[:, None, :]
    return PackedBatch(input_ids, labels, position_ids, same_owner.tril()[:, None])


@contextmanager
def _one_thread() -> Iterator[None]:
    """So small a model is no faster on more, and the sums come out the same whatever the process was started with."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
