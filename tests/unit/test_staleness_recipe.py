import pytest
import tomli_w

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.recipe_checks import check_stage_settings
from mathrl_ray.recipe_file import load_recipe


@pytest.fixture
def recipe_at(tmp_path):
    def load(text, *overrides):
        (tmp_path / "recipe.toml").write_text(text)
        return load_recipe(tmp_path / "recipe.toml", overrides)

    return load


def saved(recipe):
    """The recipe as a run's folder has it: every key named."""
    return tomli_w.dumps(recipe.model_dump(mode="json"))


@pytest.mark.parametrize(("max_staleness", "correction"), [(0, "none"), (1, "truncated"), (4, "truncated")])
def test_stale_rollouts_are_corrected_unless_the_recipe_says_otherwise(recipe_at, max_staleness, correction):
    assert recipe_at(f"[driver]\nmax_staleness = {max_staleness}\n").loss.correction == correction
    assert Recipe(driver={"max_staleness": max_staleness}).loss.correction == correction


@pytest.mark.parametrize("named", ["none", "masked"])
def test_a_correction_that_is_named_stays(recipe_at, named):
    assert recipe_at(f'[driver]\nmax_staleness = 2\n[loss]\ncorrection = "{named}"\n').loss.correction == named
    assert recipe_at("", "driver.max_staleness=2", f"loss.correction={named}").loss.correction == named


@pytest.mark.parametrize("own", ['ratio = "coupled"\nsurrogate = "clip"', 'function = "module:loss"'])
def test_a_ratio_or_a_loss_that_holds_the_gap_itself_is_not_corrected(recipe_at, own):
    assert recipe_at(f"[driver]\nmax_staleness = 2\n[loss]\n{own}\n").loss.correction == "none"


def test_a_correction_of_the_coupled_ratio_is_refused(recipe_at):
    with pytest.raises(RecipeError, match=r"loss\.correction.*would count twice"):
        recipe_at('[driver]\nmax_staleness = 2\n[loss]\nratio = "coupled"\nsurrogate = "clip"\ncorrection = "truncated"\n')


@pytest.mark.parametrize(
    ("before", "after", "correction"),
    [(0, 2, "truncated"), (2, 0, "none"), (2, 4, "truncated"), (0, 0, "none")],
)
def test_an_override_of_the_staleness_of_a_finished_runs_recipe_changes_what_followed_from_it(recipe_at, before, after, correction):
    text = saved(recipe_at(f"[driver]\nmax_staleness = {before}\n"))
    recipe = recipe_at(text, f"driver.max_staleness={after}")
    assert (recipe.driver.max_staleness, recipe.loss.correction) == (after, correction)


@pytest.mark.parametrize("after", [0, 1])
def test_a_choice_of_its_own_in_a_finished_runs_recipe_stays(recipe_at, after):
    text = saved(recipe_at('[driver]\nmax_staleness = 2\n[loss]\ncorrection = "masked"\n'))
    assert recipe_at(text, f"driver.max_staleness={after}").loss.correction == "masked"


def test_the_coupled_ratio_of_a_finished_runs_recipe_stays_without_a_correction(recipe_at):
    text = saved(recipe_at('[driver]\nmax_staleness = 0\n[loss]\nratio = "coupled"\nsurrogate = "clip"\n'))
    assert recipe_at(text, "driver.max_staleness=2").loss.correction == "none"


def test_no_correction_that_was_chosen_where_one_is_the_default_stays_when_the_staleness_changes(recipe_at):
    text = saved(recipe_at('[driver]\nmax_staleness = 2\n[loss]\ncorrection = "none"\n'))
    assert recipe_at(text, "driver.max_staleness=4").loss.correction == "none"


@pytest.mark.parametrize("override", ["driver.max_staleness=-1", "driver.max_staleness=some", "driver.on_stale=keep"])
def test_a_staleness_that_makes_no_sense_is_refused_with_its_key(recipe_at, override):
    with pytest.raises(RecipeError, match=override.partition("=")[0].replace(".", r"\.")):
        recipe_at("", override)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[device]\nkind = "cpu"\n[driver]\nweight_transport = "nccl"', 'driver.weight_transport = "nccl" needs GPUs'),
        ('[driver]\nweight_transport = "ipc"\n[generator]\nreplicas = 2', "one learner and one generator on one GPU"),
        ('[driver]\nin_flight_updates = false\n[generator]\nkv_on_update = "keep"', "nothing to keep"),
        ("[generator]\nmax_sequences = 4", "generator.max_sequences = 4 is less than grpo.group_size = 8"),
    ],
)
def test_behaviour_30_what_cannot_go_together_is_refused_with_the_keys(recipe_at, text, message):
    with pytest.raises(RecipeError, match=message):
        recipe_at(text)


def test_behaviour_30_a_warm_up_is_held_against_the_steps_that_the_epochs_give(recipe_at):
    epochs = "[grpo]\nnum_epochs = {}\nprompts_per_step = 32\n[data]\nnum_train_problems = {}\n[learner]\nwarmup_steps = {}"
    check_stage_settings(recipe_at(epochs.format(20, 4096, 400)), ["grpo"])  # of 2,560 steps
    with pytest.raises(RecipeError, match=r"data\.num_train_problems x grpo\.num_epochs / grpo\.prompts_per_step.* = 2 "):
        check_stage_settings(recipe_at(epochs.format(1, 64, 10)), ["grpo"])
