"""Model folders: opened, and written so that they appear whole or not at all; and the adapters that a model may be trained through.

Called by the learner; knows transformers and peft, no engine.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mathrl_ray.config import LearnerSection


def load_model(folder: str, *, dtype: str, attention: str) -> tuple[Any, Any]:
    """Open (model, tokenizer) from a folder. No code from the folder is run."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation=attention)
    return model, AutoTokenizer.from_pretrained(folder)


def with_adapters(model: Any, settings: LearnerSection) -> Any:
    """The model ready for training: gradient checkpointing on where asked, and frozen behind LoRA adapters where lora_rank is above 0.

    LoRA (Hu et al. 2021) on every linear layer but the head; adapters begin as the identity.
    """
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    if settings.lora_rank == 0:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules="all-linear"))


def save_model(model: Any, tokenizer: Any, folder: Path, weights: Mapping[str, Any]) -> None:
    """Write a folder that AutoModelForCausalLM and vLLM open. It is written aside and renamed, so a reader never sees a part of it.

    Args:
        model: whose class and config are saved, wrapped by peft or not.
        tokenizer: saved beside it.
        folder: must not exist yet.
        weights: every weight under its checkpoint name, adapters merged.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    aside = folder.with_name(f".{folder.name}.writing-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    base.save_pretrained(aside, state_dict=dict(weights))
    tokenizer.save_pretrained(aside)
    aside.rename(folder)
