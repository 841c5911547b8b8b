"""The language model as a policy, on a random Qwen2 of 32 units whose tokenizer has one token a byte (and some for longer pieces)."""

from itertools import pairwise
from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from mathrl_ray.actors.policy_module import PolicyModule
from mathrl_ray.core.prompts import render
from mathrl_ray.core.tokenization import pad_batch, unpad
from mathrl_ray.cs336 import r1_zero_reward_fn
from mathrl_ray.data.tiny_model import BaseModelSettings, build_model, build_tokenizer
from mathrl_ray.policy import LanguageModelAsPolicy, RolloutWorker, State, next_state, start_state
from mathrl_ray.types import SamplingSettings, SftExample

PROMPT = render("r1_zero", "What is 1+1?")
TOKENIZER = build_tokenizer(max_length=512)
EOS = TOKENIZER.eos_token_id


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # Weights this large make a distribution that is far from flat, so that a wrong prefix would show.
    settings = BaseModelSettings(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=4, num_kv_heads=2, initializer_std=0.3)
    path = tmp_path_factory.mktemp("policy")
    build_model(TOKENIZER, seed=0, settings=settings).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return str(path)


@pytest.fixture
def policy(folder):
    return LanguageModelAsPolicy(folder, device="cpu")


@pytest.fixture
def tokens_fed(policy):
    """How many tokens each forward pass of the policy's model got."""
    counts = []
    policy.model.register_forward_pre_hook(
        lambda module, args, kwargs: counts.append((args[0] if args else kwargs["input_ids"]).shape[1]), with_kwargs=True
    )
    return counts


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def plain_logits(policy, ids):
    """[T, V] from one pass without any cache."""
    with torch.no_grad():
        return policy.model(torch.tensor([ids]), use_cache=False).logits[0]


def plain_log_prob(policy, state_ids, action_ids):
    """Sum over the action's tokens, in float64, one uncached pass a token."""
    total = 0.0
    for position, token_id in enumerate(action_ids):
        row = plain_logits(policy, [*state_ids, *action_ids[:position]])[-1].tolist()
        total += row[token_id] - log(sum(exp(logit) for logit in row))
    return total


# log_prob


@pytest.mark.parametrize("action", ["2", "42 and more", "é", "€1", "</answer>"])
def test_the_log_prob_of_a_text_is_the_sum_over_all_its_tokens(policy, action):
    expected = plain_log_prob(policy, encode(PROMPT), encode(action))
    assert policy.log_prob(PROMPT, action) == pytest.approx(expected, abs=1e-4)


def test_the_log_prob_of_a_text_is_the_sum_of_its_tokens_one_after_the_other(policy):
    state, total = start_state(TOKENIZER, PROMPT), 0.0
    action_ids = encode("4€2")
    assert len(action_ids) == 5
    for token_id in action_ids:
        total += policy.log_prob(state, token_id)
        state = next_state(TOKENIZER, state, token_id)
    assert policy.log_prob(PROMPT, "4€2") == pytest.approx(total, abs=1e-4)


def test_the_probabilities_of_all_tokens_add_up_to_one(policy):
    assert sum(exp(policy.log_prob("1+1=", token_id)) for token_id in range(len(TOKENIZER))) == pytest.approx(1, abs=1e-4)


def test_log_prob_agrees_with_the_learner(policy):
    responses = ["1+1=2 </think> <answer> 2 </answer>", "x", "é€😀"]
    examples = [SftExample(tuple(encode(PROMPT)), tuple(encode(response))) for response in responses]
    batch = pad_batch(examples, pad_id=TOKENIZER.pad_token_id)
    with torch.no_grad():
        log_probs, _ = PolicyModule(policy.model, chunk_tokens=7)(batch, SamplingSettings(temperature=1.0, max_tokens=1))
    for response, row in zip(responses, unpad(log_probs, batch), strict=True):
        assert policy.log_prob(PROMPT, response) == pytest.approx(sum(row), abs=1e-4)


@pytest.mark.parametrize("action", ["", -1, len(TOKENIZER)])
def test_an_action_that_is_no_token_is_refused(policy, action):
    with pytest.raises(ValueError, match=f"got {action!r}"):
        policy.log_prob(PROMPT, action)


def test_a_state_without_any_token_is_refused(policy):
    with pytest.raises(ValueError, match="at least one token"):
        policy.sample_action("")


# sample_action


def test_greedy_sampling_is_what_generate_does(policy):
    ids = torch.tensor([encode(PROMPT)])
    expected = policy.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=60, eos_token_id=None, pad_token_id=0
    )[0, ids.shape[1] :].tolist()
    state, actions = start_state(TOKENIZER, PROMPT), []
    for _ in range(60):
        actions.append(policy.sample_action(state, greedy=True))
        state = next_state(TOKENIZER, state, actions[-1])
    assert actions == expected
    assert len(set(actions)) > 1


def test_tokens_come_as_often_as_the_softmax_at_the_temperature_says(policy):
    num_draws, temperature = 2000, 0.5
    weights = [exp(logit / temperature) for logit in plain_logits(policy, encode("1+1="))[-1].tolist()]
    generator = torch.Generator().manual_seed(0)
    drawn = [policy.sample_action("1+1=", temperature=temperature, generator=generator) for _ in range(num_draws)]
    likeliest = max(range(len(weights)), key=weights.__getitem__)
    share = weights[likeliest] / sum(weights)
    # five standard deviations of a binomial rate
    assert 0.05 < share < 0.95
    assert abs(drawn.count(likeliest) / num_draws - share) < 5 * (share * (1 - share) / num_draws) ** 0.5


def test_a_seed_fixes_the_token_and_temperature_zero_is_greedy(policy):
    draws = [[policy.sample_action("1+1=", temperature=3.0, seed=seed) for seed in range(20)] for _ in range(2)]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 5
    assert policy.sample_action("1+1=", temperature=0) == policy.sample_action("1+1=", greedy=True)


def test_a_seed_beside_a_generator_and_a_negative_temperature_are_refused(policy):
    with pytest.raises(ValueError, match="seed = 1 and a generator"):
        policy.sample_action("1", seed=1, generator=torch.Generator())
    with pytest.raises(ValueError, match="at least 0, got -1"):
        policy.sample_action("1", temperature=-1)


# the KV cache


def test_a_state_that_grew_by_one_token_costs_one_token(policy, tokens_fed):
    RolloutWorker(policy, lambda prompt, state: 0.0, max_steps=5).generate_rollout(PROMPT, seed=0)
    assert tokens_fed == [len(encode(PROMPT)), 1, 1, 1, 1]


def test_plain_texts_share_their_common_beginning_too(policy, tokens_fed):
    for text in ("1+1=", "1+1=2", "1+1=25x", "1+1", "1+1"):
        policy.sample_action(text, greedy=True)
    assert tokens_fed == [4, 1, 2, 1, 1]  # a logit is needed behind the last token, so that one is always fed


def test_log_prob_and_sampling_share_the_cache(policy, tokens_fed):
    state = start_state(TOKENIZER, "1+1=")
    policy.sample_action(state, greedy=True)
    policy.log_prob(state, "234")
    policy.sample_action(next_state(TOKENIZER, state, encode("2")[0]), greedy=True)
    # 4; then "=", whose logits are needed again, and "23"; then the "2", whose logits are
    assert tokens_fed == [4, 3, 1]


texts = st.text(alphabet="12+=é", min_size=1, max_size=6)


@given(st.lists(st.tuples(texts, st.none() | texts), min_size=1, max_size=5))
def test_what_was_asked_before_changes_no_answer(folder, questions):
    policy = policies.setdefault(folder, LanguageModelAsPolicy(folder, device="cpu"))
    for state, action in questions:
        if action is None:
            assert policy.sample_action(state, greedy=True) == plain_logits(policy, encode(state))[-1].argmax().item()
        else:
            assert policy.log_prob(state, action) == pytest.approx(plain_log_prob(policy, encode(state), encode(action)), abs=1e-4)


policies = {}


@torch.no_grad()
def change_in_place(policy):
    policy.model.get_input_embeddings().weight.mul_(-1)


def change_by_training(policy):
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=0.1)
    policy.model(torch.tensor([encode("1+1=3")])).logits.sum().backward()
    optimizer.step()


def change_the_model(policy):
    policy.model = AutoModelForCausalLM.from_pretrained(policy.model.name_or_path)
    change_in_place(policy)


@pytest.mark.parametrize("change", [change_in_place, change_by_training, change_the_model])
def test_the_cache_never_mixes_two_versions_of_the_weights(policy, change):
    before = policy.log_prob("1+1=", "2")
    change(policy)
    after = policy.log_prob("1+1=", "2")
    assert after == pytest.approx(plain_log_prob(policy, encode("1+1="), encode("2")), abs=1e-4)
    assert abs(after - before) > 0.01


def test_a_change_past_torchs_count_is_seen_after_forgetting(policy):
    policy.log_prob("1+1=", "2")
    policy.model.get_input_embeddings().weight.data.mul_(-1)
    policy.forget()
    assert policy.log_prob("1+1=", "2") == pytest.approx(plain_log_prob(policy, encode("1+1="), encode("2")), abs=1e-4)


def test_a_pass_that_fails_half_way_leaves_no_half_filled_cache(policy):
    def fail(module, args):
        raise RuntimeError("out of memory")

    policy.log_prob("1+1=", "2")
    hook = policy.model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        policy.log_prob("1+1=2", "3")
    hook.remove()
    assert policy.log_prob("1+1=2", "3") == pytest.approx(plain_log_prob(policy, encode("1+1=2"), encode("3")), abs=1e-4)


def test_a_model_that_trains_with_checkpointing_is_asked_without_a_cache(policy, tokens_fed):
    policy.model.gradient_checkpointing_enable()
    policy.model.train()
    expected = plain_log_prob(policy, encode("1+1="), encode("2"))
    tokens_fed.clear()
    assert [policy.log_prob("1+1=", "2") for _ in range(2)] == [pytest.approx(expected, abs=1e-4)] * 2
    assert tokens_fed == [4, 4]


# states


@given(st.text(max_size=12).filter(lambda text: "\ufffd" not in text))
def test_characters_of_several_tokens_appear_whole_and_none_is_lost(text):
    state = start_state(TOKENIZER, "1+1=é")
    for token_id in encode(text):
        grown = next_state(TOKENIZER, state, token_id)
        assert grown.startswith(state)
        assert "\ufffd" not in grown
        state = grown
    assert state == "1+1=é" + text
    assert state.response == text
    assert state.token_ids == tuple(encode("1+1=é") + encode(text))


def test_a_character_waits_for_its_last_byte_and_its_ids_do_not():
    # € is the bytes e2 82 ac, a token each
    states = [start_state(TOKENIZER, "p")]
    for token_id in encode("€"):
        states.append(next_state(TOKENIZER, states[-1], token_id))
    assert states == ["p", "p", "p", "p€"]
    assert [len(state.token_ids) for state in states] == [1, 2, 3, 4]


def test_states_of_the_same_text_with_other_pending_bytes_are_told_apart(policy):
    first, second, _ = encode("€")
    state = next_state(TOKENIZER, start_state(TOKENIZER, "p"), first)
    assert state == "p"
    assert policy.log_prob(state, second) == pytest.approx(plain_log_prob(policy, [*encode("p"), first], [second]), abs=1e-4)


def test_bytes_that_are_no_character_show_as_such_once_the_text_goes_on():
    state = next_state(TOKENIZER, next_state(TOKENIZER, start_state(TOKENIZER, "p"), encode("€")[0]), encode("x")[0])
    assert state == "p\ufffdx"


def test_an_eos_adds_an_id_and_no_text():
    state = next_state(TOKENIZER, start_state(TOKENIZER, "p"), EOS)
    assert (state, state.response_ids) == ("p", (EOS,))


# rollouts


class ScriptedPolicy:
    """Says a given text, token by token, whatever it is asked."""

    tokenizer = TOKENIZER
    stop_token_ids = frozenset({EOS})

    def __init__(self, token_ids):
        self.token_ids = list(token_ids)

    def sample_action(self, state, **options):
        return self.token_ids[len(state.response_ids)]


RIGHT = " 1+1=2 </think> <answer> 2 </answer>"


def graded(prompt, state):
    """A5's reward of the response, as the worker's docstring shows it."""
    return r1_zero_reward_fn(state.removeprefix(prompt), "2")


def test_a_rollout_ends_behind_the_answer_and_its_last_step_is_paid():
    trajectory = RolloutWorker(ScriptedPolicy(encode(RIGHT + " and more")), graded).generate_rollout(PROMPT)
    assert trajectory[-1]["new_state"] == PROMPT + RIGHT
    assert [step["action"] for step in trajectory] == encode(RIGHT)
    assert [step["reward"] for step in trajectory] == [0.0] * (len(trajectory) - 1) + [1.0]
    assert set(trajectory[0]) == {"state", "action", "reward", "new_state"}


def test_each_state_is_the_one_before_with_its_action():
    trajectory = RolloutWorker(ScriptedPolicy(encode(RIGHT)), graded).generate_rollout(PROMPT)
    assert trajectory[0]["state"] == PROMPT
    for step, following in pairwise(trajectory):
        assert following["state"] == step["new_state"]
        assert step["new_state"] == step["state"] + TOKENIZER.decode([step["action"]])


def test_the_answer_tags_of_the_prompt_end_and_earn_nothing():
    assert "</answer>" in PROMPT
    trajectory = RolloutWorker(ScriptedPolicy([*encode("2"), EOS]), graded).generate_rollout(PROMPT)
    assert len(trajectory) == 2
    assert trajectory[-1]["reward"] == 0.0


def test_a_rollout_ends_at_an_eos():
    trajectory = RolloutWorker(ScriptedPolicy([*encode("no"), EOS, *encode(RIGHT)]), lambda prompt, state: len(state)).generate_rollout("p")
    assert [step["action"] for step in trajectory] == [*encode("no"), EOS]
    assert trajectory[-1]["reward"] == len("pno")


def test_a_rollout_that_is_cut_is_graded_too():
    asked = []

    def reward_fn(prompt, state):
        asked.append((prompt, state))
        return {"reward": 0.25, "format_reward": 0.0}

    trajectory = RolloutWorker(ScriptedPolicy(encode("12345")), reward_fn, max_steps=3).generate_rollout("p")
    assert [step["reward"] for step in trajectory] == [0.0, 0.0, 0.25]
    assert asked == [("p", "p123")]


def test_a_rollout_of_the_model_repeats_with_its_seed_and_adds_up_to_its_log_prob(policy):
    worker = RolloutWorker(policy, lambda prompt, state: 1, max_steps=20)
    first, again, other = (worker.generate_rollout(PROMPT, temperature=2.0, seed=seed) for seed in (1, 1, 2))
    assert [step["action"] for step in first] == [step["action"] for step in again]
    assert [step["action"] for step in first] != [step["action"] for step in other]
    assert all(isinstance(step["state"], State) for step in first)
    expected = plain_log_prob(policy, encode(PROMPT), [step["action"] for step in first])
    assert sum(policy.log_prob(step["state"], step["action"]) for step in first) == pytest.approx(expected, abs=1e-3)


def test_a_rollout_without_steps_is_refused():
    with pytest.raises(ValueError, match="max_steps = 0"):
        RolloutWorker(ScriptedPolicy([]), graded, max_steps=0)


# setting up


def test_the_defaults_suit_the_device_and_a_dtype_may_be_asked_for(folder, policy):
    assert (policy.model.dtype, policy.model.config._attn_implementation, policy.model.training) == (torch.float32, "sdpa", False)
    assert LanguageModelAsPolicy(folder, device="cpu", dtype="bfloat16", attention="eager").model.dtype == torch.bfloat16


def test_every_eos_of_the_generation_config_ends_a_response(policy):
    policy.model.generation_config.eos_token_id = [5, 7]
    assert policy.stop_token_ids == {5, 7, EOS}
