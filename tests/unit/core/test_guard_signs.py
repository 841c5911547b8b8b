"""Each guard on a made-up collapse of its kind: the step at which it fires worked out by hand, and beside it where it just does not."""

from collections.abc import Iterable, Mapping

import pytest

from mathrl_ray.core.guard_rules import GuardRules
from mathrl_ray.guard_section import GuardName, GuardsSection


def fires_at(guard: GuardName, series: Iterable[Mapping[str, float]], **keys) -> int | None:
    """The first step at which this guard fires; patience is 3, the window 20 steps."""
    rules = GuardRules(GuardsSection(**keys))
    for step, row in enumerate(series, 1):
        if any(finding.guard == guard for finding in rules.look(step, row)):
            return step
    return None


def columns(**values: list[float]) -> list[dict[str, float]]:
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


@pytest.mark.parametrize(("level", "step"), [(0.17, 13), (0.19, None)])
def test_entropy_that_falls_by_over_70_percent_within_ten_steps_fires(level, step):
    # 0.6 up to step 10: the limit is 0.3 x 0.6 = 0.18, crossed in steps 11, 12 and 13. Over half is solved: no gain is asked for.
    assert fires_at("entropy", columns(entropy_nats=[0.6] * 10 + [level] * 4, answer_reward_mean=[0.6] * 14)) == step


def test_entropy_may_fall_fast_where_nearly_all_is_solved_or_little_was_left():
    assert fires_at("entropy", columns(entropy_nats=[0.6] * 10 + [0.1] * 10, answer_reward_mean=[0.9] * 20)) is None
    slow = [0.6 * 0.93**step for step in range(20)]  # down to 0.15, a tenth step keeps 0.93^9 = 0.52
    assert fires_at("entropy", columns(entropy_nats=[*slow, *[0.02] * 10], answer_reward_mean=[0.6] * 30)) is None


@pytest.mark.parametrize(("solved", "step"), [(0.27, 15), (0.35, None)])
def test_entropy_spent_for_too_little_fires(solved, step):
    # 0.6 -> 0.24 nats: f = 0.6 is gone, so from 0.1 there must be 0.1 + 0.9 x 0.5 x (0.6 - 0.25) / 0.75 = 0.31 right.
    # The short median of the entropy is 0.24 from step 13 on, the third value of five that is: bad in 13, 14 and 15.
    entropy = [0.6] * 10 + [0.24] * 6
    assert fires_at("entropy", columns(entropy_nats=entropy, answer_reward_mean=[0.1] * 5 + [solved] * 11)) == step


@pytest.mark.parametrize(("share", "step"), [(0.92, 14), (0.94, None)])
def test_entropy_that_is_spent_slowly_may_be_spent_in_vain(share, step):
    # The short median is the value of two steps before, the largest of the last 12 that of eleven before: of 12 steps 0.92^9 = 0.47 are
    # left, or 0.94^9 = 0.57; of 11 they were 0.92^8 = 0.51. So bad in 12, 13 and 14.
    rows = columns(entropy_nats=[0.6 * share**step for step in range(60)], answer_reward_mean=[0.1] * 60)
    assert fires_at("entropy", rows) == step


@pytest.mark.parametrize(("fall", "step"), [(0.31, None), (0.29, 15)])
def test_entropy_must_have_fallen_below_half_before_a_gain_is_asked_for(fall, step):
    assert fires_at("entropy", columns(entropy_nats=[0.6] * 10 + [fall] * 6, answer_reward_mean=[0.1] * 16)) == step


@pytest.mark.parametrize(("level", "step"), [(0.85, 13), (0.79, None)])
def test_entropy_that_explodes_fires(level, step):
    # twice the running median is 0.8, and the stage began with 0.6
    assert fires_at("entropy", columns(entropy_nats=[0.6] * 3 + [0.4] * 7 + [level] * 4, answer_reward_mean=[0.6] * 14)) == step


def test_a_small_rise_of_little_entropy_is_no_explosion():
    # twice 0.04 is 0.08; it must rise by 0.1, to 0.14
    assert fires_at("entropy", columns(entropy_nats=[0.04] * 10 + [0.13] * 4, answer_reward_mean=[0.6] * 14)) is None
    assert fires_at("entropy", columns(entropy_nats=[0.04] * 10 + [0.15] * 4, answer_reward_mean=[0.6] * 14)) == 13


@pytest.mark.parametrize(("level", "step"), [(0.69, 11), (0.71, None)])
def test_a_format_rate_that_falls_by_over_a_fifth_fires(level, step):
    assert fires_at("format_rate", columns(format_reward_mean=[0.7] * 3 + [0.9] * 5 + [level] * 4)) == step  # 0.9 - 0.2 = 0.7


@pytest.mark.parametrize(("level", "step"), [(0.08, 11), (0.09, None)])
def test_a_low_format_rate_may_fall_by_half(level, step):
    assert fires_at("format_rate", columns(format_reward_mean=[0.17] * 8 + [level] * 4)) == step  # 0.17 / 2 = 0.085


def test_a_format_rate_that_never_was_there_cannot_fall():
    assert fires_at("format_rate", columns(format_reward_mean=[0.09] * 8 + [0.0] * 4)) is None


@pytest.mark.parametrize(("level", "step"), [(0.64, 53), (0.66, None)])
def test_a_reward_that_loses_a_quarter_of_what_was_won_fires(level, step):
    # From 0.2 to 0.8 in one step, then level: 0.8 - 0.25 x 0.6 = 0.65. The noise is less: the mean difference of 50 is 0.015, and three
    # deviations are 3 x 0.886 x 0.015 x 1.28 = 0.05.
    assert fires_at("reward", columns(reward_mean=[0.2] * 5 + [0.8] * 45 + [level] * 4)) == step


@pytest.mark.parametrize(("level", "step"), [(0.15, 13), (0.3, None)])
def test_a_noisy_reward_must_fall_by_three_deviations(level, step):
    # Nine differences of 0.06 and the fall to 0.15, 0.43: mean 0.097, times 0.8862 (1 + 2 / sqrt(10)) = 0.1403, and the limit is
    # 0.58 - 3 x 0.1403 = 0.159 in step 11, and higher in 12 and 13. With 0.3 the limits are 0.224, 0.262, 0.294 and, in step 14, 0.319.
    assert fires_at("reward", columns(reward_mean=[*[0.52, 0.58] * 5, *[level] * 4])) == step


def test_a_reward_of_any_scale_can_be_guarded():
    assert fires_at("reward", columns(reward_mean=[-2.0] * 5 + [10.0] * 45 + [6.9] * 4)) == 53  # 10 - 0.25 x 12 = 7
    assert fires_at("reward", columns(reward_mean=[-2.0] * 5 + [10.0] * 45 + [7.1] * 4)) is None


def test_a_reward_that_never_changes_is_no_fall():
    assert fires_at("reward", columns(reward_mean=[0.0] * 20)) is None


@pytest.mark.parametrize(("share", "solved", "step"), [(31 / 32, 0.1, 10), (30 / 32, 0.1, None), (31 / 32, 0.6, None)])
def test_groups_that_are_nearly_all_alike_fire_where_little_is_solved(share, solved, step):
    # 31 of 32 are 0.969; the short median is that from step 8 on, the third of five
    assert fires_at("reward_variance", columns(zero_variance_fraction=[0.5] * 5 + [share] * 9, answer_reward_mean=[solved] * 14)) == step


def test_a_stage_that_begins_with_hardly_anything_solved_has_a_window_to_get_away():
    alike = columns(zero_variance_fraction=[31 / 32] * 23, answer_reward_mean=[0.01] * 23)
    assert fires_at("reward_variance", alike) == 23  # bad in steps 21, 22 and 23
    assert fires_at("reward_variance", [*alike[:20], *columns(zero_variance_fraction=[0.9] * 9, answer_reward_mean=[0.1] * 9)]) is None


@pytest.mark.parametrize(("tokens", "step"), [(310, 13), (290, None), (99, 13), (101, None)])
def test_a_length_that_jumps_or_collapses_fires(tokens, step):
    # a running median of 200: beyond 300 and 100
    rows = columns(response_tokens_mean=[200.0] * 10 + [tokens] * 4, reward_mean=[0.3] * 14)
    assert fires_at("response_length", rows) == step


def test_longer_responses_that_pay_are_welcome():
    rows = columns(response_tokens_mean=[200.0] * 10 + [400.0] * 4, reward_mean=[0.3] * 8 + [0.5] * 6)
    assert fires_at("response_length", rows) is None


@pytest.mark.parametrize(("share", "step"), [(0.36, 13), (0.34, None)])
def test_responses_that_are_cut_off_more_often_fire(share, step):
    # a running median of 0.1, and 0.25 more
    rows = columns(response_tokens_mean=[200.0] * 14, truncated_fraction=[0.1] * 10 + [share] * 4, reward_mean=[0.3] * 14)
    assert fires_at("response_length", rows) == step


@pytest.mark.parametrize(("ratio", "step"), [(1.21, 4), (1.19, None), (0.83, 4), (0.84, None)])
def test_an_importance_ratio_out_of_bounds_fires(ratio, step):
    assert fires_at("importance_ratio", columns(importance_ratio_mean=[1.0] + [ratio] * 4)) == step  # 1 / 1.2 = 0.833


@pytest.mark.parametrize(("kl", "step"), [(0.11, 4), (0.09, None)])
def test_engines_that_disagree_fire(kl, step):
    assert fires_at("importance_ratio", columns(importance_ratio_mean=[1.0] * 5, mismatch_kl=[1e-3] + [kl] * 4)) == step


@pytest.mark.parametrize(("spike", "step"), [(0.96, 15), (0.93, None)])
def test_several_spikes_of_the_loss_fire(spike, step):
    # median 0.5, median distance to it 0.03, also with two spikes among them: the limit is 0.5 + 10 x 1.4826 x 0.03 = 0.945
    usual = [0.47, 0.5, 0.53] * 3
    losses = [*usual, spike, 0.5, 0.5, spike, 0.5, spike]
    assert fires_at("loss_spike", columns(loss=losses)) == step


def test_the_rounding_of_a_loss_on_policy_is_no_spike():
    assert fires_at("loss_spike", columns(loss=[1e-9, -1e-9, 2e-9] * 3 + [9e-3] * 4)) is None


@pytest.mark.parametrize(("spike", "step"), [(1.7, 15), (1.5, None)])
def test_several_spikes_of_the_gradient_norm_fire(spike, step):
    # 8 x 0.2 = 1.6; 4 x 0.2 = 0.8 of the first ones
    norms = [0.2] * 9 + [spike, 0.2, 0.2, spike, 0.2, spike]
    assert fires_at("grad_norm_spike", columns(grad_norm=norms)) == step


def test_a_single_spike_is_no_alarm():
    assert fires_at("grad_norm_spike", columns(grad_norm=[0.2] * 10 + [500.0] + [0.2] * 20)) is None
    assert fires_at("loss_spike", columns(loss=[0.5] * 10 + [500.0] + [0.5] * 20)) is None


def test_spikes_up_to_what_a_stage_began_with_are_none():
    norms = [0.8] * 5 + [1e-3] * 20 + [3.0, 1e-3, 3.0, 3.0]  # 3,000 times the median, under 4 times the first ones
    assert fires_at("grad_norm_spike", columns(grad_norm=norms)) is None
    assert fires_at("loss_spike", columns(loss=[0.3] * 5 + [1e-4] * 20 + [0.29, 1e-4, 0.29, 0.29])) is None


def test_in_sft_only_spikes_can_fire():
    # its entropy is of given tokens and falls by itself: without a reward beside it the guard is silent
    falling = [{"entropy_nats": 0.5 * 0.8**step, "loss": 1.0, "grad_norm": 0.3, "learning_rate": 5e-4} for step in range(30)]
    rules = GuardRules(GuardsSection())
    assert [rules.look(step, row) for step, row in enumerate(falling, 1)] == [[]] * 30
