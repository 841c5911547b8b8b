"""A DeepSpeed engine around the policy. Called by learner.py only; the one file that imports DeepSpeed besides it."""

from typing import Any

import deepspeed
import torch
from transformers import PreTrainedModel

from mathrl_ray.actors.policy_module import PolicyModule
from mathrl_ray.config import LearnerSection


def build_engine(model: PreTrainedModel, settings: LearnerSection, *, dtype: str) -> Any:
    """Wrap a model with AdamW, gradient clipping and ZeRO.

    ZeRO stage 1 is the least, on one rank too: at stage 0 DeepSpeed reports no gradient norm and applies NaN gradients.
    """
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    module = PolicyModule(model, settings.logits_chunk_tokens)
    optimizer = torch.optim.AdamW(module.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay)
    engine, _, _, _ = deepspeed.initialize(
        model=module, optimizer=optimizer, config=engine_config(settings, dtype), dist_init_required=False
    )
    return engine


def engine_config(settings: LearnerSection, dtype: str) -> dict[str, Any]:
    """DeepSpeed's configuration. Its own gradient accumulation is off: the number of micro-batches differs from step to step."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": settings.max_grad_norm,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": settings.zero_stage},
        "bf16": {"enabled": dtype == "bfloat16"},
    }
