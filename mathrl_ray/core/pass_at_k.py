"""pass@k and maj@k: what k samples of a problem would give, estimated from the n >= k that there are.

Called by breakdown.py. Pure: counts in, a probability out; what makes two answers the same is the caller's to say. Both figures are means
over all subsets of k of the n samples, so neither depends on the samples' order where the keys do not, and neither is biased.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb


@dataclass(frozen=True, slots=True)
class Votes:
    """How the samples of one problem voted."""

    num_right: int
    """All right answers are one candidate, however they are written."""
    wrong: tuple[int, ...]
    """Votes of each different wrong answer, falling."""
    num_silent: int
    """Samples that gave no answer: they are drawn like others, and vote for none."""

    @property
    def num_samples(self) -> int:
        return self.num_right + sum(self.wrong) + self.num_silent


def votes_of(keys: Sequence[Hashable | None], right: Sequence[bool]) -> Votes:
    """Count the votes of one problem.

    Args:
        keys: of each sample what its answer is, equal for answers that are one candidate; None for no answer.
        right: whether it was paid. All right answers are one candidate, whatever their keys, since each is equal to the gold.

    Raises:
        ValueError: as many keys as verdicts are wanted; or one key is right in one sample and wrong in another.

    >>> votes_of(["2", "2", "3", None], [True, True, False, False])
    Votes(num_right=2, wrong=(1,), num_silent=1)
    """
    pairs = list(zip(keys, right, strict=True))
    paid = {key for key, is_right in pairs if is_right and key is not None}
    wrong = Counter(key for key, is_right in pairs if not is_right and key is not None)
    if both := paid & wrong.keys():
        raise ValueError(f"the answer {min(both, key=repr)!r} is right in one sample and wrong in another: give different keys")
    num_right = sum(right)
    return Votes(num_right, tuple(sorted(wrong.values(), reverse=True)), len(pairs) - num_right - sum(wrong.values()))


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Probability that at least one of k samples is right: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, eq. 1), without bias.

    1 - (1 - c / n)^k would be too small, since it draws with replacement.

    Raises:
        ValueError: not 1 <= k <= num_samples, or not 0 <= num_right <= num_samples.

    >>> pass_at_k(4, 1, k=2)
    0.5
    """
    _check(num_samples, num_right, k)
    return 1.0 - comb(num_samples - num_right, k) / comb(num_samples, k)


def maj_at_k(votes: Votes, k: int) -> float:
    """Probability that the most frequent answer among k samples is right (self-consistency, Wang et al. 2023), over all C(n, k) subsets.

    Ties are drawn by lot: where t wrong answers have as many votes as the right one, it wins with 1 / (t + 1). Where all k samples gave
    no answer there is no winner, which counts as wrong.

    Raises:
        ValueError: not 1 <= k <= number of samples.

    >>> maj_at_k(Votes(num_right=2, wrong=(1,), num_silent=0), k=3), maj_at_k(Votes(num_right=1, wrong=(1,), num_silent=0), k=2)
    (1.0, 0.5)
    """
    _check(votes.num_samples, votes.num_right, k)
    return _maj_at_k(votes, k)


def _check(num_samples: int, num_right: int, k: int) -> None:
    if not 1 <= k <= num_samples:
        raise ValueError(f"k = {k} with {num_samples} samples of a problem: k must be 1 to {num_samples}, or more samples be drawn")
    if not 0 <= num_right <= num_samples:
        raise ValueError(f"{num_right} right of {num_samples} samples: need 0 <= num_right <= num_samples")


@lru_cache(maxsize=100_000)
def _maj_at_k(votes: Votes, k: int) -> float:
    """Of many problems most have the same counts."""
    won = Fraction(0)
    for given in range(1, min(votes.num_right, k) + 1):
        for num_tied, ways in _ways(votes, k - given, given).items():
            won += Fraction(comb(votes.num_right, given) * ways, num_tied + 1)
    return float(won / comb(votes.num_samples, k))


def _ways(votes: Votes, num_others: int, most: int) -> Counter[int]:
    """Ways to draw `num_others` samples that are not right, no wrong answer more than `most` times: by how many came just so often."""
    states = Counter({(0, 0): 1})  # (drawn, tied) -> ways
    for count in votes.wrong:
        following: Counter[tuple[int, int]] = Counter()
        for (drawn, tied), ways in states.items():
            for more in range(min(count, most, num_others - drawn) + 1):
                following[drawn + more, tied + (more == most)] += ways * comb(count, more)
        states = following
    found: Counter[int] = Counter()
    for (drawn, tied), ways in states.items():
        found[tied] += ways * comb(votes.num_silent, num_others - drawn)
    return found
