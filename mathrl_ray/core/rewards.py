r"""Reward functions of the user's own: the forms that work, and how each is called.

Called by actors/grading_keeper.py, where a function runs in a process that can be ended, with one response at a time. Pure: a function in,
a function of one form out; knows no file, no process and no recipe. Named in a recipe as reward.function or in eval.graders.

    known by the parameters      called with                                                               gives
    problem, response [, step]   a Problem (types.py), text, the training step                             float or dict: ours
    response, ground_truth       texts (A5's reward functions, drgrpo_grader.py)                           dict with "reward"
    solution_str, ground_truth   verl's compute_score; data_source, extra_info where it asks for them      float or dict with "score"
    completions                  TRL: lists of one; prompts, and the data row's columns by name            list of float
    queries                      OpenRLHF's reward_func: lists of one; prompts, labels where it asks       tensor, list or dict: "rewards"

Everything is given by keyword. What the numbers of a result mean stands in reward_parts.py. A function may be `async`.

What a foreign form asks for is found so. ground_truth, labels, answer, gold, target: the gold. data_source: that column of the row, else
"". extra_info: the row's other columns, and over them those of its column extra_info. prompts: the full text that the model saw; queries:
prompt and response. solution: the row's worked solution, else the gold. TRL's functions get texts, and those that cannot take texts get
lists of messages, as for TRL's conversational data sets; trainer_state has global_step alone; a number that log_metric or log_extra is told
becomes the part `log_<name>`. TRL's completion_ids are not to be had: only texts reach a grading process.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from mathrl_ray.core.reward_parts import REWARD, plain_number, reward_parts
from mathrl_ray.types import Problem

RewardFunction = Callable[..., Any]
_NEEDS = "problem and response (ours), response and ground_truth (A5), solution_str (verl), completions (TRL) or queries (OpenRLHF)"


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a reward function may ask about."""

    problem: Problem
    prompt: str
    """The full text that the model saw; may be empty where nobody knows it."""
    response: str
    step: int


_ANYONE = Rollout(Problem("", "", ""), "", "", step=0)
"""For the names of what a form offers, which do not depend on the rollout but for a row's columns."""


class TrainerState(NamedTuple):
    """What a function of TRL's learns of the training."""

    global_step: int


class _Parameters(NamedTuple):
    """What a function can be given by keyword."""

    names: frozenset[str]
    required: frozenset[str]
    bound: frozenset[str]
    """What the recipe's kwargs have given already, which counts."""
    takes_any: bool
    """It has `**kwargs`."""

    def asked_for(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in offered.items() if (self.takes_any or name in self.names) and name not in self.bound}


class _Form(NamedTuple):
    """How functions of one origin are called."""

    origin: str
    offered: Callable[[Rollout], dict[str, Any]]
    reward_key: str = REWARD
    """The key of a dict that holds the reward."""


def adapted(function: RewardFunction) -> Callable[[Rollout], dict[str, float]]:
    """A function of any known form as one from a rollout to its parts; `reward` is one of them unless it gave other parts only.

    Raises:
        ValueError: parameters of no known form.
        TypeError: a known form, but with a parameter that nothing is given for; it names the parameter. The adapted function raises
            whatever the function does, and ValueError for a result without a finite number or a row without a column that it asks for.

    >>> parts = adapted(lambda problem, response: {"reward": 1.0, "steps": response.count(";")})
    >>> parts(Rollout(Problem("p", "1+1?", "2"), "", "1+1; 2", step=0))
    {'reward': 1.0, 'steps': 1.0}
    """
    parameters = _parameters_of(function)
    form = _form_of(parameters, function)
    _check_required(parameters, form, function)

    def parts_of(rollout: Rollout) -> dict[str, float]:
        if form is _TRL:
            return _trl_parts(function, parameters, rollout)
        return reward_parts(_called(function, parameters, form.offered(rollout)), reward_key=form.reward_key)

    return parts_of


def _parameters_of(function: RewardFunction) -> _Parameters:
    # One that is given by position only may be required, but is no name: nothing is given for it.
    parameters = inspect.signature(function).parameters.values()
    ordinary = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return _Parameters(
        names=frozenset(each.name for each in ordinary if each.kind is not each.POSITIONAL_ONLY),
        required=frozenset(each.name for each in ordinary if each.default is each.empty),
        bound=frozenset(function.keywords if isinstance(function, functools.partial) else ()),
        takes_any=any(each.kind is each.VAR_KEYWORD for each in parameters),
    )


def _form_of(parameters: _Parameters, function: RewardFunction) -> _Form:
    names = parameters.names - parameters.bound
    if "completions" in names:
        return _TRL
    if "queries" in names:
        return _OPENRLHF
    if "solution_str" in names:
        return _VERL
    if {"problem", "response"} <= names:
        return _OURS
    if {"response", "ground_truth"} <= names:
        return _A5
    raise ValueError(
        f"{_name_of(function)} takes {', '.join(sorted(names)) or 'nothing by name'}: the parameters of a reward function are {_NEEDS}"
    )


def _check_required(parameters: _Parameters, form: _Form, function: RewardFunction) -> None:
    """Refuse what nothing is given for. Of TRL's a name that is not known may be a column of the rows, so it is looked for there."""
    offered = form.offered(_ANYONE)
    missing = parameters.required - (parameters.names & offered.keys())
    if form is _TRL:
        missing -= parameters.names - _TRL_KEEPS
    if missing:
        raise TypeError(
            f"{_name_of(function)} asks for {', '.join(sorted(missing))}, which it cannot be given: a function of {form.origin} form gets "
            f"{', '.join(offered)} by keyword{', and the columns of the data row' if form is _TRL else ''}. "
            "Give the parameter a default, or a value in reward.kwargs."
        )


def _name_of(function: RewardFunction) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", inner))


def _called(function: RewardFunction, parameters: _Parameters, offered: Mapping[str, Any]) -> Any:
    result = function(**parameters.asked_for(offered))
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def _offered_to_ours(rollout: Rollout) -> dict[str, Any]:
    return {"problem": rollout.problem, "response": rollout.response, "step": rollout.step}


def _offered_to_a5s(rollout: Rollout) -> dict[str, Any]:
    return {"response": rollout.response, "ground_truth": rollout.problem.gold}


def _offered_to_verls(rollout: Rollout) -> dict[str, Any]:
    extra = rollout.problem.extra
    inner = extra.get("extra_info")
    return {
        "data_source": extra.get("data_source", ""),
        "solution_str": rollout.response,
        "ground_truth": rollout.problem.gold,
        "extra_info": {**extra, **(inner if isinstance(inner, Mapping) else {})},
    }


def _offered_to_openrlhfs(rollout: Rollout) -> dict[str, Any]:
    return {"queries": [rollout.prompt + rollout.response], "prompts": [rollout.prompt], "labels": [rollout.problem.gold]}


def _offered_to_trls(rollout: Rollout, log: "_Log | None" = None) -> dict[str, Any]:
    """One row of columns, each a list of one, and what TRL gives besides."""
    log = log or _Log()
    problem = rollout.problem
    columns = {
        **dict.fromkeys(("answer", "gold", "ground_truth", "target"), problem.gold),
        **{"problem_id": problem.problem_id, "problem": problem.problem, "level": problem.level, "subject": problem.subject},
        "solution": problem.solution or problem.gold,
        **problem.extra,
    }
    given = {"trainer_state": TrainerState(rollout.step), "log_metric": log.metric, "log_extra": log.extra}
    return {name: [value] for name, value in columns.items()} | {"prompts": [rollout.prompt], "completions": [rollout.response]} | given


class _Log:
    """What one call of a function has logged."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def metric(self, name: str, value: Any) -> None:
        """TRL's log_metric: a number; of several of one name their mean."""
        number = plain_number(value)
        if number is not None:
            self._values.setdefault(f"log_{name}", []).append(number)

    def extra(self, column: str, values: Any) -> None:
        """TRL's log_extra: a list of one here; texts are left out, as everywhere."""
        self.metric(column, values)

    def parts(self) -> dict[str, float]:
        return {name: fmean(numbers) for name, numbers in self._values.items()}


_OURS = _Form("our", _offered_to_ours)
_A5 = _Form("A5's", _offered_to_a5s)
_VERL = _Form("verl's", _offered_to_verls, "score")
_OPENRLHF = _Form("OpenRLHF's", _offered_to_openrlhfs, "rewards")
_TRL = _Form("TRL's", _offered_to_trls, "rewards")
_TRL_KEEPS = frozenset({"completion_ids", "completions_ids"})
"""What TRL gives and we cannot: its code has the first name, some of its documentation the second."""


def _trl_parts(function: RewardFunction, parameters: _Parameters, rollout: Rollout) -> dict[str, float]:
    """Texts first, then messages."""
    absent = parameters.required - _offered_to_trls(rollout).keys()
    if absent:
        raise ValueError(
            f"{_name_of(function)} asks for {', '.join(sorted(absent))}, which is no column of the data row; its own columns are "
            f"{', '.join(rollout.problem.extra) or 'none'}"
        )
    try:
        return _parts_and_log(function, parameters, rollout, {})
    except (TypeError, IndexError) as error:  # border: completion[0]["content"] of a text raises one of these
        messages = {"prompts": [_message("user", rollout.prompt)], "completions": [_message("assistant", rollout.response)]}
        try:
            return _parts_and_log(function, parameters, rollout, messages)
        except Exception:  # border: a fault that has nothing to do with the form of a completion
            raise error from None


def _parts_and_log(
    function: RewardFunction, parameters: _Parameters, rollout: Rollout, messages: Mapping[str, list[Any]]
) -> dict[str, float]:
    log = _Log()  # a call that failed leaves nothing behind
    result = _called(function, parameters, {**_offered_to_trls(rollout, log), **messages})
    return log.parts() | reward_parts(result, reward_key=_TRL.reward_key)


def _message(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]
