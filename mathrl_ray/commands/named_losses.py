"""The losses that replay's --loss names: the run's own, a method of methods.py, or a function of the user's own.

Called by replay.py and, for a function, by __main__.py (check-loss). Light until a function is loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, get_args

from mathrl_ray.config import Recipe
from mathrl_ray.core.masking import masked_keys
from mathrl_ray.methods import Method, method_settings
from mathrl_ray.recipe_file import parse_value
from mathrl_ray.sections import AdvantageSection, LossSection

LOGGED = "logged"
"""The loss that the run itself trained with."""


@dataclass(frozen=True, slots=True)
class NamedLoss:
    """One loss, and how it weighs rewards."""

    name: str
    loss: LossSection
    advantage: AdvantageSection | None
    """Of a method, whose advantages are taken anew from the saved rewards; None: the saved advantages."""
    spec: str = ""
    """FILE.py:FUNCTION or module:function of one that the command line names."""
    keywords: tuple[str, ...] = ()
    """name=value each, what it is called with."""

    @property
    def needs_entropy_gradient(self) -> bool:
        return self.loss.entropy_coefficient > 0 or bool(self.loss.function) or bool(self.spec)

    def function(self) -> Callable[..., Any]:
        """What computes it from a core.loss_batch.LossInput.

        Raises:
            ValueError: the function cannot be loaded.
        """
        from mathrl_ray.actors.learner_steps import own_loss
        from mathrl_ray.core.losses import policy_loss
        from mathrl_ray.custom import load_function

        if self.spec:
            return own_loss(loss_function(self.spec, self.keywords)[1])
        if self.loss.function:
            return own_loss(load_function(self.loss.function, key="loss.function", kwargs=self.loss.kwargs))
        return partial(policy_loss, settings=self.loss)


def named_losses(names: Sequence[str], recipe: Recipe) -> list[NamedLoss]:
    """The run's own first, whether or not it is named, then the others, each once.

    Args:
        names: LOGGED, methods and functions; behind a function name=value for its keyword arguments.
        recipe: of the run.

    Raises:
        ValueError: neither a method nor a function; settings that cannot go together; secrets that recipe.toml does not keep.
    """
    if keys := list(masked_keys({"loss": {"kwargs": recipe.loss.kwargs}})):
        raise ValueError(f"{', '.join(keys)}: the run's recipe.toml keeps no secrets, so its own loss cannot be computed again")
    others = [_named(name, keywords, recipe) for name, *keywords in dict.fromkeys(_with_keywords(names)) if (name, *keywords) != (LOGGED,)]
    return [NamedLoss(LOGGED, recipe.loss, None), *others]


def _with_keywords(words: Sequence[str]) -> list[tuple[str, ...]]:
    """
    >>> _with_keywords(["dapo", "mine.py", "power=0.5", "mine.py", "power=1"])
    [('dapo',), ('mine.py', 'power=0.5'), ('mine.py', 'power=1')]
    """
    found: list[tuple[str, ...]] = []
    for word in words:
        if found and word.partition("=")[0].isidentifier() and "=" in word:
            found[-1] = (*found[-1], word)
        else:
            found.append((word,))
    return found


def _named(name: str, keywords: Sequence[str], recipe: Recipe) -> NamedLoss:
    if ":" in name or name.endswith(".py"):
        return NamedLoss(" ".join((name, *keywords)), recipe.loss, None, spec=name, keywords=tuple(keywords))
    if keywords:
        raise ValueError(f"--loss {name} {' '.join(keywords)}: only functions of one's own, FILE.py:FUNCTION, take keyword arguments")
    if name in get_args(Method):
        return _method(name, recipe)
    nearest = get_close_matches(name, [LOGGED, *get_args(Method)], n=1, cutoff=0.4)
    hint = f" The nearest is {nearest[0]}." if nearest else ""
    raise ValueError(
        f"--loss {name}: no loss of this name.{hint} Give {LOGGED}, a method ({', '.join(get_args(Method))}), or FILE.py:FUNCTION"
    )


def _method(name: Any, recipe: Recipe) -> NamedLoss:
    """The method's own keys on top of the run's: correction, KL and entropy stay; functions of the user's own do not."""
    settings = method_settings(name)
    changed = {section: {**settings[section], "function": "", "kwargs": {}} for section in ("loss", "advantage")}
    values = recipe.model_dump()
    sections = {section: {**values[section], **keys} for section, keys in changed.items()}
    try:
        whole = Recipe.model_validate({**values, **sections})
    except ValueError as error:
        raise ValueError(f"--loss {name} does not go with the run's other settings: {error}") from error
    return NamedLoss(name, whole.loss, whole.advantage)


def loss_function(spec: str, keywords: Sequence[str] = (), *, key: str = "--loss") -> tuple[str, Any]:
    """Name and function of path/file.py (with one function in it), path/file.py:function or module:function.

    Args:
        spec: which.
        keywords: name=value each, its keyword arguments.
        key: what messages call it.

    Raises:
        ValueError: it cannot be loaded, or a file holds none or several.
    """
    from mathrl_ray.custom import load_file, load_function, public_functions

    if spec.endswith(".py"):
        names = public_functions(load_file(Path(spec)))
        if len(names) != 1:
            found = f"holds {', '.join(names)}" if names else "holds no public function"
            raise ValueError(f"{spec} {found}: name the loss as {spec}:{names[0] if names else 'FUNCTION'}")
        spec = f"{spec}:{names[0]}"
    return spec, load_function(spec, key=key, kwargs=dict(_keyword(word) for word in keywords))


def _keyword(argument: str) -> tuple[str, Any]:
    """A name and its value, read as a recipe's overrides are."""
    name, separator, text = argument.partition("=")
    if not separator or not name.isidentifier():
        raise ValueError(f"{argument!r}: a keyword argument of the loss is name=value, for example power=0.5")
    return name, parse_value(text)
