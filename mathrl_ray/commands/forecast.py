"""What a run will take and cost, from the recipe's numbers and the machines' speed: one row a stage.

Called by preflight.py. The arithmetic of speeds is in core/run_estimate.py; here stand the numbers that a recipe asks for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from mathrl_ray.commands.resource_checks import ModelNeeds
from mathrl_ray.config import Recipe
from mathrl_ray.core.run_estimate import Speeds, StageEstimate, duration, sampled_tokens_per_s, speeds, trained_tokens_per_s
from mathrl_ray.device import Device
from mathrl_ray.recipe_checks import num_grpo_steps, num_sft_steps, token_budget
from mathrl_ray.stages.inputs import Inputs

NOTE = (
    "For orientation: from the device's usual speed, each response at its longest, the engines' start left out. "
    "A run corrects it after three measured steps."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an estimate is made from."""

    recipe: Recipe
    device: Device
    model: ModelNeeds
    num_train: int
    num_validation: int
    num_test: int
    num_traces: int
    trace_tokens: float
    """Mean of a trace, prompt included."""
    gpu_name: str = ""
    token_budget: int = 0
    """Of expert iteration and GRPO each; 0: no limit."""

    def stage(self, name: str) -> StageEstimate:
        if name == "grpo":
            return self._grpo()
        if name == "expert_iteration":
            return self._expert_iteration()
        return self._sft(name) if name.startswith("sft") else StageEstimate(name, 0, 0.0, 0, *self._evaluations(0))

    def _grpo(self) -> StageEstimate:
        recipe, grpo = self.recipe, self.recipe.grpo
        num_steps, responses = num_grpo_steps(grpo, self.num_train), grpo.prompts_per_step * grpo.group_size
        sampled = responses * recipe.generator.max_tokens
        passes = grpo.epochs + (grpo.updates_per_step > 1) / 3 + (recipe.loss.kl_coefficient > 0) / 3  # a forward pass is a third
        length = self.model.prompt_tokens + recipe.generator.max_tokens
        train_s = passes * responses * length / self._trained_per_s(length)
        generate_s = self._sampling_s(responses, recipe.generator.max_tokens)
        overlaps = recipe.driver.max_staleness > 0 and self.device.gpus_per_engine in (0, 1)
        step_s = max(train_s, generate_s) if overlaps else train_s + generate_s
        every = recipe.eval.validate_every
        tokens, seconds = self._evaluations(num_steps // every if every else 0)
        return StageEstimate("grpo", num_steps, step_s, sampled, tokens, seconds, self._most((1 + recipe.driver.max_staleness) * sampled))

    def _expert_iteration(self) -> StageEstimate:
        """A round is a step; its SFT takes a full pool, as later rounds may have it."""
        recipe, settings = self.recipe, self.recipe.expert_iteration
        responses, max_tokens = settings.questions * settings.group_size, recipe.generator.max_tokens
        length = self.model.prompt_tokens + max_tokens
        num_kept = min(settings.capacity, settings.rounds * settings.questions * min(settings.group_size, settings.max_per_problem))
        round_s = self._sampling_s(responses, max_tokens) + settings.epochs * num_kept * length / self._trained_per_s(length)
        tokens, seconds = self._evaluations(settings.rounds)
        sampled = responses * max_tokens
        return StageEstimate("expert_iteration", settings.rounds, round_s, sampled, tokens, seconds, self._most(sampled))

    def _most(self, at_the_end: int) -> int | None:
        """Tokens of a stage with a budget: what was begun when it was spent is sampled to its end."""
        return self.token_budget + at_the_end if self.token_budget else None

    def _sft(self, name: str) -> StageEstimate:
        sft, every = self.recipe.sft, self.recipe.eval.validate_every
        swept = sft.sizes if name == "sft" else []
        sizes = [self.num_traces if size == "all" else size for size in swept] or [self.num_traces]
        num_steps = sum(num_sft_steps(sft, size) for size in sizes)
        step_s = min(sft.batch_size, max(sizes)) * self.trace_tokens / self._trained_per_s(self.trace_tokens)
        num_validations = (num_steps // every if every else 0) + len(swept)
        tokens, seconds = self._evaluations(num_validations)
        return StageEstimate(name, num_steps, step_s, 0, tokens, seconds)

    def _evaluations(self, num_validations: int) -> tuple[int, float]:
        """(tokens at most, seconds) of a stage's full evaluation and its validations."""
        evaluation = self.recipe.eval
        responses = self.num_test * evaluation.num_samples * len(evaluation.prompts) + num_validations * self.num_validation
        return responses * evaluation.max_tokens, self._sampling_s(responses, evaluation.max_tokens)

    def _sampling_s(self, responses: int, max_tokens: int) -> float:
        generator = self.recipe.generator
        batch = max(1, min(generator.max_sequences, -(-responses // generator.replicas)))
        context = self.model.prompt_tokens + max_tokens / 2
        device, dtype = self._speeds(generator.num_threads), self.recipe.model.dtype
        rate = sampled_tokens_per_s(self.model.shape, dtype, device, batch=batch, context=context)
        return responses * max_tokens / (rate * generator.replicas)

    def _trained_per_s(self, length: float) -> float:
        learner = self.recipe.learner
        return trained_tokens_per_s(
            self.model.shape,
            self._speeds(learner.num_threads),
            mean_length=length,
            num_ranks=learner.num_ranks,
            recomputes=learner.gradient_checkpointing,
        )

    def _speeds(self, num_threads: int) -> Speeds:
        return speeds(self.gpu_name, self.recipe.model.dtype, num_threads)


def plan_of(
    recipe: Recipe, device: Device, model: ModelNeeds, inputs: Inputs, stages: Sequence[str], *, trace_tokens: float, gpu_name: str
) -> Plan:
    return Plan(
        recipe,
        device,
        model,
        num_train=len(inputs.train),
        num_validation=len(inputs.validation),
        num_test=len(inputs.test),
        num_traces=len(inputs.traces),
        trace_tokens=trace_tokens,
        gpu_name=gpu_name if device.kind == "cuda" else "",
        token_budget=token_budget(recipe, stages),
    )


def forecast_table(estimates: Sequence[StageEstimate], price_per_hour: float) -> Table:
    """One row a stage and their sum; the cost column only with a price."""
    table = Table(title="Estimate", title_justify="left", caption_justify="left", caption=NOTE)
    table.add_column("stage", no_wrap=True)
    for name in ("steps", "a step", "in all", "generated tokens, at most", *(["cost"] if price_per_hour else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for each in estimates:
        steps = f"{each.num_steps:,}" if each.most_tokens is None else f"at most {each.num_steps:,}"
        table.add_row(*_row(each.name, steps, each.step_s, each.total_s, each.generated_tokens, price_per_hour))
    total_s, tokens = sum(estimate.total_s for estimate in estimates), sum(estimate.generated_tokens for estimate in estimates)
    table.add_row(*_row("all", f"{sum(estimate.num_steps for estimate in estimates):,}", None, total_s, tokens, price_per_hour))
    return table


def _row(name: str, steps: str, step_s: float | None, total_s: float, tokens: int, price_per_hour: float) -> list[str]:
    cost = [f"{total_s / 3600 * price_per_hour:.2f}"] if price_per_hour else []
    return [name, steps, f"{step_s:.3g} s" if step_s else "", duration(total_s), f"{tokens:,}", *cost]
