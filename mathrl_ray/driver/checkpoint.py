"""Checkpoints: all of a run at one moment between two optimizer steps, as one folder that appears whole.

    <run>/checkpoints/<stage>-<step>/
        config.json, tokenizer, model.safetensors         what AutoModelForCausalLM and vLLM open                      by the learner
        trainer/optimizer.safetensors, random-rank*, ...  masters, moments, counters, random states                    (trainer_state.py)
        trainer/run.json                                  what follows below                                           by the driver
        trainer/groups.parquet                            groups that were sampled and not trained on (group_rows.py)
        trainer/files.json                                length and checksum of each of these files                  (digests.py)

    moment     after a step's weights are in all generators and its row is written (loops.py), so that policy_version means the learner's
               weights. The driver's part is taken at once, without an await; the learner stands while it writes, generators go on
    recipe     as the run had it, secrets masked; another one is refused at resume (resume.py)
    loops      slots, groups, what is in flight (loop_state.py). The prompt stream, the seeds of requests and the order of the data follow
               from numbers, so the driver has no random state; SFT's place in its data is its step
    ledger     counts and seconds of the stage so far
    metrics    the length of metrics.jsonl: what stands behind it is cut off at resume where it is of a later step (superseded.py)
    digests    of the data, and of what is masked in the recipe
    whole      written aside, synced, renamed (whole_folder.py): after a kill the last one that is there is whole. What was damaged or half
               copied later is found by files.json

When: every run.checkpoint_every steps, after run.checkpoint_minutes, at the end of a stage's training, and when a job is told to stop.
Which stay: of each stage the run.keep_last newest, the run.keep_best with the highest validation accuracy of those whose step was
validated, those whose step is being validated, and the one that a guard would go back to. The formats are safetensors, Parquet and
JSON, so that reading one runs no code.
Called by the stages and the loops.
"""

import asyncio
import json
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.core.masking import masked
from mathrl_ray.driver.digests import check_files, file_digests, read_object, run_digests
from mathrl_ray.driver.group_rows import read_groups, write_groups
from mathrl_ray.driver.loop_state import LoopState, loop_state
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.whole_folder import remove_whole, whole_folder

FORMAT = 1
TRAINER, RUN_FILE, GROUPS_FILE, FILES_FILE = "trainer", "run.json", "groups.parquet", "files.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that has all of its files, as it was read."""

    folder: Path
    content: Mapping[str, Any]
    """run.json."""
    files: Mapping[str, Collection[int]]
    """files.json."""

    @property
    def stage(self) -> str:
        return str(self.content["stage"])

    @property
    def step(self) -> int:
        return int(self.content["step"])

    @property
    def finished(self) -> list[dict[str, Any]]:
        """Summaries of the stages before."""
        return list(self.content["finished"])

    @property
    def is_trained(self) -> bool:
        """Whether no training step is to come in its stage."""
        return bool(self.content["is_trained"])

    @property
    def guards(self) -> Mapping[str, Any]:
        """State of the stage's guards; empty in a checkpoint of before there were any."""
        return dict(self.content.get("guards", {}))

    @property
    def remedies(self) -> Mapping[str, Any]:
        """What they had changed in the recipe."""
        return dict(self.content.get("remedies", {}))

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the stage itself has kept."""
        return dict(self.content["facts"])

    @property
    def num_waiting_tokens(self) -> int:
        """Of responses that were sampled, and not trained on or dropped yet."""
        loops = self.loops() if self.content["loops"] else None
        groups = [*loops.sampled.values(), *loops.buffered.values()] if loops else []
        return sum(len(trajectory.completion.token_ids) for group in groups for trajectory in group.trajectories)

    def loops(self) -> LoopState:
        """Of a stage with loops."""
        return loop_state(self.content["loops"], read_groups(self.folder / TRAINER / GROUPS_FILE))


def is_due(run: Run, step: int) -> bool:
    """Whether the recipe asks for a checkpoint after this training step (from 1)."""
    every, minutes = run.recipe.run.checkpoint_every, run.recipe.run.checkpoint_minutes
    if every and step % every == 0:
        return True
    validated = run.recipe.eval.validate_every  # each step that early stopping may choose, before it is known how good it is
    if run.recipe.eval.stop_after and validated and step % validated == 0:
        return True
    return minutes > 0 and run.recorder.elapsed_s() - run.saved_s >= 60 * minutes


async def try_to_save(run: Run, save: Coroutine[Any, Any, None]) -> None:
    """Save in the middle of a stage, where a full disk costs the checkpoint and not the run."""
    try:
        await save
    except (OSError, ActorError) as error:
        run.saved_s = run.recorder.elapsed_s()
        run.console.say(f"warning: no checkpoint: {error}. The run goes on; the next try comes when the next one is due.")


async def save_checkpoint(
    run: Run,
    stage: str,
    step: int,
    loops: LoopState | None = None,
    *,
    is_trained: bool = False,
    facts: Mapping[str, Any] | None = None,
    replaces: bool = False,
) -> Path:
    """Write one, and remove those that nobody keeps. Returns its folder.

    Args:
        run: the run.
        stage: its present stage.
        step: the training step that was the last.
        loops: of a stage that has loops.
        is_trained: no training step is to come in the stage.
        facts: plain values that the stage needs to go on.
        replaces: the step's checkpoint may be there; it stays until this one is whole.

    Raises:
        OSError, ActorError: it could not be written; nothing of it is left, and those before are there.
    """
    content = _content(run, stage, step, loops, is_trained, facts or {})  # before anything is awaited: it is one moment's
    groups = loops.groups if loops else []
    began, folder = time.monotonic(), run.recorder.checkpoint_folder(stage, step)
    with run.time_limit.saving():
        async with whole_folder(folder, replaces=replaces) as aside:
            with run.ledger.work("learner-0", "save_checkpoint"):
                figures = await run.actors.learner.save_checkpoint(str(aside))
            await asyncio.to_thread(_write, aside, run, content, groups)
    seconds, run.saved_s = time.monotonic() - began, run.recorder.elapsed_s()
    run.recorder.metrics(stage, step, run.policy_version, {"checkpoint_s": seconds, **figures})
    run.console.say(f"{stage} step {step}: checkpoint {folder.name} in {seconds:.1f} s")
    await asyncio.to_thread(_remove_old, run, stage, set(loops.validating) if loops else set(), run.guards.good_step)
    return folder


def _content(run: Run, stage: str, step: int, loops: LoopState | None, is_trained: bool, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "stage": stage,
        "step": step,
        "policy_version": run.policy_version,
        "optimizer_steps": run.ledger.counts.optimizer_steps,
        "is_trained": is_trained,
        "finished": [dict(summary) for summary in run.stages],
        "recipe": masked(run.given_recipe.model_dump(mode="json")),
        "elapsed_s": run.recorder.elapsed_s(),
        "metrics_bytes": run.recorder.metrics_bytes,
        "canary_limit_nats": run.canary_limit_nats,
        "ledger": run.ledger.state(),
        "guards": run.guards.state(),
        "remedies": dict(run.remedies),
        "loops": loops.plain() if loops else None,
        "facts": dict(facts),
    }


def _write(folder: Path, run: Run, content: dict[str, Any], groups: Sequence[Any]) -> None:
    write_groups(folder / TRAINER / GROUPS_FILE, groups)
    content["digests"] = run_digests(
        run.given_recipe, train=run.train_problems, traces=run.traces, validation=run.validation_problems, test=run.test_problems
    )
    run.recorder.sync_metrics()  # a power cut must not leave it shorter than is written here
    (folder / TRAINER / RUN_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / TRAINER / FILES_FILE).write_text(json.dumps({"files": file_digests(folder)}, indent=1) + "\n", encoding="utf-8")


def read_checkpoint(folder: Path) -> Checkpoint:
    """
    Raises:
        ValueError, OSError: no checkpoint that this program can go on from; of its large files only the lengths were looked at.
    """
    files = read_object(folder / TRAINER / FILES_FILE).get("files", {})
    run_file = f"{TRAINER}/{RUN_FILE}"
    if run_file not in files:
        raise ValueError(f"{folder / TRAINER / FILES_FILE} is damaged: it does not name {run_file}")
    check_files(folder, files, read=[run_file])
    content = read_object(folder / run_file)
    if content.get("format") != FORMAT:
        raise ValueError(f"{folder} is a checkpoint of format {content.get('format')}, this program reads format {FORMAT}")
    return Checkpoint(folder, content, files)


def check_whole(checkpoint: Checkpoint, metrics_file: Path) -> None:
    """Read all files of a checkpoint, and look whether the rows of metrics are there that were written before it.

    Raises:
        ValueError, OSError: a file is missing or damaged; it is named.
    """
    check_files(checkpoint.folder, checkpoint.files)
    length, written = metrics_file.stat().st_size, checkpoint.content["metrics_bytes"]
    if length < written:
        raise ValueError(f"{metrics_file} has {length} bytes, and had {written} when {checkpoint.folder.name} was written")


def whole_checkpoints(run_folder: Path) -> list[Checkpoint]:
    """All that a run itself has written and that have their files, the furthest one last."""
    return _read_all(run_folder)[0]


def unreadable_checkpoints(run_folder: Path) -> dict[Path, Exception]:
    """Folders of which `read_checkpoint` says that they are none, and why."""
    return _read_all(run_folder)[1]


def _read_all(run_folder: Path) -> tuple[list[Checkpoint], dict[Path, Exception]]:
    found: list[Checkpoint] = []
    unreadable: dict[Path, Exception] = {}
    for folder in sorted((run_folder / "checkpoints").glob("[!.]*")):
        try:
            checkpoint = read_checkpoint(folder)
        except (OSError, ValueError) as error:  # a folder of someone's own, or a damaged file
            unreadable[folder] = error
            continue
        if folder.name == f"{checkpoint.stage}-{checkpoint.step}":  # else a copy that somebody has made
            found.append(checkpoint)
    return sorted(found, key=lambda each: (len(each.finished), each.step)), unreadable


def _remove_old(run: Run, stage: str, validating: Collection[int], good_step: int | None) -> None:
    """Remove what nobody keeps. Where that fails the run goes on: the disk is fuller than it could be."""
    keys, steps = run.recipe.run, [each.step for each in whole_checkpoints(run.recorder.folder) if each.stage == stage]
    kept = kept_steps(steps, run.validations_of(stage), keys.keep_last, keys.keep_best) | set(validating)
    if good_step is not None:
        kept |= steps_around(steps, good_step)
    for step in sorted(set(steps) - kept):
        folder = run.recorder.checkpoint_folder(stage, step)
        try:
            remove_whole(folder)
        except OSError as error:
            run.console.say(f"warning: the old checkpoint {folder.name} was not removed: {error}. The run goes on.")


def kept_steps(steps: Sequence[int], accuracies: Mapping[int, float], keep_last: int, keep_best: int) -> set[int]:
    """Which of a stage's checkpoints stay, by their steps.

    Args:
        steps: all that are there.
        accuracies: of validations, by step.
        keep_last: the newest stay, so many.
        keep_best: and of those with an accuracy the best, so many; of equal ones the newest.

    >>> kept_steps([1, 2, 3, 4, 5], {1: 0.2, 2: 0.5, 3: 0.5, 9: 0.9}, keep_last=1, keep_best=1)
    {3, 5}
    """
    best = sorted((step for step in steps if step in accuracies), key=lambda step: (accuracies[step], step))
    return {*sorted(steps)[-keep_last:], *(best[-keep_best:] if keep_best else [])}


def steps_around(steps: Sequence[int], good_step: int) -> set[int]:
    """The step that a rollback would take, the newest one up to the last good step, and the one after it, which it may take later: else
    the newest ones would always be too new, and the good one would never be a newer one.

    >>> steps_around([10, 20, 30, 40], 25)
    {20, 30}
    """
    ordered = sorted(steps)
    return {*[step for step in ordered if step <= good_step][-1:], *[step for step in ordered if step > good_step][:1]}
