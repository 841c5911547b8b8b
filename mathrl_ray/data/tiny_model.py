"""The built-in base model: a tokenizer and a small Qwen2 that can do short sums but mostly hides it, made once and kept.

Called where a recipe says model.path = "builtin:arithmetic". Knows the built-in problems and the r1_zero prompt; knows no Ray, no engine
and no recipe. torch, transformers and tokenizers are imported inside the functions: a second call needs none of them.

The model has to leave something to learn. It is trained first on mostly good traces, which gives it the skill, and then shortly on a mix of
slips, guesses and answers without tags, which hides the skill from sampling at temperature 1 and leaves it within reach of SFT and GRPO.
"""

import hashlib
import json
import os
import random
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathrl_ray.core.prompts import render
from mathrl_ray.data.arithmetic import TraceMix, draw_problem, make_traces

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

CODE_VERSION = 1
"""Raise it when a change to data/ makes another model from the same settings."""
EOS_TOKEN = "<|endoftext|>"
PAD_TOKEN = "<|pad|>"


@dataclass(frozen=True, slots=True)
class TrainingPhase:
    """One stretch of training with its own learning rate, which rises during the warm-up and falls linearly to a tenth at the end."""

    num_steps: int
    learning_rate: float
    mix: TraceMix
    num_warmup_steps: int = 0


@dataclass(frozen=True, slots=True)
class BaseModelSettings:
    """Everything that the base model depends on, beside the seed; the defaults are the measured ones."""

    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 2
    initializer_std: float = 0.05
    max_length: int = 512
    """max_position_embeddings: longest prompt + response, in tokens."""
    batch_size: int = 16
    phases: tuple[TrainingPhase, ...] = (
        TrainingPhase(850, 3e-3, TraceMix(good=0.65, slip=0.10, guess=0.05, no_format=0.20), num_warmup_steps=200),
        TrainingPhase(150, 1.5e-3, TraceMix(good=0.06, slip=0.44, guess=0.13, no_format=0.37)),
    )


def ensure_base_model(
    cache_root: Path,
    *,
    seed: int,
    settings: BaseModelSettings = BaseModelSettings(),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """The folder of the base model, made at the first call (about 45 s on one core) and only named at later ones.

    The folder is written aside and renamed, so it is there whole or not at all. Of two processes that make it at once, the second to finish
    drops its own and uses the first one's.

    Args:
        cache_root: where such folders are kept; created when missing.
        seed: of the weights and the training data; the tokenizer does not depend on it.
        settings: part of the folder's name, with the seed, the prompt and the code's version.
        progress: called with (steps done, steps in all) after every training step.
    """
    identity, folder = _identity(seed, settings), base_model_folder(cache_root, seed=seed, settings=settings)
    if folder.is_dir():
        return folder
    aside = cache_root / f".{folder.name}-{uuid.uuid4().hex}"
    aside.mkdir(parents=True)
    try:
        _write_base_model(aside, seed, settings, progress)
        (aside / "base_model.json").write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
        _rename_unless_there(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def base_model_folder(cache_root: Path, *, seed: int, settings: BaseModelSettings = BaseModelSettings()) -> Path:
    """Where `ensure_base_model` keeps it, whether or not it is there."""
    identity = json.dumps(_identity(seed, settings), sort_keys=True)
    return cache_root / hashlib.sha256(identity.encode()).hexdigest()[:16]


def _identity(seed: int, settings: BaseModelSettings) -> dict[str, Any]:
    return {"code_version": CODE_VERSION, "seed": seed, "prompt": render("r1_zero", "{question}"), "settings": asdict(settings)}


def _rename_unless_there(aside: Path, folder: Path) -> None:
    try:
        os.rename(aside, folder)
    except OSError:
        # A folder that is not empty cannot be renamed over: another process was first, and its model is the same.
        if not folder.is_dir():
            raise


def _write_base_model(folder: Path, seed: int, settings: BaseModelSettings, progress: Callable[[int, int], None] | None) -> None:
    from mathrl_ray.data.base_training import train_base_model

    tokenizer = build_tokenizer(settings.max_length)
    model = build_model(tokenizer, seed, settings)
    train_base_model(model, tokenizer, seed=seed, batch_size=settings.batch_size, phases=settings.phases, progress=progress)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_tokenizer(max_length: int) -> "Qwen2Tokenizer":
    """Qwen2's byte-level tokenizer with no merges, and one added token for each fixed piece of the built-in task's text.

    So a digit is a token, the prompt's preamble is one token where the usual word splitting makes 113, and any other text is encoded byte
    by byte. The pieces are added tokens because AutoTokenizer opens every model of type qwen2 with Qwen2's own word splitting, whatever
    splitting was saved: merges that cross words would silently come apart there, while added tokens are found first.
    """
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import Qwen2Tokenizer

    tokens = [EOS_TOKEN, PAD_TOKEN, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        unk_token=EOS_TOKEN,  # never used: every byte is in the vocabulary
        eos_token=EOS_TOKEN,
        pad_token=PAD_TOKEN,
        model_max_length=max_length,
    )
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in _text_pieces()])
    return tokenizer


def _text_pieces() -> list[str]:
    """What stands before and after the question, and between the digits of questions and responses; the same for every seed."""
    generator = random.Random("arithmetic/tokenizer")
    problems = [draw_problem("train", generator, str(index)) for index in range(1000)]
    traces = make_traces(problems, TraceMix(good=0.25, slip=0.25, guess=0.25, no_format=0.25), seed=0)
    pieces = set(render("r1_zero", "{question}").split("{question}"))
    for problem, response in traces:
        pieces.update(re.split(r"\d", problem.problem), re.split(r"\d", response))
    return sorted(piece for piece in pieces if len(piece) > 1)


def build_model(tokenizer: "Qwen2Tokenizer", seed: int, settings: BaseModelSettings) -> "Qwen2ForCausalLM":
    """The untrained model, 0.63 M parameters with the default settings; torch's global generator is left as it was."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_kv_heads,
        max_position_embeddings=settings.max_length,
        initializer_range=settings.initializer_std,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True)
    return model
