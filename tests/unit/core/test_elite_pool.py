"""The elite pool, with the properties that its file states."""

from collections import Counter
from dataclasses import replace

import pytest
from elite_samples import elite, group
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.elite_pool import ElitePool, PoolLimits, elite_candidates, next_pool
from mathrl_ray.core.near_duplicates import shingles, similarity
from mathrl_ray.core.quality import CORRECT_ONLY, QualityWeights

ROOM = PoolLimits(capacity=100, max_per_problem=100, max_similarity=1.0)


@st.composite
def rounds_of_responses(draw):
    """Up to four rounds, some empty, of responses to few problems with few texts, so that ties, repetitions and shares happen."""
    qualities, texts = st.sampled_from([0.0, 0.1, 0.5, 0.8, 0.9, 1.0]), st.sampled_from(["1+2=3", "1 + 2 = 3", "2+1=3", "so it is three"])
    rounds = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        places = draw(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), unique=True, max_size=16))
        made = [
            elite(problem, sample, round=number, quality=draw(qualities), text=draw(texts), num_tokens=draw(st.integers(1, 3)))
            for problem, sample in places
        ]
        rounds.append(made)
    return rounds


limits = st.builds(
    PoolLimits, capacity=st.integers(1, 12), max_per_problem=st.integers(1, 4), max_similarity=st.sampled_from([0.0, 0.5, 0.999, 1.0])
)
thresholds = st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.85, 1.0]), min_size=4, max_size=4)
solved = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.0, 0.25, 1.0]))


def pools(rounds, limits, thresholds, solved=None):
    """The pool after each round, with what changed."""
    pool, found = ElitePool(), []
    for number, (responses, threshold) in enumerate(zip(rounds, thresholds, strict=False), start=1):
        pool, change = next_pool(pool, responses, round_number=number, threshold=threshold, limits=limits, solved_shares=solved)
        found.append((pool, change))
    return found


@given(rounds_of_responses(), limits, thresholds, solved)
def test_a_pool_is_never_larger_than_its_capacity_nor_a_problems_share(rounds, limits, thresholds, solved):
    for pool, _ in pools(rounds, limits, thresholds, solved):
        assert len(pool.members) <= limits.capacity
        assert all(count <= limits.max_per_problem for count in Counter(each.problem_id for each in pool.members).values())


@given(rounds_of_responses(), limits, thresholds)
def test_the_threshold_never_falls_and_everything_in_the_pool_has_it(rounds, limits, thresholds):
    levels = [0.0]
    for asked, (pool, _) in zip(thresholds, pools(rounds, limits, thresholds), strict=False):
        levels.append(pool.threshold)
        assert pool.threshold >= asked
        assert all(each.quality >= pool.threshold for each in pool.members)
    assert levels == sorted(levels)


@given(rounds_of_responses(), limits, thresholds)
def test_every_member_is_a_response_that_was_given_unchanged_with_its_round(rounds, limits, thresholds):
    given_by_key = {each.key: each for responses in rounds for each in responses}
    for number, (pool, _) in enumerate(pools(rounds, limits, thresholds), start=1):
        assert pool.round == number
        for each in pool.members:
            assert each == given_by_key[each.key]
            assert each in rounds[each.round - 1]


@given(rounds_of_responses(), limits, thresholds)
def test_no_two_of_a_problem_are_near_duplicates(rounds, limits, thresholds):
    for pool, _ in pools(rounds, limits, thresholds):
        for index, one in enumerate(pool.members):
            for other in pool.members[index + 1 :]:
                alike = similarity(shingles(one.text), shingles(other.text))
                assert one.problem_id != other.problem_id or alike <= limits.max_similarity


@given(st.data(), rounds_of_responses(), limits, thresholds, solved)
def test_the_order_in_which_a_rounds_responses_come_changes_nothing(data, rounds, limits, thresholds, solved):
    shuffled = [data.draw(st.permutations(responses)) for responses in rounds]
    assert pools(rounds, limits, thresholds, solved) == pools(shuffled, limits, thresholds, solved)


@given(rounds_of_responses(), limits, thresholds)
def test_an_empty_round_keeps_the_pool_but_for_what_falls_below_a_higher_threshold(rounds, limits, thresholds):
    before = pools(rounds, limits, thresholds)[-1][0]
    after, change = next_pool(before, [], round_number=9, threshold=0.0, limits=limits)
    assert (after.members, after.threshold, after.round) == (before.members, before.threshold, 9)
    assert (change.accepted, dict(change.refused), dict(change.retired)) == ((), {}, {})
    after, change = next_pool(before, [], round_number=9, threshold=0.95, limits=limits)
    assert list(after.members) == [each for each in before.members if each.quality >= 0.95]
    assert set(change.retired.values()) <= {"below_threshold"}


@given(rounds_of_responses(), limits, thresholds)
def test_every_response_is_accepted_or_refused_and_every_member_stays_or_retires(rounds, limits, thresholds):
    before = set()
    for responses, (pool, change) in zip(rounds, pools(rounds, limits, thresholds), strict=False):
        members = {each.key for each in pool.members}
        assert set(change.accepted) == members & {each.key for each in responses}
        assert set(change.accepted) | set(change.refused) == {each.key for each in responses}
        assert not set(change.accepted) & set(change.refused)
        assert before - members == set(change.retired)
        before = members


def test_best_is_quality_then_rarely_solved_then_new_then_short():
    members = [
        elite("rare", quality=0.9, round=1),
        elite("new", quality=0.9, round=2, num_tokens=5),
        elite("short", quality=0.9, round=1, num_tokens=2),
        elite("long", quality=0.9, round=1, num_tokens=3),
        elite("easy", quality=0.9, round=2, num_tokens=1),
        elite("best", quality=1.0, round=1, num_tokens=9),
    ]
    old, new = [each for each in members if each.round == 1], [each for each in members if each.round == 2]
    shares = {"rare": 0.1, "new": 0.5, "short": 0.5, "long": 0.5, "easy": 1.0, "best": 1.0}
    (_, _), (pool, _) = pools_of(old, new, shares)
    assert [each.problem_id for each in pool.members] == ["best", "rare", "new", "short", "long", "easy"]


def pools_of(first, second, shares):
    return pools([first, second], ROOM, [0.0, 0.0], shares)


def test_each_reason_is_told():
    responses = [
        elite("a", 0, quality=0.9, text="one two three four"),
        elite("a", 1, quality=0.8, text="ONE two  three four"),
        elite("a", 2, quality=0.7, text="quite another way"),
        elite("a", 3, quality=0.6, text="a third one here"),
        elite("b", 0, quality=0.2),
        elite("c", 0, quality=0.55),
    ]
    tight = PoolLimits(capacity=2, max_per_problem=2, max_similarity=0.9)
    pool, change = next_pool(ElitePool(), responses, round_number=1, threshold=0.5, limits=tight)
    assert [each.key for each in pool.members] == [("g-1/a", 0), ("g-1/a", 2)] == list(change.accepted)
    assert change.refused == {
        ("g-1/a", 1): "near_duplicate",
        ("g-1/a", 3): "problem_share",
        ("g-1/b", 0): "below_threshold",
        ("g-1/c", 0): "capacity",
    }


def test_a_better_response_of_a_later_round_takes_an_older_ones_place():
    one = PoolLimits(capacity=10, max_per_problem=1, max_similarity=1.0)
    (_, _), (pool, change) = pools([[elite(quality=0.8)], [elite(quality=0.9, round=2)]], one, [0.0, 0.0])
    assert [each.round for each in pool.members] == [2]
    assert change.retired == {("g-1/p", 0): "problem_share"}


def test_a5s_plain_filter_keeps_all_that_is_right_up_to_the_capacity():
    siblings = group("correct", "wrong", "correct", "grader_error", "correct")
    made = elite_candidates(siblings, round_number=1, temperatures=[1.0] * 5, weights=CORRECT_ONLY, max_tokens=8)
    same_text = [replace(each, text="the same") for each in made]
    pool, change = next_pool(ElitePool(), same_text, round_number=1, threshold=1.0, limits=ROOM)
    assert [each.sample for each in pool.members] == [0, 2, 4]
    assert change.refused == {("g-1/p", 1): "below_threshold"}


def test_a_candidate_keeps_where_it_came_from():
    siblings = group("correct", "bad_gold", "wrong", version=3, num_tokens=[2, 2, 6])
    first, last = elite_candidates(
        siblings, round_number=4, temperatures=[0.8, 1.0, 1.2], weights=QualityWeights(0.7, 0.1, 0.1, 0.1), max_tokens=8
    )
    assert (first.round, first.policy_version, first.temperature, first.sample, first.group_id) == (4, 3, 0.8, 0, "g-1/p")
    assert (first.response_ids, first.prompt_ids, first.text) == ((5, 5), (1, 2), "text 0")
    assert (first.reward, first.format_reward, first.answer_reward, first.outcome) == (1.0, 1.0, 1.0, "correct")
    assert (last.temperature, last.outcome, last.reward, last.quality) == (1.2, "wrong", 0.0, 0.1)


def test_rounds_go_forward_and_no_response_comes_twice():
    pool, _ = next_pool(ElitePool(), [elite()], round_number=1, threshold=0.0, limits=ROOM)
    with pytest.raises(ValueError, match="round 1 cannot follow round 1"):
        next_pool(pool, [], round_number=1, threshold=0.0, limits=ROOM)
    with pytest.raises(ValueError, match="of round 1 was given as one of round 2"):
        next_pool(pool, [elite("q")], round_number=2, threshold=0.0, limits=ROOM)
    with pytest.raises(ValueError, match="g-2/p, sample 0, was given twice"):
        next_pool(pool, [elite(round=2), elite(round=2)], round_number=2, threshold=0.0, limits=ROOM)


@pytest.mark.parametrize("settings", [{"capacity": 0}, {"max_per_problem": 0}, {"max_similarity": 1.1}, {"max_similarity": -0.1}])
def test_limits_that_leave_no_room_are_refused_with_their_keys(settings):
    with pytest.raises(ValueError, match=r"expert_iteration\.capacity"):
        PoolLimits(**settings)
