"""Machines that are not here, and model folders without weights, for the tests of the preflight."""

import json
import time
from math import prod
from pathlib import Path

from samples import recipe_for

from mathrl_ray.__main__ import main
from mathrl_ray.actors.gpus import Gpu
from mathrl_ray.actors.nodes import NodeFacts
from mathrl_ray.commands.memory_checks import check_memory_needs
from mathrl_ray.commands.resource_checks import ModelNeeds
from mathrl_ray.core.memory_estimate import ModelShape
from mathrl_ray.data.tiny_model import build_tokenizer
from mathrl_ray.device import choose_device

REPOSITORY = Path(__file__).parent.parent.parent.parent
RECIPE = str(REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml")
SMALL = (
    "data.num_train_problems=64",
    "eval.num_problems=16",
    "sft.num_examples=32",
    "data.num_validation_problems=8",
    "expert_iteration.questions=16",
)
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


def findings_of(recipe, device, *nodes, needs=NEEDS, stages=("grpo",)):
    return {finding.name: finding for finding in check_memory_needs(recipe, device, nodes, needs, stages)}


def gpu_recipe(tmp_path, **sections):
    return recipe_for(
        tmp_path,
        **{"model": {"dtype": "bfloat16", "max_length": 1536}, "generator": {"max_tokens": 1024}, "eval": {"max_tokens": 1024}} | sections,
    )
