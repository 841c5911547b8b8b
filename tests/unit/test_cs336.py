"""A5's functions against plain loops over Python floats, at the sizes of the assignment's own tests: 2 rows, 10 tokens, 100 words."""

import hashlib
import json
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import exp, inf, isnan, log, nan, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import ByteTokenizer

from mathrl_ray import cs336

BATCH, TOKENS, WORDS = 2, 10, 100
MASK_DTYPES = [torch.bool, torch.long, torch.float32]


def draw(*shape, seed=42):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw_mask(*shape, seed=42):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) > 0.5


LOG_PROBS = draw(BATCH, TOKENS)
OLD_LOG_PROBS = LOG_PROBS + draw(BATCH, TOKENS, seed=7)
REWARDS = torch.tensor([[0.9], [0.2]])
ADVANTAGES = torch.tensor([[0.35], [-0.35]])
MASK = draw_mask(BATCH, TOKENS)


def rows_and_columns(tensor):
    return product(range(tensor.shape[0]), range(tensor.shape[1]))


def token_loss(loss_type, b, t, cliprange):
    """One token's loss, straight from the formulas, in Python floats."""
    log_prob, old, advantage = LOG_PROBS[b, t].item(), OLD_LOG_PROBS[b, t].item(), ADVANTAGES[b, 0].item()
    ratio = exp(log_prob - old)
    match loss_type:
        case "no_baseline":
            return -REWARDS[b, 0].item() * log_prob
        case "reinforce_with_baseline":
            return -advantage * log_prob
        case "grpo_no_clip":
            return -ratio * advantage
        case "grpo_clip":
            return -min(ratio * advantage, min(max(ratio, 1 - cliprange), 1 + cliprange) * advantage)


def token_gradient(loss_type, b, t, cliprange):
    """Its derivative by the token's log-prob: the loss itself for r A (dr = r), -A for A log p, 0 where the clip decides."""
    if loss_type == "no_baseline":
        return -REWARDS[b, 0].item()
    if loss_type == "reinforce_with_baseline":
        return -ADVANTAGES[b, 0].item()
    unclipped = token_loss("grpo_no_clip", b, t, cliprange)
    return unclipped if token_loss(loss_type, b, t, cliprange) == unclipped else 0.0


LOSS_TYPES = ["no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip"]
ALL_ARGUMENTS = {"raw_rewards": REWARDS, "advantages": ADVANTAGES, "old_log_probs": OLD_LOG_PROBS, "cliprange": 0.3}


# tokenize_prompt_and_output


class PaddingTokenizer(ByteTokenizer):
    pad_token_id = 255


def test_prompts_and_outputs_are_padded_and_the_outputs_labels_are_marked():
    batch = cs336.tokenize_prompt_and_output(["ab", "c"], ["cd", "e"], PaddingTokenizer())
    a, b, c, d, e = b"abcde"
    assert batch["input_ids"].tolist() == [[a, b, c], [c, e, 255]]
    assert batch["labels"].tolist() == [[b, c, d], [e, 255, 255]]
    assert batch["response_mask"].tolist() == [[False, True, True], [True, False, False]]
    assert batch["response_mask"].dtype == torch.bool
    assert set(batch) == {"input_ids", "labels", "response_mask"}


def test_a_tokenizer_without_a_pad_token_pads_with_its_eos():
    batch = cs336.tokenize_prompt_and_output(["ab", "c"], ["cd", "e"], ByteTokenizer())
    assert batch["input_ids"][1].tolist() == [*b"ce", 0]


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=4))
def test_the_mask_shows_exactly_the_bytes_of_each_output(pairs):
    prompts, outputs = zip(*pairs, strict=True)
    batch = cs336.tokenize_prompt_and_output(prompts, outputs, PaddingTokenizer())
    assert batch["labels"].shape == (len(pairs), max(len((prompt + output).encode()) for prompt, output in pairs) - 1)
    for labels, mask, output in zip(batch["labels"], batch["response_mask"], outputs, strict=True):
        assert bytes(labels[mask].tolist()).decode() == output


def test_a_prompt_without_an_output_is_refused():
    with pytest.raises(ValueError, match="prompt_strs 2, output_strs 1"):
        cs336.tokenize_prompt_and_output(["a", "b"], ["c"], ByteTokenizer())


def test_an_empty_output_is_refused_by_its_row():
    with pytest.raises(ValueError, match="row 1 of the batch has an empty response"):
        cs336.tokenize_prompt_and_output(["a", "b"], ["c", ""], ByteTokenizer())


# compute_entropy and get_response_log_probs


def test_entropy_is_the_sum_over_the_vocabulary():
    logits = draw(BATCH, TOKENS, WORDS)
    entropy = cs336.compute_entropy(logits)
    assert entropy.shape == (BATCH, TOKENS)
    for b, t in rows_and_columns(entropy):
        weights = [exp(logit) for logit in logits[b, t].tolist()]
        shares = [weight / sum(weights) for weight in weights]
        assert entropy[b, t].item() == pytest.approx(-sum(share * log(share) for share in shares), abs=1e-5)


class TableModel:
    """Logits that depend on the input token only."""

    def __init__(self):
        self.table = draw(WORDS, WORDS).requires_grad_()

    def __call__(self, input_ids):
        return SimpleNamespace(logits=self.table[input_ids])


@pytest.fixture
def tokens():
    ids = torch.randint(0, WORDS, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(42))
    return ids[:, :-1], ids[:, 1:]


def test_log_probs_are_those_of_the_labels_and_nothing_is_masked(tokens):
    model, (inputs, labels) = TableModel(), tokens
    values = cs336.get_response_log_probs(model, inputs, labels, return_token_entropy=True)
    assert set(values) == {"log_probs", "token_entropy"}
    for b, t in rows_and_columns(inputs):
        row = model.table[inputs[b, t]].tolist()
        expected = row[labels[b, t]] - log(sum(exp(logit) for logit in row))
        assert values["log_probs"][b, t].item() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(values["token_entropy"], cs336.compute_entropy(model.table[inputs]))


def test_entropy_is_left_out_unless_asked_for_and_log_probs_carry_a_gradient(tokens):
    model, (inputs, labels) = TableModel(), tokens
    values = cs336.get_response_log_probs(model, inputs, labels)
    assert set(values) == {"log_probs"}
    values["log_probs"].sum().backward()
    # each row of onehot - softmax sums to 0, and a word that was never an input gets nothing
    assert model.table.grad.sum(dim=-1).abs().max() < 1e-5
    assert set(model.table.grad.abs().sum(dim=-1).nonzero().flatten().tolist()) == set(inputs.flatten().tolist())


# masked_mean and masked_normalize


def slices(tensor, dim):
    """The lists of elements along dim, in the order of the reduced tensor, by plain indexing."""
    if dim is None:
        return [tensor.flatten().tolist()]
    moved = tensor.movedim(dim, -1)
    return [moved[index].tolist() for index in product(*map(range, moved.shape[:-1]))]


@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_masked_mean_and_masked_normalize_are_loops_over_what_is_shown(dim, dtype):
    tensor, mask = draw(BATCH, TOKENS, WORDS), draw_mask(BATCH, TOKENS, WORDS)
    means = cs336.masked_mean(tensor, mask.to(dtype), dim).flatten().tolist()
    sums = cs336.masked_normalize(tensor, mask.to(dtype), 42.0, dim).flatten().tolist()
    for mean, scaled, values, shown in zip(means, sums, slices(tensor, dim), slices(mask, dim), strict=True):
        kept = [value for value, show in zip(values, shown, strict=True) if show]
        assert scaled == pytest.approx(sum(kept) / 42, abs=1e-5)
        assert mean == pytest.approx(sum(kept) / len(kept), abs=1e-5) if kept else isnan(mean)


def test_a_row_that_shows_nothing_has_no_mean_and_the_sum_zero():
    tensor, mask = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0, 1], [0, 0]])
    mean = cs336.masked_mean(tensor, mask, dim=1)
    assert (mean[0].item(), isnan(mean[1].item())) == (2.0, True)
    assert cs336.masked_normalize(tensor, mask, 2.0, dim=1).tolist() == [1.0, 0.0]


def test_what_is_hidden_may_be_infinite_or_no_number():
    tensor, mask = torch.tensor([1.0, inf, nan, 3.0]), torch.tensor([True, False, False, True])
    assert cs336.masked_mean(tensor, mask).item() == 2.0
    assert cs336.masked_normalize(tensor, mask, 4.0).item() == 1.0


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"\(2,\).*\(2, 1\)"):
        cs336.masked_mean(torch.zeros(2, 1), torch.ones(2))


def test_dividing_by_nothing_is_refused():
    with pytest.raises(ValueError, match="normalize_constant = 0"):
        cs336.masked_normalize(torch.zeros(2), torch.ones(2), 0)


# sft_microbatch_train_step


@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("normalize_constant", [1.0, 42.0])
def test_the_sft_step_sums_divides_averages_and_goes_backward(normalize_constant, dtype):
    log_probs = LOG_PROBS.clone().requires_grad_()
    loss, metadata = cs336.sft_microbatch_train_step(log_probs, MASK.to(dtype), 2, normalize_constant)
    share = 1 / (BATCH * 2 * normalize_constant)  # of one response token: rows x accumulation steps x constant
    shown = [LOG_PROBS[b, t].item() for b, t in rows_and_columns(MASK) if MASK[b, t]]
    assert loss.item() == pytest.approx(-sum(shown) * share, abs=1e-6)
    for b, t in rows_and_columns(MASK):
        assert log_probs.grad[b, t].item() == pytest.approx(-share if MASK[b, t] else 0.0)
    assert metadata["num_response_tokens"].item() == len(shown)
    assert metadata["mean_token_loss"].item() == pytest.approx(-sum(shown) / len(shown), abs=1e-6)


def test_the_gradients_of_ten_sft_steps_add_up():
    log_probs = LOG_PROBS.clone().requires_grad_()
    for _ in range(10):
        cs336.sft_microbatch_train_step(log_probs, MASK, 2)
    torch.testing.assert_close(log_probs.grad, -MASK.float() * 10 / (BATCH * 2))


def test_the_normalize_constant_of_the_sft_step_is_one_by_default():
    values = [cs336.sft_microbatch_train_step(LOG_PROBS.clone().requires_grad_(), MASK, 2, *rest)[0].item() for rest in ((), (1.0,))]
    assert values[0] == values[1]


def test_a_step_of_no_micro_batch_is_refused():
    with pytest.raises(ValueError, match="gradient_accumulation_steps = 0"):
        cs336.sft_microbatch_train_step(LOG_PROBS.clone().requires_grad_(), MASK, 0)


# compute_group_normalized_rewards


def reward_of_hash(response, ground_truth):
    reward = hashlib.sha256(response.encode()).digest()[0] / 255
    return {"reward": reward, "format_reward": reward / 2, "answer_reward": reward / 4, "note": "not a number"}


@pytest.mark.parametrize("normalize_by_std", [True, False])
def test_each_reward_is_centred_in_its_own_group_and_divided_by_the_sample_std(normalize_by_std):
    responses = [f"the answer is {index}" for index in range(8)]
    advantages, raw, metadata = cs336.compute_group_normalized_rewards(reward_of_hash, responses, ["42"] * 8, 4, 1e-6, normalize_by_std)
    rewards = [reward_of_hash(response, "42")["reward"] for response in responses]
    assert raw.tolist() == pytest.approx(rewards)
    assert (advantages.shape, advantages.dtype, raw.dtype) == ((8,), torch.float32, torch.float32)
    for index, reward in enumerate(rewards):
        group = rewards[:4] if index < 4 else rewards[4:]
        mean = sum(group) / 4
        scale = sqrt(sum((value - mean) ** 2 for value in group) / 3) + 1e-6 if normalize_by_std else 1.0
        assert advantages[index].item() == pytest.approx((reward - mean) / scale, abs=1e-5)
    mean = sum(rewards) / 8
    assert metadata == pytest.approx(
        {
            "reward_mean": mean,
            "format_reward_mean": mean / 2,
            "answer_reward_mean": mean / 4,
            "reward_std": sqrt(sum((reward - mean) ** 2 for reward in rewards) / 7),
            "reward_max": max(rewards),
            "reward_min": min(rewards),
            "num_groups": 2,
            "zero_variance_fraction": 0,
        }
    )


def test_the_reward_function_gets_the_response_and_its_own_ground_truth():
    def is_equal(response, ground_truth):
        return {"reward": float(response == ground_truth)}

    advantages, raw, metadata = cs336.compute_group_normalized_rewards(is_equal, ["1", "2", "3", "4"], ["1", "1", "3", "4"], 2, 0.0, True)
    assert raw.tolist() == [1, 0, 1, 1]
    # mean 1/2, sample std sqrt(1/2); the second group is all right and teaches nothing, even with nothing added to its std
    assert advantages.tolist() == pytest.approx([sqrt(1 / 2), -sqrt(1 / 2), 0, 0])
    assert metadata["zero_variance_fraction"] == 0.5
    assert "format_reward_mean" not in metadata


@pytest.mark.parametrize(("num_rollouts", "group_size"), [(6, 4), (4, 1), (4, 0), (0, 2)])
def test_rollouts_that_make_no_groups_are_refused(num_rollouts, group_size):
    with pytest.raises(ValueError, match=f"{num_rollouts} rollouts cannot be cut into groups of group_size = {group_size}"):
        cs336.compute_group_normalized_rewards(reward_of_hash, ["a"] * num_rollouts, ["b"] * num_rollouts, group_size, 1e-6, True)


def test_a_rollout_without_a_ground_truth_is_refused():
    with pytest.raises(ValueError, match="rollout_responses 4, repeated_ground_truths 3"):
        cs336.compute_group_normalized_rewards(reward_of_hash, ["a"] * 4, ["b"] * 3, 2, 1e-6, True)


def test_a_reward_function_without_a_reward_is_refused():
    with pytest.raises(ValueError, match=r"\['score'\] and left out reward"):
        cs336.compute_group_normalized_rewards(lambda response, gold: {"score": 1.0}, ["a"] * 2, ["b"] * 2, 2, 1e-6, True)


# policy gradient losses


@pytest.mark.parametrize("cliprange", [0.1, 0.5, 10.0])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_is_its_formula_token_by_token(loss_type, cliprange):
    loss, _ = cs336.compute_policy_gradient_loss(LOG_PROBS, loss_type, REWARDS, ADVANTAGES, OLD_LOG_PROBS, cliprange)
    assert loss.shape == (BATCH, TOKENS)
    for b, t in rows_and_columns(loss):
        assert loss[b, t].item() == pytest.approx(token_loss(loss_type, b, t, cliprange), abs=1e-5)


def test_the_parts_of_the_loss_are_the_functions_of_their_own_names():
    naive = cs336.compute_naive_policy_gradient_loss(raw_rewards_or_advantages=REWARDS, policy_log_probs=LOG_PROBS)
    assert naive.tolist() == [pytest.approx([token_loss("no_baseline", b, t, 0) for t in range(TOKENS)], abs=1e-6) for b in range(BATCH)]
    clipped, metadata = cs336.compute_grpo_clip_loss(ADVANTAGES, LOG_PROBS, OLD_LOG_PROBS, 0.1)
    for b, t in rows_and_columns(clipped):
        expected = token_loss("grpo_clip", b, t, 0.1)
        assert clipped[b, t].item() == pytest.approx(expected, abs=1e-5)
        assert metadata["clipped"][b, t].item() == (expected != token_loss("grpo_no_clip", b, t, 0.1))
        assert metadata["importance_ratio"][b, t].item() == pytest.approx(
            exp(LOG_PROBS[b, t].item() - OLD_LOG_PROBS[b, t].item()), rel=1e-5
        )


def test_the_old_policy_gets_no_gradient():
    old = OLD_LOG_PROBS.clone().requires_grad_()
    for loss_type in ("grpo_clip", "grpo_no_clip"):
        loss, metadata = cs336.compute_policy_gradient_loss(LOG_PROBS, loss_type, advantages=ADVANTAGES, old_log_probs=old, cliprange=0.2)
        assert not loss.requires_grad
        assert not any(value.requires_grad for value in metadata.values())


MISSING = [
    ("no_baseline", "raw_rewards"),
    ("reinforce_with_baseline", "advantages"),
    ("grpo_clip", "advantages"),
    ("grpo_clip", "old_log_probs"),
    ("grpo_clip", "cliprange"),
    ("grpo_no_clip", "advantages"),
    ("grpo_no_clip", "old_log_probs"),
]


@pytest.mark.parametrize(("loss_type", "missing"), MISSING)
def test_a_missing_argument_is_named_with_its_loss_type(loss_type, missing):
    with pytest.raises(ValueError, match=f"loss_type = '{loss_type}' needs {missing}"):
        cs336.compute_policy_gradient_loss(LOG_PROBS, loss_type, **{**ALL_ARGUMENTS, missing: None})


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_nothing_else_is_needed(loss_type):
    needed = {name: ALL_ARGUMENTS[name] for other, name in MISSING if other == loss_type}
    loss, _ = cs336.compute_policy_gradient_loss(LOG_PROBS, loss_type, **needed)
    torch.testing.assert_close(loss, cs336.compute_policy_gradient_loss(LOG_PROBS, loss_type, **ALL_ARGUMENTS)[0])


def test_an_unknown_loss_type_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="'ppo': use no_baseline, reinforce_with_baseline, grpo_clip or grpo_no_clip"):
        cs336.compute_policy_gradient_loss(LOG_PROBS, "ppo", **ALL_ARGUMENTS)


def test_advantages_that_would_be_spread_over_tokens_are_refused():
    # [2] beside [2, 2] would broadcast, one advantage a token
    with pytest.raises(ValueError, match=r"advantages has the shape \(2,\).* must be \(2, 1\)"):
        cs336.compute_grpo_clip_loss(torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, 2), 0.2)


def test_log_probs_of_two_shapes_are_refused():
    with pytest.raises(ValueError, match="differ in shape"):
        cs336.compute_grpo_clip_loss(torch.zeros(2, 1), torch.zeros(2, 3), torch.zeros(2, 1), 0.2)


def test_a_negative_cliprange_is_refused():
    with pytest.raises(ValueError, match=r"cliprange = -0\.1"):
        cs336.compute_grpo_clip_loss(ADVANTAGES, LOG_PROBS, OLD_LOG_PROBS, -0.1)


# grpo_microbatch_train_step


@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_grpo_step_averages_over_tokens_then_rows_and_goes_backward(loss_type, dtype):
    log_probs = LOG_PROBS.clone().requires_grad_()
    loss, metadata = cs336.grpo_microbatch_train_step(log_probs, MASK.to(dtype), 2, loss_type, REWARDS, ADVANTAGES, OLD_LOG_PROBS, 0.1)
    expected, num_clipped, ratios = 0.0, 0, []
    for b in range(BATCH):
        shown = [t for t in range(TOKENS) if MASK[b, t]]
        expected += sum(token_loss(loss_type, b, t, 0.1) for t in shown) / len(shown) / BATCH / 2
        num_clipped += sum(token_loss("grpo_clip", b, t, 0.1) != token_loss("grpo_no_clip", b, t, 0.1) for t in shown)
        ratios += [exp(LOG_PROBS[b, t].item() - OLD_LOG_PROBS[b, t].item()) for t in shown]
        for t in range(TOKENS):
            gradient = token_gradient(loss_type, b, t, 0.1) / len(shown) / BATCH / 2 if t in shown else 0.0
            assert log_probs.grad[b, t].item() == pytest.approx(gradient, abs=1e-6)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert metadata["num_response_tokens"].item() == len(ratios)
    if loss_type == "grpo_clip":
        assert 0 < num_clipped < len(ratios)
        assert metadata["clip_fraction"].item() == pytest.approx(num_clipped / len(ratios))
    if loss_type.startswith("grpo"):
        assert metadata["importance_ratio_mean"].item() == pytest.approx(sum(ratios) / len(ratios), rel=1e-5)


def test_the_gradients_of_ten_grpo_steps_add_up():
    once, often = LOG_PROBS.clone().requires_grad_(), LOG_PROBS.clone().requires_grad_()
    cs336.grpo_microbatch_train_step(once, MASK, 2, "grpo_clip", **ALL_ARGUMENTS)
    for _ in range(10):
        cs336.grpo_microbatch_train_step(often, MASK, 2, "grpo_clip", **ALL_ARGUMENTS)
    torch.testing.assert_close(often.grad, once.grad * 10)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_two_micro_batches_give_the_gradient_of_one_batch(loss_type):
    whole, cut = LOG_PROBS.clone().requires_grad_(), LOG_PROBS.clone().requires_grad_()
    cs336.grpo_microbatch_train_step(whole, MASK, 1, loss_type, **ALL_ARGUMENTS)
    for row in range(2):
        part = {name: value if name == "cliprange" else value[row : row + 1] for name, value in ALL_ARGUMENTS.items()}
        cs336.grpo_microbatch_train_step(cut[row : row + 1], MASK[row : row + 1], 2, loss_type, **part)
    torch.testing.assert_close(cut.grad, whole.grad)


@pytest.mark.parametrize("outside", [-inf, nan])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_what_stands_in_prompts_and_padding_spoils_neither_loss_nor_gradient(loss_type, outside):
    expected, spoilt = LOG_PROBS.clone().requires_grad_(), LOG_PROBS.masked_fill(~MASK, outside).requires_grad_()
    loss, _ = cs336.grpo_microbatch_train_step(expected, MASK, 2, loss_type, **ALL_ARGUMENTS)
    arguments = {**ALL_ARGUMENTS, "old_log_probs": OLD_LOG_PROBS.masked_fill(~MASK, outside)}
    spoilt_loss, _ = cs336.grpo_microbatch_train_step(spoilt, MASK, 2, loss_type, **arguments)
    assert spoilt_loss.item() == loss.item()
    torch.testing.assert_close(spoilt.grad, expected.grad, rtol=0, atol=0)


def test_a_response_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"response_mask of shape \(2, 9\)"):
        cs336.grpo_microbatch_train_step(LOG_PROBS, MASK[:, 1:], 2, "grpo_clip", **ALL_ARGUMENTS)


# log_generations and evaluate_vllm


def graded(response, ground_truth):
    """format_reward for an exclamation mark, answer_reward for the ground truth's first letter."""
    answer = float(response[0] == ground_truth)
    return {"format_reward": float("!" in response), "answer_reward": answer, "reward": answer, "note": "dropped"}


RESPONSES = ["a!", "b!xx", "c", "xyz"]


def test_generations_are_logged_with_their_averages():
    log = cs336.log_generations(["p", "q", "r", "s"], RESPONSES, ["a", "z", "c", "z"], graded, [[1.0, 2.0], [3.0], [0.5, 0.5, 0.5], []])
    assert log["rows"][0] == {
        "prompt": "p",
        "response": "a!",
        "ground_truth": "a",
        "format_reward": 1.0,
        "answer_reward": 1.0,
        "reward": 1.0,
        "mean_token_entropy_nats": 1.5,
        "response_length": 2,
    }
    assert log["rows"][3]["mean_token_entropy_nats"] is None
    assert log["summary"] == {
        "num_responses": 4,
        "format_reward_mean": 0.5,
        "answer_reward_mean": 0.5,
        "reward_mean": 0.5,
        "num_format_and_answer": 1,
        "num_format_only": 1,
        "num_answer_only": 1,
        "num_neither": 1,
        "mean_token_entropy_nats": pytest.approx((1.5 + 3 + 0.5) / 3),
        "mean_response_length": 1.5,  # 2, 1, 3, 0 tokens
        "mean_response_length_correct": 2.5,
        "mean_response_length_incorrect": 0.5,
        "length_unit": "tokens",
    }


def test_lengths_are_as_given_or_else_in_characters():
    arguments = (["p"] * 4, RESPONSES, ["a", "z", "c", "z"], graded)
    given_lengths = cs336.log_generations(*arguments, num_response_tokens=[10, 20, 30, 40])["summary"]
    assert (given_lengths["mean_response_length"], given_lengths["length_unit"]) == (25, "tokens")
    characters = cs336.log_generations(*arguments)["summary"]
    assert (characters["mean_response_length"], characters["length_unit"]) == (2.5, "characters")  # 2, 4, 1, 3
    assert characters["mean_token_entropy_nats"] is None


def test_a_mean_of_nothing_is_none():
    log = cs336.log_generations(["p"], ["a!"], ["a"], graded)
    assert log["summary"]["mean_response_length_incorrect"] is None
    assert cs336.log_generations([], [], [], graded)["summary"]["reward_mean"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["p"], ["a", "b"], ["a"], graded), "prompts 1, responses 2, ground_truths 1"),
        ((["p"], ["a"], ["a"], graded, [[1.0], [2.0]]), "prompts 1, token_entropies 2"),
        ((["p"], ["a"], ["a"], lambda response, gold: {"reward": 1.0}), "left out format_reward, answer_reward"),
    ],
)
def test_generations_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        cs336.log_generations(*arguments)


class EchoEngine:
    """Answers each prompt with its last letters, `n` times, as `vllm.LLM.generate` hands its results over."""

    def generate(self, prompts, sampling_params):
        def completion(prompt):
            return SimpleNamespace(text=prompt[1:], token_ids=list(prompt[1:].encode()))

        return [SimpleNamespace(prompt=prompt, outputs=[completion(prompt)] * sampling_params.n) for prompt in prompts]


def test_an_evaluation_generates_scores_and_writes_what_it_returns(tmp_path):
    path = tmp_path / "new" / "evaluation.json"
    report = cs336.evaluate_vllm(EchoEngine(), graded, [":a!", ":b!"], SimpleNamespace(n=2), ["a", "a"], output_path=path)
    assert [(row["prompt"], row["response"], row["reward"]) for row in report["rows"]] == [(":a!", "a!", 1.0)] * 2 + [
        (":b!", "b!", 0.0)
    ] * 2
    assert report["summary"]["reward_mean"] == 0.5
    assert (report["summary"]["mean_response_length"], report["summary"]["length_unit"]) == (2, "tokens")
    assert json.loads(path.read_text(encoding="utf-8")) == report


def test_an_evaluation_needs_a_ground_truth_a_prompt():
    with pytest.raises(ValueError, match="prompts 2, ground_truths 1"):
        cs336.evaluate_vllm(EchoEngine(), graded, [":a", ":b"], SimpleNamespace(n=1), ["a"])


# reward functions

HALVES = [r"\frac{1}{2}", r"\frac12", "1/2", "0.5", "0.50", r"\dfrac{1}{2}", "$0.5$"]
REWARD_FNS = {cs336.r1_zero_reward_fn: " so </think> <answer> {} </answer>", cs336.question_only_reward_fn: r"so it is \boxed{{{}}}."}


def rewards(format_reward, answer_reward):
    return {"format_reward": format_reward, "answer_reward": answer_reward, "reward": answer_reward}


@pytest.mark.parametrize("gold", [0.5, "0.5", r"\frac{1}{2}", ["7", 0.5], ("1/2", 7)])
@pytest.mark.parametrize("answer", HALVES)
@pytest.mark.parametrize("reward_fn", REWARD_FNS)
def test_a_half_is_paid_however_it_is_written(reward_fn, answer, gold):
    assert reward_fn(REWARD_FNS[reward_fn].format(answer), gold) == rewards(1.0, 1.0)


@pytest.mark.parametrize("gold", [3, "3", 3.0, ["4", 3, 2.0]])
@pytest.mark.parametrize("reward_fn", REWARD_FNS)
def test_a_wrong_answer_keeps_its_format_reward_only(reward_fn, gold):
    answer = REWARD_FNS[reward_fn].format(5)
    assert reward_fn(answer, gold) == rewards(1.0, 0.0)
    assert all(type(value) is float for value in reward_fn(answer, gold).values())


@pytest.mark.parametrize("reward_fn", REWARD_FNS)
def test_a_right_answer_without_its_format_is_not_paid(reward_fn):
    assert reward_fn("it is 3", "3") == rewards(0.0, 0.0)
    assert reward_fn("", "3") == rewards(0.0, 0.0)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("reward_fn", REWARD_FNS)
def test_fast_changes_no_verdict(reward_fn, fast):
    assert reward_fn(REWARD_FNS[reward_fn].format("2/4"), 0.5, fast) == rewards(1.0, 1.0)
    assert reward_fn(REWARD_FNS[reward_fn].format("2/5"), 0.5, fast=fast) == rewards(1.0, 0.0)


@pytest.mark.parametrize("gold", ["", [], ["", " "]])
@pytest.mark.parametrize("reward_fn", REWARD_FNS)
def test_an_empty_ground_truth_never_pays(reward_fn, gold):
    assert reward_fn(REWARD_FNS[reward_fn].format(""), gold) == rewards(1.0, 0.0)
    assert reward_fn(REWARD_FNS[reward_fn].format("5"), gold) == rewards(1.0, 0.0)


@pytest.mark.parametrize("gold", [None, b"5", 5j])
@pytest.mark.parametrize("reward_fn", REWARD_FNS)
def test_a_ground_truth_of_another_type_is_refused(reward_fn, gold):
    with pytest.raises(ValueError, match=f"got {gold!r}"):
        reward_fn(REWARD_FNS[reward_fn].format("5"), gold)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (np.int64(5), "5"),
        (np.float64(0.5), r"\frac{1}{2}"),
        (np.float32(0.1), "0.1"),  # not 0.10000000149011612, which is the double next to it
        (np.float64(1e-5), "0.00001"),
        (Fraction(1, 3), r"\frac{1}{3}"),
        (Decimal("1E+2"), "100"),
        ([np.int64(7), np.float64(0.25)], "0.25"),
    ],
)
@pytest.mark.parametrize("reward_fn", REWARD_FNS)
def test_a_ground_truth_may_be_any_kind_of_number(reward_fn, gold, answer):
    assert reward_fn(REWARD_FNS[reward_fn].format(answer), gold) == rewards(1.0, 1.0)
    assert reward_fn(REWARD_FNS[reward_fn].format("4"), gold) == rewards(1.0, 0.0)


def test_a_tiny_float_is_compared_as_a_decimal_number():
    assert cs336.r1_zero_reward_fn("</think> <answer>0.00001</answer>", 1e-5) == rewards(1.0, 1.0)


def test_the_r1_zero_rule_wants_one_space_between_its_tags():
    assert cs336.r1_zero_reward_fn("</think><answer>5</answer>", "5") == rewards(0.0, 0.0)
    assert cs336.r1_zero_reward_fn("</think>\n<answer>5</answer>", "5") == rewards(0.0, 0.0)


@pytest.mark.parametrize(
    ("response", "gold", "expected"),
    [
        (r"\boxed{1}, no: \boxed{2}", "2", rewards(1.0, 1.0)),
        (r"\boxed{1}, no: \boxed{2}", "1", rewards(1.0, 0.0)),
        (r"\boxed{\frac{1}{2}} and so on", "0.5", rewards(1.0, 1.0)),
        (r"\boxed {17}", "17", rewards(1.0, 1.0)),
        (r"\boxed{\{1, 2\}}", r"\{1,2\}", rewards(1.0, 1.0)),
        (r"{ x \boxed{3} {", "3", rewards(1.0, 1.0)),  # braces around it that never close
        (r"\boxed{3} then \boxed{4", "3", rewards(1.0, 1.0)),  # the last one that is complete
        (r"\boxed{3", "3", rewards(0.0, 0.0)),
        (r"$\boxed 3$", "3", rewards(1.0, 1.0)),  # as some of MATH's own solutions write it
        ("boxed{3}", "3", rewards(0.0, 0.0)),
        (r"\boxed{}", "3", rewards(1.0, 0.0)),
        ("</think> <answer> 3 </answer>", "3", rewards(0.0, 0.0)),
    ],
)
def test_question_only_takes_the_last_complete_box(response, gold, expected):
    assert cs336.question_only_reward_fn(response, gold) == expected


@given(st.text(alphabet="\\boxed{}12 $", max_size=60), st.integers(0, 99))
def test_a_box_at_the_end_is_the_answer_whatever_stands_before(text, number):
    assert cs336.question_only_reward_fn(f"{text}; \\boxed{{{number}}}", number) == rewards(1.0, 1.0)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("response", [r"\boxed{" * 100_000, r"\boxed" + " " * 500_000, r"\boxed{" * 50_000 + "}" * 50_000, "\\" * 500_000])
def test_finding_the_box_costs_no_more_than_the_text_is_long(response):
    assert cs336.question_only_reward_fn(response, "3")["answer_reward"] == 0.0
