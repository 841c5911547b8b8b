"""The README's table of hyperparameters, from the recipes. `python tests/hyperparameters.py` writes it there; a test holds them equal."""

import re
from collections.abc import Callable
from pathlib import Path

from mathrl_ray.config import Recipe
from mathrl_ray.recipe_file import load_recipe

REPOSITORY = Path(__file__).parent.parent
QWEN = REPOSITORY / "jobs" / "recipes" / "qwen2.5-math-1.5b"
COLUMNS = {
    "SFT": (QWEN / "sft.toml", "sft"),
    "expert iteration": (QWEN / "expert_iteration.toml", "expert_iteration"),
    "GRPO": (QWEN / "grpo.toml", "grpo"),
    "GRPO, leaderboard": (QWEN / "leaderboard.toml", "grpo"),
    "GRPO, built-in task": (REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml", "grpo"),
}
"""Heading -> recipe and the stage that is meant."""
BEGIN, END = "<!-- hyperparameters: written by `python tests/hyperparameters.py` -->", "<!-- end of hyperparameters -->"
NONE = "-"


def _batch(recipe: Recipe, stage: str) -> str:
    if stage == "grpo":
        return f"{recipe.grpo.prompts_per_step} x {recipe.grpo.group_size} responses"
    return f"{getattr(recipe, stage).batch_size} traces"


def _amount(recipe: Recipe, stage: str) -> str:
    match stage:
        case "sft":
            sizes = ", ".join(size if size == "all" else f"{size:,}" for size in recipe.sft.sizes)
            return f"{recipe.sft.epochs} epochs of {sizes or recipe.sft.num_examples} traces"
        case "expert_iteration":
            rounds = recipe.expert_iteration
            return f"{rounds.rounds} rounds of {rounds.questions:,} x {rounds.group_size}, {rounds.epochs} epochs each"
        case _:
            limit = f"{recipe.run.max_hours:g} h, at most " if recipe.run.max_hours else ""
            return f"{limit}{recipe.grpo.num_steps:,} steps"


def _temperatures(recipe: Recipe, stage: str) -> str:
    match stage:
        case "sft":
            return NONE
        case "expert_iteration":
            return ", ".join(f"{value:g}" for value in recipe.expert_iteration.temperatures)
        case _:
            return f"{recipe.generator.temperature:g}"


def _tokens(recipe: Recipe, stage: str) -> str:
    return NONE if stage == "sft" else f"{recipe.generator.min_tokens} to {recipe.generator.max_tokens:,}"


def _loss(recipe: Recipe, stage: str) -> str:
    if stage != "grpo":
        return "cross-entropy of the response"
    clip = f", clip {recipe.loss.clip_low:g} / {recipe.loss.clip_high:g}" if recipe.loss.surrogate == "clip" else ", no clip"
    std = "" if recipe.advantage.divide_by_std else ", not divided by the std"
    return f"`{recipe.grpo.loss}`{clip}{std}"


ROWS: dict[str, Callable[[Recipe, str], str]] = {
    "learning rate": lambda recipe, stage: f"{getattr(recipe, stage).learning_rate:g}",
    "schedule, warm-up": lambda recipe, _: (
        f"{recipe.learner.schedule}, {recipe.learner.warmup_fraction:.0%}"
        if recipe.learner.warmup_fraction
        else f"{recipe.learner.schedule}, {recipe.learner.warmup_steps or 'none'}"
    ),
    "batch": _batch,
    "how long": _amount,
    "loss": _loss,
    "KL to the start model": lambda recipe, stage: f"{recipe.loss.kl_coefficient:g}" if stage == "grpo" else NONE,
    "sampling temperature": _temperatures,
    "response tokens": _tokens,
    "AdamW betas, weight decay": lambda recipe, _: ", ".join(
        f"{value:g}" for value in (*recipe.learner.betas, recipe.learner.weight_decay)
    ),
    "gradient clipping": lambda recipe, _: f"{recipe.learner.max_grad_norm:g}",
    "precision": lambda recipe, _: recipe.model.dtype,
    "staleness": lambda recipe, stage: str(recipe.driver.max_staleness) if stage == "grpo" else NONE,
    "evaluation": lambda recipe, _: (
        f"{recipe.eval.num_problems:,} problems, T {recipe.eval.temperature:g}, at most {recipe.eval.max_tokens:,} tokens, "
        f"{recipe.eval.prompts[0]}"
    ),
    "validation": lambda recipe, _: f"{recipe.data.num_validation_problems:,} problems every {recipe.eval.validate_every} steps",
}


def table() -> str:
    """Markdown, a row a hyperparameter and a column a recipe."""
    loaded = [(load_recipe(path, []), stage) for path, stage in COLUMNS.values()]
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(value(recipe, stage) for recipe, stage in loaded)} |" for name, value in ROWS.items()]
    return "\n".join(lines)


def block(readme: str) -> str:
    """What stands between the marks."""
    found = re.search(f"{re.escape(BEGIN)}\n(.*?)\n{re.escape(END)}", readme, re.DOTALL)
    assert found, f"README.md lacks {BEGIN} ... {END}"
    return found[1]


if __name__ == "__main__":
    readme = REPOSITORY / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(text.replace(block(text), table()), encoding="utf-8")
