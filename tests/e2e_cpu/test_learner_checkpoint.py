"""The learner's part of a checkpoint on real DeepSpeed: what goes on from it equals what never stopped, to the bit."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from samples import made_up_trajectories, recipe_for
from transformers import AutoModelForCausalLM

from mathrl_ray.actors.learner import Learner
from mathrl_ray.actors.learner_steps import example_of
from mathrl_ray.device import choose_device
from mathrl_ray.types import SamplingSettings, StageSettings

pytestmark = pytest.mark.timeout(200)
CPU = choose_device("cpu", num_gpus=0, num_engines=2)
SAMPLING = SamplingSettings(temperature=1.0, max_tokens=64)
BATCH = made_up_trajectories(16, seed=3)
EXAMPLES = [example_of(trajectory) for trajectory in BATCH]
VARIANTS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "divided gradients": {"zero_stage": 2},
    "divided weights": {"zero_stage": 3},
    "divided weights in bfloat16": {"zero_stage": 3, "dtype": "bfloat16"},
    "adapters": {"lora_rank": 4},
    "host memory": {"zero_stage": 3, "offload": "all", "lora_rank": 4},
}


@pytest.fixture
def begin(start_model, tmp_path):
    learners = []

    def begin(dtype="float32", rate=1e-2, **learner):
        keys = {"schedule": "cosine", "warmup_steps": 3, **learner}
        recipe = recipe_for(tmp_path, model={"dtype": dtype}, learner=keys, grpo={"loss": "grpo_clip", "minibatches": 2})
        made = Learner()
        learners.append(made)
        made.preload(recipe, CPU)
        made.setup(recipe, CPU)
        made.start_stage(StageSettings(str(start_model), rate, 20, "grpo", str(tmp_path / "dumps")))
        return made

    yield begin
    for learner in learners:
        learner.shutdown()


def weights(learner):
    return {name: tensor.clone() for name, tensor in learner._engine.weights()}


def learn(learner, num_steps):
    """What a few steps of both kinds say; the minibatches are shuffled."""
    seen = []
    for _ in range(num_steps):
        update = learner.train_policy(BATCH, SAMPLING)
        row = {**learner.train_sft(EXAMPLES[:4]), **update.metrics}
        seen.append([row[name] for name in ("loss", "grad_norm", "learning_rate", "num_tokens")])
    return seen


@pytest.mark.parametrize("variant", VARIANTS)
def test_behaviour_26_a_learner_that_goes_on_from_a_checkpoint_equals_one_that_never_stopped(begin, tmp_path, variant):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    whole = begin(**VARIANTS[variant])
    learn(whole, 2)
    figures = whole.save_checkpoint(str(folder))
    expected = learn(whole, 2), weights(whole)
    resumed = begin(**VARIANTS[variant])
    resumed.load_checkpoint(str(folder))
    found = learn(resumed, 2), weights(resumed)
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    assert all(torch.equal(found[1][name], tensor) for name, tensor in expected[1].items())
    assert figures["checkpoint_bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert 0 <= figures["checkpoint_memory_gib"] < 0.25


def test_a_checkpoint_before_any_step_has_no_moments_and_goes_on_all_the_same(begin, tmp_path):
    whole = begin()
    whole.save_checkpoint(str(tmp_path))
    with safe_open(tmp_path / "trainer" / "optimizer.safetensors", framework="pt") as file:
        assert all(name.startswith("master/") for name in file.keys())  # noqa: SIM118, no dict
    expected = learn(whole, 1)
    resumed = begin()
    resumed.load_checkpoint(str(tmp_path))
    assert learn(resumed, 1) == expected


def test_a_save_that_fails_half_way_changes_nothing_in_the_learner(begin, tmp_path):
    learner, undisturbed = begin(zero_stage=3), begin(zero_stage=3)
    learn(learner, 1)
    (tmp_path / "trainer" / "optimizer.safetensors").mkdir(parents=True)  # no file can be written there, as on a full disk
    with pytest.raises(IsADirectoryError):
        learner.save_checkpoint(str(tmp_path))
    assert learn(learner, 1) == learn(undisturbed, 2)[1:]


def test_the_folder_holds_the_weights_for_others_and_no_code(begin, tmp_path):
    learner = begin(lora_rank=4)
    learn(learner, 1)
    (tmp_path / "c").mkdir()
    learner.save_checkpoint(str(tmp_path / "c"))
    opened = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "c").named_parameters())
    expected = weights(learner)
    assert opened.keys() == expected.keys()
    assert all(torch.equal(opened[name], tensor) for name, tensor in expected.items())
    suffixes = {path.suffix for path in (tmp_path / "c").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".safetensors", ".jinja", ".txt", ".model"}
    assert [path.name for path in Path(tmp_path / "c").glob("*.safetensors")] == ["model.safetensors"]  # all that vLLM takes for weights


def test_a_checkpoint_of_other_trained_weights_is_refused_by_name(begin, tmp_path):
    begin(lora_rank=4).save_checkpoint(str(tmp_path))
    with pytest.raises(ValueError, match=r"differ in name or shape, the first .*learner.lora_rank"):
        begin(lora_rank=2).load_checkpoint(str(tmp_path))
