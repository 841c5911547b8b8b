import pytest

from mathrl_ray.actors.placement import absent_model_text, plan_for
from mathrl_ray.config import RecipeError
from mathrl_ray.device import attention_implementation, choose_device, limit_gpu_memory, release_cached_memory
from mathrl_ray.recipe_file import load_recipe
from mathrl_ray.sections import GeneratorSection


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


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_one_gpu_is_shared_where_the_recipe_places_both_on_it(requested):
    device = choose_device(requested, num_gpus=1, num_engines=2, placement="shared")
    assert (device.kind, device.gpus_per_engine, device.weight_transport, device.shares_gpu) == ("cuda", 0.5, "ipc", True)
    assert device.reason == "device.placement = 'shared': learner and generator share one GPU"


def test_a_shared_gpu_that_is_not_there_is_refused_where_gpus_are_asked_for():
    with pytest.raises(RecipeError, match=r"device\.placement = 'shared' needs a GPU, the cluster has none"):
        choose_device("cuda", num_gpus=0, num_engines=2, placement="shared")
    assert choose_device("auto", num_gpus=0, num_engines=2, placement="shared").kind == "cpu"


def test_the_learner_gets_what_the_generator_leaves_of_a_shared_gpu():
    assert GeneratorSection(gpu_memory_utilization=0.3).share_left == pytest.approx(0.68)
    assert GeneratorSection(gpu_memory_utilization=0.6, sleep=True).share_left == 0.95
    assert GeneratorSection(gpu_memory_utilization=0.99).share_left == 0.02


def test_only_on_a_shared_gpu_the_learner_keeps_within_its_share_and_gives_back_what_it_does_not_use(monkeypatch):
    import torch

    calls = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", calls.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    alone, shared = choose_device("cuda", num_gpus=2, num_engines=2), choose_device("cuda", num_gpus=1, num_engines=2, placement="shared")
    for device in (alone, shared):
        limit_gpu_memory(device, 0.68)
        release_cached_memory(device)
    assert calls == [0.68, "empty"]


SHARING = {
    '[generator]\nreplicas = 2\n[device]\nplacement = "shared"': "is for one learner and one generator on one GPU",
    '[learner]\nnum_ranks = 2\n[device]\nplacement = "shared"': "is for one learner and one generator on one GPU",
    '[driver]\nweight_transport = "nccl"\n[device]\nplacement = "shared"': "refuses two ranks on one GPU",
    '[device]\nkind = "cpu"\nplacement = "shared"': "shares a GPU",
    "[generator]\nsleep = true": "has nobody to make room for",
    '[generator]\nsleep = true\n[driver]\nmax_staleness = 1\n[device]\nplacement = "shared"': "would have to sample while it sleeps",
}


@pytest.mark.parametrize("text", SHARING)
def test_settings_that_contradict_a_shared_gpu_are_refused(text, tmp_path):
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(RecipeError, match=SHARING[text]):
        load_recipe(tmp_path / "recipe.toml", [])


def test_sleep_without_a_gpu_to_share_is_refused_when_the_machines_are_known(tmp_path):
    (tmp_path / "recipe.toml").write_text('[generator]\nsleep = true\n[device]\nplacement = "shared"')
    recipe = load_recipe(tmp_path / "recipe.toml", [])
    with pytest.raises(RecipeError, match=r"generator\.sleep = true is for a GPU that learner and generator share; here the cluster has 0"):
        plan_for(recipe, num_cpus=8, num_gpus=0)
    assert plan_for(recipe, num_cpus=8, num_gpus=1).shares_gpu


@pytest.mark.parametrize(
    ("requested", "num_nodes", "transport"),
    [("auto", 1, "shared_memory"), ("auto", 2, "object_store"), ("object_store", 1, "object_store")],
)
def test_on_several_nodes_without_gpus_weights_go_by_the_object_store(requested, num_nodes, transport):
    device = choose_device("cpu", num_gpus=0, num_engines=2, weight_transport=requested, num_nodes=num_nodes)
    assert (device.weight_transport, device.writes_block) == (transport, True)


def test_between_gpus_the_object_store_is_taken_where_it_is_asked_for():
    assert choose_device("cuda", num_gpus=2, num_engines=2, weight_transport="object_store", num_nodes=2).weight_transport == "object_store"
    assert choose_device("cuda", num_gpus=2, num_engines=2, num_nodes=2).weight_transport == "nccl"


def test_a_model_that_is_not_on_a_node_names_the_engine_and_the_node():
    text = absent_model_text("/models/qwen", {"generator-0": "gpu-2 (10.0.0.7)"})
    assert text.startswith(
        "model.path = /models/qwen is not there on every node: generator-0 is on gpu-2 (10.0.0.7), which does not have it"
    )
    assert "HF_HOME to such a folder where the nodes' Ray is started and for the job itself" in text
