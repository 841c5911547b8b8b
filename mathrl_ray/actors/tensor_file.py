"""A safetensors file written one tensor at a time, so that a save needs the memory of its largest tensor and not of all of them.

Called by trainer_state.py and model_folder.py; knows torch and the format, no model. The format (github.com/huggingface/safetensors,
"Format"): 8 bytes with the header's length, a JSON header with every tensor's type, shape and place, then the tensors' bytes.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """What a tensor will be, before there is one."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write_tensors(path: Path, plans: Sequence[TensorPlan], tensors: Iterator[tuple[str, torch.Tensor]]) -> int:
    """Write a file and sync it to disk. Returns its size in bytes.

    Args:
        path: is created, or written over.
        plans: all that is to come, in its order.
        tensors: (name, tensor) one by one, each on any device and used only until the next one is asked for.

    Raises:
        ValueError: something else came than was planned.
        OSError: the disk is full, or cannot be written.
    """
    with path.open("wb") as file:
        file.write(_header(plans))
        for plan, (name, tensor) in zip(plans, tensors, strict=True):
            if (name, tensor.dtype, tuple(tensor.shape)) != (plan.name, plan.dtype, plan.shape):
                raise ValueError(f"{path.name}: planned {plan}, got {name} as {tensor.dtype} {tuple(tensor.shape)}")
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _header(plans: Sequence[TensorPlan]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for plan in plans:
        entries[plan.name] = {
            "dtype": _TYPES[plan.dtype],
            "shape": list(plan.shape),
            "data_offsets": [offset, offset + plan.num_bytes],
        }
        offset += plan.num_bytes
    if len(entries) != len(plans) + 1:
        raise ValueError("two tensors have one name")
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin aligned
    return len(text).to_bytes(8, "little") + text
