from types import SimpleNamespace

import pytest
import torch
from samples import recipe_for

from mathrl_ray.commands.named_losses import LOGGED, named_losses


@pytest.fixture
def recipe(tmp_path):
    keys = {"kl_coefficient": 0.1, "clip_high": 0.3, "correction": "masked"}
    return recipe_for(tmp_path, grpo={"loss": "grpo_clip"}, loss=keys, driver={"max_staleness": 1})


def test_the_runs_own_stands_first_and_none_is_named_twice(recipe):
    assert [each.name for each in named_losses(["dapo", LOGGED, "dapo", "rloo"], recipe)] == [LOGGED, "dapo", "rloo"]
    own = named_losses([], recipe)[0]
    assert (own.loss, own.advantage) == (recipe.loss, None)


def test_a_method_sets_its_own_keys_and_leaves_the_runs_others(recipe):
    dapo = named_losses(["dapo"], recipe)[1]
    assert (dapo.loss.aggregation, dapo.loss.clip_high) == ("token", 0.28)  # Yu et al. 2025
    assert (dapo.loss.kl_coefficient, dapo.loss.correction) == (0.1, "masked")
    assert dapo.advantage.overlong_fraction == 0.2
    assert named_losses(["reinforce"], recipe)[1].advantage.baseline == "none"


def test_a_function_of_the_users_own_takes_the_saved_advantages(recipe, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def half(batch):\n    return (batch.learner_logprobs * batch.mask).sum() / 2\n")
    own = named_losses([str(file)], recipe)[1]
    assert (own.name, own.advantage) == (str(file), None)
    assert own.needs_entropy_gradient
    assert callable(own.function())


def test_a_function_takes_the_keyword_arguments_behind_it_and_may_be_named_with_several(recipe, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def scaled(batch, scale=1.0):\n    return scale * (batch.learner_logprobs * batch.mask).sum()\n")
    found = named_losses([str(file), "scale=2.0", "dapo", str(file), "scale=3", str(file)], recipe)
    assert [each.name for each in found] == [LOGGED, f"{file} scale=2.0", "dapo", f"{file} scale=3", str(file)]
    batch = SimpleNamespace(learner_logprobs=torch.tensor([[1.0, 2.0]], requires_grad=True), mask=torch.tensor([[True, True]]))
    assert [each.function()(batch).loss.item() for each in found if each.spec] == [6, 9, 3]
    with pytest.raises(ValueError, match=r"--loss dapo power=1: only functions of one's own"):
        named_losses(["dapo", "power=1"], recipe)


def test_a_method_leaves_the_runs_own_functions_behind(tmp_path):
    own = {"function": "mine.py:half", "kwargs": {"power": 2}}
    recipe = recipe_for(tmp_path, grpo={"loss": "grpo_clip"}, loss=own, advantage={"function": "mine.py:worth", "kwargs": {"power": 2}})
    logged, dapo = named_losses(["dapo"], recipe)
    assert (logged.loss.function, logged.loss.kwargs) == ("mine.py:half", {"power": 2})
    for section in (dapo.loss, dapo.advantage):
        assert (section.function, section.kwargs) == ("", {})


def test_an_unknown_name_is_refused_with_the_nearest_and_the_forms(recipe):
    with pytest.raises(ValueError, match=r"--loss dr_grop: no loss of this name. The nearest is dr_grpo. .*FILE.py:FUNCTION"):
        named_losses(["dr_grop"], recipe)


def test_a_method_that_does_not_go_with_the_runs_settings_is_refused(tmp_path):
    recipe = recipe_for(tmp_path, grpo={"loss": "grpo_clip"}, loss={"ratio": "coupled"})
    with pytest.raises(ValueError, match=r"--loss reinforce does not go with the run's other settings: (.|\n)*has no ratio"):
        named_losses(["reinforce"], recipe)


def test_keyword_arguments_that_were_masked_are_not_made_up(tmp_path):
    recipe = recipe_for(tmp_path, loss={"function": "mine.py:half", "kwargs": {"api_key": "*masked*"}})
    with pytest.raises(ValueError, match=r"loss.kwargs.api_key: the run's recipe.toml keeps no secrets"):
        named_losses([], recipe)
