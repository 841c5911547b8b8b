"""Behaviour 22 on the real engines: the loops at driver.max_staleness = 0 are a plain loop, to the bit; and what they do above it."""

import asyncio
from dataclasses import dataclass, field, replace

import pyarrow.parquet as pq
import pytest
from fakes import LocalLearner
from samples import make_run, recipe_for
from transformers import AutoTokenizer

from mathrl_ray.actors.generator import Generator
from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.learner import Learner
from mathrl_ray.core.grading.grade import grade
from mathrl_ray.core.groups import with_advantages
from mathrl_ray.core.reward_weights import rewarded
from mathrl_ray.core.sampling import batch_indices
from mathrl_ray.device import choose_device
from mathrl_ray.driver.canary import begin_stage
from mathrl_ray.driver.loops import PolicyLoops
from mathrl_ray.driver.rollouts import make_request
from mathrl_ray.types import Trajectory, TrajectoryGroup

pytestmark = pytest.mark.timeout(280)
CPU = choose_device("cpu", num_gpus=0, num_engines=2)
NUM_STEPS, NUM_PROMPTS, GROUP_SIZE = 4, 6, 4
GRPO = {"num_steps": NUM_STEPS, "prompts_per_step": NUM_PROMPTS, "group_size": GROUP_SIZE}


class PureScorer:
    """The pure grader, without processes."""

    name = "scorer-0"

    async def score(self, requests):
        return [grade(request.response, request.gold, style=request.style) for request in requests]


class ThreadedLearner(LocalLearner):
    """Trains in a thread, so that the loops can go on meanwhile, as they do beside an actor."""

    async def train_policy(self, batch, sampling):
        return await asyncio.to_thread(self.learner.train_policy, batch, sampling)


class Setting:
    """Real engines, and runs around them that differ in their driver's settings."""

    def __init__(self, start_model, folder):
        self.loop, self.model, self.folder = asyncio.new_event_loop(), str(start_model), folder
        recipe = self.recipe("first")
        self.generator, self.learner = Generator(), Learner()
        self.facts = self.do(self.generator.setup(recipe, CPU, self.model))
        self.learner.preload(recipe, CPU)
        self.learner.setup(recipe, CPU)
        self.tokenizer = AutoTokenizer.from_pretrained(start_model)

    def recipe(self, name, **driver):
        learner = {"learning_rate": 3e-3, "micro_batch_tokens": 1024}
        return recipe_for(self.folder, run={"name": name}, grpo=GRPO, learner=learner, reward={"format": 0.5}, driver=driver)

    def begun(self, name, **driver):
        recipe = self.recipe(name, **driver)
        self.learner.setup(recipe, CPU)  # its loss follows from the recipe
        actors = Actors(ThreadedLearner(self.learner), (self.generator,), (PureScorer(),), self.facts.stop_token_ids)
        run = make_run(recipe, actors, tokenizer=self.tokenizer, model_folder=self.model)
        self.do(begin_stage(run, "grpo", learning_rate=3e-3, num_optimizer_steps=NUM_STEPS))
        return run

    def weights(self):
        """What the learner holds now, by name."""
        return {name: tensor.clone() for name, tensor in self.learner._engine.weights()}

    def do(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 120))

    def stop(self):
        self.learner.shutdown()
        self.do(self.generator.shutdown())
        self.loop.close()


@dataclass
class Trace:
    """What a run sampled, paid and learned."""

    responses: list = field(default_factory=list)
    """(step, group_id, sample, ids, log-probs, reward, advantage) of each response, in order."""
    losses: list = field(default_factory=list)
    weights: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
def setting(start_model, tmp_path_factory):
    setting = Setting(start_model, tmp_path_factory.mktemp("runs"))
    yield setting
    setting.stop()


def plainly(setting) -> Trace:
    """The textbook's loop: sample a batch in one call, grade it, train, publish, apply."""
    run, trace = setting.begun("plain"), Trace()
    for step in range(1, NUM_STEPS + 1):
        problems = [
            run.train_problems[index] for index in batch_indices(len(run.train_problems), NUM_PROMPTS, step - 1, run.recipe.run.seed)
        ]
        requests = [
            make_request(run, problem, f"grpo-{step}/{index}", step, sample, run.training_sampling)
            for index, problem in enumerate(problems)
            for sample in range(GROUP_SIZE)
        ]
        completions = setting.do(setting.generator.generate(requests))
        golds = [problem.gold for problem in problems for _ in range(GROUP_SIZE)]
        trajectories = []
        for request, completion, gold in zip(requests, completions, golds, strict=True):
            paid = rewarded(grade(completion.text, gold, style="r1_zero"), run.recipe.reward, step=step, num_tokens=1, max_tokens=64)
            made = Trajectory(request.group_id, request.sample, request.problem_id, request.prompt_ids, completion, paid)
            trajectories.append(made)
        groups = [trajectories[start : start + GROUP_SIZE] for start in range(0, len(trajectories), GROUP_SIZE)]
        records = [TrajectoryGroup(group[0].group_id, group[0].problem_id, tuple(group)) for group in groups]
        finished = [with_advantages(record, run.recipe.advantage, max_tokens=64) for record in records]
        batch = [each for group in finished for each in group.trajectories if each.drop_reason is None]
        update = setting.learner.train_policy(batch, run.training_sampling)
        setting.do(setting.generator.apply_weights(setting.learner.publish(step)))
        trace.losses.append(update.metrics["loss"])
        for each in (each for group in finished for each in group.trajectories):
            completion = each.completion
            seen = (step, each.group_id, each.sample, completion.token_ids, completion.logprobs, each.grade.reward, each.advantage)
            trace.responses.append(seen)
    trace.weights = setting.weights()
    return trace


def by_the_loops(setting, name, **driver) -> tuple[Trace, list[dict], list[dict]]:
    """The same with the driver's loops; with every step's metrics and all trajectory rows too."""
    run, trace, steps, rows = setting.begun(name, **driver), Trace(), [], []
    setting.do(PolicyLoops(run, "grpo", NUM_STEPS, lambda step, groups, metrics: steps.append(metrics)).train())
    for step in range(1, NUM_STEPS + 1):
        part = pq.read_table(run.recorder.folder / "trajectories" / f"grpo-{step}.parquet").to_pylist()
        for row in part:
            ids, logprobs = tuple(row["response_ids"]), tuple(row["generator_logprobs"])
            trace.responses.append((step, row["group_id"], row["sample"], ids, logprobs, row["reward"], row["advantage"]))
        rows += part
    trace.losses = [metrics["loss"] for metrics in steps]
    trace.weights = setting.weights()
    return trace, steps, rows


def test_behaviour_22_without_staleness_the_loops_equal_a_plain_loop_to_the_bit(setting):
    plain = plainly(setting)
    ours, steps, _ = by_the_loops(setting, "loops")
    assert len(plain.responses) == NUM_STEPS * NUM_PROMPTS * GROUP_SIZE
    assert ours.responses == plain.responses
    assert ours.losses == plain.losses
    assert len(set(plain.losses)) == NUM_STEPS  # each step has learned something
    assert ours.weights.keys() == plain.weights.keys()
    assert all(ours.weights[name].equal(tensor) for name, tensor in plain.weights.items())
    assert [metrics["staleness_max"] for metrics in steps] == [0] * NUM_STEPS


@pytest.mark.parametrize("in_flight_updates", [True, False])
def test_with_staleness_every_response_carries_the_versions_that_sampled_it(setting, in_flight_updates):
    _, steps, rows = by_the_loops(setting, f"stale-{in_flight_updates}", max_staleness=2, in_flight_updates=in_flight_updates)
    assert len({(row["group_id"], row["sample"]) for row in rows}) == len(rows) == NUM_STEPS * NUM_PROMPTS * GROUP_SIZE
    for row in rows:
        versions = [version for version, _ in row["version_runs"]]
        assert sum(num_tokens for _, num_tokens in row["version_runs"]) == len(row["response_ids"])
        assert versions == sorted(set(versions))
        assert row["staleness"] == row["consumed_step"] - 1 - versions[0] <= 2
        assert in_flight_updates or len(versions) == 1
    assert max(metrics["staleness_max"] for metrics in steps) >= 1
    assert all(metrics["canary_max_logprob_diff"] < 1e-3 for metrics in steps)


def test_behaviour_20_without_a_learning_rate_both_engines_stay_as_close_as_they_were(setting):
    run = setting.begun("still", max_staleness=1)
    settings = replace(setting.learner._settings, learning_rate=0.0)
    setting.learner.start_stage(settings)
    steps = []
    setting.do(PolicyLoops(run, "grpo", NUM_STEPS, lambda step, groups, metrics: steps.append(metrics)).train())
    assert all(metrics["mismatch_kl"] < 1e-9 for metrics in steps)
    assert all(metrics["learning_rate"] == 0 for metrics in steps)
