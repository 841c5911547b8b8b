"""Golds that the grader cannot read, found before a run: no response could ever be right about them.

Called by job.py between loading and Ray. Knows the problems of a job and the grader in its killable processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mathrl_ray.actors.gold_judge import GoldJudge
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.data.gold_lint import Fault, golds_to_judge, in_a_box, unusable_golds
from mathrl_ray.sections import BUILTIN
from mathrl_ray.stages.inputs import Inputs
from mathrl_ray.types import Problem

NUM_PROCESSES = 2


def check_golds(recipe: Recipe, inputs: Inputs, say: Callable[[str], None]) -> Inputs:
    """The inputs without problems whose gold does not parse or is not equal to itself, each named; as they are where all do.

    Golds that whole numbers or plain words spell are not asked about, so that the built-in task costs nothing; MATH's 12,500 take seconds.
    A reward function of the user's own may have golds of any kind, so nothing is asked then.

    Raises:
        RecipeError: there are such golds and data.bad_rows is "refuse"; every one is named.
    """
    if recipe.reward.function:
        return inputs
    data = recipe.data
    splits = ((data.train, inputs.train), (data.validation, inputs.validation), (data.test, inputs.test))
    asked = [problem for spec, problems in splits if spec != BUILTIN for problem in problems]
    faults = _faults(asked, recipe.scorer.limit_s)
    if not faults:
        return inputs
    named = "; ".join(f"{', '.join(fault.problem_ids)}: {fault.reason}" for fault in faults)
    if recipe.data.bad_rows == "refuse":
        raise RecipeError(
            f"{len(faults)} golds cannot be graded, so no response could be right: {named}. "
            'Correct them (python -m mathrl_ray check-data FILE), or set data.bad_rows = "drop" to leave them out.'
        )
    remark = f"left out, since their golds cannot be graded: {named}"
    say(remark)
    bad = {problem_id for fault in faults for problem_id in fault.problem_ids}

    def kept(problems: Sequence[Problem]) -> list[Problem]:
        return [problem for problem in problems if problem.problem_id not in bad]

    return replace(
        inputs,
        train=kept(inputs.train),
        validation=kept(inputs.validation),
        test=kept(inputs.test),
        remarks=[*inputs.remarks, remark],
    )


def _faults(problems: Sequence[Problem], limit_s: float) -> list[Fault]:
    golds = golds_to_judge(problems)
    if not golds:
        return []
    with GoldJudge(NUM_PROCESSES, limit_s) as judge:
        judge.judge([(in_a_box(gold), gold) for gold in golds], advance=lambda _: None)
        return unusable_golds(problems, judge.verdict)
