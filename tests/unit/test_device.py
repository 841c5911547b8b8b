import pytest

from mathrl_ray.config import RecipeError
from mathrl_ray.device import attention_implementation, choose_device


def test_gpus_are_taken_when_there_is_one_for_each_engine():
    assert choose_device("auto", num_gpus=2, num_engines=2).kind == "cuda"


def test_too_few_gpus_mean_the_cpu_and_the_reason_says_so():
    device = choose_device("auto", num_gpus=1, num_engines=2)
    assert (device.kind, device.gpus_per_engine) == ("cpu", 0)
    assert "1 GPUs" in device.reason


def test_behaviour_24_gpus_that_are_asked_for_and_missing_are_refused_with_wanted_beside_available():
    with pytest.raises(RecipeError, match=r"needs 3 GPUs .* has 1"):
        choose_device("cuda", num_gpus=1, num_engines=3)


def test_the_cpu_is_used_when_asked_for_though_there_are_gpus():
    assert choose_device("cpu", num_gpus=8, num_engines=2).kind == "cpu"


def test_attention_on_the_cpu_is_sdpa_with_a_reason():
    assert attention_implementation("auto", "cpu", "bfloat16") == ("sdpa", "FlashAttention-2 needs a GPU")


def test_flash_attention_in_float32_is_refused_with_the_key():
    with pytest.raises(RecipeError, match=r"learner\.attention = 'flash_attention_2'.*model\.dtype"):
        attention_implementation("flash_attention_2", "cuda", "float32")
