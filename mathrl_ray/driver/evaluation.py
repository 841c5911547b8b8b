"""Evaluations: problems, one response each or several, graded, with the interval of the accuracy.

    evaluate   the test problems, with every prompt of eval.prompts, at a stage's end   <stage>[-<prompt>]-v<policy_version>.parquet
    validate   the validation problems, with the first prompt, for choices              validation-<stage>-step<step>-v<...>.parquet

    validate_beside  the same while the loops train on, of weights that stay pinned

Called by every stage and by the loops. Knows the actors' Protocols and the recorder; the figures are in evaluation_figures.py. All use the
weights that the generators hold. None counts its tokens to the stage's budget: they teach nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from mathrl_ray.actors.interfaces import ActorError, Generator
from mathrl_ray.config import RecipeError
from mathrl_ray.core.paired_evaluations import Evaluation
from mathrl_ray.core.sampling import request_seed
from mathrl_ray.driver.console import prompt_protocol
from mathrl_ray.driver.evaluation_figures import accuracy_text, compared_prompts, figures_by_grader, figures_of, flat_metrics
from mathrl_ray.driver.evaluation_warnings import evaluation_warnings
from mathrl_ray.driver.replicas import GivenUpError, Replica
from mathrl_ray.driver.rollouts import EVALUATION_STEP, generate, make_request, score, sequence_of
from mathrl_ray.driver.rows import evaluation_row
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.step_warnings import ungraded_warning
from mathrl_ray.recipe_checks import DEFAULT_GRADER
from mathrl_ray.types import OWN_DISTRIBUTION, Completion, GenerationRequest, Grade, Problem

VALIDATION_STEP = -3
"""Stands for the step in the seeds of validations (as EVALUATION_STEP and CANARY_STEP do): they are not those of any other request.

The same at every step, so that two validations differ by their weights only.
"""


async def evaluate(run: Run, stage: str, step: int) -> dict[str, Any]:
    """Evaluate the present weights on `run.test_problems`, write the rows, and return the figures of summary.json.

    The first of eval.prompts gives the figures; each other one gives rows, and metrics whose names end in the prompt's. Where there are
    others, the figures hold `prompts` (evaluation_figures.compared_prompts), which is shown too. The same problem gets the same seeds in
    every stage and with every prompt. Where eval.graders names more than the default, each of them grades the same responses, and the
    figures hold `graders`: {name: {accuracy, ci95, num_ungraded, num_graded_problems}}; everything else is the default's.
    """
    settings, seed = run.recipe.eval, run.recipe.run.seed
    first, *others = settings.prompts
    each = f", {settings.num_samples} responses each" if settings.num_samples > 1 else ""
    run.console.say(f"{stage}: evaluating {len(run.test_problems)} held-out problems{each}")
    with run.time_limit.evaluating(len(run.test_problems) * settings.num_samples):
        rows = await _sample_tests(run, f"{stage}-evaluation", first, step)
    run.recorder.evaluation(stage, run.policy_version, rows)
    figures = figures_of(rows, seed=seed)
    if len(settings.graders) > 1:
        figures["graders"] = figures_by_grader(rows, settings.graders, seed=seed)
        for name, graders_figures in figures["graders"].items():
            run.console.say(f"{stage}: by the grader {name} {accuracy_text({**figures, **graders_figures})}")
    low, high = figures["ci95"]
    interval = {"ci95_low": low, "ci95_high": high}
    run.recorder.metrics(stage, step, run.policy_version, {**flat_metrics(figures), **interval, "spans": run.ledger.take_spans()})
    if others:
        evaluations = [Evaluation(run.prompt_named(first).name, rows)]
        evaluations += [await _evaluate_too(run, stage, step, prompt) for prompt in others]
        figures["prompts"] = compared_prompts(evaluations, seed=seed)
        run.console.prompts(stage, figures["prompts"], caption=prompt_protocol(run.recipe))
    return figures


async def _evaluate_too(run: Run, stage: str, step: int, prompt: str) -> Evaluation:
    name = run.prompt_named(prompt).name
    rows = await _sample_tests(run, f"{stage}-evaluation-{name}", prompt, step)
    run.recorder.evaluation(f"{stage}-{name}", run.policy_version, rows)
    figures = figures_of(rows, seed=run.recipe.run.seed)
    run.recorder.metrics(stage, step, run.policy_version, {f"{key}_{name}": value for key, value in flat_metrics(figures).items()})
    run.console.say(f"{stage}: with the prompt {name} {accuracy_text(figures)}")
    return Evaluation(name, rows)


async def _sample_tests(run: Run, group: str, prompt: str, step: int) -> list[dict[str, Any]]:
    num_samples = run.recipe.eval.num_samples
    rows = await _sample_and_grade(run, run.test_problems, group, EVALUATION_STEP, prompt, num_samples=num_samples, others_at=step)
    for text in evaluation_warnings(rows):
        run.console.say(f"warning: {group}: {text}")
    return rows


async def validate(run: Run, stage: str, step: int, *, part: str = "", facts: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Evaluate the present weights on `run.validation_problems`, one response each, for a choice: early stopping, a checkpoint, a size.

    The generators must hold the weights in question (`sync_weights` before). Writes rows and one row of metrics: validation_accuracy,
    its interval and its number of problems among them. Test problems are not touched.

    Args:
        run: the run.
        stage: its name.
        step: the training step that has just been done.
        part: goes into the file's name, where a stage trains several models.
        facts: more numbers for the row of metrics, to tell them apart there.

    Raises:
        RecipeError: the run has no validation problems.

    Returns:
        The figures, as `evaluate` gives them.
    """
    if not run.validation_problems:
        raise RecipeError("there are no validation problems: name a set in data.validation, or raise data.num_validation_problems")
    name = f"{stage}-{part}" if part else stage
    with run.time_limit.evaluating(len(run.validation_problems)):
        rows = await _sample_and_grade(run, run.validation_problems, f"{name}-validation", VALIDATION_STEP, run.recipe.eval.prompts[0])
    return _note_validation(run, stage, step, rows, run.policy_version, name=name, facts={**_cost(run), **(facts or {})})


async def validate_beside(
    run: Run, stage: str, step: int, on: Replica[Generator] | None, pin: AsyncExitStack, facts: Mapping[str, float] | None = None
) -> None:
    """`validate` while training goes on, of the weights that `pin` keeps. Entropies are left out: the learner has other weights by now.

    A validation decides nothing by itself, so one whose generator or scorer fails is given up with a warning.

    Args:
        run: the run.
        stage: its name.
        step: the training step whose weights these are.
        on: the generator that was pinned; None where the only one is.
        pin: is closed when the responses are there.
        facts: more numbers for the row of metrics; what these weights have cost among them, since training goes on.
    """
    group, prompt, version = f"{stage}-validation", run.recipe.eval.prompts[0], run.policy_version
    try:
        async with pin:
            requests, completions = await _sample(run, run.validation_problems, group, VALIDATION_STEP, prompt, on)
        versions = {held for completion in completions for held, _ in completion.version_runs}
        if versions != {version}:  # its engine was replaced meanwhile, and got newer weights
            run.console.say(f"warning: no validation of {stage} step {step}: its generator was replaced meanwhile")
            return
        rows = await _grade(run, run.validation_problems, requests, completions, group, prompt)
    except (ActorError, GivenUpError) as error:
        run.console.say(f"warning: no validation of {stage} step {step}: {error}")
        return
    figures = _note_validation(run, stage, step, rows, version, name=stage, facts=facts or {})
    run.console.say(f"{stage} step {step}: validation {accuracy_text(figures)}")


def _cost(run: Run) -> dict[str, float]:
    """What the stage has spent so far: by it curves of different methods are laid beside each other."""
    return {"consumed_tokens_total": run.ledger.counts.consumed_tokens}


def _note_validation(
    run: Run, stage: str, step: int, rows: list[dict[str, Any]], version: int, *, name: str, facts: Mapping[str, float]
) -> dict[str, Any]:
    """Write the rows and the numbers; returns the figures."""
    # Not <stage>-validation..., which a script that looks for <stage>-v*.parquet would take for the test's.
    run.recorder.evaluation(f"validation-{name}-step{step}", version, rows)
    figures = figures_of(rows, seed=run.recipe.run.seed)
    run.validated[stage, step] = figures["accuracy"]
    low, high = figures["ci95"]
    interval = {"validation_ci95_low": low, "validation_ci95_high": high}
    numbers = {f"validation_{key}": value for key, value in flat_metrics(figures).items()}
    run.recorder.metrics(stage, step, version, {**facts, **numbers, **interval})
    if name == stage:  # not one of several trainings of a stage, whose validations are of different models
        run.guards.validated(step, figures)
    return figures


def is_validation_step(run: Run, step: int) -> bool:
    """Whether eval.validate_every asks for a validation after this training step (from 1)."""
    every = run.recipe.eval.validate_every
    return every > 0 and step % every == 0


async def _sample_and_grade(
    run: Run,
    problems: Sequence[Problem],
    group: str,
    seed_step: int,
    prompt: str,
    *,
    num_samples: int = 1,
    others_at: int | None = None,
) -> list[dict[str, Any]]:
    """The rows of all problems in their order, each problem's samples together; with the training step `others_at`, graded by all of
    eval.graders."""
    requests, completions = await _sample(run, problems, group, seed_step, prompt, num_samples=num_samples)
    asked = [problem for problem in problems for _ in range(num_samples)]
    others = {} if others_at is None else await _other_graders(run, completions, asked, prompt, others_at)
    with run.console.doing(f"{group.replace('-', ' ')}, entropies", len(requests)) as tell:
        entropies = await _entropies(run, requests, completions, num_samples, tell)
    return await _grade(run, asked, requests, completions, group, prompt, others=others, entropies=entropies)


async def _sample(
    run: Run,
    problems: Sequence[Problem],
    group: str,
    seed_step: int,
    prompt: str,
    on: Replica[Generator] | None = None,
    *,
    num_samples: int = 1,
) -> tuple[list[GenerationRequest], list[Completion]]:
    """`num_samples` responses a problem; the tokens teach nothing, and so do not count to the stage's budget."""
    sampling, seed = run.evaluation_sampling(prompt), run.recipe.run.seed
    firsts = [make_request(run, problem, f"{group}/{index}", seed_step, 0, sampling, prompt) for index, problem in enumerate(problems)]
    requests = [
        replace(first, sample=sample, seed=request_seed(seed, first.problem_id, seed_step, sample))
        for first in firsts
        for sample in range(num_samples)
    ]
    with run.console.doing(group.replace("-", " "), len(requests)) as tell:
        return requests, await generate(run, requests, on=on, for_learning=False, tell=tell)


async def _grade(
    run: Run,
    asked: Sequence[Problem],
    requests: Sequence[GenerationRequest],
    completions: Sequence[Completion],
    group: str,
    prompt: str,
    *,
    others: Mapping[str, Sequence[Grade]] | None = None,
    entropies: Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """One evaluation row a response, in their order, with the grades that were given and the default's; entropies are null where None.

    asked: the problem of each response.
    """
    others = others or {}
    with run.console.doing(f"{group.replace('-', ' ')}, grading", len(completions)) as tell:
        grades = await score(run, completions, [problem.gold for problem in asked], prompt, tell=tell)
    for name, given in {DEFAULT_GRADER: grades, **others}.items():
        if text := ungraded_warning(given):
            run.console.say(f"warning: {group}, grader {name}: {text}")
    texts = {problem.problem_id: run.prompt(problem, prompt) for problem in asked}
    return [
        evaluation_row(
            problem,
            completion,
            grade,
            request.sampling,
            prompt_name=run.prompt_named(prompt).name,
            prompt=texts[problem.problem_id],
            sample=request.sample,
            seed=request.seed,
            mean_token_entropy_nats=None if entropies is None else entropies[index],
            others=[(name, given[index]) for name, given in others.items()],
        )
        for index, (problem, request, completion, grade) in enumerate(zip(asked, requests, completions, grades, strict=True))
    ]


async def _other_graders(
    run: Run, completions: Sequence[Completion], asked: Sequence[Problem], prompt: str, step: int
) -> dict[str, list[Grade]]:
    """The grades of each further grader of eval.graders, by its name there."""
    golds = [problem.gold for problem in asked]
    return {
        name: await score(run, completions, golds, prompt, problems=asked, function=name, step=step)
        for name in run.recipe.eval.graders
        if name != DEFAULT_GRADER
    }


async def _entropies(
    run: Run,
    requests: Sequence[GenerationRequest],
    completions: Sequence[Completion],
    num_samples: int,
    tell: Callable[[int], None],
) -> list[float]:
    """Mean token entropy of each response, from the learner: the full distribution at temperature 1, whatever was sampled at.

    One call for each of the samples of all problems, since a call has a limit in time.
    """
    sequences = [sequence_of(request, completion) for request, completion in zip(requests, completions, strict=True)]
    entropies = [0.0] * len(sequences)
    for sample in range(num_samples):
        with run.ledger.work("learner-0", "response_statistics"):
            statistics = await run.actors.learner.response_statistics(sequences[sample::num_samples], OWN_DISTRIBUTION)
        entropies[sample::num_samples] = [each.mean_token_entropy_nats for each in statistics]
        tell((sample + 1) * len(statistics))
    return entropies
