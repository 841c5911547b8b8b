import time
from functools import partial
from typing import get_args

import pytest
import torch
from planted_losses import RIGHT, WRONG, plain_clip, renormalised, token_mean, undetached_cispo, wrong_sign

from mathrl_ray.core.loss_batch import LossResult
from mathrl_ray.core.loss_check import check_loss
from mathrl_ray.core.losses import policy_loss
from mathrl_ray.methods import Method, method_settings
from mathrl_ray.sections import LossSection

TRIES = ["result", "sign", "detach", "gradient", "micro-batches", "mask", "NaN safety", "reference"]
KEYS = [
    {},
    {"correction": "truncated", "kl_coefficient": 0.1, "entropy_coefficient": 0.01},
    {"correction": "masked", "correction_level": "sequence", "kl_coefficient": 0.1, "kl_estimator": "k2"},
    {"correction": "truncated", "correction_level": "sequence", "kl_coefficient": 0.1, "kl_estimator": "k1"},
]


def faults(function):
    return {finding.name: finding.text for finding in check_loss(function) if finding.verdict == "fault"}


def verdicts(function):
    return {finding.name: finding.verdict for finding in check_loss(function)}


# not accused


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("how", ["sequence", "token", "constant"])
@pytest.mark.parametrize("method", get_args(Method))
def test_our_own_losses_have_no_fault(method, how, keys):
    settings = LossSection(**{**method_settings(method)["loss"], "aggregation": how, **keys})
    assert faults(partial(policy_loss, settings=settings)) == {}


@pytest.mark.parametrize("surrogate", ["ratio", "clip", "gspo", "cispo"])
def test_our_coupled_losses_have_no_fault(surrogate):
    assert faults(partial(policy_loss, settings=LossSection(surrogate=surrogate, ratio="coupled"))) == {}


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_a_right_loss_of_another_shape_is_not_accused(function):
    assert faults(function) == {}
    assert list(verdicts(function)) == TRIES


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_a_detached_factor_of_the_policy_is_noted_and_nothing_else_is(function):
    detaches = function.__name__ in {"surprise_weighted", "self_ratio", "cispo_like"}
    assert verdicts(function)["gradient"] == ("note" if detaches else "ok")


# the planted faults


@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_a_planted_fault_is_found_by_the_try_that_names_it_and_blamed_on_nothing_else(function):
    found = faults(function)
    assert set(found) == WRONG[function]
    assert all(found.values())


@pytest.mark.filterwarnings("ignore:std()")  # of one row: what the fault does
def test_renormalising_is_found_with_an_epsilon_too_by_the_cut():
    assert "micro-batches" in faults(partial(renormalised, epsilon=1e-6))


def test_the_sign_of_some_tokens_only_points_to_detach():
    assert "some tokens only: look at detach first" in faults(undetached_cispo)["sign"]
    assert "detach" not in faults(wrong_sign)["sign"]


@pytest.mark.parametrize(
    ("function", "name", "what_to_do"),
    [
        ("wrong_sign", "sign", "-advantage * ratio"),
        ("mean_of_token_means", "micro-batches", "batch.num_tokens"),
        ("undetached_cispo", "detach", "depends on how likely the tokens are"),
        ("undetached_surprise", "detach", "weight.detach()"),
        ("undetached_weight_of_ratio", "detach", "to the power of 2,"),
        ("undetached_self_ratio", "detach", "proximal_logprobs"),
        ("renormalised", "NaN safety", "every reward equal"),
        ("row_means_of_nothing", "NaN safety", "no response token"),
        ("unbounded_power", "NaN safety", "30 nats away"),
        ("sum_over_everything", "mask", "torch.where(batch.mask"),
        ("mean_that_counts_padding", "mask", "counts padding"),
    ],
)
def test_a_finding_says_what_to_do(function, name, what_to_do):
    planted = next(planted for planted in WRONG if planted.__name__ == function)
    assert what_to_do in faults(planted)[name]


# what is no loss at all


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda batch: -batch.advantages * batch.learner_logprobs, r"the shape (6, 7): return a scalar"),
        (lambda batch: plain_clip(batch).detach(), "carries no gradient"),
        (lambda batch: (plain_clip(batch), {}), "gave a tuple"),
        (lambda batch: None, "gave a NoneType"),
        (lambda batch: plain_clip(batch) / 0, "the loss of an ordinary batch is"),
        (lambda batch: batch.logprobs, "raised AttributeError: 'LossInput' object has no attribute 'logprobs'"),
        (lambda: None, "raised TypeError"),
        (lambda batch: LossResult(plain_clip(batch), {"odd": torch.zeros(3)}), "'odd' has the shape (3,)"),
        (lambda batch: LossResult(plain_clip(batch), {"odd": 0.5}), "'odd' is a float"),
    ],
)
def test_a_result_of_no_use_is_told_once(function, text):
    (finding,) = check_loss(function)
    assert (finding.name, finding.verdict) == ("result", "fault")
    assert text in finding.text


def test_an_error_in_one_try_leaves_the_others():
    def fails_for_one_row(batch):
        if len(batch.mask) == 1:
            raise IndexError("too few rows")
        return plain_clip(batch)

    found = faults(fails_for_one_row)
    assert set(found) == {"micro-batches", "NaN safety"}
    assert found["micro-batches"] == "raised IndexError: too few rows"


def test_a_metric_that_depends_on_the_cut_is_found_by_name():
    def largest_ratio(batch):
        ratio = torch.where(batch.mask, (batch.learner_logprobs - batch.proximal_logprobs).exp(), 0.0)
        return LossResult(plain_clip(batch), {"ratio_max": ratio.max()})

    assert "'ratio_max'" in faults(largest_ratio)["micro-batches"]


def test_a_loss_scaled_up_or_down_is_judged_alike():
    for scale in (1e-4, 1e4):
        assert verdicts(lambda batch, scale=scale: scale * plain_clip(batch)) == dict.fromkeys(TRIES, "ok")


def test_a_check_takes_no_more_than_seconds():
    began = time.monotonic()
    check_loss(lambda batch: token_mean(batch, -batch.advantages * batch.learner_logprobs))
    assert time.monotonic() - began < 10  # a bound against endless work on a shared machine; it takes 0.1 s


def test_a_loss_that_reads_the_reference_model_is_told_which_key_loads_it():
    def towards_the_reference(batch):
        penalty = (batch.learner_logprobs - batch.reference_logprobs).square() / 2
        per_token = -batch.learner_logprobs * batch.advantages + 0.1 * penalty
        return torch.where(batch.mask, per_token, 0.0).sum() / batch.num_tokens

    (finding,) = (found for found in check_loss(towards_the_reference) if found.verdict != "ok")
    assert (finding.name, finding.verdict) == ("reference", "note")
    assert "loss.kl_coefficient above 0" in finding.text
