"""A stage that collapses at its learning rate and not at a lower one: caught, taken back, and brought to its end."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from fakes import scene
from loop_scene import LoopScene, PlannedScorer, TrueLearner

from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.guards import GuardError
from mathrl_ray.stages.grpo import run_grpo

RATE, NUM_GOOD, NUM_STEPS = 8e-4, 12, 30
"""At this rate the model forgets everything after so many updates."""


@dataclass
class FragileLearner(TrueLearner):
    rate: float = 0.0
    changes: Any = None
    breaks_above: float = RATE / 2

    async def start_stage(self, settings: Any) -> None:
        await super().start_stage(settings)
        self.rate, self.changes, self.num_updates = settings.learning_rate, dict(settings.changes), 0

    @property
    def has_collapsed(self) -> bool:
        return self.rate > self.breaks_above and self.num_updates > NUM_GOOD


@dataclass
class HonestScorer(PlannedScorer):
    learner: Any = None

    def _planned(self, index: int, request: Any) -> Any:
        self.hopeless = frozenset({request.gold}) if self.learner.has_collapsed else frozenset()
        return super()._planned(index, request)


class FragileScene(LoopScene):
    """GRPO at RATE on a model that collapses at it."""

    learner_type, scorer_type = FragileLearner, HonestScorer

    def __init__(self, folder: Any, *, breaks_above: float = RATE / 2, **more: Any) -> None:
        more["run"] = {"checkpoint_every": 4, "keep_last": 2, **more.get("run", {})}
        more["grpo"] = {"num_steps": NUM_STEPS, "prompts_per_step": 8, "group_size": 8, "learning_rate": RATE, **more.get("grpo", {})}
        more["guards"] = {"action": "rollback", **more.get("guards", {})}
        super().__init__(folder, **more)
        self.learner.breaks_above = breaks_above
        for scorer in self.scorers:
            scorer.learner = self.learner

    def events(self) -> list[dict[str, Any]]:
        path = self.run.recorder.folder / "guards.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def event(self, kind: str) -> dict[str, Any]:
        """The first of its kind; several guards may see one collapse."""
        return next(each for each in self.events() if each["kind"] == kind)


@pytest.mark.parametrize("staleness", [0, 2])
@scene
async def test_a_collapse_is_taken_back_to_the_last_good_checkpoint_and_trained_to_its_end_at_a_lower_rate(tmp_path, staleness):
    each = FragileScene(tmp_path, driver={"max_staleness": staleness})
    await run_grpo(each.run)
    fired, back, outcome = each.event("fired"), each.event("rollback"), each.event("outcome")
    assert fired["step"] > NUM_GOOD
    assert back["to_step"] in (4, 8, 12)
    assert back["changes"] == {"grpo.learning_rate": [RATE, RATE / 4]}
    assert outcome["helped"]
    rows = each.metrics()
    assert [row["step"] for row in rows] == list(range(1, NUM_STEPS + 1)), "a step is there twice, or lost"
    assert all(row["reward_mean"] == 0.5 for row in rows), "a row of the collapse is left"
    counts = each.run.ledger.counts
    assert counts.generated_tokens == counts.trained_tokens + counts.dropped_tokens
    kept = sum(len(row["response_ids"]) for row in each.rows())
    assert counts.generated_tokens > kept, "what was sampled in vain is no longer counted"
    assert back["tokens_lost"] > 0
    assert max(checkpoint.step for checkpoint in whole_checkpoints(each.run.recorder.folder)) == NUM_STEPS
    aside = each.run.recorder.folder / "superseded-1"
    assert (aside / "metrics.jsonl").exists()
    assert not (aside / "checkpoints").exists()


@scene
async def test_without_a_good_checkpoint_the_stage_begins_again_with_the_remedy(tmp_path):
    each = FragileScene(tmp_path, run={"checkpoint_every": 0, "checkpoint_minutes": 0})
    await run_grpo(each.run)
    assert each.event("rollback")["to_step"] == 0
    assert [row["step"] for row in each.metrics()] == list(range(1, NUM_STEPS + 1))
    assert each.learner.rate == RATE / 4


@scene
async def test_a_remedy_that_does_not_help_is_followed_by_the_next_one_on_top_of_it(tmp_path):
    each = FragileScene(tmp_path, breaks_above=RATE / 8, guards={"remedies": ["tighter_clip", "lower_rate"], "rate_factor": 0.1})
    await run_grpo(each.run)
    remedies = [(event["remedy"], event["helped"]) for event in each.events() if event["kind"] == "outcome"]
    assert remedies == [("tighter_clip", False), ("further_back", False), ("lower_rate", True)]
    places = [event["to_step"] for event in each.events() if event["kind"] == "rollback"]
    assert places[1] < places[0] == places[2]
    assert each.learner.changes == {
        "learner.max_grad_norm": 0.5,
        "loss.clip_low": 0.1,
        "loss.clip_high": 0.1,
        "grpo.learning_rate": pytest.approx(RATE / 10),
    }


@scene
async def test_when_all_rollbacks_are_used_up_the_job_ends_with_what_a_person_can_do(tmp_path):
    each = FragileScene(tmp_path, breaks_above=0.0, guards={"max_rollbacks": 2})
    with pytest.raises(GuardError, match=r"after all of guards\.max_rollbacks = 2 rollbacks.*run\.resume_with_changes"):
        await run_grpo(each.run)
    assert len([event for event in each.events() if event["kind"] == "rollback"]) == 2


@scene
async def test_stop_ends_the_job_and_keeps_the_good_checkpoints(tmp_path):
    each = FragileScene(tmp_path, guards={"action": "stop"})
    with pytest.raises(GuardError, match=r"grpo step \d+: .*guards\.action"):
        await run_grpo(each.run)
    assert each.event("fired")["action"] == "stop"


@scene
async def test_warn_says_it_once_and_trains_on(tmp_path):
    each = FragileScene(tmp_path, guards={"action": "warn"})
    await run_grpo(each.run)
    fired = [event for event in each.events() if event["kind"] == "fired"]
    assert fired
    assert len({(event["guard"]) for event in fired}) == len(fired), "the same guard was told of again and again"
    assert each.metrics()[-1]["reward_mean"] == 0.0
    assert [text for text in each.said if "guard " in text]


@scene
async def test_a_guard_that_is_switched_off_says_and_does_nothing(tmp_path):
    off = dict.fromkeys(("reward", "reward_variance", "validation"), "off")
    each = FragileScene(tmp_path, guards={"actions": off})
    await run_grpo(each.run)
    assert not {event.get("guard") for event in each.events()} & set(off)


@scene
async def test_a_healthy_stage_is_left_alone(tmp_path):
    each = FragileScene(tmp_path, breaks_above=1.0, eval={"validate_every": 5, "num_problems": 2})
    await run_grpo(each.run)
    assert each.events() == []


@scene
async def test_a_run_that_is_resumed_after_a_rollback_goes_on_with_the_remedy_and_its_count(tmp_path):
    each = FragileScene(tmp_path, guards={"max_rollbacks": 1})

    def die(stage: str, step: int, *rest: Any) -> None:
        if step == 25:
            raise KeyError("the machine has died")

    each.run.console.step = die
    with pytest.raises(KeyError):
        await run_grpo(each.run)
    each.run.recorder.close()
    assert each.event("rollback")["step"] < 25
    again = FragileScene(tmp_path, guards={"max_rollbacks": 1}, run={"resume": "auto"})
    await run_grpo(again.run)
    assert again.learner.rate == RATE / 4
    assert again.run.guards.num_rollbacks == 1
    assert [row["step"] for row in again.metrics()] == list(range(1, NUM_STEPS + 1))
