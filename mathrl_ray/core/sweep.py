"""A sweep: from `[sweep]` lists to variants of one recipe, and the rule by which a hopeless one ends early.

Called by whoever runs a sweep. Pure: values in, values out; knows no recipe and no run.

    variants   the product of all lists (combine = "grid"), or their rows side by side ("zip"); each once for every seed
    names      follow from what a variant changes and from nothing else, so that a sweep that goes on finds what it has done
    the rule   successive halving (Jamieson & Talwalkar 2016) with a doubt: at the 1st, 2nd, 4th, 8th ... validation, the better half of the
               settings that have got so far goes on, and of the others each whose interval overlaps the worst of that half. So a setting
               ends only where it is both in the worse half and clearly worse. The seeds of one setting are judged together, and end
               together: a mean over the lucky ones alone would be no mean. The last validation ends nothing. Nobody waits for others at
               a rung: who comes is compared with all that were there, ended or not, as in asynchronous successive halving (Li et al.
               2020, section 3), so that the rule also holds where one variant runs after the other (driver/sweep_judge.py).

Intervals are Wilson's, over all responses of a setting. Settings are validated on the same problems with the same seeds, so the difference
of two is known better than their intervals say: the rule errs towards going on.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, assert_never

from mathrl_ray.core.statistics import wilson_interval

SEED_KEY = "run.seed"
MOST_NAME_CHARACTERS = 100
"""A folder's name may have 255; the run's own comes before it, and a file system counts bytes."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One run of a sweep.

    Example: Variant(name="learning_rate-0.0005-seed-1", setting="learning_rate-0.0005",
                     changes={"grpo.learning_rate": 5e-4, "run.seed": 1})
    """

    name: str
    """Fit for a folder: letters, digits and `._-`."""
    setting: str
    """The name without the seed: what is compared."""
    changes: Mapping[str, Any]
    """Recipe keys, dotted, with their values."""

    def overrides(self) -> list[str]:
        """As the command line takes them.

        >>> Variant("x", "x", {"grpo.loss": "dapo", "run.seed": 1}).overrides()
        ['grpo.loss="dapo"', 'run.seed=1']
        """
        texts = {key: json.dumps(value, ensure_ascii=False) for key, value in self.changes.items()}
        # TOML knows JSON's numbers, strings and lists, but no escaped surrogates, and wants DEL escaped.
        return [f"{key}={text}".replace("\x7f", "\\u007f") for key, text in texts.items()]


def variants(lists: Mapping[str, Sequence[Any]], *, combine: Literal["grid", "zip"] = "grid", seeds: Sequence[int] = ()) -> list[Variant]:
    """All variants, in the order of the lists, the last one changing fastest, and of each its seeds.

    Args:
        lists: dotted recipe keys with the values to try; none for seeds alone.
        combine: every value with every other, or the first with the first and so on.
        seeds: of each setting; none for the recipe's own.

    Raises:
        ValueError: an empty list, a value twice, lists of different lengths for "zip", or the seed in two places.

    >>> [variant.name for variant in variants({"grpo.learning_rate": [1e-4, 5e-4]}, seeds=[0, 1])]
    ['learning_rate-0.0001-seed-0', 'learning_rate-0.0001-seed-1', 'learning_rate-0.0005-seed-0', 'learning_rate-0.0005-seed-1']
    """
    _check(lists, combine, seeds)
    listed = {key: values for key, values in lists.items() if key != SEED_KEY or combine == "zip"}
    own_seeds = list(seeds) if combine == "zip" else list(seeds or lists.get(SEED_KEY, ()))
    return [
        _variant({**changes, **({} if seed is None else {SEED_KEY: seed})}, list(lists))
        for changes in _combined(listed, combine)
        for seed in own_seeds or [None]
    ]


def _combined(lists: Mapping[str, Sequence[Any]], combine: Literal["grid", "zip"]) -> list[dict[str, Any]]:
    """One dictionary of changes a combination; without lists the one that changes nothing."""
    match combine:
        case "grid":
            rows = list(itertools.product(*lists.values()))
        case "zip":
            rows = list(zip(*lists.values(), strict=True)) if lists else [()]
        case _:
            assert_never(combine)
    return [dict(zip(lists, row, strict=True)) for row in rows]


def _variant(changes: dict[str, Any], all_keys: Sequence[str]) -> Variant:
    setting = {key: value for key, value in changes.items() if key != SEED_KEY}
    return Variant(_name(changes, all_keys), _name(setting, all_keys) or "recipe", changes)


def _check(lists: Mapping[str, Sequence[Any]], combine: str, seeds: Sequence[int]) -> None:
    if not lists and not seeds:
        raise ValueError('[sweep] names nothing to try: give lists, for example "grpo.learning_rate" = [1e-4, 5e-4], or seeds = [0, 1, 2]')
    for key, values in {**lists, **({"seeds": seeds} if seeds else {})}.items():
        if not values:
            raise ValueError(f'sweep."{key}" is an empty list: give the values to try')
        if len({_text(value) for value in values}) < len(values):
            raise ValueError(f'sweep."{key}" = {list(values)} names a value twice: remove one')
    if seeds and SEED_KEY in lists:
        raise ValueError(f'sweep.seeds and sweep."{SEED_KEY}" both name seeds: remove one')
    lengths = {key: len(values) for key, values in lists.items()}
    if combine == "zip" and len(set(lengths.values())) > 1:
        raise ValueError(
            f'sweep.combine = "zip" takes the lists row by row, and they have {lengths} values: make them equal, or set it to "grid"'
        )


def _name(changes: Mapping[str, Any], all_keys: Sequence[str]) -> str:
    """<key>-<value>-<key>-<value>..., keys by their last part where that says which; ends in a hash where characters were lost."""
    parts = [f"{_short(key, all_keys)}-{_text(value)}" for key, value in changes.items()]
    plain = "-".join(parts)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", plain)
    if readable == plain and len(plain) <= MOST_NAME_CHARACTERS:
        return plain
    return f"{readable[:MOST_NAME_CHARACTERS]}-{hashlib.blake2b(plain.encode(), digest_size=4).hexdigest()}"


def _short(key: str, all_keys: Sequence[str]) -> str:
    last = key.rpartition(".")[2]
    return key if sum(each.rpartition(".")[2] == last for each in {*all_keys, SEED_KEY}) > 1 else last


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Standing:
    """One variant at a validation."""

    setting: str
    num_correct: int
    num_graded: int
    """Validation problems that could be graded."""


def is_rung(validation: int, num_validations: int) -> bool:
    """Whether the rule is asked after a validation (from 1) of so many: at 1, 2, 4, 8, ..., but not at the last.

    >>> [validation for validation in range(1, 11) if is_rung(validation, 10)]
    [1, 2, 4, 8]
    """
    return 1 <= validation < num_validations and validation & (validation - 1) == 0


def hopeless_settings(standings: Sequence[Standing], *, keep: float = 0.5, confidence: float = 0.95) -> list[str]:
    """The settings that end at this rung, the worst first.

    With accuracies p and intervals [low, high] over the responses of all seeds of a setting, the ceil(keep n) best of n settings stay. Of
    the others those end with high < low of the last that stays.

    Args:
        standings: of all variants that have reached the rung, ended or not.
        keep: the share of settings that stays in any case.
        confidence: of the intervals.

    Raises:
        ValueError: keep outside of (0, 1].

    >>> hopeless_settings([Standing("a", 80, 100), Standing("b", 20, 100), Standing("c", 70, 100), Standing("d", 60, 100)])
    ['b']
    """
    if not 0 < keep <= 1:
        raise ValueError(f"sweep.keep = {keep}: it must be above 0 and at most 1, 0.5 is usual")
    totals = _totals(standings)
    ranked = _ranked(totals)
    num_staying = ceil(keep * len(ranked))
    if num_staying == len(ranked):
        return []
    low, _ = wilson_interval(*totals[ranked[num_staying - 1]], confidence)
    return [setting for setting in reversed(ranked[num_staying:]) if wilson_interval(*totals[setting], confidence)[1] < low]


def standings_text(standings: Sequence[Standing], confidence: float = 0.95) -> str:
    """The numbers that the rule looked at, the best setting first.

    >>> standings_text([Standing("a", 20, 100), Standing("b", 60, 100), Standing("a", 30, 100)])
    'b 60.0 % (50.2 to 69.1) of 100; a 25.0 % (19.5 to 31.4) of 200'
    """
    totals = _totals(standings)
    return "; ".join(f"{setting} {_accuracy_text(*totals[setting], confidence)}" for setting in _ranked(totals))


def _accuracy_text(num_correct: int, num_graded: int, confidence: float) -> str:
    low, high = wilson_interval(num_correct, num_graded, confidence)
    return f"{100 * _rate(num_correct, num_graded):.1f} % ({100 * low:.1f} to {100 * high:.1f}) of {num_graded}"


def _totals(standings: Sequence[Standing]) -> dict[str, tuple[int, int]]:
    """(right, graded) of each setting, over its seeds."""
    totals: dict[str, tuple[int, int]] = {}
    for each in standings:
        correct, graded = totals.get(each.setting, (0, 0))
        totals[each.setting] = correct + each.num_correct, graded + each.num_graded
    return totals


def _ranked(totals: Mapping[str, tuple[int, int]]) -> list[str]:
    return sorted(totals, key=lambda setting: (-_rate(*totals[setting]), setting))


def _rate(num_correct: int, num_graded: int) -> float:
    return num_correct / num_graded if num_graded else 0.0
