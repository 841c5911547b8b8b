"""Rewards on their way from the recipe to the learner and into the rows, with a real scorer where a function is concerned."""

import asyncio
import json

import pyarrow.parquet as pq
import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.own_rewards import function_sources
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.driver.evaluation import evaluate
from mathrl_ray.driver.evaluation_figures import figures_by_grader
from mathrl_ray.driver.rollouts import rollout
from mathrl_ray.stages.grpo import run_grpo
from mathrl_ray.stages.study import run_study

TEXT = """
def last_digit(problem, response, *, step, scale=1.0):
    if response == "7":
        raise KeyError("seven")
    return {"reward": scale * int(response) / 10, "digit": int(response), "step": step, "gold_length": len(problem.gold)}

def even(response, ground_truth):
    if response == "3":
        raise ValueError("three")
    even = float(int(response) % 2 == 0)
    return {"format_reward": 1.0, "answer_reward": even, "reward": even}
"""


@pytest.fixture
def functions(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TEXT)
    return path


@pytest.fixture
def with_run(tmp_path):
    """Run a coroutine function on a run with a real scorer, and shut that down."""

    def go(use, *, scorers=None, **sections):
        sections = {"eval": {"num_problems": 20}, "grpo": {"num_steps": 2, "prompts_per_step": 6, "group_size": 4}, **sections}
        recipe, diary = recipe_for(tmp_path, **sections), Diary()

        async def inside():
            own = scorers or (Scorer(limit_s=10.0, functions=function_sources(recipe)),)
            run = make_run(recipe, Actors(FakeLearner(diary), (FakeGenerator(diary),), own, (0,)))
            try:
                return run, await use(run)
            finally:
                if not scorers:
                    await own[0].shutdown()

        return asyncio.run(inside())

    return go


def metrics_of(run):
    return [json.loads(line) for line in (run.recorder.folder / "metrics.jsonl").read_text().splitlines()]


def test_a_reward_function_pays_in_training_and_its_parts_are_logged_and_stored_one_by_one(with_run, functions):
    reward = {"function": f"{functions}:last_digit", "kwargs": {"scale": 2.0}}
    run, _ = with_run(run_grpo, reward=reward)
    num_failed = 0
    for step in (1, 2):
        rows = pq.read_table(run.recorder.folder / "trajectories" / f"grpo-{step}.parquet").to_pylist()
        paid = [row for row in rows if row["outcome"] != "grader_error"]
        assert len(rows) == 24
        # the fake generator's only token is a digit: two tenths of it are the reward
        assert all(row["reward"] == pytest.approx(row["response_ids"][0] / 5) for row in paid)
        assert all(row["reward_parts"]["digit"] == row["response_ids"][0] and row["reward_parts"]["step"] == step for row in paid)
        failed = [row for row in rows if row["outcome"] == "grader_error"]
        assert [row["response_ids"] for row in failed] == [[7]] * len(failed)
        assert all(row["reward"] == 0 and row["reward_parts"]["digit"] is None and row["drop_reason"] for row in failed)
        (metrics,) = [row for row in metrics_of(run) if row["step"] == step and "reward_digit_mean" in row]
        assert metrics["reward_digit_mean"] == pytest.approx(sum(row["response_ids"][0] for row in paid) / len(paid))
        assert metrics["reward_mean"] == pytest.approx(sum(row["reward"] for row in rows) / 24)
        assert metrics["ungraded_fraction"] == len(failed) / 24
        num_failed += len(failed)
    assert num_failed > 0


def test_the_recipes_weights_reach_the_reward_of_a_step(with_run):
    weights = {"answer": 1.0, "format": [[0, 0.5], [4, 0.0]], "length": 0.25}
    _, groups = with_run(lambda run: rollout(run, "grpo", 2, run.train_problems[:6]), scorers=(FakeScorer(Diary()),), reward=weights)
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        grade = trajectory.grade
        if grade.outcome == "grader_error":
            assert grade.reward == 0.0
        else:  # at step 2 the format weighs 0.25; one token of 64 leaves 63/64 to a right answer
            assert grade.reward == pytest.approx(grade.answer_reward * (1 + 0.25 * 63 / 64) + 0.25)


def test_an_accuracy_does_not_depend_on_the_weights(with_run, functions):
    plain, _ = with_run(lambda run: run_study(run, ["baseline"]), scorers=(FakeScorer(Diary()),))
    weights = {"answer": 0.1, "format": 3.0, "function": f"{functions}:last_digit"}
    weighed, _ = with_run(lambda run: run_study(run, ["baseline"]), scorers=(FakeScorer(Diary()),), reward=weights)
    names = ("accuracy", "ci95", "num_ungraded", "format_rate")
    assert [plain.stages[0][name] for name in names] == [weighed.stages[0][name] for name in names]


def test_one_generation_is_graded_by_every_grader_of_the_list(with_run, functions):
    even = f"{functions}:even"
    run, figures = with_run(lambda run: evaluate(run, "baseline", step=3), eval={"num_problems": 20, "graders": ["default", even]})
    rows = pq.read_table(run.recorder.folder / "evaluations" / "baseline-v0.parquet").to_pylist()
    assert len(rows) == 20  # one generation
    assert {row["grader"] for row in rows} == {"default"}
    digits = [int(row["response"]) for row in rows]
    assert [[other["grader"] for other in row["graders"]] for row in rows] == [[even]] * 20
    graded = [digit for digit in digits if digit != 3]
    assert [row["graders"][0]["outcome"] == "grader_error" for row in rows] == [digit == 3 for digit in digits]
    assert set(figures["graders"]) == {"default", even}
    assert figures["graders"][even]["accuracy"] == sum(digit % 2 == 0 for digit in graded) / len(graded)
    assert figures["graders"][even]["num_ungraded"] == 20 - len(graded)
    low, high = figures["graders"][even]["ci95"]
    assert low < figures["graders"][even]["accuracy"] < high
    # no tags, so the default pays nothing, and the stage's figures are the default's
    assert figures["accuracy"] == figures["graders"]["default"]["accuracy"] == 0.0


def test_without_further_graders_a_summary_is_as_it_was(with_run):
    _, figures = with_run(lambda run: evaluate(run, "baseline", step=0), scorers=(FakeScorer(Diary()),))
    assert "graders" not in figures


def test_each_graders_interval_is_over_what_it_could_grade():
    rows = [
        {"problem_id": "p0", "outcome": "correct", "graders": [{"grader": "a:b", "outcome": "grader_error"}]},
        {"problem_id": "p1", "outcome": "wrong", "graders": [{"grader": "a:b", "outcome": "correct"}]},
        {"problem_id": "p2", "outcome": "bad_gold", "graders": [{"grader": "a:b", "outcome": "wrong"}]},
    ]
    found = figures_by_grader(rows, ["default", "a:b"], seed=0)
    assert [(found[name]["accuracy"], found[name]["num_ungraded"]) for name in ("default", "a:b")] == [(0.5, 1), (0.5, 1)]


def test_what_goes_wrong_in_a_step_is_said_once_and_not_at_every_step(with_run, functions, capsys):
    text = "def fails(problem, response):\n    raise KeyError(response)\n"
    functions.write_text(text)
    with_run(run_grpo, reward={"function": f"{functions}:fails"}, grpo={"num_steps": 3, "prompts_per_step": 2, "group_size": 2})
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("4 of 4 responses could not be graded (grader_error 4)") == 1
    assert "warning: grpo step 1:" in said
    assert "KeyError: " in said
    assert "(mine.py, line 2)" in said
