"""Expert iteration beside GRPO over seeds: said at equal cost only, seed by seed."""

from mathrl_ray.core.seed_figures import over_seeds
from mathrl_ray.driver.sweep_table import sentences


def block(name, accuracies, tokens):
    runs = [
        {"seed": seed, "accuracy": accuracy, "ci95": [accuracy - 0.01, accuracy + 0.01], "generated_tokens": tokens}
        for seed, accuracy in accuracies.items()
    ]
    return over_seeds(name, runs)


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


def test_unequal_costs_are_not_compared_and_it_says_what_to_set():
    text = said(({0: 0.92}, 50_000), ({0: 0.90}, 100_000))
    assert "which is not the same" in text
    assert "study.generated_tokens" in text
