"""Recipe keys that say which model a stage ends with: what goes together, and what is refused with the keys to set."""

import pytest
from pydantic import ValidationError

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.recipe_checks import check_stage_settings
from mathrl_ray.sections import LearnerSection

STOPS = {"stop_after": 3, "validate_every": 10}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"eval": STOPS, "data": {"num_validation_problems": 0}}, "eval.stop_after = 3 needs validation problems, and data.num_validation"),
        ({"eval": {"stop_margin": 0.01}}, "eval.stop_margin = 0.01 without eval.stop_after"),
        ({"eval": STOPS, "run": {"keep_best": 0}}, "Set run.keep_best = 1 or more"),
        ({"eval": STOPS, "learner": {"average": "ema"}}, 'Set eval.stop_after = 0 or learner.average = "none"'),
        ({"learner": {"average": "last_k", "average_last": 1}}, "average_last"),
        ({"learner": {"ema_decay": 1.0}}, "ema_decay"),
    ],
)
def test_what_cannot_go_together_is_refused_with_the_key_to_change(sections, message):
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(sections)


@pytest.mark.parametrize("stage", ["sft", "sft_filtered", "grpo"])
def test_a_stage_that_validates_by_steps_needs_validate_every_to_stop_early(stage):
    recipe = Recipe.model_validate({"eval": {"stop_after": 2}})
    with pytest.raises(RecipeError, match=rf"the {stage} stage has none with eval.validate_every = 0: set eval.validate_every to a number"):
        check_stage_settings(recipe, ["baseline", stage])
    check_stage_settings(recipe, ["baseline", "expert_iteration"])  # which validates each round
    check_stage_settings(Recipe.model_validate({"eval": STOPS}), ["baseline", stage])


def test_a_sweep_of_sizes_has_no_checkpoints_to_stop_early_with():
    recipe = Recipe.model_validate({"eval": STOPS, "sft": {"sizes": [128, "all"]}})
    with pytest.raises(
        RecipeError, match=r"sft.sizes = \[128, 'all'\]: .* no best one to go back to. Set sft.sizes = \[\] or eval.stop_after"
    ):
        check_stage_settings(recipe, ["sft"])
    check_stage_settings(recipe, ["sft_filtered", "grpo"])


def test_an_average_that_no_update_of_a_stage_would_go_into_is_refused():
    # 512 traces in batches of 16: 32 updates
    recipe = Recipe.model_validate({"learner": {"average": "ema", "average_every": 33}})
    with pytest.raises(
        RecipeError, match=r"learner.average_every = 33 is more than the sft stage's 32 optimizer steps .* nothing would be"
    ):
        check_stage_settings(recipe, ["sft"])
    check_stage_settings(recipe, ["grpo"])
    check_stage_settings(Recipe.model_validate({"learner": {"average_every": 33}}), ["sft"])


def test_how_many_sets_of_weights_each_average_keeps():
    sections = [LearnerSection(average=kind, average_last=7) for kind in ("none", "ema", "last_k")]
    assert [section.num_averaged_sets for section in sections] == [0, 1, 7]
