"""The command `compare`: evaluations beside each other, problem by problem, and over several seeds seed by seed.

Called by __main__.py. Needs no cluster. What is compared with what is in compared_sides.py, the statistics in core/paired_evaluations.py
and core/paired_seeds.py; here is how it is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from mathrl_ray.commands.compared_sides import Side, sides_of
from mathrl_ray.commands.display import number_table, print_json, show
from mathrl_ray.commands.evaluation_files import read_evaluation
from mathrl_ray.core.intervals import Estimate
from mathrl_ray.core.one_line import one_line
from mathrl_ray.core.paired_evaluations import Comparison, Evaluation, compare_evaluations
from mathrl_ray.core.paired_seeds import SeedComparison, SeedSet, compare_seeds
from mathrl_ray.core.paired_tests import TEST_NAMES, holm, p_text
from mathrl_ray.core.seed_figures import mean_interval

NOTE = (
    "This compares checkpoints, not methods: another seed of the same recipe gives another checkpoint. What a method is worth takes "
    "several seeds of each."
)
Found = Comparison | SeedComparison
_LONGEST_LINE = 1000


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What the command line says."""

    runs: Sequence[Path]
    stages: Sequence[str] = ()
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
    sides = sides_of(options.runs, options.stages, options.prompt)
    evaluations = {side.name: _read(side) for side in sides}
    found = [_compared(first, second, evaluations, options) for first, second in combinations(sides, 2)]
    adjusted = holm([each.p_value for each in found])
    if options.json:
        print_json(_record(sides, found, adjusted))
    else:
        _report(sides, found, adjusted, options.num_ids)
    return 0


def _read(side: Side) -> list[Evaluation]:
    """One a checkpoint; those of a set are called by their seed."""
    names = [f"{side.name} seed {each.seed}" if side.is_set else side.name for each in side.checkpoints]
    return [read_evaluation(each.path, name) for each, name in zip(side.checkpoints, names, strict=True)]


def _compared(first: Side, second: Side, evaluations: Mapping[str, Sequence[Evaluation]], options: CompareOptions) -> Found:
    if first.is_set or second.is_set:
        sets = [_seed_set(side, evaluations[side.name]) for side in (first, second)]
        return compare_seeds(*sets, seed=options.seed, shared_only=options.shared)
    return compare_evaluations(*evaluations[first.name], *evaluations[second.name], seed=options.seed, shared_only=options.shared)


def _seed_set(side: Side, evaluations: Sequence[Evaluation]) -> SeedSet:
    seeds = [each.seed for each in side.checkpoints if each.seed is not None]
    if len(seeds) < len(side.checkpoints):
        raise ValueError(f"{side.name}: no recipe.toml says its run.seed, and seeds are paired by it: name the run's folder")
    return SeedSet(side.name, dict(zip(seeds, evaluations, strict=True)))


def note_of(found: Sequence[Found]) -> str:
    """Of what the figures tell: a checkpoint each, or so many of each."""
    numbers = sorted({len(each.seeds) for each in found if isinstance(each, SeedComparison)})
    if len(numbers) != 1 or numbers[0] == 1 or any(isinstance(each, Comparison) for each in found):
        return NOTE
    return (
        f"This compares {numbers[0]} checkpoints of each, one a seed: the difference's interval tells how far the mean over many seeds and "
        "other such problems may lie from it, with these settings; a single seed's tells nothing of other seeds."
    )


def _record(sides: Sequence[Side], found: Sequence[Found], adjusted: Sequence[float]) -> dict[str, Any]:
    return {
        "note": note_of(found),
        "evaluations": [
            {"name": side.name, "file": str(each.path), **({"seed": each.seed} if side.is_set else {})}
            for side in sides
            for each in side.checkpoints
        ],
        "comparisons": [{**asdict(each), "p_value_holm": p_value} for each, p_value in zip(found, adjusted, strict=True)],
    }


def _report(sides: Sequence[Side], found: Sequence[Found], adjusted: Sequence[float], num_ids: int) -> None:
    pairs = list(zip(found, adjusted, strict=True))
    single = [(each, p_value) for each, p_value in pairs if isinstance(each, Comparison)]
    if single:
        table = _table("second beside first")
        for each, p_value in single:
            _add(table, _title(each), each, p_value)
        show(table)
    for each, _ in single:
        _explain(each, num_ids)
    for seeds, p_value in pairs:
        if isinstance(seeds, SeedComparison):
            _show_seeds(seeds, p_value)
    for side in sides:
        if side.left_out:
            print(one_line(f"{side.name}: left out, without such an evaluation: {', '.join(side.left_out)}", _LONGEST_LINE))
    if len(found) > 1:
        alone = ", but for those of single seeds beside a mean" if any(map(_has_mean, found)) else ""
        print(f"p: two-sided, adjusted for {len(found)} tests at once (Holm){alone}")
    print(note_of(found))


def _title(found: Found) -> str:
    return f"{one_line(found.second)} beside {one_line(found.first)}"


def _has_mean(found: Found) -> bool:
    return isinstance(found, SeedComparison) and len(found.seeds) > 1


def _table(first: str) -> Any:
    return number_table(first, "first", "second", "difference in points (95 %)", "p", "gained / lost")


def _add(table: Any, name: str, found: Comparison, p_value: float) -> None:
    table.add_row(
        name,
        *(_percent(each.value, each.low, each.high) for each in (found.first_accuracy, found.second_accuracy)),
        _points(found.difference, found.low, found.high),
        p_text(p_value),
        f"{len(found.gained)} / {len(found.lost)}",
    )


def _show_seeds(found: SeedComparison, p_value: float) -> None:
    """A row a seed, and one of all, whose p-value is the adjusted one; a lone seed's row is that one."""
    difference, num = found.difference, len(found.seeds)
    table = _table("seed")
    for seed, each in zip(found.seeds, found.per_seed, strict=True):
        _add(table, str(seed), each, each.p_value if num > 1 else p_value)
    if num > 1:
        accuracies = [[each.first_accuracy for each in found.per_seed], [each.second_accuracy for each in found.per_seed]]
        points = _points(difference.value, difference.low, difference.high)
        table.add_row(f"mean of {num}", *map(_mean, accuracies), points, p_text(p_value), "")
    print(f"{_title(found)}, seed by seed")
    show(table)
    if num > 1:
        which = "the same problems with each seed" if difference.shares_problems else "problems of its own with each seed"
        over = f"over {num} seeds and {difference.num_problems} problems ({which})"
        print(f"mean: the difference's interval is {over}, the accuracies' are over seeds only")
    if found.lone_seeds:
        print(f"left out, on one side only: seed {', '.join(map(str, found.lone_seeds))}")
    for warning in dict.fromkeys(text for each in found.per_seed for text in each.warnings):
        print(f"  {one_line(f'warning: {warning}', _LONGEST_LINE)}")


def _mean(accuracies: Sequence[Estimate]) -> str:
    values = [each.value for each in accuracies]
    return _percent(fmean(values), *mean_interval(values, [(each.low, each.high) for each in accuracies]))


def _explain(found: Comparison, num_ids: int) -> None:
    """The lines of one pair."""
    left_out = f"; {found.num_left_out} left out: not graded on both sides, or only on one" if found.num_left_out else ""
    print(f"{_title(found)}: {TEST_NAMES[found.test]} over {found.num_problems} problems{left_out}")
    for warning in found.warnings:
        print(f"  {one_line(f'warning: {warning}', _LONGEST_LINE)}")
    for what, ids in (("gained", found.gained), ("lost", found.lost)):
        if ids:
            more = f" and {len(ids) - num_ids} more (--ids, or --json for all)" if len(ids) > num_ids else ""
            print(f"  {what}: {', '.join(map(one_line, ids[:num_ids]))}{more}")


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _points(difference: float, low: float, high: float) -> str:
    return f"{100 * difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
