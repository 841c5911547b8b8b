from preflight_samples import CUDA, NEEDS, gpu_recipe

from mathrl_ray.commands.forecast import Plan, forecast_table, plan_of
from mathrl_ray.stages.inputs import Inputs


def estimate(tmp_path, stage, **evaluation):
    recipe = gpu_recipe(tmp_path, eval={"max_tokens": 1024, **evaluation})
    return Plan(recipe, CUDA, NEEDS, 1000, 100, 500, 0, 0.0, "NVIDIA H100 80GB HBM3").stage(stage)


def test_an_estimate_counts_every_response_of_every_prompt_and_one_of_each_validation(tmp_path):
    assert estimate(tmp_path, "baseline").evaluation_tokens == 500 * 1024
    several = estimate(tmp_path, "baseline", num_samples=4, prompts=["r1_zero", "question_only"])
    assert several.evaluation_tokens == 500 * 4 * 2 * 1024
    # grpo's 50 steps with a validation of 100 problems every 10
    validated = estimate(tmp_path, "grpo", num_samples=4, validate_every=10)
    assert validated.evaluation_tokens == (500 * 4 + 5 * 100) * 1024


def test_more_responses_take_longer(tmp_path):
    one, four = (estimate(tmp_path, "baseline", num_samples=number).evaluation_s for number in (1, 4))
    assert 3 < four / one <= 4.01


def test_a_budget_in_force_caps_the_tokens_and_makes_the_steps_a_most(tmp_path):
    recipe = gpu_recipe(tmp_path, eval={"max_tokens": 1024}, study={"generated_tokens": 1_000_000}, driver={"max_staleness": 1})

    def estimates(*stages):
        plan = plan_of(recipe, CUDA, NEEDS, Inputs([], [], [], [], {}), stages, trace_tokens=0.0, gpu_name="NVIDIA H100 80GB HBM3")
        return [plan.stage(stage) for stage in stages]

    rounds, steps = estimates("expert_iteration", "grpo")
    # a step samples at most 256 x 1,024 tokens, and where they overlap two are begun when the budget is spent
    assert steps.generated_tokens == 1_000_000 + 2 * 256 * 1024 < steps.num_steps * steps.step_tokens
    assert rounds.generated_tokens == 1_000_000 + rounds.step_tokens < rounds.num_steps * rounds.step_tokens
    assert next(forecast_table([steps], 0.0).columns[1].cells) == "at most 50"
    (alone,) = estimates("grpo")
    assert alone.generated_tokens == 50 * 256 * 1024
    assert next(forecast_table([alone], 0.0).columns[1].cells) == "50"


def test_a_budget_that_is_larger_than_the_steps_need_changes_nothing(tmp_path):
    recipe = gpu_recipe(tmp_path, eval={"max_tokens": 1024}, study={"generated_tokens": 10**12})
    plan = plan_of(recipe, CUDA, NEEDS, Inputs([], [], [], [], {}), ["expert_iteration", "grpo"], trace_tokens=0.0, gpu_name="")
    assert plan.stage("grpo").generated_tokens == 50 * 256 * 1024
