from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mathrl_ray.core.memory_advice import change_that_fits
from mathrl_ray.core.memory_estimate import (
    GRADIENT_BUCKET_ELEMENTS,
    SENDING_BUFFER_BYTES,
    LearnerSettings,
    ModelShape,
    activation_bytes_per_token,
    kv_bytes_per_token,
    learner_memory,
    model_shape,
)

SMOL = ModelShape(49152, 576, 1536, num_layers=30, num_heads=9, num_kv_heads=3, head_size=64, tied=True)
QWEN_MATH = ModelShape(151936, 1536, 8960, num_layers=28, num_heads=12, num_kv_heads=2, head_size=128, tied=True, attention_bias=True)
TINY = ModelShape(vocab_size=50, hidden_size=8, intermediate_size=16, num_layers=2, num_heads=2, num_kv_heads=1, head_size=4, tied=True)
SETTINGS = LearnerSettings("float32", max_length=10, micro_batch_tokens=25, logits_chunk_tokens=5)


def test_the_parameters_of_two_published_models_are_counted_to_the_last_one():
    assert SMOL.num_parameters == 134_515_008
    assert QWEN_MATH.num_parameters == 1_543_714_304


@pytest.mark.parametrize(("make", "config"), [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)])
@pytest.mark.parametrize("tied", [True, False])
def test_the_parameters_of_a_config_are_those_of_the_model_that_transformers_makes(make, config, tied):
    settings = config(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=tied,
    )  # fmt: skip
    assert model_shape(settings.to_dict()).num_parameters == sum(parameter.numel() for parameter in make(settings).parameters())


def test_a_config_of_another_kind_has_no_shape():
    assert model_shape({"n_embd": 768, "n_layer": 12}) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_attention_heads", 0), ("num_hidden_layers", 0), ("hidden_size", -64), ("vocab_size", "many"), ("num_key_value_heads", 0),
     ("head_dim", 0), ("intermediate_size", None), ("num_attention_heads", 128)],
)  # fmt: skip
def test_a_number_that_no_model_can_have_is_refused_by_its_key(key, value):
    config = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert model_shape(config) == ModelShape(50, 64, 96, num_layers=2, num_heads=4, num_kv_heads=4, head_size=16, tied=False)
    with pytest.raises(ValueError, match=f"{key} = {value!r}"):
        model_shape({**config, key: value})


def test_a_token_of_qwen_math_takes_28_kb_of_cache():
    # 2 x 28 layers x 2 heads x 128 x 2 bytes
    assert kv_bytes_per_token(QWEN_MATH, "bfloat16") == 28_672
    assert kv_bytes_per_token(SMOL, "float32") == 2 * 30 * 3 * 64 * 4


def test_the_states_of_a_tiny_model_by_hand():
    # a layer: q, k, v 8 x (8 + 2 x 4) = 128, o 64, MLP 3 x 8 x 16 = 384, norms 16 -> 592; embedding 400, last norm 8
    assert TINY.num_parameters == 2 * 592 + 400 + 8 == 1592
    memory = learner_memory(TINY, SETTINGS)
    assert (memory.weights, memory.optimizer, memory.gradients) == (4 * 1592, 12 * 1592, 2 * 4 * 1592)
    assert memory.step == 4 * 1592 + 8 * 1592  # the flat gradient, and two temporaries of AdamW
    assert memory.step_peak == (4 + 12 + 12) * 1592 + memory.activations + memory.logits  # whose blocks a CPU's process keeps
    # 25 tokens, of shorter sequences than 10; a layer's token: norms 2 (4 x 9 + 2 x 4 x 8) = 200, attention 4 (16 + 8) + 8 = 104, MLP 256
    assert memory.activations == 25 * (2 * (200 + 104 + 256) + 3 * 4 * 16)
    assert memory.logits == 4 * 4 * 5 * 50 + 4 * 50 * 8
    assert memory.peak == max(memory.step_peak, (4 + 12 + 8) * 1592 + memory.activations + memory.logits)


def test_a_batch_that_fills_no_micro_batch_has_the_activations_of_its_rows_and_a_baseline_none():
    a_token = 2 * (200 + 104 + 256) + 3 * 4 * 16
    of_rows = {rows: learner_memory(TINY, replace(SETTINGS, num_rows=rows)) for rows in (0, 1, 2, 3)}
    assert {rows: memory.activations // a_token for rows, memory in of_rows.items()} == {0: 0, 1: 10, 2: 20, 3: 25}
    assert (of_rows[0].logits, of_rows[0].kept) == (0, 0)


def test_two_ranks_divide_what_their_zero_stage_says():
    def of(stage, dtype="float32"):
        memory = learner_memory(TINY, replace(SETTINGS, zero_stage=stage, num_ranks=2, dtype=dtype))
        return memory.weights, memory.gradients, memory.optimizer

    assert of(1) == (4 * 1592, 8 * 1592, 6 * 1592)
    assert of(2) == (4 * 1592, 4 * 1592, 6 * 1592)
    assert of(3) == (2 * 1592, 4 * 1592, 6 * 1592)
    assert of(1, "bfloat16") == (2 * 1592, 4 * 1592, 6 * 1592)  # masters and moments stay float32


def test_a_gpu_holds_a_whole_gradient_bucket_and_offload_moves_the_optimizer_to_the_host():
    on_gpu = learner_memory(TINY, replace(SETTINGS, dtype="bfloat16", on_gpu=True))
    assert on_gpu.gradients == 2 * 2 * 1592 + 2 * GRADIENT_BUCKET_ELEMENTS
    moved = learner_memory(TINY, replace(SETTINGS, dtype="bfloat16", on_gpu=True, offload="optimizer"))
    assert (moved.optimizer, moved.step, moved.host) == (0, 0, on_gpu.optimizer + on_gpu.step)


def test_a_copy_that_is_sent_lies_beside_the_states_at_rest_and_in_training():
    from mathrl_ray.weight_sync.sender import BUFFER_BYTES

    assert SENDING_BUFFER_BYTES == 2 * BUFFER_BYTES
    kept, sent = (learner_memory(TINY, replace(SETTINGS, has_reference=True, sends_weights=sends)) for sends in (False, True))
    assert (kept.staged, sent.staged) == (0, 4 * 1592 + SENDING_BUFFER_BYTES)
    assert kept.at_rest == (4 + 4 + 12) * 1592  # weights, reference, optimizer
    assert sent.at_rest - kept.at_rest == sent.backward_peak - kept.backward_peak == sent.step_peak - kept.step_peak == sent.staged
    assert learner_memory(TINY, replace(SETTINGS, sends_weights=True, lora_rank=3)).staged == sent.staged  # whole, adapters merged


def test_adapters_leave_gradients_and_moments_of_their_own_only():
    # rank 3: q 8 + 8, k and v 8 + 4 each, o 8 + 8, gate, up and down 8 + 16 each: 128 numbers a layer and rank
    assert TINY.num_adapter_parameters(3) == 2 * 3 * (16 + 2 * 12 + 16 + 3 * 24) == 768
    memory = learner_memory(TINY, replace(SETTINGS, lora_rank=3))
    assert (memory.weights, memory.optimizer) == (4 * 1592, 12 * 768)
    assert learner_memory(TINY, replace(SETTINGS, has_reference=True)).reference == 4 * 1592


def saved_bytes(dtype, num_layers, *, attention, checkpointing, num_tokens):
    """What torch itself keeps for the backward pass of a model's layers: unique storages, weights left out."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=64, intermediate_size=96, num_hidden_layers=num_layers, num_attention_heads=4, num_key_value_heads=2,
        attn_implementation=attention,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(dtype).train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    weights = {part.untyped_storage().data_ptr() for part in (*model.parameters(), *model.buffers())}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.get_decoder()(input_ids=torch.randint(0, 50, (1, num_tokens)), use_cache=False)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", ["fused", "eager"])
def test_what_torch_keeps_of_a_layer_is_what_the_formula_says(dtype, how):
    shape = ModelShape(50, 64, 96, num_layers=1, num_heads=4, num_kv_heads=2, head_size=16, tied=False)
    attention = {"fused": "sdpa", "eager": "eager"}[how]
    three, two = (saved_bytes(getattr(torch, dtype), layers, attention=attention, checkpointing=False, num_tokens=64) for layers in (3, 2))
    assert 64 * activation_bytes_per_token(shape, dtype, attention=how, length=64) == three - two


def test_with_checkpointing_a_layer_keeps_its_input_only():
    shape = ModelShape(50, 64, 96, num_layers=1, num_heads=4, num_kv_heads=2, head_size=16, tied=False)
    three, two = (saved_bytes(torch.float32, layers, attention="sdpa", checkpointing=True, num_tokens=64) for layers in (3, 2))
    assert activation_bytes_per_token(shape, "float32", checkpointing=True) == 4 * 64
    assert three - two == 64 * 4 * 64


settings = st.builds(
    LearnerSettings,
    dtype=st.sampled_from(["float32", "bfloat16"]),
    max_length=st.sampled_from([256, 1024]),
    micro_batch_tokens=st.sampled_from([1024, 4096, 40_000]),
    logits_chunk_tokens=st.sampled_from([256, 4096]),
    gradient_checkpointing=st.booleans(),
    num_ranks=st.sampled_from([1, 2, 4]),
    zero_stage=st.sampled_from([1, 2, 3]),
    lora_rank=st.sampled_from([0, 8]),
    on_gpu=st.booleans(),
    offload=st.sampled_from(["none", "optimizer"]),
    sends_weights=st.booleans(),
    num_rows=st.sampled_from([None, 0, 2, 64]),
)


@given(settings, st.integers(1, 4))
def test_more_tokens_never_take_less_memory_and_more_ranks_never_more(given_settings, factor):
    base = learner_memory(SMOL, given_settings).peak
    assert learner_memory(SMOL, replace(given_settings, micro_batch_tokens=given_settings.micro_batch_tokens * factor)).peak >= base
    assert learner_memory(SMOL, replace(given_settings, num_ranks=given_settings.num_ranks * factor)).peak <= base


@given(settings, st.integers(1, 40))
def test_a_change_that_is_advised_makes_it_fit(given_settings, limit_gib):
    advice = change_that_fits(QWEN_MATH, given_settings, limit_gib * 2**30)
    if not advice:
        return
    changed = {}
    for part in advice.split(", "):
        key, _, value = part.partition(" = ")
        changed[key.split(".")[1]] = int(value) if value.isdigit() else {"true": True}.get(value, value.strip('"'))
    after = replace(given_settings, **changed)
    memory = learner_memory(QWEN_MATH, after)
    assert memory.peak + (0 if after.on_gpu else memory.host) <= limit_gib * 2**30
    assert after.micro_batch_tokens >= after.max_length  # or the recipe would be refused


def test_where_activations_dominate_the_advice_names_the_longest_sequence():
    long = LearnerSettings("bfloat16", 131072, 131072, 4096, gradient_checkpointing=True, on_gpu=True)
    advice = change_that_fits(QWEN_MATH, long, 22 * 2**30)
    assert "model.max_length = " in advice
    assert "learner.offload" not in advice  # it was tried with the rest, but the adapters' moments are small
    divided = change_that_fits(QWEN_MATH, replace(long, num_ranks=8, zero_stage=3), 22 * 2**30)
    assert divided.startswith("model.max_length = ")  # alone enough where the ranks divide the states


def test_the_advice_is_empty_where_no_setting_helps_and_short_where_one_does():
    big = replace(SETTINGS, max_length=1024, micro_batch_tokens=8192, logits_chunk_tokens=4096)
    assert change_that_fits(QWEN_MATH, big, 10**9) == ""
    room = learner_memory(SMOL, replace(big, micro_batch_tokens=4096)).peak
    assert change_that_fits(SMOL, big, room) == "learner.micro_batch_tokens = 4096"
