"""Which rows each loss has in each update of a batch; and a run of three steps, trained by a loop of this file, done again."""

import json
import random
import shutil
from dataclasses import asdict, replace
from statistics import fmean

import pytest
import torch
from command_words import record, said
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from samples import made_up_trajectories, recipe_for
from small_policy import logprobs, write_model
from transformers import AutoModelForCausalLM

from mathrl_ray.actors.learner_steps import minibatches
from mathrl_ray.actors.trainer_state import Counters
from mathrl_ray.commands.replayed_step import updates_of
from mathrl_ray.commands.saved_batch import key_of
from mathrl_ray.core.groups import with_advantages
from mathrl_ray.driver.digests import file_digests
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.rows import trajectory_row
from mathrl_ray.sections import GrpoSection
from mathrl_ray.types import Grade, TrajectoryGroup


def keys(rows):
    return sorted(key_of(each) for each in rows)


@given(st.integers(1, 12), st.integers(0, 8), st.sets(st.integers(0, 11)), st.integers(1, 4), st.integers(1, 2))
def test_every_loss_sees_each_of_its_rows_once_an_epoch_whatever_the_run_trained_on(num_own, num_more, dropped, num_minibatches, epochs):
    rows = made_up_trajectories(num_own + num_more, seed=0)
    own, other = rows[:num_own], [each for index, each in enumerate(rows) if index not in dropped]
    grpo = GrpoSection(minibatches=num_minibatches, epochs=epochs)
    parts = list(minibatches(num_own, grpo, random.Random(0)))
    updates = updates_of([own, other], parts, num_minibatches)
    assert len(updates) == len(parts)
    assert [keys(of_losses[0]) for of_losses in updates] == [keys(own[row] for row in part) for part in parts]
    per_epoch = len(parts) // epochs
    for epoch in range(epochs):
        seen = [each for of_losses in updates[epoch * per_epoch : (epoch + 1) * per_epoch] for each in of_losses[1]]
        assert keys(seen) == keys(other)


def test_a_row_that_both_train_on_is_in_the_same_update_of_both_with_each_ones_advantage():
    own = made_up_trajectories(4, seed=0)
    other = [each.judged(9.0, None) for each in own[1:]]
    (first, second) = updates_of([own, other], [[2, 0], [1, 3]], 2)
    assert keys(first[1]) == keys([own[2]])
    assert keys(second[1]) == keys([own[1], own[3]])
    assert {each.advantage for each in first[1] + second[1]} == {9.0}


# A run of three steps of two updates each, whose second step trained on nothing

PEAK, CLIP, LIMIT, NUM_STEPS = 4e-3, 0.05, 0.5, 3
SECTIONS = {
    "grpo": {"loss": "grpo_clip", "prompts_per_step": 2, "group_size": 4, "num_steps": NUM_STEPS, "minibatches": 2, "learning_rate": PEAK},
    "generator": {"max_tokens": 40, "temperature": 1.0, "min_tokens": 0},
    "loss": {"aggregation": "token", "clip_low": CLIP, "clip_high": CLIP, "kl_coefficient": 0.0},
    "learner": {"schedule": "linear", "warmup_steps": 0, "max_grad_norm": LIMIT},
}
REWARDS = {1: [[1.0, 0.0, 0.0, 0.5], [0.0, 0.25, 1.0, 0.0]], 2: [[1.0] * 4, [0.0] * 4], 3: [[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]}


def groups_of(step, recipe):
    for number, rewards in enumerate(REWARDS[step]):
        group_id, made = f"grpo-{step}/{number}", made_up_trajectories(4, seed=10 * step + number)
        siblings = tuple(
            replace(each, group_id=group_id, sample=sample, problem_id=f"p{number}", grade=Grade(1.0, reward, reward, "wrong", None))
            for sample, (each, reward) in enumerate(zip(made, rewards, strict=True))
        )
        yield with_advantages(TrajectoryGroup(group_id, f"p{number}", siblings), recipe.advantage, max_tokens=40)


class Loop:
    """PPO-clip with AdamW in float64, response by response: what a run's learner is to have done."""

    def __init__(self, folder, recipe):
        self.policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        learner = recipe.learner
        self.adamw = torch.optim.AdamW(self.policy.parameters(), betas=learner.betas, weight_decay=learner.weight_decay)
        self.draw, self.num_updates = random.Random(recipe.run.seed), 0

    def train(self, batch, before):
        """A step's row of metrics.jsonl; `before` are the batch's log-probs from before its first update."""
        rows = list(range(len(batch)))
        self.draw.shuffle(rows)
        half = round(len(rows) / 2)
        told = [self.update([batch[row] for row in part], [before[row] for row in part]) for part in (rows[:half], rows[half:])]
        return {name: fmean(each[name] for each in told) for name in told[0]}

    def update(self, batch, before):
        total, num_clipped, num_tokens = 0.0, 0, sum(len(each.completion.token_ids) for each in batch)
        for each, then in zip(batch, before, strict=True):
            ratio = (logprobs(self.policy, each, 1.0) - then).exp()
            bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
            total = total - torch.minimum(ratio * each.advantage, bounded * each.advantage).sum() / num_tokens
            num_clipped += (bounded * each.advantage < ratio * each.advantage).sum().item()
        self.adamw.zero_grad()
        total.backward()
        parameters = list(self.policy.parameters())
        norm = torch.cat([each.grad.flatten() for each in parameters]).norm().item()
        for each in parameters:
            each.grad /= max(1.0, (norm + 1e-6) / LIMIT)
        rate = PEAK * (1 - self.num_updates / (2 * NUM_STEPS))
        self.adamw.param_groups[0]["lr"] = rate
        self.adamw.step()
        self.num_updates += 1
        return {"loss": total.item(), "grad_norm": norm, "clip_fraction": num_clipped / num_tokens, "learning_rate": rate}

    def save(self, folder, step, model):
        """A checkpoint as the learner and the driver write it, as far as replay reads it."""
        shutil.copytree(model, folder)
        trainer = folder / "trainer"
        trainer.mkdir()
        state = {"master": {name: each.detach() for name, each in self.policy.named_parameters()}}
        for moment in ("exp_avg", "exp_avg_sq"):
            state[moment] = {name: self.adamw.state[each][moment] for name, each in self.policy.named_parameters()}
        tensors = {f"{what}/{name}": each.float().contiguous() for what, of in state.items() for name, each in of.items()}
        save_file(tensors, trainer / "optimizer.safetensors")
        counters = asdict(Counters(self.num_updates, step, 0, self.draw.getstate()))
        (trainer / "learner.json").write_text(json.dumps({**counters, "num_adam_steps": self.num_updates}))
        (trainer / "run.json").write_text(json.dumps({"format": 1, "stage": "grpo", "step": step, "finished": []}))
        (trainer / "files.json").write_text(json.dumps({"files": file_digests(folder)}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model = write_model(tmp_path_factory.mktemp("model"))
    recipe = recipe_for(tmp_path_factory.mktemp("runs"), model={"path": str(model)}, **SECTIONS)
    recorder, loop = Recorder.create(recipe), Loop(model, recipe)
    for step in REWARDS:
        trajectories = [each for group in groups_of(step, recipe) for each in group.trajectories]
        batch = [each for each in trajectories if each.drop_reason is None]
        with torch.no_grad():
            before = {key_of(each): logprobs(loop.policy, each, 1.0) for each in batch}
        own = {key: tuple(values.tolist()) for key, values in before.items()}
        rows = [trajectory_row(each, own.get(key_of(each)), consumed_step=step, staleness=0) for each in trajectories]
        recorder.trajectories("grpo", step, rows)
        figures = loop.train(batch, list(before.values())) if batch else {}
        recorder.metrics("grpo", step, step, {"reward_mean": 0.4, **figures})
        loop.save(recorder.folder / "checkpoints" / f"grpo-{step}", step, model)
    recorder.close()
    return recorder.folder


def check_step_3(found):
    """As the loop of this file has it, but for the rounding of float32, which Adam makes much of."""
    assert found["replayed"]["loss"] == pytest.approx(found["logged"]["loss"], abs=2e-5)
    assert found["replayed"]["grad_norm"] == pytest.approx(found["logged"]["grad_norm"], rel=2e-4)
    assert found["replayed"]["clip_fraction"] == pytest.approx(found["logged"]["clip_fraction"], abs=1e-9)
    assert found["logprob_gap_nats"] < 1e-4


def test_several_updates_from_a_checkpoint_are_those_of_a_loop_over_single_responses(trained, capsys):
    found = record(capsys, "replay", trained, "--step", "3", "--json")
    assert found["weights"] == "those before step 3: checkpoint grpo-2"
    assert found["redone"] == {}
    check_step_3(found)
    assert found["logged"]["clip_fraction"] > 0.05  # its second update was away from the weights that sampled


def test_without_checkpoints_the_steps_before_are_done_again_but_for_the_one_that_trained_on_nothing(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    found = record(capsys, "replay", tmp_path / "bare", "--step", "3", "--json")
    assert list(found["redone"]) == ["1"]
    assert found["redone"]["1"]["loss"] < 2e-5
    check_step_3(found)
    text = said(capsys, "replay", tmp_path / "bare", "--step", "3")
    assert "the step done again differs from the log and the saved log-probs by up to" in text
    assert "nats (limit 0.001)" in text
