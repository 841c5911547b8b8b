"""The reward of the Countdown example, its grader for evaluations, and a loss: what a recipe names as countdown.py:reward and the like.

Loaded from its file; the first two run in the grading processes, the last in the learner. Nothing here evaluates a response as code.
"""

import ast
import operator
import re
from typing import Any

import torch

from mathrl_ray.core.loss_batch import LossInput, LossResult
from mathrl_ray.types import Problem

ANSWER = re.compile(r"</think> <answer>(.*?)</answer>", re.DOTALL)
LONGEST = 100
"""Characters of an expression: no honest one is longer, and the parser is never given more."""
SIGNS = re.compile(r"[0-9+\-() ]+")
"""Of a sum; the parser never sees anything else."""
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub}


class RuleError(ValueError):
    """The answer is no sum of whole numbers."""


def value_of(text: str) -> tuple[int, list[int]]:
    """An expression's value, and the numbers in it, sorted.

    Raises:
        RuleError: it holds anything but whole numbers, +, - and brackets.

    >>> value_of("7-(3+2)")
    (2, [2, 3, 7])
    """
    if len(text) > LONGEST or not SIGNS.fullmatch(text.strip()):
        raise RuleError("too long, or signs that no sum has")
    numbers: list[int] = []

    def walk(node: ast.AST) -> int:
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                numbers.append(number)
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                result: int = OPERATORS[type(op)](walk(left), walk(right))
                return result
            case _:
                raise RuleError(f"{type(node).__name__} is no part of a sum")

    try:
        return walk(ast.parse(text.strip(), mode="eval").body), sorted(numbers)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise RuleError(str(error)) from error


def reward(problem: Problem, response: str) -> dict[str, float]:
    """1 for a sum that uses each number once and makes the target, 0.1 for one that only uses each number once; both parts are logged."""
    numbers, target = sorted(problem.extra["numbers"]), int(problem.gold)
    found = ANSWER.findall(response)
    try:
        value, used = value_of(found[-1]) if found else (None, [])
    except RuleError:
        value, used = None, []
    uses_all = value is not None and used == numbers
    makes_target = uses_all and value == target
    return {"reward": 1.0 if makes_target else 0.1 if uses_all else 0.0, "uses_all": float(uses_all), "makes_target": float(makes_target)}


def right(problem: Problem, response: str) -> float:
    """The grader of evaluations: 1 only for a sum that keeps the rule and makes the target."""
    return reward(problem, response)["makes_target"]


def gentle(batch: LossInput, push: float = 0.5) -> LossResult:
    """REINFORCE that pushes less away from what was wrong than it pulls to what was right; the mean over the batch's response tokens.

    push: weight of responses with an advantage below 0, between 0 (learn from the right ones only) and 1 (REINFORCE).
    """
    weight = torch.where(batch.advantages < 0, push, 1.0) * batch.advantages
    per_token = torch.where(batch.mask, -weight * batch.learner_logprobs, 0.0)
    return LossResult(per_token.sum() / batch.num_tokens, {"pushed_fraction": _pushed(batch)})


def _pushed(batch: LossInput) -> Any:
    """[B]: 1 where a response is pushed away from."""
    return (batch.advantages < 0).float().squeeze(-1)
