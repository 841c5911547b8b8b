"""Captions of curves and what a screen reader says of them. Called by curve_figures.py. Pure: points in, words out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mathrl_ray.recipe_checks import DEFAULT_GRADER
from mathrl_ray.report.curves import Curve, Form, Series
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.seed_groups import SeedGroup

_MOST_SAID = 6
"""Runs of which every stage is said aloud."""


def protocol(runs: Sequence[RunData]) -> str:
    """What an accuracy must never be shown without; where runs differ, all that occurs.

    It reads "prompt r1_zero, temperature 1, top-p 1, at most 64 tokens, grader default".
    """
    settings: list[Mapping[str, Any]] = [run.recipe.get("eval", {}) for run in runs]
    names = _each(settings_of.get("prompts", ["?"])[0] for settings_of in settings)
    numbers = {key: _each(f"{each[key]:g}" for each in settings if key in each) for key in ("temperature", "top_p", "max_tokens")}
    samples = {each.get("num_samples", 1) for each in settings} - {1}
    several = f", {_each(str(each.get('num_samples', 1)) for each in settings)} responses a problem" if samples else ""
    return (
        f"prompt {names}, temperature {numbers['temperature']}, top-p {numbers['top_p']}, at most {numbers['max_tokens']} tokens, "
        f"grader {DEFAULT_GRADER}{several}"
    )


def interval_words(runs: Sequence[RunData]) -> str:
    """How the 95 % interval of an accuracy is made."""
    has_several = any(run.recipe.get("eval", {}).get("num_samples", 1) > 1 for run in runs)
    return "bootstrap over problems" if has_several else "Wilson"


def numbers_of(values: Iterable[int]) -> str:
    """
    >>> numbers_of([1500, 1500]), numbers_of([1500, 1498])
    ('1,500', '1,498 to 1,500')
    """
    found = sorted(set(values))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _each(words: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(words)) or "?"


def caption_of(curve: Curve, runs: Sequence[RunData], groups: Sequence[SeedGroup]) -> str:
    told = [curve.told or f"{curve.what[0].upper()}{curve.what[1:]} at each step."]
    told += [_band(groups)] if groups else []
    told += ["Dotted grey: steps that were rolled back or done again."] if _has_superseded(runs) else []
    told += [f"{len(runs)} runs."] if len(runs) > 1 else []
    return " ".join(told)


def _has_superseded(runs: Sequence[RunData]) -> bool:
    return any(stage.superseded for run in runs for stage in run.stages)


def _band(groups: Sequence[SeedGroup]) -> str:
    sizes = numbers_of(len(group.members) for group in groups)
    return f"Thick: mean of {sizes} seeds with Student's 95 % interval as a band, at the steps that all of them have."


def accuracy_caption(runs: Sequence[RunData], series: Sequence[Series]) -> str:
    own = [each for each in series if each.run_index >= 0]
    validations = [point.n for each in own if each.kind == "line" for point in each.points if point.n]
    tests = [point.n for each in own if each.kind == "final" for point in each.points if point.n]
    parts = [f"lines: n = {numbers_of(validations)} validation problems"] if validations else []
    parts += [f"diamonds: final evaluation of n = {numbers_of(tests)} held-out problems"] if tests else []
    has_group = any(each.run_index < 0 for each in series)
    band = "; thick: mean over seeds with Student's 95 % interval" if has_group else ""
    told = "; ".join(parts)
    return f"{told[0].upper()}{told[1:]}, 95 % {interval_words(runs)} intervals{band}; {protocol(runs)}."


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
