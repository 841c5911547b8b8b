"""The table of stages, and beside it what others report. Called by tables.py. Knows results and known_results."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from mathrl_ray.driver.evaluation_figures import percent_text, shown_problems
from mathrl_ray.report.curve_words import interval_words, protocol
from mathrl_ray.report.known_results import DATA, KNOWN_RESULTS, MODEL
from mathrl_ray.report.results import Result, Times
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
    costs = ("nats/token", "bits/token", "tokens/response", "generated tokens", "updates", "wall s", *(f"{role} s" for role in roles))
    rows = tuple((*((Cell(each.name),) if several else ()), *_stage_cells(each, roles)) for each in found)
    return Table("stages", "Results of the stages", _caption(runs, found), (*heads, *costs), rows, num_heads=2 if several else 1)


def _caption(runs: Sequence[RunData], found: Sequence[Result]) -> str:
    means = [each for each in found if each.is_mean]
    over_seeds = "; of means Student's over the seeds" if means else ""
    return (
        f"Accuracy on held-out problems that could be graded, {protocol(runs)}; 95 % {interval_words(runs)} intervals{over_seeds}. Times "
        f"the baseline: ratio of accuracies, 95 % bootstrap over problems{over_seeds}. Entropy: mean over all tokens of the responses, of "
        f"the learner's distribution at temperature 1. Generated: tokens sampled for learning. {DEVICE_NOTE}"
    )


def _stage_cells(each: Result, roles: Sequence[str]) -> tuple[Cell, ...]:
    figures = each.figures
    nats = figures.get("mean_entropy_nats")
    return (
        Cell(each.stage),
        Cell(percent_text(figures), figures["accuracy"], *figures["ci95"]),
        Cell(_problems(figures), figures.get("num_graded_problems", figures["num_problems"] - figures["num_ungraded"])),
        times_cell(each.times),
        percent(figures.get("format_rate")),
        NOTHING if nats is None else Cell(f"{nats:.3f}", nats),
        NOTHING if nats is None else Cell(f"{nats / NATS_PER_BIT:.3f}", nats / NATS_PER_BIT),
        number(figures.get("mean_response_tokens"), ".1f"),
        number(figures.get("generated_tokens"), ",.0f"),
        number(figures.get("optimizer_steps"), ",.0f"),
        number(figures.get("wall_s"), ",.0f"),
        *(number(figures.get("device_s", {}).get(role), ",.1f") for role in roles),
    )


def _problems(figures: Mapping[str, Any]) -> str:
    """Of a mean its seeds' problems may not be whole."""
    numbers = [figures.get(key, 0) for key in ("num_problems", "num_ungraded", "num_graded_problems", "num_samples")]
    return shown_problems(figures) if all(float(each).is_integer() for each in numbers) else f"{numbers[0] - numbers[1]:,.1f}"


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
