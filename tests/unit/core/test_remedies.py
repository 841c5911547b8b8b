"""What each remedy changes, and in which stages it changes anything."""

import pytest

from mathrl_ray.config import Recipe, with_changes
from mathrl_ray.core.remedies import remedy_changes, value_of


def recipe(**sections):
    return Recipe.model_validate(sections)


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        ("sft", "sft.learning_rate"),
        ("sft_filtered", "sft.learning_rate"),
        ("expert_iteration", "expert_iteration.learning_rate"),
        ("grpo", "grpo.learning_rate"),
    ],
)
def test_a_lower_rate_is_the_stages_own_rate_times_the_factor(stage, key):
    given = recipe(learner={"learning_rate": 8e-4}, guards={"rate_factor": 0.5})
    assert remedy_changes("lower_rate", given, stage) == {key: pytest.approx(4e-4)}


def test_a_second_lower_rate_lowers_what_the_first_one_has_left():
    once = with_changes(recipe(guards={"rate_factor": 0.1}), {"grpo.learning_rate": 1e-4})
    assert remedy_changes("lower_rate", once, "grpo") == {"grpo.learning_rate": pytest.approx(1e-5)}


def test_tighter_clipping_is_of_the_gradient_everywhere_and_of_the_ratio_where_there_is_one():
    given = recipe(learner={"max_grad_norm": 1.0}, loss={"clip_low": 0.2, "clip_high": 0.28}, guards={"clip_factor": 0.5})
    assert remedy_changes("tighter_clip", given, "sft") == {"learner.max_grad_norm": 0.5}
    assert remedy_changes("tighter_clip", given, "grpo") == {
        "learner.max_grad_norm": 0.5,
        "loss.clip_low": 0.1,
        "loss.clip_high": pytest.approx(0.14),
    }


def test_a_larger_batch_has_more_siblings_since_groups_are_numbered_by_prompts_per_step():
    given = recipe(grpo={"group_size": 8}, guards={"batch_factor": 2})
    assert remedy_changes("larger_batch", given, "grpo") == {"grpo.group_size": 16}
    assert remedy_changes("larger_batch", given, "sft") == {}


def test_more_regularisation_raises_to_the_guards_coefficients_and_never_lowers():
    given = recipe(loss={"kl_coefficient": 0.05}, guards={"kl_coefficient": 0.01, "entropy_coefficient": 0.001})
    assert remedy_changes("more_regularisation", given, "grpo") == {"loss.entropy_coefficient": 0.001}
    assert remedy_changes("more_regularisation", recipe(guards={"kl_coefficient": 0.01}), "grpo") == {"loss.kl_coefficient": 0.01}
    assert remedy_changes("more_regularisation", given, "expert_iteration") == {}


def test_a_temperature_that_holds_already_changes_nothing():
    given = recipe(generator={"temperature": 1.0}, guards={"temperature": 1.0})
    assert remedy_changes("temperature", given, "grpo") == {}
    assert remedy_changes("temperature", recipe(guards={"temperature": 0.8}), "grpo") == {"generator.temperature": 0.8}


def test_an_average_of_checkpoints_changes_no_key():
    assert remedy_changes("average_checkpoints", recipe(), "grpo") == {}


def test_changes_leave_every_other_key_as_it_was():
    given = recipe(grpo={"loss": "dr_grpo"}, driver={"max_staleness": 2})
    changed = with_changes(given, {"grpo.learning_rate": 1e-6, "loss.clip_low": 0.1})
    assert (value_of(changed, "grpo.learning_rate"), value_of(changed, "loss.clip_low")) == (1e-6, 0.1)
    back = with_changes(changed, {"grpo.learning_rate": given.grpo.learning_rate, "loss.clip_low": given.loss.clip_low})
    assert back.model_dump() == given.model_dump()


def test_changes_that_make_a_recipe_that_cannot_run_are_refused():
    with pytest.raises(ValueError, match="group_size"):
        with_changes(recipe(), {"grpo.group_size": 1})
