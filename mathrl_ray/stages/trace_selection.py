"""Which traces SFT learns from: all, those that are graded right, or the best share.

Called by sft.py. Grades by the scorers with each trace's own gold; what counts as good is in `best_first`.
"""

from collections.abc import Sequence
from math import inf, isfinite
from statistics import fmean
from typing import Literal

from mathrl_ray.config import RecipeError
from mathrl_ray.data.traces import SftRow
from mathrl_ray.driver.canary import begin_stage
from mathrl_ray.driver.rollouts import score
from mathrl_ray.driver.run import Run
from mathrl_ray.stages.inputs import check_sizes
from mathrl_ray.stages.sft_training import examples_in_batches, own_tokenizer, prefetched
from mathrl_ray.types import OWN_DISTRIBUTION, Completion, ResponseStatistics

SCORED_AT_ONCE = 256
"""Traces whose log-probabilities one call of the learner computes; a call has a limit in time."""
"""The model's own: no temperature, no masked stop ids."""


async def select_traces(run: Run, stage: str, keep: Literal["all", "correct", "best"]) -> list[SftRow]:
    """The traces to learn from, in their order. Logs how many were kept and their share.

    Raises:
        RecipeError: fewer are kept than sft.batch_size or than one of sft.sizes.
    """
    traces = run.traces
    if keep == "all":
        return traces
    right = await _are_right(run, traces)
    if keep == "correct":
        kept = [index for index in range(len(traces)) if right[index]]
    else:
        statistics = await _statistics(run, stage, traces)
        num_kept = max(1, round(run.recipe.sft.best_fraction * len(traces)))
        kept = sorted(best_first(traces, right, statistics)[:num_kept])
    facts = {"num_traces": len(traces), "num_right": sum(right), "num_kept": len(kept), "kept_fraction": len(kept) / len(traces)}
    run.recorder.metrics(stage, 0, 0, facts)
    run.console.say(
        f'{stage}: {len(kept)} of {len(traces)} traces kept ({100 * facts["kept_fraction"]:.1f} %, keep = "{keep}"); '
        f"{sum(right)} are graded right"
    )
    _check_number(run, stage, keep, len(kept))
    return [traces[index] for index in kept]


def _check_number(run: Run, stage: str, keep: str, num_kept: int) -> None:
    settings = run.recipe.sft
    if num_kept < settings.batch_size:
        raise RecipeError(
            f'{stage}: keep = "{keep}" leaves {num_kept} of {len(run.traces)} traces, fewer than sft.batch_size = {settings.batch_size}: '
            'lower the latter, give more traces, or set sft.keep = "all".'
        )
    if stage == "sft":
        check_sizes(run.recipe, num_kept, which=f'that sft.keep = "{keep}" leaves')


async def _are_right(run: Run, traces: Sequence[SftRow]) -> list[bool]:
    completions = [Completion(trace.response, (), (), (), "stop") for trace in traces]
    grades = await score(run, completions, [trace.gold or "" for trace in traces])
    return [grade.outcome == "correct" for grade in grades]


async def _statistics(run: Run, stage: str, traces: Sequence[SftRow]) -> list[ResponseStatistics]:
    """Log-probabilities of the responses under the start model, which this loads."""
    await begin_stage(run, stage, learning_rate=run.recipe.sft.learning_rate, num_optimizer_steps=1)
    statistics: list[ResponseStatistics] = []
    with prefetched(run, examples_in_batches(traces, own_tokenizer(run), SCORED_AT_ONCE)) as batches:
        async for batch in batches:
            with run.ledger.work("learner-0", "response_statistics"):
                statistics += await run.actors.learner.response_statistics(batch, OWN_DISTRIBUTION)
    return statistics


def best_first(traces: Sequence[SftRow], right: Sequence[bool], statistics: Sequence[ResponseStatistics]) -> list[int]:
    """Indices of traces, the best first.

    Right before wrong; among these a higher mean log-probability a token under the start model, since what the model nearly says it
    learns with the least change; then fewer tokens; then by id. A mean that is no finite number comes last.

    Args:
        traces: for their ids.
        right: whether each was graded right.
        statistics: of each response, EOS included.
    """

    def badness(index: int) -> tuple[bool, float, int, str]:
        logprobs = statistics[index].logprobs
        mean = fmean(logprobs)
        return not right[index], -mean if isfinite(mean) else inf, len(logprobs), traces[index].problem_id

    return sorted(range(len(traces)), key=badness)
