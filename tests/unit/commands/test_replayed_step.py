"""Which rows each loss has in each update of a batch."""

import random

from hypothesis import given
from hypothesis import strategies as st
from samples import made_up_trajectories

from mathrl_ray.actors.learner_steps import minibatches
from mathrl_ray.commands.replayed_step import updates_of
from mathrl_ray.commands.saved_batch import key_of
from mathrl_ray.sections import GrpoSection


def keys(rows):
    return sorted(key_of(each) for each in rows)


@given(st.integers(1, 12), st.integers(0, 8), st.sets(st.integers(0, 11)), st.integers(1, 4), st.integers(1, 2))
def test_every_loss_sees_each_of_its_rows_once_an_epoch_whatever_the_run_trained_on(num_own, num_more, dropped, num_minibatches, epochs):
    rows = made_up_trajectories(num_own + num_more, seed=0)
    own, other = rows[:num_own], [each for index, each in enumerate(rows) if index not in dropped]
    grpo = GrpoSection(minibatches=num_minibatches, epochs=epochs)
    parts = list(minibatches(num_own, grpo, random.Random(0)))
    updates = updates_of([own, other], parts, num_minibatches)
    assert len(updates) == len(parts)
    assert [keys(of_losses[0]) for of_losses in updates] == [keys(own[row] for row in part) for part in parts]
    per_epoch = len(parts) // epochs
    for epoch in range(epochs):
        seen = [each for of_losses in updates[epoch * per_epoch : (epoch + 1) * per_epoch] for each in of_losses[1]]
        assert keys(seen) == keys(other)


def test_a_row_that_both_train_on_is_in_the_same_update_of_both_with_each_ones_advantage():
    own = made_up_trajectories(4, seed=0)
    other = [each.judged(9.0, None) for each in own[1:]]
    (first, second) = updates_of([own, other], [[2, 0], [1, 3]], 2)
    assert keys(first[1]) == keys([own[2]])
    assert keys(second[1]) == keys([own[1], own[3]])
    assert {each.advantage for each in first[1] + second[1]} == {9.0}
