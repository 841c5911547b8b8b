"""Sentences on comparisons, from evaluations of known verdicts."""

from evaluation_rows import samples, verdicts

from mathrl_ray.core.comparison_text import sentence
from mathrl_ray.core.paired_evaluations import Evaluation, compare_evaluations


def said(first, second, rows=verdicts):
    return sentence(compare_evaluations(Evaluation("sft", rows(*first)), Evaluation("grpo", rows(*second))))


def test_a_clear_gain_says_how_much_how_sure_and_of_how_many():
    # 10 of 20 right, then all: ten discordant pairs on one side, so p = 2 / 2**10 = 0.002; Wilson 0.30 to 0.70 against 0.84 to 1
    text = said(["+" * 10 + "-" * 10], ["+" * 20])
    assert text.startswith("grpo is above sft: +50.0 points (95 %: ")
    assert "); McNemar's exact test p = 0.002, 20 problems;" in text
    assert text.endswith("; their intervals do not overlap")


def test_a_loss_is_called_one():
    assert said(["+" * 20], ["-" * 20]).startswith("grpo is below sft: -100.0 points")
    assert "p < 0.001" in said(["+" * 20], ["-" * 20])  # 2 / 2**20


def test_what_chance_may_explain_is_not_called_a_difference():
    # two discordant pairs, both gained: p = 2 / 2**2 = 0.5
    text = said(["++--" * 5], ["++++" + "++--" * 4])
    assert text.startswith("grpo and sft cannot be told apart: +10.0 points")
    assert "McNemar's exact test p = 0.500, 20 problems;" in text
    assert text.endswith("; their intervals overlap")


def test_several_samples_a_problem_are_tested_by_sign_flips():
    assert "sign-flip test, all flips p = " in said(["+-", "--", "+-"], ["++", "+-", "++"], samples)
