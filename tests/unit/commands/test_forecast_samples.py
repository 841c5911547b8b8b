from preflight_samples import CUDA, NEEDS, gpu_recipe

from mathrl_ray.commands.forecast import Plan


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
