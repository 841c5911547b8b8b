"""Guards in SFT and expert iteration, on made-up engines: what looks, what a rollback takes up, and what a later stage has of it."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from fakes import scene
from safetensors.torch import load_file, save_file
from test_stage_end import Learner, Scene

from mathrl_ray.driver.guards import GuardError

RATE = 5e-4
"""The recipe's."""
SPIKES_FROM = 13
"""The first weights at which gradients explode, where the rate is above half of RATE."""


@dataclass
class SpikingLearner(Learner):
    """Its checkpoints hold a model whose only weight is the number that its weights are."""

    rate: float = 0.0
    starts: list[tuple[str, str, float]] = field(default_factory=list)
    """(stage, model folder, rate)."""

    async def start_stage(self, settings):
        self.rate, folder = settings.learning_rate, Path(settings.model_path)
        self.starts.append((settings.stage, folder.name, self.rate))
        await super().start_stage(settings)
        if (folder / "model.safetensors").exists():
            self.weights = load_file(folder / "model.safetensors")["weight"].item()

    async def train_sft(self, batch):
        metrics = await super().train_sft(batch)
        return {**metrics, "grad_norm": 500.0 if self.rate > RATE / 2 and self.weights >= SPIKES_FROM else 1.0}

    async def save_checkpoint(self, folder):
        (Path(folder) / "config.json").write_text("{}")
        save_file({"weight": torch.tensor([self.weights])}, Path(folder) / "model.safetensors")
        return await super().save_checkpoint(folder)


class GuardedScene(Scene):
    learner_type = SpikingLearner

    def __init__(self, folder, stage="sft", skill=(), **sections):
        sections["run"] = {"checkpoint_every": 3, "keep_last": 3}
        sections["eval"] = {"validate_every": 0, **sections.get("eval", {})}
        sections["guards"] = {"action": "rollback", **sections.get("guards", {})}
        super().__init__(folder, stage, skill, **sections)

    def events(self):
        """Of guards.jsonl: kind, step, the guard that fired or the remedy, and where it went back to or whether it helped."""
        rows = map(json.loads, (self.folder / "guards.jsonl").read_text().splitlines())
        return [(row["kind"], row["step"], row.get("guard", row.get("remedy")), row.get("to_step", row.get("helped"))) for row in rows]

    def trained_steps(self):
        rows = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        return [row["step"] for row in rows if "grad_norm" in row]

    def loaded(self):
        return [Path(folder).name for _, _, folder in self.learner.diary.of("load_checkpoint")]


@scene
async def test_sft_whose_gradients_explode_goes_on_from_its_checkpoint_with_the_optimizer_of_then_and_a_lower_rate(tmp_path):
    each = GuardedScene(tmp_path, sft={"epochs": 8})  # 11 traces in batches of 4: 24 steps, and spikes in 13, 14 and 15
    await each.study()
    assert each.events() == [
        ("fired", 15, "grad_norm_spike", None), ("rollback", 15, "lower_rate", 12), ("outcome", 24, "lower_rate", True),
    ]  # fmt: skip
    assert each.learner.starts == [("sft", "start", RATE), ("sft", "start", RATE / 4)]
    assert each.loaded() == ["sft-12"]
    assert each.trained_steps() == list(range(1, 25))


@scene
async def test_expert_iteration_looks_at_updates_and_rounds_and_goes_back_to_a_rounds_model_without_its_optimizer(tmp_path):
    each = GuardedScene(tmp_path, "expert_iteration", expert_iteration={"batch_size": 1, "epochs": 1})  # 8 updates, 16, 24, ...
    await each.study()
    assert each.events()[:2] == [("fired", 2, "grad_norm_spike", None), ("rollback", 2, "lower_rate", 1)]
    rolled_back = [(folder, rate) for _, folder, rate in each.learner.starts if rate < RATE]
    assert rolled_back[:2] == [("expert_iteration-1", RATE / 4)] * 2, "once to publish it, and for the round"
    assert each.loaded() == []
    rows = each.run.guards.state()["rules"]["rows"]
    assert [step for step, row in rows if "reward_mean" in row] == [1, 2, 3, 4, 5]


@scene
async def test_a_validation_that_falls_to_nothing_stops_sft(tmp_path):
    # of 8 problems: after 8 of 8, with (8 + 2) / (16 + 4) = 1/2 the error is sqrt(1/4 x 2/8) = 1/4, so below 1 - 3/4 is bad: 7 and 8
    skill = {float(step): 8 for step in range(1, 7)}
    each = GuardedScene(tmp_path, skill=skill, sft={"epochs": 4}, eval={"validate_every": 1}, guards={"actions": {"validation": "stop"}})
    with pytest.raises(GuardError, match=r"sft step 8: validation accuracy 0\.000 on 8 problems is below the best, 1\.000 at step 1"):
        await each.study()
    assert each.trained_steps() == list(range(1, 9))


@scene
async def test_an_average_of_checkpoints_is_gone_on_from_with_a_new_optimizer(tmp_path):
    each = GuardedScene(tmp_path, sft={"epochs": 5}, guards={"remedies": ["average_checkpoints"]})  # 15 steps, and it fires at the last
    await each.study()
    assert each.events()[:2] == [("fired", 15, "grad_norm_spike", None), ("rollback", 15, "average_checkpoints", 12)]
    assert each.loaded() == []
    assert [weights for weights, _ in each.generator.evaluated] == [12.0]  # the mean of 6, 9 and 12, and steps 13 to 15
    assert each.trained_steps() == list(range(1, 16))


@scene
async def test_what_a_guard_has_changed_holds_for_its_stage_only(tmp_path):
    each = GuardedScene(tmp_path, sft={"epochs": 8})
    each.stages = ["sft", "sft_filtered"]
    await each.study()
    assert [rate for stage, _, rate in each.learner.starts if stage == "sft"] == [RATE, RATE / 4]
    assert next(rate for stage, _, rate in each.learner.starts if stage == "sft_filtered") == RATE
