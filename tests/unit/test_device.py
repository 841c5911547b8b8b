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


def test_weights_go_by_nccl_where_each_engine_has_a_gpu_and_the_reason_says_so():
    device = choose_device("auto", num_gpus=2, num_engines=2)
    assert (device.weight_transport, device.transport_reason) == ("nccl", "learner and generators have a GPU each")


def test_weights_go_through_shared_memory_on_the_cpu():
    device = choose_device("auto", num_gpus=0, num_engines=2)
    assert (device.weight_transport, device.transport_reason) == ("shared_memory", "the engines run on the CPU")


@pytest.mark.parametrize(("requested", "num_gpus"), [("auto", 1), ("cuda", 1), ("auto", 2)])
def test_learner_and_generator_share_one_gpu_by_ipc_where_the_recipe_says_so(requested, num_gpus):
    device = choose_device(requested, num_gpus=num_gpus, num_engines=2, weight_transport="ipc")
    assert (device.kind, device.gpus_per_engine, device.weight_transport) == ("cuda", 0.5, "ipc")
    assert device.generator_environment == {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}


def test_shared_memory_works_everywhere():
    for num_gpus in (0, 2):
        assert choose_device("auto", num_gpus=num_gpus, num_engines=2, weight_transport="shared_memory").weight_transport == "shared_memory"


@pytest.mark.parametrize(
    ("transport", "num_gpus", "num_engines", "reason"),
    [
        ("nccl", 0, 2, "a GPU for learner and generators each; here the engines run on the CPU"),
        ("nccl", 1, 2, "a GPU for learner and generators each; here the engines run on the CPU"),
        ("ipc", 0, 2, "one learner and one generator on one GPU; here the engines run on the CPU"),
        ("ipc", 3, 3, "one learner and one generator on one GPU; here learner and generators have a GPU each"),
    ],
)
def test_a_transport_that_cannot_work_is_refused_by_name(transport, num_gpus, num_engines, reason):
    with pytest.raises(RecipeError, match=rf"driver\.weight_transport = '{transport}' needs {reason}.*'auto'"):
        choose_device("auto", num_gpus=num_gpus, num_engines=num_engines, weight_transport=transport)


def test_attention_on_the_cpu_is_sdpa_with_a_reason():
    assert attention_implementation("auto", "cpu", "bfloat16") == ("sdpa", "FlashAttention-2 needs a GPU")


def test_flash_attention_in_float32_is_refused_with_the_key():
    with pytest.raises(RecipeError, match=r"learner\.attention = 'flash_attention_2'.*model\.dtype"):
        attention_implementation("flash_attention_2", "cuda", "float32")
