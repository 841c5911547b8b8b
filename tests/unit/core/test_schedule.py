import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.schedule import learning_rate_at


def rates(schedule, num_steps, warmup_steps):
    return [
        learning_rate_at(step, peak=1.0, num_steps=num_steps, warmup_steps=warmup_steps, schedule=schedule) for step in range(num_steps)
    ]


def test_constant_stays_behind_the_warm_up():
    assert rates("constant", 5, 2) == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_linear_falls_by_the_same_amount_each_step():
    # 4 steps behind no warm-up: 1 - 0/4, 1/4, 2/4, 3/4
    assert rates("linear", 4, 0) == [1.0, 0.75, 0.5, 0.25]


def test_cosine_is_at_half_in_the_middle():
    # (1 + cos(pi k/4)) / 2 for k = 0..3
    assert rates("cosine", 4, 0) == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 50), st.data())
def test_a_rate_is_above_0_and_never_above_the_peak(schedule, num_steps, data):
    warmup_steps = data.draw(st.integers(0, num_steps - 1))
    assert all(0 < rate <= 1 for rate in rates(schedule, num_steps, warmup_steps))
