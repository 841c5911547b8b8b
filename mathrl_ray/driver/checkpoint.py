"""Checkpoints: all of a run at one moment between two optimizer steps, as one folder that appears whole.

    <run>/checkpoints/<stage>-<step>/
        config.json, tokenizer, model.safetensors         what AutoModelForCausalLM and vLLM open                      by the learner
        trainer/optimizer.safetensors, random-rank*, ...  masters, moments, counters, random states                    (trainer_state.py)
        trainer/run.json                                  what follows below                                           by the driver
        trainer/groups.parquet                            groups that were sampled and not trained on (group_rows.py)

    moment     after a step's weights are in all generators and its row is written (loops.py), so that policy_version means the learner's
               weights. The driver's part is taken at once, without an await; the learner stands while it writes, generators go on
    recipe     as the run had it, secrets masked; another one is refused at resume (resume.py)
    loops      slots, groups, what is in flight (loop_state.py). The prompt stream, the seeds of requests and the order of the data follow
               from numbers, so the driver has no random state; SFT's place in its data is its step
    ledger     counts and seconds of the stage so far
    metrics    the length of metrics.jsonl: what stands behind it is cut off at resume where it is of a later step (superseded.py)
    whole      written aside, synced, renamed (whole_folder.py): after a kill the last one that is there is whole

When: every run.checkpoint_every steps, after run.checkpoint_minutes, at the end of a stage's training, and when a job is told to stop.
Which stay: of each stage the run.keep_last newest and the run.keep_best with the highest validation accuracy of those whose step was
validated. The formats are safetensors, Parquet and JSON, so that reading one runs no code. Called by the stages and the loops.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.core.masking import masked
from mathrl_ray.driver.group_rows import read_groups, write_groups
from mathrl_ray.driver.loop_state import LoopState, loop_state
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.whole_folder import remove_whole, whole_folder

FORMAT = 1
TRAINER, RUN_FILE, GROUPS_FILE = "trainer", "run.json", "groups.parquet"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that is whole, as it was read."""

    folder: Path
    content: Mapping[str, Any]
    """run.json."""

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
    def facts(self) -> Mapping[str, Any]:
        """What the stage itself has kept."""
        return dict(self.content["facts"])

    def loops(self) -> LoopState:
        """Of a stage with loops."""
        return loop_state(self.content["loops"], read_groups(self.folder / TRAINER / GROUPS_FILE))


def is_due(run: Run, step: int) -> bool:
    """Whether the recipe asks for a checkpoint after this training step (from 1)."""
    every, minutes = run.recipe.run.checkpoint_every, run.recipe.run.checkpoint_minutes
    if every and step % every == 0:
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
    run: Run, stage: str, step: int, loops: LoopState | None = None, *, is_trained: bool = False, facts: Mapping[str, Any] | None = None
) -> Path:
    """Write one, and remove those that nobody keeps. Returns its folder.

    Args:
        run: the run.
        stage: its present stage.
        step: the training step that was the last.
        loops: of a stage that has loops.
        is_trained: no training step is to come in the stage.
        facts: plain values that the stage needs to go on.

    Raises:
        OSError, ActorError: it could not be written; nothing of it is left, and those before are there.
    """
    content = _content(run, stage, step, loops, is_trained, facts or {})  # before anything is awaited: it is one moment's
    groups = loops.groups if loops else []
    began, folder = time.monotonic(), run.recorder.checkpoint_folder(stage, step)
    with run.time_limit.saving():
        async with whole_folder(folder) as aside:
            with run.ledger.work("learner-0", "save_checkpoint"):
                figures = await run.actors.learner.save_checkpoint(str(aside))
            await asyncio.to_thread(_write, aside / TRAINER, run, content, groups)
    seconds, run.saved_s = time.monotonic() - began, run.recorder.elapsed_s()
    run.recorder.metrics(stage, step, run.policy_version, {"checkpoint_s": seconds, **figures})
    run.console.say(f"{stage} step {step}: checkpoint {folder.name} in {seconds:.1f} s")
    await asyncio.to_thread(_remove_old, run, stage)
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
        "recipe": masked(run.recipe.model_dump(mode="json")),
        "elapsed_s": run.recorder.elapsed_s(),
        "metrics_bytes": run.recorder.metrics_bytes,
        "canary_limit_nats": run.canary_limit_nats,
        "ledger": run.ledger.state(),
        "loops": loops.plain() if loops else None,
        "facts": dict(facts),
    }


def _write(trainer: Path, run: Run, content: dict[str, Any], groups: Sequence[Any]) -> None:
    write_groups(trainer / GROUPS_FILE, groups)
    content["data"] = data_digest(run.train_problems, run.traces)
    (trainer / RUN_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def data_digest(*parts: Iterable[Any]) -> str:
    """What tells one set of problems and traces from another: order, ids and texts.

    >>> data_digest(["a"], []) == data_digest([], ["a"])
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        for row in part:
            digest.update(repr(row).encode("utf-8", "surrogatepass") + b"\n")
        digest.update(b"end of part\n")
    return digest.hexdigest()


def read_checkpoint(folder: Path) -> Checkpoint:
    """
    Raises:
        ValueError, OSError: no checkpoint that this program can go on from.
    """
    content = json.loads((folder / TRAINER / RUN_FILE).read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise ValueError(f"{folder} is a checkpoint of format {content.get('format')}, this program reads format {FORMAT}")
    return Checkpoint(folder, content)


def whole_checkpoints(run_folder: Path) -> list[Checkpoint]:
    """All that a run can go on from, the furthest one last. What cannot be read is left out."""
    found: list[Checkpoint] = []
    for folder in (run_folder / "checkpoints").glob("[!.]*"):
        try:
            found.append(read_checkpoint(folder))
        except (OSError, ValueError):  # a folder of someone's own, or a damaged file
            continue
    return sorted(found, key=lambda each: (len(each.finished), each.step))


def _remove_old(run: Run, stage: str) -> None:
    """Remove what neither run.keep_last nor run.keep_best keeps."""
    steps = [each.step for each in whole_checkpoints(run.recorder.folder) if each.stage == stage]
    for step in set(steps) - kept_steps(steps, run.validations_of(stage), run.recipe.run.keep_last, run.recipe.run.keep_best):
        remove_whole(run.recorder.checkpoint_folder(stage, step))


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
