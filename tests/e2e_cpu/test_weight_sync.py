"""Weights into the real engine while it works: a full queue, the prefix cache, a kept KV cache, and what is refused.

What the canary finds when a tensor is not updated, or two are swapped, is in test_engines.py.
"""

import asyncio
import time
from dataclasses import replace

import psutil
import pytest
import torch
from fakes import Diary, FakeScorer, LocalLearner
from samples import make_run, recipe_for
from test_engines import CPU, Engines
from transformers import AutoModelForCausalLM, AutoTokenizer

from mathrl_ray.actors.generator import Generator
from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.learner import Learner
from mathrl_ray.core.statistics import max_abs_difference
from mathrl_ray.driver.canary import CanaryError, begin_stage, canary, sync_weights
from mathrl_ray.driver.rollouts import make_request, rollout, sequence_of
from mathrl_ray.types import StageSettings
from mathrl_ray.weight_sync.errors import BlockError

pytestmark = pytest.mark.timeout(240)
BLOCK_TOKENS = 32
"""Of the KV cache: prompts must be longer, or no block of theirs would ever be used again."""
SMALL = {"max_sequences": 4, "max_tokens": 48, "min_tokens": 0}


class SyncEngines(Engines):
    """The same with other keys of [generator], and arguments of vLLM's that no recipe gives."""

    def __init__(self, start_model, folder, generator, **arguments):
        self.loop = asyncio.new_event_loop()
        self.device = replace(CPU, generator_arguments={**CPU.generator_arguments, "block_size": BLOCK_TOKENS, **arguments})
        self.recipe = recipe_for(
            folder, generator=generator, eval={"num_problems": 32}, learner={"micro_batch_tokens": 4096}, grpo={"group_size": 4}
        )
        self.generator, self.learner = Generator(), Learner()
        before = {child.pid for child in psutil.Process().children()}
        self.facts = self.run(self.generator.setup(self.recipe, self.device, str(start_model)))
        started = [child for child in psutil.Process().children() if child.pid not in before]
        self.engine_process = next(child for child in started if "EngineCore" in "".join(child.cmdline()) + child.name())
        self.learner.preload(self.recipe, self.device)
        self.learner.setup(self.recipe, self.device)
        actors = Actors(LocalLearner(self.learner), (self.generator,), (FakeScorer(Diary()),), self.facts.stop_token_ids)
        self.state = make_run(self.recipe, actors, tokenizer=AutoTokenizer.from_pretrained(start_model), model_folder=str(start_model))

    def requests(self, num, *, num_prompts=4, **sampling):
        """Prompts of several blocks each; the answers are of 48 tokens where nothing is said, or shorter."""
        settings = replace(self.state.training_sampling, stop=(), **sampling)
        made = []
        for index in range(num):
            problem = self.state.test_problems[index % num_prompts]
            request = make_request(self.state, problem, f"g{index}", 0, index, settings)
            made.append(replace(request, prompt_ids=(request.prompt_ids * 8)[: 3 * BLOCK_TOKENS + index % num_prompts]))
        return made

    async def update_amid(self, requests, manifest, *, after_s=0.0):
        """Generate, and take the weights once `requests` fill the engine. Returns completions."""
        generating = asyncio.ensure_future(self.generator.generate(requests))
        await self.working(len(requests))
        await asyncio.sleep(after_s)
        await self.generator.apply_weights(manifest)
        return await generating

    async def working(self, num_requests):
        async with asyncio.timeout(60):
            while self.generator._engine.output_processor.get_num_unfinished_requests() < num_requests:
                await asyncio.sleep(0.002)  # the engine tells nobody when it has taken a request in

    def learner_logprobs(self, requests, completions):
        sequences = [sequence_of(request, completion) for request, completion in zip(requests, completions, strict=True)]
        return [statistics.logprobs for statistics in self.learner.response_statistics(sequences, requests[0].sampling)]


@pytest.fixture(scope="module")
def engines(start_model, tmp_path_factory):
    engines = SyncEngines(start_model, tmp_path_factory.mktemp("runs"), SMALL)
    yield engines
    engines.stop()


@pytest.fixture
def begun(engines):
    engines.begin()
    return engines


@pytest.fixture(scope="module")
def keeping(start_model, tmp_path_factory):
    engines = SyncEngines(start_model, tmp_path_factory.mktemp("runs"), {**SMALL, "kv_on_update": "keep"})
    yield engines
    engines.stop()


def mixed(requests, completions):
    """(request, completion, number of tokens before the update) of the responses that got new weights in their middle."""
    pairs = zip(requests, completions, strict=True)
    return [(request, completion, completion.version_runs[0][1]) for request, completion in pairs if len(completion.version_runs) == 2]


def test_behaviour_19_three_syncs_work_while_more_requests_wait_than_the_engine_takes(begun):
    requests = begun.requests(40, max_tokens=48, min_tokens=48)  # 12 at once: max_sequences + the canary's
    manifest = begun.learner.publish(0)

    async def syncs():
        generating = asyncio.ensure_future(begun.generator.generate(requests))
        await begun.working(len(requests))
        for version in (1, 2, 3):
            await asyncio.sleep(0.1)  # some tokens under each version
            assert not generating.done()
            begun.learner.publish(version)
            await begun.generator.apply_weights(replace(manifest, policy_version=version))
        return await generating

    completions = begun.run(syncs())
    assert [len(completion.token_ids) for completion in completions] == [48] * 40
    for completion in completions:
        versions = [version for version, _ in completion.version_runs]
        assert versions == sorted(versions)
        assert sum(num_tokens for _, num_tokens in completion.version_runs) == 48
    assert {version for completion in completions for version, _ in completion.version_runs} == {0, 1, 2, 3}
    assert completions[-1].min_policy_version == 3  # it waited in the queue all the time
    # The same weights four times: what was sampled across the updates is what the learner says of it.
    assert max_abs_difference(begun.learner_logprobs(requests, completions), [each.logprobs for each in completions]) < 1e-3


def test_a_recomputed_cache_makes_the_rest_of_a_response_the_new_policys(begun):
    begun.train_one_step()
    manifest = begun.learner.publish(1)
    requests = begun.requests(12)
    found = mixed(requests, begun.run(begun.update_amid(requests, manifest, after_s=0.05)))
    assert found
    new = begun.learner_logprobs(*zip(*[(request, completion) for request, completion, _ in found], strict=True))
    begun.learner.start_stage(StageSettings(begun.state.model_folder, 1e-2, 1))  # the old weights again
    old = begun.learner_logprobs(*zip(*[(request, completion) for request, completion, _ in found], strict=True))
    for (_, completion, before), old_row, new_row in zip(found, old, new, strict=True):
        assert completion.logprobs[:before] == pytest.approx(old_row[:before], abs=1e-3)
        assert completion.logprobs[before:] == pytest.approx(new_row[before:], abs=1e-3)
    # and the two policies are not the same, or this would show nothing
    assert max_abs_difference(old, new) > 0.05


def test_behaviour_18_after_an_update_a_cached_prompt_gives_what_a_fresh_engine_gives(begun, tmp_path):
    requests = begun.requests(12)
    before = begun.run(begun.generator.generate(requests))
    begun.train_one_step()
    begun.learner.save(str(tmp_path / "model"))
    begun.run(begun.generator.apply_weights(begun.learner.publish(1)))
    after = begun.run(begun.generator.generate(requests))
    fresh = Generator()
    try:
        begun.run(fresh.setup(begun.recipe, begun.device, str(tmp_path / "model")))
        expected = begun.run(fresh.generate(requests))
    finally:
        begun.run(fresh.shutdown())
    assert [each.token_ids for each in after] == [each.token_ids for each in expected]
    assert max_abs_difference([each.logprobs for each in after], [each.logprobs for each in expected]) < 1e-4
    assert [each.token_ids for each in after] != [each.token_ids for each in before]


def test_nothing_of_the_block_is_kept_once_an_update_is_over(begun):
    begun.train_one_step()
    manifest = begun.learner.publish(1)
    begun.run(begun.generator.apply_weights(manifest))
    for view in begun.learner._publisher._block._views.values():
        view.fill_(torch.nan)
    assert begun.run(canary(begun.state)) < 1e-3


def test_a_block_that_was_rewritten_or_damaged_is_refused_and_the_engine_goes_on(begun):
    late = begun.learner.publish(1)
    manifest = begun.learner.publish(2)
    with pytest.raises(BlockError, match="holds policy version 2, not policy version 1"):
        begun.run(begun.generator.apply_weights(late))
    begun.learner._publisher._block._views["model.norm.weight"].view(torch.int32)[3] += 1
    with pytest.raises(BlockError, match="checksum"):
        begun.run(begun.generator.apply_weights(manifest))
    assert begun.run(begun.generator.policy_version()) == 0
    assert begun.run(canary(begun.state)) < 1e-3
    begun.run(begun.generator.apply_weights(begun.learner.publish(2)))
    assert begun.run(begun.generator.policy_version()) == 2


def test_a_request_that_the_engine_refuses_is_a_value_error_and_harms_no_other(begun):
    good = begun.requests(4)
    bad = replace(good[0], prompt_ids=(5,) * (begun.recipe.model.max_length + 1))

    async def both():
        return await asyncio.gather(begun.generator.generate(good), begun.generator.generate([bad]), return_exceptions=True)

    completions, error = begun.run(both())
    assert isinstance(error, ValueError)
    assert begun.state.test_problems[0].problem_id in str(error)
    assert [len(completion.token_ids) > 0 for completion in completions] == [True] * 4


def test_a_canary_does_not_queue_behind_a_full_engine(begun):
    async def both():
        full = asyncio.ensure_future(begun.generator.generate(begun.requests(4, max_tokens=256, min_tokens=256)))  # max_sequences
        await begun.working(4)
        completions = await begun.generator.generate(begun.state.canary_requests)
        assert not full.done()
        await full
        return completions

    assert len(begun.run(both())) == begun.recipe.driver.canary_prompts


def test_behaviour_20_with_learning_rate_0_the_gap_stays_flat_over_20_steps(begun):
    begun.run(begin_stage(begun.state, "test", learning_rate=0.0, num_optimizer_steps=20))
    start = {name: tensor.clone() for name, tensor in begun.learner._engine.weights()}
    gaps, kls = [], []
    for step in range(20):
        groups = begun.run(rollout(begun.state, "test", step, begun.state.train_problems[step % 4 : step % 4 + 1]))
        batch = [replace(t, advantage=1.0 if t.sample % 2 else -1.0) for group in groups for t in group.trajectories]
        update = begun.learner.train_policy(batch, begun.state.training_sampling)
        assert update.num_optimizer_steps == 1
        kls.append(update.metrics["mismatch_kl"])
        gaps.append(begun.run(sync_weights(begun.state, policy_version=step + 1))["canary_max_logprob_diff"])
    assert all(torch.equal(tensor, start[name]) for name, tensor in begun.learner._engine.weights())
    assert max(kls) < 1e-8  # float32's rounding, squared
    assert max(gaps) < 1e-4
    assert max(gaps[10:]) < 10 * max(gaps[:10])


@pytest.mark.filterwarnings("ignore")
def test_with_a_kept_cache_the_recorded_log_probs_are_those_of_old_cache_and_new_weights(keeping, tmp_path):
    keeping.begin()
    start = AutoModelForCausalLM.from_pretrained(keeping.state.model_folder, dtype=torch.float32)
    keeping.train_one_step()
    keeping.learner.save(str(tmp_path / "model"))
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    requests = keeping.requests(12)
    found = mixed(requests, keeping.run(keeping.update_amid(requests, keeping.learner.publish(1), after_s=0.05)))
    assert found
    for request, completion, num_old in found:
        behaviour = old_cache_new_weights(start, trained, request.prompt_ids, completion.token_ids, num_old)
        assert completion.logprobs == pytest.approx(behaviour, abs=1e-3)
    pairs = [(request, completion) for request, completion, _ in found]
    new = keeping.learner_logprobs(*zip(*pairs, strict=True))
    late = [abs(a - b) for row, (_, each, n) in zip(new, found, strict=True) for a, b in zip(row[n:], each.logprobs[n:], strict=True)]
    assert max(late) > 1e-2  # neither policy's alone


def old_cache_new_weights(start, trained, prompt_ids, token_ids, num_old):
    """Log-probability of each token, where `num_old` were sampled by `start` and the rest by `trained` on the cache that `start` left."""
    ids = torch.tensor([[*prompt_ids, *token_ids]])
    first = len(prompt_ids) + num_old - 1  # the token before the first new one is fed to the new weights
    with torch.no_grad():
        old = start(ids[:, :first], use_cache=True)
        new = trained(ids[:, first:-1], past_key_values=old.past_key_values)
    logits = torch.cat([old.logits, new.logits], dim=1)[0, len(prompt_ids) - 1 :]
    chosen = ids[0, len(prompt_ids) :]
    return torch.log_softmax(logits, -1)[torch.arange(len(chosen)), chosen].tolist()


def test_behaviour_18_with_a_kept_cache_new_requests_share_none_of_it(keeping):
    keeping.begin()
    requests = keeping.requests(4)
    keeping.run(keeping.generator.generate(requests))
    keeping.train_one_step()
    keeping.run(keeping.generator.apply_weights(keeping.learner.publish(1)))
    completions = keeping.run(keeping.generator.generate(requests))
    assert max_abs_difference(keeping.learner_logprobs(requests, completions), [each.logprobs for each in completions]) < 1e-3


class TestWhatGoesWrong:
    """One engine with a planted fault, which the last of these tests leaves useless."""

    @pytest.fixture(scope="class")
    def faulty(self, start_model, tmp_path_factory):
        """The KV cache is kept, and prefix caching is on all the same."""
        engines = SyncEngines(start_model, tmp_path_factory.mktemp("runs"), {**SMALL, "kv_on_update": "keep"}, enable_prefix_caching=True)
        yield engines
        engines.stop()

    def test_behaviour_17_the_canary_catches_a_stale_kv_cache(self, faulty):
        faulty.begin()
        faulty.state.canary_requests = [
            replace(request, sampling=replace(request.sampling, max_tokens=16)) for request in faulty.requests(4)
        ]
        assert faulty.run(canary(faulty.state)) < 1e-3  # and leaves its prompts in the cache
        faulty.train_one_step()
        with pytest.raises(CanaryError, match="differ by"):
            faulty.run(sync_weights(faulty.state, policy_version=1))

    def test_after_an_update_that_failed_half_way_the_engine_refuses_all_work(self, faulty):
        manifest = faulty.learner.publish(2)
        wrong = [replace(entry, shape=(entry.shape[0] + 1,)) if entry.name == "model.norm.weight" else entry for entry in manifest.tensors]
        with pytest.raises(RuntimeError, match="the update to policy version 2 failed half-way"):
            faulty.run(faulty.generator.apply_weights(replace(manifest, tensors=tuple(wrong))))
        with pytest.raises(RuntimeError, match="the update to policy version 2 failed half-way"):
            faulty.run(faulty.generator.generate(faulty.requests(1)))
        with pytest.raises(RuntimeError, match="the update to policy version 2 failed half-way"):
            faulty.run(faulty.generator.apply_weights(manifest))


def test_behaviour_21_a_killed_engine_is_an_error_within_seconds(keeping):
    async def killed():
        generating = asyncio.ensure_future(keeping.generator.generate(keeping.requests(40, max_tokens=256, min_tokens=256)))
        await keeping.working(40)
        keeping.engine_process.kill()
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="engine's processes have ended"):
            await generating
        return time.monotonic() - began

    assert keeping.run(killed()) < 5
    with pytest.raises(RuntimeError, match="engine's processes have ended"):
        keeping.run(keeping.generator.generate(keeping.requests(1)))
