"""The recipe's [guards]."""

from typing import get_args

import pytest
from pydantic import ValidationError

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.recipe_file import load_recipe
from mathrl_ray.sections import GuardName


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
        ({"remedies": ["temperature"]}, "guards.temperature = 1.0 is what generator.temperature is already"),
        ({"remedies": ["more_regularisation"], "kl_coefficient": 0}, "guards.kl_coefficient and guards.entropy_coefficient are both 0"),
        ({"remedies": ["larger_batch"], "batch_factor": 64}, "8 x 64 = 512 is more than generator.max_sequences = 256"),
    ],
)
def test_a_remedy_that_could_not_be_is_refused_where_a_guard_rolls_back(guards, sentence):
    assert Recipe.model_validate({"guards": guards}).guards.action == "warn"
    for action in ({"action": "rollback"}, {"actions": {"reward": "rollback"}}):
        with pytest.raises(ValidationError, match=sentence):
            Recipe.model_validate({"guards": {**guards, **action}})


def test_all_remedies_together_can_be(guards_of):
    remedies = '["lower_rate", "tighter_clip", "larger_batch", "more_regularisation", "average_checkpoints", "temperature"]'
    assert len(guards_of('guards.action="rollback"', f"guards.remedies={remedies}", "guards.temperature=0.8").remedies) == 6


def test_there_are_nine_guards():
    assert len(get_args(GuardName)) == 9
