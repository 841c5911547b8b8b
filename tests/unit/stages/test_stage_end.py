"""Which model SFT and expert iteration end with, on made-up engines: last weights, their average, or the best validated ones; also after a
kill at any row."""

import asyncio
import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
from fakes import Cue, Diary, FakeGenerator, FakeLearner, FakeScorer, Stage, at_once, scene
from samples import ByteTokenizer, make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.data.traces import SftRow
from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.resume import find_resumption
from mathrl_ray.driver.sweep_folder import SweepFolder
from mathrl_ray.driver.time_limit import TimeLimit
from mathrl_ray.stages.study import run_study
from mathrl_ray.types import Completion, ResponseStatistics

ROUNDS = {"rounds": 5, "questions": 4, "group_size": 2, "batch_size": 99, "max_similarity": 1.0, "threshold": 0.0}


class Tokenizer(ByteTokenizer):
    eos_token_id = 1


@dataclass
class Learner(FakeLearner):
    """Its weights are a number, 1 more after each update, unless its average, of all of them, was put in place."""

    averages: bool = False
    weights: float = 0.0
    history: list[float] = field(default_factory=list)

    async def start_stage(self, settings):
        saved = Path(settings.model_path) / "trainer" / "fake.json"
        self.weights, self.history = json.loads(saved.read_text())[0] if saved.exists() else 0.0, []
        await super().start_stage(settings)

    async def train_sft(self, batch):
        metrics = await super().train_sft(batch)
        self.weights += 1
        self.history.append(self.weights)
        return metrics

    async def use_average(self):
        if not self.averages or not self.history:
            return {}
        self.weights, figures = fmean(self.history), {"num_averaged": len(self.history), "average_relative_distance": 0.5}
        self.history = []
        return figures

    async def save(self, folder):
        (Path(folder) / "trainer").mkdir(parents=True)
        (Path(folder) / "trainer" / "fake.json").write_text(json.dumps(self.state()))
        await super().save(folder)

    async def response_statistics(self, sequences, sampling):
        await super().response_statistics(sequences, sampling)
        return [ResponseStatistics(tuple(-0.5 for _ in each.response_ids), 0.1) for each in sequences]

    def state(self):
        return [self.weights, self.history]

    def take(self, state):
        self.weights, self.history = state


@dataclass
class Generator(FakeGenerator):
    """Right on the first of the validation problems, as many as `skill` says of the weights that it holds, and on train problems."""

    learner: Learner | None = None
    golds: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By problem: the gold, and its place among those of its kind."""
    skill: dict[float, int] = field(default_factory=dict)
    weights: float = 0.0
    evaluated: list[tuple[float, int]] = field(default_factory=list)
    """(weights, policy_version) of the evaluations."""

    async def apply_weights(self, manifest):
        self.weights = self.learner.weights
        return await super().apply_weights(manifest)

    async def generate(self, requests):
        if "-evaluation" in requests[0].group_id:
            self.evaluated.append((self.weights, self.policy_version))
        return await super().generate(requests)

    def _answer(self, request, began_with):
        gold, place = self.golds[request.problem_id]
        is_right = "/" in request.group_id and "-" in request.group_id and "validation" not in request.group_id
        is_right |= place < self.skill.get(self.weights, 0)
        ids = (request.seed % 100, 7)
        return Completion(gold if is_right else "no", ids, (-0.5, -0.5), ((self.policy_version, 2),), "stop")


class Scene:
    """A job of one stage on made-up actors, in a new folder or where an earlier one of this folder stopped."""

    learner_type = Learner

    def __init__(self, folder: Path, stage="sft", skill=(), cue: Cue = at_once, averages=False, **sections):
        recipe = recipe_for(
            folder,
            run={"resume": "auto", "keep_last": 1, "checkpoint_minutes": 0, **sections.get("run", {})},
            sft={"batch_size": 4, "epochs": 2, **sections.get("sft", {})},
            expert_iteration={**ROUNDS, **sections.get("expert_iteration", {})},
            eval={"num_problems": 2, "validate_every": 1, **sections.get("eval", {})},
            learner={"average": "ema" if averages else "none"},
            guards=sections.get("guards", {}),
        )
        self.stages, self.said = [stage], []
        resumption = find_resumption(recipe, self.stages)
        recorder = resumption.open(recipe, self.stages, self.said.append) if resumption else None
        self.is_resumed = resumption is not None
        self.learner = self.learner_type(Diary(), cue=cue, averages=averages)
        self.generator = Generator(Diary(), cue=cue, learner=self.learner, skill=dict(skill))
        actors = Actors(self.learner, (self.generator,), (FakeScorer(Diary()),), (0,))
        self.run = make_run(recipe, actors, tokenizer=Tokenizer(), recorder=recorder)
        for problems in (self.run.train_problems, self.run.validation_problems, self.run.test_problems):
            self.generator.golds |= {problem.problem_id: (problem.gold, place) for place, problem in enumerate(problems)}
        self.run.console.say = self.said.append
        self.run.traces = [SftRow(f"t{index:02}", "Q", f"r{index}", gold=f"r{index}") for index in range(11)]
        if resumption:
            resumption.restore(self.run)

    async def study(self):
        await run_study(self.run, self.stages)
        self.run.recorder.close()

    @property
    def folder(self):
        return self.run.recorder.folder

    @property
    def summary(self):
        (stage,) = json.loads((self.folder / "summary.json").read_text())["stages"]
        return stage

    def rows(self):
        lines = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        kinds = ("loss", "sync_s", "validation_accuracy", "accuracy", "num_averaged")
        return Counter((row["stage"], row["step"], row["policy_version"], kind) for row in lines for kind in kinds if kind in row)

    def checkpoints(self):
        return {each.step: each.is_trained for each in whole_checkpoints(self.folder)}


FALLS = {1.0: 3, 2.0: 6, 3.0: 5, 4.0: 4, 5.0: 7, 6.0: 8}
"""Right validation problems, of 8, by step: 2 is better than the two behind it."""
STOPS = {"eval": {"stop_after": 2}}


@scene
async def test_sft_stops_after_two_validations_without_a_better_one_and_evaluates_the_best_one_as_the_version_that_it_was(tmp_path):
    each = Scene(tmp_path, skill=FALLS, **STOPS)
    await each.study()
    assert len(each.learner.diary.of("train_sft")) == 4  # of 6
    assert each.generator.evaluated == [(2.0, 2)]
    assert each.run.policy_version == 2
    summary = each.summary
    assert {key: summary[key] for key in ("ended_by", "last_step", "best_step", "best_validation_accuracy", "policy_version")} == {
        "ended_by": "early stopping", "last_step": 4, "best_step": 2, "best_validation_accuracy": 0.75, "policy_version": 2,
    }  # fmt: skip
    assert each.checkpoints() == {2: False, 4: True}  # what is evaluated, and the last, which says that nothing is to come
    assert ("sft", 2, 2, "accuracy") in each.rows()
    assert any(
        "stopped early after step 4: 2 validations in a row without a better one; its model is that of step 2" in text for text in each.said
    )


@scene
async def test_a_stage_that_gets_better_to_its_end_keeps_its_last_weights(tmp_path):
    each = Scene(tmp_path, skill={float(step): step for step in range(1, 7)}, **STOPS)
    await each.study()
    assert each.generator.evaluated == [(6.0, 6)]
    assert "ended_by" not in each.summary
    assert each.checkpoints()[6]


@scene
async def test_with_a_margin_small_rises_stop_it_and_still_the_highest_is_taken(tmp_path):
    each = Scene(tmp_path, skill={1.0: 4, 2.0: 5, 3.0: 5}, eval={"stop_after": 2, "stop_margin": 0.2})
    await each.study()
    assert each.generator.evaluated == [(3.0, 3)]  # of equal ones the newest, which the learner holds
    assert (each.summary["last_step"], each.summary["best_step"]) == (3, 3)
    assert len([name for _, name, _ in each.learner.diary.of("start_stage")]) == 1


def copied_after_each_row(each, folder):
    """Copies of the run's folder as a kill after each row of metrics would leave it."""
    copies, write = [], each.run.recorder.metrics

    def metrics(*row):
        write(*row)
        copies.append(folder / str(len(copies)))
        shutil.copytree(each.folder, copies[-1] / each.folder.name)

    each.run.recorder.metrics = metrics
    return copies


@pytest.mark.parametrize(
    ("stage", "skill", "sections"),
    [
        ("sft", FALLS, STOPS),
        ("sft", FALLS, {**STOPS, "run": {"checkpoint_every": 1}}),
        ("sft_filtered", {1.0: 8}, {"eval": {"stop_after": 5}}),  # at the very last step
        ("sft", {}, {"averages": True}),
        ("sft", {}, {"averages": True, "run": {"checkpoint_every": 4}, "eval": {"validate_every": 5}}),
        ("sft", {1.5: 6, 3.5: 5}, {"averages": True, "sft": {"sizes": [4, "all"]}, "eval": {"validate_every": 0}}),
        ("expert_iteration", FALLS, STOPS),
        ("expert_iteration", {}, {"averages": True}),
    ],
    ids=[
        "sft stops",
        "every step saved",
        "stops at its last step",
        "average",
        "average, last step not validated",
        "sizes averaged",
        "rounds stop",
        "rounds averaged",
    ],
)
def test_behaviour_26_killed_after_any_row_it_ends_with_the_same_model_rows_and_summary(tmp_path, stage, skill, sections):
    whole = Scene(tmp_path / "whole", stage, skill, **sections)
    copies = copied_after_each_row(whole, tmp_path)
    asyncio.run(whole.study())
    num_resumed = 0
    for folder in copies:
        resumed = Scene(folder, stage, skill, **sections)
        num_resumed += resumed.is_resumed
        asyncio.run(resumed.study())
        assert resumed.generator.evaluated == whole.generator.evaluated, resumed.said
        assert resumed.rows() == whole.rows()
        told = ("ended_by", "best_step", "last_step", "average", "policy_version", "optimizer_steps")
        assert {key: resumed.summary.get(key) for key in told} == {key: whole.summary.get(key) for key in told}
        assert max(resumed.checkpoints()) == max(whole.checkpoints())
    assert num_resumed >= 2, "it was never resumed at two moments"


@scene
async def test_sft_ends_with_its_average_which_is_published_saved_and_evaluated_beside_the_last_weights_validation(tmp_path):
    each = Scene(tmp_path, skill={6.0: 4}, averages=True)
    await each.study()
    assert each.generator.evaluated == [(3.5, 7)]  # mean of 1 to 6, published after the 6 steps' own
    assert each.summary["average"] == {
        "kind": "ema", "num_averaged": 6, "average_relative_distance": 0.5, "last_validation": {"step": 6, "accuracy": 0.5},
    }  # fmt: skip
    (last,) = whole_checkpoints(each.folder)[-1:]
    assert (last.step, last.is_trained, last.content["policy_version"]) == (6, True, 7)
    assert json.loads((last.folder / "trainer" / "fake.json").read_text()) == [3.5, []]


@scene
async def test_a_sweep_of_sizes_chooses_among_averages_and_tells_of_the_best_ones(tmp_path):
    keys = {"skill": {1.5: 6, 3.5: 5}, "averages": True, "eval": {"validate_every": 0}, "sft": {"sizes": [4, "all"]}}
    each = Scene(tmp_path, **keys)  # of 2 steps and of 6
    await each.study()
    assert each.generator.evaluated[-1][0] == 1.5
    assert each.summary["average"]["num_averaged"] == 2
    assert each.checkpoints() == {2: True}


@scene
async def test_a_stop_in_the_last_validation_saves_the_average_once_and_says_what_is_missing(tmp_path):
    cue = Stage()
    each = Scene(tmp_path, averages=True, cue=cue, eval={"validate_every": 6})
    cue.holds = lambda actor, what, detail: what == "generate" and "validation" in detail[0][0]
    task = asyncio.create_task(each.study())
    await cue.next("generate")
    await each.run.save_now()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    each.run.recorder.close()
    resumed = Scene(tmp_path, averages=True, eval={"validate_every": 6})
    await resumed.study()
    assert resumed.generator.evaluated == [(3.5, 2)]
    assert any("no validation of sft step 6: it was cut off" in text for text in resumed.said)
    assert resumed.summary["average"]["num_averaged"] == 6
    assert resumed.summary["average"]["last_validation"] is None


@scene
async def test_what_run_max_hours_cuts_keeps_its_last_weights_and_goes_on_to_the_same_average(tmp_path):
    now_s = [0.0]
    each = Scene(tmp_path, averages=True)
    each.run.time_limit = TimeLimit(1.0, num_evaluated=2, clock=lambda: now_s[0])

    async def train(batch, original=each.learner.train_sft):
        now_s[0] += 700.0
        return await original(batch)

    each.learner.train_sft = train
    await each.study()
    done = len(each.learner.history)
    assert 1 < done < 6
    assert each.generator.evaluated[0][0] == done
    assert each.summary["ended_by"] == "max_hours"
    assert "average" not in each.summary
    resumed = Scene(tmp_path, averages=True)
    await resumed.study()
    assert resumed.generator.evaluated[0][0] == 3.5


@scene
async def test_a_best_checkpoint_that_is_gone_leaves_the_last_weights_with_a_warning(tmp_path):
    each = Scene(tmp_path, skill=FALLS, **STOPS)
    train = each.learner.train_sft

    async def removing(batch):
        if each.learner.weights == 3:
            shutil.rmtree(each.folder / "checkpoints" / "sft-2")
        return await train(batch)

    each.learner.train_sft = removing
    await each.study()
    assert each.generator.evaluated == [(4.0, 4)]
    assert any(text.startswith("warning: sft: stopped early after step 4") and "of step 2, cannot be used" in text for text in each.said)


@scene
async def test_a_disk_that_is_full_at_the_stop_costs_the_best_model_and_not_the_run(tmp_path):
    async def full(actor, what, detail):
        if what == "save_checkpoint" and Path(detail).name == ".sft-4.writing" and not each.generator.evaluated:
            raise OSError(28, "No space left on device")

    each = Scene(tmp_path, skill=FALLS, cue=full, **STOPS)
    await each.study()
    assert each.generator.evaluated == [(4.0, 4)]  # the learner still holds what is to be saved after it
    assert each.checkpoints() == {2: False, 4: True}
    assert (each.summary["last_step"], each.summary["best_step"]) == (4, 2)


@scene
async def test_expert_iteration_stops_after_rounds_without_a_better_one_and_ends_with_the_best_rounds_model(tmp_path):
    each = Scene(tmp_path, "expert_iteration", FALLS, **STOPS)
    await each.study()
    assert each.generator.evaluated == [(2.0, 2)]
    assert (each.summary["ended_by"], each.summary["last_step"], each.summary["best_step"]) == ("early stopping", 4, 2)
    assert each.checkpoints() == {2: False, 4: True}


@scene
async def test_each_round_ends_with_the_average_of_its_own_updates(tmp_path):
    each = Scene(tmp_path, "expert_iteration", averages=True, expert_iteration={"rounds": 2, "batch_size": 4})
    await each.study()
    lines = map(json.loads, (each.folder / "metrics.jsonl").read_text().splitlines())
    rows = [row for row in lines if "num_accepted" in row]
    sizes = [row["num_averaged"] for row in rows]
    first = (sizes[0] + 1) / 2  # mean of 1 to n
    assert each.generator.evaluated == [(first + (sizes[1] + 1) / 2, 2)]
    assert all(size > 1 for size in sizes)


@pytest.mark.parametrize(("ended_by", "is_finished"), [("early stopping", True), ("max_hours", False), (None, True)])
def test_a_sweep_takes_a_run_that_stopped_early_for_finished_and_one_that_was_cut_not(ended_by, is_finished):
    stage = {"name": "grpo", **({"ended_by": ended_by} if ended_by else {})}
    sweep = SimpleNamespace(stages=["grpo"], stages_of=lambda entry: [stage])
    assert SweepFolder.is_finished(sweep, None) == is_finished
