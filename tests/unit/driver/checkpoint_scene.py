"""A run on made-up actors that saves when a test says so, and what a job would find of it."""

import asyncio

from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.driver.checkpoint import save_checkpoint
from mathrl_ray.driver.digests import run_digests
from mathrl_ray.driver.resume import find_resumption

SMALL = {"eval": {"num_problems": 4}, "sft": {"batch_size": 4}}


def made_run(folder, resumption=None, stages=("grpo",), sections=None, **run):
    recipe = recipe_for(folder, run=run, **SMALL, **(sections or {}))
    diary = Diary()
    actors = Actors(FakeLearner(diary), (FakeGenerator(diary),), (FakeScorer(diary),), (0,))
    recorder = resumption.open(recipe, list(stages), print) if resumption else None
    made = make_run(recipe, actors, recorder=recorder)
    if resumption:
        resumption.restore(made)
    return made


def save(run, stage, step, **more):
    return asyncio.run(save_checkpoint(run, stage, step, **more))


def resumption_for(folder, stages=("grpo",), **sections):
    sections = {**SMALL, **sections, "run": {"resume": "auto", **sections.get("run", {})}}
    return find_resumption(recipe_for(folder, **sections), list(stages))


def digests_of(run, **changed):
    """Of its data and recipe, with some of the sets changed."""
    sets = {"train": run.train_problems, "traces": run.traces, "validation": run.validation_problems, "test": run.test_problems}
    return run_digests(run.recipe, **{**sets, **changed})
