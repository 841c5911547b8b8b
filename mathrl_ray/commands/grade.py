"""The command `grade`: grade the responses of a file again, and say where other graders disagree.

Called by __main__.py. Needs no cluster and starts no Ray: it owns a scorer, whose processes can be ended.

    rows --foreign_rows--> samples --scorer--> grades ----> OUTPUT, table of outcomes
                              |                  |
                              +--second scorer---+--audit--> OUTPUT's .disagreements, 2x2 tables
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.actors.function_source import FunctionSource
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.commands.audit import Audit, audit, disagreement_rows, disagreement_types, second_rewards
from mathrl_ray.commands.display import progress, show_audit, show_outcomes
from mathrl_ray.commands.foreign_rows import Layout, recognise
from mathrl_ray.commands.golds import golds_by_prompt
from mathrl_ray.commands.graded_rows import add_columns, grade_columns
from mathrl_ray.commands.row_files import check_output, write_rows
from mathrl_ray.commands.samples import Sample, graded, graded_by, num_requests, samples_of
from mathrl_ray.commands.second_grader import second_grader
from mathrl_ray.core.grading.extraction import Style
from mathrl_ray.data.rows import Rows, read_rows
from mathrl_ray.types import UNGRADED, Grade

LARGEST_UNGRADED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class GradeOptions:
    """What the command line says; an empty text stands for an option that was not given."""

    input: str
    output: Path
    style: Style = "r1_zero"
    num_workers: int = 0
    """0: one a core."""
    limit_s: float = 5.0
    response_field: str = ""
    gold_field: str = ""
    id_field: str = ""
    golds: str = ""
    compare: str = ""


def grade_file(options: GradeOptions) -> int:
    """Run the command; 0 whatever the verdicts.

    Raises:
        ValueError: what the user has to correct; nothing was written.
        FileNotFoundError: there is no such input.
        RuntimeError: a grading process could not be started.
    """
    check_output(options.output, "--output")
    source = second_grader(options.compare, options.style) if options.compare else None
    rows = read_rows(options.input, key="--input", default_split="test")
    fields = {"response_field": options.response_field, "gold_field": options.gold_field, "id_field": options.id_field}
    layout = recognise(rows, **fields, need_gold=not options.golds)
    samples = samples_of(rows, layout, golds_by_prompt(rows, options.golds) if options.golds else None)
    grades, second = asyncio.run(_grade(options, source, rows, samples))
    audits = _audits(options.compare, rows, layout, samples, grades, second)
    _write(options, rows, layout, samples, grades, second, audits)
    _report(options, layout, samples, grades, audits)
    return 0


async def _grade(
    options: GradeOptions, source: FunctionSource | None, rows: Rows, samples: Sequence[Sample]
) -> tuple[list[Grade], list[Grade] | None]:
    """Our grades, and those of the second grader; one after the other, so that neither takes the other's time."""
    num_workers = options.num_workers or os.cpu_count() or 1
    ours = Scorer(options.limit_s, num_processes=num_workers)
    theirs = Scorer(options.limit_s, num_processes=num_workers, functions=[source]) if source else None
    try:
        if theirs:
            await theirs.setup()  # before our minutes of grading, for what is wrong with it
        with progress("grading", num_requests(samples)) as advance:
            grades = await graded(ours, samples, options.style, advance)
        if not (source and theirs):
            return grades, None
        with progress(f"grading by {options.compare}", num_requests(samples)) as advance:
            return grades, await graded_by(source.spec, theirs, samples, [row for _, row in rows.numbered], advance)
    finally:
        await ours.shutdown()
        if theirs:
            await theirs.shutdown()


def _audits(
    compare: str, rows: Rows, layout: Layout, samples: Sequence[Sample], grades: Sequence[Grade], second: Sequence[Grade] | None
) -> list[Audit]:
    """The file's own graders first, then the second one.

    Other systems' rules of format are not ours, so what their graders paid is compared with the answers alone.
    """
    own: dict[str, list[Any]] = {}
    for position, sample in enumerate(samples):
        for name, value in layout.verdicts(rows.numbered[sample.index][1]).items():
            own.setdefault(name, [None] * len(samples))[position] = _of_sample(value, sample)
    basis: Any = "answer" if layout.is_foreign else "reward"
    found = [audit(_name(layout, name), basis, samples, grades, [(value, "") for value in values]) for name, values in own.items()]
    found = [each for each in found if each.counts["no_verdict"] < len(samples)]
    return found if second is None else [*found, audit(compare, "reward", samples, grades, second_rewards(second))]


def _of_sample(value: Any, sample: Sample) -> Any:
    """A row's verdict on one of its samples; one number for a list of samples says nothing about any."""
    if isinstance(value, list):
        position = sample.sample or 0
        return value[position] if position < len(value) else None
    return value if not sample.sample else None


def _name(layout: Layout, column: str) -> str:
    return f"{layout.system}'s {column}" if layout.is_foreign else f"the column {column}"


def _write(
    options: GradeOptions,
    rows: Rows,
    layout: Layout,
    samples: Sequence[Sample],
    grades: Sequence[Grade],
    second: Sequence[Grade] | None,
    audits: Sequence[Audit],
) -> None:
    keeps = _keeps(options, layout)
    add_columns(rows, grade_columns(len(rows.numbered), samples, grades, second, audits if keeps else ()), options.output)
    if keeps:
        write_rows(disagreements_path(options.output), disagreement_rows(audits), "--output", disagreement_types())


def _keeps(options: GradeOptions, layout: Layout) -> bool:
    """Whether disagreements are written down: where somebody asked for them, or another system graded the rows."""
    return bool(options.compare) or layout.is_foreign


def disagreements_path(output: Path) -> Path:
    """
    >>> disagreements_path(Path("out/graded.jsonl")).name
    'graded.disagreements.jsonl'
    """
    return output.with_name(f"{output.stem}.disagreements{output.suffix}")


def _report(options: GradeOptions, layout: Layout, samples: Sequence[Sample], grades: Sequence[Grade], audits: Sequence[Audit]) -> None:
    source = "" if layout.system == "plain" else f", rows of {layout.system}"
    show_outcomes(grades, f"{options.input}{source}, style {options.style}")
    for found in audits:
        show_audit(found, f"Ours and {found.grader}" + (", by the answers alone" if found.basis == "answer" else ""))
    ungraded = [sample.row_id for sample, grade in zip(samples, grades, strict=True) if grade.outcome in UNGRADED]
    if len(ungraded) > LARGEST_UNGRADED_SHARE * len(samples):
        print(f"warning: over 1 % could not be graded, among them {', '.join(ungraded[:5])}: see their outcome in {options.output}")
    if options.style == "r1_zero" and samples and not any(grade.format_reward for grade in grades):
        print("no response keeps the tag rule `</think> <answer> ... </answer>`; --style boxed grades the last \\boxed{...}")
    print(f"written: {options.output}" + (f", {disagreements_path(options.output)}" if _keeps(options, layout) else ""))
