"""Questions, temperatures and seeds of expert iteration's rounds (core/sampling.py)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.sampling import (
    batch_indices,
    epoch_order,
    question_plan,
    request_seed,
    round_questions,
    round_seeds,
    temperature_ladder,
)


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 2**40))
def test_a_plan_is_the_epochs_in_a_row(num_items, num_asked, seed):
    epochs = [index for epoch in range(40) for index in epoch_order(num_items, seed, epoch)]
    assert question_plan(num_items, num_asked, seed) == epochs[:num_asked]


@given(st.data(), st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**40))
def test_a_round_prefers_its_own_batch_and_knows_every_question_once(data, num_items, num_rounds, seed):
    num_questions = data.draw(st.integers(1, num_items))
    plan = question_plan(num_items, num_rounds * num_questions, seed)
    for number in range(1, num_rounds + 1):
        order = round_questions(plan, num_items, num_questions, number)
        assert sorted(order) == list(range(num_items))
        batch = batch_indices(num_items, num_questions, number - 1, seed)
        assert order[: len(set(batch))] == list(dict.fromkeys(batch))  # a batch across two epochs may hold one twice


def test_every_rung_gets_as_many_samples_as_any_other_or_one_more():
    assert temperature_ladder([1.0], 3) == [1.0, 1.0, 1.0]
    assert temperature_ladder([0.7, 1.0, 1.3], 2) == [0.7, 1.0]
    ladder = temperature_ladder([0.7, 1.0, 1.3], 8)
    assert [ladder.count(rung) for rung in (0.7, 1.0, 1.3)] == [3, 3, 2]


@pytest.mark.parametrize("rungs", [[], [1.0, 0.0], [-1.0]])
def test_a_ladder_without_a_rung_above_0_is_refused(rungs):
    with pytest.raises(ValueError, match=r"expert_iteration\.temperatures"):
        temperature_ladder(rungs, 4)


def test_a_question_gets_other_seeds_in_every_round_and_for_every_sample():
    seeds = [seed for number in range(1, 6) for problem in ("a", "b") for seed in round_seeds(3, problem, number, 8)]
    assert len(set(seeds)) == 80
    assert round_seeds(3, "a", 2, 8)[5] == request_seed(3, "a", step=2, sample=5)
