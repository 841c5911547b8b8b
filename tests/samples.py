"""Small runs for tests: a Run around given actors, with problems and a tokenizer that need no model."""

import random
from pathlib import Path
from typing import Any

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.config import Recipe
from mathrl_ray.data.arithmetic import make_problems
from mathrl_ray.driver.canary import canary_requests
from mathrl_ray.driver.console import Console
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.run import Run
from mathrl_ray.types import Completion, Grade, Trajectory


class ByteTokenizer:
    """One id a byte."""

    eos_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())


def recipe_for(folder: Path, **sections: dict[str, Any]) -> Recipe:
    """A recipe whose run root is `folder`, with the given keys changed."""
    return Recipe.model_validate({**sections, "run": {"name": "test", "root": str(folder), **sections.get("run", {})}})


def make_run(
    recipe: Recipe,
    actors: Actors,
    *,
    tokenizer: Any = None,
    model_folder: str = "start",
    num_train_problems: int = 16,
    recorder: Recorder | None = None,
) -> Run:
    """A run with the recipe's numbers of built-in problems; by default in a new folder."""
    run = Run(
        recipe=recipe,
        actors=actors,
        recorder=recorder or Recorder.create(recipe),
        console=Console(),
        tokenizer=tokenizer or ByteTokenizer(),
        model_folder=model_folder,
        train_problems=make_problems("train", num_train_problems, seed=0),
        test_problems=make_problems("test", recipe.eval.num_problems, seed=0),
        validation_problems=make_problems("validation", 8, seed=0),
    )
    run.canary_requests = canary_requests(run)
    return run


def made_up_trajectories(num: int, seed: int) -> list[Trajectory]:
    """Responses of ids that no model sampled, of 3 to 40 tokens, with advantages of both signs: something to take gradients of."""
    draw = random.Random(seed)
    return [_made_up(index, draw) for index in range(num)]


def _made_up(index: int, draw: random.Random) -> Trajectory:
    prompt_ids = tuple(draw.randrange(1, 200) for _ in range(draw.randrange(2, 20)))
    response_ids = tuple(draw.randrange(1, 200) for _ in range(draw.randrange(3, 40)))
    logprobs = tuple(-2.0 - draw.random() for _ in response_ids)
    completion = Completion("x", response_ids, logprobs, ((0, len(response_ids)),), "stop")
    advantage = (1 if index % 2 else -1) * (0.5 + draw.random())
    return Trajectory(f"g-{index // 4}", index % 4, f"p-{index // 4}", prompt_ids, completion, Grade(1, 1, 1, "correct", "x"), advantage)
