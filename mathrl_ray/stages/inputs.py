"""What a job needs before its actors: problems, traces, prompts, the start model's folder, and the checks on them.

Called by job.py. Knows data/ and the recipe; every refusal names the key to change. Whether texts fit the model is in lengths.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.prompts import Prompt, fill
from mathrl_ray.data.arithmetic import TraceMix, make_problems, make_traces
from mathrl_ray.data.prompt_file import load_prompts
from mathrl_ray.data.splits import Splits, load_splits, without_overlap
from mathrl_ray.data.traces import SftRow, load_traces, with_golds
from mathrl_ray.recipe_checks import SFT_STAGES
from mathrl_ray.recipe_file import is_hub_name
from mathrl_ray.sections import BUILTIN
from mathrl_ray.types import Problem

BASE_MODEL_SEED = 0
"""The built-in model is one model, whatever run.seed is."""
SFT_MIX = TraceMix(good=0.60, slip=0.28, guess=0.07, no_format=0.05)
"""About 60 % of the built-in traces are right, as in the reference task."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The data of one job, as text."""

    train: list[Problem]
    validation: list[Problem]
    test: list[Problem]
    traces: list[SftRow]
    prompts: dict[str, Prompt]
    """By the recipe's word for each: data.prompt and eval.prompts."""
    remarks: list[str] = field(default_factory=list)
    """What was left out and why, for the console and environment.json."""


def load_inputs(recipe: Recipe, stages: Sequence[str]) -> Inputs:
    """Read or make the data that the stages use.

    Raises:
        RecipeError: data that is missing or cannot be used (rows by line, overlaps by both ids), or less of it than a batch.
    """
    try:
        prompts = load_prompts(recipe.data.prompt, recipe.eval.prompts)
        splits = load_splits(recipe.data, num_test_problems=recipe.eval.num_problems, seed=recipe.data.seed)
        traces = _load_traces(recipe, splits, prompts) if SFT_STAGES & set(stages) else []
    except (ValueError, OSError) as error:
        raise RecipeError(str(error)) from error
    _check_numbers(recipe, stages, splits, traces)
    _check_golds(recipe, stages, traces)
    return Inputs(splits.train, splits.validation, splits.test, traces, prompts, splits.remarks)


def _check_numbers(recipe: Recipe, stages: Sequence[str], splits: Splits, traces: Sequence[SftRow]) -> None:
    if "grpo" in stages and len(splits.train) < recipe.grpo.prompts_per_step:
        kept_out = "" if recipe.data.validation or not splits.validation else f" (and {len(splits.validation)} kept for validation)"
        raise RecipeError(
            f"data.train has {len(splits.train)} problems{kept_out}, fewer than grpo.prompts_per_step = {recipe.grpo.prompts_per_step}: "
            "lower the latter."
        )
    if "expert_iteration" in stages and len(splits.train) < recipe.expert_iteration.questions:
        raise RecipeError(
            f"data.train has {len(splits.train)} problems (without those kept for validation), fewer than expert_iteration.questions = "
            f"{recipe.expert_iteration.questions}: lower the latter."
        )
    if SFT_STAGES & set(stages) and len(traces) < recipe.sft.batch_size:
        raise RecipeError(f"sft.traces has {len(traces)} rows, fewer than sft.batch_size = {recipe.sft.batch_size}: lower the latter.")
    if recipe.eval.validate_every and not splits.validation:
        raise RecipeError(
            f"eval.validate_every = {recipe.eval.validate_every}, but there are no validation problems: data.train is too small to give "
            "some away. Name a set in data.validation."
        )
    if "sft" in stages:
        check_sizes(recipe, len(traces))


def check_sizes(recipe: Recipe, num_traces: int, which: str = "in sft.traces") -> None:
    """Refuse a size of the sweep that is larger than the data.

    Raises:
        RecipeError: it names the first such size and what would work.
    """
    for size in recipe.sft.sizes:
        if size != "all" and size > num_traces:
            raise RecipeError(f'sft.sizes holds {size}, more than the {num_traces} traces {which}: use at most {num_traces}, or "all".')


def _check_golds(recipe: Recipe, stages: Sequence[str], traces: Sequence[SftRow]) -> None:
    needed_by = [f'sft.keep = "{recipe.sft.keep}"'] if "sft" in stages and recipe.sft.keep != "all" else []
    needed_by += ["the stage sft_filtered"] if "sft_filtered" in stages else []
    without = [trace.problem_id for trace in traces if not trace.gold]
    if needed_by and without:
        raise RecipeError(
            f"{needed_by[0]} needs a gold answer for every trace, and {len(without)} of {len(traces)} in sft.traces have none, the first "
            f"{without[0]}. Add a column ground_truth, or name in data.train the problems with these texts or ids."
        )


def _load_traces(recipe: Recipe, splits: Splits, prompts: dict[str, Prompt]) -> list[SftRow]:
    sft, prompt = recipe.sft, prompts[recipe.data.prompt]
    if sft.traces == BUILTIN:
        return _make_traces(recipe, prompt)
    remarks = splits.remarks if recipe.data.bad_rows == "drop" else None
    traces = with_golds(load_traces(sft.traces, prompts=[prompt, *prompts.values()], remarks=remarks), splits.known)
    traces = without_overlap(traces, "sft.traces", splits.held_out, recipe.data.overlap, splits.remarks)
    return traces if sft.sizes else traces[: sft.num_examples]


def _make_traces(recipe: Recipe, prompt: Prompt) -> list[SftRow]:
    if prompt.style != "r1_zero":
        raise RecipeError(
            f'sft.traces = "{BUILTIN}" answers in the tags of r1_zero, but data.prompt = {recipe.data.prompt} wants a boxed answer: '
            "name traces of your own, or another prompt."
        )
    # Other problems than those of data.train's first ones would do as well; these are drawn by their own seed.
    problems = make_problems("train", recipe.sft.num_examples, recipe.data.seed + 1)
    return [
        SftRow(problem.problem_id, fill(prompt, problem.problem), response, gold=problem.gold, problem=problem.problem)
        for problem, response in make_traces(problems, SFT_MIX, recipe.data.seed)
    ]


def prepare_model(
    recipe: Recipe, say: Callable[[str], None] = lambda _: None, check: Callable[[], None] = lambda: None, *, with_weights: bool = True
) -> Path:
    """The start model's folder on this machine: made, fetched from the hub, or as it is.

    Args:
        recipe: its model.path.
        say: for what takes long.
        check: called again and again while the built-in model is made; what it raises ends that.
        with_weights: False fetches a hub's small files only: config, tokenizer, and code where it is trusted.

    Raises:
        RecipeError: a hub name that cannot be fetched.
    """
    if recipe.model.path == BUILTIN:
        return _builtin_model(recipe, say, check)
    if not is_hub_name(recipe.model.path):
        return Path(recipe.model.path)
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.model", "*.txt", "*.jinja", *(["*.py"] if recipe.model.trust_remote_code else [])]
    if with_weights:
        say(f"fetching {recipe.model.path}")
        patterns.append("*.safetensors")
    try:
        return Path(snapshot_download(recipe.model.path, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises many kinds; each means that the model is not to be had
        raise RecipeError(f"model.path = {recipe.model.path}: cannot be fetched from the hub ({error})") from error


def _builtin_model(recipe: Recipe, say: Callable[[str], None], check: Callable[[], None]) -> Path:
    from mathrl_ray.data.tiny_model import ensure_base_model

    def progress(step: int, num_steps: int) -> None:
        check()
        if step % 300 == 0 or step == num_steps:
            say(f"making the built-in start model (once): step {step}/{num_steps}")

    return ensure_base_model(Path(recipe.run.root) / "cache", seed=BASE_MODEL_SEED, progress=progress)
