import asyncio
import tomllib
from typing import get_args

import pytest
from samples import recipe_for

from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.methods import Method
from mathrl_ray.recipe_checks import check_stage_settings, num_sft_steps
from mathrl_ray.recipe_file import check_local_paths, known_keys, load_recipe
from mathrl_ray.sections import GrpoSection, LearnerSection, LossSection, SftSection


@pytest.fixture
def recipe_at(tmp_path):
    def write(text: str = "", *overrides: str, name: str = "mine.toml") -> Recipe:
        (tmp_path / name).write_text(text)
        return load_recipe(tmp_path / name, overrides)

    return write


def test_an_empty_recipe_is_the_embedded_default(recipe_at):
    recipe = recipe_at()
    assert recipe.model.path == "builtin:arithmetic"
    assert recipe.run.name == "mine"


def test_an_override_wins_over_the_file(recipe_at):
    recipe = recipe_at("[grpo]\nnum_steps = 7", "grpo.num_steps=9", "model.dtype=bfloat16", "learner.betas=[0.8, 0.9]")
    assert (recipe.grpo.num_steps, recipe.model.dtype, recipe.learner.betas) == (9, "bfloat16", (0.8, 0.9))


def test_behaviour_30_an_unknown_key_names_the_nearest(recipe_at):
    with pytest.raises(RecipeError, match=r"unknown key grpo\.grup_size: the nearest is grpo\.group_size"):
        recipe_at("[grpo]\ngrup_size = 8")


def test_an_unknown_section_names_the_nearest(recipe_at):
    with pytest.raises(RecipeError, match="unknown key generater: the nearest is generator"):
        recipe_at("[generater]\nmax_tokens = 8")


def test_every_fault_of_a_recipe_is_told_at_once(recipe_at):
    with pytest.raises(RecipeError) as caught:
        recipe_at("[grpo]\ngroup_size = 1\n[learner]\nlearning_rate = 0")
    assert "grpo.group_size = 1" in str(caught.value)
    assert "learner.learning_rate = 0" in str(caught.value)


@pytest.mark.parametrize("override", ["grpo.num_steps", "num_steps=3", ".=3", "grpo=3"])
def test_an_override_that_is_none_shows_the_form(recipe_at, override):
    with pytest.raises(RecipeError, match=r"section\.key=value"):
        recipe_at("", override)


def test_a_file_that_is_no_toml_says_where(recipe_at):
    with pytest.raises(RecipeError, match=r"is not TOML.*line 2"):
        recipe_at("[grpo]\nnum_steps 3")


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"absent\.toml: no such file"):
        load_recipe(tmp_path / "absent.toml")


def test_a_stage_without_a_rate_of_its_own_takes_the_learners(recipe_at):
    recipe = recipe_at("[learner]\nlearning_rate = 1e-5\n[sft]\nlearning_rate = 2e-5")
    assert (recipe.sft.learning_rate, recipe.grpo.learning_rate) == (2e-5, 1e-5)


def test_behaviour_13_a_cut_distribution_is_refused_in_training(recipe_at):
    with pytest.raises(RecipeError, match=r"generator\.top_p = 0\.9"):
        recipe_at("[generator]\ntop_p = 0.9")


def test_minibatches_that_do_not_divide_get_a_number_that_does(recipe_at):
    # 6 x 4 = 24 responses; the divisors nearest to 5 are 4 and 6, the lower is named
    with pytest.raises(RecipeError, match=r"grpo\.minibatches = 5 does not divide .* 6 x 4 = 24 responses: 4 would work"):
        recipe_at("[grpo]\nprompts_per_step = 6\ngroup_size = 4\nminibatches = 5")


def test_a_warm_up_as_long_as_the_run_is_refused_for_the_stages_that_run(recipe_at):
    recipe = recipe_at("[learner]\nwarmup_steps = 500\n[grpo]\nnum_steps = 200")
    check_stage_settings(recipe, ["baseline"])
    with pytest.raises(RecipeError, match=r"learner\.warmup_steps = 500 .* 200 optimizer steps.*to 20 or"):
        check_stage_settings(recipe, ["grpo"])


def test_the_last_batch_of_an_epoch_counts_as_a_step(recipe_at):
    # 10 examples in batches of 4 are 3 steps, twice
    recipe = recipe_at("[sft]\nbatch_size = 4\nepochs = 2")
    assert num_sft_steps(recipe.sft, 10) == 6


def test_max_tokens_must_leave_room_for_a_prompt(recipe_at):
    with pytest.raises(RecipeError, match=r"generator\.max_tokens = 512 leaves no room"):
        recipe_at("[generator]\nmax_tokens = 512")


def test_relative_paths_mean_the_recipes_folder(recipe_at, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    (tmp_path / "problems.jsonl").write_text("{}")
    recipe = recipe_at('[data]\ntrain = "problems.jsonl"\n[run]\nroot = "runs"')
    assert recipe.data.train == str(tmp_path / "problems.jsonl")
    assert recipe.run.root == str(tmp_path / "runs")


def test_the_run_root_comes_from_the_environment(recipe_at, monkeypatch):
    monkeypatch.setenv("MATHRL_RUNS", "/somewhere/runs")
    assert recipe_at().run.root == "/somewhere/runs"


def test_a_hub_name_stays_one_and_is_reported_as_not_checked(recipe_at):
    recipe = recipe_at('[model]\npath = "Qwen/Qwen2.5-Math-1.5B"')
    assert recipe.model.path == "Qwen/Qwen2.5-Math-1.5B"
    assert check_local_paths(recipe, ["grpo"]) == ["model.path = Qwen/Qwen2.5-Math-1.5B: a hub name, not checked"]


def test_a_model_folder_without_tokenizer_is_refused(recipe_at, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"holds no \.safetensors files"):
        check_local_paths(recipe_at('[model]\npath = "./model"'), ["grpo"])
    (tmp_path / "model" / "model.safetensors").touch()
    with pytest.raises(RecipeError, match="holds no tokenizer"):
        check_local_paths(recipe_at('[model]\npath = "./model"'), ["grpo"])


def test_a_missing_data_file_is_named_with_its_key(recipe_at):
    with pytest.raises(RecipeError, match=r"data\.test = .*absent\.jsonl: no such file"):
        check_local_paths(recipe_at('[data]\ntest = "absent.jsonl"'), ["baseline"])


@pytest.mark.parametrize("section", ["loss", "advantage"])
@pytest.mark.parametrize("spec", ["mine.py", "mine", "mine.py:", "mine.py:a-b"])
def test_a_function_without_its_name_is_refused_by_check_with_the_form(recipe_at, tmp_path, section, spec):
    (tmp_path / "mine.py").write_text("def right(batch): ...")
    recipe = recipe_at("", f"{section}.function={spec}")
    with pytest.raises(RecipeError, match=rf"{section}\.function = .*: give module:function or path/file\.py:function"):
        check_local_paths(recipe, ["grpo"])
    assert check_local_paths(recipe_at("", f"{section}.function=mine.py:right"), ["grpo"]) == []


def test_a_resolved_recipe_can_be_read_again(recipe_at):
    import tomli_w

    recipe = recipe_at("[grpo]\nnum_steps = 3")
    text = tomli_w.dumps(recipe.model_dump(mode="json"))
    assert recipe_at(text, name="again.toml").model_dump() == recipe.model_dump()
    assert set(tomllib.loads(text)) == set(Recipe.model_fields)


def written_out(recipe):
    import tomli_w

    return tomli_w.dumps(recipe.model_dump(mode="json"))


def test_a_run_can_be_repeated_with_another_method_but_for_what_was_chosen_or_is_overridden(recipe_at):
    text = written_out(recipe_at("[grpo]\nloss = 'dapo'\n[loss]\nclip_high = 0.5"))
    recipe = recipe_at(text, "grpo.loss=dr_grpo", "advantage.overlong_fraction=0.1")
    assert (recipe.loss.surrogate, recipe.loss.aggregation) == ("clip", "constant")
    assert recipe.loss.clip_high == 0.5  # which is not what dapo had set
    assert (recipe.advantage.divide_by_std, recipe.advantage.overlong_fraction) == (False, 0.1)
    # what is overridden counts as named, even where it is what the old method had set
    assert recipe_at(text, "grpo.loss=dr_grpo", "loss.aggregation=token").loss.aggregation == "token"


def test_a_run_can_be_repeated_with_another_learning_rate_but_for_the_stage_that_has_its_own(recipe_at):
    text = written_out(recipe_at("[learner]\nlearning_rate = 1e-5\n[sft]\nlearning_rate = 2e-5"))
    recipe = recipe_at(text, "learner.learning_rate=3e-5")
    assert (recipe.sft.learning_rate, recipe.grpo.learning_rate) == (2e-5, 3e-5)
    recipe = recipe_at(written_out(recipe_at()), "learner.learning_rate=3e-5", "grpo.learning_rate=4e-5")
    assert (recipe.sft.learning_rate, recipe.grpo.learning_rate) == (3e-5, 4e-5)


def test_a_stages_rate_stays_where_the_file_does_not_name_the_learners(recipe_at):
    assert recipe_at("[sft]\nlearning_rate = 5e-4", "learner.learning_rate=3e-5").sft.learning_rate == 5e-4


def test_a_run_can_be_repeated_with_another_prompt_but_for_evaluations_that_were_chosen(recipe_at):
    text = written_out(recipe_at())
    assert recipe_at(text, "data.prompt=chat").eval.prompts == ["chat"]
    assert recipe_at(text, "data.prompt=chat", 'eval.prompts=["r1_zero"]').eval.prompts == ["r1_zero"]
    text = written_out(recipe_at('[eval]\nprompts = ["r1_zero", "question_only"]'))
    assert recipe_at(text, "data.prompt=chat").eval.prompts == ["r1_zero", "question_only"]


@pytest.mark.parametrize("section", ["learner", "sft", "grpo", "data", "loss"])
def test_a_value_in_a_sections_place_is_refused_with_the_form(recipe_at, section):
    with pytest.raises(RecipeError, match=rf"{section} = 3: {section} is a section: write \[{section}\]"):
        recipe_at(f"{section} = 3")


def test_a_value_in_a_stages_place_is_refused_beside_a_learning_rate(recipe_at):
    with pytest.raises(RecipeError, match="sft = 3: sft is a section"):
        recipe_at("sft = 3\n[learner]\nlearning_rate = 1e-3", "learner.learning_rate=1e-4")


def test_known_keys_hold_the_fixed_ones():
    fixed = {
        "run.name", "run.root", "run.seed", "model.path", "model.dtype", "data.train", "data.test", "data.columns", "eval.num_problems",
        "eval.temperature", "eval.max_tokens", "eval.prompts", "generator.replicas", "generator.max_tokens", "generator.temperature",
        "learner.num_ranks", "learner.learning_rate", "learner.zero_stage", "driver.max_staleness", "grpo.num_steps", "grpo.group_size",
        "grpo.prompts_per_step", "grpo.loss", "study.stages", "eval.graders", "reward.function", "reward.answer", "reward.format",
        "reward.length",
    }  # fmt: skip
    assert fixed <= set(known_keys())


# methods, losses, advantages


def test_a_method_sets_the_keys_that_the_recipe_does_not_name(recipe_at):
    recipe = recipe_at("[grpo]\nloss = 'dapo'")
    assert (recipe.loss.surrogate, recipe.loss.aggregation, recipe.loss.clip_high) == ("clip", "token", 0.28)
    assert (recipe.advantage.divide_by_std, recipe.advantage.overlong_fraction) == (True, 0.2)


def test_a_key_that_the_recipe_names_wins_over_the_method(recipe_at):
    recipe = recipe_at("[grpo]\nloss = 'dapo'\n[loss]\nclip_high = 0.5", "advantage.divide_by_std=false")
    assert (recipe.loss.clip_high, recipe.loss.aggregation, recipe.advantage.divide_by_std) == (0.5, "token", False)
    # even where it names the default of another method
    assert recipe_at("[grpo]\nloss = 'dapo'\n[loss]\nclip_high = 0.2").loss.clip_high == 0.2


def test_a_learner_made_in_python_gives_the_stages_its_rate():
    recipe = Recipe(learner=LearnerSection(learning_rate=1e-5), sft=SftSection(learning_rate=2e-5))
    assert (recipe.sft.learning_rate, recipe.grpo.learning_rate) == (2e-5, 1e-5)


def test_sections_made_in_python_are_read_as_a_file_is():
    recipe = Recipe(grpo=GrpoSection(loss="dr_grpo"), loss=LossSection(clip_high=0.5))
    assert (recipe.loss.surrogate, recipe.loss.aggregation, recipe.loss.clip_high) == ("clip", "constant", 0.5)


@pytest.mark.parametrize("method", get_args(Method))
def test_every_method_written_out_and_read_back_is_the_same(recipe_at, method):
    import tomli_w

    recipe = recipe_at(f"[grpo]\nloss = '{method}'\n[loss]\nfunction = 'a:b'\nkwargs = {{ power = 0.5 }}\n[advantage]\nepsilon = 1e-3")
    text = tomli_w.dumps(recipe.model_dump(mode="json"))
    assert recipe_at(text).model_dump() == recipe.model_dump()
    # and changed to another method, it is what the first recipe would have been with that one
    changed = recipe_at(text, "grpo.loss=cispo")
    first = "[loss]\nfunction = 'a:b'\nkwargs = { power = 0.5 }\n[advantage]\nepsilon = 1e-3"
    assert changed.model_dump() == recipe_at(first, "grpo.loss=cispo").model_dump()


def test_an_unknown_method_lists_the_known_ones(recipe_at):
    with pytest.raises(RecipeError, match=r"grpo\.loss = 'dappo'.*'dapo'.*'gspo'"):
        recipe_at("[grpo]\nloss = 'dappo'")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss.ratio=coupled", "loss.correction=truncated"], r'loss\.correction = "truncated" with loss\.ratio = "coupled".*count twice'),
        (["loss.ratio=coupled", "grpo.loss=rloo"], r'loss\.ratio = "coupled" with loss\.surrogate = "log_prob", which has no ratio'),
        (["loss.clip_low=1", "grpo.loss=dapo"], r'loss\.clip_low = 1 with loss\.surrogate = "clip" clips nothing below'),
        (["loss.surrogate=gspo", "grpo.loss=cispo"], r'loss\.clip_low = 1 with loss\.surrogate = "gspo"'),
        (["grpo.loss=reinforce", "advantage.divide_by_std=true"], r'advantage\.baseline = "none".*advantage\.epsilon alone'),
        (["loss.kwargs={power = 1}"], r"loss\.kwargs = \{'power': 1\} without loss\.function"),
        (["advantage.kwargs={power = 1}"], r"advantage\.kwargs = \{'power': 1\} without advantage\.function"),
    ],
)
def test_settings_of_a_loss_that_cannot_go_together_are_refused(recipe_at, overrides, message):
    with pytest.raises(RecipeError, match=message):
        recipe_at("", *overrides)


@pytest.mark.parametrize(
    "override",
    [
        "loss.clip_low=0",
        "loss.clip_low=1.1",
        "loss.correction_low=1",
        "loss.correction_high=1",
        "loss.kl_coefficient=-1",
        "advantage.epsilon=0",
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_its_key(recipe_at, override):
    key, value = override.split("=")
    with pytest.raises(RecipeError, match=rf"{key} = {value}: input should be"):
        recipe_at("", override)


# rewards and graders


def test_the_default_reward_is_a5s(recipe_at):
    reward = recipe_at().reward
    assert (reward.function, reward.answer, reward.format, reward.length) == ("", 1.0, 0.0, 0.0)


def test_a_weight_is_a_number_or_points(recipe_at):
    reward = recipe_at("[reward]\nformat = [[0, 0.2], [100, 0]]", "reward.length=[[5, 1]]", "reward.answer=2").reward
    assert (reward.answer, reward.format, reward.length) == (2.0, [(0, 0.2), (100, 0.0)], [(5, 1.0)])


@pytest.mark.parametrize("weight", ["[]", "[[0, 1], [0, 2]]", "[[5, 1], [3, 2]]", "[[-1, 1]]", "[1, 2]", "[[1, 2, 3]]", "'much'", "true"])
def test_a_weight_of_another_form_shows_the_form(recipe_at, weight):
    with pytest.raises(RecipeError, match=r"reward\.format = .*give a number, or \[step, weight\] points with rising steps"):
        recipe_at(f"[reward]\nformat = {weight}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[reward]\nanswer = 0", r"reward\.answer, reward\.format and reward\.length are all 0.*Set reward\.answer = 1\.0"),
        ("[reward]\nkwargs = {a = 1}", r"reward\.kwargs = \{'a': 1\} without reward\.function"),
        ("[reward]\nfunction = 'mine.py'", r"reward\.function holds 'mine\.py': give module:function or path/file\.py:function"),
        ("[eval]\ngraders = ['default', 'mine']", r"eval\.graders holds 'mine': give module:function"),
        ("[eval]\ngraders = ['a:b']", r'eval\.graders = .* leaves out "default"'),
        ("[eval]\ngraders = ['default', 'a:b', 'a:b']", r"eval\.graders = .* names one twice"),
        ("[eval]\ngraders = []", r"eval\.graders = \[\]"),
    ],
)
def test_rewards_and_graders_that_cannot_work_are_refused(recipe_at, text, message):
    with pytest.raises(RecipeError, match=message):
        recipe_at(text)


def test_own_reward_files_mean_the_recipes_folder_and_must_be_there(recipe_at, tmp_path):
    recipe = recipe_at("[reward]\nfunction = 'mine.py:f'\n[eval]\ngraders = ['default', 'a.module:g', 'sub/other.py:h']")
    assert recipe.reward.function == f"{tmp_path}/mine.py:f"
    assert recipe.eval.graders == ["default", "a.module:g", f"{tmp_path}/sub/other.py:h"]
    with pytest.raises(RecipeError, match=r"reward\.function = .*mine\.py:f: no such file"):
        check_local_paths(recipe, ["grpo"])
    (tmp_path / "mine.py").touch()
    with pytest.raises(RecipeError, match=r"eval\.graders = .*other\.py:h: no such file"):
        check_local_paths(recipe, ["grpo"])


def test_a_recipe_with_a_schedule_written_out_and_read_back_is_the_same(recipe_at):
    import tomli_w

    recipe = recipe_at("[reward]\nformat = [[0, 0.2], [100, 0]]\nfunction = 'a:b'\nkwargs = {c = 1}")
    assert recipe_at(tomli_w.dumps(recipe.model_dump(mode="json")), name="again.toml").reward == recipe.reward


def test_a_recipe_allows_the_memory_of_a_grading_that_a_scorer_takes_and_no_less(tmp_path):
    least = recipe_for(tmp_path, scorer={"memory_gib": 0.125}).scorer.memory_gib
    asyncio.run(Scorer(memory_bytes=int(least * 2**30)).shutdown())
    with pytest.raises(ValueError, match="at least"):
        Scorer(memory_bytes=int(least * 2**30) - 1)
    with pytest.raises(ValueError, match=r"scorer\.memory_gib"):
        recipe_for(tmp_path, scorer={"memory_gib": 0.1249})
