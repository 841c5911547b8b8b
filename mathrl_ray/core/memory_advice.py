"""Which settings would make a learner fit that does not.

Called by commands/resource_checks. Pure: tries changes on the estimate, the cheapest for speed first.
"""

from collections.abc import Iterator
from dataclasses import replace

from mathrl_ray.core.memory_estimate import LearnerSettings, ModelShape, learner_memory

SMALL_CHUNK_TOKENS = 512
LORA_RANK = 32


def change_that_fits(shape: ModelShape, settings: LearnerSettings, limit_bytes: int, num_parameters: int = 0) -> str:
    """The first change, or the shortest row of changes one after the other, that brings one rank under the limit; "" where none does.

    >>> shape = ModelShape(151936, 1536, 8960, 28, 12, 2, 128, tied=True)
    >>> settings = LearnerSettings("bfloat16", 2048, 32768, 4096, on_gpu=True)
    >>> change_that_fits(shape, settings, 60 * 10**9)
    'learner.micro_batch_tokens = 8192'
    """
    together, names = settings, list[str]()
    for name, changed in _changes(settings):
        if learner_memory(shape, _only(settings, changed), num_parameters).peak <= limit_bytes:
            return name
    for name, changed in _changes(settings):
        together = _only(together, changed)
        names = [*(other for other in names if other.split(" = ")[0] != name.split(" = ")[0]), name]
        if learner_memory(shape, together, num_parameters).peak <= limit_bytes:
            return ", ".join(names)
    return ""


def _only(settings: LearnerSettings, changed: dict[str, object]) -> LearnerSettings:
    return replace(settings, **changed)  # type: ignore[arg-type]  # names and kinds are those of `_changes`


def _changes(settings: LearnerSettings) -> Iterator[tuple[str, dict[str, object]]]:
    """(as a recipe says it, fields that change): first what costs a little speed, last what changes training."""
    tokens = settings.longest_tokens // 2
    while tokens >= settings.max_length:
        yield f"learner.micro_batch_tokens = {tokens}", {"micro_batch_tokens": tokens}
        tokens //= 2
    if settings.longest_tokens > settings.max_length:
        yield f"learner.micro_batch_tokens = {settings.max_length}", {"micro_batch_tokens": settings.max_length}
    if settings.logits_chunk_tokens > SMALL_CHUNK_TOKENS:
        yield f"learner.logits_chunk_tokens = {SMALL_CHUNK_TOKENS}", {"logits_chunk_tokens": SMALL_CHUNK_TOKENS}
    if not settings.gradient_checkpointing:
        yield "learner.gradient_checkpointing = true", {"gradient_checkpointing": True}
    if settings.on_gpu and settings.offload == "none":
        yield 'learner.offload = "optimizer"', {"offload": "optimizer"}
    if settings.dtype == "float32":
        yield 'model.dtype = "bfloat16"', {"dtype": "bfloat16"}
    if settings.lora_rank == 0:
        yield f"learner.lora_rank = {LORA_RANK}", {"lora_rank": LORA_RANK}
