"""Verdicts on machines that are not here."""

from dataclasses import replace

import pytest
from preflight_samples import CPU, CUDA, GIB, H100, NEEDS, NODE, findings_of, gpu_recipe
from samples import recipe_for

from mathrl_ray.actors.gpus import Gpu
from mathrl_ray.commands.memory_checks import learner_settings
from mathrl_ray.commands.resource_checks import (
    check_disk,
    check_processors,
    check_shared_memory,
    check_threads,
    num_checkpoints,
)
from mathrl_ray.device import choose_device


def test_qwen_math_fits_an_80_gb_card_with_16k_tokens_and_checkpointing_and_not_with_64k_without(tmp_path):
    node = replace(NODE, num_gpus=2, gpus=(H100, H100))
    fits = findings_of(gpu_recipe(tmp_path, learner={"gradient_checkpointing": True}), CUDA, node)
    assert fits["learner memory"].verdict == "ok"
    wide = findings_of(gpu_recipe(tmp_path, learner={"micro_batch_tokens": 65536}), CUDA, node)["learner memory"]
    assert wide.verdict == "failed"
    assert "77.5 GiB for one learner rank" in wide.found  # 79 free, less 1.5 for the context
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


BUSY = replace(H100, free_bytes=60 * GIB)
T4 = Gpu("Tesla T4", 15 * GIB, 15 * GIB)
CHECKPOINTED = {"learner": {"gradient_checkpointing": True}}


def test_fewer_free_cards_than_engines_are_refused_with_the_free_memory(tmp_path):
    # vLLM wants 0.85 of 80 GiB free when it starts
    found = findings_of(gpu_recipe(tmp_path, **CHECKPOINTED), CUDA, replace(NODE, num_gpus=2, gpus=(H100, BUSY)))["GPUs in use"]
    assert (found.verdict, found.found) == ("failed", "on one: NVIDIA H100 80GB HBM3 has 60.0 GiB free")
    assert found.needed.startswith("2 GPUs with 68.0 GiB free")


def test_a_busy_card_is_a_warning_where_ray_may_hand_it_out_and_nothing_where_nobody_needs_it(tmp_path):
    def verdict(*gpus):
        found = findings_of(gpu_recipe(tmp_path, **CHECKPOINTED), CUDA, replace(NODE, num_gpus=len(gpus), gpus=gpus))
        assert found["learner memory"].verdict == found["KV cache"].verdict == "ok"
        return found["GPUs in use"].verdict if "GPUs in use" in found else "none"

    assert verdict(H100, H100) == verdict(H100, H100, BUSY, BUSY) == "none"
    assert verdict(H100, BUSY, H100) == "warning"


def test_learner_and_cache_are_held_against_what_is_free(tmp_path):
    full = replace(H100, free_bytes=GIB)
    found = findings_of(gpu_recipe(tmp_path, **CHECKPOINTED), CUDA, replace(NODE, num_gpus=2, gpus=(full, full)))
    assert {found[name].verdict for name in ("GPUs in use", "learner memory", "KV cache")} == {"failed"}


def test_a_small_card_that_no_engine_needs_refuses_nothing_but_ray_may_hand_it_out(tmp_path):
    nodes = replace(NODE, num_gpus=2, gpus=(H100, H100)), replace(NODE, name="small", num_gpus=1, gpus=(T4,))
    found = findings_of(gpu_recipe(tmp_path, **CHECKPOINTED), CUDA, *nodes)
    assert found["KV cache"].verdict == "ok"
    assert found["learner memory"].verdict == "warning"
    assert "Tesla T4" in found["learner memory"].found


def test_offloaded_states_and_processes_must_fit_the_hosts(tmp_path):
    def memory(gib, offload="optimizer", gpus=(H100, H100)):
        recipe = gpu_recipe(tmp_path, learner={"gradient_checkpointing": True, "offload": offload})
        return findings_of(recipe, CUDA, replace(NODE, num_gpus=2, gpus=gpus, memory_bytes=int(gib * GIB)))["memory"]

    # offloaded: 12 + 8 bytes a parameter = 28.8 GiB; processes 0.6 + 1.8, scorer 0.2; NCCL publishes nothing in shared memory
    assert [memory(gib).verdict for gib in (27, 32, 36)] == ["failed", "warning", "ok"]
    assert "28.8 GiB offloaded" in memory(27).needed
    assert 'learner.offload = "none" (now "optimizer")' in memory(27).change
    assert memory(4, "none").verdict == "ok"
    assert "more" in memory(0.1, "none").change


def test_averages_of_weights_must_fit_the_hosts_beside_gpus(tmp_path):
    def memory(gib, **average):
        recipe = gpu_recipe(tmp_path, learner={"gradient_checkpointing": True, **average})
        return findings_of(recipe, CUDA, replace(NODE, num_gpus=2, gpus=(H100, H100), memory_bytes=int(gib * GIB)))["memory"]

    # 4 bytes x 1.54e9 parameters = 5.75 GiB a set: five and one in passing 34.5 GiB; an ema's two 11.5
    last = memory(30, average="last_k", average_last=5)
    assert last.verdict == "failed"
    assert "34.5 GiB offloaded or averaged" in last.needed
    assert last.change == 'lower learner.average_last (now 5) or set learner.average = "ema", which keeps one set'
    assert memory(30, average="ema").verdict == "ok"
    poor = memory(10, average="ema")
    assert "11.5 GiB offloaded or averaged" in poor.needed
    assert poor.change.startswith('set learner.average = "none"')


SHARED = choose_device("cuda", num_gpus=1, num_engines=2, placement="shared")


def shared(tmp_path, generator, card=H100, learner=None):
    learner = {"gradient_checkpointing": True, **(learner or {})}
    recipe = gpu_recipe(tmp_path, generator={"max_tokens": 1024, **generator}, learner=learner, device={"placement": "shared"})
    return findings_of(recipe, SHARED, replace(NODE, num_gpus=1, gpus=(card,)))


def test_a_generator_that_sleeps_must_fit_beside_the_resting_learner_when_it_wakes(tmp_path):
    def awake(utilization):
        return shared(tmp_path, {"sleep": True, "gpu_memory_utilization": utilization})["memory with both awake"]

    # 79 free, less two contexts of 1.5: 76. At rest (2 + 12 + 2) x 1,543,714,304 bytes + 0.5 GiB = 23.5 GiB; the generator 0.85 x 80 = 68
    refused = awake(0.85)
    assert (refused.verdict, refused.found) == ("failed", "NVIDIA H100 80GB HBM3 with 76.0 GiB for both")
    assert refused.needed == "learner at rest 23.5 GiB, generator 68.0 GiB (generator.gpu_memory_utilization = 0.85)"
    # 23.5 may be 0.9 of the rest: (76 - 26.1) / 80 = 0.62
    assert refused.change == "lower generator.gpu_memory_utilization to 0.62"
    assert [awake(share).verdict for share in (0.62, 0.63, 0.72)] == ["ok", "warning", "failed"]


def test_where_no_share_is_small_enough_for_both_the_learner_must_take_less(tmp_path):
    small = replace(H100, memory_bytes=24 * GIB, free_bytes=23 * GIB)
    refused = shared(tmp_path, {"sleep": True, "gpu_memory_utilization": 0.5}, small)["memory with both awake"]
    assert refused.verdict == "failed"
    assert refused.change.startswith('set learner.offload = "optimizer"')
    offloaded = shared(tmp_path, {"sleep": True, "gpu_memory_utilization": 0.5}, small, {"offload": "optimizer"})
    assert offloaded["memory with both awake"].verdict == "ok"  # 23 - 3 - 12 = 8, and 2.9 + 2.9 + 0.5 are at rest


def test_a_sleeping_generator_leaves_the_learner_all_but_its_context_and_an_awake_one_what_its_share_leaves(tmp_path):
    def learner(**generator):
        return shared(tmp_path, {"gpu_memory_utilization": 0.3, **generator})

    assert "76.0 GiB for one learner rank" in learner(sleep=True)["learner memory"].found
    assert "52.0 GiB for one learner rank" in learner()["learner memory"].found  # 79 - 24 - 3
    assert "memory with both awake" not in learner()


def test_weights_of_a_sleeping_generator_lie_in_the_hosts_memory(tmp_path):
    # vLLM's processes 1.8 GiB; 2 x 1,543,714,304 bytes = 2.9 GiB
    assert "generators 1.8 GiB" in shared(tmp_path, {})["memory"].needed
    assert "generators 4.7 GiB" in shared(tmp_path, {"sleep": True})["memory"].needed


def test_the_copy_that_is_sent_counts_between_gpus_and_not_in_shared_memory(tmp_path):
    recipe = gpu_recipe(tmp_path, **CHECKPOINTED)
    node = replace(NODE, num_gpus=2, gpus=(H100, H100))
    written = choose_device("cuda", num_gpus=2, num_engines=2, weight_transport="shared_memory")
    assert "staged 3.4 GiB" in findings_of(recipe, CUDA, node)["learner memory"].needed  # 2.9 and two buffers of 256 MiB
    assert "staged" not in findings_of(recipe, written, node)["learner memory"].needed


def test_a_cache_of_a_given_size_must_fit_into_the_share(tmp_path):
    def cache(gib):
        return shared(tmp_path, {"gpu_memory_utilization": 0.3, "gpu_kv_cache_gib": gib})["KV cache"]

    # 0.3 x 80 - 2.875 - 2 = 19.12 GiB
    refused = cache(19.2)
    assert (refused.verdict, refused.needed) == ("failed", "generator.gpu_kv_cache_gib = 19.2")
    assert refused.found.startswith("19.1 GiB left for the cache by generator.gpu_memory_utilization = 0.3")
    assert refused.change == "lower generator.gpu_kv_cache_gib to 19.1, or raise generator.gpu_memory_utilization"
    assert cache(19.1).verdict == "ok"
    assert cache(19.1).found.startswith("19.1 GiB for the cache")


def test_a_cache_of_a_given_size_that_holds_no_sequence_is_to_be_raised_itself(tmp_path):
    # 1,536 tokens and a block of 128, of 28,672 bytes: 0.0444 GiB, and 5 % more
    small = shared(tmp_path, {"gpu_memory_utilization": 0.3, "gpu_kv_cache_gib": 0.02})["KV cache"]
    assert small.verdict == "failed"
    assert small.change == "raise generator.gpu_kv_cache_gib (now 0.02) to 0.0467 or more, or lower model.max_length"
    few = shared(tmp_path, {"gpu_memory_utilization": 0.3, "gpu_kv_cache_gib": 1})["KV cache"]
    assert few.verdict == "warning"
    assert "raise generator.gpu_kv_cache_gib, or" in few.change


def test_gpus_without_known_memory_are_a_warning(tmp_path):
    for gpus in ((), (Gpu("NVIDIA GB10", None, None),) * 2, (H100, Gpu("MIG-1", None, None))):
        found = findings_of(gpu_recipe(tmp_path), CUDA, replace(NODE, num_gpus=2, gpus=gpus))
        assert found["learner memory"].verdict == "warning"
        assert "KV cache" not in found


def test_on_cpus_learner_generator_and_published_weights_share_the_memory(tmp_path):
    recipe = gpu_recipe(tmp_path, learner={"micro_batch_tokens": 1536, "gradient_checkpointing": True})
    # the step: (2 + 12 + 12) x 1.54e9 bytes = 37.4 GiB; generator 2.9 + 1 + 1.8, published weights 2.9, libraries 0.8
    assert findings_of(recipe, CPU, NODE)["memory"].verdict == "ok"
    poor = findings_of(recipe, CPU, replace(NODE, memory_bytes=24 * GIB))["memory"]
    assert poor.verdict == "failed"
    assert "24.0 GiB free" in poor.found
    assert "learner.lora_rank = 32" in poor.change


@pytest.mark.parametrize(("gib", "verdict"), [(13, "warning"), (15, "ok"), (17, "ok")])
def test_a_smaller_cache_is_advised_where_it_is_enough_and_is_enough(tmp_path, gib, verdict):
    node = replace(NODE, memory_bytes=gib * GIB)

    def memory(cache):
        learner = {"micro_batch_tokens": 1536, "gradient_checkpointing": True, "lora_rank": 8, "logits_chunk_tokens": 512}
        sections = {"learner": learner, "generator": {"max_tokens": 1024, "kv_cache_gib": cache}}
        return findings_of(gpu_recipe(tmp_path, **sections), CPU, node)["memory"]

    poor = memory(6.0)
    assert poor.verdict in ("failed", "warning")
    advised = poor.change.removeprefix("lower generator.kv_cache_gib (now 6) to ")
    assert memory(float(advised)).verdict == verdict  # 12.9 GiB are needed beside the cache, so 13 are just enough


def test_the_advice_for_a_host_is_enough_also_where_the_cache_alone_is_not(tmp_path):
    recipe = gpu_recipe(tmp_path, learner={"micro_batch_tokens": 65536})
    poor = findings_of(recipe, CPU, replace(NODE, memory_bytes=40 * GIB))["memory"]
    assert poor.verdict == "failed"
    assert poor.change.startswith("set learner.")  # lowering a cache of 1 GiB would not do
    tiny = findings_of(recipe, CPU, replace(NODE, memory_bytes=4 * GIB))["memory"]
    assert tiny.change == "choose a smaller model.path, or add a node"


def test_a_baseline_alone_needs_no_activations(tmp_path):
    recipe = gpu_recipe(tmp_path)
    trained, baseline = (findings_of(recipe, CPU, NODE, stages=stages)["memory"] for stages in (["grpo"], ["baseline"]))
    assert ("activations" in trained.needed or "kept" in trained.needed) is True
    assert ("activations" in baseline.needed or "kept" in baseline.needed) is False


def test_grading_processes_take_memory(tmp_path):
    # 3 x (100 + 500 x 60) MiB = 88.2 GiB
    many = findings_of(gpu_recipe(tmp_path, scorer={"num_actors": 3, "num_processes": 500}, **CHECKPOINTED), CPU, NODE)["memory"]
    assert "scorers 88.2 GiB" in many.needed
    assert many.verdict == "failed"


def test_threads_are_held_against_the_largest_node(tmp_path):
    def found(threads):
        recipe = recipe_for(tmp_path, generator={"num_threads": threads}, learner={"num_threads": 1})
        return [finding.sentence for finding in check_threads(recipe, [NODE, replace(NODE, num_cpus=2)])]

    assert found(8) == []
    assert found(9) == ["threads: 8 CPUs on the largest node; needed: generator.num_threads = 9. Lower generator.num_threads to 8 or less"]


def test_a_head_that_holds_no_engine_needs_no_shared_memory_and_no_memory(tmp_path):
    head = replace(NODE, name="head", num_cpus=0, shm_bytes=64 * 2**20, memory_bytes=0)
    assert check_shared_memory(recipe_for(tmp_path), CPU, [NODE, head], NEEDS).verdict == "ok"
    assert "on 1 node" in findings_of(gpu_recipe(tmp_path), CPU, NODE, head)["memory"].found


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
        return check_disk([recipe_for(tmp_path, run={"keep_last": 1})], [disk], NEEDS, ["grpo"], generated_tokens=10**6).verdict

    assert [verdict(gib) for gib in (22, 24, 47)] == ["failed", "warning", "ok"]


def test_a_disk_must_hold_the_checkpoints_of_all_runs_of_a_sweep(tmp_path):
    # two each of 23.0 GiB and, in bfloat16, of 14 bytes a parameter: 20.1 GiB
    recipes = [recipe_for(tmp_path, run={"keep_last": 1}, model={"dtype": dtype}) for dtype in ("float32", "bfloat16")]

    def found(gib):
        return check_disk(recipes, [replace(NODE, disk_bytes=int(gib * GIB))], NEEDS, ["grpo"], generated_tokens=10**6)

    assert [found(gib).verdict for gib in (22, 85, 87)] == ["failed", "warning", "ok"]
    assert "4 checkpoints of 2 runs of up to 23.0 GiB" in found(85).needed


def test_the_batches_of_expert_iteration_count_where_it_is_a_stage(tmp_path):
    recipe = recipe_for(tmp_path, expert_iteration={"batch_size": 64}, sft={"batch_size": 8})
    assert [learner_settings(recipe, CPU, stages).num_rows for stages in (["expert_iteration"], ["sft"], ["baseline"])] == [64, 8, 0]


def test_checkpoints_are_counted_as_the_recipe_keeps_them(tmp_path):
    def number(stages, **sections):
        return num_checkpoints(recipe_for(tmp_path, **sections), stages)

    assert number(["baseline"]) == 0
    assert number(["baseline", "sft", "grpo"], run={"keep_last": 2}) == 2 * 2 + 1  # keep_best counts where something is validated
    assert number(["grpo"], run={"keep_last": 2, "keep_best": 1}, eval={"validate_every": 5}) == 3 + 1
    assert number(["grpo"], run={"checkpoint_minutes": 0}) == 1 + 1
    # expert iteration saves and validates every round, whatever these keys say, and has no more than its rounds
    assert number(["expert_iteration"], run={"keep_last": 2, "keep_best": 1, "checkpoint_minutes": 0}) == 3 + 1
    assert number(["expert_iteration"], run={"keep_last": 9}, expert_iteration={"rounds": 4}) == 4 + 1
