r"""Reward functions of the user's own: the forms that work, and the numbers that are taken from what they give.

Called by actors/grading_keeper.py, where a function runs in a process that can be ended, with one response at a time. Pure: a function in,
a function of one form out; knows no file, no process and no recipe. Named in a recipe as reward.function or in eval.graders.

    known by the parameters      called with                                                               gives
    problem, response [, step]   a Problem (types.py), text, the training step by keyword                  float or dict: ours
    response, ground_truth       texts (A5's reward functions, drgrpo_grader.py)                           dict with "reward"
    solution_str, ground_truth   verl's compute_score; data_source, extra_info where it asks for them      float or dict with "score"
    completions                  TRL: lists of one; prompts, and the data row's columns by name            list of float
    queries                      OpenRLHF's reward_func: lists of one; prompts, labels where it asks       tensor, list or dict: "rewards"

Of a dict, the number of the key that is named above is the reward, and every other number is a part that is logged. A dict of ours (or of
A5's form) without "reward" is paid the weighted sum of its parts (core/reward_weights.py). A function may be `async`.

What a foreign form asks for is found so. ground_truth, labels, answer, gold, target: the gold. data_source: that column of the row, else
"". extra_info: the row's other columns, and over them those of its column extra_info. prompts: the full text that the model saw; queries:
prompt and response. solution: the row's worked solution, else the gold. TRL's functions get texts, and those that cannot take texts get
lists of messages, as for TRL's conversational data sets.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple, TypeVar, cast

from mathrl_ray.types import Problem

RewardFunction = Callable[..., Any]
REWARD = "reward"
"""The part that is the whole reward, where a function says it."""
_SUFFIX = "_reward"
_NEEDS = "problem and response (ours), response and ground_truth (A5), solution_str (verl), completions (TRL) or queries (OpenRLHF)"

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a reward function may ask about."""

    problem: Problem
    prompt: str
    """The full text that the model saw; may be empty where nobody knows it."""
    response: str
    step: int


class _Form(NamedTuple):
    """How functions of one origin are called."""

    call: Callable[[RewardFunction, frozenset[str], Rollout], Any]
    reward_key: str
    """The key of a dict that holds the reward."""


def adapted(function: RewardFunction) -> Callable[[Rollout], dict[str, float]]:
    """A function of any known form as one from a rollout to its parts; `reward` is one of them unless it gave other parts only.

    A part's name loses the ending `_reward`, so that A5's `format_reward` is the part `format`.

    Raises:
        ValueError: parameters of no known form. The adapted function raises whatever the function does, and ValueError for a result
            without a finite number.

    >>> parts = adapted(lambda problem, response: {"reward": 1.0, "steps": response.count(";")})
    >>> parts(Rollout(Problem("p", "1+1?", "2"), "", "1+1; 2", step=0))
    {'reward': 1.0, 'steps': 1.0}
    """
    names = _parameters(function)
    form = _form_of(names, function)

    def parts_of(rollout: Rollout) -> dict[str, float]:
        result = form.call(function, names, rollout)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        return reward_parts(result, reward_key=form.reward_key)

    return parts_of


def _form_of(names: frozenset[str], function: RewardFunction) -> _Form:
    if "completions" in names:
        return _Form(_call_trl, "rewards")
    if "queries" in names:
        return _Form(_call_openrlhf, "rewards")
    if "solution_str" in names:
        return _Form(_call_verl, "score")
    if {"problem", "response"} <= names:
        return _Form(_call_ours, REWARD)
    if {"response", "ground_truth"} <= names:
        return _Form(_call_a5, REWARD)
    raise ValueError(
        f"{getattr(function, '__name__', function)!s} takes {', '.join(sorted(names - {_ANY})) or 'nothing by name'}: "
        f"the parameters of a reward function are {_NEEDS}"
    )


_ANY = "**"
"""Stands among a function's parameters for `**kwargs`."""


def _parameters(function: RewardFunction) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    any_name = {_ANY} if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) else set()
    return frozenset({parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD} | any_name)


def _asked_for(names: frozenset[str], offered: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in offered.items() if name in names or _ANY in names}


def _call_ours(function: RewardFunction, names: frozenset[str], rollout: Rollout) -> Any:
    return function(rollout.problem, rollout.response, **_asked_for(names, {"step": rollout.step}))


def _call_a5(function: RewardFunction, names: frozenset[str], rollout: Rollout) -> Any:
    return function(rollout.response, rollout.problem.gold)


def _call_verl(function: RewardFunction, names: frozenset[str], rollout: Rollout) -> Any:
    extra = rollout.problem.extra
    inner = extra.get("extra_info")
    offered = {
        "data_source": extra.get("data_source", ""),
        "solution_str": rollout.response,
        "ground_truth": rollout.problem.gold,
        "extra_info": {**extra, **(inner if isinstance(inner, Mapping) else {})},
    }
    return function(**_asked_for(names, offered))


def _call_trl(function: RewardFunction, names: frozenset[str], rollout: Rollout) -> Any:
    """One row of columns, each a list of one; texts first, then messages."""
    problem = rollout.problem
    columns = {
        **dict.fromkeys(("answer", "gold", "ground_truth", "target"), problem.gold),
        **{"problem_id": problem.problem_id, "problem": problem.problem, "level": problem.level, "subject": problem.subject},
        "solution": problem.solution or problem.gold,
        **problem.extra,
    }
    offered = {name: [value] for name, value in columns.items()}
    texts = {"prompts": [rollout.prompt], "completions": [rollout.response]}
    try:
        return function(**_asked_for(names, offered | texts))
    except (TypeError, IndexError) as error:  # border: completion[0]["content"] of a text raises one of these
        messages = {"prompts": [_message("user", rollout.prompt)], "completions": [_message("assistant", rollout.response)]}
        try:
            return function(**_asked_for(names, offered | messages))
        except Exception:  # border: a fault that has nothing to do with the form of a completion
            raise error from None


def _message(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def _call_openrlhf(function: RewardFunction, names: frozenset[str], rollout: Rollout) -> Any:
    offered = {"queries": [rollout.prompt + rollout.response], "prompts": [rollout.prompt], "labels": [rollout.problem.gold]}
    return function(**_asked_for(names, offered))


async def _awaited(result: Any) -> Any:
    return await result


def reward_parts(result: Any, *, reward_key: str = REWARD) -> dict[str, float]:
    """The numbers of what a reward function gave; texts and other values that are no number are left out.

    Args:
        result: a number, a list or tensor of one, or a dict of these.
        reward_key: the key of a dict that holds the reward; "reward" is taken too.

    Raises:
        ValueError: no reward and no part, or one that is not finite.

    >>> reward_parts({"format_reward": 1, "answer_reward": 0, "reward": 0}), reward_parts([0.5]), reward_parts(True)
    ({'format': 1.0, 'answer': 0.0, 'reward': 0.0}, {'reward': 0.5}, {'reward': 1.0})
    """
    if not isinstance(result, Mapping):
        return {REWARD: _finite(_number(result), REWARD, result)}
    flat = {**result, **(result["extra_logs"] if isinstance(result.get("extra_logs"), Mapping) else {})}
    numbers = {str(name): number for name, value in flat.items() if (number := _number(value)) is not None}
    named = {(REWARD if name == reward_key else _part_name(name)): number for name, number in numbers.items()}
    if not named or (reward_key != REWARD and REWARD not in named):
        raise ValueError(f'the reward function gave {_shown(result)}: a dict must hold a number under "{reward_key}"')
    return {name: _finite(number, name, result) for name, number in named.items()}


def _part_name(name: str) -> str:
    return name.removesuffix(_SUFFIX) or name


def _number(value: Any) -> float | None:
    """A plain number, also out of a list, array or tensor of one; None for anything else."""
    if hasattr(value, "tolist"):  # numpy's and torch's
        value = value.tolist()
    while isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) == 1:
        value = value[0].tolist() if hasattr(value[0], "tolist") else value[0]
    return float(cast(float, value)) if isinstance(value, int | float) else None


def _finite(number: float | None, name: str, result: Any) -> float:
    if number is None or not isfinite(number):
        raise ValueError(f"the reward function gave {_shown(result)}: {name} must be one finite number")
    return number


def _shown(result: Any) -> str:
    text = repr(result)
    return text if len(text) <= 200 else f"{text[:200]}..."
