"""The estimate of a stage's time, as its own steps correct it."""

import shutil
from statistics import median

from fakes import scene
from loop_scene import LoopScene

from mathrl_ray.core.run_estimate import StepForecast


async def trained(folder, **run):
    """A scene of five steps that was estimated at a quarter of an hour each, and what it said of that."""
    loop = LoopScene(folder, grpo={"num_steps": 5}, run={"checkpoint_every": 1, "keep_last": 9, **run})
    loop.run.forecasts = {"grpo": StepForecast(num_steps=5, estimated_step_s=900.0)}
    await loop.train()
    return loop, [text for text in loop.said if "steps measured" in text]


def expected(seconds, left, made, tokens):
    step_s = median(seconds)
    whole = f"all {made}: {sum(seconds) + left * step_s:.0f} s, {tokens} generated tokens"
    return f"grpo: 3 steps measured: {step_s:.3g} s a step (estimated 900 s), {left * step_s:.0f} s to go; {whole}"


@scene
async def test_three_measured_steps_correct_the_forecast_once_also_where_the_stage_goes_on_from_its_middle(tmp_path):
    loop, said = await trained(tmp_path)
    first = [row for row in loop.metrics() if row["step"] <= 3]
    a_step = sum(row["response_tokens_mean"] for row in first) / 3 * 4  # of 2 groups of 2
    assert said == [expected([row["step_s"] for row in first], left=2, made=5, tokens=round(5 * a_step))]
    loop.run.recorder.close()
    for step in range(2, 6):
        shutil.rmtree(loop.run.recorder.checkpoint_folder("grpo", step))
    loop, said = await trained(tmp_path, resume="auto")
    seconds = [row["step_s"] for row in loop.metrics() if 2 <= row["step"] <= 4]
    assert len(said) == 1
    assert said[0].startswith(expected(seconds, left=1, made=4, tokens="").partition(";")[0])


@scene
async def test_steps_that_the_budget_has_no_tokens_for_are_not_counted(tmp_path):
    loop = LoopScene(tmp_path, grpo={"num_steps": 50}, study={"generated_tokens": 20})  # a step's 2 groups of 2 take a token each
    loop.run.forecasts = {"grpo": StepForecast(num_steps=50, estimated_step_s=900.0)}
    assert await loop.train() == 5
    (text,) = [text for text in loop.said if "steps measured" in text]
    assert "; all 5: " in text
    assert ", 20 generated tokens" in text


@scene
async def test_a_stage_that_nobody_could_estimate_says_nothing(tmp_path):
    loop = LoopScene(tmp_path, grpo={"num_steps": 4})
    await loop.train()
    assert not [text for text in loop.said if "measured" in text]
