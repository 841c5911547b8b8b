"""run.max_hours: until when may a stage train, so that the last checkpoint and the full evaluation are done within the limit?

Called by the loops, before each step, and by the evaluations, which say how long they took. Pure but for its clock.

    job's start                                        is_up                         max_hours
    |-- start, steps, validations, checkpoints ---------|- this step -|- room ---------|
                                                                       evaluation + checkpoint, each as measured in this job so far
"""

import contextlib
import time
from collections.abc import Callable, Iterator

UNMEASURED_SHARE = 0.1
"""Of the limit, kept for what this job has not done yet: the evaluation; for the checkpoint a tenth of that."""
MARGIN = 1.2
"""No evaluation takes exactly as long as the one before: responses get longer."""


class TimeIsUpError(RuntimeError):
    """run.max_hours has passed before a stage could begin."""


class TimeLimit:
    """A job's limit. Without one it is never up."""

    def __init__(
        self,
        max_hours: float = 0.0,
        *,
        num_evaluated: int = 0,
        num_prompts: int = 1,
        began_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            max_hours: run.max_hours; 0 for no limit.
            num_evaluated: responses of the full evaluation at a stage's end, with one prompt.
            num_prompts: with each of which it is done.
            began_s: when the job began, by the clock; by default now.
            clock: seconds.
        """
        self._clock = clock
        self._began_s = clock() if began_s is None else began_s
        self._limit_s = max_hours * 3600
        self._num_evaluated, self._num_prompts = num_evaluated, num_prompts
        self._response_s: float | None = None
        """Of a smaller evaluation."""
        self._evaluation_s: float | None = None
        """Of a full one, with one prompt."""
        self._checkpoint_s: float | None = None
        self._step_began_s: float | None = None
        self._longest_step_s = 0.0
        self.has_ended_stage = False
        """Whether the present stage was told that it may not take another step."""

    @property
    def room_s(self) -> float:
        """What is kept for the end of the stage.

        >>> TimeLimit(2.0).room_s  # nothing measured: 0.1 of 7200 s, and a tenth of that
        792.0
        """
        unmeasured_s = UNMEASURED_SHARE * self._limit_s
        evaluation_s = unmeasured_s
        if self._evaluation_s is not None:  # a small one lets engines idle, so that a full one takes less than it promises
            evaluation_s = MARGIN * self._evaluation_s * self._num_prompts
        elif self._response_s is not None:
            evaluation_s = MARGIN * self._response_s * self._num_evaluated * self._num_prompts
        checkpoint_s = UNMEASURED_SHARE * unmeasured_s if self._checkpoint_s is None else MARGIN * self._checkpoint_s
        return evaluation_s + checkpoint_s

    def is_up(self) -> bool:
        """Whether another step as long as the longest so far would leave too little. To be asked once before each step."""
        now_s = self._clock()
        if self._step_began_s is not None:
            self._longest_step_s = max(self._longest_step_s, now_s - self._step_began_s)
        self._step_began_s = now_s
        is_up = self._limit_s > 0 and now_s - self._began_s + self._longest_step_s + self.room_s > self._limit_s
        self.has_ended_stage |= is_up  # less room may be kept later, when more was measured
        return is_up

    def begin_stage(self, stage: str) -> None:
        """Steps of another stage are of another length.

        Raises:
            TimeIsUpError: the limit leaves no time to evaluate it.
        """
        self._step_began_s, self._longest_step_s, self.has_ended_stage = None, 0.0, False
        if self.is_up():
            raise TimeIsUpError(
                f"run.max_hours = {self._limit_s / 3600:g} leaves no time for the stage {stage} ({self.room_s:.0f} s are kept for its "
                "evaluation and its checkpoint): raise it, or leave stages out of study.stages. The stages before it are finished."
            )
        self._step_began_s = None

    @contextlib.contextmanager
    def evaluating(self, num_responses: int) -> Iterator[None]:
        """Measure an evaluation of so many responses."""
        began_s = self._clock()
        yield
        seconds = self._clock() - began_s
        if num_responses >= self._num_evaluated:
            self._evaluation_s = max(self._evaluation_s or 0.0, seconds)
        elif num_responses:
            self._response_s = max(self._response_s or 0.0, seconds / num_responses)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Measure the writing of a checkpoint."""
        began_s = self._clock()
        yield
        self._checkpoint_s = max(self._checkpoint_s or 0.0, self._clock() - began_s)
