import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mathrl_ray.core.seed_figures import mean_interval, neighbours, over_seeds, seed_interval

rates = st.lists(st.floats(0, 1), min_size=2, max_size=8)


def test_three_seeds_by_hand():
    # mean .5, s = .1, t(2, .975) = 4.3027: .5 -+ 4.3027 x .1 / 1.7321 = .5 -+ .24841
    assert seed_interval([0.4, 0.5, 0.6]) == pytest.approx((0.25159, 0.74841), abs=1e-5)


@given(rates, st.sampled_from([0.5, 0.9, 0.95]))
def test_the_interval_is_scipys_cut_to_rates(accuracies, confidence):
    spread = np.std(accuracies, ddof=1) / np.sqrt(len(accuracies))
    if spread < 1e-12:
        return
    low, high = stats.t.interval(confidence, len(accuracies) - 1, np.mean(accuracies), spread)
    assert seed_interval(accuracies, confidence) == pytest.approx((max(0, low), min(1, high)), abs=1e-9)


def test_the_interval_covers_the_mean_in_95_of_100_cases():
    draws = np.random.default_rng(0).normal(0.5, 0.02, size=(4000, 3))
    covered = [low <= 0.5 <= high for low, high in map(seed_interval, draws.tolist())]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)


def test_too_few_seeds_and_a_wrong_confidence_are_refused():
    with pytest.raises(ValueError, match=r"at least 2 of them, got 1: name more in study\.seeds"):
        seed_interval([0.5])
    with pytest.raises(ValueError, match="between 0 and 1"):
        seed_interval([0.5, 0.6], 1.0)
    with pytest.raises(ValueError, match="sft: no run has finished it"):
        over_seeds("sft", [])


def figures(seed, accuracy, **more):
    return {"name": "sft", "seed": seed, "accuracy": accuracy, "ci95": [accuracy - 0.05, accuracy + 0.05], **more}


def test_every_number_is_a_mean_and_the_seeds_stay_beside_it():
    runs = [
        figures(0, 0.4, num_problems=100, generated_tokens=11, device_s={"learner": 2.0, "scorer": 1.0}, by_level=[], at_k=None),
        figures(1, 0.6, num_problems=100, generated_tokens=12, device_s={"learner": 3.0, "scorer": 1.5}, by_level=[], at_k=3),
    ]
    block = over_seeds("sft", runs)
    # t(1, .975) = 12.706, s = .14142: half a width of 1.27, cut to [0, 1]
    assert {key: block[key] for key in block if key != "per_seed"} == {
        "name": "sft", "accuracy": 0.5, "num_problems": 100, "generated_tokens": 11.5, "device_s": {"learner": 2.5, "scorer": 1.25},
        "ci95": [0.0, 1.0],
    }  # fmt: skip
    assert isinstance(block["num_problems"], int)
    assert block["per_seed"] == [{key: value for key, value in run.items() if key != "name"} for run in runs]


def test_one_seed_keeps_its_own_interval_and_equal_seeds_the_widest():
    assert over_seeds("sft", [figures(3, 0.5)])["ci95"] == [0.45, 0.55]
    equal = [{**figures(0, 0.5), "ci95": [0.4, 0.55]}, {**figures(1, 0.5), "ci95": [0.45, 0.6]}]
    assert over_seeds("sft", equal)["ci95"] == [0.4, 0.6]


def test_neighbours_by_accuracy_are_told_apart_in_sentences():
    blocks = [
        ("baseline", {"accuracy": 0.10, "ci95": [0.09, 0.11]}),
        ("grpo", {"accuracy": 0.45, "ci95": [0.40, 0.50]}),
        ("sft", {"accuracy": 0.30, "ci95": [0.28, 0.32]}),
        ("sft_filtered", {"accuracy": 0.381, "ci95": [0.36, 0.41]}),
    ]
    assert neighbours(blocks) == [
        "sft is above baseline by 20.0 points; their intervals do not overlap",
        "sft_filtered is above sft by 8.1 points; their intervals do not overlap",
        "grpo is above sft_filtered by 6.9 points; their intervals overlap",
    ]
    assert neighbours(blocks[:1]) == []
    equal = {"accuracy": 0.3, "ci95": [0.2, 0.4]}
    assert neighbours([("a", equal), ("b", equal)]) == ["b and a are equal to 0.1 points; their intervals overlap"]


def test_what_differs_by_rounding_or_by_less_than_is_shown_is_no_order():
    # 0.1 + 0.2 is 0.30000000000000004
    blocks = [(name, {"accuracy": value, "ci95": [0.2, 0.4]}) for name, value in (("a", 0.1 + 0.2), ("b", 0.3), ("c", 0.3004))]
    assert [sentence.split(";")[0] for sentence in neighbours(blocks)] == [
        "a and b are equal to 0.1 points",
        "c and a are equal to 0.1 points",
    ]
    assert mean_interval([0.1 + 0.2, 0.3], [(0.2, 0.4), (0.25, 0.35)]) == (0.2, 0.4)


def test_differences_may_lie_below_0():
    # mean 0, sample standard deviation 0.1, t(1) = 12.7062: 12.7062 * 0.1 / sqrt(2) = 0.8985... for -0.0707 and +0.0707
    low, high = seed_interval([-0.0707107, 0.0707107], bounds=(-1.0, 1.0))
    assert (low, high) == (pytest.approx(-0.89846, abs=1e-4), pytest.approx(0.89846, abs=1e-4))
