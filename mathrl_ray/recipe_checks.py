"""Which settings of a recipe cannot go together, and what would work instead.

Called by config.py for every recipe and by entry.py for the stages that will run. Light, as config.py is: no torch, no Ray, no file.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.sections import BUILTIN, ExpertIterationSection, GrpoSection, SftSection

SFT_STAGES = frozenset({"sft", "sft_filtered"})
"""The stages that learn from sft.traces."""
RIVALS = frozenset({"expert_iteration", "grpo"})
"""The stages that study.generated_tokens puts at equal cost."""
NOT_SWEPT = frozenset(
    {"study.stages", "study.seeds", *(f"run.{key}" for key in ("name", "root", "resume", "resume_with_changes", "mirror"))}
)
"""Keys that a sweep has one value of."""
DEFAULT_GRADER = "default"
"""Our own, in eval.graders."""


def contradictions(recipe: Recipe) -> Iterator[str]:
    """Settings that are each allowed and cannot go together, one sentence each."""
    generator, learner, grpo, model = recipe.generator, recipe.learner, recipe.grpo, recipe.model
    if generator.top_p != 1.0:
        yield (
            f"generator.top_p = {generator.top_p}: training needs 1.0, since a cut distribution's log-probabilities are not the policy's. "
            "Remove it; eval.top_p may be lower."
        )
    if generator.min_tokens > generator.max_tokens:
        yield f"generator.min_tokens = {generator.min_tokens} is more than generator.max_tokens = {generator.max_tokens}: lower the first."
    for key, max_tokens in (("generator.max_tokens", generator.max_tokens), ("eval.max_tokens", recipe.eval.max_tokens)):
        if max_tokens >= model.max_length:
            yield (
                f"{key} = {max_tokens} leaves no room for a prompt in model.max_length = {model.max_length}: lower it or raise the latter."
            )
    if learner.micro_batch_tokens < model.max_length:
        yield (
            f"learner.micro_batch_tokens = {learner.micro_batch_tokens} is less than model.max_length = {model.max_length}: "
            f"one sequence may not fit. Raise it to {model.max_length} or more."
        )
    num_responses = grpo.prompts_per_step * grpo.group_size
    if num_responses % grpo.minibatches:
        divisors = [n for n in range(1, num_responses + 1) if num_responses % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - grpo.minibatches))
        yield (
            f"grpo.minibatches = {grpo.minibatches} does not divide grpo.prompts_per_step x grpo.group_size = "
            f"{grpo.prompts_per_step} x {grpo.group_size} = {num_responses} responses: {nearest} would work."
        )
    yield from _learner_contradictions(recipe)
    yield from _data_contradictions(recipe)
    yield from _evaluation_contradictions(recipe)
    yield from _sft_contradictions(recipe)
    yield from _loss_contradictions(recipe)
    yield from _reward_contradictions(recipe)
    yield from _driver_contradictions(recipe)
    yield from _expert_iteration_contradictions(recipe)
    yield from _sweep_contradictions(recipe)
    yield from _guard_contradictions(recipe)
    if generator.max_sequences < grpo.group_size:
        yield (
            f"generator.max_sequences = {generator.max_sequences} is less than grpo.group_size = {grpo.group_size}: the siblings of "
            "a prompt are sampled together. Raise the first or lower the second."
        )
    if recipe.data.num_train_problems < grpo.prompts_per_step:
        yield (
            f"data.num_train_problems = {recipe.data.num_train_problems} is less than grpo.prompts_per_step = {grpo.prompts_per_step}: "
            "a batch may not hold a problem twice. Raise the first or lower the second."
        )


def _evaluation_contradictions(recipe: Recipe) -> Iterator[str]:
    evaluation = recipe.eval
    if len(set(evaluation.prompts)) < len(evaluation.prompts):
        yield f"eval.prompts = {evaluation.prompts} names one twice: its results would overwrite each other. Remove one."
    if evaluation.num_samples > 1 and evaluation.temperature == 0:
        yield (
            f"eval.num_samples = {evaluation.num_samples} with eval.temperature = 0: all responses to a problem would be the same. Set "
            "eval.num_samples = 1, or eval.temperature above 0, 1.0 is usual."
        )
    if evaluation.stop_margin and not evaluation.stop_after:
        yield f"eval.stop_margin = {evaluation.stop_margin} without eval.stop_after, which stops: set the latter, 3 is usual."
    if evaluation.stop_after and not recipe.run.keep_best:
        yield (
            f"eval.stop_after = {evaluation.stop_after} with run.keep_best = 0: the best validated checkpoint, which is then a stage's "
            "model, would be removed. Set run.keep_best = 1 or more."
        )
    if evaluation.stop_after and recipe.learner.average != "none":
        yield (
            f'eval.stop_after = {evaluation.stop_after} with learner.average = "{recipe.learner.average}": each names a model for a '
            'stage\'s end, the best validated checkpoint or an average. Set eval.stop_after = 0 or learner.average = "none".'
        )


def _data_contradictions(recipe: Recipe) -> Iterator[str]:
    if recipe.data.num_validation_problems:
        return
    evaluation = recipe.eval
    asking = {"eval.validate_every": evaluation.validate_every, "eval.stop_after": evaluation.stop_after, "sft.sizes": recipe.sft.sizes}
    for key, asks in asking.items():
        if asks:
            yield f"{key} = {asks} needs validation problems, and data.num_validation_problems = 0: raise the latter, 500 is usual."


def _sft_contradictions(recipe: Recipe) -> Iterator[str]:
    sft = recipe.sft
    if len(set(sft.sizes)) < len(sft.sizes):
        yield f"sft.sizes = {sft.sizes} names a size twice: remove one."
    numbers = [size for size in sft.sizes if isinstance(size, int)]
    if too_small := [size for size in numbers if size < sft.batch_size]:
        yield f"sft.sizes holds {too_small[0]}, less than sft.batch_size = {sft.batch_size}: raise the first or lower the second."
    if sft.traces == BUILTIN and max(numbers, default=0) > sft.num_examples:
        yield (
            f'sft.sizes holds {max(numbers)}, and sft.num_examples = {sft.num_examples} traces are made for sft.traces = "{BUILTIN}": '
            f"raise the latter to {max(numbers)} or more."
        )


def _expert_iteration_contradictions(recipe: Recipe) -> Iterator[str]:
    settings, max_tokens = recipe.expert_iteration, recipe.generator.max_tokens
    if settings.min_tokens > max_tokens:
        yield f"expert_iteration.min_tokens = {settings.min_tokens} is more than generator.max_tokens = {max_tokens}: lower the first."
    levels = [level for _, level in _points(settings.threshold)]
    if not all(0 <= level <= 1 for level in levels) or any(later < earlier for earlier, later in pairwise(levels)):
        yield (
            f"expert_iteration.threshold = {settings.threshold}: a quality lies in [0, 1], and what was once too little "
            "stays too little, so its values may not fall."
        )
    if settings.quality == "weighted" and settings.weight_correct < settings.weight_format:
        yield (
            f"expert_iteration.weight_format = {settings.weight_format} is more than weight_correct = {settings.weight_correct}: a wrong "
            "answer could be worth more than a right one. Lower the first."
        )
    if settings.batch_size > settings.capacity:
        yield (
            f"expert_iteration.batch_size = {settings.batch_size} is more than expert_iteration.capacity = {settings.capacity}: a batch is "
            "taken from the pool. Lower the first."
        )


def _guard_contradictions(recipe: Recipe) -> Iterator[str]:
    """Rollbacks that could not be, and a remedy that would change nothing; only where a guard rolls back."""
    guards = recipe.guards
    if not guards.may_roll_back:
        return
    if not guards.max_rollbacks:
        yield 'guards.max_rollbacks = 0 with the action "rollback": raise it, 3 is usual, or set the action to "stop".'
    if "more_regularisation" in guards.remedies and not (guards.kl_coefficient or guards.entropy_coefficient):
        yield (
            'guards.remedies holds "more_regularisation", and guards.kl_coefficient and guards.entropy_coefficient are both 0: set one, '
            "0.01 is usual for the first, or remove the remedy."
        )


def _sweep_contradictions(recipe: Recipe) -> Iterator[str]:
    """What a sweep's lists may not be; whether each value is allowed, its variant's own recipe says."""
    sections = {name: type(getattr(recipe, name)).model_fields for name in type(recipe).model_fields if name != "sweep"}
    known = [f"{section}.{key}" for section, keys in sections.items() for key in keys]
    for key, values in recipe.sweep.lists.items():
        if key not in known:
            nearest = get_close_matches(key, known, n=1, cutoff=0.4)
            yield f'sweep."{key}" is no key of a recipe' + (f": the nearest is {nearest[0]}." if nearest else ".")
        elif not isinstance(values, list) or not values:
            yield f'sweep."{key}" = {values!r}: give a list of the values to try, for example [1e-4, 5e-4].'
        elif key in NOT_SWEPT:
            yield f'sweep."{key}" would give the variants other stages or another place, which is the sweep\'s: remove it.'
    naming = {"study.seeds": recipe.study.seeds, "sweep.seeds": recipe.sweep.seeds, 'sweep."run.seed"': recipe.sweep.lists.get("run.seed")}
    if len(named := [key for key, values in naming.items() if values]) > 1:
        yield f"{' and '.join(named)} both name seeds: remove one."
    for key, seeds in naming.items():
        if isinstance(seeds, list) and len({repr(seed) for seed in seeds}) < len(seeds):
            yield f"{key} = {seeds} names a seed twice: remove one."
    lengths = {key: len(values) for key, values in recipe.sweep.lists.items() if isinstance(values, list)}
    if recipe.sweep.combine == "zip" and len(set(lengths.values())) > 1:
        yield f'sweep.combine = "zip" takes the lists row by row, and they have {lengths} values: make them equal, or use "grid".'


def _learner_contradictions(recipe: Recipe) -> Iterator[str]:
    learner = recipe.learner
    if learner.warmup_steps and learner.warmup_fraction:
        yield (
            f"learner.warmup_steps = {learner.warmup_steps} and learner.warmup_fraction = {learner.warmup_fraction} both say how long the "
            "learning rate rises: remove one."
        )
    if learner.offload == "all" and learner.zero_stage != 3:
        yield (
            f'learner.offload = "all" needs learner.zero_stage = 3, where weights are divided; it is {learner.zero_stage}: '
            'raise it, or set learner.offload to "optimizer".'
        )


def _driver_contradictions(recipe: Recipe) -> Iterator[str]:
    driver, generator = recipe.driver, recipe.generator
    if generator.kv_on_update == "keep" and not driver.in_flight_updates:
        yield (
            'generator.kv_on_update = "keep" with driver.in_flight_updates = false: no response is in flight at an update, so there is '
            "nothing to keep. Remove one of them."
        )
    if driver.weight_transport in ("nccl", "ipc") and recipe.device.kind == "cpu":
        yield (
            f'driver.weight_transport = "{driver.weight_transport}" needs GPUs, and device.kind = "cpu": '
            'set the first to "auto" or "shared_memory".'
        )
    if driver.weight_transport == "ipc" and (generator.replicas > 1 or recipe.learner.num_ranks > 1):
        yield (
            f'driver.weight_transport = "ipc" is for one learner and one generator on one GPU, not for generator.replicas = '
            f'{generator.replicas} and learner.num_ranks = {recipe.learner.num_ranks}: set both to 1, or the transport to "auto".'
        )
    yield from _sharing_contradictions(recipe)


def _sharing_contradictions(recipe: Recipe) -> Iterator[str]:
    """Of one GPU for both engines."""
    driver, generator, learner = recipe.driver, recipe.generator, recipe.learner
    shares = recipe.device.placement == "shared" or driver.weight_transport == "ipc"
    if recipe.device.placement == "shared" and (generator.replicas > 1 or learner.num_ranks > 1):
        yield (
            f'device.placement = "shared" is for one learner and one generator on one GPU, not for generator.replicas = '
            f'{generator.replicas} and learner.num_ranks = {learner.num_ranks}: set both to 1, or the placement to "separate".'
        )
    if recipe.device.placement == "shared" and driver.weight_transport == "nccl":
        yield (
            'device.placement = "shared" with driver.weight_transport = "nccl", which refuses two ranks on one GPU: '
            'set the latter to "auto".'
        )
    if recipe.device.placement == "shared" and recipe.device.kind == "cpu":
        yield 'device.placement = "shared" shares a GPU, and device.kind = "cpu": remove one of them.'
    if generator.sleep and not shares:
        yield 'generator.sleep = true without device.placement = "shared": a generator with a GPU of its own has nobody to make room for.'
    if generator.sleep and driver.max_staleness > 0:
        yield (
            f"generator.sleep = true with driver.max_staleness = {driver.max_staleness}: the generator would have to sample while it "
            "sleeps. Set driver.max_staleness = 0, or generator.sleep = false where both engines fit."
        )


def _loss_contradictions(recipe: Recipe) -> Iterator[str]:
    loss, advantage = recipe.loss, recipe.advantage
    if loss.ratio == "coupled" and loss.correction != "none":
        yield (
            f'loss.correction = "{loss.correction}" with loss.ratio = "coupled": the coupled ratio already holds the gap to the generator, '
            'which would count twice. Set loss.correction = "none" or loss.ratio = "decoupled".'
        )
    if loss.ratio == "coupled" and loss.surrogate == "log_prob":
        yield 'loss.ratio = "coupled" with loss.surrogate = "log_prob", which has no ratio: set loss.surrogate to "ratio" or "clip".'
    if loss.clip_low == 1 and loss.surrogate in ("clip", "gspo"):
        yield (
            f'loss.clip_low = 1 with loss.surrogate = "{loss.surrogate}" clips nothing below: set it under 1, or loss.surrogate to "cispo".'
        )
    if advantage.baseline == "none" and advantage.divide_by_std and not advantage.function:
        yield (
            'advantage.divide_by_std = true with advantage.baseline = "none": equal rewards would be divided by advantage.epsilon alone. '
            'Set advantage.divide_by_std = false or advantage.baseline = "group_mean".'
        )
    for section, values in (("loss", loss), ("advantage", advantage), ("reward", recipe.reward)):
        if values.kwargs and not values.function:
            yield f"{section}.kwargs = {values.kwargs} without {section}.function, which would take them: name the function or remove them."


def _reward_contradictions(recipe: Recipe) -> Iterator[str]:
    reward, graders = recipe.reward, recipe.eval.graders
    weights = [point[1] for weight in (reward.answer, reward.format, reward.length) for point in _points(weight)]
    if not any(weights) and not reward.function:
        yield "reward.answer, reward.format and reward.length are all 0: nothing would be paid. Set reward.answer = 1.0."
    if DEFAULT_GRADER not in graders:
        yield f'eval.graders = {graders} leaves out "{DEFAULT_GRADER}", which gives a stage\'s accuracy: add it.'
    if len(set(graders)) < len(graders):
        yield f"eval.graders = {graders} names one twice: remove one."
    functions = [("eval.graders", grader) for grader in graders if grader != DEFAULT_GRADER]
    functions += [("reward.function", reward.function)] if reward.function else []
    for key, spec in functions:
        source, separator, name = spec.rpartition(":")
        if not separator or not source or not name.isidentifier():
            yield f"{key} holds {spec!r}: give module:function or path/file.py:function."


def num_grpo_steps(grpo: GrpoSection, num_problems: int) -> int:
    """Batches of `grpo.num_epochs` passes, the last one as it comes; or `grpo.num_steps`.

    >>> num_grpo_steps(GrpoSection(num_epochs=1, prompts_per_step=4), num_problems=10)
    3
    """
    return -(-num_problems * grpo.num_epochs // grpo.prompts_per_step) if grpo.num_epochs else grpo.num_steps


def _points(weight: float | list[tuple[int, float]]) -> list[tuple[int, float]]:
    return weight if isinstance(weight, list) else [(0, weight)]


def check_stage_settings(recipe: Recipe, stages: Sequence[str]) -> None:
    """Refuse what only matters to the stages that will run: a warm-up as long as a stage, a batch larger than its data.

    Raises:
        RecipeError: the sentence names the values, and what would work.
    """
    sft = recipe.sft
    num_traces = min((size for size in sft.sizes if isinstance(size, int)), default=sft.num_examples)
    traces_key = "smallest of sft.sizes" if sft.sizes else "sft.num_examples"
    lengths = {
        "sft": (num_sft_steps(sft, num_traces), f"{traces_key} x sft.epochs / sft.batch_size"),
        "expert_iteration": (
            num_round_steps(recipe.expert_iteration, recipe.expert_iteration.capacity),
            "in a round at most expert_iteration.capacity x expert_iteration.epochs / expert_iteration.batch_size",
        ),
        "grpo": (
            num_grpo_steps(recipe.grpo, recipe.data.num_train_problems) * recipe.grpo.updates_per_step,
            f"{'data.num_train_problems x grpo.num_epochs / grpo.prompts_per_step' if recipe.grpo.num_epochs else 'grpo.num_steps'} x "
            "grpo.minibatches x grpo.epochs",
        ),
    }
    if not sft.sizes or sft.traces == BUILTIN:  # else it filters all traces of a file, whose number is not known yet
        lengths["sft_filtered"] = (num_sft_steps(sft, sft.num_examples), "at most sft.num_examples x sft.epochs / sft.batch_size")
    _check_early_stopping(recipe, stages)
    _check_remedies(recipe, stages)
    for stage in stages:
        num_steps, formula = lengths.get(stage, (None, ""))
        if num_steps is not None and recipe.learner.num_averaged_sets and recipe.learner.average_every > num_steps:
            raise RecipeError(
                f"learner.average_every = {recipe.learner.average_every} is more than the {stage} stage's {num_steps} optimizer steps "
                f"({formula}), so nothing would be averaged. Lower it, 1 is usual, or train longer."
            )
        if num_steps is not None and recipe.learner.warmup_steps >= num_steps:
            raise RecipeError(
                f"learner.warmup_steps = {recipe.learner.warmup_steps} is as long as the {stage} stage ({formula} = {num_steps} optimizer "
                f"steps), so the learning rate would never be reached. Lower learner.warmup_steps to {num_steps // 10} or train longer."
            )
    if "expert_iteration" in stages and recipe.expert_iteration.questions > recipe.data.num_train_problems:
        raise RecipeError(
            f"expert_iteration.questions = {recipe.expert_iteration.questions} is more than data.num_train_problems = "
            f"{recipe.data.num_train_problems}: a round may not ask a problem twice. Lower the first or raise the second."
        )
    if token_budget(recipe, stages) and (recipe.learner.schedule != "constant" or recipe.learner.warmup_fraction):
        raise RecipeError(
            f"study.generated_tokens = {recipe.study.generated_tokens} ends grpo at a step that is not known before, and learner.schedule "
            f'= "{recipe.learner.schedule}" and learner.warmup_fraction = {recipe.learner.warmup_fraction} span all its steps. Set '
            'learner.schedule = "constant" and learner.warmup_steps in place of learner.warmup_fraction, or study.generated_tokens = 0.'
        )
    if "grpo" in stages and recipe.curriculum.skip_after and recipe.grpo.num_epochs:
        raise RecipeError(
            f"curriculum.skip_after = {recipe.curriculum.skip_after} with grpo.num_epochs = {recipe.grpo.num_epochs}: a pass over the data "
            "has every problem once, and the filter passes some over, so how many steps a pass takes would not be known before its end. "
            "Set grpo.num_epochs = 0 and grpo.num_steps, or curriculum.skip_after = 0."
        )
    if SFT_STAGES & set(stages) and not recipe.sft.sizes and recipe.sft.batch_size > recipe.sft.num_examples:
        raise RecipeError(
            f"sft.batch_size = {recipe.sft.batch_size} is more than sft.num_examples = {recipe.sft.num_examples}: lower the first."
        )


def _check_early_stopping(recipe: Recipe, stages: Sequence[str]) -> None:
    """expert_iteration validates each round whatever eval.validate_every says; a sweep over sizes writes no checkpoint to go back to."""
    evaluation = recipe.eval
    if not evaluation.stop_after:
        return
    by_step = [stage for stage in stages if stage in SFT_STAGES or stage == "grpo"]
    if by_step and not evaluation.validate_every:
        raise RecipeError(
            f"eval.stop_after = {evaluation.stop_after} counts validations, and the {by_step[0]} stage has none with "
            "eval.validate_every = 0: set eval.validate_every to a number of steps, 10 is usual, or eval.stop_after = 0."
        )
    if "sft" in stages and recipe.sft.sizes:
        raise RecipeError(
            f"eval.stop_after = {evaluation.stop_after} with sft.sizes = {recipe.sft.sizes}: the trainings of a sweep write no checkpoints "
            "on their way, so that there is no best one to go back to. Set sft.sizes = [] or eval.stop_after = 0."
        )


def _check_remedies(recipe: Recipe, stages: Sequence[str]) -> None:
    """That those of grpo can be used once. Of the recipe as it is given: a remedy that was used has changed what is looked at here."""
    guards, generator, grpo = recipe.guards, recipe.generator, recipe.grpo
    if "grpo" not in stages or not guards.may_roll_back:
        return
    if "temperature" in guards.remedies and guards.temperature == generator.temperature:
        raise RecipeError(
            f'guards.remedies holds "temperature", and guards.temperature = {guards.temperature} is what generator.temperature is already: '
            "set the former to another value, or remove the remedy."
        )
    larger = grpo.group_size * guards.batch_factor
    if "larger_batch" in guards.remedies and larger > generator.max_sequences:
        raise RecipeError(
            f'guards.remedies holds "larger_batch", and grpo.group_size x guards.batch_factor = {grpo.group_size} x {guards.batch_factor} '
            f"= {larger} is more than generator.max_sequences = {generator.max_sequences}: the siblings of a prompt are sampled together. "
            "Raise the latter, or remove the remedy."
        )


LEAST_LEFT = 0.02
"""The share of a budget that is left over: a round of expert iteration on less would be a whole SFT for next to nothing new."""


def token_budget(recipe: Recipe, stages: Sequence[str]) -> int:
    """study.generated_tokens where it is in force: among these stages are both that it puts at equal cost; else 0, for no limit."""
    return recipe.study.generated_tokens if set(stages) >= RIVALS else 0


def num_sft_steps(sft: SftSection, num_examples: int) -> int:
    """Optimizer steps of the SFT stage; an epoch's last batch may be smaller and is stepped too."""
    return sft.epochs * -(-num_examples // sft.batch_size)


def num_round_steps(settings: ExpertIterationSection, num_responses: int) -> int:
    """Optimizer steps of one round of expert iteration on a pool of so many; an epoch's last batch may be smaller and is stepped too."""
    return settings.epochs * -(-num_responses // settings.batch_size)
