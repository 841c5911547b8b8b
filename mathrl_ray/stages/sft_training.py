"""One training on traces: batches tokenised ahead, optimizer steps, validations on the way, the publication at the end.

Called by sft.py and sft_sweep.py. Knows nothing of where the traces come from.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mathrl_ray.core.sampling import epoch_order
from mathrl_ray.core.tokenization import tokenize_apart
from mathrl_ray.data.traces import SftRow
from mathrl_ray.driver.canary import begin_stage, sync_weights
from mathrl_ray.driver.evaluation import accuracy_text, is_validation_step, validate
from mathrl_ray.driver.prefetch import Prefetch
from mathrl_ray.driver.run import Run
from mathrl_ray.recipe_checks import num_sft_steps
from mathrl_ray.types import SftExample


async def train_on(run: Run, stage: str, traces: Sequence[SftRow], *, part: str = "", facts: Mapping[str, float] | None = None) -> int:
    """Train the start model on traces; afterwards the generators hold the result. Returns the number of steps.

    Args:
        run: the run.
        stage: its name.
        traces: what is learned, `sft.epochs` times.
        part: names one of several trainings of the stage; its caller validates the last step itself.
        facts: more numbers for every row of metrics, to tell such trainings apart there.
    """
    facts = facts or {}
    settings = run.recipe.sft
    num_steps = num_sft_steps(settings, len(traces))
    plan = f"{len(traces)} traces, {num_steps} steps of {settings.batch_size}"
    run.console.begin_stage(stage, f"{part}: {plan}" if part else plan)
    await begin_stage(run, stage, learning_rate=settings.learning_rate, num_optimizer_steps=num_steps, part=part, facts=facts)
    published_step, step = 0, 0
    with prefetched(run, sft_batches(run, traces)) as batches:
        async for batch in batches:
            step += 1
            await _step(run, stage, step, num_steps, batch, {**facts, "data_wait_s": batches.last_wait_s})
            if is_validation_step(run, step) and not (part and step == num_steps):
                published_step = await _publish(run, stage, step, facts)
                figures = await validate(run, stage, step, part=part, facts=facts)
                run.console.say(f"{stage} step {step}: validation {accuracy_text(figures)}")
    assert step == num_steps, (step, num_steps)
    if published_step < num_steps:
        await _publish(run, stage, num_steps, facts)
    return num_steps


async def _step(run: Run, stage: str, step: int, num_steps: int, batch: list[SftExample], facts: Mapping[str, float]) -> None:
    with run.ledger.work("learner-0", "train_sft"):
        metrics = await run.actors.learner.train_sft(batch)
    run.ledger.counts.optimizer_steps += 1 - int(metrics.get("skipped_updates", 0))
    run.recorder.metrics(stage, step, run.policy_version, {**facts, **metrics, **run.ledger.lap(), "spans": run.ledger.take_spans()})
    run.console.step(stage, step, num_steps, {"loss": metrics["loss"], "entropy": metrics["entropy_nats"]})


async def _publish(run: Run, stage: str, step: int, facts: Mapping[str, float]) -> int:
    """Give the generators the present weights; returns the step."""
    sync = await sync_weights(run, policy_version=run.policy_version + 1)
    run.recorder.metrics(stage, step, run.policy_version, {**facts, **sync})
    return step


def sft_batches(run: Run, traces: Sequence[SftRow]) -> Iterator[list[SftExample]]:
    """The batches of all epochs, tokenised as they are asked for; an epoch's last one may be smaller."""
    settings, tokenizer = run.recipe.sft, own_tokenizer(run)
    for epoch in range(settings.epochs):
        order = epoch_order(len(traces), run.recipe.run.seed, epoch)
        yield from examples_in_batches([traces[index] for index in order], tokenizer, settings.batch_size)


def examples_in_batches(traces: Sequence[SftRow], tokenizer: Any, size: int) -> Iterator[list[SftExample]]:
    """Token ids of traces, in their order. Each ends with EOS, so that the model also stops where no stop string is looked for."""
    for start in range(0, len(traces), size):
        yield [tokenize_apart(tokenizer, trace.prompt, trace.response, append_eos=True) for trace in traces[start : start + size]]


def prefetched(run: Run, batches: Iterator[list[SftExample]]) -> Prefetch[list[SftExample]]:
    return Prefetch(batches, what="batch of tokenised traces (learner.limit_s)", limit_s=run.recipe.learner.limit_s)


def own_tokenizer(run: Run) -> Any:
    """A copy for the thread that tokenises: transformers' fast tokenizers may not be used by two threads at a time."""
    return copy.deepcopy(run.tokenizer)
