"""A stage that collapses at its learning rate and not at a lower one: caught, taken back, and brought to its end."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes import scene
from loop_scene import LoopScene, PlannedScorer, TrueLearner

from mathrl_ray.actors import weight_average
from mathrl_ray.core.guard_rules import Finding
from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.guards import GuardError, Setback
from mathrl_ray.driver.loops import PolicyLoops
from mathrl_ray.stages.grpo import run_grpo

RATE, NUM_GOOD, NUM_STEPS = 8e-4, 12, 30
"""At this rate the model forgets everything after so many updates."""


@dataclass
class FragileLearner(TrueLearner):
    rate: float = 0.0
    changes: Any = None
    breaks_above: float = RATE / 2

    started: list[Any] = field(default_factory=list)

    async def start_stage(self, settings: Any) -> None:
        await super().start_stage(settings)
        self.started.append(settings)
        self.rate, self.changes, self.num_updates = settings.learning_rate, dict(settings.changes), settings.first_step

    @property
    def has_collapsed(self) -> bool:
        return self.rate > self.breaks_above and self.num_updates > NUM_GOOD


@dataclass
class HonestScorer(PlannedScorer):
    learner: Any = None

    def _planned(self, index: int, request: Any) -> Any:
        self.hopeless = frozenset({request.gold}) if self.learner.has_collapsed else frozenset()
        return super()._planned(index, request)


def dies_at(at: int) -> Any:
    """In the place of console.step."""

    def die(stage: str, step: int, *rest: Any) -> None:
        if step == at:
            raise KeyError("the machine has died")

    return die


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
async def test_stop_ends_the_job_and_keeps_a_checkpoint_of_before_the_first_sign(tmp_path):
    each = FragileScene(tmp_path, guards={"action": "stop"}, run={"checkpoint_every": 1, "keep_last": 1, "keep_best": 0})
    with pytest.raises(GuardError, match=r"grpo step \d+: .*guards\.action.*The last good step was (\d+)") as caught:
        await run_grpo(each.run)
    assert each.event("fired")["action"] == "stop"
    good = int(str(caught.value).partition("The last good step was ")[2].partition(".")[0])
    steps = [checkpoint.step for checkpoint in whole_checkpoints(each.run.recorder.folder)]
    assert min(steps) >= good - 4, "no checkpoint near it is left"
    assert min(steps) <= good


@pytest.mark.parametrize("every", [0, 4])
@scene
async def test_behaviour_26_a_kill_right_after_a_rollback_loses_neither_the_remedy_nor_its_count_nor_its_cost(tmp_path, every):
    """Also where the stage began anew, without a checkpoint of its own."""
    run = {"checkpoint_every": every, "checkpoint_minutes": 0}
    each = FragileScene(tmp_path, guards={"max_rollbacks": 1}, run=run)
    told: list[int] = []

    def die_after_going_back(stage: str, step: int, *rest: Any) -> None:
        if told and step <= max(told):
            raise KeyError("the machine has died")
        told.append(step)

    each.run.console.step = die_after_going_back
    with pytest.raises(KeyError):
        await run_grpo(each.run)
    each.run.recorder.close()
    back = each.event("rollback")
    again = FragileScene(tmp_path, guards={"max_rollbacks": 1}, run={**run, "resume": "auto"})
    await run_grpo(again.run)
    assert again.learner.rate == RATE / 4
    assert len([event for event in again.events() if event["kind"] == "rollback"]) == 1
    assert [row["step"] for row in again.metrics()] == list(range(1, NUM_STEPS + 1))
    assert all(row["reward_mean"] == 0.5 for row in again.metrics())
    kept = sum(len(row["response_ids"]) for row in again.rows())
    assert again.run.ledger.counts.generated_tokens >= kept + back["tokens_lost"]


@scene
async def test_what_was_lost_is_counted_once_however_often_the_stage_goes_back(tmp_path):
    each = FragileScene(tmp_path, breaks_above=RATE / 8, guards={"remedies": ["tighter_clip", "lower_rate"], "rate_factor": 0.1})
    await run_grpo(each.run)
    lost = sum(event["tokens_lost"] for event in each.events() if event["kind"] == "rollback")
    kept = sum(len(row["response_ids"]) for row in each.rows())
    assert lost == each.run.guards.lost_tokens
    assert each.run.ledger.counts.generated_tokens == kept + lost


@scene
async def test_what_a_person_changes_at_a_resume_holds_against_the_remedy_and_the_count_begins_anew(tmp_path):
    each = FragileScene(tmp_path, guards={"max_rollbacks": 1})
    each.run.console.step = dies_at(25)
    with pytest.raises(KeyError):
        await run_grpo(each.run)
    each.run.recorder.close()
    changed = {"run": {"resume": "auto", "resume_with_changes": True}, "grpo": {"learning_rate": 1e-5}}
    again = FragileScene(tmp_path, guards={"max_rollbacks": 1}, **changed)
    await run_grpo(again.run)
    assert again.learner.rate == 1e-5
    assert again.run.guards.num_rollbacks == 0
    assert [text for text in again.said if "grpo.learning_rate = 1e-05 is what the recipe says now" in text]


@scene
async def test_a_resumed_run_says_which_remedies_still_hold(tmp_path):
    each = FragileScene(tmp_path)
    each.run.console.step = dies_at(25)
    with pytest.raises(KeyError):
        await run_grpo(each.run)
    each.run.recorder.close()
    again = FragileScene(tmp_path, run={"resume": "auto"})
    await run_grpo(again.run)
    assert [text for text in again.said if "guards' remedies hold on: grpo.learning_rate = 0.0002" in text]


@scene
async def test_an_average_is_gone_on_from_at_its_place_in_the_schedule_and_with_the_stages_own_reference(tmp_path, monkeypatch):
    averaged: list[list[str]] = []

    def note(folders: Any, output: Any) -> None:
        averaged.append([folder.name for folder in folders])
        output.mkdir()

    monkeypatch.setattr(weight_average, "average_model_folders", note)  # its own tests average; these made-up folders hold no weights
    each = FragileScene(tmp_path, guards={"remedies": ["average_checkpoints", "lower_rate"]}, run={"keep_last": 10})
    await run_grpo(each.run)
    first = each.event("rollback")
    assert first["remedy"] == "average_checkpoints"
    assert averaged[0] == [f"grpo-{step}" for step in range(4, first["to_step"] + 1, 4)]
    settings = next(settings for settings in each.learner.started if ".averaged" in settings.model_path)
    assert (settings.first_step, settings.reference_path) == (first["to_step"], "start")
    assert not list((each.run.recorder.folder / "checkpoints").glob(".averaged*")), "a whole model is left behind"


@scene
async def test_adapters_are_not_averaged_since_they_belong_to_the_start_model(tmp_path):
    each = FragileScene(tmp_path, guards={"remedies": ["average_checkpoints", "lower_rate"]}, learner={"lora_rank": 4})
    await run_grpo(each.run)
    assert each.event("rollback")["remedy"] == "lower_rate"
    assert [text for text in each.said if "average_checkpoints is left out: not in expert iteration, and not with" in text]


@scene
async def test_a_remedy_that_had_no_time_to_show_whether_it_helps_is_said_to_have_had_none(tmp_path):
    each = FragileScene(tmp_path, driver={"max_staleness": 0})
    each.run.token_budget = 10**9

    def spend_it_all(stage: str, step: int, *rest: Any) -> None:
        if each.events() and each.events()[-1]["kind"] == "rollback":
            each.run.token_budget = 1

    each.run.console.step = spend_it_all
    await run_grpo(each.run)
    assert each.event("outcome")["helped"] is None
    assert "hardly tried" in each.event("outcome")["text"]


@scene
async def test_a_collapsed_step_is_not_saved_when_the_job_is_told_to_stop_before_the_stage_goes_back(tmp_path):
    each = FragileScene(tmp_path)
    loops = PolicyLoops(each.run, "grpo", NUM_STEPS, each.after_step)
    finding = Finding("reward", "reward_mean", 0.0, 0.3, "it fell")
    each.run.guards.setback = Setback(16, 12, finding)
    await loops._save_at_the_end()
    assert whole_checkpoints(each.run.recorder.folder) == []
    assert [text for text in each.said if "is not saved: a guard has fired" in text]


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

    each.run.console.step = dies_at(25)
    with pytest.raises(KeyError):
        await run_grpo(each.run)
    each.run.recorder.close()
    assert each.event("rollback")["step"] < 25
    again = FragileScene(tmp_path, guards={"max_rollbacks": 1}, run={"resume": "auto"})
    await run_grpo(again.run)
    assert again.learner.rate == RATE / 4
    assert again.run.guards.num_rollbacks == 1
    assert [row["step"] for row in again.metrics()] == list(range(1, NUM_STEPS + 1))
