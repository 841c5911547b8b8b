"""The table of stages, and beside it what others report. Called by tables.py. Knows results and known_results."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from mathrl_ray.driver.evaluation_figures import percent_text
from mathrl_ray.report.curve_words import interval_words, protocol
from mathrl_ray.report.known_results import DATA, KNOWN_RESULTS, MODEL
from mathrl_ray.report.results import Result, Times, model_words
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.table import Cell, Table

NATS_PER_BIT = log(2)
NOTHING = Cell("-")
DEVICE_NOTE = "Busy seconds add up over the actors of a role."


def stages_table(runs: Sequence[RunData], found: Sequence[Result]) -> Table:
    """A row a stage of a run, and for each group of seeds a row a stage of its mean."""
    several = len(runs) > 1
    roles = list(dict.fromkeys(role for each in found for role in each.figures.get("device_s", {})))
    heads = (*(("run",) if several else ()), "stage", "accuracy (95 %)", "problems", "\N{MULTIPLICATION SIGN} baseline (95 %)", "format")
    heads += ("model",) if any(_model(each) for each in found) else ()
    costs = ("nats/token", "bits/token", "tokens/response", "generated tokens", "updates", "wall s", *(f"{role} s" for role in roles))
    rows = tuple((*((Cell(each.name),) if several else ()), *_stage_cells(each, roles, with_model="model" in heads)) for each in found)
    return Table("stages", "Results of the stages", _caption(runs, found), (*heads, *costs), rows, num_heads=2 if several else 1)


def _caption(runs: Sequence[RunData], found: Sequence[Result]) -> str:
    means = [each for each in found if each.is_mean]
    over_seeds = "; of means Student's over the seeds" if means else ""
    has_times = any(each.times for each in found)
    times = f"Times the baseline: ratio of accuracies, 95 % bootstrap over problems{over_seeds}. " if has_times else ""
    return (
        f"Accuracy on held-out problems that could be graded, {protocol(runs)}; 95 % {interval_words(runs)}{over_seeds}. "
        f"{times}Entropy: mean over all tokens of the responses, of "
        f"the learner's distribution at temperature 1. Generated: tokens sampled for learning. {DEVICE_NOTE}"
    )


def _stage_cells(each: Result, roles: Sequence[str], *, with_model: bool) -> tuple[Cell, ...]:
    figures = each.figures
    nats = figures.get("mean_entropy_nats")
    return (
        Cell(each.stage),
        accuracy_cell(figures),
        Cell(_problems(figures), graded_problems(figures)),
        times_cell(each.times),
        percent(figures.get("format_rate")),
        *((Cell(_model(each) or "-"),) if with_model else ()),
        NOTHING if nats is None else Cell(f"{nats:.3f}", nats),
        NOTHING if nats is None else Cell(f"{nats / NATS_PER_BIT:.3f}", nats / NATS_PER_BIT),
        number(figures.get("mean_response_tokens"), ".1f"),
        number(figures.get("generated_tokens"), ",.0f"),
        number(figures.get("optimizer_steps"), ",.0f"),
        number(figures.get("wall_s"), ",.0f"),
        *(number(figures.get("device_s", {}).get(role), ",.1f") for role in roles),
    )


def _model(each: Result) -> str:
    """Of a mean over seeds its runs say it: a mean of their steps is nobody's."""
    return "" if each.is_mean else model_words(each.figures)


def _problems(figures: Mapping[str, Any]) -> str:
    """How many could be graded, with the responses to each where these are several; of a mean over seeds it may be no whole number.

    >>> _problems({"num_problems": 1500, "num_ungraded": 2}), _problems({"num_graded_problems": 1499.5, "num_samples": 4})
    ('1,498', '1,499.5 x 4')
    """
    num_samples = figures.get("num_samples") or 1
    shown = format(round(graded_problems(figures), 1), ",").removesuffix(".0")
    return shown if num_samples == 1 else f"{shown} x {num_samples:g}"


def graded_problems(figures: Mapping[str, Any]) -> float:
    """What an accuracy rests on; in a summary of an older version there was one response a problem."""
    number: float = (
        figures["num_graded_problems"] if "num_graded_problems" in figures else figures["num_problems"] - figures["num_ungraded"]
    )
    return number


def accuracy_cell(figures: Mapping[str, Any]) -> Cell:
    """
    >>> accuracy_cell({"accuracy": 0.5, "ci95": [0.4, 0.6]})
    Cell(text='50.0 % (40.0 to 60.0)', number=0.5, low=0.4, high=0.6)
    """
    return Cell(percent_text(figures), figures["accuracy"], *figures["ci95"])


def difference_cell(value: float, low: float, high: float) -> Cell:
    """In points.

    >>> difference_cell(-0.05, -0.1, 0.0).text
    '-5.0 (-10.0 to +0.0)'
    """
    return Cell(f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})", value, low, high)


def times_cell(times: Times | None) -> Cell:
    """
    >>> times_cell(Times(3.68, 3.29, 4.16)), times_cell(None)
    (Cell(text='3.7 (3.3 to 4.2)', number=3.68, low=3.29, high=4.16), Cell(text='-', number=None, low=None, high=None))
    """
    if times is None:
        return NOTHING
    if times.low is None or times.high is None:
        return Cell(f"{times.value:.1f}", times.value)
    return Cell(f"{times.value:.1f} ({times.low:.1f} to {times.high:.1f})", times.value, times.low, times.high)


def percent(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(f"{100 * value:.1f} %", value)


def number(value: float | None, form: str) -> Cell:
    return NOTHING if value is None else Cell(format(value, form), value)


def known_results_table(runs: Sequence[RunData], found: Sequence[Result]) -> Table:
    """What others report of the stages that the runs have, in a table of its own: it is another task, or at least other settings."""
    stages = {each.stage for each in found}
    known = [each for each in KNOWN_RESULTS if each.stage in stages]
    rows = tuple(
        (Cell(each.stage), Cell(_range(each.low, each.high), each.low), Cell(each.source), Cell(each.how), Cell(MODEL), Cell(DATA))
        for each in known
    )
    columns = ("stage", "accuracy", "source", "settings", "model", "data")
    same = any(MODEL.lower() in _setting(run, "model", "path").lower() for run in runs)
    title = "What others report" if same else "What others report, for another task"
    return Table("known_results", title, _known_caption(runs, same=same), columns, rows)


def _range(low: float, high: float) -> str:
    """
    >>> _range(0.027, 0.029), _range(0.6875, 0.6875)
    ('2.7 to 2.9 %', '68.8 %')
    """
    return f"{100 * low:.1f} %" if low == high else f"{100 * low:.1f} to {100 * high:.1f} %"


def _known_caption(runs: Sequence[RunData], *, same: bool) -> str:
    tests = ", ".join(sorted({_setting(run, "data", "test") for run in runs}))
    models = ", ".join(sorted({_setting(run, "model", "path") for run in runs}))
    warned = "Compare with care, for test problems, prompts and settings differ" if same else "Not to be compared with the table above"
    return f"{warned}: these are of {MODEL} on {DATA}, without intervals; the runs of this report are of {models} on {tests}."


def _setting(run: RunData, section: str, key: str) -> str:
    return str(run.recipe.get(section, {}).get(key, "?"))
