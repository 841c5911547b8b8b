from collections import Counter
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.pass_at_k import Votes, maj_at_k, pass_at_k, votes_of

answers = st.lists(st.sampled_from(["2", "a", "b", "c", None]), min_size=1, max_size=8)
"""Of one problem, whose right answer is 2."""


def votes_from(given_answers):
    return votes_of(given_answers, [answer == "2" for answer in given_answers])


def winner_is_right(drawn):
    """One subset, counted as a person would: the share of right ones among those with the most votes."""
    counts = Counter(answer for answer in drawn if answer is not None)
    leaders = [answer for answer, count in counts.items() if count == max(counts.values())]
    return leaders.count("2") / len(leaders) if leaders else 0.0


# pass@k


def test_one_right_of_four_is_found_by_two_in_half_of_the_cases():
    # of the 6 pairs, 3 hold it
    assert pass_at_k(4, 1, 2) == 0.5


@given(answers, st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(given_answers, data):
    k = data.draw(st.integers(1, len(given_answers)))
    expected = fmean("2" in drawn for drawn in combinations(given_answers, k))
    assert pass_at_k(len(given_answers), given_answers.count("2"), k) == pytest.approx(expected)


def test_pass_at_1_is_the_share_of_right_samples():
    assert [pass_at_k(8, count, 1) for count in range(9)] == pytest.approx([count / 8 for count in range(9)])


def test_pass_at_k_is_unbiased_where_the_plain_estimate_is_too_low():
    # skill 0.2, 8 samples, k = 4: the truth is 1 - 0.8^4 = 0.5904; 1 - (1 - c/8)^4 gives 0.532 on average
    drawn = np.random.default_rng(1).binomial(8, 0.2, size=50_000)
    by_count = np.array([pass_at_k(8, count, 4) for count in range(9)])
    assert by_count[drawn].mean() == pytest.approx(1 - 0.8**4, abs=0.005)
    assert (1 - (1 - drawn / 8) ** 4).mean() < 0.56


def test_thousands_of_samples_keep_their_digits():
    # 1 - (1999/2000 ... 1001/2000), by logs: exp(sum log(1 - 1 / (2000 - i))) over 1,000 draws leaves 1,000 of 2,000
    assert pass_at_k(2000, 1, 1000) == 0.5


# maj@k


def test_a_tie_is_drawn_by_lot():
    # one right, one wrong: with k = 2 always a tie of two
    assert maj_at_k(Votes(1, (1,), 0), 2) == 0.5
    assert maj_at_k(Votes(1, (1, 1), 0), 3) == pytest.approx(1 / 3)


def test_three_of_five_by_hand():
    # 3 right, 2 of one wrong answer, k = 3. 10 subsets: RRR 1, RRW 6 win, RWW 3 lose: 7 / 10
    assert maj_at_k(Votes(3, (2,), 0), 3) == pytest.approx(0.7)
    # two different wrong answers: RWW' is a tie of three, so 7/10 + 3/10/3
    assert maj_at_k(Votes(3, (1, 1), 0), 3) == pytest.approx(0.8)


@given(answers, st.data())
def test_maj_at_k_is_the_mean_over_all_subsets(given_answers, data):
    k = data.draw(st.integers(1, len(given_answers)))
    expected = fmean(winner_is_right(drawn) for drawn in combinations(given_answers, k))
    assert maj_at_k(votes_from(given_answers), k) == pytest.approx(expected)


@given(answers)
def test_maj_at_1_is_pass_at_1_and_no_maj_exceeds_its_pass(given_answers):
    votes = votes_from(given_answers)
    assert maj_at_k(votes, 1) == pytest.approx(pass_at_k(votes.num_samples, votes.num_right, 1))
    for k in range(1, votes.num_samples + 1):
        assert 0 <= maj_at_k(votes, k) <= pass_at_k(votes.num_samples, votes.num_right, k) + 1e-12


def test_silence_wins_nothing():
    assert maj_at_k(Votes(0, (), 3), 3) == 0.0
    assert maj_at_k(Votes(1, (), 3), 4) == 1.0  # and outvotes nobody


def test_many_samples_with_many_different_answers_are_quick():
    # 64 samples, 40 different wrong answers: about 4.4e9 subsets of 8 that nobody could enumerate
    value = maj_at_k(Votes(10, (3,) * 10 + (1,) * 24, 0), 8)
    draw, pool = np.random.default_rng(2), ["2"] * 10 + [f"a{i}" for i in range(10) for _ in range(3)] + [f"b{i}" for i in range(24)]
    simulated = fmean(winner_is_right([pool[i] for i in draw.choice(64, 8, replace=False)]) for _ in range(20_000))
    assert value == pytest.approx(simulated, abs=0.01)


# Votes


def test_votes_are_counted_by_key_and_right_answers_are_one_candidate():
    assert votes_of(["2", "2.0", "3", "3", "4", None, None], [True, True, False, False, False, False, True]) == Votes(3, (2, 1), 1)


def test_a_key_that_is_right_and_wrong_is_refused_by_name():
    with pytest.raises(ValueError, match="'2' is right in one sample and wrong in another"):
        votes_of(["2", "2"], [True, False])


@pytest.mark.parametrize("k", [0, 3])
def test_k_beyond_the_samples_is_refused(k):
    with pytest.raises(ValueError, match=f"k = {k} with 2 samples"):
        pass_at_k(2, 1, k)
    with pytest.raises(ValueError, match=f"k = {k} with 2 samples"):
        maj_at_k(Votes(1, (1,), 0), k)


def test_more_right_than_samples_is_refused():
    with pytest.raises(ValueError, match="3 right of 2"):
        pass_at_k(2, 3, 1)
