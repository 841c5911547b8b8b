"""The command `analyse`: one evaluation by level, by subject, by outcome, and what its failures suggest.

Called by __main__.py. Needs no cluster; starts grading processes only where answers stand in a broken format, or where several samples of a
problem vote. The figures are in core/breakdown.py and core/failure_analysis.py.
"""

import os
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.actors.gold_judge import GoldJudge
from mathrl_ray.commands.answer_keys import grader_keys, would_be_right
from mathrl_ray.commands.display import number_table, print_json, show
from mathrl_ray.commands.evaluation_files import evaluation_of, read_evaluation, stage_of, stages_in
from mathrl_ray.config import Recipe
from mathrl_ray.core.breakdown import AtK, OutcomeCount, Part, Row, by_level, by_outcome, by_subject, whole
from mathrl_ray.core.failure_advice import AnalysedRun
from mathrl_ray.core.failure_analysis import TITLES, FailureAnalysis, Kind, analyse_failures
from mathrl_ray.core.one_line import one_line


@dataclass(frozen=True, slots=True)
class AnalyseOptions:
    """What the command line says."""

    run: Path
    stage: str = ""
    prompt: str = ""
    ks: Sequence[int] = (1, 4, 8)
    num_examples: int = 10
    json: bool = False
    num_workers: int = 0
    """0: one a core."""
    limit_s: float = 5.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that is found in one evaluation."""

    whole: Part
    levels: list[Part]
    subjects: list[Part]
    outcomes: list[OutcomeCount]
    failures: FailureAnalysis


def analyse(options: AnalyseOptions) -> int:
    """Run the command; 0 whatever is found.

    Raises:
        ValueError: no such run or evaluation.
        RuntimeError: a grading process could not be started.
    """
    if options.limit_s <= 0:
        raise ValueError(f"--limit-s = {options.limit_s}: must be above 0 seconds; 5 is usual")
    if options.num_examples < 0 or min(options.ks) < 1:
        raise ValueError("--examples must be 0 or more, and every --k at least 1")
    path = evaluation_of(options.run, options.stage, options.prompt)
    evaluation = read_evaluation(path)
    found = _analysis(evaluation.rows, options, _run_of(path))
    if options.json:
        print_json({"name": evaluation.name, "file": str(path), **asdict(found)})
    else:
        _report(evaluation.name, evaluation.rows[0], found)
    return 0


def _run_of(path: Path) -> AnalysedRun:
    """What is known of the run that an evaluation is from: of a file without one, nothing but what its name says."""
    folder, stage = path.resolve().parent.parent, stage_of(path) or "baseline"
    file = folder / "recipe.toml"
    if not file.is_file():
        return AnalysedRun(stage)
    try:
        recipe = Recipe.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValueError:  # border: of another version; the jobs say what they cannot read of it, and the figures stand without it
        recipe = Recipe()
    return AnalysedRun(stage, stages_in(folder), recipe, str(file))


def _analysis(rows: Sequence[Any], options: AnalyseOptions, run: AnalysedRun) -> Analysis:
    with GoldJudge(options.num_workers or os.cpu_count() or 1, options.limit_s) as judge:
        waived = would_be_right(rows, judge)
        key = grader_keys(rows, judge)
    settings: dict[str, Any] = {"seed": options.seed, "ks": options.ks, "key": key}
    return Analysis(
        whole=whole(rows, **settings),
        levels=by_level(rows, **settings),
        subjects=by_subject(rows, **settings),
        outcomes=by_outcome(rows),
        failures=analyse_failures(rows, waived, run=run, num_examples=options.num_examples),
    )


def _report(name: str, row: Any, found: Analysis) -> None:
    print(
        f"{one_line(name)}: prompt {one_line(row['prompt_name'])}, temperature {row['temperature']:g}, top-p {row['top_p']:g}, "
        f"at most {row['max_tokens']} tokens, grader {one_line(row['grader'])}"
    )
    for title, parts in (("level", found.levels), ("subject", found.subjects)):
        _show_parts(title, [*parts, found.whole])
    _show_outcomes(found.outcomes)
    for kind in found.failures.kinds:
        _show_kind(kind)
    if found.failures.num_ungraded:
        print(f"{found.failures.num_ungraded} samples could not be graded and are in none of these")


def _show_parts(title: str, parts: Sequence[Part]) -> None:
    ks = [each.k for each in parts[-1].at_k if each.k > 1]
    heads = (f"{figure}@{k}" for k in ks for figure in ("pass", "maj"))
    table = number_table(title, "problems", "accuracy (95 %)", "format", "tokens right / wrong", *heads)
    for part in parts:
        held = {each.k: each for each in part.at_k}
        at_k = [text for k in ks for text in (_at_k(held[k], part) if k in held else ("-", "-"))]
        table.add_row(
            one_line(part.name),
            f"{part.accuracy.num_problems:,}",
            f"{100 * part.accuracy.value:.1f} % ({100 * part.accuracy.low:.1f} to {100 * part.accuracy.high:.1f})",
            f"{100 * part.format_rate:.1f} %",
            f"{_tokens(part.mean_right_tokens)} / {_tokens(part.mean_wrong_tokens)}",
            *at_k,
        )
    show(table)


def _at_k(found: AtK, part: Part) -> tuple[str, str]:
    """pass@k and maj@k, with the number of problems that they rest on where it is not the accuracy's: some lack k graded samples."""
    of = "" if found.num_problems == part.accuracy.num_problems else f" of {found.num_problems:,}"
    return _share(found.pass_at_k) + of, _share(found.maj_at_k) + of


def _show_outcomes(outcomes: Sequence[OutcomeCount]) -> None:
    table = number_table("outcome", "samples", "share", "mean tokens")
    for each in outcomes:
        table.add_row(each.outcome, f"{each.num_samples:,}", _share(each.share), f"{each.mean_response_tokens:.1f}")
    show(table)


def _show_kind(kind: Kind) -> None:
    print(f"\n({kind.format_kept}, {kind.answer_right}) {TITLES[kind.name]}: {kind.num_samples} samples, {_share(kind.share)}")
    if not kind.num_samples:
        return
    print(f"  likely: {kind.advice.cause}\n  remedy: {kind.advice.remedy}")
    if kind.advice.command:
        print(f"  try:    {kind.advice.command}")
    for row in kind.examples:
        _show_example(row)


def _show_example(row: Row) -> None:
    """Of a response its end rather than its start: there the answer stands."""
    gold, answer = one_line(row["gold"]), one_line(row["extracted_answer"]) or "none"
    print(f"  {one_line(row['problem_id'])} sample {row['sample']}, gold {gold}, answer {answer}, {row['outcome']}")
    print(f"    problem:  {one_line(row['problem'])}")
    print(f"    response: {one_line(row['response'], keep_end=True)}")


def _share(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def _tokens(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.1f}"
