"""The responses of one round of expert iteration: sampled over a ladder of temperatures, and graded while others are still sampled.

Called by expert_iteration.py. Each question goes its own way, so that the scorers grade one while the generators are at the next:

    a question    its G requests -> a generator with room -> a scorer      waits for a generator, then for a scorer, and for nobody else
"""

from collections.abc import Sequence
from dataclasses import replace

from mathrl_ray.core.sampling import round_seeds, temperature_ladder
from mathrl_ray.driver.replicas import GivenUpError
from mathrl_ray.driver.rollouts import generate, grade_group, group_of, make_request
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.waiting import all_of
from mathrl_ray.types import GenerationRequest, Problem, TrajectoryGroup


async def sample_round(run: Run, stage: str, round_number: int, problems: Sequence[Problem]) -> list[TrajectoryGroup]:
    """A graded group a question, in their order; one that failed at every try is left out, with a warning.

    Args:
        run: the run; the generators hold the policy that samples.
        stage: its name.
        round_number: from 1.
        problems: the round's questions, none twice.

    Raises:
        GivenUpError: every question failed: it is not the questions' fault.
    """
    failures: list[GivenUpError] = []
    num_done, num_all = 0, len(problems) * run.recipe.expert_iteration.group_size

    async def one(index: int, problem: Problem) -> TrajectoryGroup | None:
        nonlocal num_done
        requests = question_requests(run, f"{stage}-{round_number}/{index}", problem, round_number)
        try:
            group = group_of(requests, await generate(run, requests))
            return await grade_group(run, group, problem, round_number)
        except GivenUpError as error:
            failures.append(error)
            run.console.say(f"warning: {problem.problem_id} is left out of round {round_number}: {error}")
            return None
        finally:
            num_done += len(requests)
            tell(num_done)

    with run.console.doing(f"{stage} round {round_number}", num_all) as tell:
        groups = await all_of(one(index, problem) for index, problem in enumerate(problems))
    if len(failures) == len(problems):
        raise GivenUpError(f"{stage}: all {len(problems)} questions of round {round_number} failed, the last one: {failures[-1]}")
    return [group for group in groups if group is not None]


def question_requests(run: Run, group_id: str, problem: Problem, round_number: int) -> list[GenerationRequest]:
    """The requests of one question; its prompt is tokenised once, and each sample has its own temperature and seed."""
    settings = run.recipe.expert_iteration
    sampling = replace(run.training_sampling, min_tokens=settings.min_tokens)
    first = make_request(run, problem, group_id, round_number, 0, sampling)
    seeds = round_seeds(run.recipe.run.seed, problem.problem_id, round_number, settings.group_size)
    ladder = temperature_ladder(settings.temperatures, settings.group_size)
    return [
        replace(first, sample=sample, seed=seed, sampling=replace(sampling, temperature=temperature))
        for sample, (seed, temperature) in enumerate(zip(seeds, ladder, strict=True))
    ]
