"""Recipes: what they say about data, prompts, validation and SFT."""

import pytest

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.entry import main as job
from mathrl_ray.recipe_checks import check_stage_settings
from mathrl_ray.recipe_file import check_local_paths, load_recipe


@pytest.fixture
def recipe_at(tmp_path):
    def write(text: str = "", *overrides: str, name: str = "mine.toml") -> Recipe:
        (tmp_path / name).write_text(text)
        return load_recipe(tmp_path / name, overrides)

    return write


def test_names_for_the_datasets_library_stay_and_are_reported_as_not_checked(recipe_at):
    recipe = recipe_at(
        '[data]\ntrain = "openai/gsm8k:main@v1#train"\nvalidation = "some/set"\ntest = "gsm8k"\n[sft]\ntraces = "some/traces"'
    )
    assert (recipe.data.train, recipe.sft.traces) == ("openai/gsm8k:main@v1#train", "some/traces")
    assert check_local_paths(recipe, ["sft"]) == [
        "data.train = openai/gsm8k:main@v1#train: a hub name, not checked",
        "data.validation = some/set: a hub name, not checked",
        "data.test = gsm8k: a hub name, not checked",
        "sft.traces = some/traces: a hub name, not checked",
    ]


def test_check_reports_hub_data_and_starts_nothing(recipe_at, tmp_path, capsys):
    recipe_at()
    assert job("sft", [str(tmp_path / "mine.toml"), "--check", "data.train=openai/gsm8k:main"]) == 0
    assert "data.train = openai/gsm8k:main: a hub name, not checked" in capsys.readouterr().out


def test_local_data_means_the_recipes_folder(recipe_at, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    (tmp_path / "sums").mkdir()
    recipe = recipe_at('[data]\ntrain = "sums#train"\nvalidation = "./x.jsonl"')
    assert (recipe.data.train, recipe.data.validation) == (f"{tmp_path}/sums#train", f"{tmp_path}/x.jsonl")
    with pytest.raises(RecipeError, match=r"data\.validation = .*x\.jsonl: no such file"):
        check_local_paths(recipe, ["baseline"])


def test_traces_are_looked_at_for_the_stages_that_learn_from_them(recipe_at):
    recipe = recipe_at('[sft]\ntraces = "absent.jsonl"')
    check_local_paths(recipe, ["baseline", "grpo"])
    for stage in ("sft", "sft_filtered"):
        with pytest.raises(RecipeError, match=r"sft\.traces = .*absent\.jsonl: no such file"):
            check_local_paths(recipe, [stage])


def test_evaluations_use_the_training_prompt_unless_they_name_their_own(recipe_at):
    assert recipe_at().eval.prompts == ["r1_zero"]
    assert recipe_at('[data]\nprompt = "chat"').eval.prompts == ["chat"]
    assert recipe_at("[eval]\nnum_problems = 3", "data.prompt=question_only").eval.prompts == ["question_only"]
    assert recipe_at('[data]\nprompt = "chat"\n[eval]\nprompts = ["r1_zero", "chat"]').eval.prompts == ["r1_zero", "chat"]


def test_an_own_prompt_is_a_path_from_the_recipes_folder_and_is_opened_by_check(recipe_at, tmp_path):
    recipe = recipe_at('[data]\nprompt = "mine.txt"')
    assert recipe.data.prompt == str(tmp_path / "mine.txt")
    assert recipe.eval.prompts == [str(tmp_path / "mine.txt")]
    with pytest.raises(RecipeError, match=r"prompt.* = .*mine\.txt: neither r1_zero, question_only, chat"):
        check_local_paths(recipe, ["baseline"])
    (tmp_path / "mine.txt").write_text("{question} and {question}")
    with pytest.raises(RecipeError, match="stands 2 times"):
        check_local_paths(recipe, ["baseline"])
    (tmp_path / "mine.txt").write_text("Q: {question}")
    assert check_local_paths(recipe, ["baseline"]) == []


def test_a_resolved_recipe_with_all_of_it_can_be_read_again(recipe_at, tmp_path):
    import tomli_w

    (tmp_path / "mine.txt").write_text("Q: {question}")
    recipe = recipe_at('[data]\nprompt = "mine.txt"\ntrain = "x.jsonl"\n[sft]\nsizes = [128, "all"]\nkeep = "best"')
    again = recipe_at(tomli_w.dumps(recipe.model_dump(mode="json")), name="again.toml")
    assert again.model_dump() == recipe.model_dump()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\nnum_validation_problems = 0\n[eval]\nvalidate_every = 5", r"eval\.validate_every = 5 needs validation problems"),
        ("[data]\nnum_validation_problems = 0\n[sft]\nsizes = [128]", r"sft\.sizes = \[128\] needs validation problems"),
        ("[sft]\nsizes = [128, 8]\nbatch_size = 16", r"sft\.sizes holds 8, less than sft\.batch_size = 16"),
        ("[sft]\nsizes = [128, 1024]", r"sft\.sizes holds 1024, and sft\.num_examples = 512 .* raise the latter to 1024"),
        ('[sft]\nsizes = [128, "all", 128]', "names a size twice"),
        ('[sft]\nsizes = ["al"]', r"(?s)^(?!.*(constrained|literal|None)).*sft\.sizes = \['al'\]: a list is wanted, of numbers of traces"),
        ("[sft]\nsizes = [0]", r'sft\.sizes = \[0\]: a list is wanted, .*each at least 1\) and "all"'),
        ('[sft]\nsizes = "all"', r"sft\.sizes = 'all': a list is wanted"),
        ('[sft]\nkeep = "good"', r"sft\.keep = 'good'"),
        ("[sft]\nbest_fraction = 0", r"sft\.best_fraction = 0"),
        ('[eval]\nprompts = ["chat", "chat"]', "names one twice"),
        ("[eval]\nprompts = []", r"eval\.prompts = \[\]"),
        ('[data]\noverlap = "ignore"', r"data\.overlap = 'ignore'"),
        ('[data]\nbad_rows = "ignore"', r"data\.bad_rows = 'ignore'"),
    ],
)
def test_behaviour_30_what_cannot_work_is_refused_with_its_key(recipe_at, text, message):
    with pytest.raises(RecipeError, match=message):
        recipe_at(text)


def test_a_warm_up_is_compared_with_the_smallest_size_of_a_sweep(recipe_at):
    # 128 traces in batches of 16 are 8 steps
    recipe = recipe_at('[sft]\nsizes = [512, "all", 128]\n[learner]\nwarmup_steps = 8')
    with pytest.raises(RecipeError, match=r"smallest of sft\.sizes x sft\.epochs / sft\.batch_size = 8 optimizer steps"):
        check_stage_settings(recipe, ["sft"])
    check_stage_settings(recipe_at('[sft]\nsizes = [512, "all", 128]\n[learner]\nwarmup_steps = 7'), ["sft"])


def test_a_warm_up_is_compared_with_the_most_that_sft_filtered_can_learn_from(recipe_at):
    # 64 traces in batches of 16 are 4 steps, twice
    recipe = recipe_at("[sft]\nnum_examples = 64\nepochs = 2\n[learner]\nwarmup_steps = 8")
    with pytest.raises(RecipeError, match=r"the sft_filtered stage \(at most sft\.num_examples x .* = 8 optimizer steps"):
        check_stage_settings(recipe, ["sft_filtered"])
    check_stage_settings(recipe_at("[sft]\nnum_examples = 64\nepochs = 2\n[learner]\nwarmup_steps = 7"), ["sft_filtered"])
    # with sizes, all traces of a file are read, and how many that is --check does not know
    sizes = '[sft]\nnum_examples = 64\nsizes = [512]\ntraces = "x.jsonl"\n[learner]\nwarmup_steps = 8'
    check_stage_settings(recipe_at(sizes), ["sft_filtered"])


def test_a_misspelt_prompt_is_told_under_the_key_and_as_the_word_that_were_written(recipe_at):
    with pytest.raises(RecipeError, match=r"^data\.prompt = r1zero: neither r1_zero, question_only, chat"):
        check_local_paths(recipe_at("", "data.prompt=r1zero"), ["baseline"])
    with pytest.raises(RecipeError, match=r"^eval\.prompts = chatt: neither"):
        check_local_paths(recipe_at("", 'eval.prompts=["chatt"]'), ["baseline"])


def test_a_study_has_all_stages_unless_it_names_some(recipe_at):
    assert recipe_at('[study]\nstages = ["sft", "sft_filtered"]').study.stages == ["sft", "sft_filtered"]
    assert recipe_at().study.stages == ["baseline", "sft", "sft_filtered", "expert_iteration", "grpo"]


def test_a_batch_larger_than_the_traces_is_refused_for_both_sft_stages(recipe_at):
    recipe = recipe_at("[sft]\nnum_examples = 8")
    for stage in ("sft", "sft_filtered"):
        with pytest.raises(RecipeError, match=r"sft\.batch_size = 16 is more than sft\.num_examples = 8"):
            check_stage_settings(recipe, [stage])
