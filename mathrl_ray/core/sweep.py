"""A sweep: from `[sweep]` lists to variants of one recipe, and the rule by which a hopeless one ends early.

Called by whoever runs a sweep. Pure: values in, values out; knows no recipe and no run.

    variants   the product of all lists (combine = "grid"), or their rows side by side ("zip"); each once for every seed
    names      follow from what a variant changes and from nothing else, so that a sweep that goes on finds what it has done
    the rule   successive halving (Jamieson & Talwalkar 2016) with a doubt: at the 1st, 2nd, 4th, 8th ... validation a setting ends where
               half of all settings of the sweep (`keep`) are better there, and clearly so: its interval lies below those of all of them.
               So that half goes on in any case, at every rung. The seeds of one setting are judged together, and end together: a mean over
               the lucky ones alone would be no mean. The last validation ends nothing. Nobody waits for others at a rung: who comes is
               compared with all that were there, ended or not, so that the rule also holds where one variant runs after the other
               (driver/sweep_judge.py). That is asynchronous successive halving (Li et al. 2020, section 3) but for the share, which there
               is one of those that have got so far: whoever comes early would be ended by few.

An interval's half width is Wilson's, over all responses of a setting, and that of its training seeds, in quadrature: z sd / sqrt(seeds),
where sd is `seed_sd` (an assumption: a single seed says nothing of it), or what its seeds differ by, should that be more. How often a rung
ends one of 2 or 8 equal settings by mistake, tests/unit/core/test_sweep.py simulates: less than once in 100 sweeps where training seeds
differ as assumed; where they differ by twice as much, 16 to 19 times with one seed a setting, and 4 times with three.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, hypot, sqrt
from statistics import stdev
from typing import Any, Literal, assert_never

from scipy.special import ndtri

from mathrl_ray.core.masking import masked
from mathrl_ray.core.statistics import wilson_interval

SEED_KEY = "run.seed"
SEED_SD = 0.05
"""By how much a run's validation accuracy differs between training seeds, where nothing better is known."""
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
        return [f"{key}={_toml(value)}" for key, value in self.changes.items()]


def variants(lists: Mapping[str, Sequence[Any]], *, combine: Literal["grid", "zip"] = "grid", seeds: Sequence[int] = ()) -> list[Variant]:
    """All variants, in the order of the lists, the last one changing fastest, and of each its seeds.

    Args:
        lists: dotted recipe keys with the values to try; none for seeds alone.
        combine: every value with every other, or the first with the first and so on.
        seeds: of each setting; none for the recipe's own.

    Raises:
        ValueError: an empty list, a value twice, a date, lists of different lengths for "zip", the seed in two places, or two variants that
            would have one name.

    >>> [variant.name for variant in variants({"grpo.learning_rate": [1e-4, 5e-4]}, seeds=[0, 1])]
    ['learning_rate-0.0001-seed-0', 'learning_rate-0.0001-seed-1', 'learning_rate-0.0005-seed-0', 'learning_rate-0.0005-seed-1']
    """
    _check(lists, combine, seeds)
    listed = {key: values for key, values in lists.items() if key != SEED_KEY or combine == "zip"}
    own_seeds = list(seeds) if combine == "zip" else list(seeds or lists.get(SEED_KEY, ()))
    made = [
        _variant({**changes, **({} if seed is None else {SEED_KEY: seed})}, list(lists))
        for changes in _combined(listed, combine)
        for seed in own_seeds or [None]
    ]
    names = [variant.name for variant in made]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two variants of [sweep] would both be named {twice[0]}: leave one of their values to a sweep of its own")
    return made


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
    parts = [f"{_short(key, all_keys)}-{_open_text(key, value)}" for key, value in changes.items()]
    plain = "-".join(parts)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", plain)
    if readable == plain and len(plain) <= MOST_NAME_CHARACTERS:
        return plain
    return f"{readable[:MOST_NAME_CHARACTERS]}-{hashlib.blake2b(plain.encode(), digest_size=4).hexdigest()}"


def _short(key: str, all_keys: Sequence[str]) -> str:
    last = key.rpartition(".")[2]
    return key if sum(each.rpartition(".")[2] == last for each in {*all_keys, SEED_KEY}) > 1 else last


def _open_text(key: str, value: Any) -> str:
    """The value; of one that holds a secret a hash alone: short and slow, so that it is not found from the name (driver/digests.py)."""
    if masked(value, key) == value:
        return _text(value)
    return hashlib.scrypt(_text(value).encode(), salt=key.encode(), n=2**12, r=8, p=1, dklen=2).hex()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _toml(value)


def _toml(value: Any) -> str:
    """On one line.

    >>> _toml([{"a": [1, 2.5], "b c": {"d": True}}, "text"])
    '[{"a" = [1, 2.5], "b c" = {"d" = true}}, "text"]'
    """
    match value:
        case Mapping():
            return "{" + ", ".join(f"{_toml(str(key))} = {_toml(part)}" for key, part in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case str() | int() | float():
            # TOML knows JSON's numbers and strings, but no escaped surrogates, and wants DEL escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            raise ValueError(f"[sweep] holds {value}, which no key of a recipe takes: give numbers, texts, true or false, lists or tables")


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


def hopeless_settings(
    standings: Sequence[Standing],
    *,
    num_settings: int | None = None,
    keep: float = 0.5,
    seed_sd: float = SEED_SD,
    confidence: float = 0.95,
) -> list[str]:
    """The settings that end at this rung, the worst first: those that ceil(keep num_settings) others are better than, and clearly so.

    Clearly: high < low of each of those, by the intervals of `_interval`.

    Args:
        standings: of all variants that have reached the rung, ended or not.
        num_settings: of the whole sweep; by default those that are here.
        keep: the share of all settings that goes on in any case.
        seed_sd: standard deviation of a run's accuracy over training seeds, at least.
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
    num_staying = ceil(keep * (len(ranked) if num_settings is None else num_settings))
    if num_staying >= len(ranked):
        return []

    def interval(setting: str) -> tuple[float, float]:
        return _interval([each for each in standings if each.setting == setting], seed_sd, confidence)

    low = min(interval(each)[0] for each in ranked[:num_staying])
    return [setting for setting in reversed(ranked[num_staying:]) if interval(setting)[1] < low]


def standings_text(standings: Sequence[Standing], seed_sd: float = SEED_SD, confidence: float = 0.95) -> str:
    """The numbers that the rule looked at, the best setting first.

    >>> standings_text([Standing("a", 20, 100), Standing("b", 60, 100), Standing("a", 30, 100)])
    'b 60.0 % (46.1 to 73.3) of 100; a 25.0 % (13.8 to 36.7) of 200'
    """
    totals = _totals(standings)
    texts = []
    for setting in _ranked(totals):
        low, high = _interval([each for each in standings if each.setting == setting], seed_sd, confidence)
        num_correct, num_graded = totals[setting]
        texts.append(f"{setting} {100 * _rate(num_correct, num_graded):.1f} % ({100 * low:.1f} to {100 * high:.1f}) of {num_graded}")
    return "; ".join(texts)


def _interval(runs: Sequence[Standing], seed_sd: float, confidence: float) -> tuple[float, float]:
    """Of one setting's accuracy over other responses and other training seeds; `runs` are its seeds.

    With p and [low, high] Wilson's over all responses, n seeds, sd the larger of seed_sd and the sample standard deviation of the seeds'
    accuracies, and z the normal quantile: p - sqrt((p - low)^2 + (z sd)^2 / n), and the same above.
    """
    num_correct, num_graded = sum(each.num_correct for each in runs), sum(each.num_graded for each in runs)
    low, high = wilson_interval(num_correct, num_graded, confidence)
    rates = [_rate(each.num_correct, each.num_graded) for each in runs]
    spread = max(seed_sd, stdev(rates) if len(rates) > 1 else 0.0)
    of_seeds, rate = float(ndtri((1 + confidence) / 2)) * spread / sqrt(len(runs)), _rate(num_correct, num_graded)
    return max(0.0, rate - hypot(rate - low, of_seeds)), min(1.0, rate + hypot(high - rate, of_seeds))


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
