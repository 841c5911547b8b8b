"""The command `compare`: evaluations of runs beside each other, problem by problem.

Called by __main__.py. Needs no cluster. The statistics are in core/paired_evaluations.py; here is what is compared with what, and how it
is shown.

    RUN RUN ...              each run's last stage (or --stage)      every pair
    RUN                      its stages                              every pair
    RUN --stage S            S with each prompt of eval.prompts      every pair
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from mathrl_ray.commands.display import plain_table, show
from mathrl_ray.commands.evaluation_files import evaluation_of, name_of, prompts_of, read_evaluation, stages_of
from mathrl_ray.core.intervals import Estimate
from mathrl_ray.core.paired_evaluations import Comparison, Evaluation, compare_evaluations
from mathrl_ray.core.paired_tests import holm

NOTE = (
    "This compares checkpoints, not methods: another seed of the same recipe gives another checkpoint. What a method is worth takes "
    "several seeds of each."
)
TESTS = {
    "mcnemar_exact": "McNemar's exact test",
    "sign_flip_exact": "sign-flip test, all flips",
    "sign_flip_monte_carlo": "sign-flip test, drawn flips",
}


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What the command line says."""

    runs: Sequence[Path]
    stage: str = ""
    prompt: str = ""
    shared: bool = False
    json: bool = False
    num_ids: int = 10
    """Ids of problems gained and lost that are shown; --json has all."""
    seed: int = 0


def compare(options: CompareOptions) -> int:
    """Run the command; 0 whatever is found.

    Raises:
        ValueError: runs without such evaluations, or evaluations that cannot be compared.
    """
    paths = _paths(options)
    evaluations = [read_evaluation(path, name) for path, name in zip(paths, _names(paths), strict=True)]
    found = [
        compare_evaluations(first, second, seed=options.seed, shared_only=options.shared) for first, second in combinations(evaluations, 2)
    ]
    adjusted = holm([each.p_value for each in found])
    if options.json:
        print(json.dumps(_record(paths, evaluations, found, adjusted), indent=2))
    else:
        _report(found, adjusted, options.num_ids)
    return 0


def _paths(options: CompareOptions) -> list[Path]:
    """The files to compare, at least two, none twice."""
    if len(options.runs) > 1:
        paths = [evaluation_of(run, options.stage, options.prompt) for run in options.runs]
    else:
        paths = _within(options.runs[0], options.stage, options.prompt)
    places = [path.resolve() for path in paths]
    if len(set(places)) < len(places):
        twice = next(path for path, place in zip(paths, places, strict=True) if places.count(place) > 1)
        raise ValueError(f"compare: {twice} is named twice, and would be compared with itself")
    return paths


def _within(run: Path, stage: str, prompt: str) -> list[Path]:
    """What can be compared inside of one run."""
    if run.is_file():
        raise ValueError(f"compare: {run} alone has nothing beside it: name a second run or file")
    if stage and prompt:
        raise ValueError("compare: one run, stage and prompt are one evaluation: name a second run, or leave --stage or --prompt out")
    if stage:
        paths = prompts_of(run, stage)
        if len(paths) == 1:
            raise ValueError(f"{run}: {stage} was evaluated with one prompt only: name a second run, or set eval.prompts to several")
        return paths
    stages = stages_of(run)
    if len(stages) == 1:
        raise ValueError(f"{run}: only {stages[0]} has an evaluation, so there is nothing to compare it with: name a second run")
    return [evaluation_of(run, each, prompt) for each in stages]


def _names(paths: Sequence[Path]) -> list[str]:
    """As short as still tells the files apart: inside of one run without the run's name, else the paths where short ones are the same."""
    if len({path.resolve().parent for path in paths}) == 1:
        return [path.stem for path in paths]
    names = [name_of(path) for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _record(
    paths: Sequence[Path], evaluations: Sequence[Evaluation], found: Sequence[Comparison], adjusted: Sequence[float]
) -> dict[str, Any]:
    return {
        "note": NOTE,
        "evaluations": [{"name": each.name, "file": str(path)} for path, each in zip(paths, evaluations, strict=True)],
        "comparisons": [{**asdict(each), "p_value_holm": p_value} for each, p_value in zip(found, adjusted, strict=True)],
    }


def _report(found: Sequence[Comparison], adjusted: Sequence[float], num_ids: int) -> None:
    table = plain_table("second beside first", "first", "second", "difference (95 %)", "p", "gained / lost")
    for each, p_value in zip(found, adjusted, strict=True):
        table.add_row(
            f"{each.second} beside {each.first}",
            _percent(each.first_accuracy),
            _percent(each.second_accuracy),
            f"{100 * each.difference:+.1f} points ({100 * each.low:+.1f} to {100 * each.high:+.1f})",
            p_text(p_value),
            f"{len(each.gained)} / {len(each.lost)}",
        )
    show(table)
    for each in found:
        _explain(each, num_ids)
    if len(found) > 1:
        print(f"p: two-sided, adjusted for {len(found)} tests at once (Holm)")
    print(NOTE)


def _explain(found: Comparison, num_ids: int) -> None:
    """The lines of one pair."""
    left_out = f"; {found.num_left_out} left out: not graded on both sides, or only on one" if found.num_left_out else ""
    print(f"{found.second} beside {found.first}: {TESTS[found.test]} over {found.num_problems} problems{left_out}")
    for warning in found.warnings:
        print(f"  warning: {warning}")
    for what, ids in (("gained", found.gained), ("lost", found.lost)):
        if ids:
            more = f" and {len(ids) - num_ids} more (--ids, or --json for all)" if len(ids) > num_ids else ""
            print(f"  {what}: {', '.join(ids[:num_ids])}{more}")


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.1f} % ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"


def p_text(p_value: float) -> str:
    """
    >>> p_text(0.03124), p_text(3e-9)
    ('0.031', '< 0.001')
    """
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
