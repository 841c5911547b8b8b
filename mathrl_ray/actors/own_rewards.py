"""The reward functions that a recipe names, read where the recipe was written.

Called by job.py and placement.py in the driver. Reads files; runs nothing of them but in a grading process.
"""

from pathlib import Path

from mathrl_ray.actors.function_source import FunctionSource
from mathrl_ray.actors.grading_process import GradingProcess, RewardFunctionError
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.custom import source_text
from mathrl_ray.recipe_checks import DEFAULT_GRADER


def function_sources(recipe: Recipe) -> tuple[FunctionSource, ...]:
    """reward.function and the functions of eval.graders, each once a spec, with their files' text.

    A function that is named by both keys is loaded with reward.kwargs; graders take none.

    Raises:
        RecipeError: a file cannot be read.
    """
    reward = recipe.reward
    sources = {spec: _source(spec, "eval.graders") for spec in recipe.eval.graders if spec != DEFAULT_GRADER}
    if reward.function:
        named = _source(reward.function, "reward.function")
        sources[reward.function] = FunctionSource(named.spec, named.key, named.text, dict(reward.kwargs))
    return tuple(sources.values())


def _source(spec: str, key: str) -> FunctionSource:
    place = spec.rpartition(":")[0]
    if not place.endswith(".py"):
        return FunctionSource(spec, key)
    try:
        return FunctionSource(spec, key, source_text(Path(place)))
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise RecipeError(f"{key} = {spec!r}: {place} cannot be read: {error}") from error


def check_reward_functions(recipe: Recipe) -> None:
    """Load each function once in a grading process, which takes a second, so that a fault is heard of before any engine starts.

    Raises:
        RecipeError: a function that cannot be loaded, or called: its parameters are of no known form, or nothing is given for one of them.
    """
    sources = function_sources(recipe)
    if not sources:
        return
    process = GradingProcess(recipe.scorer.limit_s, int(recipe.scorer.memory_gib * 2**30), sources)
    try:
        process.ready_channel()
    except RewardFunctionError as error:
        raise RecipeError(str(error)) from error
    finally:
        process.end()
