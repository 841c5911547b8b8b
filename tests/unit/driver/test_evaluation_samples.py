"""Several responses a problem, several prompts, and what the figures rest on: the rows that are saved."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import fmean

import pyarrow.parquet as pq
import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from samples import make_run, recipe_for

from mathrl_ray.actors.gold_judge import GoldJudge
from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.commands.answer_keys import would_be_right
from mathrl_ray.commands.evaluation_files import read_evaluation
from mathrl_ray.core.failure_analysis import analyse_failures
from mathrl_ray.core.intervals import accuracy_estimate
from mathrl_ray.core.paired_evaluations import Evaluation, compare_evaluations
from mathrl_ray.core.prompts import own_prompt
from mathrl_ray.core.sampling import request_seed
from mathrl_ray.core.statistics import wilson_interval
from mathrl_ray.driver.evaluation import evaluate, validate, validate_beside
from mathrl_ray.driver.evaluation_figures import figures_of, flat_metrics
from mathrl_ray.types import OWN_DISTRIBUTION, ResponseStatistics


class TokensEntropy(FakeLearner):
    """A response's entropy is the id of its token."""

    async def response_statistics(self, sequences, sampling):
        await super().response_statistics(sequences, sampling)
        self.diary.note("learner-0", "statistics_of", sampling)
        return [ResponseStatistics((-0.5,), float(sequence.response_ids[0])) for sequence in sequences]


class NoTags(FakeScorer):
    """No response keeps the format; right is what equals the gold, were the format waived."""

    async def score(self, requests):
        grades = await super().score(requests)
        return [
            replace(each, format_reward=0.0, reward=0.0, outcome="no_answer", lenient_answer_correct=each.reward == 1) for each in grades
        ]


@pytest.fixture
def diary():
    return Diary()


@pytest.fixture
def run_with(tmp_path, diary):
    def make(scorer=FakeScorer, **evaluation):
        actors = Actors(TokensEntropy(diary), (FakeGenerator(diary),), (scorer(diary),), (0,))
        return make_run(recipe_for(tmp_path, eval={"num_problems": 40, **evaluation}), actors)

    return make


def evaluated(run, stage="sft", step=3):
    figures = asyncio.run(evaluate(run, stage, step=step))
    return figures, rows_of(run, f"{stage}-v{run.policy_version}")


def rows_of(run, name):
    return pq.read_table(run.recorder.folder / "evaluations" / f"{name}.parquet").to_pylist()


def metrics_of(run):
    return [json.loads(line) for line in (run.recorder.folder / "metrics.jsonl").read_text().splitlines()]


# Several responses a problem


def test_each_sample_has_a_row_and_a_seed_of_its_own(run_with):
    run = run_with(num_samples=3)
    _, rows = evaluated(run)
    pairs = [(problem.problem_id, sample) for problem in run.test_problems for sample in range(3)]
    assert [(row["problem_id"], row["sample"]) for row in rows] == pairs
    assert [row["seed"] for row in rows] == [request_seed(0, problem_id, -1, sample) for problem_id, sample in pairs]


def test_the_first_of_several_samples_is_the_one_that_a_single_sample_gives(run_with):
    _, single = evaluated(run_with())
    _, several = evaluated(run_with(num_samples=4))
    first = [row for row in several if row["sample"] == 0]
    assert [{**row, "grading_s": 0} for row in first] == [{**row, "grading_s": 0} for row in single]


def test_one_sample_keeps_wilsons_interval_to_the_bit(run_with):
    figures, rows = evaluated(run_with())
    graded = [row for row in rows if row["outcome"] != "grader_error"]
    num_right = sum(row["outcome"] == "correct" for row in graded)
    assert (figures["accuracy"], figures["ci95"]) == (num_right / len(graded), list(wilson_interval(num_right, len(graded))))
    assert figures["num_ungraded"] == len(rows) - len(graded) > 0
    assert figures["num_samples"] == 1
    assert "pass_at_1" not in metrics_of_last(rows)


def metrics_of_last(rows):
    return flat_metrics(figures_of(rows, seed=0))


def test_the_accuracy_of_several_samples_is_a_mean_over_problems_of_what_could_be_graded(run_with):
    run = run_with(num_samples=4)
    figures, rows = evaluated(run)
    graded = []
    for problem in run.test_problems:
        outcomes = [row["outcome"] for row in rows if row["problem_id"] == problem.problem_id and row["outcome"] != "grader_error"]
        if outcomes:
            graded.append([outcome == "correct" for outcome in outcomes])
    assert figures["accuracy"] == pytest.approx(fmean(map(fmean, graded)))
    expected = accuracy_estimate(graded, seed=0)
    assert (expected.method, figures["ci95"]) == ("cluster_bootstrap", [expected.low, expected.high])
    assert (figures["num_problems"], figures["num_graded_problems"], figures["num_samples"]) == (40, len(graded), 4)
    assert [each["k"] for each in figures["at_k"]] == [1, 4]
    logged = metrics_of(run)[0]
    assert logged["pass_at_4"] == figures["at_k"][1]["pass_at_k"] >= logged["pass_at_1"]


def test_entropies_belong_to_their_responses_and_no_call_of_the_learner_is_larger_than_with_one_sample(run_with, diary):
    run = run_with(num_samples=3)
    _, rows = evaluated(run)
    assert all(row["mean_token_entropy_nats"] == float(row["response"]) for row in rows)
    assert [size for _, _, size in diary.of("response_statistics")] == [40, 40, 40]


def test_entropies_are_of_the_models_own_distribution_whatever_is_sampled_at(run_with, diary):
    evaluated(run_with(temperature=0.5, top_p=0.9))
    assert [sampling for _, _, sampling in diary.of("statistics_of")] == [OWN_DISTRIBUTION]


def test_a_validation_takes_one_sample(run_with):
    run = run_with(num_samples=4)
    figures = asyncio.run(validate(run, "grpo", step=2))
    assert [row["sample"] for row in rows_of(run, "validation-grpo-step2-v0")] == [0] * 8
    assert (figures["num_samples"], figures["num_problems"]) == (1, 8)


def test_the_time_limit_counts_all_responses(run_with):
    run, told = run_with(num_samples=4), []
    original = run.time_limit.evaluating
    run.time_limit.evaluating = lambda number: told.append(number) or original(number)
    evaluated(run)
    asyncio.run(validate(run, "sft", step=3))
    assert told == [160, 8]


def test_the_tokens_of_an_evaluation_are_no_stages_budget(run_with):
    run = run_with(num_samples=4)
    evaluated(run)
    assert (run.ledger.counts.generated_tokens, run.ledger.counts.graded) == (0, 160)


# Behaviours 34 and 35


def test_behaviour_34_figures_recomputed_from_the_saved_rows_equal_the_logged_ones(run_with):
    run = run_with(num_samples=2, prompts=["r1_zero", "question_only"])
    figures, rows = evaluated(run, "grpo", step=7)
    recomputed = figures_of(rows, seed=0)
    assert {key: figures[key] for key in recomputed} == recomputed
    main, other = metrics_of(run)
    assert {key: main[key] for key in flat_metrics(recomputed)} == flat_metrics(recomputed)
    others = flat_metrics(figures_of(rows_of(run, "grpo-question_only-v0"), seed=0))
    assert {key: other[f"{key}_question_only"] for key in others} == others
    assert {(row["stage"], row["step"]) for row in (main, other)} == {("grpo", 7)}


def test_behaviour_34_evaluation_and_training_at_one_step_have_rows_of_their_own(run_with):
    run = run_with()
    run.recorder.metrics("sft", 3, 0, {"loss": 0.5})
    asyncio.run(validate(run, "sft", step=3))
    evaluated(run)
    rows = metrics_of(run)
    assert [row["step"] for row in rows] == [3, 3, 3]
    assert [next(name for name in ("loss", "validation_accuracy", "accuracy") if name in row) for row in rows] == [
        "loss",
        "validation_accuracy",
        "accuracy",
    ]


def test_behaviour_35_an_evaluation_within_training_and_one_alone_agree_item_by_item(run_with):
    """The fakes' responses depend on seed and version only, as the engines' do at one policy_version: no request may differ."""
    within = run_with(num_samples=2)
    asyncio.run(validate(within, "grpo", step=1))  # what goes before must not matter
    _, first = evaluated(within, "grpo", step=1)
    _, alone = evaluated(run_with(num_samples=2), "baseline", step=0)
    assert [{**row, "grading_s": 0} for row in first] == [{**row, "grading_s": 0} for row in alone]


def test_behaviour_35_a_validation_beside_training_agrees_with_one_alone_but_for_the_entropies(run_with):
    run = run_with()
    asyncio.run(validate(run, "grpo", step=1))
    asyncio.run(validate_beside(run, "grpo", 2, None, AsyncExitStack()))
    alone, beside = (rows_of(run, f"validation-grpo-step{step}-v0") for step in (1, 2))
    left_out = {"grading_s": 0, "mean_token_entropy_nats": None}
    assert [{**row, **left_out} for row in beside] == [{**row, **left_out} for row in alone]


# Several prompts


def test_prompts_are_compared_with_the_first_problem_by_problem_and_shown_with_their_settings(run_with, capsys):
    run = run_with(num_samples=2, prompts=["r1_zero", "question_only", "/a/mine.txt"], temperature=0.5)
    run.prompts = {**run.prompts, "/a/mine.txt": own_prompt("mine", "Q: {question}")}
    figures, rows = evaluated(run, "baseline", step=0)
    first, *others = figures["prompts"]
    assert (first["name"], first["accuracy"], first["ci95"], first["difference"]) == ("r1_zero", figures["accuracy"], figures["ci95"], None)
    assert [each["name"] for each in others] == ["question_only", "mine"]
    expected = compare_evaluations(Evaluation("a", rows), Evaluation("b", rows_of(run, "baseline-question_only-v0")), seed=0)
    difference = others[0]["difference"]
    assert (difference["value"], difference["ci95"]) == (expected.difference, [expected.low, expected.high])
    assert (difference["test"], difference["p_value"]) == (expected.test, expected.p_value)
    assert difference["p_value_holm"] >= difference["p_value"]
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "Prompts r1_zero, question_only, /a/mine.txt; temperature 0.5, top-p 1, at most 64 tokens, 2 answers a problem, grader default"
        in said
    )
    assert "adjusted for 2 tests at once" in said
    json.dumps(figures)


def test_one_prompt_has_nothing_beside_it(run_with):
    figures, _ = evaluated(run_with())
    assert "prompts" not in figures


# Format and failures


def test_behaviour_10_an_evaluation_without_a_single_kept_format_says_so_with_a_response_and_the_key(run_with, capsys):
    _, rows = evaluated(run_with(NoTags), "baseline", step=0)
    said = " ".join(capsys.readouterr().out.split())
    assert "none of 40 responses passed the format check of the prompt r1_zero" in said
    assert repr(rows[0]["response"]) in said
    assert "eval.prompts" in said


def test_the_rows_tell_what_would_be_right_without_the_format_so_that_no_grader_is_asked_again(run_with):
    run = run_with(NoTags)
    _, rows = evaluated(run, "baseline", step=0)
    gold = {problem.problem_id: problem.gold for problem in run.test_problems}
    would_be = [row["response"] == gold[row["problem_id"]] != "9" for row in rows]  # the fake scorer cannot grade a 9
    assert [row["lenient_answer_correct"] for row in rows] == would_be
    with GoldJudge(1, 5.0) as judge:
        judge.judge = lambda pairs, advance: pytest.fail("asked") if pairs else None
        waived = would_be_right(rows, judge)
    kinds = {kind.name: kind.num_samples for kind in analyse_failures(rows, waived).kinds}
    assert kinds == {"solved": 0, "mathematics": 0, "format": sum(would_be), "both": 40 - sum(would_be)}
    assert sum(would_be) > 0


def test_a_file_from_before_the_column_still_opens(run_with, tmp_path):
    evaluated(run_with())
    run_folder = tmp_path / "test"
    path = run_folder / "evaluations" / "sft-v0.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["lenient_answer_correct", "graders"]), path)
    assert len(read_evaluation(path).rows) == 40
