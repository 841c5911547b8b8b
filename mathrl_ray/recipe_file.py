"""From a recipe's file to a checked Recipe: TOML, `section.key=value` overrides, unknown keys, relative paths.

Called by the job entry and the command line. Reads the recipe and looks at the paths that it names; imports no engine.
"""

import difflib
import os
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import masked_keys, masked_text
from mathrl_ray.core.prompts import PROMPT_NAMES
from mathrl_ray.custom import split_function_name
from mathrl_ray.data.dataset_name import absolute_spec, check_local_data, is_hub_spec
from mathrl_ray.data.prompt_file import load_prompts
from mathrl_ray.methods import Method, method_settings
from mathrl_ray.recipe_checks import SFT_STAGES
from mathrl_ray.sections import BUILTIN, STAGES_WITH_A_RATE


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, put `section.key=value` overrides on top, fill in every default, and make paths absolute.

    Relative paths mean the recipe's folder. An override of grpo.loss, learner.learning_rate, driver.max_staleness or data.prompt also
    changes the keys that take their defaults from it, where the file has them as its own value of that key sets them: a run's recipe.toml
    names every key.

    Raises:
        RecipeError: the file is missing or no TOML, a key is unknown (the nearest is named), a value is not allowed.
    """
    path = Path(path)
    if not path.is_file():
        raise RecipeError(f"recipe {path}: no such file. Recipes that come with mathrl_ray are in jobs/recipes/.")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path} is not TOML: {error}") from error
    _forget_what_followed(values, {override.partition("=")[0].strip() for override in overrides})
    for override in overrides:
        _apply_override(values, override)
    _refuse_masked(path, values)
    _let_evaluations_follow_the_training_prompt(values)
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"recipe {path}:\n" + masked_text("\n".join(_explain(error, values)))) from error
    return _resolve(recipe, path)


def _refuse_masked(path: Path, values: Mapping[str, Any]) -> None:
    if keys := list(masked_keys(values)):
        raise RecipeError(
            f"recipe {path}: {', '.join(keys)}: a run's recipe.toml keeps no secrets. Give the value again, or better let your function "
            "read it from the environment or a file."
        )


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    parts = key.strip().split(".")
    if not separator or len(parts) < 2 or not all(parts):
        raise RecipeError(f"{override!r}: an override is section.key=value, for example grpo.num_steps=10")
    section = values
    for part in parts[:-1]:
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise RecipeError(f"{override!r}: {part} is a value in the recipe, not a section")
    section[parts[-1]] = parse_value(text.strip())


def _forget_what_followed(values: dict[str, Any], overridden: Collection[str]) -> None:
    """Drop the file's keys that only say what follows from a key of the file which is overridden; a key chosen otherwise stays."""
    for source in overridden:
        for key, value in _followers(source, _get(values, source)).items():
            section, _, name = key.partition(".")
            if _get(values, key) == value:
                del values[section][name]


def _followers(source: str, value: Any) -> dict[str, Any]:
    """Dotted key -> the default that it takes from a key of another section; nothing follows from a key that is not named."""
    match source:
        case "grpo.loss" if value in get_args(Method):
            settings = method_settings(value)
            return {f"{section}.{key}": setting for section, keys in settings.items() for key, setting in keys.items()}
        case "learner.learning_rate" if value is not None:
            return {f"{stage}.learning_rate": value for stage in STAGES_WITH_A_RATE}
        case "data.prompt" if value is not None:
            return {"eval.prompts": [value]}
        case "driver.max_staleness" if isinstance(value, int):
            return {"loss.correction": "truncated" if value > 0 else "none"}
        case _:
            return {}


def _get(values: dict[str, Any], key: str) -> Any:
    """The value of a dotted key; None where it is not named."""
    return _value_at(values, key.split("."))


def _let_evaluations_follow_the_training_prompt(values: dict[str, Any]) -> None:
    """eval.prompts is by default what training uses: a default that crosses sections, so it is written in before the sections are read."""
    prompt = values["data"].get("prompt") if isinstance(values.get("data"), dict) else None
    if isinstance(prompt, str) and isinstance(values.get("eval", {}), dict):
        values["eval"] = {"prompts": [prompt], **values.get("eval", {})}


def parse_value(text: str) -> Any:
    """A TOML value where the text is one (8, 1e-5, true, ["a"]), else the text itself (paths need no quotes)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: ValidationError, values: Mapping[str, Any]) -> Iterator[str]:
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            nearest = difflib.get_close_matches(key, known_keys(), n=1, cutoff=0.4)
            yield f"  unknown key {key}" + (f": the nearest is {nearest[0]}" if nearest else "")
        elif not key:
            yield "\n".join("  " + line for line in str(item["ctx"]["error"]).splitlines())
        elif item["type"] == "value_error":
            yield f"  {key} = {_value_at(values, item['loc'])!r}: {item['ctx']['error']}"
        elif item["type"] == "model_type":
            yield f"  {key} = {_value_at(values, item['loc'])!r}: {key} is a section: write [{key}], and its keys below"
        else:
            yield f"  {key} = {_value_at(values, item['loc'])!r}: {item['msg'][0].lower() + item['msg'][1:]}"


def _value_at(values: Any, location: Sequence[str | int]) -> Any:
    for part in location:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def known_keys() -> list[str]:
    """Every key of a recipe, dotted, and the sections themselves."""
    keys: list[str] = []
    for section, field in Recipe.model_fields.items():
        keys.append(section)
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, BaseModel)
        keys += [f"{section}.{key}" for key in field.annotation.model_fields]
    return keys


def _resolve(recipe: Recipe, path: Path) -> Recipe:
    """Fill in the run's name and root, and make every local path absolute."""
    folder = path.resolve().parent
    root = recipe.run.root or os.environ.get("MATHRL_RUNS", "") or str(Path.home() / "mathrl_runs")
    name, resume = recipe.run.name or path.stem.lstrip(".") or "run", recipe.run.resume
    resume = resume if resume in ("", "auto") else _absolute(resume, folder)
    run = recipe.run.model_copy(update={"name": name, "root": _absolute(root, folder), "resume": resume})
    paths = {split: absolute_spec(getattr(recipe.data, split), folder) for split in ("train", "validation", "test")}
    data = recipe.data.model_copy(update={**paths, "prompt": _prompt(recipe.data.prompt, folder)})
    graders = [_function(spec, folder) for spec in recipe.eval.graders]
    evaluation = recipe.eval.model_copy(update={"prompts": [_prompt(spec, folder) for spec in recipe.eval.prompts], "graders": graders})
    sft = recipe.sft.model_copy(update={"traces": absolute_spec(recipe.sft.traces, folder)})
    model = recipe.model.model_copy(update={"path": _model_path(recipe.model.path, folder)})
    functions = {
        section: settings.model_copy(update={"function": _function(settings.function, folder)})
        for section, settings in (("loss", recipe.loss), ("advantage", recipe.advantage), ("reward", recipe.reward))
    }
    return recipe.model_copy(update={"run": run, "data": data, "eval": evaluation, "sft": sft, "model": model, **functions})


def _function(spec: str, folder: Path) -> str:
    """path/file.py:function with its path made absolute; module:function stays."""
    source, separator, name = spec.rpartition(":")
    return f"{_absolute(source, folder)}:{name}" if separator and source.endswith(".py") else spec


def _prompt(spec: str, folder: Path) -> str:
    return spec if spec in PROMPT_NAMES else _absolute(spec, folder)


def _absolute(path: str, folder: Path) -> str:
    return str((folder / Path(path).expanduser()).resolve())


def is_hub_name(model_path: str) -> bool:
    """Whether a resolved model.path is a name on a hub rather than a folder here."""
    return model_path != BUILTIN and not os.path.isabs(model_path)


def _model_path(path: str, folder: Path) -> str:
    """A name like `Qwen/Qwen2.5-Math-1.5B` stays a name unless such a folder exists beside the recipe."""
    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1 or (folder / path).exists()
    return path if path == BUILTIN or not looks_local else _absolute(path, folder)


def check_local_paths(recipe: Recipe, stages: Sequence[str]) -> list[str]:
    """Look at the files that the recipe names; only prompts are opened. Returns remarks on what could not be looked at (hub names).

    Raises:
        RecipeError: a file or folder is missing, a prompt file cannot be used, a function is not named as one, or a model folder lacks its
            weights, config or tokenizer.
    """
    remarks = []
    specs = {f"data.{split}": getattr(recipe.data, split) for split in ("train", "validation", "test")}
    if SFT_STAGES & set(stages):
        specs["sft.traces"] = recipe.sft.traces
    for key, spec in specs.items():
        check_local_data(spec, key)
        if is_hub_spec(spec):
            remarks.append(f"{key} = {spec}: a hub name, not checked")
    load_prompts(recipe.data.prompt, recipe.eval.prompts)
    functions = [(f"{section}.function", getattr(recipe, section).function) for section in ("loss", "advantage", "reward")]
    graders = [("eval.graders", spec) for spec in recipe.eval.graders if spec != "default"]
    for key, spec in [*functions, *graders]:
        source = split_function_name(spec, key)[0] if spec else ""
        if source.endswith(".py") and not Path(source).is_file():
            raise RecipeError(f"{key} = {spec}: no such file")
    model = recipe.model.path
    if is_hub_name(model):
        remarks.append(f"model.path = {model}: a hub name, not checked")
    elif model != BUILTIN:
        _check_model_folder(Path(model))
    return remarks


def _check_model_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise RecipeError(f"model.path = {folder}: no such folder")
    if not (folder / "config.json").is_file():
        raise RecipeError(f"model.path = {folder}: holds no config.json, so it is no model folder")
    if not any(folder.glob("*.safetensors")):
        raise RecipeError(f"model.path = {folder}: holds no .safetensors files; save the model with save_pretrained")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise RecipeError(
            f"model.path = {folder}: holds no tokenizer (tokenizer.json, tokenizer.model or vocab.json). "
            "Save the tokenizer beside the model: tokenizer.save_pretrained(folder)."
        )
