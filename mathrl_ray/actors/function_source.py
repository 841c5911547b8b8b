"""A reward function on its way from the driver to where it runs: as source text, so that its file need not be there.

Made by own_rewards.py in the driver, sent by grading_process.py, loaded by grading_keeper.py. Knows no recipe.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mathrl_ray.core.rewards import Rollout, adapted
from mathrl_ray.custom import function_of, module_of_text

Parts = Callable[[Rollout], dict[str, float]]


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """One reward function. Made by the driver, loaded by every grading process.

    Example: FunctionSource(spec="/home/me/mine.py:paid", key="reward.function", text="def paid(problem, response): ...")
    """

    spec: str
    """module:function or path/file.py:function, as the resolved recipe has it; the function's name in requests."""
    key: str
    """The recipe's key, for messages."""
    text: str | None = None
    """The file's text; None for a module, which must be importable where it runs."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def load_functions(sources: Mapping[str, Mapping[str, Any]], search_path: list[str]) -> dict[str, Parts]:
    """The functions by their spec, ready to be called.

    Args:
        sources: by spec, a FunctionSource's fields.
        search_path: where the owner finds modules.

    Raises:
        ValueError: one cannot be loaded; it names the key, the spec and what was raised.
    """
    sys.path += [folder for folder in search_path if folder not in sys.path]
    return {spec: _load(FunctionSource(**values)) for spec, values in sources.items()}


def _load(source: FunctionSource) -> Parts:
    place, _, name = source.spec.rpartition(":")
    try:
        module = importlib.import_module(place) if source.text is None else module_of_text(place, source.text)
        return adapted(_with_kwargs(function_of(module, place, name), name, source))
    except BaseException as error:  # border: whatever a stranger's file raises, SystemExit too, a person must hear which file it was
        raise ValueError(f"{source.key} = {source.spec!r}: {described(error)}") from error


def _with_kwargs(function: Callable[..., Any], name: str, source: FunctionSource) -> Callable[..., Any]:
    if not source.kwargs:
        return function
    signature = inspect.signature(function)
    try:
        signature.bind_partial(**source.kwargs)
    except TypeError as error:
        kwargs_key = f"{source.key.removesuffix('.function')}.kwargs"
        raise ValueError(f"{kwargs_key} = {dict(source.kwargs)} does not fit {name}{signature}: {error}") from error
    return functools.partial(function, **source.kwargs)


def described(error: BaseException) -> str:
    """An error with the last line of a traceback, for someone who does not see the traceback.

    >>> described(ValueError("no number"))
    'ValueError: no number'
    """
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place, trace = f" ({code.co_filename.rpartition('/')[2]}, line {trace.tb_lineno})", trace.tb_next
    return f"{type(error).__name__}: {error}{place}"[:500]
