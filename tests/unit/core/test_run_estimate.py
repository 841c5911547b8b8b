import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.memory_estimate import ModelShape
from mathrl_ray.core.run_estimate import Speeds, StageEstimate, StepForecast, sampled_tokens_per_s, speeds, trained_tokens_per_s

QWEN_MATH = ModelShape(151936, 1536, 8960, num_layers=28, num_heads=12, num_kv_heads=2, head_size=128, tied=True, attention_bias=True)


@pytest.mark.parametrize(
    ("bandwidth", "batch", "expected"),
    [(3.35e12, 64, 43_000), (3.35e12, 256, 81_000), (4.8e12, 64, 62_000), (4.8e12, 256, 116_000)],
)
def test_decoding_at_a_cards_full_bandwidth_is_the_known_limit(bandwidth, batch, expected):
    # H100, 64 at 1,024 tokens: 3.09 GB of weights + 64 x 1,024 x 28,672 B = 4.97 GB a step, 1.48 ms: 43.2k tokens/s
    found = sampled_tokens_per_s(QWEN_MATH, "bfloat16", Speeds(flops=1e15, bandwidth=bandwidth), batch=batch, context=1024)
    assert found == pytest.approx(expected, rel=0.02)


def test_training_at_40_per_cent_of_an_h100_is_the_known_limit():
    # 9.53 GFLOP a token at 1,024 tokens: 0.4 x 989e12 / 9.53e9 = 41.5k tokens/s
    device = speeds("NVIDIA H100 80GB HBM3", "bfloat16")
    assert trained_tokens_per_s(QWEN_MATH, device, mean_length=1024) == pytest.approx(41_500, rel=0.01)
    assert trained_tokens_per_s(QWEN_MATH, device, mean_length=1024, recomputes=True) == pytest.approx(41_500 * 3 / 4, rel=0.01)
    assert trained_tokens_per_s(QWEN_MATH, device, mean_length=1024, num_ranks=2) == pytest.approx(83_000, rel=0.01)


def test_a_cpu_is_as_fast_as_its_threads_and_an_unknown_card_has_some_speed():
    assert speeds("", "float32", 2).flops == 2 * speeds("", "float32", 1).flops
    assert speeds("Somebody's card", "bfloat16").bandwidth > 0


def test_a_stage_takes_its_steps_and_its_evaluations():
    stage = StageEstimate("grpo", num_steps=10, step_s=2.0, step_tokens=100, evaluation_tokens=7, evaluation_s=5.0)
    assert (stage.total_s, stage.generated_tokens) == (25.0, 1007)
    forecast = stage.forecast(price_per_hour=3.0)
    assert (forecast.total_s, forecast.generated_tokens, forecast.cost) == (20.0, 1000, pytest.approx(20 / 1200))


def test_a_forecast_stays_as_estimated_for_two_steps_and_is_what_was_measured_from_the_third_on():
    forecast = StepForecast(num_steps=10, estimated_step_s=5.0, estimated_step_tokens=1000, price_per_hour=36.0)
    assert (forecast.total_s, forecast.generated_tokens, forecast.cost) == (50.0, 10_000, pytest.approx(0.5))
    forecast.measured(9.0, 300)
    forecast.measured(2.0, 200)
    assert (forecast.step_s, forecast.is_corrected, forecast.correction()) == (5.0, False, "")
    forecast.measured(2.0, 100)
    # median 2 s; 13 s are over and 7 steps of 2 s left; 200 tokens a step
    assert (forecast.step_s, forecast.total_s, forecast.generated_tokens) == (2.0, 13 + 14, 2000)
    assert forecast.cost == pytest.approx(27 / 3600 * 36)
    expected = "3 steps measured: 2 s a step (estimated 5 s), 14 s to go; all 10: 27 s, cost 0.27, 2,000 generated tokens"
    assert forecast.correction() == expected
    forecast.measured(2.0, 100)
    assert forecast.correction() == ""  # said once


def test_a_resumed_stage_has_only_its_last_steps_to_go():
    forecast = StepForecast(num_steps=50, estimated_step_s=5.0)
    for step in (45, 46, 47):
        forecast.measured(4.0, 100, num_left=50 - step)
    # 3 of 4 s are over, 3 are left
    assert (forecast.left_s, forecast.total_s, forecast.generated_tokens) == (12.0, 24.0, 600)


@given(st.lists(st.floats(0.01, 100), min_size=3, max_size=20), st.integers(0, 30))
def test_what_is_left_is_never_negative_and_ends_at_nothing(seconds, more):
    forecast = StepForecast(num_steps=len(seconds) + more, estimated_step_s=1.0)
    for step_s in seconds:
        forecast.measured(step_s)
    assert forecast.left_s == pytest.approx(forecast.step_s * more)
    assert forecast.cost is None
