"""The start model before it is loaded: its shape, its tokenizer, and both with the recipe's prompts, stop strings and lengths.

Called by preflight.py. Reads config, tokenizer and the headers of the weights' files; loads no weight and runs no model.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mathrl_ray.actors.model_folder import load_tokenizer
from mathrl_ray.commands.findings import Finding, gigabytes
from mathrl_ray.config import BUILTIN, Recipe, RecipeError
from mathrl_ray.core.memory_estimate import DTYPE_BYTES, ModelShape, model_shape
from mathrl_ray.core.prompts import Prompt, fill
from mathrl_ray.data.tiny_model import BaseModelSettings, build_tokenizer
from mathrl_ray.recipe_file import is_hub_name
from mathrl_ray.stages.inputs import Inputs

BUILTIN_VOCABULARY = 512
"""About; exact where its tokenizer was made."""
NUM_SAMPLED = 32
"""Texts whose tokens are counted for a mean."""
BYTES_PER_TOKEN = 3.0
"""Of mathematical English; a guess where no tokenizer is at hand."""


@dataclass(frozen=True, slots=True)
class StartModel:
    """What a model folder says of itself. Made by `read_model`."""

    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    shape: ModelShape | None
    """None where it is no model of Llama's kind, whose memory is then not estimated."""
    num_parameters: int
    tokenizer: Any
    """None where it was not asked for."""


def read_model(recipe: Recipe, *, with_tokenizer: bool = True) -> StartModel:
    """The start model's facts.

    Args:
        recipe: names it; only the small files of a hub's model are fetched.
        with_tokenizer: False saves importing transformers.

    Raises:
        RecipeError: it cannot be fetched, config or weights' files cannot be read, or the tokenizer not loaded.
    """
    if recipe.model.path == BUILTIN:
        return _builtin(with_tokenizer)
    folder = _small_files(recipe.model.path) if is_hub_name(recipe.model.path) else Path(recipe.model.path)
    config, generation_config = _json(folder / "config.json"), _json(folder / "generation_config.json", needed=False)
    try:
        shape = model_shape(config)
    except ValueError:
        shape = None
    num_parameters = _num_stored(folder) or (shape.num_parameters if shape else 0)
    tokenizer = load_tokenizer(str(folder), trust_remote_code=recipe.model.trust_remote_code) if with_tokenizer else None
    return StartModel(config, generation_config, shape, num_parameters, tokenizer)


def _builtin(with_tokenizer: bool) -> StartModel:
    settings = BaseModelSettings()
    tokenizer = build_tokenizer(settings.max_length) if with_tokenizer else None
    shape = ModelShape(
        vocab_size=len(tokenizer) if tokenizer else BUILTIN_VOCABULARY,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        num_kv_heads=settings.num_kv_heads,
        head_size=settings.hidden_size // settings.num_heads,
        tied=True,
        attention_bias=True,
    )
    return StartModel({"max_position_embeddings": settings.max_length}, {}, shape, shape.num_parameters, tokenizer)


def _small_files(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.model", "*.txt", "*.jinja"]))
    except Exception as error:  # the hub's client raises many kinds; each means that the model is not to be had
        raise RecipeError(f"model.path = {name}: cannot be fetched from the hub ({error})") from error


def _json(file: Path, *, needed: bool = True) -> dict[str, Any]:
    if not needed and not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"model.path: {file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise RecipeError(f"model.path: {file} holds no JSON object")
    return value


def _num_stored(folder: Path) -> int:
    """Numbers in the weights' files, from their headers; 0 where there are no such files (a hub's model that was not fetched yet).

    Raises:
        RecipeError: a file is broken, for example cut short by a download that broke off.
    """
    from math import prod

    from safetensors import SafetensorError, safe_open

    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as tensors:
                total += sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118  # it is no mapping
        except (SafetensorError, OSError) as error:
            raise RecipeError(f"model.path: {file} cannot be opened: {error}. Copy or fetch the model again.") from error
    return total


def check_model(recipe: Recipe, model: StartModel) -> Finding:
    """Its size, and whether model.max_length is one that it knows positions for; vLLM refuses a longer one at its start."""
    width = DTYPE_BYTES[recipe.model.dtype]
    size = f"{model.num_parameters / 1e6:,.4g} M parameters, {gigabytes(width * model.num_parameters)} in {recipe.model.dtype}"
    limit = position_limit(model.config)
    if limit is not None and recipe.model.max_length > limit:
        found = f"the model knows {limit} positions (max_position_embeddings in its config.json)"
        needed = f"model.max_length = {recipe.model.max_length}"
        return Finding("model", "failed", found, needed, f"lower model.max_length to {limit} or less, and what depends on it")
    if model.shape is None:
        kind = model.config.get("model_type", "unknown")
        return Finding("model", "warning", f"{size}; of type {kind}, whose memory is not estimated", "", "watch the first steps' memory")
    return Finding("model", "ok", size, f"{recipe.model.max_length} positions" + ("" if limit is None else f" of {limit}"))


def position_limit(config: Mapping[str, Any]) -> int | None:
    """Longest sequence by a model's config, as vLLM 0.32 derives it: its positions, times the factor of a stretched rotary embedding.

    None where the config names none.

    >>> position_limit({"max_position_embeddings": 4096}), position_limit({})
    (4096, None)
    """
    limit = config.get("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(limit, int) or kind in ("default", "llama3", "longrope", "su", "mrope"):
        return limit if isinstance(limit, int) else None
    if kind == "yarn":
        limit = int(rope.get("original_max_position_embeddings", limit))
    return int(limit * float(rope.get("factor", 1.0)))


def check_tokenizer(recipe: Recipe, model: StartModel, prompts: Mapping[str, Prompt], example: str) -> Iterator[Finding]:
    """Model, tokenizer, stop strings and prompts together: what would only be seen as a bad accuracy, or as an error in the first step.

    Args:
        recipe: names them.
        model: with its tokenizer.
        prompts: by the recipe's word for each.
        example: a problem's text.
    """
    faults = list(_tokenizer_faults(recipe, model, prompts))
    if faults:
        yield from (Finding("tokenizer", "failed", fault, "", change) for fault, change in faults)
        return
    remarks = list(_prompt_remarks(model.tokenizer, prompts, example))
    yield from (Finding("prompts", "warning", remark, "", "look at the prompt's text, or choose another model.path") for remark in remarks)
    stops = sorted({stop for prompt in prompts.values() for stop in prompt.stop})
    size = model.shape.vocab_size if model.shape else model.config.get("vocab_size", "?")
    ends = f"responses end at {', '.join(stops)} or EOS" if stops else "responses end at EOS"
    yield Finding("tokenizer", "ok", f"{len(model.tokenizer):,} tokens for {size:,} rows of the embedding; {ends}")


def _tokenizer_faults(recipe: Recipe, model: StartModel, prompts: Mapping[str, Prompt]) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to change)."""
    tokenizer, path = model.tokenizer, recipe.model.path
    num_rows = model.shape.vocab_size if model.shape else model.config.get("vocab_size")
    same_folder = f"put the model's own tokenizer into the folder of model.path = {path}"
    if num_rows is not None and len(tokenizer) > num_rows:
        yield f"it has {len(tokenizer)} tokens, the model's embedding {num_rows} rows", same_folder
    if tokenizer.eos_token_id is None:
        yield "it has no EOS token, which ends traces and responses", f'set "eos_token" in tokenizer_config.json of model.path = {path}'
    ends = model.generation_config.get("eos_token_id") or []
    outside = [end for end in (ends if isinstance(ends, list) else [ends]) if num_rows is not None and not 0 <= end < num_rows]
    if outside:
        fault = f"generation_config.json's eos_token_id {outside} is outside of the model's {num_rows} tokens"
        yield fault, f"correct it in model.path = {path}"
    for word, prompt in prompts.items():
        for stop in prompt.stop:
            response = f" so it is 5. </think> <answer> 5 {stop}"
            if _round_trip(tokenizer, response) != response:
                yield (
                    f"it cannot write {response!r} (it comes back as {_round_trip(tokenizer, response)!r}), so no response to "
                    f"data.prompt or eval.prompts = {word!r} could be right",
                    "set data.prompt and eval.prompts to question_only, or choose another model.path",
                )


def _prompt_remarks(tokenizer: Any, prompts: Mapping[str, Prompt], example: str) -> Iterator[str]:
    for word, prompt in prompts.items():
        text = fill(prompt, example, tokenizer)
        if _round_trip(tokenizer, text) != text:
            yield f"the tokenizer changes the prompt {word}: an example does not come back as it was (spaces, unknown characters)"


def _round_trip(tokenizer: Any, text: str) -> str:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def mean_tokens(tokenizer: Any, texts: Sequence[str]) -> float:
    """Mean length of some of the texts, evenly taken; 0.0 of none. Without a tokenizer a guess by their bytes."""
    if not texts:
        return 0.0
    some = texts[:: max(1, len(texts) // NUM_SAMPLED)]
    if tokenizer is None:
        return fmean(len(text.encode()) / BYTES_PER_TOKEN for text in some)
    return fmean(len(tokenizer.encode(text, add_special_tokens=False)) for text in some)


def mean_prompt_tokens(recipe: Recipe, inputs: Inputs, tokenizer: Any) -> float:
    """Of the training prompt, or of the first evaluation prompt where there is nothing to train on."""
    problems = inputs.train or inputs.test
    prompt = inputs.prompts[recipe.data.prompt]
    if tokenizer is None and prompt.name == "chat":
        return mean_tokens(None, [problem.problem for problem in problems])
    some = problems[:: max(1, len(problems) // NUM_SAMPLED)]
    return mean_tokens(tokenizer, [fill(prompt, problem.problem, tokenizer) for problem in some])
