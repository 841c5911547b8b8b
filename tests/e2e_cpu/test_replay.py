"""`replay` on runs of the real engines: what it computes in plain PyTorch from the saved files is what the run logged, whatever the loss.

The loss of on-policy GRPO is about 1e-8, which shows nothing; so these are losses far from 0: without a baseline, with a KL, with stale
rollouts and their correction, with several updates a batch, with each aggregation, and with adapters.
"""

import asyncio
import json
import shutil

import pytest
from samples import make_run, recipe_for
from test_synchronous_loop import CPU, PureScorer, ThreadedLearner
from transformers import AutoTokenizer

from mathrl_ray.actors.generator import Generator
from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.learner import Learner
from mathrl_ray.commands.replay import ReplayOptions, replayed
from mathrl_ray.commands.saved_batch import saved_step
from mathrl_ray.stages.study import run_study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]
NUM_STEPS = 3
SECTIONS = {
    "grpo": {"num_steps": NUM_STEPS, "prompts_per_step": 4, "group_size": 4},
    "learner": {"learning_rate": 3e-3, "micro_batch_tokens": 1024},
    "reward": {"format": 0.5},  # a start model that has learned for seconds is hardly ever right
    "eval": {"num_problems": 4},
}
VARIANTS = {
    "reinforce": {"grpo": {"loss": "reinforce"}, "loss": {"aggregation": "token"}},
    "kl": {"grpo": {"loss": "grpo"}, "loss": {"kl_coefficient": 0.5, "kl_estimator": "k2", "entropy_coefficient": 0.1}},
    "stale": {
        "grpo": {"loss": "reinforce", "num_steps": NUM_STEPS + 1},
        "loss": {"aggregation": "constant", "correction": "truncated", "correction_high": 1.01},
        "driver": {"max_staleness": 1},
    },
    "minibatches": {
        "grpo": {"loss": "grpo_clip", "minibatches": 2, "epochs": 2},
        "loss": {"clip_low": 0.01, "clip_high": 0.01},
        "learner": {"schedule": "cosine", "warmup_steps": 2, "max_grad_norm": 0.1},
    },
    "adapters": {"grpo": {"loss": "reinforce"}, "learner": {"lora_rank": 4}, "loss": {"kl_coefficient": 0.1}},
    "warm": {"grpo": {"loss": "dr_grpo"}, "generator": {"temperature": 1.3, "min_tokens": 6}},
}


class Engines:
    """One generator and one learner for all runs of this file."""

    def __init__(self, start_model, folder):
        self.loop, self.model = asyncio.new_event_loop(), str(start_model)
        recipe = self.recipe(folder)
        self.generator, self.learner = Generator(), Learner()
        self.facts = self.do(self.generator.setup(recipe, CPU, self.model))
        self.learner.preload(recipe, CPU)
        self.tokenizer = AutoTokenizer.from_pretrained(start_model)

    def recipe(self, root, **changed):
        sections = {name: {**SECTIONS.get(name, {}), **changed.get(name, {})} for name in {*SECTIONS, *changed}}
        return recipe_for(root, run={"checkpoint_every": 1, "keep_last": 99}, model={"path": self.model}, **sections)

    def do(self, work):
        return self.loop.run_until_complete(asyncio.wait_for(work, 200))

    def grpo(self, root, **changed):
        """Run the stage to its end. Returns the run's folder."""
        recipe = self.recipe(root, **changed)
        self.learner.setup(recipe, CPU)
        actors = Actors(ThreadedLearner(self.learner), (self.generator,), (PureScorer(),), self.facts.stop_token_ids)
        run = make_run(recipe, actors, tokenizer=self.tokenizer, model_folder=self.model)
        self.do(run_study(run, ["grpo"]))
        run.recorder.close()
        return run.recorder.folder

    def stop(self):
        self.learner.shutdown()
        self.do(self.generator.shutdown())
        self.loop.close()


@pytest.fixture(scope="module")
def engines(start_model, tmp_path_factory):
    engines = Engines(start_model, tmp_path_factory.mktemp("setup"))
    yield engines
    engines.stop()


@pytest.fixture(scope="module", params=VARIANTS)
def run(request, engines, tmp_path_factory):
    """(variant, folder)"""
    return request.param, engines.grpo(tmp_path_factory.mktemp(request.param), **VARIANTS[request.param])


def trained_steps(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in rows if "grad_norm" in row}


def check(folder, step, row, **options):
    """Every figure that the run logged of its loss, to 1e-5."""
    found = replayed(ReplayOptions(folder, step, **options))
    assert {"loss", "grad_norm", "clip_fraction", "entropy_nats", "importance_ratio_mean", "mismatch_kl"} <= found.logged.keys()
    for name, logged in found.logged.items():
        assert abs(found.replayed[name] - row[name]) <= 1e-5 * max(1, abs(row[name])), (name, logged)
    assert found.logprob_gap_nats < 1e-6  # 0 on the machine of the run: the weights are the same to the bit
    assert not found.differing
    return found


def test_replay_from_the_checkpoint_before_a_step_equals_the_log(run):
    variant, folder = run
    steps = trained_steps(folder)
    assert len(steps) >= 2
    for step, row in steps.items():
        found = check(folder, step, row)
        assert not found.redone
    largest = max(abs(row["loss"]) for row in steps.values())
    assert largest > 1e-3, "a loss near 0 shows nothing"
    if variant in ("kl", "adapters"):
        assert max(row["kl_nats"] for row in steps.values()) > 1e-4
    if variant == "stale":
        assert max(row["staleness_max"] for row in steps.values()) == 1
        assert any(row["correction_weight_mean"] != 1 for row in steps.values())
    if variant == "minibatches":
        assert max(row["clip_fraction"] for row in steps.values()) > 0.01


def test_replay_without_checkpoints_does_the_steps_between_again(run, tmp_path):
    _, folder = run
    shutil.copytree(folder, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "checkpoints")
    steps = trained_steps(folder)
    found = check(tmp_path / "bare", max(steps), steps[max(steps)])
    assert sorted(found.redone) == sorted(steps)[:-1]
    assert found.largest_redone < 1e-5


def test_the_method_that_the_run_used_has_its_figures_and_its_gradient(run):
    variant, folder = run
    method = VARIANTS[variant]["grpo"]["loss"]
    step = min(trained_steps(folder))
    own_keys = variant in ("kl", "adapters", "warm")  # else the recipe names keys that the method sets otherwise
    found = replayed(ReplayOptions(folder, step, losses=[method, "reinforce", "rloo"]))
    names = [each["name"] for each in found.losses]
    assert names == list(dict.fromkeys(["logged", method, "reinforce", "rloo"]))
    same = found.cosines[0][1]
    if own_keys:
        assert same == pytest.approx(1, abs=1e-6)
        assert found.losses[1]["figures"] == pytest.approx(found.losses[0]["figures"], rel=1e-6)
    assert all(value is None or -1 <= value <= 1 for row in found.cosines for value in row)


def test_the_checkpoint_as_weights_of_ones_own_gives_the_same_log_probs_and_claims_nothing(run):
    variant, folder = run
    step = max(trained_steps(folder))
    weights = folder / "checkpoints" / f"grpo-{step - 1}"
    found = replayed(ReplayOptions(folder, step, weights=weights))
    assert not found.are_of_the_step
    assert not found.differing
    assert found.logprob_gap_nats < 1e-4  # with adapters it is the merged model
    if variant in ("reinforce", "stale", "warm"):  # one update, no adapters, no KL: the gradient is the same
        assert found.replayed["grad_norm"] == pytest.approx(found.logged["grad_norm"], abs=1e-5)


def test_advantages_taken_anew_from_saved_rewards_are_the_saved_ones(run, engines):
    variant, folder = run
    recipe = engines.recipe(folder, **VARIANTS[variant])
    for number in trained_steps(folder):
        step = saved_step(folder, "grpo", number)
        assert step.batch_of(recipe.advantage, recipe.generator.max_tokens) == step.trained
