"""The elite pool of expert iteration: the best responses of all rounds, each with where it came from.

Called by stages/expert_iteration.py once a round. Pure: records in, records out; nothing depends on the order in which a round's
responses come.

    threshold    a response below it is not taken, and one that is there leaves. It is the largest that was ever asked for: it never falls
    order        best first: higher quality; then problems that were solved the least (problem_memory.py), whose solutions are rarest; then
                 the newer round, whose policy is nearer to the present one; then fewer tokens; then problem, group and sample by name
    duplicates   in that order, one that is a near-duplicate (near_duplicates.py) of a better one of its problem is left out
    share        and one whose problem has max_per_problem better ones already
    capacity     of what is left, the best

So a pool is a function of what was in it, of the round's responses as a set, and of threshold, limits and the problems' solved shares.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mathrl_ray.core.near_duplicates import shingles, similarity
from mathrl_ray.core.quality import QualityWeights, group_qualities
from mathrl_ray.types import Trajectory, TrajectoryGroup

BELOW_THRESHOLD, NEAR_DUPLICATE, PROBLEM_SHARE, CAPACITY = "below_threshold", "near_duplicate", "problem_share", "capacity"
"""Why a response is not in the pool."""
Key = tuple[str, int]
"""(group_id, sample) of a response, as everywhere."""


@dataclass(frozen=True, slots=True)
class EliteResponse:
    """One response with what it was worth and where it came from. Made here from a graded one, stored by driver/elite_rows.py.

    Example: EliteResponse("arithmetic/train/17", "expert_iteration-2/5", 3, (9, 4), (31, 8, 2), " 6+3=9 </think> <answer> 9 </answer>",
                           quality=0.93, round=2, policy_version=1, temperature=1.2, reward=1.0, format_reward=1.0, answer_reward=1.0,
                           outcome="correct")
    """

    problem_id: str
    group_id: str
    sample: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    """The sampled ids, which are the ids that are trained."""
    text: str
    quality: float
    """In [0, 1], see quality.py."""
    round: int
    """From 1."""
    policy_version: int
    """Of the newest weights that sampled a token of it."""
    temperature: float
    reward: float
    format_reward: float
    answer_reward: float
    outcome: str

    @property
    def key(self) -> Key:
        return self.group_id, self.sample


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What a pool may hold.

    Raises:
        ValueError: a number that leaves room for nothing, or a similarity outside of [0, 1].
    """

    capacity: int = 2000
    max_per_problem: int = 4
    max_similarity: float = 0.9
    """Beyond it two responses to a problem are near-duplicates; 1.0: nothing is."""

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.max_per_problem < 1 or not 0 <= self.max_similarity <= 1:
            raise ValueError(
                f"{self}: capacity and max_per_problem must be at least 1, max_similarity in [0, 1]. See expert_iteration.capacity, "
                ".max_per_problem and .max_similarity"
            )


@dataclass(frozen=True, slots=True)
class ElitePool:
    """A pool after a round."""

    members: tuple[EliteResponse, ...] = ()
    """Best first."""
    threshold: float = 0.0
    round: int = 0
    """The last one that went into it; 0 for none."""


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What one round changed."""

    accepted: tuple[Key, ...]
    """Responses of the round that are in the pool, best first."""
    refused: Mapping[Key, str] = field(default_factory=dict)
    """Those that are not, each with the reason."""
    retired: Mapping[Key, str] = field(default_factory=dict)
    """Responses of earlier rounds that have left."""


def elite_candidates(
    group: TrajectoryGroup, *, round_number: int, temperatures: Sequence[float], weights: QualityWeights, max_tokens: int
) -> list[EliteResponse]:
    """The graded siblings of a group as records of the pool; one that could not be graded is none.

    Args:
        group: graded.
        round_number: from 1.
        temperatures: of each sample, by its number.
        weights: of the parts of quality.
        max_tokens: the longest response that could be sampled.
    """
    qualities = group_qualities(group.trajectories, weights, max_tokens=max_tokens)

    def record(trajectory: Trajectory, worth: float) -> EliteResponse:
        completion, grade = trajectory.completion, trajectory.grade
        return EliteResponse(
            problem_id=trajectory.problem_id,
            group_id=trajectory.group_id,
            sample=trajectory.sample,
            prompt_ids=trajectory.prompt_ids,
            response_ids=completion.token_ids,
            text=completion.text,
            quality=worth,
            round=round_number,
            policy_version=completion.max_policy_version,
            temperature=temperatures[trajectory.sample],
            reward=grade.reward,
            format_reward=grade.format_reward,
            answer_reward=grade.answer_reward,
            outcome=grade.outcome,
        )

    return [record(each, worth) for each, worth in zip(group.trajectories, qualities, strict=True) if worth is not None]


def next_pool(
    pool: ElitePool,
    candidates: Iterable[EliteResponse],
    *,
    round_number: int,
    threshold: float,
    limits: PoolLimits,
    solved_shares: Mapping[str, float] | None = None,
) -> tuple[ElitePool, PoolChange]:
    """The pool after one more round, and what changed.

    Args:
        pool: after the round before.
        candidates: of this round, in any order; none in an empty round.
        round_number: larger than that of the pool.
        threshold: what the schedule asks for; the pool's own counts where it is larger.
        limits: what it may hold.
        solved_shares: by problem_id, how much of all attempts was solved; a problem that is not there counts as never solved.

    Raises:
        ValueError: a round that is not later than the pool's, a candidate of another round, or two responses with one key.
    """
    new = list(candidates)
    _check(pool, new, round_number)
    threshold = max(pool.threshold, threshold)
    reasons: dict[Key, str] = {}
    good = _at_least(threshold, (*pool.members, *new), reasons)
    ranked = _best_first(good, solved_shares or {})
    kept = _without_repetition(ranked, limits, reasons)
    reasons |= {each.key: CAPACITY for each in kept[limits.capacity :]}
    members = tuple(kept[: limits.capacity])
    change = PoolChange(
        accepted=tuple(each.key for each in members if each.round == round_number),
        refused={each.key: reasons[each.key] for each in new if each.key in reasons},
        retired={each.key: reasons[each.key] for each in pool.members if each.key in reasons},
    )
    return ElitePool(members, threshold, round_number), change


def _check(pool: ElitePool, new: Sequence[EliteResponse], round_number: int) -> None:
    if round_number <= pool.round:
        raise ValueError(f"round {round_number} cannot follow round {pool.round} of the pool")
    if strangers := sorted({each.round for each in new} - {round_number}):
        raise ValueError(f"a response of round {strangers[0]} was given as one of round {round_number}")
    keys = [each.key for each in (*pool.members, *new)]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the response {twice[0]}, sample {twice[1]}, was given twice")


def _at_least(threshold: float, responses: Iterable[EliteResponse], reasons: dict[Key, str]) -> list[EliteResponse]:
    everyone = list(responses)
    reasons |= {each.key: BELOW_THRESHOLD for each in everyone if each.quality < threshold}
    return [each for each in everyone if each.quality >= threshold]


def _best_first(responses: Iterable[EliteResponse], solved_shares: Mapping[str, float]) -> list[EliteResponse]:
    def badness(each: EliteResponse) -> tuple[float, float, int, int, str, str, int]:
        share = solved_shares.get(each.problem_id, 0.0)
        return -each.quality, share, -each.round, len(each.response_ids), each.problem_id, each.group_id, each.sample

    return sorted(responses, key=badness)


def _without_repetition(ranked: Sequence[EliteResponse], limits: PoolLimits, reasons: dict[Key, str]) -> list[EliteResponse]:
    """In the same order, at most max_per_problem of a problem, none of them a near-duplicate of a better one."""
    by_problem: dict[str, list[EliteResponse]] = defaultdict(list)
    for each in ranked:
        by_problem[each.problem_id].append(each)
    for responses in by_problem.values():  # problem by problem, since shingles take far more memory than texts
        reasons |= _repetitions(responses, limits)
    return [each for each in ranked if each.key not in reasons]


def _repetitions(responses: Sequence[EliteResponse], limits: PoolLimits) -> dict[Key, str]:
    """Which of one problem's responses, best first, are left out."""
    left_out: dict[Key, str] = {}
    kept: list[frozenset[tuple[str, ...]]] = []
    for each in responses:
        if len(kept) == limits.max_per_problem:
            left_out[each.key] = PROBLEM_SHARE
            continue
        pieces = shingles(each.text) if limits.max_similarity < 1 else frozenset()
        if limits.max_similarity < 1 and any(similarity(pieces, other) > limits.max_similarity for other in kept):
            left_out[each.key] = NEAR_DUPLICATE
        else:
            kept.append(pieces)
    return left_out
