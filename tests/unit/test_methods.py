from typing import get_args

import pytest

from mathrl_ray.config import Recipe
from mathrl_ray.methods import Method, method_settings
from mathrl_ray.sections import AdvantageSection, LossSection

TABLE = {
    # surrogate, aggregation, clip_low, clip_high | baseline, divide_by_std, overlong_fraction
    "reinforce": ("log_prob", "sequence", 0.2, 0.2, "none", False, 0.0),
    "reinforce_baseline": ("log_prob", "sequence", 0.2, 0.2, "group_mean", False, 0.0),
    "rloo": ("log_prob", "constant", 0.2, 0.2, "leave_one_out", False, 0.0),
    "grpo": ("ratio", "sequence", 0.2, 0.2, "group_mean", True, 0.0),
    "grpo_clip": ("clip", "sequence", 0.2, 0.2, "group_mean", True, 0.0),
    "dr_grpo": ("clip", "constant", 0.2, 0.2, "group_mean", False, 0.0),
    "dapo": ("clip", "token", 0.2, 0.28, "group_mean", True, 0.2),
    "gspo": ("gspo", "sequence", 3e-4, 4e-4, "group_mean", True, 0.0),
    "cispo": ("cispo", "token", 1.0, 4.0, "group_mean", True, 0.0),
}


@pytest.mark.parametrize("method", get_args(Method))
def test_each_method_is_put_together_as_its_paper_says(method):
    settings = method_settings(method)
    assert tuple(value for section in ("loss", "advantage") for value in settings[section].values()) == TABLE[method]
    recipe = Recipe.model_validate({"grpo": {"loss": method}})  # and is a recipe without contradiction
    assert recipe.loss == LossSection(**settings["loss"])
    assert recipe.advantage == AdvantageSection(**settings["advantage"])


def test_every_method_sets_the_same_keys_and_no_key_twice():
    keys = {section: set(settings) for section, settings in method_settings("grpo").items()}
    for method in get_args(Method):
        assert {section: set(settings) for section, settings in method_settings(method).items()} == keys


def test_a_methods_settings_are_the_callers_own():
    method_settings("dapo")["loss"]["clip_high"] = 9.0
    assert method_settings("dapo")["loss"]["clip_high"] == 0.28


def test_a_recipe_that_names_no_method_is_grpo_as_the_sections_defaults_are():
    assert Recipe() == Recipe.model_validate({"grpo": {"loss": "grpo"}})
    assert (Recipe().loss, Recipe().advantage) == (LossSection(), AdvantageSection())
