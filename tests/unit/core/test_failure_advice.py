"""What is advised: commands that the jobs accept, that change something, and that fit the stage and the recipe of the run."""

import shlex
from pathlib import Path
from typing import get_args

import pytest
from evaluation_rows import BROKEN, WRONG, row
from samples import recipe_for

from mathrl_ray.config import Recipe
from mathrl_ray.core.failure_advice import AnalysedRun
from mathrl_ray.core.failure_analysis import analyse_failures
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.resume import find_resumption
from mathrl_ray.entry import main as job
from mathrl_ray.recipe_file import load_recipe
from mathrl_ray.sections import StageName

RECIPE = Path(__file__).parents[3] / "jobs" / "recipes" / "arithmetic_cpu.toml"
STAGES = get_args(StageName)
CAUSES = {
    "solved": ({}, True),
    "mathematics": (WRONG, False),
    "format": (BROKEN, True),
    "both": (BROKEN, False),
    "cut off": ({**BROKEN, "outcome": "truncated"}, False),
    "hanging": ({**WRONG, "outcome": "grader_timeout"}, False),
    "empty": ({**WRONG, "outcome": "no_answer"}, False),
}


def advice(cause, run=None, **values):
    changes, waived = CAUSES[cause]
    return next(kind for kind in analyse_failures([row("a", changes, **values)], [waived], run=run).kinds if kind.num_samples).advice


def run_of(stage="baseline", stages=(), **sections):
    return AnalysedRun(stage, stages, Recipe.model_validate(sections))


def job_and_overrides(command):
    python, file, _, *overrides = shlex.split(command)
    assert python == "python"
    return Path(file).stem, overrides


# Every command


@pytest.mark.parametrize("whole_study", [False, True])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("cause", CAUSES)
def test_every_command_that_is_advised_is_accepted_by_its_job_and_does_nothing_again(cause, stage, whole_study, capsys):
    recipe, done = load_recipe(RECIPE), STAGES if whole_study else (stage,)
    told = advice(cause, AnalysedRun(stage, done, recipe, str(RECIPE)))
    name, overrides = job_and_overrides(told.command)
    assert job(name, [str(RECIPE), *overrides, "--check"]) == 0, capsys.readouterr().err
    others = [override for override in overrides if not override.startswith("study.stages")]
    assert load_recipe(RECIPE, others) != recipe or name not in done


def test_a_command_begins_a_new_run_where_the_recipe_goes_on_from_what_is_there(tmp_path):
    recorder = Recorder.create(recipe_for(tmp_path, run={"resume": "auto"}))
    recorder.summary([{"name": "baseline"}])
    recorder.close()
    file = recorder.folder / "recipe.toml"
    recipe = load_recipe(file)
    assert recipe.run.resume == "auto"
    for cause in CAUSES:
        name, overrides = job_and_overrides(advice(cause, AnalysedRun("baseline", ("baseline",), recipe, str(file))).command)
        assert find_resumption(load_recipe(file, overrides), [name]) is None


def test_a_recipes_path_is_one_word_of_the_shell():
    told = advice("mathematics", AnalysedRun(recipe_file="/runs/my run/recipe.toml"))
    assert told.command == "python jobs/grpo.py '/runs/my run/recipe.toml'"


# By kind


def test_what_was_reinforced_already_gets_more_of_it():
    assert advice("mathematics").command == "python jobs/grpo.py RECIPE.toml"
    more = "python jobs/grpo.py RECIPE.toml grpo.num_steps=80 curriculum.skip_after=2"
    assert advice("mathematics", run_of("grpo", grpo={"num_steps": 40})).command == more
    assert advice("mathematics", run_of("baseline", ("baseline", "grpo"), grpo={"num_steps": 40})).command == more
    command = advice("mathematics", run_of("expert_iteration", curriculum={"skip_after": 3})).command
    assert command == "python jobs/expert_iteration.py RECIPE.toml expert_iteration.rounds=10"
    # whole passes pass over nothing
    assert advice("mathematics", run_of("grpo", grpo={"num_epochs": 2})).command == "python jobs/grpo.py RECIPE.toml grpo.num_epochs=4"


def test_the_form_is_taught_by_what_the_stage_learns_from():
    assert advice("format").command == "python jobs/sft.py RECIPE.toml sft.keep=correct"
    assert advice("format", run_of("sft", sft={"epochs": 2})).command.endswith("sft.keep=correct sft.epochs=4")
    assert advice("format", run_of("grpo")).command.endswith("reward.format=0.2")
    paid = run_of("grpo", reward={"format": [[0, 1.0], [10, 0.3]]})
    assert advice("format", paid).command.endswith("reward.format=0.6")
    assert "grpo.num_steps" in advice("format", run_of("grpo", reward={"function": "mine:pay"})).command  # pays as it likes
    command = advice("format", run_of("expert_iteration", expert_iteration={"temperatures": [0.8, 1.2]})).command
    assert "'expert_iteration.temperatures=[0.6, 0.9]'" in command


def test_problems_of_ones_own_are_not_taught_by_built_in_sums():
    own = run_of(data={"train": "/mine/train.jsonl", "test": "/mine/test.jsonl"})
    assert advice("format", own).command == "python jobs/sft.py RECIPE.toml sft.keep=correct sft.traces=YOUR_TRACES.jsonl"
    traces = run_of(data={"train": "/mine/train.jsonl"}, sft={"traces": "/mine/traces.jsonl"})
    assert advice("format", traces).command == "python jobs/sft.py RECIPE.toml sft.keep=correct"


def test_other_prompts_are_added_to_those_that_the_run_had():
    command = advice("both", run_of(eval={"prompts": ["/mine/ask it.txt", "r1_zero"]})).command
    assert shlex.split(command)[-1] == 'eval.prompts=["/mine/ask it.txt", "r1_zero", "question_only"]'
    tried = run_of(eval={"prompts": ["chat", "question_only", "r1_zero"]})
    assert advice("both", tried).command.startswith("python jobs/sft.py")


def test_cut_off_responses_get_twice_the_tokens_and_the_length_for_them():
    told = advice("cut off", max_tokens=64)
    assert "cut off at 64 tokens" in told.cause
    assert told.command == "python jobs/baseline.py RECIPE.toml eval.max_tokens=128"
    assert "training" not in told.remedy
    # 2 x 256 + a prompt does not fit into 512: the prompt keeps its 256
    command = advice("cut off", run_of(eval={"max_tokens": 256}, model={"max_length": 512}), max_tokens=256).command
    assert command.endswith("eval.max_tokens=512 model.max_length=768")
    trained = run_of("grpo", eval={"max_tokens": 200}, model={"max_length": 512}, learner={"micro_batch_tokens": 600})
    told = advice("cut off", trained, max_tokens=200)
    assert "in evaluation and in training" in told.remedy
    assert told.command == (
        "python jobs/grpo.py RECIPE.toml eval.max_tokens=400 generator.max_tokens=400 model.max_length=712 learner.micro_batch_tokens=712"
    )


@pytest.mark.parametrize("num_cut_off", [5, 6])
def test_it_is_a_matter_of_length_only_where_more_than_half_were_cut_off(num_cut_off):
    rows = [row(f"p{index}", BROKEN, {"outcome": "truncated"} if index < num_cut_off else {}) for index in range(10)]
    told = analyse_failures(rows, [False] * 10).kinds[3].advice
    assert ("cut off" in told.cause) == (num_cut_off == 6)


def test_what_is_solved_is_passed_over_in_training():
    assert advice("solved").command == "python jobs/grpo.py RECIPE.toml curriculum.skip_after=2"
    assert advice("solved", run_of("expert_iteration")).command.startswith("python jobs/expert_iteration.py")
    assert advice("solved", run_of(curriculum={"skip_after": 4})).command == ""
    assert advice("solved", run_of(grpo={"num_epochs": 2})).command == ""


@pytest.mark.parametrize("outcome", ["no_answer", "unparseable_answer"])
def test_tags_without_an_answer_are_no_wrong_reasoning(outcome):
    told = advice("mathematics", outcome=outcome)
    assert "nothing that can be read as an answer" in told.cause
    assert told.command.startswith("python jobs/sft.py")
    # the format part pays for the tags alone
    assert advice("empty", run_of("grpo", reward={"format": 0.1})).command.endswith("reward.format=0.0")
    assert "grpo.num_steps" in advice("empty", run_of("grpo")).command


def test_answers_that_hang_the_grader_get_more_time():
    assert advice("hanging", run_of("sft", scorer={"limit_s": 2})).command == "python jobs/sft.py RECIPE.toml scorer.limit_s=8.0"
