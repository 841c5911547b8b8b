"""Graders to compare ours with. Each runs in a grading process, which is ended when it hangs.

Loaded by grading_keeper.py for second_grader.py's sources; never called in the command itself.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any

from mathrl_ray.config import RecipeError
from mathrl_ray.core.grading.extraction import Style, extract
from mathrl_ray.core.rewards import Rollout, adapted
from mathrl_ray.custom import load_function
from mathrl_ray.types import Problem

OPTION = "--compare"


def math_verify(problem: Problem, response: str) -> float:
    r"""math-verify as its README calls it: `verify(parse(gold), parse(response))`, everything at its default.

    It sees the whole response and knows no tags. A bare LaTeX gold (no dollar signs, no box) it cannot read: that is part of comparing.

    >>> math_verify(Problem("p", "", "$1/2$"), r"so it is $\boxed{0.5}$"), math_verify(Problem("p", "", "x+1"), "$x+1$")
    (1.0, 0.0)
    """
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it logs each text that it cannot read, with a traceback
    return float(math_verify.verify(math_verify.parse(problem.gold), math_verify.parse(response)))


def exact(problem: Problem, response: str, *, style: Style) -> float:
    """Whether the extracted answer is the gold to the letter, surrounding space aside.

    >>> exact(Problem("p", "", "0.5"), "</think> <answer> 0.5 </answer>", style="r1_zero")
    1.0
    """
    return float(extract(response, style).answer == problem.gold.strip())


def loaded(spec: str) -> Callable[[Problem, str], Any]:
    """A function of the user's own, of any form that core/rewards.py knows, else called as function(response, gold).

    Args:
        spec: module:function or path/file.py:function.

    Raises:
        ValueError: it cannot be loaded, or cannot be called with a response and a gold.
    """
    try:
        function = load_function(spec, key=OPTION, takes=None)
    except RecipeError as error:  # whoever loads this says again which option and function it is about
        raise ValueError(str(error).removeprefix(f"{OPTION} = {spec!r}: ")) from error
    try:
        parts_of = adapted(function)
    except ValueError:
        if not _takes_two(function):
            raise
        return lambda problem, response: _as_reward(function(response, problem.gold))
    return lambda problem, response: parts_of(Rollout(problem, _prompt(problem), response, step=0))


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind("", "")
    except TypeError:
        return False
    return True


def _as_reward(result: Any) -> Any:
    """A Grade (or whatever else has a reward) as its number."""
    return result.reward if hasattr(result, "reward") else result


def _prompt(problem: Problem) -> str:
    """What the row calls the prompt, where it is a text."""
    found = (problem.extra.get(name) for name in ("prompt", "input", "problem", "question"))
    return next((text for text in found if isinstance(text, str)), "")
