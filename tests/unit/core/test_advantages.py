from fractions import Fraction
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.advantages import RewardGroup, group_advantages, group_normalised, leave_one_out, overlong_penalty
from mathrl_ray.sections import AdvantageSection

rewards = st.lists(st.floats(0, 1), min_size=2, max_size=16)
any_rewards = st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=16)


def test_two_of_four_right_gives_plus_and_minus_the_same():
    # mean 1/2, sample std sqrt(1/3): +-(1/2) / 0.57735 = +-0.86603
    assert group_normalised([1, 0, 0, 1], divide_by_std=True) == pytest.approx([0.86603, -0.86603, -0.86603, 0.86603], abs=1e-4)


def test_without_the_std_an_advantage_is_the_distance_from_the_mean():
    # mean (1.1 + 0.1 + 0 + 0) / 4 = 0.3
    assert group_normalised([1.1, 0.1, 0, 0], divide_by_std=False) == pytest.approx([0.8, -0.2, -0.3, -0.3])


def test_epsilon_stands_in_the_divisor():
    # mean 1/2, sample std sqrt(1/2) = 0.70711: 0.5 / (0.70711 + 0.29289) = 0.5
    assert group_normalised([1, 0], divide_by_std=True, epsilon=0.29289) == pytest.approx([0.5, -0.5], abs=1e-5)


@given(rewards, st.booleans())
def test_a_group_always_sums_to_zero(group, divide_by_std):
    assert sum(group_normalised(group, divide_by_std=divide_by_std)) == pytest.approx(0, abs=1e-6)


@given(st.floats(-1e300, 1e300), st.integers(2, 16), st.booleans())
def test_equal_rewards_teach_exactly_nothing(reward, group_size, divide_by_std):
    assert group_normalised([reward] * group_size, divide_by_std=divide_by_std) == [0] * group_size


@given(any_rewards, st.booleans())
def test_every_advantage_is_finite(group, divide_by_std):
    assert all(isfinite(advantage) for advantage in group_normalised(group, divide_by_std=divide_by_std))


@given(any_rewards, st.booleans())
def test_a_better_reward_never_has_the_smaller_advantage(group, divide_by_std):
    advantages = group_normalised(group, divide_by_std=divide_by_std)
    ranked = [advantage for _, advantage in sorted(zip(group, advantages, strict=True))]
    assert ranked == sorted(ranked)


@pytest.mark.parametrize("reward", [nan, inf, -inf, 1.1e300])
def test_a_reward_that_is_no_usable_number_is_refused(reward):
    with pytest.raises(ValueError, match=r"1e\+300.*reward\.function"):
        group_normalised([0.0, reward], divide_by_std=True)


@pytest.mark.parametrize("group", [[], [1]])
def test_a_lone_sibling_is_refused_with_the_key_to_change(group):
    with pytest.raises(ValueError, match=r"grpo\.group_size"):
        group_normalised(group, divide_by_std=False)


# leave one out


def test_the_baseline_of_each_is_the_mean_of_the_others():
    # 1 - (0 + 0 + 0.5) / 3, 0 - 1.5 / 3, 0 - 1.5 / 3, 0.5 - 1 / 3
    assert leave_one_out([1, 0, 0, 0.5]) == pytest.approx([5 / 6, -0.5, -0.5, 1 / 6])


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16))
def test_leaving_one_out_is_the_loop_over_the_others(group):
    expected = []
    for own, reward in enumerate(group):
        others = [Fraction(other) for index, other in enumerate(group) if index != own]
        expected.append(float(Fraction(reward) - sum(others) / len(others)))
    assert leave_one_out(group) == pytest.approx(expected, abs=1e-12)
    assert sum(leave_one_out(group)) == pytest.approx(0, abs=1e-9)


@given(st.floats(-1e300, 1e300), st.integers(2, 16))
def test_leaving_one_out_of_equal_rewards_teaches_exactly_nothing(reward, group_size):
    assert leave_one_out([reward] * group_size) == [0] * group_size


@given(any_rewards)
def test_leaving_one_out_is_always_finite(group):
    assert all(isfinite(advantage) for advantage in leave_one_out(group))


@pytest.mark.parametrize("group", [[], [1]])
def test_one_sibling_leaves_nothing_to_compare_with(group):
    with pytest.raises(ValueError, match=r"grpo\.group_size"):
        leave_one_out(group)


# overlong


@pytest.mark.parametrize(
    ("num_tokens", "penalty"),
    [(0, 0), (16384, 0), (16385, -1 / 4096), (18432, -0.5), (20480, -1), (30000, -1)],
)
def test_the_penalty_is_the_papers_with_its_numbers(num_tokens, penalty):
    # DAPO, section 4.1: at most 20,480 tokens, the last 4,096 of them a buffer, a fifth
    assert overlong_penalty(num_tokens, 20480, 0.2) == pytest.approx(penalty)


@given(st.integers(0, 5000), st.integers(1, 4000), st.floats(0, 0.99))
def test_the_penalty_lies_in_minus_1_to_0_and_falls_with_the_length(num_tokens, max_tokens, fraction):
    penalty = overlong_penalty(num_tokens, max_tokens, fraction)
    assert -1 <= overlong_penalty(num_tokens + 1, max_tokens, fraction) <= penalty <= 0
    assert overlong_penalty(num_tokens, max_tokens, 0.0) == 0


# what [advantage] names


def group_of(*rewards):
    return RewardGroup(rewards=rewards, num_tokens=(1,) * len(rewards), truncated=(False,) * len(rewards), problem_id="p")


@pytest.mark.parametrize(
    ("baseline", "divide_by_std", "expected"),
    [
        # rewards 3, 1, 1, 1: mean 3/2, sample variance (9/4 + 3/4) / 3 = 1
        ("none", False, [3, 1, 1, 1]),
        ("none", True, [3 / 1.5, 1 / 1.5, 1 / 1.5, 1 / 1.5]),
        ("group_mean", False, [1.5, -0.5, -0.5, -0.5]),
        ("group_mean", True, [1, -1 / 3, -1 / 3, -1 / 3]),
        ("leave_one_out", False, [2, -2 / 3, -2 / 3, -2 / 3]),
        ("leave_one_out", True, [4 / 3, -4 / 9, -4 / 9, -4 / 9]),
    ],
)
def test_each_baseline_by_hand(baseline, divide_by_std, expected):
    # epsilon 1/2 makes the divisor 3/2
    settings = AdvantageSection(baseline=baseline, divide_by_std=divide_by_std, epsilon=0.5)
    assert group_advantages(group_of(3, 1, 1, 1), settings) == pytest.approx(expected)


@pytest.mark.parametrize("baseline", ["none", "group_mean", "leave_one_out"])
def test_every_baseline_refuses_a_lone_sibling_and_a_reward_that_is_no_number(baseline):
    settings = AdvantageSection(baseline=baseline)
    with pytest.raises(ValueError, match=r"grpo\.group_size"):
        group_advantages(group_of(1.0), settings)
    with pytest.raises(ValueError, match=r"reward\.function"):
        group_advantages(group_of(1.0, nan), settings)


def test_a_function_of_ones_own_takes_the_baselines_place():
    def longest_first(group):
        return [reward * length for reward, length in zip(group.rewards, group.num_tokens, strict=True)]

    group = RewardGroup(rewards=(1.0, 0.5), num_tokens=(12, 40), truncated=(False, True), problem_id="p")
    assert group_advantages(group, AdvantageSection(divide_by_std=True), longest_first) == [12.0, 20.0]


@pytest.mark.parametrize("answer", [[1.0], [1.0, 2.0, 3.0], [nan, 1.0], [inf, 1.0]])
def test_a_function_of_ones_own_must_give_one_finite_number_a_sibling(answer):
    with pytest.raises(ValueError, match=r"advantage\.function gave .* of p: .*one finite number a sibling"):
        group_advantages(group_of(1.0, 0.0), AdvantageSection(), lambda group: answer)
