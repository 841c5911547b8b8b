"""The recipes for GPUs, as far as a machine without one can look at them: our own checks, and the configuration classes of both engines."""

import json
import re
from dataclasses import replace

import pytest
from hyperparameters import QWEN, REPOSITORY, block, table
from preflight_samples import CPU, GIB, H100, NEEDS, NODE, QWEN_MATH

from mathrl_ray.actors.deepspeed_engine import engine_config
from mathrl_ray.actors.generator import engine_arguments
from mathrl_ray.actors.gpus import Gpu
from mathrl_ray.actors.placement import engine_gpus, plan_for
from mathrl_ray.commands.memory_checks import check_memory_needs
from mathrl_ray.core.memory_estimate import model_shape
from mathrl_ray.data.problems import load_problems
from mathrl_ray.entry import main
from mathrl_ray.recipe_file import load_recipe
from mathrl_ray.sections import BUILTIN

PATHS = sorted(QWEN.glob("*.toml"))
STAGES = ("baseline", "sft", "expert_iteration", "grpo", "study")
NUM_GPUS = {"one_gpu": 1, "lora_24gb": 1, "eight_gpus": 8}
"""What a recipe's head says it needs, where it is not two."""
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "dtype": "bfloat16", "vocab_size": 151936,
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip
"""The shapes of Qwen2.5-Math-1.5B."""
every_recipe = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def planned(path, *overrides):
    recipe = load_recipe(path, list(overrides))
    return recipe, plan_for(recipe, num_cpus=64, num_gpus=NUM_GPUS.get(path.stem, 2))


@every_recipe
def test_a_recipe_passes_check_for_its_stage_and_for_the_study(path, capsys):
    for job in ("study", *(stage for stage in STAGES if stage == path.stem)):
        assert main(job, [str(path), "--check"]) == 0
    printed = capsys.readouterr().out
    assert "model.path = Qwen/Qwen2.5-Math-1.5B: a hub name, not checked" in printed


@every_recipe
def test_data_sets_are_pinned_and_no_stage_falls_back_to_the_built_in_task(path):
    recipe = load_recipe(path, [])
    named = [recipe.data.train, recipe.data.test, *([recipe.sft.traces] if {"sft", "sft_filtered"} & set(recipe.study.stages) else [])]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name) for name in named)
    assert recipe.model.path != BUILTIN


@every_recipe
def test_it_runs_on_the_gpus_that_its_head_names_and_says_that_it_was_never_run(path):
    recipe, device = planned(path)
    assert (device.kind, engine_gpus(recipe, device)) == ("cuda", NUM_GPUS.get(path.stem, 2))
    assert device.weight_transport == ("ipc" if recipe.device.placement == "shared" else "nccl")
    head = path.read_text().partition("\n[")[0]
    assert re.search(r"never run", head, re.IGNORECASE)
    assert "# Needs " in head
    assert "Expect" in head


@every_recipe
def test_the_learner_and_the_cache_fit_the_cards_with_room_to_spare(path):
    recipe, device = planned(path)
    fits(recipe, device, Gpu("NVIDIA L4", int(22.5 * GIB), 22 * GIB) if path.stem == "lora_24gb" else H100)


def fits(recipe, device, card):
    node = replace(NODE, num_gpus=8, gpus=(card,) * 8)
    findings = {finding.name: finding for finding in check_memory_needs(recipe, device, [node], NEEDS, recipe.study.stages)}
    assert {name: finding.verdict for name, finding in findings.items()} == dict.fromkeys(findings, "ok"), findings


def test_what_the_head_of_one_gpu_advises_for_48_gb_fits_such_a_card():
    head = (QWEN / "one_gpu.toml").read_text().partition("\n[")[0]
    (advised,) = (line.removeprefix("#   ").split() for line in head.splitlines() if line.startswith("#   "))
    assert "generator.sleep=true" in advised
    fits(*planned(QWEN / "one_gpu.toml", *advised), Gpu("NVIDIA L40S", 48 * GIB, int(44.5 * GIB)))


def test_the_estimate_is_for_this_models_shapes():
    assert model_shape(CONFIG) == QWEN_MATH
    assert QWEN_MATH.num_parameters == 1_543_714_304


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


@every_recipe
def test_vllms_own_classes_take_the_generators_arguments(path, model_folder):
    recipe, device = planned(path)
    arguments = replace(engine_arguments(recipe, device, model_folder), skip_tokenizer_init=True)
    config = arguments.create_engine_config()
    generator = recipe.generator
    assert str(config.model_config.dtype) == "torch.bfloat16"
    assert config.model_config.max_model_len == recipe.model.max_length
    assert config.scheduler_config.max_num_seqs == generator.max_sequences + recipe.driver.canary_prompts
    assert config.scheduler_config.enable_chunked_prefill == generator.chunked_prefill
    assert config.cache_config.gpu_memory_utilization == generator.gpu_memory_utilization
    assert config.cache_config.enable_prefix_caching == generator.prefix_caching
    assert config.cache_config.cache_dtype == generator.kv_cache_dtype
    assert config.model_config.enforce_eager == (not generator.cuda_graphs)
    assert config.model_config.enable_sleep_mode == generator.sleep
    assert config.weight_transfer_config.backend == device.weight_transport


@every_recipe
def test_deepspeeds_own_class_takes_the_learners_configuration(path):
    from deepspeed.runtime.config import DeepSpeedConfig

    recipe = load_recipe(path, [])
    config = DeepSpeedConfig(engine_config(recipe.learner, recipe.model.dtype))
    assert (config.zero_config.stage, config.gradient_clipping) == (recipe.learner.zero_stage, 1.0)
    assert config.bfloat16_config.enabled


CHANGES = {
    "generator.kv_cache_dtype=fp8_e4m3": {"kv_cache_dtype": "fp8_e4m3"},
    "generator.gpu_kv_cache_gib=3": {"kv_cache_memory_bytes": 3 * GIB},
    "generator.cuda_graphs=false": {"enforce_eager": True},
    "generator.chunked_prefill=false": {"enable_chunked_prefill": False},
    "generator.prefix_caching=false": {"enable_prefix_caching": False},
    "generator.kv_on_update=keep": {"enable_prefix_caching": False},
    "generator.max_batched_tokens=16384": {"max_num_batched_tokens": 16384},
    "generator.max_batched_tokens=512": {"max_num_batched_tokens": 2048},  # model.max_length
    "generator.sleep=true device.placement=shared": {"enable_sleep_mode": True},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_of_the_generator_reaches_vllm(change, model_folder):
    recipe, device = planned(QWEN / "grpo.toml")
    before = engine_arguments(recipe, device, model_folder)
    after = engine_arguments(planned(QWEN / "grpo.toml", *change.split())[0], device, model_folder)
    for name, value in CHANGES[change].items():
        assert getattr(before, name) != value
        assert getattr(after, name) == value


def test_the_finished_configuration_has_what_no_recipe_of_ours_sets(model_folder):
    changes = "generator.kv_cache_dtype=fp8_e4m3", "generator.cuda_graphs=false", "generator.gpu_kv_cache_gib=3"
    arguments = engine_arguments(*planned(QWEN / "grpo.toml", *changes), model_folder)
    config = replace(arguments, skip_tokenizer_init=True).create_engine_config()
    assert (config.cache_config.cache_dtype, config.model_config.enforce_eager) == ("fp8_e4m3", True)
    assert config.cache_config.kv_cache_memory_bytes == 3 * GIB


def test_on_the_cpu_what_it_cannot_do_is_off_whatever_the_recipe_says(model_folder):
    arguments = engine_arguments(load_recipe(QWEN / "grpo.toml", []), CPU, model_folder)
    assert (arguments.enforce_eager, arguments.enable_chunked_prefill, arguments.kv_cache_memory_bytes) == (True, False, GIB)


def test_rows_of_math_as_the_hub_has_them_keep_level_and_subject(tmp_path):
    row = {"problem": "What is $1+1$?", "level": "Level 3", "type": "Counting & Probability", "solution": r"It is $\boxed{2}$."}
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    (problem,) = load_problems(str(tmp_path / "train.jsonl"), key="data.train")
    assert (problem.level, problem.subject, problem.gold) == (3, "Counting & Probability", "2")


def test_readmes_table_of_hyperparameters_is_that_of_the_recipes():
    assert block((REPOSITORY / "README.md").read_text(encoding="utf-8")) == table(), "write it again: python tests/hyperparameters.py"
