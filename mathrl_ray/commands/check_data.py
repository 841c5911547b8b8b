"""The command `check-data`: everything that is wrong with files of problems, before a model sees them.

Called by __main__.py. Needs no cluster. What is a fault stands in data/gold_lint.py; here is the order of things, and who judges.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mathrl_ray.actors.gold_judge import GoldJudge
from mathrl_ray.commands.checked_file import CheckedFile, mark_bad, read_checked, short_names
from mathrl_ray.commands.clean_files import clean_paths, write_clean
from mathrl_ray.commands.display import busy, plain_table, progress, show
from mathrl_ray.commands.prompt_lengths import Lengths, over_long, prompt_lengths
from mathrl_ray.data.gold_lint import REMARKS, Fault, golds_to_judge, in_a_box, lint, overlaps
from mathrl_ray.data.rows import DataError

LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What the command line says."""

    files: Sequence[str]
    write_clean: Path | None = None
    max_prompt_tokens: int = 0
    """0: no limit."""
    tokenizer: str = ""
    prompt: str = "r1_zero"
    """Around each problem, where prompts are measured."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our field -> the files' column."""
    num_workers: int = 0
    """0: one a core."""
    limit_s: float = LIMIT_S


def check_data(options: CheckOptions) -> int:
    """Run the command; 1 when something is wrong.

    Raises:
        ValueError: what the user has to correct before anything can be checked.
        FileNotFoundError: there is no such file.
        RuntimeError: a grading process could not be started.
    """
    _check_options(options)
    paths = clean_paths(options.write_clean, options.files) if options.write_clean else {}
    names = short_names(options.files)
    with busy("reading") as tell:
        lengths = prompt_lengths(options.prompt, options.tokenizer) if options.tokenizer else None
        files = []
        for spec in options.files:
            tell(f"reading {spec}")
            files.append(read_checked(spec, names[spec], options.columns))
    counts = [Counter[str]() for _ in files]
    for file, count in zip(files, counts, strict=True):
        for _, problem_id, reason in file.unusable:
            print(f"{file.name}: unusable_row: {problem_id}: {reason}")
            count["unusable_row"] += 1
    for fault in _faults(files, options, lengths):
        owners = [file for file in files if any(file.has(problem) for problem in fault.problems)]
        print(f"{' and '.join(file.name for file in owners)}: {fault.kind}: {', '.join(fault.problem_ids)}: {fault.reason}")
        mark_bad(files, fault)
        for file in owners:
            counts[files.index(file)][fault.kind] += 1
    for line in write_clean(files, paths) if paths else []:
        print(line)
    return _summary(files, counts)


def _check_options(options: CheckOptions) -> None:
    if len(set(options.files)) < len(options.files):
        raise DataError("check-data: a file is named twice, and would overlap with itself")
    if options.limit_s <= 0:
        raise DataError(f"--limit-s = {options.limit_s}: must be above 0 seconds; 5 is usual")
    if bool(options.max_prompt_tokens) != bool(options.tokenizer):
        raise DataError("--max-prompt-tokens and --tokenizer belong together: the limit is counted in that tokenizer's tokens")
    if options.max_prompt_tokens < 0:
        raise DataError(f"--max-prompt-tokens = {options.max_prompt_tokens}: must be above 0")


def _faults(files: Sequence[CheckedFile], options: CheckOptions, lengths: Lengths | None) -> Iterator[Fault]:
    """File by file, then between the files."""
    with GoldJudge(options.num_workers or os.cpu_count() or 1, options.limit_s) as judge:
        golds = golds_to_judge(problem for file in files for problem in file.problems)
        with progress("reading golds", len(golds)) as advance:
            judge.judge([(in_a_box(gold), gold) for gold in golds], advance)
        for file in files:
            yield from _all(f"looking at {file.name}", lint(file.problems, judge.verdict))
            if lengths:
                yield from _all(f"measuring prompts of {file.name}", over_long(file.problems, lengths, options.max_prompt_tokens))
        yield from _all("comparing the files", overlaps({file.name: file.problems for file in files}, judge.verdict))


def _all(what: str, faults: Iterable[Fault]) -> list[Fault]:
    """Found before the first of them is printed, so that progress does not stand between their lines."""
    with busy(what):
        return list(faults)


def _summary(files: Sequence[CheckedFile], counts: Iterable[Mapping[str, int]]) -> int:
    """The table at the end; the status."""
    table = plain_table("file", "rows", "bad rows", "faults by kind")
    num_wrong = num_possible = 0
    for file, count in zip(files, counts, strict=True):
        kinds = ", ".join(f"{number} {kind}" for kind, number in count.items()) or "none"
        table.add_row(file.name, f"{file.num_rows:,}", f"{len(file.bad):,}", kinds)
        num_wrong += sum(number for kind, number in count.items() if kind not in REMARKS)
        num_possible += sum(number for kind, number in count.items() if kind in REMARKS)
    show(table)
    if not num_wrong:
        print("nothing is wrong" + (", but for what is called possible above and should be read" if num_possible else ""))
    return 1 if num_wrong else 0
