"""The recipe's [guards]."""

from typing import get_args

import pytest
from pydantic import ValidationError

from mathrl_ray.config import Recipe, RecipeError, with_changes
from mathrl_ray.core.remedies import remedy_changes
from mathrl_ray.guard_section import GuardName, Remedy
from mathrl_ray.recipe_checks import check_stage_settings
from mathrl_ray.recipe_file import load_recipe


@pytest.fixture
def guards_of(tmp_path):
    def load(*overrides: str):
        (tmp_path / "mine.toml").write_text("")
        return load_recipe(tmp_path / "mine.toml", overrides).guards

    return load


def test_guards_warn_unless_the_recipe_says_more(guards_of):
    guards = guards_of()
    assert (guards.action, guards.actions, guards.remedies, guards.max_rollbacks) == ("warn", {}, ["lower_rate"], 3)


def test_each_guard_can_have_an_action_of_its_own_in_a_file_and_on_the_command_line(tmp_path, guards_of):
    (tmp_path / "own.toml").write_text('[guards]\naction = "rollback"\nactions = {entropy = "stop", validation = "off"}\n')
    assert load_recipe(tmp_path / "own.toml").guards.actions == {"entropy": "stop", "validation": "off"}
    assert guards_of('guards.actions={entropy = "off"}').actions == {"entropy": "off"}


def test_an_unknown_guard_and_an_unknown_action_are_refused_with_what_is_allowed(guards_of):
    with pytest.raises(RecipeError, match=r"(?s)guards\.actions.*'entropy', 'format_rate', 'reward'"):
        guards_of('guards.actions={entropi = "off"}')
    with pytest.raises(RecipeError, match=r"guards\.actions\.entropy.*'warn', 'stop', 'rollback' or 'off'"):
        guards_of('guards.actions={entropy = "ignore"}')


@pytest.mark.parametrize("key", ["entropy_fall", "format_fall", "reward_fall", "rate_factor", "clip_factor"])
def test_shares_lie_between_0_and_1(key, guards_of):
    with pytest.raises(RecipeError, match=f"guards.{key}"):
        guards_of(f"guards.{key}=1.5")


@pytest.mark.parametrize(
    ("guards", "sentence"),
    [
        ({"max_rollbacks": 0}, 'guards.max_rollbacks = 0 with the action "rollback": raise it, 3 is usual'),
        ({"remedies": ["more_regularisation"], "kl_coefficient": 0}, "guards.kl_coefficient and guards.entropy_coefficient are both 0"),
    ],
)
def test_a_remedy_that_could_not_be_is_refused_where_a_guard_rolls_back(guards, sentence):
    assert Recipe.model_validate({"guards": guards}).guards.action == "warn"
    for action in ({"action": "rollback"}, {"actions": {"reward": "rollback"}}):
        with pytest.raises(ValidationError, match=sentence):
            Recipe.model_validate({"guards": {**guards, **action}})


@pytest.mark.parametrize(
    ("guards", "sentence"),
    [
        ({"remedies": ["temperature"]}, "guards.temperature = 1.0 is what generator.temperature is already"),
        ({"remedies": ["larger_batch"], "batch_factor": 64}, "8 x 64 = 512 is more than generator.max_sequences = 256"),
    ],
)
def test_a_remedy_of_grpo_that_could_not_be_used_once_is_refused_where_grpo_is_to_run(guards, sentence):
    recipe = Recipe.model_validate({"guards": {**guards, "action": "rollback"}})
    with pytest.raises(RecipeError, match=sentence):
        check_stage_settings(recipe, ["sft", "grpo"])
    check_stage_settings(recipe, ["sft"])
    check_stage_settings(Recipe.model_validate({"guards": guards}), ["grpo"])


@pytest.mark.parametrize("first", get_args(Remedy))
def test_every_remedy_can_be_used_on_a_recipe_that_was_allowed_and_any_other_on_top_of_it(first):
    keys = {"action": "rollback", "remedies": list(get_args(Remedy)), "temperature": 0.7}
    recipe = Recipe.model_validate({"guards": keys, "grpo": {"group_size": 8}, "generator": {"max_sequences": 16}})
    check_stage_settings(recipe, ["grpo"])
    changed = with_changes(recipe, remedy_changes(first, recipe, "grpo"))
    assert (changed != recipe) == (first != "average_checkpoints")
    for second in set(get_args(Remedy)) - {first}:
        with_changes(changed, remedy_changes(second, changed, "grpo"))


def test_all_remedies_together_can_be(guards_of):
    remedies = '["lower_rate", "tighter_clip", "larger_batch", "more_regularisation", "average_checkpoints", "temperature"]'
    assert len(guards_of('guards.action="rollback"', f"guards.remedies={remedies}", "guards.temperature=0.8").remedies) == 6


def test_there_are_nine_guards():
    assert len(get_args(GuardName)) == 9
