"""Generator and learner with the real engines, without Ray: do they hold the same policy, and is it noticed when they do not?"""

import asyncio
from dataclasses import replace

import pytest
import torch
from fakes import Diary, FakeScorer, LocalLearner
from samples import make_run, recipe_for
from transformers import AutoModelForCausalLM, AutoTokenizer

from mathrl_ray.actors.generator import Generator
from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.learner import Learner
from mathrl_ray.core.statistics import max_abs_difference, mean_importance_ratio
from mathrl_ray.device import choose_device
from mathrl_ray.driver.canary import CanaryError, begin_stage, canary, sync_weights
from mathrl_ray.driver.rollouts import make_request, rollout, sequence_of
from mathrl_ray.types import StageSettings

pytestmark = pytest.mark.timeout(240)
CPU = choose_device("cpu", num_gpus=0, num_engines=2)


class Engines:
    """A started generator and a learner around one event loop, as the driver has them."""

    def __init__(self, start_model, folder, device):
        self.loop = asyncio.new_event_loop()
        self.recipe = recipe_for(folder, eval={"num_problems": 32}, learner={"learning_rate": 1e-2, "micro_batch_tokens": 1024})
        self.generator, learner = Generator(), Learner()
        facts = self.run(self.generator.setup(self.recipe, device, str(start_model)))
        learner.preload(self.recipe, device)
        learner.setup(self.recipe, device)
        self.learner = learner
        actors = Actors(LocalLearner(learner), (self.generator,), (FakeScorer(Diary()),), facts.stop_token_ids)
        tokenizer = AutoTokenizer.from_pretrained(start_model)
        self.state = make_run(self.recipe, actors, tokenizer=tokenizer, model_folder=str(start_model))

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 120))

    def begin(self):
        self.run(begin_stage(self.state, "test", learning_rate=1e-2, num_optimizer_steps=100))

    def train_one_step(self):
        """A real policy step with made-up advantages: large enough to move every weight."""
        groups = self.run(rollout(self.state, "test", 0, self.state.train_problems[:8]))
        batch = [replace(t, advantage=1.0 if t.sample % 2 else -1.0) for group in groups for t in group.trajectories]
        return self.learner.train_policy(batch, self.state.training_sampling)

    def stop(self):
        self.learner.shutdown()
        self.run(self.generator.shutdown())
        self.loop.close()


@pytest.fixture(scope="module")
def engines(start_model, tmp_path_factory):
    engines = Engines(start_model, tmp_path_factory.mktemp("runs"), CPU)
    yield engines
    engines.stop()


@pytest.fixture
def begun(engines):
    engines.begin()
    return engines


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.2])
def test_behaviour_13_the_importance_ratio_is_1_before_any_update(begun, temperature):
    sampling = replace(begun.state.training_sampling, temperature=temperature, min_tokens=4)
    requests = [make_request(begun.state, problem, "g", 0, 0, sampling) for problem in begun.state.test_problems]
    completions = begun.run(begun.generator.generate(requests))
    sequences = [sequence_of(request, completion) for request, completion in zip(requests, completions, strict=True)]
    learner_logprobs = [statistics.logprobs for statistics in begun.learner.response_statistics(sequences, sampling)]
    generator_logprobs = [completion.logprobs for completion in completions]
    assert min(len(completion.token_ids) for completion in completions) >= 4
    assert max_abs_difference(learner_logprobs, generator_logprobs) < 1e-3
    assert mean_importance_ratio(learner_logprobs, generator_logprobs) == pytest.approx(1, abs=1e-3)


def test_without_the_masked_stop_ids_the_ratio_would_be_off(begun):
    # The mask matters where EOS is likely early: prompts that the model ends at once. A learner without it is off there.
    sampling = replace(begun.state.training_sampling, min_tokens=8, stop=())
    stop_ids = tuple(range(2, 2))  # none
    request = replace(make_request(begun.state, begun.state.test_problems[0], "g", 0, 0, sampling), prompt_ids=(5, 5, 5))
    completions = begun.run(begun.generator.generate([replace(request, seed=seed) for seed in range(16)]))
    sequences = [sequence_of(request, completion) for completion in completions]
    generator_logprobs = [completion.logprobs for completion in completions]
    masked, unmasked = (
        [s.logprobs for s in begun.learner.response_statistics(sequences, replace(sampling, stop_token_ids=ids))]
        for ids in (sampling.stop_token_ids, stop_ids)
    )
    assert max_abs_difference(masked, generator_logprobs) < 1e-3
    assert max_abs_difference(unmasked, generator_logprobs) > max_abs_difference(masked, generator_logprobs)


def test_after_updates_and_syncs_both_hold_the_same_policy_again(begun):
    before = begun.run(canary(begun.state))
    for version in (1, 2):
        update = begun.train_one_step()
        assert update.metrics["importance_ratio_mean"] == pytest.approx(1, abs=1e-3)
        sync = begun.run(sync_weights(begun.state, policy_version=version))
        assert sync["canary_max_logprob_diff"] < 1e-3
        assert begun.run(begun.generator.policy_version()) == version
    assert before < 1e-3


def test_a_response_carries_the_version_that_sampled_it_and_ends_with_its_stop_string(begun):
    begun.run(sync_weights(begun.state, policy_version=7))
    # No min_tokens: it also puts off the look for stop strings, so that a short answer would go on behind its tag.
    sampling = replace(begun.state.training_sampling, min_tokens=0)
    requests = [make_request(begun.state, problem, "g", 0, 0, sampling) for problem in begun.state.test_problems]
    completions = begun.run(begun.generator.generate(requests))
    assert all(completion.version_runs == ((7, len(completion.token_ids)),) for completion in completions)
    stopped = [completion for completion in completions if "</answer>" in completion.text]
    assert stopped
    assert all(completion.text.endswith("</answer>") and completion.finish_reason == "stop" for completion in stopped)


def test_the_same_seed_samples_the_same_ids_alone_and_in_a_crowd(begun):
    sampling = begun.state.training_sampling
    requests = [make_request(begun.state, problem, "g", 3, 0, sampling) for problem in begun.state.train_problems]
    crowd = begun.run(begun.generator.generate(requests))
    alone = begun.run(begun.generator.generate(requests[5:6]))
    assert alone[0].token_ids == crowd[5].token_ids


def test_behaviour_17_the_canary_catches_a_swapped_pair_of_tensors(begun):
    begun.train_one_step()
    manifest = begun.learner.publish(1)
    first, second = (f"model.layers.{layer}.self_attn.o_proj.weight" for layer in (0, 1))
    swap = {first: second, second: first}
    swapped = replace(manifest, tensors=tuple(replace(entry, name=swap.get(entry.name, entry.name)) for entry in manifest.tensors))
    begun.run(begun.generator.apply_weights(swapped))
    with pytest.raises(CanaryError, match="differ by"):
        begun.run(canary(begun.state))


def test_behaviour_17_names_that_differ_are_refused_before_anything_changes(begun):
    manifest = begun.learner.publish(1)
    incomplete = replace(manifest, tensors=manifest.tensors[1:])
    with pytest.raises(ValueError, match=r"1 missing \['model\.embed_tokens\.weight'\]"):
        begun.run(begun.generator.apply_weights(incomplete))
    assert begun.run(canary(begun.state)) < 1e-3


def test_behaviour_17_the_canary_catches_a_stale_output_head(start_model, tmp_path):
    from vllm.config import WeightTransferConfig

    faulty = {
        **CPU.generator_arguments,
        "worker_extension_cls": "stale_head.Extension",
        "weight_transfer_config": WeightTransferConfig(backend="stale_head"),
    }
    engines = Engines(start_model, tmp_path, replace(CPU, generator_arguments=faulty))
    try:
        engines.begin()  # the same weights again: nothing to notice yet
        engines.train_one_step()
        with pytest.raises(CanaryError, match="differ by"):
            engines.run(sync_weights(engines.state, policy_version=1))
    finally:
        engines.stop()


def test_behaviour_28_the_saved_folder_opens_and_holds_the_trained_weights(begun, tmp_path):
    begun.train_one_step()
    begun.learner.save(str(tmp_path / "model"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    trained = dict(begun.learner._engine.module.model.named_parameters())
    assert all(torch.equal(tensor, trained[name]) for name, tensor in saved.named_parameters())
    assert AutoTokenizer.from_pretrained(tmp_path / "model").encode("1+2", add_special_tokens=False)


def test_supervised_steps_lower_the_loss_on_what_they_train(begun):
    begun.learner.start_stage(StageSettings(begun.state.model_folder, 3e-3, 20))
    groups = begun.run(rollout(begun.state, "test", 0, begun.state.train_problems[:2]))
    examples = [sequence_of(t, t.completion) for group in groups for t in group.trajectories]
    losses = [begun.learner.train_sft(examples)["loss"] for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]
