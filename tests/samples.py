"""Small runs for tests: a Run around given actors, with problems and a tokenizer that need no model."""

from pathlib import Path
from typing import Any

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.config import Recipe
from mathrl_ray.data.arithmetic import make_problems
from mathrl_ray.driver.console import Console
from mathrl_ray.driver.loops import canary_requests
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.run import Run


class ByteTokenizer:
    """One id a byte."""

    eos_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())


def recipe_for(folder: Path, **sections: dict[str, Any]) -> Recipe:
    """A recipe whose run root is `folder`, with the given keys changed."""
    return Recipe.model_validate({**sections, "run": {"name": "test", "root": str(folder), **sections.get("run", {})}})


def make_run(recipe: Recipe, actors: Actors, *, tokenizer: Any = None, model_folder: str = "start") -> Run:
    """A run with the recipe's numbers of built-in problems."""
    run = Run(
        recipe=recipe,
        actors=actors,
        recorder=Recorder.create(recipe),
        console=Console(),
        tokenizer=tokenizer or ByteTokenizer(),
        model_folder=model_folder,
        train_problems=make_problems("train", 16, seed=0),
        test_problems=make_problems("test", recipe.eval.num_problems, seed=0),
        sft_examples=[],
    )
    run.canary_requests = canary_requests(run)
    return run
