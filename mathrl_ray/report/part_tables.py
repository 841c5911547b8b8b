"""The further tables: comparisons, prompts, graders, levels, subjects, outcomes, pass@k, guard events.

Called by tables.py. Knows results and RunData.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from mathrl_ray.core.paired_tests import TEST_NAMES, p_text
from mathrl_ray.report.curve_words import interval_words, protocol
from mathrl_ray.report.results import Result
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.stage_table import NOTHING, accuracy_cell, difference_cell, graded_problems, number, percent
from mathrl_ray.report.table import Cell, Table
from mathrl_ray.types import Outcome


def comparisons_table(runs: Sequence[RunData]) -> Table | None:
    """The paired tests that the runs' summaries hold: neighbouring stages, and expert iteration beside GRPO at equal cost."""
    rows, notes = [], []
    for run in runs:
        for each, where in _comparisons(run):
            if "difference" in each:
                rows.append((*_run(runs, run.name), *_comparison_cells(each, where)))
            else:  # what could not be compared says why
                notes.append(str(each.get("text", "")))
    columns = (*_heads(runs), "second", "first", "difference (95 %)", "problems", "gained", "lost", "test", "p", "where")
    told = (
        "Second less first in points, on the same problems, with its 95 % interval; p two-sided, not adjusted for several tests. Each "
        f"compares two checkpoints, not methods; {protocol(runs)}."
    )
    return Table("comparisons", "Stages beside each other", " ".join([told, *notes]), columns, tuple(rows), num_heads=1 + len(_heads(runs)))


def _comparisons(run: RunData) -> list[tuple[Mapping[str, Any], str]]:
    equal = run.comparisons.get("equal_tokens")
    return [
        *((each, "at each stage's end") for each in run.comparisons.get("neighbours", ())),
        *(((equal, _cost(equal)),) if equal else ()),
    ]


def _cost(equal: Mapping[str, Any]) -> str:
    tokens = equal.get("generated_tokens", {})
    return "at equal generated tokens: " + ", ".join(f"{count:,} ({name})" for name, count in tokens.items())


def _comparison_cells(each: Mapping[str, Any], where: str) -> tuple[Cell, ...]:
    return (
        Cell(each["second"]),
        Cell(each["first"]),
        difference_cell(each["difference"], each["low"], each["high"]),
        number(each["num_problems"], ",.0f"),
        number(each["gained"], ",.0f"),
        number(each["lost"], ",.0f"),
        Cell(TEST_NAMES.get(each["test"], str(each["test"]))),
        Cell(p_text(each["p_value"]), each["p_value"]),
        Cell(where),
    )


def prompts_table(runs: Sequence[RunData], found: Sequence[Result]) -> Table:
    """Where the final evaluations asked with several prompts: a row each, the first being the one that gives the stage's figures."""
    own = [(each, prompt) for each in found for prompt in each.figures.get("prompts", ())]
    rows = tuple((*_run(runs, each.name), Cell(each.stage), Cell(str(prompt["name"])), *_prompt_cells(prompt)) for each, prompt in own)
    columns = (
        *_heads(runs),
        "stage",
        "prompt",
        "accuracy (95 %)",
        "problems",
        "format",
        "tokens/response",
        "less the first (95 %)",
        "p (Holm)",
    )
    caption = (
        f"Final evaluation with each prompt; {protocol(runs, without='prompt')}; 95 % {interval_words(runs)}. Differences in "
        "points, on the same problems; p two-sided, adjusted for as many tests as there are further prompts (Holm)."
    )
    return Table("by_prompt", "Accuracy by prompt", caption, columns, rows, num_heads=2 + len(_heads(runs)))


def _prompt_cells(prompt: Mapping[str, Any]) -> list[Cell]:
    less = prompt.get("difference")
    compared = (
        [difference_cell(less["value"], *less["ci95"]), Cell(p_text(less["p_value_holm"]), less["p_value_holm"])] if less else [NOTHING] * 2
    )
    tokens = number(prompt["mean_response_tokens"], ".1f")
    return [accuracy_cell(prompt), number(graded_problems(prompt), ",.0f"), percent(prompt["format_rate"]), tokens, *compared]


def graders_table(runs: Sequence[RunData], found: Sequence[Result]) -> Table:
    """Where several graders judged the same responses: a row each."""
    own = [(each, name, figures) for each in found if not each.is_mean for name, figures in each.figures.get("graders", {}).items()]
    rows = tuple((*_run(runs, each.name), Cell(each.stage), Cell(name), *_grader_cells(figures)) for each, name, figures in own)
    columns = (*_heads(runs), "stage", "grader", "accuracy (95 %)", "problems", "not graded")
    caption = (
        f"The same responses of the final evaluation, by each grader; {protocol(runs, without='grader')}; 95 % {interval_words(runs)}. "
        "Problems: with a response that the grader could grade; not graded: responses."
    )
    return Table("by_grader", "Accuracy by grader", caption, columns, rows, num_heads=2 + len(_heads(runs)))


def _grader_cells(figures: Mapping[str, Any]) -> list[Cell]:
    return [accuracy_cell(figures), number(graded_problems(figures), ",.0f"), number(figures["num_ungraded"], ",.0f")]


def parts_table(runs: Sequence[RunData], found: Sequence[Result], word: str) -> Table:
    """A row a stage, a column a level or subject."""
    own = [each for each in found if each.figures.get(f"by_{word}")]
    names = list(dict.fromkeys(part["name"] for each in own for part in each.figures[f"by_{word}"]))
    rows = tuple((*_run(runs, each.name), Cell(each.stage), *_part_cells(each.figures[f"by_{word}"], names)) for each in own)
    heads = tuple(f"level {name}" if word == "level" and name.isdecimal() else name for name in names)
    caption = f"Accuracy with 95 % {interval_words(runs)}, of so many problems that could be graded; {protocol(runs)}."
    return Table(f"by_{word}", f"Accuracy by {word}", caption, (*_heads(runs), "stage", *heads), rows, num_heads=1 + len(_heads(runs)))


def _part_cells(parts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Cell]:
    by_name = {part["name"]: part for part in parts}
    return [_part_cell(by_name[name]) if name in by_name else NOTHING for name in names]


def _part_cell(part: Mapping[str, Any]) -> Cell:
    low, high = part["ci95"]
    text = f"{100 * part['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f}) of {part['num_problems']:,}"
    return Cell(text, part["accuracy"], low, high)


def outcomes_table(runs: Sequence[RunData], found: Sequence[Result]) -> Table:
    """Counts and shares of all responses of the final evaluations; of means the mean count is no whole number, so they have no row."""
    own = [each for each in found if each.figures.get("outcomes") and not each.is_mean]
    names = [name for name in get_args(Outcome) if any(each.figures["outcomes"].get(name) for each in own)]
    rows = tuple((*_run(runs, each.name), Cell(each.stage), *_outcome_cells(each.figures["outcomes"], names)) for each in own)
    caption = f"Responses of the final evaluation by outcome, with their share; {protocol(runs)}."
    columns = (*_heads(runs), "stage", "responses", *(name.replace("_", " ") for name in names))
    return Table("outcomes", "Outcomes", caption, columns, rows, num_heads=1 + len(_heads(runs)))


def _outcome_cells(outcomes: Mapping[str, int], names: Sequence[str]) -> list[Cell]:
    total = sum(outcomes.values())
    counts = [outcomes.get(name, 0) for name in names]
    return [number(total, ",.0f"), *(Cell(f"{count:,} ({100 * count / total:.1f} %)", count) for count in counts)]


def at_k_table(runs: Sequence[RunData], found: Sequence[Result]) -> Table | None:
    """Where problems have several samples."""
    own = [each for each in found if any(at_k["k"] > 1 for at_k in each.figures.get("at_k", ()))]
    ks = sorted({at_k["k"] for each in own for at_k in each.figures["at_k"]})
    rows = tuple((*_run(runs, each.name), Cell(each.stage), *_at_k_cells(each.figures["at_k"], ks)) for each in own)
    caption = f"pass@k: one of k responses right; maj@k: their majority, by spelling; of the problems with k graded ones; {protocol(runs)}."
    columns = (*_heads(runs), "stage", *(text for k in ks for text in (f"pass@{k}", f"maj@{k}", f"problems ({k})")))
    return Table("at_k", "One of k responses right, and their majority", caption, columns, rows, num_heads=1 + len(_heads(runs)))


def _at_k_cells(given: Sequence[Mapping[str, Any]], ks: Sequence[int]) -> list[Cell]:
    by_k = {each["k"]: each for each in given}
    cells: list[Cell] = []
    for k in ks:
        each = by_k.get(k)
        cells += [percent(each["pass_at_k"]), percent(each["maj_at_k"]), number(each["num_problems"], ",.0f")] if each else [NOTHING] * 3
    return cells


def guards_table(runs: Sequence[RunData]) -> Table:
    """What the guards saw, did, and whether it helped."""
    rows = tuple((*_run(runs, run.name), *_guard_cells(event)) for run in runs for event in run.guard_events)
    columns = (*_heads(runs), "stage", "step", "what", "metric", "value", "limit", "told")
    caption = (
        "fired: a guard's limit was passed; rollback: the stage went on from an earlier step with other settings; then whether that helped."
    )
    return Table("guards", "Guards", caption, columns, rows, num_heads=1 + len(_heads(runs)))


def _guard_cells(event: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        Cell(str(event.get("stage", ""))),
        number(event.get("step"), ",.0f"),
        Cell(_what(event)),
        Cell(str(event.get("metric", "-"))),
        number(event.get("value"), ".4g"),
        number(event.get("limit"), ".4g"),
        Cell(str(event.get("text", ""))),
    )


def _what(event: Mapping[str, Any]) -> str:
    """
    >>> _what({"kind": "rollback", "to_step": 0, "remedy": "lower rate", "changes": {"grpo.learning_rate": [0.002, 0.001]}})
    'rollback to the start model: lower rate (grpo.learning_rate 0.002 to 0.001)'
    """
    match event.get("kind"):
        case "fired":
            return f"fired: {event.get('guard', '?')}, {event.get('action', '?')}"
        case "rollback":
            place = f"step {event['to_step']}" if event.get("to_step") else "the start model"
            changes = "; ".join(f"{key} {old} to {new}" for key, (old, new) in event.get("changes", {}).items())
            return f"rollback to {place}: {event.get('remedy', '?')}{f' ({changes})' if changes else ''}"
        case "outcome":
            return f"{event.get('remedy', '?')} {'helped' if event.get('helped') else 'did not help'}"
        case kind:
            return str(kind)


def _heads(runs: Sequence[RunData]) -> tuple[str, ...]:
    return ("run",) if len(runs) > 1 else ()


def _run(runs: Sequence[RunData], name: str) -> tuple[Cell, ...]:
    return (Cell(name),) if len(runs) > 1 else ()
