"""Behaviour 26 for SFT with made-up engines: killed after any row that it writes, stopped in a validation, or on a full disk, the stage
goes on to the same training, the same rows and the same evaluation."""

import asyncio
import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes import Cue, Diary, FakeGenerator, FakeLearner, FakeScorer, Stage, at_once, scene, settle
from samples import ByteTokenizer, make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.data.traces import SftRow
from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.resume import find_resumption
from mathrl_ray.stages.study import run_study
from mathrl_ray.types import Completion

FULL = OSError(28, "No space left on device")


class Tokenizer(ByteTokenizer):
    eos_token_id = 1


@dataclass
class Learner(FakeLearner):
    """Its weights are what it was trained on."""

    seen: list[list[tuple[int, ...]]] = field(default_factory=list)

    async def start_stage(self, settings):
        self.seen = []
        await super().start_stage(settings)

    async def train_sft(self, batch):
        metrics = await super().train_sft(batch)
        self.seen.append([example.response_ids for example in batch])
        return metrics

    def state(self):
        return self.seen

    def take(self, state):
        self.seen = [[tuple(ids) for ids in batch] for batch in state]


class SftScene:
    """A study of SFT on made-up actors, in a new folder or where an earlier one of this folder stopped."""

    def __init__(self, folder: Path, stages=("sft",), cue: Cue = at_once, traces=None, **sections):
        recipe = recipe_for(
            folder,
            run={"resume": "auto", "keep_last": 99, **sections.get("run", {})},
            sft={"batch_size": 4, "epochs": 2, **sections.get("sft", {})},
            eval={"num_problems": 4, **sections.get("eval", {})},
        )
        self.stages, self.said = list(stages), []
        resumption = find_resumption(recipe, self.stages)
        recorder = resumption.open(recipe, self.stages, self.said.append) if resumption else None
        self.learner, self.generator = Learner(Diary(), cue=cue), FakeGenerator(Diary(), cue=cue)
        actors = Actors(self.learner, (self.generator,), (FakeScorer(Diary()),), (0,))
        self.run = make_run(recipe, actors, tokenizer=Tokenizer(), recorder=recorder)
        self.run.console.say = self.said.append
        self.run.traces = traces or [
            SftRow(f"t{index:02}", "Q", f"r{index}", gold=f"r{index}" if index % 3 else "other") for index in range(11)
        ]
        if resumption:
            resumption.restore(self.run)

    async def study(self):
        await run_study(self.run, self.stages)
        self.run.recorder.close()

    @property
    def folder(self):
        return self.run.recorder.folder

    def rows(self):
        """What each row of metrics is of, apart from those of checkpoints, and how many there are of each."""
        lines = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        kinds = ("loss", "sync_s", "validation_accuracy", "accuracy", "num_kept")
        return Counter(
            (row["stage"], row["step"], row["policy_version"], row.get("sft_size"), kind) for row in lines for kind in kinds if kind in row
        )

    def files(self):
        return {path.name for part in ("evaluations", "trajectories") for path in (self.folder / part).iterdir()}


def copied_after_each_row(each, folder):
    """Copies of the run's folder as a kill after each row of metrics would leave it."""
    copies, write = [], each.run.recorder.metrics

    def metrics(*row):
        write(*row)
        copies.append(folder / str(len(copies)))
        shutil.copytree(each.folder, copies[-1] / each.folder.name)

    each.run.recorder.metrics = metrics
    return copies


def some_traces_twice():
    """Of which some are the same object, so that none can be told by what it is."""
    one = SftRow("t", "Q", "r", gold="r")
    return [one if index % 3 else SftRow(f"t{index}", "Q", f"r{index}", gold=f"r{index}" if index % 2 else "other") for index in range(20)]


@pytest.mark.parametrize(
    ("stages", "sections"),
    [
        (["sft"], {"run": {"checkpoint_every": 1}, "eval": {"validate_every": 2}}),
        (["sft"], {"run": {"checkpoint_every": 2}, "eval": {"validate_every": 1}, "sft": {"epochs": 1}}),
        (["sft"], {"run": {"checkpoint_every": 4}, "eval": {"validate_every": 3}, "sft": {"epochs": 1}}),
        (["sft"], {"run": {"checkpoint_every": 1}, "sft": {"keep": "best"}}),
        (["sft_filtered"], {"run": {"checkpoint_every": 1}, "eval": {"validate_every": 2}}),
        (["sft_filtered"], {"run": {"checkpoint_every": 2}, "traces": some_traces_twice()}),
        (
            ["baseline", "sft"],
            {"run": {"checkpoint_every": 1}, "eval": {"validate_every": 1}, "sft": {"sizes": [4, 8, "all"], "epochs": 1}},
        ),
    ],
    ids=["every step", "every second step", "the end only", "the best traces", "filtered", "filtered, some traces twice", "sizes"],
)
def test_behaviour_26_killed_after_any_row_sft_goes_on_to_the_same_training_rows_and_files(tmp_path, stages, sections):
    whole = SftScene(tmp_path / "whole", stages, **sections)
    copies = copied_after_each_row(whole, tmp_path)
    asyncio.run(whole.study())
    resumed_at = set()
    for folder in copies:
        resumed = SftScene(folder, stages, **sections)
        if resumed.folder.name != whole.folder.name:  # a new run: there was nothing yet to go on from
            continue
        resumed_at |= {text for text in resumed.said if text.startswith("resumed: ")}
        asyncio.run(resumed.study())
        assert resumed.learner.seen == whole.learner.seen
        assert resumed.rows() == whole.rows()
        assert resumed.files() == whole.files()
        assert resumed.run.stages[-1]["optimizer_steps"] == whole.run.stages[-1]["optimizer_steps"]
    assert len(resumed_at) >= 2, "it was never resumed at two moments"


def is_validation(actor, what, detail):
    return what == "generate" and "validation" in detail[0][0]


@pytest.mark.parametrize("step", [2, 6])
@scene
async def test_an_sft_that_is_stopped_in_a_validation_does_that_again_and_publishes_nothing_twice(tmp_path, step):
    sections = {"eval": {"validate_every": 2}}
    whole = SftScene(tmp_path / "whole", **sections)
    await whole.study()
    cue = Stage()
    each = SftScene(tmp_path / "stopped", cue=cue, **sections)
    cue.holds = is_validation
    task = asyncio.create_task(each.study())
    for _ in range(step // 2 - 1):
        await cue.go_on("generate")
    await cue.next("generate")
    each.generator._answer = lambda request, began_with: Completion("", (), (), ((began_with, 0),), "abort")
    cue.holds = lambda actor, what, detail: False
    cue.let_all_go_on()
    await settle()
    await each.run.save_now()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    each.run.recorder.close()
    assert [checkpoint.step for checkpoint in whole_checkpoints(each.folder)] == [step]
    resumed = SftScene(tmp_path / "stopped", **sections)
    await resumed.study()
    assert resumed.rows() == whole.rows()
    assert resumed.files() == whole.files()


@scene
async def test_a_save_in_the_middle_of_a_publication_waits_for_its_row(tmp_path):
    sections = {"run": {"checkpoint_every": 0}, "eval": {"validate_every": 2}}
    whole = SftScene(tmp_path / "whole", **sections)
    await whole.study()
    cue = Stage("publish")
    each = SftScene(tmp_path / "stopped", cue=cue, **sections)
    task = asyncio.create_task(each.study())
    await cue.go_on("publish")  # the start model
    await cue.next("publish")
    saving = asyncio.create_task(each.run.save_now())
    await settle()
    assert not each.learner.diary.of("save_checkpoint")
    await cue.go_on("publish")
    await saving
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    each.run.recorder.close()
    resumed = SftScene(tmp_path / "stopped", **sections)
    await resumed.study()
    assert resumed.rows() == whole.rows()


@pytest.mark.parametrize("sft", [{}, {"sizes": [4, 8]}])
@pytest.mark.parametrize("is_full_for_ever", [False, True])
@scene
async def test_a_disk_that_is_full_at_the_end_costs_no_evaluation_and_is_tried_again_after_it(tmp_path, sft, is_full_for_ever):
    num_tries = 0

    async def full(actor, what, detail):
        nonlocal num_tries
        if what == "save_checkpoint":
            num_tries += 1
            if num_tries == 1 or is_full_for_ever:
                raise FULL

    each = SftScene(tmp_path, cue=full, run={"checkpoint_every": 0}, sft=sft)
    if is_full_for_ever:
        with pytest.raises(OSError, match="No space left"):
            await each.study()
    else:
        await each.study()
    assert num_tries == 2
    assert any("warning: no checkpoint: [Errno 28] No space left" in text for text in each.said)
    assert [row for row in each.rows() if row[-1] == "accuracy"]
    assert (each.folder / "summary.json").exists() != is_full_for_ever  # what was not saved is not finished
    assert bool(whole_checkpoints(each.folder)) != is_full_for_ever
