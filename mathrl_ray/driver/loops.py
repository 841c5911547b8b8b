"""What moves between the actors: prompts out, trajectory groups back, weights across.

For now the loops take turns (driver.max_staleness = 0); records, buffer and version stamps are those of the asynchronous driver.

    loop       takes                 gives                      waits for                        woken by
    rollout    problems              graded trajectory groups   all responses, then all grades   the stage, at each step
    train      groups of the buffer  an optimizer step          the learner                      a full batch in the buffer
    sync       the learner's weights a new policy_version       every generator has applied it   an optimizer step

Order of a publication: optimizer step -> publish -> all generators applied -> policy_version moves -> canary.

Called by the stages. Knows the actors' Protocols only.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

from mathrl_ray.core.groups import ZERO_VARIANCE, with_advantages
from mathrl_ray.core.reward_weights import rewarded
from mathrl_ray.core.sampling import request_seed
from mathrl_ray.core.statistics import max_abs_difference
from mathrl_ray.driver.rows import trajectory_row
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.trajectory_buffer import TrajectoryBuffer, staleness
from mathrl_ray.types import (
    Completion,
    GenerationRequest,
    Grade,
    Problem,
    SamplingSettings,
    ScoreRequest,
    SftExample,
    StageSettings,
    Trajectory,
    TrajectoryGroup,
)

Actor = TypeVar("Actor")
Item = TypeVar("Item")

CANARY_TOKENS = 16
EVALUATION_STEP, CANARY_STEP = -1, -2
"""What stands for the step in seeds of requests that belong to no training step."""


class CanaryError(RuntimeError):
    """After a sync the generator and the learner do not hold the same policy."""


async def begin_stage(
    run: Run, stage: str, *, learning_rate: float, num_optimizer_steps: int, part: str = "", facts: Mapping[str, float] | None = None
) -> None:
    """Put the start model into the learner and, as policy_version 0, into every generator. This is step 0; training steps count from 1.

    Args:
        run: the run.
        stage: its name.
        learning_rate: of the stage.
        num_optimizer_steps: the length of its learning-rate schedule.
        part: names one of several trainings of the stage, so that their dumps do not overwrite each other.
        facts: more numbers for the row of metrics, to tell such trainings apart there.
    """
    settings = StageSettings(
        model_path=run.model_folder,
        learning_rate=learning_rate,
        num_optimizer_steps=num_optimizer_steps,
        stage=f"{stage}-{part}" if part else stage,
        dump_folder=str(run.recorder.folder / "dumps"),
    )
    with run.ledger.work("learner"):
        await run.actors.learner.start_stage(settings)
    if run.canary_limit_nats is None:  # the engines have just opened the same folder: what differs now is precision
        run.canary_limit_nats = max(run.recipe.driver.canary_max_logprob_diff, 3 * max(await _canary_gaps(run)))
    run.recorder.metrics(stage, 0, 0, {**(facts or {}), **await sync_weights(run, policy_version=0)})


async def sync_weights(run: Run, *, policy_version: int) -> dict[str, float]:
    """Publish the learner's weights, wait until every generator has applied them, then compare both by the canary.

    Raises:
        CanaryError: the log-probabilities of the same tokens differ by more than the limit (see `canary`).
    """
    with run.ledger.work("learner"):
        manifest = await run.actors.learner.publish(policy_version)
    with run.ledger.work("generator"):
        pauses_s = await asyncio.gather(*(generator.apply_weights(manifest) for generator in run.actors.generators))
    run.policy_version = policy_version
    return {"sync_s": max(pauses_s), "canary_max_logprob_diff": await canary(run)}


async def canary(run: Run) -> float:
    """Largest difference, in nats, between what generators and learner say of tokens that each generator samples now.

    Sampling, not scoring of given text: only a decoded token also shows a stale KV cache.
    """
    limit = run.recipe.driver.canary_max_logprob_diff if run.canary_limit_nats is None else run.canary_limit_nats
    gaps = await _canary_gaps(run)
    for index, gap in enumerate(gaps):
        if not gap <= limit:  # true for NaN too, which max() would drop
            raise CanaryError(
                f"generator-{index} and the learner differ by {gap:.3g} nats at policy version {run.policy_version}, more than {limit:.3g} "
                f"(the larger of driver.canary_max_logprob_diff = {run.recipe.driver.canary_max_logprob_diff:g} and 3 times the gap before "
                "any update): a weight did not arrive"
            )
    return max(gaps)


async def _canary_gaps(run: Run) -> list[float]:
    """One largest difference a generator, in nats."""
    gaps = []
    for generator in run.actors.generators:
        with run.ledger.work("generator"):
            completions = await generator.generate(run.canary_requests)
        sequences = [sequence_of(request, completion) for request, completion in zip(run.canary_requests, completions, strict=True)]
        with run.ledger.work("learner"):
            statistics = await run.actors.learner.response_statistics(sequences, run.canary_requests[0].sampling)
        learner_logprobs = [statistic.logprobs for statistic in statistics]
        gaps.append(max_abs_difference(learner_logprobs, [completion.logprobs for completion in completions]))
    return gaps


def canary_requests(run: Run) -> list[GenerationRequest]:
    """The fixed prompts of the canary, drawn as the model's own distribution has it."""
    sampling = SamplingSettings(temperature=1.0, max_tokens=CANARY_TOKENS)
    problems = run.train_problems[: run.recipe.driver.canary_prompts]
    return [make_request(run, problem, f"canary/{index}", CANARY_STEP, 0, sampling) for index, problem in enumerate(problems)]


async def rollout(run: Run, stage: str, step: int, problems: Sequence[Problem]) -> list[TrajectoryGroup]:
    """Sample and grade `grpo.group_size` responses a problem; one group each, in the problems' order."""
    group_size = run.recipe.grpo.group_size
    requests = [
        make_request(run, problem, f"{stage}-{step}/{index}", step, sample, run.training_sampling)
        for index, problem in enumerate(problems)
        for sample in range(group_size)
    ]
    asked = [problem for problem in problems for _ in range(group_size)]
    completions = await generate(run, requests)
    grades = await _rewards(run, completions, asked, step)
    trajectories = [
        Trajectory(request.group_id, request.sample, request.problem_id, request.prompt_ids, completion, grade)
        for request, completion, grade in zip(requests, completions, grades, strict=True)
    ]
    groups = [tuple(trajectories[start : start + group_size]) for start in range(0, len(trajectories), group_size)]
    return [TrajectoryGroup(group[0].group_id, group[0].problem_id, group) for group in groups]


async def _rewards(run: Run, completions: Sequence[Completion], problems: Sequence[Problem], step: int) -> list[Grade]:
    """Grades with the reward that is trained on: the recipe's function or the grader, and its weights at this step."""
    reward, max_tokens = run.recipe.reward, run.recipe.generator.max_tokens
    golds = [problem.gold for problem in problems]
    grades = await score(run, completions, golds, problems=problems, function=reward.function, step=step)
    return [
        rewarded(grade, reward, step=step, num_tokens=len(completion.token_ids), max_tokens=max_tokens)
        for grade, completion in zip(grades, completions, strict=True)
    ]


async def train_on_buffer(run: Run, buffer: TrajectoryBuffer, stage: str, step: int) -> dict[str, float]:
    """One batch of groups from the buffer through the learner, then the sync. Returns the step's metrics.

    Where every group is dropped there is nothing to learn: no optimizer step, no publication. A skipped update publishes nothing either.
    """
    grpo = run.recipe.grpo
    groups = [
        with_advantages(group, run.recipe.advantage, max_tokens=run.recipe.generator.max_tokens, function=run.advantage_function)
        for group in buffer.take(grpo.prompts_per_step, run.policy_version)
    ]
    ages = {group.group_id: staleness(group, run.policy_version) for group in groups}
    batch = [trajectory for group in groups for trajectory in group.trajectories if trajectory.drop_reason is None]
    metrics: dict[str, float] = {
        "staleness_mean": sum(ages.values()) / len(ages),
        "staleness_max": max(ages.values()),
        "zero_variance_fraction": fmean(any(each.drop_reason == ZERO_VARIANCE for each in group.trajectories) for group in groups),
    }
    learner_logprobs: dict[tuple[str, int], tuple[float, ...]] = {}
    if batch:
        with run.ledger.work("learner"):
            update = await run.actors.learner.train_policy(batch, run.training_sampling)
        run.ledger.optimizer_steps += update.num_optimizer_steps
        learner_logprobs = {
            (trajectory.group_id, trajectory.sample): logprobs for trajectory, logprobs in zip(batch, update.learner_logprobs, strict=True)
        }
        metrics |= update.metrics
        if update.num_optimizer_steps:  # a skipped update has changed nothing
            metrics |= await sync_weights(run, policy_version=run.policy_version + 1)
    rows = [
        trajectory_row(
            trajectory,
            learner_logprobs.get((trajectory.group_id, trajectory.sample)),
            consumed_step=step,
            staleness=ages[trajectory.group_id],
        )
        for group in groups
        for trajectory in group.trajectories
    ]
    run.recorder.trajectories(stage, step, rows)
    return metrics


async def generate(run: Run, requests: Sequence[GenerationRequest]) -> list[Completion]:
    """Responses to requests, in their order, from all generators at once."""
    with run.ledger.work("generator"):
        parts = await asyncio.gather(*(generator.generate(part) for generator, part in _shares(run.actors.generators, requests)))
    completions = _in_order(parts)
    run.ledger.generated_tokens += sum(len(completion.token_ids) for completion in completions)
    return completions


async def score(
    run: Run,
    completions: Sequence[Completion],
    golds: Sequence[str],
    prompt: str | None = None,
    *,
    problems: Sequence[Problem] | None = None,
    function: str = "",
    step: int = 0,
) -> list[Grade]:
    """Grades of responses, in their order, from all scorers at once.

    Args:
        run: the run.
        completions: the responses.
        golds: one answer a response.
        prompt: the recipe's word for the prompt that they answer, by default data.prompt; it says where a response says its answer.
        problems: one a response; needed where there is a function.
        function: a reward function, as the recipe names it, in the grader's place; "" for none.
        step: the training step, for the function.
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
    with run.ledger.work("scorer"):
        parts = await asyncio.gather(*(scorer.score(part) for scorer, part in _shares(run.actors.scorers, requests)))
    run.ledger.graded += len(requests)
    return _in_order(parts)


def _shares(actors: Sequence[Actor], items: Sequence[Item]) -> list[tuple[Actor, Sequence[Item]]]:
    """Every k-th item for each of k actors, so that long prompts of one data set's end do not meet in one actor."""
    return [(actor, items[index :: len(actors)]) for index, actor in enumerate(actors)]


def _in_order(parts: Sequence[Sequence[Item]]) -> list[Item]:
    """The inverse of `_shares`."""
    total = sum(len(part) for part in parts)
    return [parts[index % len(parts)][index // len(parts)] for index in range(total)]


def make_request(
    run: Run, problem: Problem, group_id: str, step: int, sample: int, sampling: SamplingSettings, prompt: str | None = None
) -> GenerationRequest:
    """One request; `prompt` is the recipe's word for it, by default data.prompt, and `sampling` must hold its stop strings."""
    seed = request_seed(run.recipe.run.seed, problem.problem_id, step, sample)
    return GenerationRequest(group_id, sample, problem.problem_id, run.prompt_ids(problem, prompt), seed, sampling)


def sequence_of(request: GenerationRequest, completion: Completion) -> SftExample:
    return SftExample(prompt_ids=request.prompt_ids, response_ids=completion.token_ids)
