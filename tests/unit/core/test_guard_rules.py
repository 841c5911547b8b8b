"""GuardRules: real runs, enough signs for a finding, the last good step, going back and going on. Single guards: test_guard_signs.py."""

import json
import re

import pytest
from guarded_runs import COLLAPSE_SEED_0, COLLAPSE_SEED_1, COLLAPSE_SEED_2, HEALTHY, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from mathrl_ray.core.guard_rules import Finding, GuardRules
from mathrl_ray.guard_section import GuardsSection


def first_finding(rules: GuardRules, series) -> tuple[int, Finding] | None:
    for step, row in enumerate(series, 1):
        if findings := rules.look(step, row):
            return step, findings[0]
    return None


@pytest.mark.parametrize("run", HEALTHY)
def test_no_guard_fires_in_a_healthy_run(run):
    assert first_finding(GuardRules(GuardsSection()), rows(run)) is None


@pytest.mark.parametrize(
    ("run", "step", "metric", "good_step"),
    [
        (COLLAPSE_SEED_0, 11, "entropy_nats", 4),  # learns fast at first: 0.82 right at step 10, and 0.15 at step 40
        (COLLAPSE_SEED_1, 12, "answer_reward_mean", 6),  # never learns
        (COLLAPSE_SEED_2, 10, "answer_reward_mean", 4),
    ],
)
def test_a_rate_four_times_too_high_is_caught_within_15_steps(run, step, metric, good_step):
    rules = GuardRules(GuardsSection())
    fired_at, finding = first_finding(rules, rows(run))
    assert (fired_at, finding.guard, finding.metric) == (step, "entropy", metric)
    assert finding.value < finding.limit
    assert rules.last_good_step(step) == good_step
    assert f"since step {good_step + 1}" in finding.text


def test_without_the_entropy_guard_a_collapse_is_seen_when_the_reward_or_the_length_goes():
    settings = GuardsSection(actions={"entropy": "off"})
    fired = [first_finding(GuardRules(settings), rows(run)) for run in (COLLAPSE_SEED_0, COLLAPSE_SEED_1)]
    assert [(step, finding.guard) for step, finding in fired] == [(34, "reward"), (28, "response_length")]


def format_rates(rules: GuardRules, rates) -> list[int]:
    """The steps at which something fires."""
    return [step for step, rate in enumerate(rates, 1) if rules.look(step, {"format_reward_mean": rate})]


def test_patience_bad_steps_in_a_row_fire_and_go_on_firing():
    # best short median 0.9, so below 0.7 is bad: steps 7, 8 and 9 make three
    assert format_rates(GuardRules(GuardsSection(patience=3)), [0.9] * 6 + [0.6] * 5) == [9, 10, 11]


def test_a_good_step_between_begins_the_count_anew():
    assert format_rates(GuardRules(GuardsSection(patience=3)), [0.9] * 6 + [0.6, 0.6, 0.9, 0.6, 0.6, 0.9]) == []


def test_spikes_need_not_be_in_a_row_but_within_half_a_window():
    norms = [0.2] * 10 + [9.0, 0.2, 0.2, 9.0, 0.2, 0.2, 9.0] + [0.2] * 10
    rules = GuardRules(GuardsSection(window=20, patience=3))
    fired = [step for step, norm in enumerate(norms, 1) if rules.look(step, {"grad_norm": norm})]
    assert fired == [17]  # the third, 6 steps after the first
    far_apart = [0.2] * 10 + [9.0] + [0.2] * 4 + [9.0] + [0.2] * 4 + [9.0]  # steps 11, 16, 21: the first is out of the last 10 steps
    rules = GuardRules(GuardsSection(window=20, patience=3))
    assert [step for step, norm in enumerate(far_apart, 1) if rules.look(step, {"grad_norm": norm})] == []


def test_the_last_good_step_lies_before_the_first_doubt():
    rules = GuardRules(GuardsSection(patience=3))
    # 0.9 is the best; 0.75 (step 8) is under the middle of best and limit, 0.8: a doubt, yet not bad; 0.6 from step 9 on is bad
    assert format_rates(rules, [0.9] * 7 + [0.75, 0.6, 0.6, 0.6]) == [11]
    assert rules.last_good_step(11) == 7


def test_the_last_good_step_is_patience_steps_back_at_least():
    rules = GuardRules(GuardsSection(patience=3))
    format_rates(rules, [0.9] * 10)
    assert [rules.last_good_step(before) for before in (11, 4, 3, 1)] == [8, 1, 0, 0]
    rules = GuardRules(GuardsSection(patience=5))
    format_rates(rules, [0.9] * 6)
    assert [rules.last_good_step(before) for before in (7, 6, 5, 4, 2)] == [2, 1, 0, 0, 0]


def test_the_last_good_step_of_a_spike_lies_before_the_first_of_them():
    rules = GuardRules(GuardsSection(window=20, patience=3))
    for step, norm in enumerate([0.2] * 10 + [9.0, 0.2, 0.2, 9.0, 0.2, 0.2, 9.0], 1):
        rules.look(step, {"grad_norm": norm})
    assert rules.last_good_step(17) == 10


def test_only_the_doubts_of_what_fires_count():
    rules = GuardRules(GuardsSection(patience=3))
    # the format rate is in doubt from step 6 on and never bad; the gradient norm spikes at 12, 13 and 14
    for step in range(1, 15):
        rules.look(step, {"format_reward_mean": 0.9 if step < 6 else 0.75, "grad_norm": 9.0 if step >= 12 else 0.2})
        if step == 11:
            assert rules.last_good_step(12) == 5
    assert rules.last_good_step(14) == 11


def test_in_expert_iteration_the_round_in_which_it_fires_is_not_good():
    rules = GuardRules(GuardsSection(patience=3))
    for step in (1, 2, 3):
        for number in range(20):
            findings = rules.look(step, {"loss": 0.2 if (step, number) < (3, 10) else 5.0 + number, "entropy_nats": 0.1})
            if findings:
                assert (step, number, findings[0].guard) == (3, 12, "loss_spike")
                assert rules.last_good_step(step) == 2
                return
    pytest.fail("no guard fired")


def test_a_guard_that_is_off_is_silent():
    rules = GuardRules(GuardsSection(actions={"format_rate": "off"}))
    assert format_rates(rules, [0.9] * 6 + [0.1] * 10) == []


def test_where_later_problems_are_harder_a_falling_reward_is_no_sign():
    falling = [{"reward_mean": 0.8, "answer_reward_mean": 0.8}] * 30 + [{"reward_mean": 0.1, "answer_reward_mean": 0.1}] * 6
    assert first_finding(GuardRules(GuardsSection()), falling)[1].guard == "reward"
    assert first_finding(GuardRules(GuardsSection(), problems_change=True), falling) is None
    unpaid = [{"answer_reward_mean": 0.2, "entropy_nats": 0.6 * 0.9**step} for step in range(40)]
    assert first_finding(GuardRules(GuardsSection()), unpaid)[1].guard == "entropy"
    assert first_finding(GuardRules(GuardsSection(), problems_change=True), unpaid) is None


def test_numbers_that_are_missing_or_not_finite_are_passed_over():
    rules = GuardRules(GuardsSection())
    assert rules.look(1, {}) == []
    assert rules.look(2, {"loss": float("nan"), "grad_norm": float("inf"), "step_s": 3.0}) == []
    assert rules.state()["rows"] == [[1, {}], [2, {}]]


numbers = st.fixed_dictionaries(
    {},
    optional={
        "entropy_nats": st.floats(0, 1),
        "answer_reward_mean": st.floats(0, 1),
        "reward_mean": st.floats(-1, 1),
        "format_reward_mean": st.floats(0, 1),
        "zero_variance_fraction": st.sampled_from([0.2, 0.97]),
        "response_tokens_mean": st.floats(1, 64),
        "truncated_fraction": st.floats(0, 1),
        "mismatch_kl": st.sampled_from([1e-3, 1.0]),
        "loss": st.floats(-1, 5),
        "grad_norm": st.floats(0, 50),
    },
)
stories = st.lists(st.tuples(numbers, st.none() | st.floats(0, 1)), min_size=1, max_size=30)
quick = GuardsSection(window=5, patience=1, validation_patience=1, validation_deviations=1.0)
"""Fires soon, so that a short story says something."""


def tell(rules: GuardRules, story, begin: int = 1):
    """Look at each row, and where there is an accuracy validate too. Returns all findings, and the last good step after each row."""
    told = []
    for step, (row, accuracy) in enumerate(story, begin):
        findings = rules.look(step, row)
        findings += rules.validated(step, accuracy, 100) if accuracy is not None else []
        told.append((step, findings, rules.last_good_step(step + 1)))
    return told


@settings(max_examples=60, deadline=None)
@given(stories, st.integers(0, 30))
def test_a_run_that_was_stopped_fires_as_one_that_was_not(story, stopped_after):
    whole = tell(GuardRules(quick), story)
    before = GuardRules(quick)
    told = tell(before, story[:stopped_after])
    after = GuardRules(quick)
    after.restore(json.loads(json.dumps(before.state())))
    assert told + tell(after, story[stopped_after:], stopped_after + 1) == whole


@settings(max_examples=60, deadline=None)
@given(stories, stories, st.integers(0, 30))
def test_a_run_that_went_back_knows_nothing_of_what_came_after(story, anew, to_step):
    went_back, never_further = GuardRules(quick), GuardRules(quick)
    tell(went_back, story)
    went_back.rewind(to_step)
    tell(never_further, story[:to_step])
    begin = min(to_step, len(story)) + 1
    assert tell(went_back, anew, begin) == tell(never_further, anew, begin)
    assert went_back.state() == never_further.state()


@settings(max_examples=60, deadline=None)
@given(stories)
def test_the_last_good_step_lies_before_what_the_findings_name(story):
    rules = GuardRules(quick)
    for step, (row, _) in enumerate(story, 1):
        fired = rules.look(step, row)
        assert 0 <= rules.last_good_step(step) <= step - quick.patience
        for finding in fired:
            since = re.search(r"since step (\d+)", finding.text)
            assert since is not None
            assert rules.last_good_step(step) < int(since[1]) <= step
