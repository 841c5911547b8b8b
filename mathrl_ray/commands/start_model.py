"""The start model's facts before it is loaded: its shape, size, positions and tokenizer.

Called by preflight.py. Reads config, tokenizer and the headers of the weights' files; loads no weight and runs no model. What a folder's
files say wrongly is refused here, by file and key, so that nobody behind it need doubt them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.actors.model_folder import load_tokenizer
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.memory_estimate import ModelShape, model_shape
from mathrl_ray.data.tiny_model import BaseModelSettings, build_tokenizer
from mathrl_ray.recipe_file import is_hub_name
from mathrl_ray.sections import BUILTIN
from mathrl_ray.stages.inputs import prepare_model

BUILTIN_VOCABULARY = 512
"""About; exact where its tokenizer was made."""
INDEX = "model.safetensors.index.json"


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
    num_positions: int | None = None
    """Of the longest sequence; None where the config does not say."""

    @property
    def num_rows(self) -> int | None:
        """Of the embedding; None where the config does not say."""
        rows = self.shape.vocab_size if self.shape else self.config.get("vocab_size")
        return rows if isinstance(rows, int) else None


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
    folder = prepare_model(recipe, with_weights=False)
    config, generation_config = _json(folder / "config.json"), _json(folder / "generation_config.json", needed=False)
    try:
        shape, num_positions = model_shape(config), position_limit(config)
    except ValueError as error:
        raise RecipeError(f"model.path: {folder / 'config.json'} cannot be right: {error}") from error
    num_parameters = _num_stored(folder, may_lack=is_hub_name(recipe.model.path)) or (shape.num_parameters if shape else 0)
    tokenizer = load_tokenizer(str(folder), trust_remote_code=recipe.model.trust_remote_code) if with_tokenizer else None
    return StartModel(config, generation_config, shape, num_parameters, tokenizer, num_positions)


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
    return StartModel({}, {}, shape, shape.num_parameters, tokenizer, settings.max_length)


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


def _num_stored(folder: Path, *, may_lack: bool) -> int:
    """Numbers in the weights' files, from their headers.

    Args:
        folder: the model's.
        may_lack: of a hub's model, whose weights were not fetched yet: 0 then.

    Raises:
        RecipeError: a file is missing or broken, for example cut short by a download that broke off.
    """
    from math import prod

    from safetensors import SafetensorError, safe_open

    total, files = 0, _weight_files(folder)
    missing = [file for file in files if not file.is_file()]
    if missing and may_lack:
        return 0
    if missing:
        raise RecipeError(f"model.path: {missing[0]} is not there, though {INDEX} names it. Copy or fetch the model again.")
    for file in files:
        try:
            with safe_open(file, framework="numpy") as tensors:
                total += sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118  # it is no mapping
        except (SafetensorError, OSError) as error:
            raise RecipeError(f"model.path: {file} cannot be opened: {error}. Copy or fetch the model again.") from error
    return total


def _weight_files(folder: Path) -> list[Path]:
    """Those that the engines open: of the index, else the one of the usual name, else all."""
    named = _json(folder / INDEX, needed=False).get("weight_map")
    if isinstance(named, dict):
        return [folder / str(name) for name in sorted(set(named.values()))]
    usual = folder / "model.safetensors"
    return [usual] if usual.is_file() else sorted(file for file in folder.glob("*.safetensors") if file.is_file())


def position_limit(config: Mapping[str, Any]) -> int | None:
    """Longest sequence by a model's config, as vLLM 0.32 derives it: its positions, times the factor of a stretched rotary embedding.

    None where the config names none.

    Raises:
        ValueError: one of these is no number; it names the key.

    >>> position_limit({"max_position_embeddings": 4096}), position_limit({})
    (4096, None)
    """
    limit = _number(config, "max_position_embeddings")
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    rope = config.get(key) or {}
    if not isinstance(rope, dict):
        raise ValueError(f"{key} = {rope!r} is no object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if limit is None or kind in ("default", "llama3", "longrope", "su", "mrope"):
        return None if limit is None else int(limit)
    if kind == "yarn":
        limit = _number(rope, "original_max_position_embeddings", limit, of=f"{key}.")
    return int((limit or 0) * (_number(rope, "factor", 1.0, of=f"{key}.") or 0))


def _number(values: Mapping[str, Any], key: str, default: float | None = None, *, of: str = "") -> float | None:
    """The default where the key is not there; null is no number, unless the default is."""
    value = values.get(key, default)
    if value is default or (isinstance(value, int | float) and value > 0):
        return value
    raise ValueError(f"{of}{key} = {value!r} is no number above 0")
