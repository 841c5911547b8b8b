"""learner.average on real DeepSpeed, one rank: what is averaged, what becomes of it at a stage's end, and that a checkpoint keeps it."""

from dataclasses import replace
from math import nan

import pytest
import torch
from safetensors import safe_open
from samples import made_up_trajectories, recipe_for
from transformers import AutoModelForCausalLM

from mathrl_ray.actors.learner import Learner
from mathrl_ray.actors.learner_steps import example_of
from mathrl_ray.device import choose_device
from mathrl_ray.types import SamplingSettings, StageSettings
from mathrl_ray.weight_sync.shared_memory import BlockReader

pytestmark = pytest.mark.timeout(200)
CPU = choose_device("cpu", num_gpus=0, num_engines=2)
SAMPLING = SamplingSettings(temperature=1.0, max_tokens=64)
BATCH = made_up_trajectories(16, seed=3)
EXAMPLES = [example_of(trajectory) for trajectory in BATCH]
VARIANTS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "divided gradients, states on the host": {"zero_stage": 2, "offload": "optimizer"},
    "divided weights": {"zero_stage": 3},
    "divided weights in bfloat16": {"zero_stage": 3, "dtype": "bfloat16"},
    "adapters": {"lora_rank": 4},
    "adapters, all on the host": {"zero_stage": 3, "offload": "all", "lora_rank": 4},
}
EMA, LAST_2 = {"average": "ema", "ema_decay": 0.5}, {"average": "last_k", "average_last": 2}


@pytest.fixture
def begin(start_model, tmp_path):
    learners = []

    def begin(dtype="float32", rate=1e-2, **learner):
        made = Learner()
        learners.append(made)
        recipe = recipe_for(tmp_path, model={"dtype": dtype}, learner=learner)
        made.preload(recipe, CPU)
        made.setup(recipe, CPU)
        made.start_stage(StageSettings(str(start_model), rate, 20, "sft", str(tmp_path / "dumps")))
        return made

    yield begin
    for learner in learners:
        learner.shutdown()


def masters(learner):
    return {name: tensor.double().clone() for name, tensor in learner._engine.masters()}


def published(learner, policy_version=1):
    manifest = learner.publish(policy_version)
    return {name: tensor.clone() for name, tensor in BlockReader().tensors(manifest.path, manifest.tensors)}


def learn(learner, num_steps):
    """The masters after each update."""
    seen = []
    for _ in range(num_steps):
        learner.train_sft(EXAMPLES)
        seen.append(masters(learner))
    return seen


@pytest.mark.parametrize("variant", VARIANTS)
def test_at_the_end_learner_publication_and_folder_hold_the_mean_of_the_float32_weights(begin, tmp_path, variant):
    learner = begin(**VARIANTS[variant], **EMA)
    seen = learn(learner, 3)
    before = published(learner)
    figures = learner.use_average()
    shares = [1 / 7, 2 / 7, 4 / 7]  # of a decay of 1/2, bias corrected
    expected = {name: sum(share * each[name] for share, each in zip(shares, seen, strict=True)) for name in seen[0]}
    found = masters(learner)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0)
    distance = sum(float((expected[name] - seen[-1][name]).square().sum()) for name in expected) ** 0.5
    size = sum(float(tensor.square().sum()) for tensor in seen[-1].values()) ** 0.5
    assert figures == pytest.approx(
        {"num_averaged": 3, "average_distance": distance, "average_relative_distance": distance / size}, rel=1e-3
    )
    after = published(learner, 2)
    learner.save(str(tmp_path / "saved"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=getattr(torch, VARIANTS[variant].get("dtype", "float32")))
    assert all(torch.equal(after[name], parameter) for name, parameter in saved.named_parameters())
    assert any(not torch.equal(after[name], tensor) for name, tensor in before.items())
    if "lora_rank" not in VARIANTS[variant]:
        for name, tensor in found.items():
            assert torch.equal(after[name], tensor.to(after[name].dtype)), name
    assert learner.use_average() == {}  # it is in place
    assert all(torch.equal(tensor, after[name]) for name, tensor in published(learner, 3).items())


@pytest.mark.parametrize(
    ("variant", "kind"), [*((variant, EMA) for variant in VARIANTS), ("float32", LAST_2), ("divided weights in bfloat16", LAST_2)]
)
def test_behaviour_26_an_average_that_goes_on_from_a_checkpoint_equals_one_that_never_stopped(begin, tmp_path, variant, kind):
    keys, folder = {**VARIANTS[variant], **kind}, tmp_path / "checkpoint"
    folder.mkdir()
    whole = begin(**keys)
    learn(whole, 3)
    figures = whole.save_checkpoint(str(folder))
    present = masters(whole)
    assert figures["checkpoint_bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with safe_open(folder / "trainer" / "average.safetensors", framework="pt") as file:
        num_sets = 1 if kind == EMA else 2
        assert set(file.keys()) == {f"{number}/{name}" for number in range(num_sets) for name in present}
    resumed = begin(**keys)
    resumed.load_checkpoint(str(folder))
    assert all(torch.equal(tensor, present[name]) for name, tensor in masters(resumed).items())
    for each in (whole, resumed):
        learn(each, 2)
    expected, found = whole.use_average(), resumed.use_average()
    assert found == expected
    after = published(whole)
    assert all(torch.equal(tensor, after[name]) for name, tensor in published(resumed).items())


def test_a_checkpoint_after_the_end_holds_the_average_as_model_and_masters_and_no_average_of_its_own(begin, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    whole = begin(**EMA)
    learn(whole, 2)
    whole.use_average()
    whole.save_checkpoint(str(folder))
    assert not (folder / "trainer" / "average.safetensors").exists()
    resumed = begin(**EMA)
    resumed.load_checkpoint(str(folder))
    assert resumed.use_average() == {}
    expected = published(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in published(resumed).items())


def test_an_update_that_was_skipped_is_not_averaged_and_average_every_counts_updates(begin):
    learner = begin(**LAST_2, average_every=2)
    bad = [replace(BATCH[0], advantage=nan), *BATCH[1:]]
    batches = (BATCH, bad, BATCH, BATCH, BATCH)
    seen = [masters(learner) for batch in batches if learner.train_policy(batch, SAMPLING).num_optimizer_steps]
    figures = learner.use_average()
    assert figures["num_averaged"] == 2
    found = masters(learner)
    for name, tensor in found.items():  # updates 2 and 4 of the four that were made
        torch.testing.assert_close(tensor, (seen[1][name] + seen[3][name]) / 2, atol=1e-6, rtol=0)


def test_each_stage_has_an_average_of_its_own_and_one_without_keeps_its_last_weights(begin, start_model):
    learner = begin(**EMA)
    learn(learner, 2)
    learner.start_stage(StageSettings(str(start_model), 1e-2, 20, "grpo"))
    assert learner.use_average() == {}
    plain = begin()
    last = learn(plain, 2)[-1]
    assert plain.use_average() == {}
    assert all(torch.equal(tensor, last[name]) for name, tensor in masters(plain).items())


def test_a_checkpoint_of_another_kind_of_average_begins_a_new_one(begin, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    whole = begin(**EMA)
    learn(whole, 2)
    whole.save_checkpoint(str(folder))
    other = begin(average="last_k")
    other.load_checkpoint(str(folder))
    assert other.use_average() == {}
    learn(other, 1)
    assert other.use_average()["num_averaged"] == 1
