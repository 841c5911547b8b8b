import asyncio
import json

import pyarrow.parquet as pq
import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.config import RecipeError
from mathrl_ray.core.prompts import own_prompt
from mathrl_ray.core.sampling import request_seed
from mathrl_ray.driver.evaluation import evaluate, is_validation_step, validate


class KeepingGenerator(FakeGenerator):
    async def generate(self, requests):
        self.diary.note(self.name, "requests", list(requests))
        return await super().generate(requests)


class KeepingScorer(FakeScorer):
    async def score(self, requests):
        self.diary.note(self.name, "score_requests", list(requests))
        return await super().score(requests)


@pytest.fixture
def diary():
    return Diary()


@pytest.fixture
def run_with(tmp_path, diary):
    def make(**sections):
        actors = Actors(FakeLearner(diary), (KeepingGenerator(diary),), (KeepingScorer(diary),), (0,))
        return make_run(recipe_for(tmp_path, **{"eval": {"num_problems": 6}, **sections}), actors)

    return make


def rows_of(run, name):
    return pq.read_table(run.recorder.folder / "evaluations" / f"{name}.parquet").to_pylist()


def metrics_of(run):
    return [json.loads(line) for line in (run.recorder.folder / "metrics.jsonl").read_text().splitlines()]


def requests(diary):
    return [request for _, _, batch in diary.of("requests") for request in batch]


def test_every_prompt_of_the_list_is_evaluated_and_the_first_gives_the_figures(run_with, diary):
    run = run_with(eval={"num_problems": 6, "prompts": ["question_only", "r1_zero"]})
    figures = asyncio.run(evaluate(run, "sft", step=3))
    first, other = rows_of(run, "sft-v0"), rows_of(run, "sft-r1_zero-v0")
    assert {row["prompt_name"] for row in first} == {"question_only"}
    assert {row["prompt_name"] for row in other} == {"r1_zero"}
    assert [row["prompt"] for row in first] == [problem.problem for problem in run.test_problems]
    assert all(row["prompt"].endswith("Assistant: <think>") for row in other)
    graded = [row for row in first if row["outcome"] != "grader_error"]
    assert figures["accuracy"] == sum(row["outcome"] == "correct" for row in graded) / len(graded)
    main_row, other_row = metrics_of(run)
    assert main_row["accuracy"] == figures["accuracy"]
    assert {"accuracy_r1_zero", "num_problems_r1_zero"} <= set(other_row)
    assert "accuracy" not in other_row


def test_the_prompt_decides_stop_strings_and_grading(run_with, diary):
    run = run_with(eval={"num_problems": 2, "prompts": ["r1_zero", "question_only"]})
    asyncio.run(evaluate(run, "sft", step=0))
    assert [request.sampling.stop for request in requests(diary)] == [("</answer>",)] * 2 + [()] * 2
    assert [request.style for _, _, batch in diary.of("score_requests") for request in batch] == ["r1_zero"] * 2 + ["question_only"] * 2


def test_training_samples_with_the_recipes_prompt(run_with):
    run = run_with(data={"prompt": "question_only"})
    assert run.training_sampling.stop == ()
    assert bytes(run.prompt_ids(run.train_problems[0])).decode() == run.train_problems[0].problem
    run = run_with()
    assert run.training_sampling.stop == ("</answer>",)
    assert bytes(run.prompt_ids(run.train_problems[0])).decode().endswith("Assistant: <think>")


def test_an_own_prompt_goes_by_its_files_name(run_with):
    run = run_with(eval={"num_problems": 2, "prompts": ["r1_zero", "/a/folder/mine.txt"]})
    run.prompts = {**run.prompts, "/a/folder/mine.txt": own_prompt("mine", "Q: {question}")}
    asyncio.run(evaluate(run, "baseline", step=0))
    assert {row["prompt_name"] for row in rows_of(run, "baseline-mine-v0")} == {"mine"}


def test_a_validation_has_problems_and_seeds_of_its_own_and_is_logged_with_their_number(run_with, diary):
    run = run_with()
    run.weights.policy_version = 4
    figures = asyncio.run(validate(run, "grpo", step=7))
    rows = rows_of(run, "validation-grpo-step7-v4")
    assert [row["problem_id"] for row in rows] == [problem.problem_id for problem in run.validation_problems]
    assert [row["seed"] for row in rows] == [request_seed(0, problem.problem_id, -3, 0) for problem in run.validation_problems]
    (row,) = metrics_of(run)
    assert (row["stage"], row["step"], row["policy_version"]) == ("grpo", 7, 4)
    assert (row["validation_accuracy"], row["validation_num_problems"]) == (figures["accuracy"], 8)
    assert [row["validation_ci95_low"], row["validation_ci95_high"]] == figures["ci95"]
    assert not {request.problem_id for request in requests(diary)} & {problem.problem_id for problem in run.test_problems}


def test_a_validation_is_no_evaluation_of_the_stage_and_costs_it_no_tokens(run_with):
    run = run_with()
    asyncio.run(validate(run, "grpo", step=7))
    assert not list((run.recorder.folder / "evaluations").glob("grpo-v*.parquet"))
    assert run.ledger.counts.generated_tokens == 0
    assert "accuracy" not in metrics_of(run)[0]


def test_two_validations_of_the_same_weights_sample_the_same(run_with, diary):
    run = run_with()
    asyncio.run(validate(run, "grpo", step=1))
    asyncio.run(validate(run, "grpo", step=2))
    first, second = (rows_of(run, f"validation-grpo-step{step}-v0") for step in (1, 2))
    assert [row["response"] for row in first] == [row["response"] for row in second]


def test_a_run_without_validation_problems_says_which_keys_give_it_some(run_with):
    run = run_with()
    run.validation_problems = []
    with pytest.raises(RecipeError, match=r"data\.validation.*data\.num_validation_problems"):
        asyncio.run(validate(run, "grpo", step=1))


@pytest.mark.parametrize(("every", "steps"), [(0, []), (1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (7, [])])
def test_validations_come_every_so_many_steps(run_with, every, steps):
    run = run_with(eval={"num_problems": 1, "validate_every": every})
    assert [step for step in range(1, 7) if is_validation_step(run, step)] == steps
