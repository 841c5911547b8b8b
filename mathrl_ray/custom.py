"""Functions of the user's own, named in a recipe as `module:function` or `path/file.py:function`.

Called by the learner (loss.function), the driver (advantage.function) and check-loss; actors/function_source.py loads reward functions with
`module_of_text` and `function_of`. Imports what it is told to; knows no engine.
"""

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every grading process loads this file, and needs none of pydantic's 10 MiB
    from mathrl_ray.config import Recipe, RecipeError
    from mathrl_ray.sections import AdvantageSection, LossSection


def load_function(
    spec: str,
    *,
    key: str,
    kwargs: Mapping[str, Any] | None = None,
    takes: str | None = "one argument (a loss the batch, an advantage the group)",
) -> Callable[..., Any]:
    """The function that a recipe's key names, with keyword arguments bound.

    Args:
        spec: "module:function" or "path/file.py:function".
        key: the recipe's key, for messages.
        kwargs: keyword arguments that the function is called with.
        takes: what else it is called with, one argument, for the message; None where that has many forms and is not looked at here.

    Raises:
        RecipeError: not of this form, no such file or module, an error while importing it, no function of that name in it, or one that
            cannot be called with one argument and these keyword arguments.
    """
    source, name = split_function_name(spec, key)
    try:
        module = load_file(Path(source)) if source.endswith(".py") else _imported(source)
        function = function_of(module, source, name)
    except ValueError as error:
        raise _recipe_error(f"{key} = {spec!r}: {error}") from error
    if takes is not None:
        _check_keywords(function, name, key, kwargs or {}, takes)
    return functools.partial(function, **kwargs) if kwargs else function


def split_function_name(spec: str, key: str) -> tuple[str, str]:
    """The two parts of module:function or path/file.py:function; nothing is opened.

    Raises:
        RecipeError: not of this form.

    >>> split_function_name("losses/mine.py:right", "loss.function")
    ('losses/mine.py', 'right')
    """
    source, separator, name = spec.rpartition(":")
    if not separator or not source or not name.isidentifier():
        raise _recipe_error(f"{key} = {spec!r}: give module:function or path/file.py:function")
    return source, name


def _check_keywords(function: Callable[..., Any], name: str, key: str, kwargs: Mapping[str, Any], takes: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin does not tell its parameters
        return
    try:
        signature.bind(None, **kwargs)
    except TypeError as error:
        raise _recipe_error(
            f"{key.removesuffix('.function')}.kwargs = {dict(kwargs)} does not fit {name}{signature}: {error}. "
            f"It is called with {takes} and these."
        ) from error


def own_functions(recipe: "Recipe") -> dict[str, Callable[..., Any]]:
    """The functions that a recipe's [loss] and [advantage] name, by section; the learner loads its loss again where it runs.

    Raises:
        RecipeError: one cannot be loaded.
    """
    named: dict[str, LossSection | AdvantageSection] = {"loss": recipe.loss, "advantage": recipe.advantage}
    return {
        section: load_function(settings.function, key=f"{section}.function", kwargs=settings.kwargs)
        for section, settings in named.items()
        if settings.function
    }


def public_functions(module: ModuleType) -> list[str]:
    """Names of the functions that a module defines itself, in the order of their lines."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__
    ]


def load_file(path: Path) -> ModuleType:
    """Import a Python file that stands outside of any package.

    Raises:
        RecipeError: there is no such file, or importing it fails.
    """
    if not path.is_file():
        raise _recipe_error(f"{path}: no such file (every node that runs it must see it under this path)")
    try:
        return module_of_text(str(path), source_text(path))
    except Exception as error:  # whatever a stranger's file raises while it is imported, the person must hear which file it was
        raise _recipe_error(f"{path} cannot be imported: {type(error).__name__}: {error}") from error


def source_text(path: Path) -> str:
    """A file of Python as text, in the encoding that it declares, by default UTF-8.

    Raises:
        OSError: it cannot be read.
        SyntaxError, UnicodeDecodeError: it is not in that encoding, or the encoding is unknown.
    """
    return importlib.util.decode_source(path.read_bytes())


def module_of_text(path: str, text: str) -> ModuleType:
    """A module of a file's text, whether or not the file is here; whatever the text raises is raised."""
    name = f"mathrl_ray_own_{PurePath(path).stem}"
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except BaseException:  # Ctrl-C too: a module that is half there must not be found
        sys.modules.pop(name, None)
        raise
    return module


def function_of(module: ModuleType, place: str, name: str) -> Callable[..., Any]:
    """What a module has under a name.

    Raises:
        ValueError: nothing that can be called; it names the place and the functions that are there.
    """
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{place} has no function {name}; it has {', '.join(public_functions(module)) or 'none'}")
    return function


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # as in load_file
        raise _recipe_error(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _recipe_error(text: str) -> "RecipeError":
    from mathrl_ray.config import RecipeError

    return RecipeError(text)
