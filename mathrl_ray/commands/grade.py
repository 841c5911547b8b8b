"""The command `grade`: grade the responses of a file again, and say where other graders disagree.

Called by __main__.py. Needs no cluster and starts no Ray: it owns a scorer, whose processes can be ended.

    rows --foreign_rows--> samples --scorer--> grades ----> OUTPUT, table of outcomes
                              |                  |
                              +--second scorer---+--audit--> OUTPUT's .disagreements, 2x2 tables
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.actors.function_source import FunctionSource
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.commands.audit import Audit, audit, disagreement_rows, disagreement_types, second_rewards
from mathrl_ray.commands.display import busy, progress, show_audit, show_outcomes
from mathrl_ray.commands.foreign_rows import Layout, recognise
from mathrl_ray.commands.golds import golds_by_prompt
from mathrl_ray.commands.graded_rows import OPTION, add_columns, grade_columns, input_table
from mathrl_ray.commands.parquet_table import utf8_text
from mathrl_ray.commands.row_files import check_not_an_input, check_output, write_rows
from mathrl_ray.commands.samples import Sample, graded, graded_by, num_requests, samples_of
from mathrl_ray.commands.second_grader import second_grader
from mathrl_ray.commands.timeout_watch import TimeoutWatch
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


@dataclass(frozen=True, slots=True)
class _Input:
    """What was read, before anything is graded."""

    rows: Rows
    layout: Layout
    samples: list[Sample]
    table: Any
    """For Parquet, of `input_table`."""


def grade_file(options: GradeOptions) -> int:
    """Run the command; 0 whatever the verdicts. What is wrong with files and columns is found before the minutes of grading.

    Raises:
        ValueError: what the user has to correct; nothing was written.
        FileNotFoundError: there is no such input.
        RuntimeError: a grading process could not be started.
    """
    _check_paths(options)
    source = second_grader(options.compare, options.style) if options.compare else None
    with busy(f"reading {options.input}"):
        read = _read(options)
    grades: list[Grade] = []
    try:
        second = asyncio.run(_grade(options, source, read, grades))
    except BaseException:  # Ctrl-C too: a second grader may take hours
        if grades:
            print(f"{options.compare} did not come to its end; what our grader found is written without it", file=sys.stderr)
            _write_and_report(options, read, grades, None)
        raise
    _write_and_report(options, read, grades, second)
    return 0


def _read(options: GradeOptions) -> _Input:
    rows = read_rows(options.input, key="--input", default_split="test")
    fields = {"response_field": options.response_field, "gold_field": options.gold_field, "id_field": options.id_field}
    layout = recognise(rows, **fields, need_gold=not options.golds)
    samples = samples_of(rows, layout, golds_by_prompt(rows, options.golds) if options.golds else None)
    return _Input(rows, layout, samples, input_table(rows, options.output))


def _write_and_report(options: GradeOptions, read: _Input, grades: Sequence[Grade], second: Sequence[Grade] | None) -> None:
    rows, layout, samples = read.rows, read.layout, read.samples
    keeps = _keeps(options, layout)
    with busy(f"writing {options.output}"):
        audits = _audits(options.compare, rows, layout, samples, grades, second)
        columns = grade_columns(len(rows.numbered), samples, grades, second, audits if keeps else ())
        renamed = add_columns(rows, read.table, columns, options.output)
        if keeps:
            _write_disagreements(options, audits)
    _report(options, layout, samples, grades, audits)
    _say_written(options, renamed, keeps)


def _check_paths(options: GradeOptions) -> None:
    outputs = [options.output, disagreements_path(options.output)]
    check_not_an_input(outputs, [options.input, options.golds], OPTION)
    for path in outputs:
        check_output(path, OPTION)


async def _grade(options: GradeOptions, source: FunctionSource | None, read: _Input, grades: list[Grade]) -> list[Grade] | None:
    """Puts our grades into `grades`, then gives those of the second grader: one after the other, so that neither takes the other's time."""
    num_workers = options.num_workers or os.cpu_count() or 1
    ours = Scorer(options.limit_s, num_processes=num_workers)
    theirs = Scorer(options.limit_s, num_processes=num_workers, functions=[source]) if source else None
    try:
        if theirs:
            await theirs.setup()  # before our minutes of grading, for what is wrong with it
        with progress("grading", num_requests(read.samples)) as advance:
            grades += await graded(ours, read.samples, options.style, advance)
        if not (source and theirs):
            return None
        with progress(f"grading by {options.compare}", num_requests(read.samples)) as advance:
            watch = TimeoutWatch(options.compare, options.limit_s, num_requests(read.samples), num_workers)

            def see(found: Sequence[Grade]) -> None:
                watch.see(found)
                advance(len(found))

            return await graded_by(source.spec, theirs, read.samples, [row for _, row in read.rows.numbered], see)
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


def _write_disagreements(options: GradeOptions, audits: Sequence[Audit]) -> None:
    path = disagreements_path(options.output)
    rows = disagreement_rows(audits)
    if path.suffix == ".parquet":
        rows = [{name: utf8_text(value) for name, value in row.items()} for row in rows]
    write_rows(path, list(enumerate(rows, start=1)), OPTION, "the disagreements", disagreement_types())


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
        print(f"warning: over 1 % could not be graded, ids: {', '.join(ungraded[:5])}: see their outcome in {options.output}")
    if options.style == "r1_zero" and samples and not any(grade.format_reward for grade in grades):
        print("no response keeps the tag rule `</think> <answer> ... </answer>`; --style boxed grades the last \\boxed{...}")


def _say_written(options: GradeOptions, renamed: Mapping[str, str], keeps: bool) -> None:
    if renamed:
        print(f"kept under other names: {', '.join(f'{old} of the input is {new}' for old, new in renamed.items())}")
    print(f"written: {options.output}" + (f", {disagreements_path(options.output)}" if keeps else ""))
