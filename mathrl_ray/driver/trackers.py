"""What a run tells TensorBoard and Weights & Biases: each row of metrics.jsonl, and a few responses of each evaluation.

Made by job.py, told by the recorder. A tracker does its work in a thread of its own, which takes it from a queue: neither a step nor the
other tracker waits for it. What it shows follows from the run's other files alone, so where those were changed (the run goes on, or went
back to a checkpoint) it begins anew and reads them again: no step is there twice, and nothing of what was moved aside. (Weights & Biases
takes nothing back: there another run begins, beside the one that was left.)

A tracker that fails (a full disk, a package that does not fit, no network) is left out from then on, with one warning; the run goes on.
"""

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from mathrl_ray.config import Recipe
from mathrl_ray.core.masking import known_secrets, masked
from mathrl_ray.driver.recorder import Recorder, recipe_text
from mathrl_ray.driver.tensorboard_files import TensorBoardFiles
from mathrl_ray.driver.tracked_values import sample_text, tracked_row
from mathrl_ray.driver.wandb_run import WandbRun, has_wandb

MOST_WAITING = 20_000
"""Rows in the queue: more wait only where a tracker hangs, and it is given up."""
CLOSE_LIMIT_S, HURRIED_LIMIT_S = 5.0, 1.0
"""What a run waits at its end for trackers that have not written everything; and where it was told to stop."""
_FIRST_KEYS = ("run.seed", "model.path", "learner.learning_rate", "grpo.loss", "grpo.group_size", "grpo.prompts_per_step")
"""Hyperparameters that are always named; others where they are not the default."""
_NO_HPARAMS = ("run.", "study.", "sweep.", "trackers.", "device.", "data.columns")

_Message = tuple[Literal["row", "evaluation", "anew"], Any]


class Tracker(Protocol):
    """What shows numbers somewhere. Its methods are called by one thread; each may raise anything."""

    name: str

    def open(self, wall_time_s: float) -> None:
        """Begin, or begin anew: what was shown before does not count. wall_time_s: when the run began, in Unix time."""

    def numbers(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None: ...
    def text(self, tag: str, step: int, wall_time_s: float, markdown: str) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Following:
    """One tracker that follows one run's folder."""

    def __init__(
        self,
        folder: Path,
        tracker: Tracker,
        say: Callable[[str], None],
        *,
        began_s: float,
        num_samples: int = 0,
        secrets: Sequence[str] = (),
    ) -> None:
        """
        Args:
            folder: the run's.
            tracker: who is told.
            say: for warnings; called by the thread too.
            began_s: Unix time at which the run's time_s is 0.
            num_samples: responses of each evaluation.
            secrets: are masked in them.
        """
        self._folder, self._tracker, self._say = folder, tracker, say
        self._began_s, self._num_samples, self._secrets = began_s, num_samples, secrets
        self._queue: queue.Queue[_Message | None] = queue.Queue(MOST_WAITING)
        self._last: dict[str, tuple[int, float]] = {}
        """Step and time of each stage's last row."""
        self._shown: set[Path] = set()
        """Evaluations whose responses were shown."""
        self._is_over = False
        """Ended, failed or given up."""
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"tracker {tracker.name}")
        self._thread.start()
        self.rewound(_size(folder / "metrics.jsonl"))

    def row(self, row: Mapping[str, Any]) -> None:
        """A row was written."""
        self._put(("row", row))

    def evaluated(self, path: Path) -> None:
        """An evaluation's file was written."""
        self._put(("evaluation", path))

    def rewound(self, metrics_bytes: int) -> None:
        """The run's files were changed; metrics.jsonl is as long as this."""
        self._put(("anew", metrics_bytes))

    def end(self) -> None:
        """Write what waits, and end; nothing follows."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """End; what takes longer than the limit is given up."""
        if self._is_over:
            return
        self.end()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._give_up("had not written everything when the run ended")

    def _put(self, message: _Message) -> None:
        if self._is_over:
            return
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._give_up(f"did not keep up: {MOST_WAITING:,} rows wait")

    def _give_up(self, reason: str) -> None:
        self._is_over = True
        self._say(f"warning: {self._tracker.name} {reason}. The run's own files are complete.")

    def _work(self) -> None:
        try:
            while (message := self._queue.get()) is not None and not self._is_over:
                self._handle(message)
                if self._queue.empty():
                    self._tracker.flush()
            self._tracker.close()
        except BaseException as error:  # border: whatever a tracker raises, the run goes on without it
            if not self._is_over:
                self._is_over = True
                self._say(f"warning: {self._tracker.name} is left out from now on: {type(error).__name__}: {error}")
            with contextlib.suppress(BaseException):  # it has failed already
                self._tracker.close()

    def _handle(self, message: _Message) -> None:
        match message:
            case ("row", row):
                self._show_row(row)
            case ("evaluation", path):
                self._show_samples(path)
            case ("anew", metrics_bytes):
                self._begin_anew(metrics_bytes)

    def _begin_anew(self, metrics_bytes: int) -> None:
        self._last.clear()
        self._shown.clear()
        self._tracker.open(self._began_s)
        for row in _rows(self._folder / "metrics.jsonl", metrics_bytes):
            self._show_row(row)
        for path in sorted((self._folder / "evaluations").glob("*.parquet")):
            self._show_samples(path)

    def _show_row(self, row: Mapping[str, Any]) -> None:
        found = tracked_row(row)
        self._last[row["stage"]] = row["step"], found.time_s
        if found.values:
            self._tracker.numbers(found.step, self._began_s + found.time_s, found.values)

    def _show_samples(self, path: Path) -> None:
        if not self._num_samples or path in self._shown:  # it may have been there before it was told of
            return
        try:
            found = sample_text(path, self._num_samples, self._secrets)
        except Exception as error:  # border: samples are for looking at; a file that was moved aside meanwhile is none
            self._say(f"warning: no samples of {path.name} for {self._tracker.name}: {error}")
            return
        self._shown.add(path)
        if found is not None:
            step, time_s = self._last.get(found.stage, (0, 0.0))
            self._tracker.text(found.tag, step if found.step is None else found.step, self._began_s + time_s, found.text)


@contextlib.contextmanager
def tracking(
    recorder: Recorder, recipe: Recipe, say: Callable[[str], None], is_stopping: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Follow what a recorder writes, during the block. All trackers end at the same time, sooner where the run was told to stop."""
    began_s, secrets = time.time() - recorder.elapsed_s(), sorted(known_secrets(os.environ, recipe.model_dump()))
    num_samples = recipe.trackers.num_samples
    with contextlib.ExitStack() as stack:
        followings: list[Following] = []
        stack.callback(lambda: _close(followings, HURRIED_LIMIT_S if is_stopping() else CLOSE_LIMIT_S))
        for tracker in _chosen(recorder.folder, recipe):
            followings.append(Following(recorder.folder, tracker, say, began_s=began_s, num_samples=num_samples, secrets=secrets))
            stack.enter_context(recorder.watched(followings[-1]))
        yield


def _close(followings: Sequence[Following], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    for each in followings:
        each.end()
    for each in followings:
        each.close(max(0.0, deadline_s - time.monotonic()))


def _chosen(folder: Path, recipe: Recipe) -> Iterator[Tracker]:
    settings = masked(recipe.model_dump(mode="json"))
    yield TensorBoardFiles(folder, recipe_text(recipe), hyperparameters(settings))
    match recipe.trackers.wandb:
        case "online":
            yield WandbRun(folder, recipe.trackers.wandb_project, "online", settings)
        case "auto" if has_wandb():
            yield WandbRun(folder, recipe.trackers.wandb_project, "offline", settings)


def hyperparameters(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str | float | bool]:
    """What tells a run from others, by key: a few that are always there, and all that are not the default.

    >>> hyperparameters({"run": {"seed": 2}, "grpo": {"group_size": 4, "num_steps": 50}})["grpo.group_size"]
    4
    """
    defaults = Recipe().model_dump(mode="json")
    found: dict[str, str | float | bool] = {}
    for section, values in settings.items():
        for name, value in values.items():
            key = f"{section}.{name}"
            is_told = value != defaults.get(section, {}).get(name) and not key.startswith(_NO_HPARAMS)
            if key in _FIRST_KEYS or is_told:
                found[key] = value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
    return found


def _rows(path: Path, num_bytes: int) -> Iterator[dict[str, Any]]:
    """The whole rows of the file's first part."""
    if not path.exists():
        return
    read = 0
    with path.open("rb") as file:
        for line in file:
            read += len(line)
            if read > num_bytes or not line.endswith(b"\n"):
                return
            yield json.loads(line)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
