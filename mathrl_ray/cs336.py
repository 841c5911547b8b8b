r"""The functions of Stanford CS336 assignment 5 (2025), under its names, with its arguments and results.

Called by scripts and notebooks that follow the handout, and by its public tests through their adapters; nothing else here calls it.
A fixed interface: thin calls into core/ (and, to grade, into actors/shared_grading.py), kept in one file in the handout's order. Tensors
and texts in, tensors and plain values out; the tokenizer, the model, the engine and the reward function come as arguments.

B = batch, T = tokens (longest prompt + response - 1), V = vocabulary, N = rollouts. Log-probs are in nats and aligned with the labels.
Masks are bool, or numbers that are 0 or 1, of their tensor's shape. What stands outside a mask changes nothing, inf and NaN included.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Rational, Real
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from mathrl_ray.actors.shared_grading import isolated_verdict
from mathrl_ray.core.advantages import group_normalised
from mathrl_ray.core.grading.extraction import Extraction, extract
from mathrl_ray.core.logprobs import selected_log_probs, token_entropy
from mathrl_ray.core.losses import grpo_clip_loss, policy_gradient_loss, reinforce_loss, response_only, sft_loss
from mathrl_ray.core.tokenization import pad_batch, tokenize_apart

RewardFn = Callable[[str, Any], Mapping[str, float]]
"""(response, ground truth) -> {"format_reward", "answer_reward", "reward"}."""
LossType = Literal["no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip"]
GroundTruth = str | int | float | Real | Decimal | Sequence[str | int | float | Real | Decimal]
"""An answer, or several of which each is right; numpy's numbers are numbers too."""
REWARD_PARTS = ("format_reward", "answer_reward", "reward")

_Value = TypeVar("_Value", Tensor, float)


# Texts and log-probabilities


def tokenize_prompt_and_output(prompt_strs: Sequence[str], output_strs: Sequence[str], tokenizer: Any) -> dict[str, Tensor]:
    """Prompts and outputs as one right-padded batch, and where the outputs are.

    The two parts are tokenised apart and get no special tokens. The padding is the tokenizer's pad token, or else its EOS, or else 0.

    Returns:
        input_ids [B, T] long; labels [B, T] long, the same moved by one; response_mask [B, T] bool, true where the label is of the output.

    Raises:
        ValueError: not as many outputs as prompts, none at all, or an empty prompt or output; it names the row.
    """
    _check_lengths(prompt_strs=prompt_strs, output_strs=output_strs)
    sequences = [tokenize_apart(tokenizer, prompt, output) for prompt, output in zip(prompt_strs, output_strs, strict=True)]
    candidates = (getattr(tokenizer, "pad_token_id", None), tokenizer.eos_token_id)
    batch = pad_batch(sequences, next((token_id for token_id in candidates if token_id is not None), 0))
    return {"input_ids": batch.input_ids, "labels": batch.labels, "response_mask": batch.response_mask}


def compute_entropy(logits: Tensor) -> Tensor:
    """H = -sum_v p_v log p_v of the next token, in nats: [B, T, V] -> [B, T] float32.

    >>> round(compute_entropy(torch.zeros(1, 1, 4)).item(), 4)  # ln 4
    1.3863
    """
    return token_entropy(logits)


def get_response_log_probs(
    model: Callable[[Tensor], Any], input_ids: Tensor, labels: Tensor, return_token_entropy: bool = False
) -> dict[str, Tensor]:
    """log p(label | everything up to its input), and the entropy of that distribution when asked for; neither is masked.

    Args:
        model: a causal language model of transformers, or anything that gives an object with `logits` [B, T, V].
        input_ids: [B, T].
        labels: [B, T].
        return_token_entropy: it carries a gradient, so that it can be a bonus.

    Returns:
        log_probs [B, T] float32, and token_entropy [B, T] float32 only if asked for.
    """
    logits = model(input_ids).logits
    values = {"log_probs": selected_log_probs(logits, labels)}
    if return_token_entropy:
        values["token_entropy"] = token_entropy(logits)
    return values


# Masked sums and means


def masked_mean(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of the elements that the mask shows, along `dim` or over all; NaN where it shows none.

    >>> masked_mean(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[1, 1], [0, 1]]), dim=1).tolist()
    [2.0, 7.0]
    """
    return _masked_sum(tensor, mask, dim) / (mask.bool().sum() if dim is None else mask.bool().sum(dim))


def masked_normalize(tensor: Tensor, mask: Tensor, normalize_constant: float, dim: int | None = None) -> Tensor:
    """Sum of the elements that the mask shows, along `dim` or over all, divided by a constant (as in Dr. GRPO, Liu et al. 2025).

    Raises:
        ValueError: a constant of 0.

    >>> masked_normalize(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[1, 1], [0, 1]]), 2.0, dim=1).tolist()
    [2.0, 3.5]
    """
    if normalize_constant == 0:
        raise ValueError("normalize_constant = 0 divides by nothing: use 1.0, or the largest response length in tokens")
    return _masked_sum(tensor, mask, dim) / normalize_constant


def _masked_sum(tensor: Tensor, mask: Tensor, dim: int | None) -> Tensor:
    if mask.shape != tensor.shape:
        raise ValueError(f"a mask of shape {tuple(mask.shape)} does not belong to a tensor of shape {tuple(tensor.shape)}")
    shown = response_only(tensor, mask.bool())
    return shown.sum() if dim is None else shown.sum(dim)


# Training on given responses


def sft_microbatch_train_step(
    policy_log_probs: Tensor, response_mask: Tensor, gradient_accumulation_steps: int, normalize_constant: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Backward pass of -log p, summed over response tokens, / normalize_constant, mean over B, / gradient_accumulation_steps.

    The gradients of the micro-batches of one optimizer step add up; the caller steps and sets them to zero.

    Args:
        policy_log_probs: [B, T] with a graph behind it.
        response_mask: [B, T].
        gradient_accumulation_steps: micro-batches an optimizer step, at least 1.
        normalize_constant: of every row's sum.

    Returns:
        (loss, metadata): the scalar that was differentiated, detached; num_response_tokens, and mean_token_loss in nats (the mean over
        response tokens, divided by nothing else).

    Raises:
        ValueError: a mask of another shape, or a divisor that makes no sense.
    """
    token_loss = sft_loss(policy_log_probs)
    row_losses = masked_normalize(token_loss, response_mask, normalize_constant, dim=-1)
    loss = _backward(row_losses, gradient_accumulation_steps)
    return loss, {
        "num_response_tokens": response_mask.bool().sum(),
        "mean_token_loss": masked_mean(token_loss.detach(), response_mask),
    }


def _backward(row_losses: Tensor, gradient_accumulation_steps: int) -> Tensor:
    """Mean over the batch, / gradient_accumulation_steps, and its gradients."""
    if gradient_accumulation_steps < 1:
        raise ValueError(f"gradient_accumulation_steps = {gradient_accumulation_steps}: an optimizer step has at least 1 micro-batch")
    loss = row_losses.mean() / gradient_accumulation_steps
    loss.backward()
    return loss.detach()


# Rewards and policy gradients


def compute_group_normalized_rewards(
    reward_fn: RewardFn,
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[Any],
    group_size: int,
    advantage_eps: float,
    normalize_by_std: bool,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Each reward minus its group's mean, and / (std + advantage_eps) with normalize_by_std; std is the sample's (n - 1).

    DeepSeekMath (Shao et al. 2024, section 4.1.2), without std Dr. GRPO (Liu et al. 2025). Equal rewards in a group give exactly 0.

    Args:
        reward_fn: must give "reward"; format_reward and answer_reward are averaged in the metadata where it gives them.
        rollout_responses: N texts, the siblings of a prompt side by side.
        repeated_ground_truths: N, one a response.
        group_size: siblings a prompt, at least 2; it divides N.
        advantage_eps: added to the std.
        normalize_by_std: divide at all.

    Returns:
        (advantages [N] float32, raw_rewards [N] float32, metadata): reward_mean, reward_std (sample, over all N), reward_max, reward_min,
        format_reward_mean, answer_reward_mean, num_groups, and zero_variance_fraction, the share of groups that teach nothing.

    Raises:
        ValueError: lists that do not fit each other or the group size.
    """
    _check_lengths(rollout_responses=rollout_responses, repeated_ground_truths=repeated_ground_truths)
    num_rollouts = len(rollout_responses)
    if group_size < 2 or num_rollouts % group_size or not num_rollouts:
        raise ValueError(
            f"{num_rollouts} rollouts cannot be cut into groups of group_size = {group_size}: it must be 2 or more and divide them"
        )
    scores = [_score(reward_fn, response, gold) for response, gold in zip(rollout_responses, repeated_ground_truths, strict=True)]
    rewards = [score["reward"] for score in scores]
    groups = [rewards[start : start + group_size] for start in range(0, len(rewards), group_size)]
    # A group of equal rewards is not divided: it is 0 anyway, and may be asked for with advantage_eps = 0.
    advantages = [
        advantage
        for group in groups
        for advantage in group_normalised(group, divide_by_std=normalize_by_std and len(set(group)) > 1, epsilon=advantage_eps)
    ]
    parts = [part for part in REWARD_PARTS if all(part in score for score in scores)]
    metadata = {
        **{f"{part}_mean": fmean(score[part] for score in scores) for part in parts},
        "reward_std": stdev(rewards),
        "reward_max": max(rewards),
        "reward_min": min(rewards),
        "num_groups": float(len(groups)),
        "zero_variance_fraction": fmean(len(set(group)) == 1 for group in groups),
    }
    return torch.tensor(advantages), torch.tensor(rewards), metadata


def compute_naive_policy_gradient_loss(raw_rewards_or_advantages: Tensor, policy_log_probs: Tensor) -> Tensor:
    """[B, T] -A log p: REINFORCE (Williams 1992), with a baseline when A is an advantage.

    Args:
        raw_rewards_or_advantages: [B, 1], or [B, T].
        policy_log_probs: [B, T].

    Raises:
        ValueError: another shape, which broadcasting would spread over the wrong rows.
    """
    _check_shape("raw_rewards_or_advantages", raw_rewards_or_advantages, policy_log_probs)
    return reinforce_loss(policy_log_probs, raw_rewards_or_advantages)


def compute_grpo_clip_loss(
    advantages: Tensor, policy_log_probs: Tensor, old_log_probs: Tensor, cliprange: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """-min(r A, clip(r, 1 - cliprange, 1 + cliprange) A) with r = exp(policy - old) (Shao et al. 2024, eq. 3).

    Args:
        advantages: [B, 1], or [B, T].
        policy_log_probs: [B, T].
        old_log_probs: [B, T]; gets no gradient.
        cliprange: at least 0.

    Returns:
        (loss [B, T], metadata): importance_ratio [B, T] and clipped [B, T] bool, true where the clipped term is strictly the smaller one.

    Raises:
        ValueError: a shape that does not fit, or a negative cliprange.
    """
    _check_ratio_arguments(advantages, policy_log_probs, old_log_probs)
    if not cliprange >= 0:
        raise ValueError(f"cliprange = {cliprange} must be at least 0; 0.2 is usual")
    old_log_probs = old_log_probs.detach()
    result = grpo_clip_loss(policy_log_probs, old_log_probs, advantages, clip_low=cliprange, clip_high=cliprange)
    return result.loss, {"importance_ratio": _ratio(policy_log_probs, old_log_probs), "clipped": result.clipped}


def compute_policy_gradient_loss(
    policy_log_probs: Tensor,
    loss_type: LossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss that loss_type names, [B, T], and its metadata; arguments that it does not need are ignored.

    no_baseline: raw_rewards. reinforce_with_baseline: advantages. grpo_clip: advantages, old_log_probs and cliprange. grpo_no_clip (the
    off-policy ablation, -r A): advantages and old_log_probs.

    Raises:
        ValueError: an unknown loss_type, or an argument that it needs is missing; it names both.
    """
    match loss_type:
        case "no_baseline":
            return compute_naive_policy_gradient_loss(_needed("raw_rewards", raw_rewards, loss_type), policy_log_probs), {}
        case "reinforce_with_baseline":
            return compute_naive_policy_gradient_loss(_needed("advantages", advantages, loss_type), policy_log_probs), {}
        case "grpo_clip" | "grpo_no_clip":
            advantages = _needed("advantages", advantages, loss_type)
            old_log_probs = _needed("old_log_probs", old_log_probs, loss_type)
            if loss_type == "grpo_clip":
                return compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, _needed("cliprange", cliprange, loss_type))
            _check_ratio_arguments(advantages, policy_log_probs, old_log_probs)
            old_log_probs = old_log_probs.detach()
            loss = policy_gradient_loss(policy_log_probs, old_log_probs, advantages)
            return loss, {"importance_ratio": _ratio(policy_log_probs, old_log_probs)}
        case _:
            raise ValueError(f"there is no loss_type {loss_type!r}: use no_baseline, reinforce_with_baseline, grpo_clip or grpo_no_clip")


def grpo_microbatch_train_step(
    policy_log_probs: Tensor,
    response_mask: Tensor,
    gradient_accumulation_steps: int,
    loss_type: LossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Backward pass of compute_policy_gradient_loss: masked_mean over T, mean over B, / gradient_accumulation_steps.

    A row without any response token makes the loss NaN, as masked_mean does.

    Returns:
        (loss, metadata): the underlying loss's metadata, num_response_tokens, and over response tokens clip_fraction and
        importance_ratio_mean where the loss has them. The loss is what was differentiated.

    Raises:
        ValueError: as compute_policy_gradient_loss and masked_mean; or gradient_accumulation_steps below 1.
    """
    mask = response_mask.bool()
    # Outside of the responses a log-prob may be no number, and the gradient of its exp would carry that into the model.
    token_loss, metadata = compute_policy_gradient_loss(
        _masked_log_probs(policy_log_probs, mask),
        loss_type,
        raw_rewards,
        advantages,
        old_log_probs,
        cliprange,
    )
    loss = _backward(masked_mean(token_loss, mask, dim=1), gradient_accumulation_steps)
    metadata = {**metadata, "num_response_tokens": mask.sum()}
    for name, values in (("clip_fraction", "clipped"), ("importance_ratio_mean", "importance_ratio")):
        if values in metadata:
            metadata[name] = masked_mean(metadata[values].float(), mask)
    return loss, metadata


def _masked_log_probs(log_probs: Tensor, mask: Tensor) -> Tensor:
    if log_probs.shape != mask.shape:
        raise ValueError(f"a response_mask of shape {tuple(mask.shape)} does not belong to log-probs of shape {tuple(log_probs.shape)}")
    return response_only(log_probs, mask)


def _ratio(policy_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    return (policy_log_probs.detach() - old_log_probs).exp()


def _needed(name: str, value: _Value | None, loss_type: str) -> _Value:
    if value is None:
        raise ValueError(f"loss_type = {loss_type!r} needs {name}, which is None")
    return value


def _check_ratio_arguments(advantages: Tensor, policy_log_probs: Tensor, old_log_probs: Tensor) -> None:
    _check_shape("advantages", advantages, policy_log_probs)
    if old_log_probs.shape != policy_log_probs.shape:
        raise ValueError(f"old_log_probs {tuple(old_log_probs.shape)} and policy_log_probs {tuple(policy_log_probs.shape)} differ in shape")


def _check_shape(name: str, values: Tensor, policy_log_probs: Tensor) -> None:
    shape = tuple(policy_log_probs.shape)
    if tuple(values.shape) not in (shape, (*shape[:-1], 1)):
        raise ValueError(f"{name} has the shape {tuple(values.shape)}, beside policy_log_probs {shape} it must be {(*shape[:-1], 1)}")


# Looking at generations


def log_generations(
    prompts: Sequence[str],
    responses: Sequence[str],
    ground_truths: Sequence[Any],
    reward_fn: RewardFn,
    token_entropies: Sequence[Sequence[float]] | None = None,
    num_response_tokens: Sequence[int] | None = None,
) -> dict[str, Any]:
    """What was generated, scored, and its averages: {"rows": one dict a response, "summary": one dict}, ready for JSON.

    A row has prompt, response, ground_truth, the parts of the reward, mean_token_entropy_nats and response_length. The summary has their
    means, the mean length of correct and of incorrect responses (answer_reward 1.0 or not), and how many responses had both rewards, one
    of them, or neither. A mean of nothing is None.

    Args:
        prompts, responses, ground_truths: one of each a response.
        reward_fn: gives format_reward, answer_reward and reward.
        token_entropies: the entropies of each response's tokens in nats, without those of its prompt and padding.
        num_response_tokens: lengths; without them the lengths of token_entropies, or else characters (summary["length_unit"] says which).

    Raises:
        ValueError: lists of different lengths, or a reward function that leaves out one of the three.
    """
    _check_lengths(prompts=prompts, responses=responses, ground_truths=ground_truths)
    entropies = [None] * len(prompts) if token_entropies is None else [_mean(map(float, row)) for row in token_entropies]
    lengths, unit = _response_lengths(responses, token_entropies, num_response_tokens)
    _check_lengths(prompts=prompts, token_entropies=entropies, num_response_tokens=lengths)
    rows = [
        {
            "prompt": prompt,
            "response": response,
            "ground_truth": gold,
            **_score(reward_fn, response, gold, REWARD_PARTS),
            "mean_token_entropy_nats": entropy,
            "response_length": length,
        }
        for prompt, response, gold, entropy, length in zip(prompts, responses, ground_truths, entropies, lengths, strict=True)
    ]
    return {"rows": rows, "summary": {**_summary(rows), "length_unit": unit}}


def _response_lengths(
    responses: Sequence[str], token_entropies: Sequence[Sequence[float]] | None, num_response_tokens: Sequence[int] | None
) -> tuple[list[int], str]:
    if num_response_tokens is not None:
        return [int(length) for length in num_response_tokens], "tokens"
    if token_entropies is not None:
        return [len(row) for row in token_entropies], "tokens"
    return [len(response) for response in responses], "characters"


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def lengths(*answer_rewards: bool) -> Iterator[int]:
        return (row["response_length"] for row in rows if (row["answer_reward"] == 1.0) in answer_rewards)

    def count(format_ok: bool, answer_ok: bool) -> int:
        return sum((row["format_reward"] == 1.0, row["answer_reward"] == 1.0) == (format_ok, answer_ok) for row in rows)

    return {
        "num_responses": len(rows),
        **{f"{part}_mean": _mean(row[part] for row in rows) for part in REWARD_PARTS},
        "num_format_and_answer": count(True, True),
        "num_format_only": count(True, False),
        "num_answer_only": count(False, True),
        "num_neither": count(False, False),
        "mean_token_entropy_nats": _mean(row["mean_token_entropy_nats"] for row in rows if row["mean_token_entropy_nats"] is not None),
        "mean_response_length": _mean(lengths(True, False)),
        "mean_response_length_correct": _mean(lengths(True)),
        "mean_response_length_incorrect": _mean(lengths(False)),
    }


def evaluate_vllm(
    vllm_model: Any,
    reward_fn: RewardFn,
    prompts: Sequence[str],
    eval_sampling_params: Any,
    ground_truths: Sequence[Any],
    output_path: str | Path | None = None,
) -> dict[str, Any]:
    """Generate for every prompt, score, and return what log_generations returns, with lengths in tokens.

    Args:
        vllm_model: a `vllm.LLM`. A5 stops at `</answer>` and keeps it: stop=["</answer>"], include_stop_str_in_output=True.
        reward_fn: of one response and its ground truth; called here, where only the two below have a time limit of their own.
        prompts: full prompt texts.
        eval_sampling_params: a `vllm.SamplingParams`; with n > 1 every sample becomes a row, side by side.
        ground_truths: one a prompt.
        output_path: a file to write the same as JSON; missing folders are made.

    Raises:
        ValueError: as log_generations.
    """
    _check_lengths(prompts=prompts, ground_truths=ground_truths)
    requests = vllm_model.generate(list(prompts), eval_sampling_params)
    samples = [
        (prompt, completion.text, gold, len(completion.token_ids))
        for prompt, request, gold in zip(prompts, requests, ground_truths, strict=True)
        for completion in request.outputs
    ]
    texts, responses, golds, num_tokens = zip(*samples, strict=True) if samples else ((), (), (), ())
    report = log_generations(texts, responses, golds, reward_fn, num_response_tokens=num_tokens)
    if output_path is not None:
        Path(output_path).parent.mkdir(parents=True, exist_ok=True)
        Path(output_path).write_text(json.dumps(report, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    return report


def _mean(values: Any) -> float | None:
    values = list(values)
    return fmean(values) if values else None


def _check_lengths(**lists: Sequence[Any]) -> None:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError("these must be equally long, one item a response: " + ", ".join(f"{name} {n}" for name, n in lengths.items()))


def _score(reward_fn: RewardFn, response: str, gold: Any, needed: Sequence[str] = ("reward",)) -> dict[str, float]:
    """The parts of the reward, without whatever else the function gives."""
    score = reward_fn(response, gold)
    missing = [part for part in needed if part not in score]
    if missing:
        raise ValueError(f"the reward function gave {sorted(score)} and left out {', '.join(missing)}")
    return {part: float(score[part]) for part in REWARD_PARTS if part in score}


# The reward of one response


def r1_zero_reward_fn(response: str, ground_truth: GroundTruth, fast: bool = True) -> dict[str, float]:
    r"""The r1_zero rule: `</think> <answer>`, then `</answer>`, and what stands between is equal to the ground truth.

    What needs algebra is judged in a process beside this one, which the first such answer starts (0.5 s) and which is ended at 5 s or 2 GiB
    an alternative: such an answer pays nothing. For many at once actors/scorer.py has several.

    Args:
        response: what follows the prompt; not the prompt itself, which names the tags.
        ground_truth: bare LaTeX, a number, or a list of which any will do. One that is empty or cannot be read pays nothing.
        fast: is there because A5's has it, and changes nothing: spellings are always compared before algebra is tried.

    Returns:
        Exactly format_reward, answer_reward and reward, each 0.0 or 1.0.

    Raises:
        ValueError: a ground truth of another type.

    >>> r1_zero_reward_fn(r"a half </think> <answer> \frac{1}{2} </answer>", 0.5)
    {'format_reward': 1.0, 'answer_reward': 1.0, 'reward': 1.0}
    """
    return _rewards(extract(response), ground_truth)


def question_only_reward_fn(response: str, ground_truth: GroundTruth, fast: bool = True) -> dict[str, float]:
    r"""The question_only rule: the answer stands in the last complete `\boxed{...}`; format_reward is 1.0 if and only if there is one.

    Everything else is as in r1_zero_reward_fn.

    >>> question_only_reward_fn(r"so it is \boxed{0.5}.", ["1/3", r"\frac{1}{2}"])
    {'format_reward': 1.0, 'answer_reward': 1.0, 'reward': 1.0}
    """
    return _rewards(extract(response, "question_only"), ground_truth)


def _rewards(extraction: Extraction, ground_truth: GroundTruth) -> dict[str, float]:
    correct = extraction.format_ok and any(isolated_verdict(extraction.answer, gold) == "correct" for gold in _gold_texts(ground_truth))
    return {"format_reward": float(extraction.format_ok), "answer_reward": float(correct), "reward": float(correct)}


def _gold_texts(ground_truth: GroundTruth) -> list[str]:
    """The alternatives as text; a float without an exponent, which no answer is written with."""
    if isinstance(ground_truth, str):
        return [ground_truth]
    if isinstance(ground_truth, Rational):  # int, numpy's integers, fractions
        return [str(ground_truth)]
    if isinstance(ground_truth, Real | Decimal):
        return [f"{Decimal(str(ground_truth)):f}"]  # str and not float: a float32 of 0.1 means 0.1, not 0.10000000149
    if isinstance(ground_truth, Sequence) and not isinstance(ground_truth, bytes | bytearray):
        return [text for alternative in ground_truth for text in _gold_texts(alternative)]
    raise ValueError(f"a ground truth must be a text, a number or a list of them, got {ground_truth!r}")
