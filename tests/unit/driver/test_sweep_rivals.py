"""What a sweep says at its end: stages and settings over the seeds that both have, and expert iteration beside GRPO at equal cost only."""

from mathrl_ray.core.seed_figures import over_seeds
from mathrl_ray.driver.sweep_table import _seeds, sentences


def block(name, accuracies, tokens):
    runs = [
        {"seed": seed, "accuracy": accuracy, "ci95": [accuracy - 0.01, accuracy + 0.01], "generated_tokens": tokens}
        for seed, accuracy in accuracies.items()
    ]
    return over_seeds(name, runs)


def setting(name, **stages):
    return {"setting": name, "seeds": [0, 1, 2], "stages": [block(stage, accuracies, 1000) for stage, accuracies in stages.items()]}


def test_settings_are_compared_in_the_jobs_last_stage_and_who_has_none_is_named():
    low, high = setting("low", sft={0: 0.3}, grpo={0: 0.6}), setting("high", sft={0: 0.3}, grpo={0: 0.8})
    ended = setting("ended", sft={0: 0.9})
    assert sentences([ended, low, high, setting("none")]) == [
        "grpo: high is above low by 20.0 points; their intervals do not overlap",
        "grpo: ended, none not compared, having no result of it",
    ]
    assert sentences([setting("a"), setting("b")]) == []


def test_stages_are_compared_over_the_seeds_that_both_have():
    # over all seeds sft has .5 and would be above; seed 2, which is why, has no grpo
    both = setting("recipe", sft={0: 0.30, 1: 0.30, 2: 0.90}, grpo={0: 0.45, 1: 0.46})
    assert sentences([both]) == [
        "grpo is above sft by 15.5 points; their intervals do not overlap (over the seeds that both have: 0, 1)",
    ]
    assert "missing: 2" in _seeds(both["stages"][1], both["seeds"])
    lone = setting("recipe", sft={0: 0.3}, grpo={1: 0.4})
    assert sentences([lone]) == ["sft and grpo have no seed in common, and are not compared"]


def said(one, other):
    return sentences([{"setting": "recipe", "stages": [block("expert_iteration", *one), block("grpo", *other)]}])[-1]


def test_equal_costs_are_compared_seed_by_seed():
    # differences 0.02, 0.04, 0.03: mean 0.03, s = 0.01, t(2) = 4.3027: 4.3027 * 0.01 / sqrt(3) = 0.0248
    text = said(({0: 0.92, 1: 0.94, 2: 0.93}, 100_000), ({0: 0.90, 1: 0.90, 2: 0.90}, 98_000))
    assert text == (
        "at equal generated tokens, 100,000 (expert_iteration) and 98,000 (grpo) a run: expert_iteration less grpo is +2.0, +4.0, +3.0, "
        "mean +3.0 points (95 % over seeds: +0.5 to +5.5)"
    )


def test_only_seeds_that_both_finished_are_paired():
    assert "is +2.0" in said(({0: 0.92, 1: 0.99}, 100_000), ({0: 0.90, 2: 0.10}, 100_000))


def test_costs_are_those_of_the_seeds_that_are_paired():
    rounds = over_seeds("expert_iteration", [dict(block("expert_iteration", {seed: 0.9}, tokens)["per_seed"][0])
                                             for seed, tokens in ((0, 100_000), (1, 10_000))])  # fmt: skip
    text = sentences([{"setting": "recipe", "stages": [rounds, block("grpo", {0: 0.8}, 100_000)]}])[-1]
    assert text.startswith("at equal generated tokens, 100,000 (expert_iteration) and 100,000 (grpo) a run: ")


def test_unequal_costs_are_not_compared_and_it_says_what_to_set():
    text = said(({0: 0.92}, 50_000), ({0: 0.90}, 100_000))
    assert "which is not the same" in text
    assert "study.generated_tokens" in text
