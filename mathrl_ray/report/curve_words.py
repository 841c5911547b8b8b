"""Captions of curves and what a screen reader says of them. Called by curve_figures.py. Pure: points in, words out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from mathrl_ray.recipe_checks import DEFAULT_GRADER
from mathrl_ray.report.curves import Curve, Form, Series
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.seed_groups import SeedGroup

_MOST_SAID = 6
"""Runs of which every stage is said aloud."""
_OF_THE_RESPONSES = {
    "reward",
    "response_tokens",
    "truncated",
    "importance_ratio",
    "mismatch_kl",
    "clip_fraction",
    "staleness",
    "zero_variance",
}
"""Curves that are means over the responses, or their tokens or groups, that are learned from."""


def protocol(runs: Sequence[RunData], *, without: str = "") -> str:
    """What an accuracy must never be shown without; where runs differ, all that occurs.

    It reads "prompt r1_zero, temperature 1, top-p 1, at most 64 tokens, grader default", and "4 responses a problem" where that is not 1.

    Args:
        runs: with their recipes.
        without: "prompt" or "grader", where a table has a row for each; "samples", where they are said elsewhere.
    """
    settings = _sections(runs, "eval")
    told = {
        "prompt": f"prompt {_each(str((each.get('prompts') or ['?'])[0]) for each in settings)}",
        "sampling": f"temperature {_numbers(settings, 'temperature')}, {_limits(settings)}",
        "grader": f"grader {DEFAULT_GRADER}",
        "samples": "" if set(_num_samples(runs)) == {1} else f"{_each(map(str, _num_samples(runs)))} responses a problem",
    }
    return ", ".join(text for name, text in told.items() if text and name != without)


def interval_words(runs: Sequence[RunData]) -> str:
    """How the 95 % interval of a final evaluation's accuracy is made (core/intervals.py)."""
    several = "bootstrap intervals over problems, at least as wide as Wilson's"
    return _each(several if number > 1 else "Wilson intervals" for number in _num_samples(runs))


def learning_words(runs: Sequence[RunData], stages: Collection[str]) -> str:
    """How the responses are made that are learned from, in those of the stages that sample some; "" where none does.

    It reads "By the recipe: grpo 32 x 8 responses a step, temperature 1; prompt r1_zero, top-p 1, at most 64 tokens, reward default." What
    a guard's remedy changes on the way stands with the guards.
    """
    own = {
        "expert_iteration": ("questions", "round", _ladders(runs)),
        "grpo": ("prompts_per_step", "step", _numbers(_sections(runs, "generator"), "temperature")),
    }
    told = []
    for stage in [name for name in own if name in stages]:
        key, turn, temperature = own[stage]
        sizes = _each(f"{each.get(key, '?')} x {each.get('group_size', '?')}" for each in _sections(runs, stage))
        told.append(f"{stage.replace('_', ' ')} {sizes} responses a {turn}, temperature {temperature}")
    prompts = _each(str(each.get("prompt", "?")) for each in _sections(runs, "data"))
    rewards = _each(str(each.get("function") or DEFAULT_GRADER) for each in _sections(runs, "reward"))
    shared = f"prompt {prompts}, {_limits(_sections(runs, 'generator'))}, reward {rewards}"
    return f"By the recipe: {'; '.join([*told, shared])}." if told else ""


def _ladders(runs: Sequence[RunData]) -> str:
    given = (each.get("temperatures", ()) for each in _sections(runs, "expert_iteration"))
    return _each(", ".join(f"{temperature:g}" for temperature in ladder) for ladder in given)


def _limits(settings: Sequence[Mapping[str, Any]]) -> str:
    return f"top-p {_numbers(settings, 'top_p')}, at most {_numbers(settings, 'max_tokens')} tokens"


def _numbers(settings: Sequence[Mapping[str, Any]], key: str) -> str:
    return _each(f"{each[key]:g}" for each in settings if key in each)


def _num_samples(runs: Sequence[RunData]) -> list[int]:
    return [each.get("num_samples", 1) for each in _sections(runs, "eval")]


def _sections(runs: Sequence[RunData], name: str) -> list[Mapping[str, Any]]:
    return [run.recipe.get(name, {}) for run in runs]


def numbers_of(values: Iterable[int]) -> str:
    """
    >>> numbers_of([1500, 1500]), numbers_of([1500, 1498])
    ('1,500', '1,498 to 1,500')
    """
    found = sorted(set(values))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _each(words: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(words)) or "?"


def caption_of(curve: Curve, runs: Sequence[RunData], groups: Sequence[SeedGroup], series: Sequence[Series]) -> str:
    told = [curve.told or f"{curve.what[0].upper()}{curve.what[1:]} at each step."]
    told += [learning_words(runs, {each.stage for each in series})] if curve.name in _OF_THE_RESPONSES else []
    told += [_band(groups)] if groups else []
    told += ["Dotted grey: steps that were rolled back or done again."] if _has_superseded(runs) else []
    told += [f"{len(runs)} runs."] if len(runs) > 1 else []
    return " ".join(filter(None, told))


def _has_superseded(runs: Sequence[RunData]) -> bool:
    return any(stage.superseded for run in runs for stage in run.stages)


def _band(groups: Sequence[SeedGroup]) -> str:
    sizes = numbers_of(len(group.members) for group in groups)
    return f"Thick: mean of {sizes} seeds with Student's 95 % interval as a band, at the steps that all of them have."


def accuracy_caption(runs: Sequence[RunData], series: Sequence[Series]) -> str:
    """Validations take one response a problem whatever the final evaluation takes (eval.num_samples), so each says its own."""
    own = [each for each in series if each.run_index >= 0]
    validations = [point.n for each in own if each.kind != "final" for point in each.points if point.n]
    tests = [point.n for each in own if each.kind == "final" for point in each.points if point.n]
    parts = []
    if any(each.kind != "final" for each in own):
        has_intervals = any(point.low is not None for each in own if each.kind != "final" for point in each.points)
        parts.append(f"lines: {_n(validations)}validation problems, one response each{', 95 % Wilson intervals' if has_intervals else ''}")
    if tests:
        samples = "" if set(_num_samples(runs)) == {1} else f", {_each(map(str, _num_samples(runs)))} responses each"
        parts.append(f"diamonds: final evaluation of {_n(tests)}held-out problems{samples}, 95 % {interval_words(runs)}")
    if any(each.run_index < 0 for each in series):
        parts.append("thick: mean over seeds with Student's 95 % interval; the runs' own intervals are in the numbers")
    parts += ["dotted grey: steps that were rolled back or done again"] if any(each.kind == "superseded" for each in own) else []
    told = "; ".join([*parts, protocol(runs, without="samples")])
    return f"{told[0].upper()}{told[1:]}."


def _n(numbers: Sequence[int]) -> str:
    """
    >>> _n([500, 500]), _n([])
    ('n = 500 ', '')
    """
    return f"n = {numbers_of(numbers)} " if numbers else ""


def alt_text(title: str, curve: Curve, runs: Sequence[RunData], groups: Sequence[SeedGroup], series: Sequence[Series]) -> str:
    """First, last and extreme values; of many runs only their last values' range."""
    spoken = [each for each in series if each.kind == "line" and each.points]
    if groups and any(each.run_index < 0 for each in spoken):
        spoken = [each for each in spoken if each.run_index < 0 or each.group_index < 0]
    if len({each.run_index for each in spoken}) > _MOST_SAID:
        return f"{title}. {_ranges(curve, spoken)}"
    several = len(runs) > 1
    return " ".join([f"{title}.", *(_said(each, curve, runs, groups, with_run=several) for each in spoken)])


def _said(each: Series, curve: Curve, runs: Sequence[RunData], groups: Sequence[SeedGroup], *, with_run: bool) -> str:
    who = groups[each.group_index].name if each.run_index < 0 else runs[each.run_index].name
    where = ", ".join(filter(None, (who if with_run else "", each.stage.replace("_", " "), each.line)))
    values = [point.value for point in each.points]
    first, last = value_text(values[0], curve.form), value_text(values[-1], curve.form)
    extremes = f"lowest {value_text(min(values), curve.form)}, highest {value_text(max(values), curve.form)}"
    return f"{where}: first {first}, last {last}, {extremes}." if len(values) > 1 else f"{where}: {first}."


def _ranges(curve: Curve, series: Sequence[Series]) -> str:
    stages = dict.fromkeys(each.stage for each in series)
    told = []
    for stage in stages:
        last = [each.points[-1].value for each in series if each.stage == stage]
        low, high = value_text(min(last), curve.form), value_text(max(last), curve.form)
        told.append(f"{stage.replace('_', ' ')}: {len(last)} lines end between {low} and {high}.")
    return " ".join(told)


def value_text(value: float, form: Form) -> str:
    """
    >>> value_text(0.123456, "percent"), value_text(0.123456, "number"), value_text(1234.5, "number"), value_text(0.5, "nats")
    ('12.3 %', '0.123', '1,230', '0.5 nats')
    """
    match form:
        case "percent":
            return f"{100 * value:.1f} %"
        case "nats":
            return f"{value:.3g} nats"
        case _:
            return f"{value:.3g}" if abs(value) < 1000 else f"{float(f'{value:.3g}'):,.0f}"
