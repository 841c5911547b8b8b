"""Model folders: opened, and written so that they appear whole or not at all; and the adapters that a model may be trained through.

Called by the learner; knows transformers and peft, no engine.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathrl_ray.config import RecipeError
from mathrl_ray.sections import LearnerSection

if TYPE_CHECKING:
    import torch

    from mathrl_ray.actors.tensor_file import TensorPlan

    Weights = Iterator[tuple[str, torch.Tensor]]


def load_model(folder: str, *, dtype: str, attention: str, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Open (model, tokenizer) from a folder: weights from safetensors only, and no code of the folder's unless it is trusted."""
    import torch
    from transformers import AutoModelForCausalLM

    # False, not left out: transformers would then ask on the terminal whether to run the folder's code.
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        attn_implementation=attention,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
    )
    return model, load_tokenizer(folder, trust_remote_code=trust_remote_code)


def load_tokenizer(folder: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model folder, whose config is looked at too: what needs code of its own is refused here, before an engine starts.

    Raises:
        RecipeError: model or tokenizer need code that comes with them and is not trusted, or their files cannot be used.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # border: each tokenizer's library raises kinds of its own for files that it does not understand
        if "trust_remote_code" not in str(error):
            cause = f"{type(error).__name__}: {error}"
            raise RecipeError(
                f"model.path = {folder}: config or tokenizer cannot be used ({cause}): they are broken, or newer than the installed "
                "transformers. Copy or fetch the model again, or choose another."
            ) from error
        raise RecipeError(
            f"model.path = {folder}: this model needs Python code that comes with it, and model.trust_remote_code = false. Read the .py "
            "files in that folder; set model.trust_remote_code = true only if you trust them, since they may do all that you may do."
        ) from error


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


def save_model(model: Any, tokenizer: Any, folder: Path, plans: "Sequence[TensorPlan]", weights: "Weights") -> None:
    """Write a folder that appears whole: aside, then renamed. `folder` must not exist yet; the rest as `write_model`."""
    aside = folder.with_name(f".{folder.name}.writing-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    write_model(model, tokenizer, aside, plans, weights)
    aside.rename(folder)


def write_model(model: Any, tokenizer: Any, folder: Path, plans: "Sequence[TensorPlan]", weights: "Weights") -> None:
    """Write what AutoModelForCausalLM and vLLM open, one weight at a time.

    Args:
        model: whose class and config are saved, wrapped by peft or not.
        tokenizer: saved beside it.
        folder: exists.
        plans: of every weight, in the order of `weights`.
        weights: every weight under its checkpoint name, adapters merged.
    """
    from mathrl_ray.actors.tensor_file import write_tensors

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    tokenizer.save_pretrained(folder)
    if getattr(base, "_weight_conversions", None):  # transformers stores these weights in another form, which needs all of them at once
        base.save_pretrained(folder, state_dict={name: tensor.cpu().clone() for name, tensor in weights})
        return
    base.save_pretrained(folder, state_dict={})  # config and generation config, beside a file without weights
    write_tensors(folder / "model.safetensors", plans, weights)
