"""An evaluation: the test problems, one response each, graded, with the interval of the accuracy.

Called by every stage at its end. Knows the actors' Protocols and the recorder.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from mathrl_ray.core.statistics import wilson_interval
from mathrl_ray.driver.loops import EVALUATION_STEP, generate, make_request, score, sequence_of
from mathrl_ray.driver.rows import evaluation_row
from mathrl_ray.driver.run import Run
from mathrl_ray.types import UNGRADED, Completion, GenerationRequest, SamplingSettings


async def evaluate(run: Run, stage: str, step: int) -> dict[str, Any]:
    """Evaluate the present weights on `run.test_problems`, write the rows, and return the figures of summary.json.

    The same problem gets the same seed in every stage. Generated tokens are not counted to the stage's budget: they teach nothing.
    """
    sampling, problems = run.evaluation_sampling, run.test_problems
    requests = [
        make_request(run, problem, f"{stage}-evaluation/{index}", EVALUATION_STEP, 0, sampling) for index, problem in enumerate(problems)
    ]
    run.console.say(f"{stage}: evaluating {len(problems)} held-out problems")
    trained_on_tokens = run.ledger.generated_tokens
    completions = await generate(run, requests)
    run.ledger.generated_tokens = trained_on_tokens
    grades = await score(run, completions, [problem.gold for problem in problems])
    entropies = await _entropies(run, requests, completions)
    rows = [
        evaluation_row(
            problem,
            completion,
            grade,
            sampling,
            prompt_name="r1_zero",
            prompt=run.prompt(problem),
            sample=0,
            seed=request.seed,
            mean_token_entropy_nats=entropy,
        )
        for problem, request, completion, grade, entropy in zip(problems, requests, completions, grades, entropies, strict=True)
    ]
    run.recorder.evaluation(stage, run.policy_version, rows)
    figures = figures_of(rows)
    numbers = {name: figures[name] for name in ("accuracy", "format_rate", "num_problems", "num_ungraded", "mean_response_tokens")}
    run.recorder.metrics(stage, step, run.policy_version, {**numbers, "entropy_nats": figures["mean_entropy_nats"]})
    return figures


async def _entropies(run: Run, requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> list[float]:
    """Mean token entropy of each response, from the learner: the full distribution at temperature 1, whatever was sampled at."""
    sequences = [sequence_of(request, completion) for request, completion in zip(requests, completions, strict=True)]
    with run.ledger.work("learner"):
        statistics = await run.actors.learner.response_statistics(sequences, SamplingSettings(temperature=1.0, max_tokens=1))
    return [statistic.mean_token_entropy_nats for statistic in statistics]


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one evaluation with one sample a problem (a Wilson interval); what could not be graded is not in the denominator."""
    graded = [row for row in rows if row["outcome"] not in UNGRADED]
    num_correct = sum(row["outcome"] == "correct" for row in graded)
    return {
        "accuracy": num_correct / len(graded) if graded else 0.0,
        "ci95": list(wilson_interval(num_correct, len(graded))),
        "num_problems": len(rows),
        "num_ungraded": len(rows) - len(graded),
        "format_rate": fmean(row["format_reward"] for row in rows),
        "mean_entropy_nats": fmean(row["mean_token_entropy_nats"] for row in rows),
        "mean_response_tokens": fmean(row["num_response_tokens"] for row in rows),
    }
