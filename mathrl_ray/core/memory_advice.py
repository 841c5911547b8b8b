"""Which settings would make a learner fit that does not.

Called by commands/memory_checks. Pure: tries changes on the estimate, the cheapest for speed first.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mathrl_ray.core.memory_estimate import LearnerSettings, ModelShape, learner_memory

SMALL_CHUNK_TOKENS = 512
LORA_RANK = 32
SHORTEST_TOKENS = 256
"""No shorter model.max_length is advised."""
Change = Mapping[str, Any]
"""A recipe's key -> its value; behind the dot stands the name of LearnerSettings' field."""


def change_that_fits(shape: ModelShape, settings: LearnerSettings, limit_bytes: int, num_parameters: int = 0) -> str:
    """The first change, or else those of them together that are needed, that brings one rank under the limit; "" where none does.

    On a GPU the limit is the device's; on a CPU it is the host's, where what is offloaded counts as well.

    >>> shape = ModelShape(151936, 1536, 8960, 28, 12, 2, 128, tied=True)
    >>> settings = LearnerSettings("bfloat16", 2048, 32768, 4096, on_gpu=True)
    >>> change_that_fits(shape, settings, 60 * 10**9)
    'learner.micro_batch_tokens = 4096'
    """

    def fits(change: Change) -> bool:
        changed = replace(settings, **{key.partition(".")[2]: value for key, value in change.items()})
        memory = learner_memory(shape, changed, num_parameters)
        taken = memory.peak + (0 if settings.on_gpu else memory.host)
        return taken <= limit_bytes and changed.micro_batch_tokens >= changed.max_length

    changes, together = list(_changes(settings)), dict[str, Any]()
    for change in changes:
        if fits(change):
            return _as_text(change)
    for change in changes:
        together |= change
        if fits(together):
            return _as_text(_needed(together, fits))
    return ""


def _needed(together: Change, fits: Callable[[Change], bool]) -> Change:
    """Without those that it fits without."""
    for key in together:
        fewer = {other: value for other, value in together.items() if other != key}
        together = fewer if fits(fewer) else together
    return together


def _as_text(change: Change) -> str:
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in change.items())


def _changes(settings: LearnerSettings) -> Iterator[Change]:
    """First what costs a little speed, last what changes training."""
    tokens = settings.longest_tokens // 2
    while tokens >= settings.max_length:
        yield {"learner.micro_batch_tokens": tokens}
        tokens //= 2
    if settings.longest_tokens > settings.max_length:
        yield {"learner.micro_batch_tokens": settings.max_length}
    if settings.logits_chunk_tokens > SMALL_CHUNK_TOKENS:
        yield {"learner.logits_chunk_tokens": SMALL_CHUNK_TOKENS}
    if not settings.gradient_checkpointing:
        yield {"learner.gradient_checkpointing": True}
    if settings.on_gpu and settings.offload == "none":
        yield {"learner.offload": "optimizer"}
    if settings.dtype == "float32":
        yield {"model.dtype": "bfloat16"}
    if settings.lora_rank == 0:
        yield {"learner.lora_rank": LORA_RANK}
    length = settings.max_length // 2
    while length >= SHORTEST_TOKENS and settings.longest_tokens:
        yield {"model.max_length": length, "learner.micro_batch_tokens": length}
        length //= 2
