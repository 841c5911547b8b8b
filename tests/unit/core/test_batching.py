from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.batching import micro_batches, padding_fraction

MAX_TOKENS = 100
lengths_lists = st.lists(st.integers(1, MAX_TOKENS), max_size=40)


def test_short_sequences_share_a_micro_batch():
    # sorted: 2 (1), 2 (3), 3 (2), 5 (0); 2 x 2 <= 6, 3 x 3 > 6, 2 x 5 > 6
    assert micro_batches([5, 2, 3, 2], max_tokens=6) == [[1, 3], [2], [0]]


def test_a_row_that_fills_the_budget_exactly_is_taken():
    assert micro_batches([3, 3, 6], max_tokens=6) == [[0, 1], [2]]


def test_no_sequence_gives_no_micro_batch():
    assert micro_batches([], max_tokens=6) == []


def test_a_sequence_beyond_the_budget_is_refused_with_a_value_that_works():
    with pytest.raises(ValueError, match=r"sequence 1 has 7 tokens.*of 6.*learner\.micro_batch_tokens to at least 9"):
        micro_batches([2, 7, 9], max_tokens=6)


@given(lengths_lists)
def test_every_index_stands_in_exactly_one_group(lengths):
    groups = micro_batches(lengths, MAX_TOKENS)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(groups)


@given(lengths_lists)
def test_no_group_is_larger_than_the_budget(lengths):
    assert all(len(group) * max(lengths[index] for index in group) <= MAX_TOKENS for group in micro_batches(lengths, MAX_TOKENS))


@given(lengths_lists)
def test_groups_read_in_a_row_are_sorted_by_length_then_index(lengths):
    order = [index for group in micro_batches(lengths, MAX_TOKENS) for index in group]
    assert order == sorted(order, key=lambda index: (lengths[index], index))


@given(lengths_lists)
def test_no_group_has_room_for_the_first_row_of_the_next(lengths):
    groups = micro_batches(lengths, MAX_TOKENS)
    for group, following in pairwise(groups):
        assert (len(group) + 1) * lengths[following[0]] > MAX_TOKENS


def test_padding_is_the_share_of_computed_tokens_that_are_not_real():
    # groups (4, 2) and (3): 2 x 4 + 1 x 3 = 11 computed, 9 real
    assert padding_fraction([4, 3, 2], [[0, 2], [1]]) == pytest.approx(2 / 11)


@given(lengths_lists)
def test_padding_is_a_fraction_and_none_where_rows_stand_alone(lengths):
    assert 0 <= padding_fraction(lengths, micro_batches(lengths, MAX_TOKENS)) < 1
    assert padding_fraction(lengths, [[index] for index in range(len(lengths))]) == 0


def test_sorted_groups_pad_less_than_groups_in_the_order_of_arrival():
    lengths = [10, 50, 12, 48, 11, 49, 9, 47]
    # arrival, pairs: 4 x (2 x about 49) = 388 computed for 236 real, 39 % padding
    assert padding_fraction(lengths, [[0, 1], [2, 3], [4, 5], [6, 7]]) == pytest.approx(1 - 236 / 388)
    # sorted: (9, 10, 11, 12) 4 x 12, (47, 48) 2 x 48, (49, 50) 2 x 50: 244 computed, 3 % padding
    assert padding_fraction(lengths, micro_batches(lengths, MAX_TOKENS)) == pytest.approx(1 - 236 / 244)


# several ranks


def test_for_two_ranks_the_largest_group_is_cut_until_there_are_as_many_for_each():
    # for one rank [[1, 3], [2], [0]]; the two rows of the first are the only ones that can be parted
    assert micro_batches([5, 2, 3, 2], max_tokens=6, num_ranks=2) == [[1], [3], [2], [0]]


def test_where_no_row_is_left_to_cut_off_a_rank_gets_an_empty_group():
    assert micro_batches([5], max_tokens=6, num_ranks=3) == [[0], [], []]


@given(lengths_lists.filter(bool), st.integers(1, 5))
def test_ranks_share_every_row_once_in_equally_many_groups_within_the_budget(lengths, num_ranks):
    groups = micro_batches(lengths, MAX_TOKENS, num_ranks)
    assert len(groups) % num_ranks == 0
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(len(group) * max(lengths[index] for index in group) <= MAX_TOKENS for group in groups if group)
    assert sum(not group for group in groups) < num_ranks
