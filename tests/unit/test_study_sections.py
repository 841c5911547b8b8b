"""The recipe's [expert_iteration], [curriculum] and [sweep]."""

from pathlib import Path

import pytest

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.recipe_checks import check_stage_settings, num_round_steps, token_budget
from mathrl_ray.recipe_file import load_recipe


@pytest.fixture
def recipe_at(tmp_path):
    def write(text: str = "", *overrides: str, name: str = "mine.toml") -> Recipe:
        (tmp_path / name).write_text(text)
        return load_recipe(tmp_path / name, overrides)

    return write


def written_out(recipe):
    import tomli_w

    return tomli_w.dumps(recipe.model_dump(mode="json"))


def test_the_defaults_are_five_rounds_on_a_pool_of_2000(recipe_at):
    settings = recipe_at().expert_iteration
    assert (settings.rounds, settings.capacity, settings.min_tokens, settings.start) == (5, 2000, 4, "last_round")


def test_expert_iteration_is_a_stage_that_a_study_may_have(recipe_at):
    assert recipe_at('[study]\nstages = ["expert_iteration"]').study.stages == ["expert_iteration"]


def test_a_rate_of_the_learner_is_expert_iterations_too(recipe_at):
    assert recipe_at("[learner]\nlearning_rate = 1e-5").expert_iteration.learning_rate == 1e-5
    text = written_out(recipe_at("[learner]\nlearning_rate = 1e-5"))
    assert recipe_at(text, "learner.learning_rate=3e-5").expert_iteration.learning_rate == 3e-5


def test_sections_written_out_and_read_back_are_the_same(recipe_at):
    text = "[expert_iteration]\nthreshold = [[1, 0.5], [3, 0.9]]\n[sweep]\nseeds = [0, 1]\n'grpo.learning_rate' = [1e-4, 5e-4]"
    recipe = recipe_at(text)
    assert recipe_at(written_out(recipe), name="again.toml").model_dump() == recipe.model_dump()
    assert recipe.sweep.lists == {"grpo.learning_rate": [1e-4, 5e-4]}


def test_a_sweep_on_the_command_line_needs_no_quotes(recipe_at):
    recipe = recipe_at("[sweep]\n'grpo.loss' = ['grpo', 'dapo']", "sweep.grpo.learning_rate=[1e-4, 5e-4]", "sweep.seeds=[0, 1]")
    assert recipe.sweep.lists == {"grpo.loss": ["grpo", "dapo"], "grpo.learning_rate": [1e-4, 5e-4]}
    assert recipe.sweep.seeds == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[expert_iteration]\nthreshold = [[1, 0.9], [5, 0.5]]", r"expert_iteration\.threshold = .*its values may not fall"),
        ("[expert_iteration]\nthreshold = 1.5", r"expert_iteration\.threshold = 1\.5: a quality lies in \[0, 1\]"),
        ("[expert_iteration]\nthreshold = -0.1", r"a quality lies in \[0, 1\]"),
        ("[expert_iteration]\nmin_tokens = 65", r"expert_iteration\.min_tokens = 65 is more than generator\.max_tokens = 64"),
        ("[expert_iteration]\nweight_format = 0.8", r"weight_format = 0\.8 is more than weight_correct = 0\.7"),
        ("[expert_iteration]\ncapacity = 8", r"batch_size = 16 is more than expert_iteration\.capacity = 8"),
        ("[expert_iteration]\ntemperatures = []", r"expert_iteration\.temperatures = \[\]"),
        ("[expert_iteration]\ntemperatures = [0.0]", r"expert_iteration\.temperatures"),
        ("[expert_iteration]\nround = 3", r"unknown key expert_iteration\.round: the nearest is expert_iteration\.rounds"),
        ("[curriculum]\nretry_after = 3", r"retry_after = 3 without skip_after"),
        ("[sweep]\n'grpo.learning_rat' = [1]", r'sweep\."grpo\.learning_rat" is no key of a recipe: the nearest is grpo\.learning_rate'),
        ("[sweep]\nseed = [1]", r'sweep\."seed" is no key of a recipe: the nearest is'),
        ("[sweep]\n'grpo.learning_rate' = 1e-4", r"give a list of the values to try"),
        ("[sweep]\nseeds = [1]\n'run.seed' = [1]", "both name seeds"),
        ("[sweep]\ncombine = 'zip'\n'grpo.num_steps' = [1, 2]\n'grpo.group_size' = [2]", r"row by row, and they have .* make them equal"),
        ("[sweep]\nkeep = 0", r"sweep\.keep = 0: input should be greater than 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_key(recipe_at, text, message):
    with pytest.raises(RecipeError, match=message):
        recipe_at(text)


def test_correct_only_asks_nothing_of_the_weights(recipe_at):
    assert recipe_at("[expert_iteration]\nquality = 'correct'\nweight_format = 0.8").expert_iteration.quality == "correct"


def test_more_questions_than_problems_are_refused_for_the_stage_that_asks_them(recipe_at):
    recipe = recipe_at("[expert_iteration]\nquestions = 300\n[data]\nnum_train_problems = 200")
    check_stage_settings(recipe, ["grpo"])
    with pytest.raises(RecipeError, match=r"expert_iteration\.questions = 300 .* data\.num_train_problems = 200"):
        check_stage_settings(recipe, ["expert_iteration"])


def test_a_budget_holds_where_both_stages_that_it_compares_run_and_nowhere_else(recipe_at):
    recipe = recipe_at("[study]\ngenerated_tokens = 1000")
    assert token_budget(recipe, ["baseline", "expert_iteration", "grpo"]) == 1000
    for stages in (["grpo"], ["expert_iteration"], ["baseline", "sft", "grpo"], []):
        assert token_budget(recipe, stages) == 0


@pytest.mark.parametrize(("key", "value"), [("schedule", "'cosine'"), ("schedule", "'linear'"), ("warmup_fraction", "0.1")])
def test_a_schedule_over_all_steps_is_refused_beside_a_budget_that_ends_them_before(recipe_at, key, value):
    recipe = recipe_at(f"[learner]\n{key} = {value}\n[study]\ngenerated_tokens = 1000")
    check_stage_settings(recipe, ["grpo"])  # where the budget is not in force
    with pytest.raises(RecipeError, match=rf"study\.generated_tokens = 1000 .*learner\.{key} = .*learner\.schedule = \"constant\""):
        check_stage_settings(recipe, ["expert_iteration", "grpo"])
    check_stage_settings(recipe_at("[learner]\nwarmup_steps = 3\n[study]\ngenerated_tokens = 1000"), ["expert_iteration", "grpo"])
    check_stage_settings(recipe_at(f"[learner]\n{key} = {value}"), ["expert_iteration", "grpo"])


def test_a_warm_up_as_long_as_a_full_rounds_sft_is_refused(recipe_at):
    # 2,000 responses in batches of 16 are 125 steps
    recipe = recipe_at("[learner]\nwarmup_steps = 125")
    assert num_round_steps(recipe.expert_iteration, 2000) == 125
    with pytest.raises(RecipeError, match=r"learner\.warmup_steps = 125 .* expert_iteration stage .*capacity.* = 125 optimizer steps"):
        check_stage_settings(recipe, ["expert_iteration"])


def test_the_recipe_of_three_seeds_is_the_default_one_but_for_its_seeds():
    folder = Path(__file__).parent.parent.parent / "jobs" / "recipes"
    one, three = (load_recipe(folder / f"{name}.toml", ["run.root=/runs"]) for name in ("arithmetic_cpu", "arithmetic_cpu_seeds"))
    assert three.study.seeds == [0, 1, 2]
    assert three.study.model_copy(update={"seeds": []}) == one.study
    for section in type(one).model_fields:
        if section not in ("study", "run"):
            assert getattr(three, section) == getattr(one, section), section
