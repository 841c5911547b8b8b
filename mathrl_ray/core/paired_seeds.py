"""Two methods over several seeds: the mean difference of their evaluations, paired by seed and by problem.

Called by `python -m mathrl_ray compare`. Pure: rows in, a comparison out. Each seed gives a checkpoint of either side; what one pair of
checkpoints says is in paired_evaluations.py, and here what all of them say together.

The interval. With d_s the mean difference of seed s (of S) and d_i that of problem i (of P) over the seeds, both the chance of the seed and
that of the problem move the mean, so the squares of Student's two half-widths are added (MOVER, Zou and Donner 2008, Statistics in Medicine
27, 1693; Newcombe's interval in intervals.py does the same):

    half_width^2 = (t_{S-1} sd(d_s))^2 / S + (t_{P-1} sd(d_i))^2 / P

Noise that is neither the seed's nor the problem's counts in both terms. So it covers 95 % where one of the two decides, and up to 99 % in
between (by simulation, in its test). A bootstrap over seeds and problems would err the other way: drawn from three seeds, a variance is a
third too small, and it takes 1.96 of its roots where Student takes 4.30; it covers some 75 % there. The quasi-F tests (min F', Clark 1973)
fall to 92 % with three seeds and 88 % with two. The price: where methods do not differ, a p-value below 5 % comes in some 1 % of cases (in
its test). Where each seed has problems of its own (which a recipe's seeds do not: data.seed chooses them), sd(d_s) holds the chance of both
already, and the second term is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

from scipy.special import stdtrit

from mathrl_ray.core.breakdown import graded_by_problem, is_right
from mathrl_ray.core.paired_evaluations import Comparison, Evaluation, compare_evaluations

Key = tuple[str, str]
"""(id, text) of a problem; built-in problems of another data.seed have the same ids and other texts."""


@dataclass(frozen=True, slots=True)
class SeedSet:
    """Evaluations of one method, by run.seed."""

    name: str
    evaluations: Mapping[int, Evaluation]


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """What several seeds say together; a fraction, with its 95 % interval and two-sided p-value."""

    value: float
    low: float
    high: float
    p_value: float
    num_problems: int
    """Different ones."""
    shares_problems: bool
    """Whether a problem comes with several seeds."""


@dataclass(frozen=True, slots=True)
class SeedComparison:
    """Second against first, over the seeds that both have."""

    first: str
    second: str
    seeds: tuple[int, ...]
    difference: MeanDifference
    per_seed: tuple[Comparison, ...]
    """Of each of `seeds`: one checkpoint against one."""
    lone_seeds: tuple[int, ...]
    """Seeds that only one side has; they are left out."""

    @property
    def p_value(self) -> float:
        return self.difference.p_value


def compare_seeds(first: SeedSet, second: SeedSet, *, seed: int = 0, shared_only: bool = False) -> SeedComparison:
    """Pair two sets of evaluations by seed, and each pair by problem.

    With one seed in both it is that pair's own comparison.

    Args:
        first: what is compared against.
        second: what is compared.
        seed: of the bootstrap within a seed.
        shared_only: within a seed, compare the problems that both have.

    Raises:
        ValueError: no seed in both, or a pair that cannot be compared (compare_evaluations).
    """
    seeds = sorted(first.evaluations.keys() & second.evaluations.keys())
    if not seeds:
        held = [", ".join(map(str, sorted(each.evaluations))) for each in (first, second)]
        raise ValueError(
            f"{first.name} has run.seed {held[0]} and {second.name} has {held[1]}: none is in both, and each seed is compared with itself"
        )
    pairs = [(first.evaluations[each], second.evaluations[each]) for each in seeds]
    per_seed = tuple(compare_evaluations(*pair, seed=seed, shared_only=shared_only) for pair in pairs)
    lone = first.evaluations.keys() ^ second.evaluations.keys()
    difference = mean_difference([_differences(*pair) for pair in pairs], per_seed)
    return SeedComparison(first.name, second.name, tuple(seeds), difference, per_seed, tuple(sorted(lone)))


def _differences(first: Evaluation, second: Evaluation) -> dict[Key, float]:
    """Of each problem that was graded on both sides, the second's share of right samples less the first's."""
    ours, theirs = graded_by_problem(first.rows), graded_by_problem(second.rows)
    return {
        (problem_id, str(rows[0]["problem"])): fmean(map(is_right, theirs[problem_id])) - fmean(map(is_right, rows))
        for problem_id, rows in ours.items()
        if rows and theirs.get(problem_id)
    }


def mean_difference(by_seed: Sequence[Mapping[Key, float]], per_seed: Sequence[Comparison]) -> MeanDifference:
    """The mean over seeds, each of which weighs the same, with the interval of this file's head.

    Args:
        by_seed: of each seed the difference of each problem; none empty.
        per_seed: what each seed says alone. One seed's own is taken; and where nothing varies, the widest of them, since a width of 0 would
            be a lie.
    """
    means = [fmean(each.values()) for each in by_seed]
    problems: dict[Key, list[float]] = {}
    for each in by_seed:
        for key, value in each.items():
            problems.setdefault(key, []).append(value)
    shares = len(problems) < sum(map(len, by_seed))
    value = fmean(means)
    low, high, p_value = _interval(value, means, [fmean(each) for each in problems.values()] if shares else [], per_seed)
    return MeanDifference(value, max(low, -1.0), min(high, 1.0), p_value, len(problems), shares)


def _interval(
    value: float, of_seeds: Sequence[float], of_problems: Sequence[float], per_seed: Sequence[Comparison]
) -> tuple[float, float, float]:
    """(low, high, p-value)."""
    terms = [(variance(each) / len(each), len(each) - 1) for each in (of_seeds, of_problems) if len(each) > 1]
    if len(of_seeds) == 1 or sum(term for term, _ in terms) < 1e-18:
        return min(each.low for each in per_seed), max(each.high for each in per_seed), max(each.p_value for each in per_seed)
    half_width = _half_width(terms, 0.05)
    return value - half_width, value + half_width, _p_value(abs(value), terms)


def _half_width(terms: Sequence[tuple[float, int]], alpha: float) -> float:
    """Of the interval at confidence 1 - alpha; terms are (squared standard error, degrees of freedom)."""
    return sqrt(sum(float(stdtrit(degrees, 1 - alpha / 2)) ** 2 * term for term, degrees in terms))


def _p_value(distance: float, terms: Sequence[tuple[float, int]]) -> float:
    """The alpha at which the interval just reaches 0, by halving: it is narrower the larger alpha is."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _half_width(terms, middle) > distance else (low, middle)
    return high
