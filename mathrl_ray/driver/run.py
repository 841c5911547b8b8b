"""One run, as a stage holds it: the recipe, the actors, the data, and what has been counted so far.

Made by entry.py, given to every stage and loop. Holds things together; decides nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any

from mathrl_ray.actors.interfaces import Actors, Generator, Scorer
from mathrl_ray.config import Recipe, with_changes
from mathrl_ray.core.advantages import AdvantageFunction
from mathrl_ray.core.prompts import PROMPT_NAMES, Prompt, fill, named_prompt
from mathrl_ray.core.run_estimate import StepForecast
from mathrl_ray.data.traces import SftRow
from mathrl_ray.driver.console import Console
from mathrl_ray.driver.guards import Guards
from mathrl_ray.driver.ledger import Ledger
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.replicas import Replicas
from mathrl_ray.driver.time_limit import TimeLimit
from mathrl_ray.driver.waiting import Changes
from mathrl_ray.driver.weights import Weights
from mathrl_ray.types import GenerationRequest, Problem, SamplingSettings, TrajectoryGroup

SCORER_ROOM = 1024
"""Responses that a scorer may have in its own queue."""


@dataclass
class Run:
    """The state that a run's stages share."""

    recipe: Recipe
    actors: Actors
    recorder: Recorder
    console: Console
    tokenizer: Any
    """Of the start model; the driver tokenises prompts with it, and nothing else."""
    model_folder: str
    """The start model: SFT and GRPO each begin from it."""
    train_problems: list[Problem]
    test_problems: list[Problem]
    traces: list[SftRow] = field(default_factory=list)
    """What SFT learns from, as text; its batches are tokenised while the learner trains."""
    validation_problems: list[Problem] = field(default_factory=list)
    """For every choice during training; disjoint from the other two."""
    prompts: Mapping[str, Prompt] = field(default_factory=lambda: {name: named_prompt(name) for name in PROMPT_NAMES})
    """By the recipe's word for each: data.prompt and eval.prompts."""
    advantage_function: AdvantageFunction | None = None
    """Of advantage.function; None where the recipe's baseline gives the advantages."""
    canary_requests: list[GenerationRequest] = field(default_factory=list)
    canary_limit_nats: float | None = None
    """The larger of driver.canary_max_logprob_diff and 3 times the gap before any update; measured when the first stage begins."""
    changes: Changes = field(default_factory=Changes)
    """Rung whenever something changes that a loop may wait for."""
    time_limit: TimeLimit = field(default_factory=TimeLimit)
    """Of the job (run.max_hours)."""
    forecasts: Mapping[str, StepForecast] = field(default_factory=dict)
    """Of each stage's steps, from the preflight; none where nothing could be estimated."""
    save_now: Callable[[], Awaitable[None]] | None = None
    """Saves the state of the stage that runs, as soon as it can be saved, so that the run can go on from there; None: there is none.

    Awaited when the job is told to stop (stopping.py), while the stage's loops stand and generation is aborted; it is cancelled at its
    limit, and what it was writing then must not look whole. In the middle of a round, of which nothing can be saved, it only says so.
    """
    stopped_groups: list[TrajectoryGroup] = field(default_factory=list)
    """Groups whose generation was aborted, as far as they came: written down when the job stops, never trained on."""
    checkpoint: Any = None
    """What the next stage goes on from (a checkpoint.Checkpoint), or None."""
    validated: dict[tuple[str, int], float] = field(default_factory=dict)
    """Accuracies of validations by (stage, step), by which checkpoints are kept."""
    token_budget: int = 0
    """Tokens that expert iteration and GRPO may each sample for learning (recipe_checks.token_budget); 0: no limit. Set by the study."""
    saved_s: float = 0.0
    """When the last checkpoint was written or tried, by the recorder's clock."""
    ledger: Ledger = field(init=False)
    """Of the present stage."""
    given_recipe: Recipe = field(init=False)
    """Without what guards have changed."""
    generators: Replicas[Generator] = field(init=False)
    scorers: Replicas[Scorer] = field(init=False)
    weights: Weights = field(init=False)
    guards: Guards = field(init=False)
    """Of the present stage, which makes its own; those that stand here before watch nothing that is trained."""
    remedies: dict[str, Any] = field(default_factory=dict)
    """Keys of the recipe that guards have changed for the present stage (rollback.py)."""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """Summaries of the finished stages."""

    def __post_init__(self) -> None:
        recipe, driver = self.recipe, self.recipe.driver
        self.ledger, self.saved_s = Ledger(self.recorder.elapsed_s), self.recorder.elapsed_s()
        shared = (self.changes, self.ledger, driver)
        generator = recipe.generator

        def say(text: str) -> None:
            self.console.say(text)

        self.generators = Replicas(self.actors.generators, *shared, room=generator.max_sequences, limit_s=generator.limit_s, say=say)
        self.scorers = Replicas(self.actors.scorers, *shared, room=SCORER_ROOM, limit_s=recipe.scorer.limit_s * SCORER_ROOM, say=say)
        self.weights = Weights(self.actors.learner, self.generators, *shared)
        self.given_recipe = recipe
        self.guards = Guards(self, "baseline")

    def change_recipe(self, remedies: Mapping[str, Any]) -> None:
        """Use other values for these keys, and those that were given for all others.

        Raises:
            pydantic.ValidationError: it would be a recipe that cannot run; nothing has changed.
        """
        if remedies or self.remedies:
            self.recipe = with_changes(self.given_recipe, remedies) if remedies else self.given_recipe
            self.remedies = dict(remedies)

    async def close(self) -> None:
        """End replacements of failed actors that still go on."""
        await self.generators.close()
        await self.scorers.close()

    def step_measured(self, stage: str, step_s: float, generated_tokens: int = 0, num_left: int | None = None) -> None:
        """A training step has ended; once, after a few of them, a line with what they say of the others.

        Args:
            stage: its name.
            step_s, generated_tokens, num_left: as StepForecast.measured takes them.
        """
        if (forecast := self.forecasts.get(stage)) is not None:
            forecast.measured(step_s, generated_tokens, num_left)
            if text := forecast.correction():
                self.console.say(f"{stage}: {text}")

    def show_sample(self, groups: Sequence[TrajectoryGroup]) -> None:
        """One response of a step, for those who watch."""
        if self.console.is_live and groups:
            sample = groups[-1].trajectories[-1]
            problem = self._problem_texts.get(sample.problem_id, sample.problem_id)
            self.console.sample(problem, sample.completion.text, sample.grade.outcome)

    @cached_property
    def _problem_texts(self) -> dict[str, str]:
        return {problem.problem_id: problem.problem for problem in self.train_problems}

    def validations_of(self, stage: str) -> dict[int, float]:
        """Accuracies by step."""
        return {step: accuracy for (of, step), accuracy in self.validated.items() if of == stage}

    @property
    def is_budget_spent(self) -> bool:
        """Whether the present stage has sampled all that it may."""
        return 0 < self.token_budget <= self.ledger.counts.generated_tokens

    @property
    def budget_text(self) -> str:
        """The end of a stage's head line."""
        return f", until {self.token_budget:,} tokens are sampled (study.generated_tokens)" if self.token_budget else ""

    @property
    def sampled_text(self) -> str:
        """How much of its budget the present stage has spent."""
        return f"{self.ledger.counts.generated_tokens:,} of the {self.token_budget:,} tokens of study.generated_tokens"

    def steps_left(self, step: int, num_steps: int, consumed_tokens: float) -> int:
        """How many training steps follow, about: what is left of the budget is divided by a step's mean so far.

        Args:
            step: that was done last, from 1.
            num_steps: of the stage without a budget.
            consumed_tokens: of its steps so far.
        """
        num_left = max(0, num_steps - step)
        if not self.token_budget or not consumed_tokens:
            return num_left
        return min(num_left, max(0, ceil((self.token_budget - consumed_tokens) / (consumed_tokens / step))))

    @property
    def policy_version(self) -> int:
        """Of the weights that the generators hold."""
        return self.weights.policy_version

    @property
    def training_sampling(self) -> SamplingSettings:
        generator = self.recipe.generator
        return SamplingSettings(
            temperature=generator.temperature,
            max_tokens=generator.max_tokens,
            min_tokens=generator.min_tokens,
            stop=self.prompt_named().stop,
            stop_token_ids=self.actors.stop_token_ids,
        )

    def evaluation_sampling(self, prompt: str | None = None) -> SamplingSettings:
        """Settings of evaluations with one of eval.prompts, by default the first."""
        evaluation = self.recipe.eval
        return SamplingSettings(
            temperature=evaluation.temperature,
            top_p=evaluation.top_p,
            max_tokens=evaluation.max_tokens,
            stop=self.prompt_named(prompt or evaluation.prompts[0]).stop,
            stop_token_ids=self.actors.stop_token_ids,
        )

    def prompt_named(self, prompt: str | None = None) -> Prompt:
        """The prompt by the recipe's word for it, by default data.prompt, which training uses."""
        return self.prompts[prompt or self.recipe.data.prompt]

    def prompt(self, problem: Problem, prompt: str | None = None) -> str:
        """The full text that a model sees of a problem."""
        return fill(self.prompt_named(prompt), problem.problem, self.tokenizer)

    def prompt_ids(self, problem: Problem, prompt: str | None = None) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(self.prompt(problem, prompt), add_special_tokens=False))
