from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.early_stopping import EarlyStopping, early_stopping_after
from mathrl_ray.driver.checkpoint import kept_steps

accuracies = st.lists(st.sampled_from([index / 20 for index in range(21)]), min_size=1, max_size=30)


def verdicts(values, stop_after, margin=0.0):
    early = EarlyStopping(stop_after, margin)
    return early, [early.seen(step, value) for step, value in enumerate(values, start=1)]


def test_two_validations_in_a_row_without_a_new_best_end_it_and_a_new_best_begins_the_count_again():
    early, found = verdicts([0.4, 0.3, 0.5, 0.4, 0.45], stop_after=2)
    assert found == [False, False, False, False, True]
    assert (early.best_step, early.best_accuracy) == (3, 0.5)


def test_an_equal_accuracy_is_no_better_one_and_yet_the_newest_of_the_best_is_taken():
    early, found = verdicts([0.5, 0.5], stop_after=1)
    assert found == [False, True]
    assert early.best_step == 2


def test_a_rise_within_the_margin_does_not_count_and_small_rises_add_up_to_one_that_does():
    # against the last better one, 0.50: 0.52 and 0.54 are within 0.05, 0.56 is above
    early, found = verdicts([0.50, 0.52, 0.54, 0.56], stop_after=3, margin=0.05)
    assert found == [False] * 4
    assert early.num_without_improvement == 0
    assert verdicts([0.50, 0.52, 0.54, 0.55], stop_after=3, margin=0.05)[1][-1]  # 0.05 is not more than 0.05


def test_with_0_it_never_ends():
    assert not any(verdicts([0.9] + [0.1] * 50, stop_after=0)[1])


def test_before_any_validation_there_is_no_best_step():
    early = EarlyStopping(3)
    assert (early.best_step, early.best_accuracy, early.has_stopped) == (None, None, False)


@given(accuracies, st.integers(1, 5), st.sampled_from([0.0, 0.1]))
def test_it_ends_exactly_where_the_last_better_one_is_stop_after_validations_ago(values, stop_after, margin):
    _, found = verdicts(values, stop_after, margin)
    last_better, reference = 0, values[0]
    for index, value in enumerate(values):
        if value > reference + margin:
            last_better, reference = index, value
        assert found[index] == (index - last_better >= stop_after)
        if found[index]:
            return


@given(accuracies, st.integers(1, 5), st.integers(1, 30))
def test_a_run_that_goes_on_has_the_state_of_one_that_never_stopped(values, stop_after, num_before):
    whole, _ = verdicts(values, stop_after)
    before = dict(enumerate(values[:num_before], start=1))
    resumed = early_stopping_after(dict(reversed(before.items())), stop_after=stop_after)
    for step, value in enumerate(values, start=1):
        resumed.seen(step, value)  # those before are shown again, and change nothing
    assert resumed == whole


@given(accuracies)
def test_the_best_step_is_the_one_whose_checkpoint_is_kept(values):
    early, _ = verdicts(values, stop_after=1)
    steps = sorted(early.accuracies)
    assert kept_steps(steps, early.accuracies, keep_last=1, keep_best=1) == {early.best_step, steps[-1]}
