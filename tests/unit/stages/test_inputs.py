import json

import pytest
from samples import ByteTokenizer, recipe_for

from mathrl_ray.config import RecipeError
from mathrl_ray.device import choose_device
from mathrl_ray.stages.inputs import check_lengths, check_memory, load_inputs, sft_examples


class TokenizerWithEos(ByteTokenizer):
    eos_token_id = 1


def test_behaviour_29_a_set_smaller_than_a_batch_is_refused_with_both_numbers(tmp_path):
    (tmp_path / "few.jsonl").write_text("\n".join(json.dumps({"problem": f"{n}?", "answer": "1"}) for n in range(5)))
    recipe = recipe_for(tmp_path, data={"train": str(tmp_path / "few.jsonl")})
    load_inputs(recipe, ["baseline"])
    with pytest.raises(RecipeError, match=r"data\.train has 5 problems, fewer than grpo\.prompts_per_step = 32"):
        load_inputs(recipe, ["grpo"])


def test_a_missing_file_becomes_a_refusal_with_its_key(tmp_path):
    with pytest.raises(RecipeError, match=r"sft\.traces = .*absent\.jsonl: no such file"):
        load_inputs(recipe_for(tmp_path, sft={"traces": str(tmp_path / "absent.jsonl")}), ["sft"])


def test_behaviour_29_prompts_that_do_not_fit_are_named_with_what_would_do(tmp_path):
    # one token a byte: the r1_zero preamble alone is longer than 256 - 64
    recipe = recipe_for(tmp_path, model={"max_length": 256}, eval={"num_problems": 2})
    inputs = load_inputs(recipe, ["baseline"])
    with pytest.raises(RecipeError, match=r"prompts are too long.*model\.max_length = 256\. arithmetic/train/0 \(\d+ tokens\)") as caught:
        check_lengths(recipe, inputs, TokenizerWithEos())
    needed = int(str(caught.value).split("Raise model.max_length to ")[1].split(",")[0])
    check_lengths(recipe_for(tmp_path, model={"max_length": needed}, eval={"num_problems": 2}), inputs, TokenizerWithEos())


def test_builtin_traces_are_the_prompts_and_end_with_eos(tmp_path):
    inputs = load_inputs(recipe_for(tmp_path, sft={"num_examples": 20}), ["sft"])
    examples = sft_examples(inputs.traces, TokenizerWithEos())
    assert len(examples) == 20
    assert all(bytes(example.prompt_ids).decode().endswith("Assistant: <think>") for example in examples)
    assert all(example.response_ids[-1] == 1 for example in examples)


def test_a_kv_cache_that_memory_cannot_hold_is_refused_before_an_engine_starts(tmp_path):
    device = choose_device("cpu", num_gpus=0, num_engines=2)
    check_memory(recipe_for(tmp_path, generator={"kv_cache_gib": 0.1}), device)
    with pytest.raises(RecipeError, match=r"generator\.kv_cache_gib = 100000 .* needs 100000 GiB.*lower generator\.kv_cache_gib"):
        check_memory(recipe_for(tmp_path, generator={"kv_cache_gib": 100000}), device)
