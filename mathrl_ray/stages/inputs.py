"""What a job needs before its actors: problems, traces, the start model's folder, and the checks on them.

Called by job.py. Knows data/ and the recipe; every refusal names the key to change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mathrl_ray.config import BUILTIN, Recipe, RecipeError
from mathrl_ray.core.prompts import render
from mathrl_ray.core.tokenization import tokenize_apart
from mathrl_ray.data.arithmetic import TraceMix, make_problems, make_traces
from mathrl_ray.data.problems import SftRow, load_split, load_traces
from mathrl_ray.device import Device
from mathrl_ray.recipe_file import is_hub_name
from mathrl_ray.types import Problem, SftExample

BASE_MODEL_SEED = 0
"""The built-in model is one model, whatever run.seed is."""
SFT_MIX = TraceMix(good=0.60, slip=0.28, guess=0.07, no_format=0.05)
"""About 60 % of the built-in traces are right, as in the reference task."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The data of one job, as text."""

    train: list[Problem]
    test: list[Problem]
    traces: list[SftRow]


def load_inputs(recipe: Recipe, stages: Sequence[str]) -> Inputs:
    """Read or make the data that the stages use.

    Raises:
        RecipeError: a file is missing, a row is empty or malformed (with its line), or there are fewer problems than a batch.
    """
    try:
        train = load_split(
            recipe.data.train,
            split="train",
            num_problems=recipe.data.num_train_problems,
            seed=recipe.run.seed,
            key="data.train",
            columns=recipe.data.columns,
        )
        test = load_split(
            recipe.data.test,
            split="test",
            num_problems=recipe.eval.num_problems,
            seed=recipe.run.seed,
            key="data.test",
            columns=recipe.data.columns,
        )
        traces = _load_traces(recipe) if "sft" in stages else []
    except (ValueError, OSError) as error:
        raise RecipeError(str(error)) from error
    if "grpo" in stages and len(train) < recipe.grpo.prompts_per_step:
        raise RecipeError(
            f"data.train has {len(train)} problems, fewer than grpo.prompts_per_step = {recipe.grpo.prompts_per_step}: lower the latter."
        )
    if "sft" in stages and len(traces) < recipe.sft.batch_size:
        raise RecipeError(f"sft.traces has {len(traces)} rows, fewer than sft.batch_size = {recipe.sft.batch_size}: lower the latter.")
    return Inputs(train, test, traces)


def _load_traces(recipe: Recipe) -> list[SftRow]:
    sft = recipe.sft
    if sft.traces != BUILTIN:
        return load_traces(sft.traces)[: sft.num_examples]
    # Other problems than those of data.train's first ones would do as well; these are drawn by their own seed.
    problems = make_problems("train", sft.num_examples, recipe.run.seed + 1)
    pairs = make_traces(problems, SFT_MIX, recipe.run.seed)
    return [SftRow(problem.problem_id, render("r1_zero", problem.problem), response) for problem, response in pairs]


def prepare_model(recipe: Recipe, say: Callable[[str], None]) -> Path:
    """The start model's folder on this machine: made, fetched from the hub, or as it is.

    Raises:
        RecipeError: a hub name that cannot be fetched.
    """
    if recipe.model.path == BUILTIN:
        return _builtin_model(recipe, say)
    if not is_hub_name(recipe.model.path):
        return Path(recipe.model.path)
    from huggingface_hub import snapshot_download

    say(f"fetching {recipe.model.path}")
    try:
        return Path(snapshot_download(recipe.model.path, allow_patterns=["*.safetensors", "*.json", "*.model", "*.txt"]))
    except Exception as error:  # the hub's client raises many kinds; each means that the model is not to be had
        raise RecipeError(f"model.path = {recipe.model.path}: cannot be fetched from the hub ({error})") from error


def _builtin_model(recipe: Recipe, say: Callable[[str], None]) -> Path:
    from mathrl_ray.data.tiny_model import ensure_base_model

    def progress(step: int, num_steps: int) -> None:
        if step % 300 == 0 or step == num_steps:
            say(f"making the built-in start model (once): step {step}/{num_steps}")

    return ensure_base_model(Path(recipe.run.root) / "cache", seed=BASE_MODEL_SEED, progress=progress)


def check_lengths(recipe: Recipe, inputs: Inputs, tokenizer: Any) -> None:
    """Refuse prompts and traces that do not fit model.max_length, by name.

    Raises:
        RecipeError: up to five ids with their lengths, and the settings that would do.
    """
    longest_response = max(recipe.generator.max_tokens, recipe.eval.max_tokens)
    room = recipe.model.max_length - longest_response
    lengths = {problem.problem_id: _num_prompt_tokens(problem, tokenizer) for problem in (*inputs.train, *inputs.test)}
    if too_long := {problem_id: length for problem_id, length in lengths.items() if length > room}:
        needed = max(too_long.values()) + longest_response
        raise RecipeError(
            f"{len(too_long)} prompts are too long: prompt + {longest_response} new tokens must fit model.max_length = "
            f"{recipe.model.max_length}. {_first_five(too_long)}.\nRaise model.max_length to {needed}, lower generator.max_tokens and "
            "eval.max_tokens, or drop these rows."
        )
    examples = zip(inputs.traces, sft_examples(inputs.traces, tokenizer), strict=True)
    trace_lengths = {row.problem_id: len(example.prompt_ids) + len(example.response_ids) for row, example in examples}
    if too_long := {problem_id: length for problem_id, length in trace_lengths.items() if length > recipe.model.max_length}:
        raise RecipeError(
            f"{len(too_long)} traces are longer than model.max_length = {recipe.model.max_length} tokens: {_first_five(too_long)}.\n"
            f"Raise model.max_length to {max(too_long.values())} or drop these rows."
        )


def sft_examples(traces: Sequence[SftRow], tokenizer: Any) -> list[SftExample]:
    """Token ids of the traces. Each ends with EOS, so that the model also stops where no stop string is looked for."""
    return [tokenize_apart(tokenizer, row.prompt, row.response, append_eos=True) for row in traces]


def _num_prompt_tokens(problem: Problem, tokenizer: Any) -> int:
    return len(tokenizer.encode(render("r1_zero", problem.problem), add_special_tokens=False))


def _first_five(lengths: dict[str, int]) -> str:
    def shown() -> Iterator[str]:
        for problem_id, length in list(lengths.items())[:5]:
            yield f"{problem_id} ({length} tokens)"

    return ", ".join(shown()) + (f" and {len(lengths) - 5} more" if len(lengths) > 5 else "")


def check_memory(recipe: Recipe, device: Device) -> None:
    """Refuse a KV cache that this machine's memory cannot hold; the rest of the memory is measured by the engines themselves.

    Raises:
        RecipeError: wanted beside available, and what would fit.
    """
    if not device.sizes_kv_cache:
        return
    available_gib = psutil.virtual_memory().available / 2**30
    wanted_gib = recipe.generator.kv_cache_gib * recipe.generator.replicas
    if wanted_gib > 0.8 * available_gib:
        raise RecipeError(
            f"generator.kv_cache_gib = {recipe.generator.kv_cache_gib:g} x generator.replicas = {recipe.generator.replicas} needs "
            f"{wanted_gib:g} GiB, this machine has {available_gib:.1f} GiB free and the learner needs some too: "
            f"lower generator.kv_cache_gib to {0.4 * available_gib / recipe.generator.replicas:.1f} or less."
        )
