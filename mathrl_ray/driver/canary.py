"""The canary: do generators and learner say the same of tokens that were just sampled? And the start of a stage, which it belongs to.

Called by the stages and the loops. Knows the run; the comparison itself is one line.
"""

from collections.abc import Mapping, Sequence

from mathrl_ray.actors.interfaces import ActorError, Generator
from mathrl_ray.core.statistics import max_abs_difference
from mathrl_ray.driver.replicas import Replica
from mathrl_ray.driver.rollouts import CANARY_STEP, make_request, sequence_of
from mathrl_ray.driver.run import Run
from mathrl_ray.types import Completion, GenerationRequest, SamplingSettings, StageSettings

CANARY_TOKENS = 16


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
    settings = stage_settings(run, stage, learning_rate=learning_rate, num_optimizer_steps=num_optimizer_steps, part=part)
    with run.ledger.work("learner-0", "start_stage"):
        await run.actors.learner.start_stage(settings)
    if run.canary_limit_nats is None and (gaps := await _canary_gaps(run)):  # they have just opened one folder: this gap is precision
        run.canary_limit_nats = max(run.recipe.driver.canary_max_logprob_diff, 3 * max(gaps.values()))
    run.recorder.metrics(stage, 0, 0, {**(facts or {}), **await sync_weights(run, policy_version=0)})


def stage_settings(run: Run, stage: str, *, learning_rate: float, num_optimizer_steps: int, part: str = "") -> StageSettings:
    """As `begin_stage` takes them."""
    return StageSettings(
        model_path=run.model_folder,
        learning_rate=learning_rate,
        num_optimizer_steps=num_optimizer_steps,
        stage=f"{stage}-{part}" if part else stage,
        dump_folder=str(run.recorder.folder / "dumps"),
        changes=dict(run.remedies),
    )


async def sync_weights(run: Run, *, policy_version: int) -> dict[str, float]:
    """Publish the learner's weights, wait until every generator has applied them, then compare both by the canary.

    Raises:
        CanaryError: the log-probabilities of the same tokens differ by more than the limit (see `canary`).
    """
    manifest = await run.weights.publish(policy_version)
    metrics = await run.weights.apply(manifest)
    return {**metrics, **await canary_metrics(run)}


async def canary_metrics(run: Run) -> dict[str, float]:
    """What `canary` says, for a row of metrics, which has no such key where nothing was compared."""
    gap = await canary(run)
    return {} if gap is None else {"canary_max_logprob_diff": gap}


async def canary(run: Run) -> float | None:
    """Largest difference, in nats, between what generators and learner say of tokens that each generator samples now.

    Sampling, not scoring of given text: only a decoded token also shows a stale KV cache. The learner must hold the published weights.
    None where generation is aborted, since the job stops: its state is to be saved all the same.
    """
    limit = run.recipe.driver.canary_max_logprob_diff if run.canary_limit_nats is None else run.canary_limit_nats
    gaps = await _canary_gaps(run)
    for name, gap in gaps.items():
        if not gap <= limit:  # true for NaN too, which max() would drop
            raise CanaryError(
                f"{name} and the learner differ by {gap:.3g} nats at policy version {run.policy_version}, more than {limit:.3g} "
                f"(the larger of driver.canary_max_logprob_diff = {run.recipe.driver.canary_max_logprob_diff:g} and 3 times the gap before "
                "any update): a weight did not arrive"
            )
    return max(gaps.values(), default=None)


async def _canary_gaps(run: Run) -> dict[str, float]:
    """One largest difference a generator, in nats. Left out: one that is pinned, to older weights, one that is being replaced, and one
    whose generation was aborted."""
    gaps: dict[str, float | None] = {}
    while not gaps:  # where all are being replaced, which driver.max_restarts bounds
        await run.generators.one_ready()
        for replica in (replica for replica in run.generators if replica.reviving is None and not replica.pinned):
            completions = await _canary_completions(run, replica)
            if completions is not None:
                is_aborted = any(completion.finish_reason == "abort" for completion in completions)
                gaps[replica.actor.name] = None if is_aborted else await _gap(run, completions)
    return {name: gap for name, gap in gaps.items() if gap is not None}


async def _canary_completions(run: Run, replica: Replica[Generator]) -> list[Completion] | None:
    """What this generator samples now; None where it fails at that, and is being replaced."""
    try:
        return await run.generators.ask(replica, 0, lambda actor: actor.generate(run.canary_requests), "canary")
    except ActorError:
        return None


async def _gap(run: Run, completions: Sequence[Completion]) -> float:
    sequences = [sequence_of(request, completion) for request, completion in zip(run.canary_requests, completions, strict=True)]
    with run.ledger.work("learner-0", "canary"):
        statistics = await run.actors.learner.response_statistics(sequences, run.canary_requests[0].sampling)
    learner_logprobs = [statistic.logprobs for statistic in statistics]
    return max_abs_difference(learner_logprobs, [completion.logprobs for completion in completions])


def canary_requests(run: Run) -> list[GenerationRequest]:
    """The fixed prompts of the canary, drawn as the model's own distribution has it."""
    sampling = SamplingSettings(temperature=1.0, max_tokens=CANARY_TOKENS)
    problems = run.train_problems[: run.recipe.driver.canary_prompts]
    return [make_request(run, problem, f"canary/{index}", CANARY_STEP, 0, sampling) for index, problem in enumerate(problems)]
