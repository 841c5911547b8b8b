"""From texts to padded tensors and back: which label belongs to a response, and where in it.

Called by the stages (texts to ids), by the learner (ids to a batch, values back to rows) and by cs336.py. Pure: the tokenizer comes as
an argument; knows no model, no recipe. The response mask that is made here is the only mask a loss takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from mathrl_ray.types import SftExample


class Tokenizer(Protocol):
    """What is asked of a tokenizer; those of transformers have it."""

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


def tokenize_apart(tokenizer: Tokenizer, prompt: str, response: str, *, append_eos: bool = False) -> SftExample:
    """Ids of a prompt and of its response, tokenised apart.

    Apart, because the generator gets the prompt's ids and samples on from there: no token ever spans the border, so none may in training.
    Neither part gets special tokens of the tokenizer's own: one would stand in the middle of the text, or before a prompt that the
    generator sees without it. A template that wants a BOS writes it as text.

    Args:
        tokenizer: a tokenizer of transformers.
        prompt: the full prompt text.
        response: what the loss is on.
        append_eos: end the response with the tokenizer's EOS, for data whose responses do not end in a stop string.

    Raises:
        ValueError: `append_eos` with a tokenizer that has no EOS.
    """
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    response_ids = tokenizer.encode(response, add_special_tokens=False)
    if append_eos:
        if tokenizer.eos_token_id is None:
            raise ValueError("append_eos needs an EOS, but this tokenizer has eos_token_id None: set it in the folder of model.path")
        response_ids = [*response_ids, tokenizer.eos_token_id]
    return SftExample(prompt_ids=tuple(prompt_ids), response_ids=tuple(response_ids))


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBatch:
    """Sequences side by side, right padded. Made by `pad_batch`, eaten by the learner; T is the longest sequence, prompt included.

    The label of column t is the token after input t, so the first response label stands over the prompt's last token. Padding stands on
    the right, where a causal model's real tokens do not see it: no attention mask is needed.

    Example: prompt (1, 2) with response (3, 4) and prompt (5,) with response (6,), pad_id 0:
        input_ids         [[1, 2, 3], [5, 6, 0]]
        labels            [[2, 3, 4], [6, 0, 0]]
        response_mask     [[F, T, T], [T, F, F]]
        response_position [[-1, 0, 1], [0, -1, -1]]
    """

    input_ids: Tensor
    """[B, T-1] long."""
    labels: Tensor
    """[B, T-1] long; input_ids moved by one."""
    response_mask: Tensor
    """[B, T-1] bool; true exactly where the label is a response token."""
    response_position: Tensor
    """[B, T-1] long; the label's index in its response, 0 for the first, -1 outside."""
    prompt_lengths: tuple[int, ...]
    """[B] tokens."""
    response_lengths: tuple[int, ...]
    """[B] tokens; their sum is the number of true entries of the mask."""

    def to(self, device: torch.device | str) -> "PaddedBatch":
        names = ("input_ids", "labels", "response_mask", "response_position")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def pad_batch(sequences: Sequence[SftExample], pad_id: int) -> PaddedBatch:
    """One padded batch of sequences, in their order.

    Raises:
        ValueError: no sequence, or one with an empty prompt or response; it names the row. Without a prompt token nothing predicts the
            first response token, and without a response token there is nothing to train.
    """
    _check(sequences)
    longest = max(len(sequence.prompt_ids) + len(sequence.response_ids) for sequence in sequences)
    ids = torch.full((len(sequences), longest), pad_id, dtype=torch.long)
    position = torch.full((len(sequences), longest - 1), -1, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        tokens = (*sequence.prompt_ids, *sequence.response_ids)
        ids[row, : len(tokens)] = torch.tensor(tokens)
        position[row, len(sequence.prompt_ids) - 1 : len(tokens) - 1] = torch.arange(len(sequence.response_ids))
    return PaddedBatch(
        input_ids=ids[:, :-1].contiguous(),
        labels=ids[:, 1:].contiguous(),
        response_mask=position >= 0,
        response_position=position,
        prompt_lengths=tuple(len(sequence.prompt_ids) for sequence in sequences),
        response_lengths=tuple(len(sequence.response_ids) for sequence in sequences),
    )


def unpad(values: Tensor, batch: PaddedBatch) -> list[list[float]]:
    """The response's values of each row, in order: `unpad(values, batch)[i][j]` belongs to response token j of sequence i.

    Args:
        values: [B, T-1], aligned with the batch's labels.
        batch: the batch that they belong to.

    Raises:
        ValueError: the shapes differ.
    """
    if values.shape != batch.labels.shape:
        raise ValueError(f"values of shape {tuple(values.shape)} do not belong to a batch of shape {tuple(batch.labels.shape)}")
    starts = (length - 1 for length in batch.prompt_lengths)
    return [row[start : start + length] for row, start, length in zip(values.tolist(), starts, batch.response_lengths, strict=True)]


def pad_response_values(rows: Sequence[Sequence[float]], batch: PaddedBatch) -> Tensor:
    """[B, T-1] float32 with each row's values on its response, 0 elsewhere: the inverse of `unpad`.

    Raises:
        ValueError: a row has another length than its response.
    """
    values = torch.zeros(batch.labels.shape)
    for index, (row, start, length) in enumerate(zip(rows, batch.prompt_lengths, batch.response_lengths, strict=True)):
        if len(row) != length:
            raise ValueError(f"row {index}: {len(row)} values for a response of {length} tokens")
        values[index, start - 1 : start - 1 + length] = torch.tensor(row)
    return values.to(batch.labels.device)


def _check(sequences: Sequence[SftExample]) -> None:
    if not sequences:
        raise ValueError("a batch needs at least 1 sequence, got 0")
    for row, sequence in enumerate(sequences):
        if not sequence.prompt_ids:
            raise ValueError(f"row {row} of the batch has an empty prompt: at least 1 prompt token must precede a response")
        if not sequence.response_ids:
            raise ValueError(f"row {row} of the batch has an empty response: there is nothing to train on")
