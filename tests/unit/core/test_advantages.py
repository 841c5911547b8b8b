from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.advantages import group_normalised

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
