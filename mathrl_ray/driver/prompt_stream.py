"""Which problem comes when: the order in which groups are admitted, which follows from numbers alone.

Called by loops.py. Knows the run's problems and settings. Since a group's prompt follows from its number, a run that goes on needs no
other state than how many were admitted.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import count

from mathrl_ray.core.sampling import batch_indices, epoch_order
from mathrl_ray.driver.rollouts import Prompt
from mathrl_ray.driver.run import Run


def prompt_stream(run: Run, first: int = 0) -> Iterator[Prompt]:
    """The prompts in the order of admission: shuffled epochs, endless or grpo.num_epochs of them.

    Args:
        run: the run.
        first: where to begin: the number of groups that were admitted before.
    """
    grpo, problems = run.recipe.grpo, run.train_problems
    for number in count(first):
        if grpo.num_epochs and number >= grpo.num_epochs * len(problems):
            return
        yield prompt_at(run, number)


def prompt_at(run: Run, number: int) -> Prompt:
    """The prompt of the group that is admitted as number `number`, from 0."""
    size, num_problems, seed = run.recipe.grpo.prompts_per_step, len(run.train_problems), run.recipe.run.seed
    step, index = divmod(number, size)
    if run.recipe.grpo.num_epochs:
        places = range(number - index, number + 1)  # of the step's prompts up to this one
        chosen = [_epoch_order(num_problems, seed, place // num_problems)[place % num_problems] for place in places]
    else:
        chosen = _batch_indices(num_problems, size, step, seed)[: index + 1]
    return Prompt(step + 1, index, run.train_problems[chosen[-1]], repeat=chosen[:-1].count(chosen[-1]))


_epoch_order, _batch_indices = lru_cache(4)(epoch_order), lru_cache(64)(batch_indices)
"""Groups are admitted one by one, and all of an epoch or a step need the same order."""
