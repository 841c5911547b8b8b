"""How GRPO ends: by its validations (eval.stop_after), and with the average of its weights (learner.average)."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from fakes import FakeLearner, Stage, scene
from loop_scene import LoopScene, PlannedScorer, TrueLearner

from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.stages.grpo import run_grpo

PEAK = 6
"""Updates until which the model gets better; each one after that makes it worse."""


@dataclass
class FreshLearner(TrueLearner):
    average: float = 0.0
    """What `use_average` says that it averaged; 0: nothing is kept."""

    async def start_stage(self, settings: Any) -> None:
        await super().start_stage(settings)
        folder = settings.model_path.rpartition("-")[2]
        self.num_updates = int(folder) if folder.isdecimal() else 0  # a checkpoint's model is that of so many updates

    async def use_average(self) -> dict[str, float]:
        await self._act("use_average")
        if not self.average:
            return {}
        self.num_updates += 1  # other weights than before, which become one more version
        return {"num_averaged": self.average, "average_distance": 1.0, "average_relative_distance": 0.1}


@dataclass
class PeakingScorer(PlannedScorer):
    learner: Any = None

    def _planned(self, index: int, request: Any) -> Any:
        if request.gold.startswith("gold "):
            return super()._planned(index, request)
        right = 8 - abs(self.learner.num_updates - PEAK)  # of eight validation problems
        self.hopeless, self.dull = (frozenset({request.gold}), frozenset()) if index >= right else (frozenset(), frozenset({request.gold}))
        return super()._planned(index, request)


class EndScene(LoopScene):
    learner_type, scorer_type = FreshLearner, PeakingScorer

    def __init__(self, folder: Any, *, average: float = 0.0, **more: Any) -> None:
        more["run"] = {"checkpoint_minutes": 0, **more.get("run", {})}
        more["grpo"] = {"num_steps": 20, **more.get("grpo", {})}
        super().__init__(folder, **more)
        self.learner.average = average
        for scorer in self.scorers:
            scorer.learner = self.learner

    def all_rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run.recorder.folder / "metrics.jsonl").read_text().splitlines()]


STOPPING = {"eval": {"validate_every": 2, "stop_after": 2}}


@scene
async def test_validations_without_a_better_one_end_training_and_the_best_checkpoint_is_the_stages_model(tmp_path):
    each = EndScene(tmp_path, **STOPPING)
    figures = await run_grpo(each.run)
    accuracies = each.run.validations_of("grpo")
    assert max(accuracies, key=lambda step: accuracies[step]) == PEAK
    assert sorted(accuracies) == [2, 4, 6, 8, 10]
    assert (figures["ended_by"], figures["best_step"], figures["last_step"]) == ("early stopping", 6, 10)
    assert each.run.policy_version == 6, "not the best one's weights are evaluated"
    assert each.learner.num_updates == 6
    counts = each.run.ledger.counts
    assert counts.generated_tokens == counts.trained_tokens + counts.dropped_tokens
    last = whole_checkpoints(each.run.recorder.folder)[-1]
    assert (last.step, last.is_trained) == (10, True)


@scene
async def test_a_stage_that_was_stopped_early_and_killed_before_its_evaluation_is_only_evaluated(tmp_path):
    first = EndScene(tmp_path, **STOPPING)
    await run_grpo(first.run)
    first.run.recorder.close()
    again = EndScene(tmp_path, run={"resume": "auto"}, **STOPPING)
    figures = await run_grpo(again.run)
    assert (figures["ended_by"], figures["best_step"], figures["last_step"]) == ("early stopping", 6, 10)
    assert not again.diary.of("train_policy")
    assert again.run.policy_version == 6


@scene
async def test_validations_that_go_on_beside_training_end_it_too(tmp_path):
    each = EndScene(tmp_path, driver={"max_staleness": 2}, num_generators=2, **STOPPING)
    figures = await run_grpo(each.run)
    assert figures["ended_by"] == "early stopping"
    assert figures["last_step"] < 20
    assert each.run.policy_version == figures["best_step"]


@scene
async def test_without_the_key_no_validation_ends_anything(tmp_path):
    each = EndScene(tmp_path, eval={"validate_every": 2})
    figures = await run_grpo(each.run)
    assert "ended_by" not in figures
    assert len(each.metrics()) == 20


@pytest.mark.parametrize("staleness", [0, 2])
@scene
async def test_at_its_end_the_average_is_published_saved_and_evaluated_once(tmp_path, staleness):
    each = EndScene(tmp_path, average=5, driver={"max_staleness": staleness}, grpo={"num_steps": 4}, learner={"average": "last_k"})
    figures = await run_grpo(each.run)
    assert figures["average"] == {
        "kind": "last_k",
        "num_averaged": 5,
        "average_distance": 1.0,
        "average_relative_distance": 0.1,
        "last_validation": None,
    }
    assert len(each.diary.of("use_average")) == 1
    assert each.run.policy_version == each.learner.num_updates == 5, "four updates, and the average is one more version"
    assert [row["policy_version"] for row in each.all_rows() if "num_averaged" in row] == [5]
    (checkpoint,) = whole_checkpoints(each.run.recorder.folder)
    assert checkpoint.content["policy_version"] == 5
    order = [what for _, what, _ in each.diary.entries if what in ("train_policy", "use_average", "save_checkpoint")]
    assert order == ["train_policy"] * 4 + ["use_average", "save_checkpoint"]


@scene
async def test_a_stage_that_was_saved_with_its_average_is_not_averaged_again(tmp_path):
    each = EndScene(tmp_path, average=5, grpo={"num_steps": 4}, learner={"average": "ema"})
    await run_grpo(each.run)
    each.run.recorder.close()
    again = EndScene(tmp_path, average=5, run={"resume": "auto"}, grpo={"num_steps": 4}, learner={"average": "ema"})
    figures = await run_grpo(again.run)
    assert not again.diary.of("use_average")
    assert figures["average"]["num_averaged"] == 5
    assert again.run.policy_version == 5


@dataclass
class AveragedLearner(FreshLearner):
    async def publish(self, policy_version: int) -> Any:
        return await FakeLearner.publish(self, policy_version)  # after a stop the average may come under its last step's number


class AveragedScene(EndScene):
    learner_type = AveragedLearner


@pytest.mark.parametrize("staleness", [0, 2])
@scene
async def test_a_stop_in_the_last_validation_leaves_it_out_since_the_average_was_saved(tmp_path, staleness):
    keys = {
        "driver": {"max_staleness": staleness, "canary_max_logprob_diff": 99.0},
        "grpo": {"num_steps": 4},
        "eval": {"validate_every": 2},
        "learner": {"average": "ema"},
    }
    cue = Stage()
    each = AveragedScene(tmp_path, average=4, cue=cue, **keys)
    cue.holds = lambda actor, what, detail: what == "generate" and "validation" in detail[0][0] and len(each.metrics()) == 4
    task = asyncio.create_task(run_grpo(each.run))
    await cue.next("generate")
    await each.run.save_now()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    each.run.recorder.close()
    again = AveragedScene(tmp_path, average=4, run={"resume": "auto"}, **keys)
    figures = await run_grpo(again.run)
    assert [row["step"] for row in again.all_rows() if "validation_accuracy" in row] == [2]
    assert any("no validation of grpo step 4: it was cut off, and the average was saved" in text for text in again.said)
    assert figures["average"]["last_validation"]["step"] == 2
