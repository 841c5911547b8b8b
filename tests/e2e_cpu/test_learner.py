"""What one learner does with a recipe's settings, on real DeepSpeed: one rank, no Ray."""

import json
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
import torch
from samples import made_up_trajectories, recipe_for
from transformers import AutoModelForCausalLM

from mathrl_ray.actors.learner import Learner
from mathrl_ray.actors.learner_steps import LearnerSteps, example_of
from mathrl_ray.config import RecipeError
from mathrl_ray.device import choose_device
from mathrl_ray.types import SamplingSettings, StageSettings
from mathrl_ray.weight_sync.shared_memory import BlockReader

pytestmark = pytest.mark.timeout(120)
CPU = choose_device("cpu", num_gpus=0, num_engines=2)
SAMPLING = SamplingSettings(temperature=1.0, max_tokens=64)
BATCH = made_up_trajectories(16, seed=3)
EXAMPLES = [example_of(trajectory) for trajectory in BATCH]


@pytest.fixture
def begin(start_model, tmp_path):
    """begin(section={...}, ..., rate=...) is a learner at the start of a stage of 10 updates."""
    learners = []

    def begin(rate=1e-2, **sections):
        recipe = recipe_for(tmp_path, **sections)
        learner = Learner()
        learners.append(learner)
        learner.preload(recipe, CPU)
        learner.setup(recipe, CPU)
        learner.start_stage(StageSettings(str(start_model), rate, 10, "grpo", str(tmp_path / "dumps")))
        return learner

    yield begin
    for learner in learners:
        learner.shutdown()


def published(learner, policy_version=0):
    manifest = learner.publish(policy_version)
    return {name: tensor.clone() for name, tensor in BlockReader().tensors(manifest.path, manifest.tensors)}


def logprobs_of(learner):
    return [torch.tensor(found.logprobs) for found in learner.response_statistics(EXAMPLES, SAMPLING)]


def test_adapters_train_alone_and_are_published_and_saved_merged(begin, start_model, tmp_path):
    learner = begin(learner={"lora_rank": 4})
    before = published(learner)
    for _ in range(3):
        learner.train_policy(BATCH, SAMPLING)
    after = published(learner, 1)
    original = dict(AutoModelForCausalLM.from_pretrained(start_model).named_parameters())
    assert before.keys() == after.keys() == original.keys()
    assert all(torch.equal(before[name], original[name]) for name in original)  # adapters begin as the identity
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {name for name in after if "_proj.weight" in name}
    learner.save(str(tmp_path / "merged"))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert all(torch.equal(after[name], parameter) for name, parameter in merged.named_parameters())
    for example, own in zip(EXAMPLES, logprobs_of(learner), strict=True):
        ids = torch.tensor([example.prompt_ids + example.response_ids])
        start = len(example.prompt_ids) - 1
        expected = merged(ids).logits[0, start:-1].log_softmax(-1).gather(-1, ids[0, start + 1 :, None])[:, 0]
        torch.testing.assert_close(own, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("learner", [{"zero_stage": 1, "offload": "optimizer"}, {"zero_stage": 3, "offload": "all", "lora_rank": 4}])
def test_what_lies_in_host_memory_trains_publishes_and_saves_the_same(begin, tmp_path, learner):
    plain = {key: value for key, value in learner.items() if key == "lora_rank"}
    results = []
    for keys in (plain, learner):
        each = begin(learner=keys)
        each.train_policy(BATCH, SAMPLING)
        results.append(published(each, 1))
        each.save(str(tmp_path / f"saved-{len(results)}"))
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / f"saved-{len(results)}")
        assert all(torch.equal(results[-1][name], parameter) for name, parameter in saved.named_parameters())
    for name in results[0]:
        # Adam's first step is the rate, 1e-2, whatever the gradient's size, so rounding shows where it is tiny.
        torch.testing.assert_close(results[1][name], results[0][name], atol=1e-4, rtol=0)


def test_adapters_of_a_model_that_keeps_its_weights_transposed_are_merged_as_they_work():
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    from mathrl_ray.actors.deepspeed_engine import _merged, _named_weights

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=12, n_layer=1, n_head=2, vocab_size=11, n_positions=8)).eval()
    wrapped = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True)).eval()
    torch.nn.init.normal_(wrapped.base_model.model.transformer.h[0].attn.c_attn.lora_B["default"].weight)
    ids = torch.arange(8)[None]
    expected = wrapped(ids).logits
    weights = {name: _merged(weight.detach(), adapter) for name, weight, adapter in _named_weights(wrapped)}
    fresh = GPT2LMHeadModel(model.config).eval()
    fresh.load_state_dict(weights, strict=False)  # the tied head is not in the list
    torch.testing.assert_close(fresh(ids).logits, expected, atol=1e-5, rtol=0)


def count_passes(monkeypatch):
    """How many passes without and with a gradient were asked for."""
    counts = {"without": 0, "with": 0}
    statistics, accumulate = LearnerSteps.statistics, LearnerSteps.accumulate

    def count_statistics(self, *arguments):
        counts["without"] += 1
        return statistics(self, *arguments)

    def count_accumulate(self, *arguments):
        counts["with"] += 1
        return accumulate(self, *arguments)

    monkeypatch.setattr(LearnerSteps, "statistics", count_statistics)
    monkeypatch.setattr(LearnerSteps, "accumulate", count_accumulate)
    return counts


def test_with_one_step_a_batch_no_pass_is_spent_on_old_log_probs(begin, monkeypatch):
    learner = begin()
    expected = logprobs_of(learner)
    counts = count_passes(monkeypatch)
    update = learner.train_policy(BATCH, SAMPLING)
    assert counts == {"without": 0, "with": 1}
    assert update.num_optimizer_steps == 1
    for row, own in zip(update.learner_logprobs, expected, strict=True):
        torch.testing.assert_close(torch.tensor(row), own, atol=1e-5, rtol=0)


def test_with_several_steps_old_log_probs_are_computed_once_and_are_those_from_before_the_batch(begin, monkeypatch):
    learner = begin(grpo={"loss": "grpo_clip", "minibatches": 2, "epochs": 3})
    expected = logprobs_of(learner)
    counts = count_passes(monkeypatch)
    update = learner.train_policy(BATCH, SAMPLING)
    assert counts == {"without": 1, "with": 6}
    assert update.num_optimizer_steps == 6
    assert update.metrics["clip_fraction"] > 0  # the policy has left the proximal one behind
    for row, own in zip(update.learner_logprobs, expected, strict=True):
        torch.testing.assert_close(torch.tensor(row), own, atol=1e-5, rtol=0)


def test_behaviour_31_the_learning_rate_that_is_logged_is_the_recipes_schedule(begin):
    # 10 updates, a fifth of them warm-up: 1/2, 1 of the peak, then linear over 8: 8/8, 7/8, 6/8
    learner = begin(rate=1e-3, learner={"warmup_fraction": 0.2, "schedule": "linear"})
    rates = [learner.train_sft(EXAMPLES[:4])["learning_rate"] for _ in range(5)]
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3, 0.875e-3, 0.75e-3])


def test_a_rate_of_0_leaves_the_weights(begin):
    learner = begin(rate=0.0, learner={"weight_decay": 0.1})
    before = published(learner)
    learner.train_policy(BATCH, SAMPLING)
    after = published(learner, 1)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_weight_decay_betas_and_clipping_are_the_recipes(begin):
    keys = {"weight_decay": 0.5, "betas": (0.0, 0.5), "max_grad_norm": 0.25}
    learner = begin(rate=1e-2, learner=keys)
    before = published(learner)
    grad_norm = learner.train_sft(EXAMPLES)["grad_norm"]
    after = published(learner, 1)
    assert grad_norm > 1  # logged before clipping
    name = "model.norm.weight"
    # AdamW's first step: w (1 - rate * decay) - rate * g / (|g| + eps), of which the second part is +-rate
    moved = after[name] - before[name] * (1 - 1e-2 * 0.5)
    assert moved.abs().max() == pytest.approx(1e-2, rel=1e-3)
    from deepspeed.utils import safe_get_full_optimizer_state

    moments = [safe_get_full_optimizer_state(parameter, "exp_avg") for parameter in learner._engine.module.parameters()]
    assert torch.cat([moment.flatten() for moment in moments]).norm() == pytest.approx(0.25, rel=1e-3)  # beta1 0: the clipped gradient


def test_bfloat16_keeps_its_weights_in_float32_for_the_optimizer(begin):
    learner = begin(rate=1e-5, model={"dtype": "bfloat16"}, learner={"weight_decay": 0.0})
    before = published(learner)
    for _ in range(2):
        learner.train_sft(EXAMPLES)
    after = published(learner, 1)
    from deepspeed.utils import safe_get_full_fp32_param

    name, parameter = "model.norm.weight", learner._engine.module.model.get_decoder().norm.weight
    master = safe_get_full_fp32_param(parameter)
    assert parameter.dtype == torch.bfloat16
    assert torch.equal(before[name], after[name])  # near 1 a bfloat16 moves in steps of 0.004
    # two steps of Adam of at most 1e-5 each, kept
    assert 0 < (master - before[name].float()).abs().max() <= 2.1e-5


def test_gradient_checkpointing_changes_memory_and_not_the_gradient(begin):
    norms = []
    for checkpointing in (False, True):
        metrics = begin(learner={"gradient_checkpointing": checkpointing}).train_sft(EXAMPLES)
        norms.append((metrics["loss"], metrics["grad_norm"]))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_the_kl_is_0_at_the_start_model_and_grows_with_the_distance(begin):
    learner = begin(loss={"kl_coefficient": 0.1})
    kl = [learner.train_policy(BATCH, SAMPLING).metrics["kl_nats"] for _ in range(2)]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[1] > 1e-3


OWN_LOSS = """
import torch
from mathrl_ray.core.loss_batch import LossInput, LossResult

def scaled(batch: LossInput, factor: float) -> LossResult:
    age = batch.learner_version - batch.policy_versions
    per_token = torch.where(batch.mask, -batch.learner_logprobs * batch.advantages, 0.0)
    return LossResult(factor * per_token.sum() / batch.num_tokens, {"age_mean": age, "rows": torch.ones(len(age))})
"""


def test_a_loss_of_ones_own_is_trained_and_its_outputs_are_logged(begin, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN_LOSS)
    single, double = (
        begin(loss={"function": f"{path}:scaled", "kwargs": {"factor": factor}}, learner={"micro_batch_tokens": 512})
        for factor in (1.0, 2.0)
    )
    single.publish(3)
    metrics, doubled = (learner.train_policy(BATCH, SAMPLING).metrics for learner in (single, double))
    assert doubled["grad_norm"] == pytest.approx(2 * metrics["grad_norm"], rel=1e-4)
    assert metrics["num_micro_batches"] > 1
    assert metrics["age_mean"] == pytest.approx(3)  # version 3 trains what version 0 sampled
    assert metrics["rows"] == pytest.approx(1)


def test_an_own_loss_may_hold_an_entropy_bonus(begin, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\n"
        "def bonus(batch, by=0.0):\n"
        "    per_token = -batch.learner_logprobs * batch.advantages - by * batch.entropy\n"
        "    return torch.where(batch.mask, per_token, 0.0).sum() / batch.num_tokens\n"
    )
    own = {"function": f"{path}:bonus"}
    learners = [begin(loss={**own, "kwargs": {"by": by}}) for by in (0.0, 0.5)]
    norms = [learner.train_policy(BATCH, SAMPLING).metrics["grad_norm"] for learner in learners]
    assert abs(norms[0] - norms[1]) > 1e-3 * norms[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return batch.learner_logprobs", r"loss.function: the loss has the shape .*check-loss"),
        ("return None", r"loss.function: the function gave a NoneType"),
        ("return batch.learner_logprobs.detach().sum()", r"loss.function: the loss carries no gradient"),
        ("raise KeyError('odd')", r"loss.function raised KeyError: 'odd'"),
    ],
)
def test_faults_of_an_own_loss_are_told_by_its_key(begin, tmp_path, body, message):
    path = tmp_path / "own.py"
    path.write_text(f"def mine(batch):\n    {body}\n")
    learner = begin(loss={"function": f"{path}:mine"})
    with pytest.raises(RecipeError, match=message):
        learner.train_policy(BATCH, SAMPLING)


def test_a_metric_that_comes_only_sometimes_is_logged_where_it_came(begin, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\n"
        "from mathrl_ray.core.loss_batch import LossResult\n"
        "def mine(batch):\n"
        "    loss = torch.where(batch.mask, -batch.learner_logprobs * batch.advantages, 0.0).sum() / batch.num_tokens\n"
        "    return LossResult(loss, {'wide': torch.ones(())} if batch.mask.shape[1] > 40 else {})\n"
    )
    learner = begin(loss={"function": f"{path}:mine"}, learner={"micro_batch_tokens": 512})
    assert learner.train_policy(BATCH, SAMPLING).metrics["wide"] >= 1


def test_a_loss_that_is_not_there_is_refused_with_those_that_are(begin, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN_LOSS)
    with pytest.raises(RecipeError, match=r"loss.function = .*own.py has no function other; it has scaled"):
        begin(loss={"function": f"{path}:other"})


def test_behaviour_15_skipped_updates_in_a_row_end_the_run_and_leave_their_batches(begin, tmp_path):
    learner = begin(learner={"max_skipped_steps": 2})
    bad = [replace(BATCH[0], advantage=nan), *BATCH[1:]]
    assert learner.train_policy(bad, SAMPLING).num_optimizer_steps == 0
    assert learner.train_policy(BATCH, SAMPLING).num_optimizer_steps == 1  # the row is broken
    assert learner.train_policy(bad, SAMPLING).metrics["skipped_updates"] == 1
    with pytest.raises(FloatingPointError, match=r"2 updates in a row .* learner.max_skipped_steps = 2: lower the learning rate"):
        learner.train_policy(bad, SAMPLING)
    dumps = sorted(Path(tmp_path / "dumps").iterdir())
    assert [dump.name for dump in dumps] == ["grpo-update-0-skip-1.json", "grpo-update-1-skip-1.json", "grpo-update-1-skip-2.json"]
    content = json.loads(dumps[-1].read_text())
    assert content["batch"][0]["advantage"] == "nan"
    assert content["batch"][1]["completion"]["token_ids"] == list(BATCH[1].completion.token_ids)


def test_speed_padding_and_memory_are_logged(begin):
    metrics = begin(learner={"micro_batch_tokens": 512}).train_sft(EXAMPLES)
    assert metrics["num_tokens"] == sum(len(example.prompt_ids) + len(example.response_ids) for example in EXAMPLES)
    assert metrics["train_tokens_per_s"] > 0
    assert 0 < metrics["padding_fraction"] < 0.5
    assert metrics["learner_peak_memory_gib"] > 0.1
    assert "mfu" not in metrics  # no peak rate is known for a CPU
