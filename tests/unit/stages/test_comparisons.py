"""What a study says of its stages, from evaluations that stand in its folder."""

import pytest
from evaluation_rows import verdicts, write_evaluation
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.stages.comparisons import compare_stages


@pytest.fixture
def run(tmp_path):
    diary = Diary()
    return make_run(recipe_for(tmp_path), Actors(FakeLearner(diary), (FakeGenerator(diary),), (FakeScorer(diary),), (0,)))


def finished(run, name, verdict, tokens=0, version=1):
    write_evaluation(run.recorder.folder, f"{name}-v{version}", verdicts(verdict))
    run.stages.append({"name": name, "policy_version": version, "generated_tokens": tokens})


def validated(run, stage, step, tokens, verdict):
    write_evaluation(run.recorder.folder, f"validation-{stage}-step{step}-v{step}", verdicts(verdict))
    numbers = {"validation_accuracy": verdict.count("+") / len(verdict), "consumed_tokens_total": tokens}
    run.recorder.metrics(stage, step, step, numbers)


def test_each_stage_is_put_beside_the_one_before(run, capsys):
    finished(run, "baseline", "-" * 20)
    finished(run, "sft", "+" * 10 + "-" * 10)
    finished(run, "sft_filtered", "+" * 10 + "-" * 10)
    found = compare_stages(run)
    assert [(each["first"], each["second"]) for each in found["neighbours"]] == [("baseline", "sft"), ("sft", "sft_filtered")]
    assert [each["difference"] for each in found["neighbours"]] == [0.5, 0.0]
    assert [(each["gained"], each["lost"]) for each in found["neighbours"]] == [(10, 0), (0, 0)]
    assert found["equal_tokens"] is None
    said = capsys.readouterr().out
    assert "sft is above baseline: +50.0 points" in said
    assert "sft_filtered and sft cannot be told apart" in said
    assert "Each compares two checkpoints, not methods: that takes several seeds (study.seeds)." in said


def test_a_single_stage_is_compared_with_nothing(run, capsys):
    finished(run, "baseline", "-+")
    assert compare_stages(run) == {}
    assert capsys.readouterr().out == ""


def test_rivals_of_equal_cost_are_compared_on_the_held_out_problems(run, capsys):
    finished(run, "expert_iteration", "+" * 20, tokens=100_000)
    finished(run, "grpo", "+" * 10 + "-" * 10, tokens=96_000)
    equal = compare_stages(run)["equal_tokens"]
    assert equal["generated_tokens"] == {"expert_iteration": 100_000, "grpo": 96_000}
    assert equal["difference"] == -0.5
    assert "at equal generated tokens, 100,000 (expert_iteration) and 96,000 (grpo), on held-out problems: grpo is below" in (
        capsys.readouterr().out
    )


def test_rivals_of_unequal_cost_are_compared_where_their_validations_cost_the_same(run):
    finished(run, "expert_iteration", "+" * 20, tokens=50_000)
    finished(run, "grpo", "+" * 20, tokens=200_000)
    validated(run, "expert_iteration", 1, 50_000, "+" * 15 + "-" * 5)
    validated(run, "grpo", 10, 49_000, "+" * 5 + "-" * 15)
    validated(run, "grpo", 40, 200_000, "+" * 20)
    equal = compare_stages(run)["equal_tokens"]
    assert equal["generated_tokens"] == {"expert_iteration": 50_000, "grpo": 49_000}
    assert equal["difference"] == -0.5  # of 20 validation problems 15 and 5
    assert "validation problems (the results above cost 50,000 tokens (expert_iteration) and 200,000 tokens (grpo))" in equal["text"]


def test_neighbours_of_unequal_cost_say_what_they_cost(run):
    finished(run, "expert_iteration", "+" * 10 + "-" * 10, tokens=50_000)
    finished(run, "grpo", "+" * 20, tokens=400_000)
    (found,) = compare_stages(run)["neighbours"]
    assert found["text"].endswith("; at unequal cost: 50,000 and 400,000 generated tokens")


def test_neighbours_of_equal_cost_and_such_as_sample_nothing_say_nothing_of_cost(run):
    finished(run, "sft", "-" * 20)
    finished(run, "expert_iteration", "+" * 10 + "-" * 10, tokens=100_000)
    finished(run, "grpo", "+" * 20, tokens=96_000)
    assert not [each["text"] for each in compare_stages(run)["neighbours"] if "cost" in each["text"]]


def test_a_stage_whose_summary_a_former_version_wrote_is_left_out_with_a_word(run, capsys):
    for name in ("baseline", "sft"):
        finished(run, name, "-" * 20)
    for summary in run.stages:
        del summary["policy_version"]
    assert compare_stages(run) == {}
    finished(run, "expert_iteration", "+-" * 10, tokens=100)
    finished(run, "grpo", "+" * 20, tokens=100)
    assert [(each["first"], each["second"]) for each in compare_stages(run)["neighbours"]] == [("expert_iteration", "grpo")]
    assert "not compared: baseline, sft, finished by a former version" in capsys.readouterr().out


def test_an_equal_pair_of_validations_is_found_where_the_last_ones_are_none(run):
    finished(run, "expert_iteration", "+" * 20, tokens=150)
    finished(run, "grpo", "+" * 20, tokens=130)
    for step, tokens in ((1, 50), (2, 100), (3, 150)):
        validated(run, "expert_iteration", step, tokens, "+" * 15 + "-" * 5)
    for step, tokens in ((1, 98), (2, 130)):
        validated(run, "grpo", step, tokens, "+" * 5 + "-" * 15)
    assert compare_stages(run)["equal_tokens"]["generated_tokens"] == {"expert_iteration": 100, "grpo": 98}


@pytest.mark.parametrize(
    ("tokens", "advice"),
    [
        ((50_000, 200_000), "raise expert_iteration.rounds, which ended before study.generated_tokens = 200,000 were sampled"),
        ((200_000, 50_000), "raise grpo.num_steps, which ended before"),
        ((400_000, 200_000), "one batch is much of study.generated_tokens = 200,000: raise that, or lower expert_iteration.questions"),
    ],
)
def test_rivals_that_a_budget_did_not_make_equal_are_told_what_did_not_let_it(run, tokens, advice):
    run.token_budget = 200_000
    for name, cost in zip(("expert_iteration", "grpo"), tokens, strict=True):
        finished(run, name, "+" * 20, tokens=cost)
    text = compare_stages(run)["equal_tokens"]["text"]
    assert advice in text
    assert "set study.generated_tokens" not in text


@pytest.mark.parametrize("tokens", [[], [150_000]])
def test_rivals_without_validations_of_equal_cost_are_not_compared_and_it_says_what_to_set(run, tokens):
    finished(run, "expert_iteration", "+" * 20, tokens=50_000)
    finished(run, "grpo", "+" * 20, tokens=200_000)
    validated(run, "expert_iteration", 1, 50_000, "+-")
    for step, cost in enumerate(tokens):
        validated(run, "grpo", step, cost, "+-")
    equal = compare_stages(run)["equal_tokens"]
    assert set(equal) == {"text"}
    assert "study.generated_tokens" in equal["text"]
    assert "eval.validate_every" in equal["text"]


def test_stages_of_other_test_problems_are_not_compared_and_their_results_stand(run, capsys):
    finished(run, "expert_iteration", "+" * 20, tokens=100)
    finished(run, "grpo", "+" * 10, tokens=100)  # the run went on with fewer test problems
    (neighbours,) = compare_stages(run)["neighbours"]
    assert neighbours["text"].startswith("grpo and expert_iteration are not compared: ")
    assert "not about the same problems" in neighbours["text"]
    assert "not compared at equal cost" in capsys.readouterr().out


def test_stages_whose_rows_are_gone_are_not_compared(run):
    finished(run, "baseline", "+-")
    finished(run, "sft", "++")
    (run.recorder.folder / "evaluations" / "baseline-v1.parquet").unlink()
    assert "are not compared: " in compare_stages(run)["neighbours"][0]["text"]
