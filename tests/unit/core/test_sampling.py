import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.sampling import batch_indices, epoch_order, request_seed

seeds = st.integers(0, 2**63)


def test_a_seed_is_the_same_in_every_process_and_version():
    # last 31 bits of BLAKE2b (8 bytes) of '[0, "arithmetic/train/17", 3, 1]' = 062be424a12d774d
    assert request_seed(0, "arithmetic/train/17", 3, 1) == 0x062BE424A12D774D % 2**31 == 556627789


@given(seeds, st.text(), st.integers(0, 10**6), st.integers(0, 1000))
def test_a_seed_is_one_that_the_generator_takes(run_seed, problem_id, step, sample):
    assert 0 <= request_seed(run_seed, problem_id, step, sample) < 2**31


def test_parts_that_read_the_same_in_a_row_give_different_seeds():
    alike = [(1, "1", 1, 11), (11, "1", 1, 1), (1, "11", 1, 1), (1, "1", 11, 1), (1, "1,1", 1, 1), (1, '1", 1', 1, 1)]
    assert len({request_seed(*parts) for parts in alike}) == len(alike)


def test_siblings_steps_problems_and_runs_all_get_seeds_of_their_own():
    made = [
        request_seed(run_seed, f"math/{problem}", step, sample)
        for run_seed in range(2)
        for problem in range(10)
        for step in range(10)
        for sample in range(8)
    ]
    assert len(set(made)) == 1600


@given(st.integers(0, 50), seeds, st.integers(0, 100))
def test_an_epoch_holds_every_item_once(num_items, run_seed, epoch):
    assert sorted(epoch_order(num_items, run_seed, epoch)) == list(range(num_items))


def test_an_epoch_has_the_same_order_in_every_process_and_version():
    assert epoch_order(8, run_seed=0, epoch=0) == [1, 0, 4, 3, 7, 5, 6, 2]


def test_epochs_and_runs_have_orders_of_their_own():
    orders = [tuple(epoch_order(20, run_seed, epoch)) for run_seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25


def test_every_order_is_equally_likely():
    # 6 orders of 3 items, 6,000 epochs: 1,000 each, standard deviation sqrt(6000 * 1/6 * 5/6) = 29; 5 of them = 145
    counts = Counter(tuple(epoch_order(3, 0, epoch)) for epoch in range(6000))
    assert len(counts) == 6
    assert all(abs(count - 1000) < 145 for count in counts.values())


@given(st.data(), st.integers(1, 12), seeds)
def test_batches_in_a_row_are_the_epochs_in_a_row(data, num_items, run_seed):
    batch_size = data.draw(st.integers(1, num_items))
    stream = [index for step in range(10) for index in batch_indices(num_items, batch_size, step, run_seed)]
    epochs = [index for epoch in range(10) for index in epoch_order(num_items, run_seed, epoch)]
    assert stream == epochs[: 10 * batch_size]


def test_a_batch_may_straddle_two_epochs():
    first, second = epoch_order(5, 7, 0), epoch_order(5, 7, 1)
    # batches of 3 from 5: items 0-2 | 3-4 and 0 of the next | 1-3
    assert batch_indices(5, 3, 1, 7) == [*first[3:], second[0]]
    assert batch_indices(5, 3, 2, 7) == second[1:4]


def test_the_global_random_state_is_left_alone():
    before = random.getstate()
    batch_indices(10, 4, 3, run_seed=1)
    assert random.getstate() == before


@pytest.mark.parametrize(("num_items", "batch_size"), [(3, 4), (3, 0), (0, 1)])
def test_a_batch_that_cannot_be_drawn_is_refused_with_both_numbers(num_items, batch_size):
    with pytest.raises(ValueError, match=rf"batch of {batch_size} .* {num_items} problems.*data\.train"):
        batch_indices(num_items, batch_size, 0, 0)


def test_a_step_before_the_first_is_refused():
    with pytest.raises(ValueError, match="got -1"):
        batch_indices(3, 1, -1, 0)
