"""One run, as a stage holds it: the recipe, the actors, the data, and what has been counted so far.

Made by entry.py, given to every stage and loop. Holds things together; decides nothing.
"""

from dataclasses import dataclass, field
from typing import Any

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.config import Recipe
from mathrl_ray.core.prompts import render
from mathrl_ray.driver.console import Console
from mathrl_ray.driver.ledger import Ledger
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.types import GenerationRequest, Problem, SamplingSettings, SftExample


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
    sft_examples: list[SftExample]
    canary_requests: list[GenerationRequest] = field(default_factory=list)
    canary_limit_nats: float | None = None
    """The larger of driver.canary_max_logprob_diff and 3 times the gap before any update; measured when the first stage begins."""
    policy_version: int = 0
    """Publications of weights since the stage began."""
    ledger: Ledger = field(default_factory=Ledger)
    """Of the present stage."""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """Summaries of the finished stages."""

    @property
    def training_sampling(self) -> SamplingSettings:
        generator = self.recipe.generator
        return SamplingSettings(
            temperature=generator.temperature,
            max_tokens=generator.max_tokens,
            min_tokens=generator.min_tokens,
            stop_token_ids=self.actors.stop_token_ids,
        )

    @property
    def evaluation_sampling(self) -> SamplingSettings:
        evaluation = self.recipe.eval
        return SamplingSettings(
            temperature=evaluation.temperature,
            top_p=evaluation.top_p,
            max_tokens=evaluation.max_tokens,
            stop_token_ids=self.actors.stop_token_ids,
        )

    def prompt(self, problem: Problem, prompt_name: str = "r1_zero") -> str:
        return render(prompt_name, problem.problem)

    def prompt_ids(self, problem: Problem, prompt_name: str = "r1_zero") -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(self.prompt(problem, prompt_name), add_special_tokens=False))
