"""From a problem to a graded group of responses, and from requests to responses or grades.

Called by the loops and the evaluations. Knows the actors' Protocols through the run's replicas. What comes back is in the order of what
was asked, whichever actor answered and however often it had to be asked.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mathrl_ray.actors.interfaces import Generator
from mathrl_ray.core.reward_weights import rewarded
from mathrl_ray.core.sampling import request_seed
from mathrl_ray.driver.replicas import Replica
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.waiting import all_of
from mathrl_ray.types import (
    Completion,
    GenerationRequest,
    Grade,
    Problem,
    SamplingSettings,
    ScoreRequest,
    SftExample,
    Trajectory,
    TrajectoryGroup,
)

Item = TypeVar("Item")
Answer = TypeVar("Answer")

EVALUATION_STEP, CANARY_STEP = -1, -2
"""What stands for the step in seeds of requests that belong to no training step."""
PART = 64
"""Requests of an evaluation that go to an actor together: few enough that the actors end together and a dead engine costs little."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One group to be sampled."""

    step: int
    """The step that it is sampled for, from which its id and seeds follow; where groups are replaced another may train on it."""
    index: int
    """Its place among that step's groups."""
    problem: Problem
    repeat: int = 0
    """How often the problem stands before it in the same step, across the end of an epoch: its responses must be others."""


async def sample_group(run: Run, stage: str, prompt: Prompt, first: Replica[Generator] | None = None) -> TrajectoryGroup:
    """`grpo.group_size` responses to one problem, not graded yet; `first` is a generator that has room.

    Raises:
        GivenUpError: it failed driver.max_tries times.
    """
    group_id = f"{stage}-{prompt.step}/{prompt.index}"
    request = make_request(run, prompt.problem, group_id, prompt.step, 0, run.training_sampling)
    requests = siblings(run, request, prompt)
    completions = await run.generators.call(len(requests), lambda actor: actor.generate(requests), "generate", first)
    await _note_sampled(run, requests, completions)
    return group_of(requests, completions)


async def _note_sampled(run: Run, requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> None:
    """Count what was sampled for learning. Where that was aborted, keep it and stand still: it is not counted, since a run that goes on
    samples these groups again, and must end its budget where one that never stopped does."""
    if _is_aborted(completions):
        run.stopped_groups.append(group_of(requests, completions))
        await _until_the_end()
    run.ledger.counts.generated_tokens += sum(len(completion.token_ids) for completion in completions)


def group_of(requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> TrajectoryGroup:
    """The responses to one group's requests, in their order, not graded yet."""
    first, not_graded = requests[0], Grade(0.0, 0.0, 0.0, "grader_error", None)
    trajectories = tuple(
        Trajectory(request.group_id, request.sample, request.problem_id, request.prompt_ids, completion, not_graded)
        for request, completion in zip(requests, completions, strict=True)
    )
    return TrajectoryGroup(first.group_id, first.problem_id, trajectories)


async def grade_group(run: Run, group: TrajectoryGroup, problem: Problem, step: int) -> TrajectoryGroup:
    """The group with the reward that is trained on: the recipe's function or the grader, and its weights at this step.

    Raises:
        GivenUpError: it failed driver.max_tries times.
    """
    reward, max_tokens = run.recipe.reward, run.recipe.generator.max_tokens
    completions = [trajectory.completion for trajectory in group.trajectories]
    problems = [problem] * len(completions)
    grades = await score(run, completions, [problem.gold] * len(completions), problems=problems, function=reward.function, step=step)
    weighted = (
        rewarded(grade, reward, step=step, num_tokens=len(completion.token_ids), max_tokens=max_tokens)
        for grade, completion in zip(grades, completions, strict=True)
    )
    trajectories = tuple(trajectory.graded(grade) for trajectory, grade in zip(group.trajectories, weighted, strict=True))
    return TrajectoryGroup(group.group_id, group.problem_id, trajectories)


async def rollout(run: Run, stage: str, step: int, problems: Sequence[Problem]) -> list[TrajectoryGroup]:
    """Sample and grade a group a problem, in the problems' order, all at once."""

    async def one(index: int, problem: Problem) -> TrajectoryGroup:
        return await grade_group(run, await sample_group(run, stage, Prompt(step, index, problem)), problem, step)

    return await all_of(one(index, problem) for index, problem in enumerate(problems))


async def generate(
    run: Run,
    requests: Sequence[GenerationRequest],
    *,
    on: Replica[Generator] | None = None,
    for_learning: bool = True,
    tell: Callable[[int], None] | None = None,
) -> list[Completion]:
    """Responses to requests, in their order.

    Args:
        run: the run.
        requests: any number.
        on: the one generator to ask, which is not asked twice; by default whichever has room.
        for_learning: whether the tokens count to the stage's budget; the requests are then one group's.
        tell: is called with the number of responses that have come, whenever it grows.

    Raises:
        GivenUpError: a request failed driver.max_tries times.
        ActorError: the one generator failed.
    """

    max_sequences = run.recipe.generator.max_sequences
    turns = asyncio.Semaphore(max(1, max_sequences // PART))  # a generator's limit is for a part, not for all that wait behind it

    async def ask(part: Sequence[GenerationRequest]) -> list[Completion]:
        if on is None:
            return await run.generators.call(len(part), lambda actor: actor.generate(part), "generate")
        async with turns:
            return await run.generators.ask(on, len(part), lambda actor: actor.generate(part), "generate")

    completions = await _in_parts(requests, ask, min(PART, max_sequences), tell)
    if for_learning:
        await _note_sampled(run, requests, completions)
    elif _is_aborted(completions):
        await _until_the_end()
    return completions


def _is_aborted(completions: Sequence[Completion]) -> bool:
    """Whether the job is being stopped (stopping.py), which is what alone aborts generation."""
    return any(completion.finish_reason == "abort" for completion in completions)


async def _until_the_end() -> None:
    """Stand still: nothing may be made of aborted responses. The end of the stop cancels everything that stands, within its limit."""
    await asyncio.Event().wait()


async def score(
    run: Run,
    completions: Sequence[Completion],
    golds: Sequence[str],
    prompt: str | None = None,
    *,
    problems: Sequence[Problem] | None = None,
    function: str = "",
    step: int = 0,
    tell: Callable[[int], None] | None = None,
) -> list[Grade]:
    """Grades of responses, in their order.

    Args:
        run: the run.
        completions: the responses.
        golds: one answer a response.
        prompt: the recipe's word for the prompt that they answer, by default data.prompt; it says where a response says its answer.
        problems: one a response; needed where there is a function.
        function: a reward function, as the recipe names it, in the grader's place; "" for none.
        step: the training step, for the function.
        tell: is called with the number of grades that have come, whenever it grows.

    Raises:
        GivenUpError: a request failed driver.max_tries times.
    """
    style = run.prompt_named(prompt).style
    requests = [
        ScoreRequest(response=completion.text, gold=gold, finish_reason=completion.finish_reason, style=style)
        for completion, gold in zip(completions, golds, strict=True)
    ]
    if function:
        assert problems is not None
        requests = [
            replace(request, function=function, problem=problem, prompt=run.prompt(problem, prompt), step=step)
            for request, problem in zip(requests, problems, strict=True)
        ]
    run.ledger.counts.graded += len(requests)
    return await _in_parts(requests, lambda part: run.scorers.call(len(part), lambda actor: actor.score(part), "score"), tell=tell)


async def _in_parts(
    items: Sequence[Item],
    ask: Callable[[Sequence[Item]], Coroutine[Any, Any, list[Answer]]],
    size: int = PART,
    tell: Callable[[int], None] | None = None,
) -> list[Answer]:
    if 0 < len(items) <= size:  # a group's responses, several hundred times a second: no task of its own
        return await ask(items)
    num_come = 0

    async def ask_and_tell(part: Sequence[Item]) -> list[Answer]:
        nonlocal num_come
        answers = await ask(part)
        num_come += len(answers)
        if tell is not None:
            tell(num_come)
        return answers

    parts = await all_of(ask_and_tell(items[start : start + size]) for start in range(0, len(items), size))
    return [answer for part in parts for answer in part]


def make_request(
    run: Run, problem: Problem, group_id: str, step: int, sample: int, sampling: SamplingSettings, prompt: str | None = None
) -> GenerationRequest:
    """One request; `prompt` is the recipe's word for it, by default data.prompt, and `sampling` must hold its stop strings."""
    seed = request_seed(run.recipe.run.seed, problem.problem_id, step, sample)
    return GenerationRequest(group_id, sample, problem.problem_id, run.prompt_ids(problem, prompt), seed, sampling)


def siblings(run: Run, request: GenerationRequest, prompt: Prompt) -> list[GenerationRequest]:
    """A whole group of one request, whose prompt is then tokenised once; they differ in their number and in their seed."""
    size, seed = run.recipe.grpo.group_size, run.recipe.run.seed
    draws = range(prompt.repeat * size, (prompt.repeat + 1) * size)
    seeds = (request_seed(seed, request.problem_id, prompt.step, draw) for draw in draws)
    return [
        GenerationRequest(request.group_id, sample, request.problem_id, request.prompt_ids, seed, request.sampling)
        for sample, seed in enumerate(seeds)
    ]


def sequence_of(request: GenerationRequest, completion: Completion) -> SftExample:
    return SftExample(prompt_ids=request.prompt_ids, response_ids=completion.token_ids)
