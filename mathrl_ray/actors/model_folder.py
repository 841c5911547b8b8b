"""Model folders: opened, and written so that they appear whole or not at all.

Called by the learner; knows transformers, no engine.
"""

import os
import shutil
from pathlib import Path
from typing import Any


def load_model(folder: str, *, dtype: str, attention: str) -> tuple[Any, Any]:
    """Open (model, tokenizer) from a folder. No code from the folder is run."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation=attention)
    return model, AutoTokenizer.from_pretrained(folder)


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a folder that AutoModelForCausalLM and vLLM open. It is written aside and renamed, so a reader never sees a part of it."""
    aside = folder.with_name(f".{folder.name}.writing-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    aside.rename(folder)
