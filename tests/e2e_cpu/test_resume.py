"""Behaviours 26 and 28 on the real engines: GRPO and SFT that go on from a checkpoint equal the runs that never stopped, to the bit, and
the folders open elsewhere."""

import asyncio
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from samples import make_run, recipe_for
from test_synchronous_loop import CPU, PureScorer, ThreadedLearner
from transformers import AutoModelForCausalLM, AutoTokenizer

from mathrl_ray.actors.generator import Generator
from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.learner import Learner
from mathrl_ray.core.sampling import request_seed
from mathrl_ray.driver.resume import find_resumption
from mathrl_ray.driver.rollouts import make_request
from mathrl_ray.stages.inputs import load_inputs
from mathrl_ray.stages.study import run_study

pytestmark = pytest.mark.timeout(280)
NUM_STEPS = 5
SECTIONS = {
    "grpo": {"num_steps": NUM_STEPS, "prompts_per_step": 4, "group_size": 4, "loss": "grpo_clip", "minibatches": 2},
    "expert_iteration": {  # a start model that has learned nothing is hardly ever right: the round's best are kept, whatever they are
        **{"rounds": NUM_STEPS, "questions": 3, "group_size": 4, "temperatures": [0.7, 1.3], "batch_size": 4, "threshold": 0.0},
        **{"capacity": 20, "max_similarity": 1.0},
    },
    "sft": {"num_examples": 18, "batch_size": 4, "epochs": 1},
    "learner": {"learning_rate": 3e-3, "micro_batch_tokens": 1024, "schedule": "cosine", "warmup_steps": 2},
    "reward": {"format": 0.5},
    "eval": {"num_problems": 4, "validate_every": 2},
}
ENGINE = ("kv_cache_usage_max", "num_preemptions", "prefix_cache_hit_rate", "engine_running_max", "engine_waiting_max")
"""What depends on how requests happen to meet in the engine."""
CLOCK = ("_s", "_s_mean", "_s_max", "_per_s", "spans", "overlap_efficiency", "_memory_gib", *ENGINE)
"""Ends of the names of numbers that a clock or the machine's memory gives."""


class Scorer(PureScorer):
    async def restart(self):
        pass


class Engines:
    """One generator and one learner for all runs of this file."""

    def __init__(self, start_model, folder):
        self.loop, self.model = asyncio.new_event_loop(), str(start_model)
        recipe = recipe_for(folder, **SECTIONS)
        self.generator, self.learner = Generator(), Learner()
        self.facts = self.do(self.generator.setup(recipe, CPU, self.model))
        self.learner.preload(recipe, CPU)
        self.learner.setup(recipe, CPU)
        self.tokenizer = AutoTokenizer.from_pretrained(start_model)

    def do(self, work):
        return self.loop.run_until_complete(asyncio.wait_for(work, 200))

    def study(self, root, stage, resume="", model=None, **changed):
        """Run one stage to its end, from the start or from a checkpoint, with changed keys of sections."""
        sections = {name: {**keys, **changed.get(name, {})} for name, keys in SECTIONS.items()}
        recipe = recipe_for(root, run={"checkpoint_every": 1, "keep_last": 99, "resume": resume}, **sections)
        self.learner.setup(recipe, CPU)
        found = find_resumption(recipe, [stage])
        recorder = found.open(recipe, [stage], print) if found else None
        actors = Actors(ThreadedLearner(self.learner), (self.generator,), (Scorer(),), self.facts.stop_token_ids)
        run = make_run(recipe, actors, tokenizer=self.tokenizer, model_folder=model or self.model, recorder=recorder)
        run.traces = load_inputs(recipe, ["sft"]).traces
        if found:
            found.restore(run)
        self.do(run_study(run, [stage]))
        recorder = run.recorder
        recorder.close()
        return run

    def weights(self):
        return {name: tensor.clone() for name, tensor in self.learner._engine.weights()}

    def stop(self):
        self.learner.shutdown()
        self.do(self.generator.shutdown())
        self.loop.close()


@pytest.fixture(scope="module")
def engines(start_model, tmp_path_factory):
    engines = Engines(start_model, tmp_path_factory.mktemp("setup"))
    yield engines
    engines.stop()


@pytest.fixture(scope="module", params=["grpo", "sft", "expert_iteration"])
def whole(request, engines, tmp_path_factory):
    """(stage, root of a run that never stopped, the run, its last weights)."""
    root = tmp_path_factory.mktemp(request.param)
    run = engines.study(root, request.param)
    return request.param, root, run, engines.weights()


def metrics(folder):
    """All rows of numbers that follow from the recipe alone, in an order that no clock gives."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    plain = [{name: value for name, value in row.items() if not name.endswith(CLOCK)} for row in rows if "checkpoint_s" not in row]
    return sorted(plain, key=lambda row: (row["step"], json.dumps(row)))


def tables(folder):
    """Every trajectory and every evaluated response, without the seconds of its grading."""
    paths = sorted([*folder.glob("trajectories/*.parquet"), *folder.glob("evaluations/*.parquet")])
    rows = {str(path.relative_to(folder)): pq.read_table(path).to_pylist() for path in paths}
    return {name: [{key: value for key, value in row.items() if key != "grading_s"} for row in part] for name, part in rows.items()}


@pytest.mark.parametrize("step", [1, 3, 4])
def test_behaviour_26_resumed_at_three_points_a_stage_equals_the_one_that_never_stopped(engines, whole, tmp_path, step):
    stage, root, run, expected = whole
    shutil.copytree(root / "test", tmp_path / "test")
    torch.manual_seed(999)  # what a fresh process would have is neither of the states that are wanted
    random.seed(999)
    resumed = engines.study(tmp_path, stage, resume=str(tmp_path / "test" / "checkpoints" / f"{stage}-{step}"))
    found = engines.weights()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert metrics(resumed.recorder.folder) == metrics(run.recorder.folder)
    assert tables(resumed.recorder.folder) == tables(run.recorder.folder)
    assert resumed.ledger.counts == run.ledger.counts
    figures = [{key: value for key, value in each.stages[0].items() if key not in ("wall_s", "device_s")} for each in (resumed, run)]
    assert figures[0] == figures[1]
    rates = [row["learning_rate"] for row in metrics(resumed.recorder.folder) if "learning_rate" in row]
    assert len(rates) >= NUM_STEPS  # a round of expert iteration has several
    assert len(set(rates)) > 2  # a schedule that starts anew would show


def test_behaviour_28_the_checkpoint_of_a_stage_opens_elsewhere_and_says_the_same_greedily(engines, whole):
    stage, root, run, _ = whole
    folder = root / "test" / "checkpoints" / f"{stage}-{NUM_STEPS}"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    sampling = replace(run.training_sampling, temperature=0.0, max_tokens=24, min_tokens=0, stop=())
    own = engines.learner  # the last of the runs before has left these weights in the learner, or the resumed one its equals
    assert all(torch.equal(engines.weights()[name], tensor) for name, tensor in model.named_parameters())
    engines.do(engines.generator.apply_weights(own.publish(77)))
    requests = [make_request(run, problem, f"greedy/{index}", 0, 0, sampling) for index, problem in enumerate(run.test_problems)]
    assert requests[0].seed == request_seed(0, requests[0].problem_id, 0, 0)
    for request, completion in zip(requests, engines.do(engines.generator.generate(requests)), strict=True):
        ids = torch.tensor([request.prompt_ids])
        said = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=len(completion.token_ids))
        assert said[0, len(request.prompt_ids) :].tolist() == list(completion.token_ids)
        assert tokenizer.decode(completion.token_ids, skip_special_tokens=True) == completion.text


def test_behaviour_28_vllm_opens_the_checkpoint_and_samples_from_it_what_the_run_would(engines, whole, tmp_path):
    stage, root, run, _ = whole
    folder = root / "test" / "checkpoints" / f"{stage}-{NUM_STEPS}"
    if stage != "grpo":
        pytest.skip("one engine start is enough")
    sampling = replace(run.training_sampling, temperature=0.0, max_tokens=24)
    requests = [make_request(run, problem, f"greedy/{index}", 0, 0, sampling) for index, problem in enumerate(run.test_problems)]
    engines.do(engines.generator.apply_weights(engines.learner.publish(78)))
    expected = engines.do(engines.generator.generate(requests))
    other = Generator()
    engines.do(other.setup(recipe_for(tmp_path, **SECTIONS), CPU, str(Path(folder))))
    try:
        found = engines.do(other.generate(requests))
    finally:
        engines.do(other.shutdown())
    assert [completion.token_ids for completion in found] == [completion.token_ids for completion in expected]
    assert [completion.text for completion in found] == [completion.text for completion in expected]


def test_behaviour_35_a_stand_alone_evaluation_of_a_checkpoint_is_the_one_in_the_loop_item_by_item(engines, whole, tmp_path):
    stage, root, run, _ = whole
    checkpoint = root / "test" / "checkpoints" / f"{stage}-{NUM_STEPS}"
    alone = engines.study(tmp_path, "baseline", model=str(checkpoint))
    version = run.stages[0]["policy_version"]
    assert version > 0
    in_loop = tables(run.recorder.folder)[f"evaluations/{stage}-v{version}.parquet"]
    found = tables(alone.recorder.folder)["evaluations/baseline-v0.parquet"]
    assert len(found) == SECTIONS["eval"]["num_problems"]
    of_the_run = ("policy_version",)  # versions count from a stage's start model, which here is the checkpoint
    assert [{key: value for key, value in row.items() if key not in of_the_run} for row in found] == [
        {key: value for key, value in row.items() if key not in of_the_run} for row in in_loop
    ]


def test_behaviour_26_expert_iteration_with_adapters_goes_on_from_the_model_that_they_were_trained_on(engines, tmp_path):
    """Each round's adapters are merged into what it saves, and the next round trains new ones on that: the saved adapters alone, on the
    run's start model, are a model that there never was."""
    changed = {"learner": {"lora_rank": 4}, "expert_iteration": {"rounds": 2}, "eval": {"validate_every": 0}}
    run = engines.study(tmp_path / "whole", "expert_iteration", **changed)
    expected, folder = engines.weights(), run.recorder.folder
    before = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "expert_iteration-1").state_dict()
    assert any(not torch.equal(expected[name], before[name]) for name in expected)  # the second round has learned
    for step in (1, 2):
        shutil.copytree(folder, tmp_path / f"from-{step}" / "test")
        root = tmp_path / f"from-{step}"
        engines.study(root, "expert_iteration", resume=str(root / "test" / "checkpoints" / f"expert_iteration-{step}"), **changed)
        found = engines.weights()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
