"""What summary.json holds of an evaluation, on rows whose figures can be counted by hand."""

import json

import pytest
from evaluation_rows import RIGHT, UNGRADED, WRONG, row, samples, verdicts

from mathrl_ray.core.paired_evaluations import Evaluation
from mathrl_ray.core.paired_tests import mcnemar_exact
from mathrl_ray.core.statistics import wilson_interval
from mathrl_ray.driver.evaluation_figures import accuracy_text, compared_prompts, figures_by_grader, figures_of, flat_metrics
from mathrl_ray.driver.evaluation_warnings import evaluation_warnings


def test_levels_subjects_outcomes_and_lengths_of_one_sample_a_problem():
    rows = [
        row("a", RIGHT, level=1, subject="algebra", num_response_tokens=10),
        row("b", WRONG, level=1, subject="word", num_response_tokens=30),
        row("c", UNGRADED, level=1, subject="word", num_response_tokens=50),
        row("d", RIGHT, level=2, subject=None, num_response_tokens=20),
        row("e", WRONG, level=None, subject="word", num_response_tokens=50),
    ]
    found = figures_of(rows, seed=0)
    # right: 10 and 20 tokens; wrong and graded: 30 and 50
    assert (found["mean_right_tokens"], found["mean_wrong_tokens"], found["mean_response_tokens"]) == (15, 40, 32)
    assert found["by_level"] == [
        {"name": "1", "accuracy": 0.5, "ci95": list(wilson_interval(1, 2)), "num_problems": 2},
        {"name": "2", "accuracy": 1.0, "ci95": list(wilson_interval(1, 1)), "num_problems": 1},
    ]
    assert [(part["name"], part["accuracy"], part["num_problems"]) for part in found["by_subject"]] == [("algebra", 1, 1), ("word", 0, 2)]
    assert found["outcomes"] == {"correct": 2, "wrong": 2, "grader_error": 1}
    assert (found["accuracy"], found["num_problems"], found["num_graded_problems"], found["num_ungraded"]) == (0.5, 5, 4, 1)
    json.dumps(found)


def test_without_levels_and_subjects_there_are_no_parts():
    found = figures_of(verdicts("+-", level=None, subject=None), seed=0)
    assert (found["by_level"], found["by_subject"]) == ([], [])


def test_pass_and_maj_at_k_reach_as_far_as_the_samples_do():
    found = figures_of(samples("++--", "----"), seed=0)
    # of the first problem's C(4, 4) = 1 subset, one is right in it, and 2 right tie with 2 that are wrong alike; the second is never right
    assert found["at_k"] == [
        {"k": 1, "pass_at_k": 0.25, "maj_at_k": 0.25, "num_problems": 2},
        {"k": 4, "pass_at_k": 0.5, "maj_at_k": 0.25, "num_problems": 2},
    ]


def test_a_problem_that_no_sample_of_could_be_graded_counts_nowhere_but_in_num_problems():
    found = figures_of(samples("+-", "??", "+?"), seed=0)
    assert (found["accuracy"], found["num_ungraded"], found["num_problems"], found["num_graded_problems"]) == (0.75, 3, 3, 2)
    assert accuracy_text(found).endswith("of 2 x 2")


def test_entropy_is_a_mean_over_tokens_not_over_responses():
    rows = [row("a", num_response_tokens=10, mean_token_entropy_nats=0.5), row("b", num_response_tokens=30, mean_token_entropy_nats=0.1)]
    # (10 x 0.5 + 30 x 0.1) / 40 = 0.2; over responses it would be 0.3
    found = figures_of(rows, seed=0)
    assert found["mean_entropy_nats"] == flat_metrics(found)["entropy_nats"] == pytest.approx(0.2)
    assert figures_of([{**each, "mean_token_entropy_nats": None} for each in rows], seed=0)["mean_entropy_nats"] is None


def test_each_of_several_graders_is_read_by_its_name():
    def others(first, second):
        return [{"grader": "a:b", "reward": 0.0, "outcome": first}, {"grader": "c:d", "reward": 0.0, "outcome": second}]

    rows = [row("p", graders=others("wrong", "correct")), row("q", WRONG, graders=others("wrong", "grader_error"))]
    found = figures_by_grader(rows, ["default", "a:b", "c:d"], seed=0)
    assert {name: (each["accuracy"], each["num_ungraded"]) for name, each in found.items()} == {
        "default": (0.5, 0),
        "a:b": (0.0, 0),
        "c:d": (1.0, 1),
    }


def test_graders_of_several_samples_are_averaged_problem_by_problem():
    def other(outcome):
        return {"graders": [{"grader": "a:b", "reward": 0.0, "outcome": outcome}]}

    rows = samples("++", "--")
    rows = [{**each, **other("wrong" if each["sample"] else "correct")} for each in rows]
    found = figures_by_grader(rows, ["default", "a:b"], seed=0)
    assert (found["default"]["accuracy"], found["a:b"]["accuracy"]) == (0.5, 0.5)
    # all means are 1/2: no resample differs, so Wilson's interval of 1 of 2
    assert found["a:b"]["ci95"] == list(wilson_interval(1, 2))


def test_the_difference_of_two_prompts_is_paired():
    first, second = verdicts("+--------+"), verdicts("+++++++--+", prompt_name="chat")
    _, found = compared_prompts([Evaluation("r1_zero", first), Evaluation("chat", second)], seed=0)
    difference = found["difference"]
    assert (difference["value"], difference["num_gained"], difference["num_lost"]) == (0.6, 6, 0)
    assert difference["p_value"] == difference["p_value_holm"] == mcnemar_exact(0, 6)


def test_p_values_of_several_prompts_are_adjusted_for_their_number():
    first, second, third = verdicts("+--------+"), verdicts("+++++++--+", prompt_name="chat"), verdicts("++++++++++", prompt_name="mine")
    _, *others = compared_prompts([Evaluation(name, rows) for name, rows in (("a", first), ("b", second), ("c", third))], seed=0)
    # 6 and 8 gained, none lost: 2 / 2^6 and 2 / 2^8; the smaller one times 2, the larger one as it is
    assert [each["difference"]["p_value"] for each in others] == [2 / 2**6, 2 / 2**8]
    assert [each["difference"]["p_value_holm"] for each in others] == [2 / 2**6, 4 / 2**8]


def test_prompts_that_do_the_same_with_several_samples_have_a_difference_with_a_width():
    first, second = samples(*["++--"] * 5), samples(*["++--"] * 5, prompt_name="chat")
    low, high = compared_prompts([Evaluation("a", first), Evaluation("b", second)], seed=0)[1]["difference"]["ci95"]
    assert low < 0 < high


def test_prompts_without_a_problem_that_both_could_grade_have_no_difference():
    entries = compared_prompts([Evaluation("a", verdicts("+?")), Evaluation("b", verdicts("?-")), Evaluation("c", verdicts("-+"))], seed=0)
    assert entries[1]["difference"] is None
    assert entries[2]["difference"]["num_problems"] == 1


def test_responses_that_were_mostly_cut_off_are_warned_of_with_the_key():
    rows = [row(f"p{index}", WRONG, finish_reason="length" if index < 3 else "stop") for index in range(5)]
    (text,) = evaluation_warnings(rows)
    assert text.startswith("3 of 5 responses were cut off at eval.max_tokens = 64")
    assert evaluation_warnings(rows[1:]) == []  # two of four: not more than half


def test_a_problems_id_is_shown_as_one_short_line():
    (text,) = evaluation_warnings([row("x\x1b[2J\n" + "y" * 100_000, format_reward=0.0, outcome="no_answer")])
    assert "x[2J yyy" in text
    assert len(text) < 800


@pytest.mark.parametrize("text", ["", "+"])
def test_no_row_is_refused_and_one_is_enough(text):
    if not text:
        with pytest.raises(ValueError, match="without rows"):
            figures_of([], seed=0)
    else:
        assert figures_of(verdicts(text), seed=0)["accuracy"] == 1.0
