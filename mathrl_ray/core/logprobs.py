"""Log-probabilities and entropy of next tokens, as the generator computes them, without holding all logits.

Called by the learner and by cs336.py. Pure: tensors in, tensors out; knows no model (the head comes as a function) and no recipe.
Everything is computed in float32, as in the sampler (float64 stays float64, for checks of gradients). [..., V] is a vocabulary row.
"""

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

SMALLEST_TEMPERATURE = 0.01
"""vLLM's SamplingParams raises a lower temperature to this one (vllm 0.32.0, sampling_params.py, _MAX_TEMP)."""
LOG_OF_NOTHING = -1e4
"""exp of it is 0 in float32 and in float64, and 0 times it is 0, where 0 times -inf would be NaN."""


class _SelectedLogProbs(torch.autograd.Function):
    """z_y - logsumexp(z), with a gradient that makes one [..., V] tensor: onehot(y) - softmax(z), computed in place.

    Written out because autograd's own needs two more such tensors for logsumexp and gather, and one more for log_softmax and gather.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        log_normaliser = torch.logsumexp(logits, dim=-1)
        ctx.save_for_backward(logits, labels, log_normaliser)
        return logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - log_normaliser

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, labels, log_normaliser = ctx.saved_tensors
        column = gradient.unsqueeze(-1)
        of_logits = (logits - log_normaliser.unsqueeze(-1)).exp_().mul_(-column)
        return of_logits.scatter_add_(-1, labels.unsqueeze(-1), column), None


def selected_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """log softmax(logits)[label], in nats: logits[label] - logsumexp(logits), so that no full log_softmax is built.

    Args:
        logits: [..., V]; -inf is allowed (its token has probability 0), but not in all of a row.
        labels: [...] long.

    Returns:
        [...] float32 (float64 for float64). Its gradient cannot be differentiated again.
    """
    return _SelectedLogProbs.apply(_at_least_float32(logits), labels)


def token_entropy(logits: Tensor) -> Tensor:
    """H = -sum_v p_v log p_v with p = softmax(logits), in nats; between 0 and log V.

    Args:
        logits: [..., V]; entries of -inf count as 0 (p log p tends to 0) and get the gradient 0.

    Returns:
        [...] float32 (float64 for float64).

    >>> token_entropy(torch.zeros(4)).item() == torch.tensor(4.0).log().item()
    True
    """
    log_probs = torch.log_softmax(_at_least_float32(logits), dim=-1).clamp(min=LOG_OF_NOTHING)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def adjust_logits(
    logits: Tensor, *, temperature: float, response_position: Tensor, min_tokens: int, stop_token_ids: Collection[int]
) -> Tensor:
    """The logits that a response was drawn from: what vLLM has done to them when it computes "processed" log-probabilities.

    Read in vllm 0.32.0 (v1/sample/sampler.py): float32, then MinTokensLogitsProcessor sets the stop ids to -inf while fewer than
    `min_tokens` tokens are out, then a division by the temperature, then log_softmax. The learner must do the same: at another
    temperature, or without the mask (which gives the stop ids' probability to the others), the importance ratio would not be 1 before
    any update. A temperature of 0 is greedy sampling, whose log-probabilities vLLM computes undivided; below 0.01 it takes 0.01.

    Args:
        logits: [..., V] of any float type; not changed.
        temperature: at least 0.
        response_position: [...] index of the predicted token in its response, negative outside of it.
        min_tokens: tokens before the first stop token.
        stop_token_ids: all ids that end a response: vLLM's all_stop_token_ids, that is EOS and the generation config's.

    Returns:
        [..., V] float32 (float64 for float64). A label that is a stop id where none is allowed has the log-probability -inf.

    Raises:
        ValueError: a negative temperature, or a stop id outside of the vocabulary.
    """
    if not temperature >= 0:
        raise ValueError(f"a temperature must be at least 0, got {temperature}: change generator.temperature")
    logits = _at_least_float32(logits)
    if min_tokens > 0 and stop_token_ids:
        is_early = (response_position >= 0) & (response_position < min_tokens)
        is_stop = _one_hot_set(stop_token_ids, logits)
        logits = logits.masked_fill(is_early.unsqueeze(-1) & is_stop, -torch.inf)
    if temperature in (0, 1):
        return logits
    return logits / max(temperature, SMALLEST_TEMPERATURE)


def chunked_response_log_probs(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    labels: Tensor,
    response_position: Tensor,
    *,
    temperature: float,
    min_tokens: int,
    stop_token_ids: Collection[int],
    chunk_tokens: int,
    with_entropy: bool,
    entropy_gradient: bool = False,
    num_chunks: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the labels (and entropies) from hidden states, with the logits of one chunk of tokens alive at a time.

    Same values and gradients as without chunks. With gradients on, a chunk's logits are dropped after use and computed again in the
    backward pass (torch.utils.checkpoint): that costs one more run of the head and saves [N, V] floats.

    Args:
        hidden: [N, H], one row a label; rows outside of responses are best left out.
        head: [n, H] -> [n, V] logits; runs twice a chunk when training, so it must give the same both times (no dropout).
        labels: [N] long.
        response_position: [N] long, as in `PaddedBatch`.
        temperature, min_tokens, stop_token_ids: as in `adjust_logits`.
        chunk_tokens: rows a chunk, at least 1.
        with_entropy: also return the entropy of the distribution that is sampled from, after `adjust_logits`.
        entropy_gradient: let it carry a gradient (an entropy bonus needs one, and more memory); else the second run leaves it out.
        num_chunks: cut into exactly so many chunks, empty ones included, for ranks that must all run the head equally often (ZeRO 3).

    Returns:
        log_probs [N] and entropy [N] or None.
    """
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")

    def one_chunk(hidden: Tensor, labels: Tensor, response_position: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = adjust_logits(
            head(hidden),
            temperature=temperature,
            response_position=response_position,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
        )
        log_probs = selected_log_probs(logits, labels)
        # Last, and on detached logits: the checkpoint's second run stops as soon as it has what the gradient needs.
        return log_probs, token_entropy(logits if entropy_gradient else logits.detach()) if with_entropy else None

    run = partial(checkpoint, one_chunk, use_reentrant=False, preserve_rng_state=False) if torch.is_grad_enabled() else one_chunk
    num_chunks = num_chunks or max(1, math.ceil(len(labels) / chunk_tokens))
    chunks = zip(*(rows.tensor_split(num_chunks) for rows in (hidden, labels, response_position)), strict=True)
    log_probs, entropies = zip(*(run(*chunk) for chunk in chunks), strict=True)
    return torch.cat(log_probs), torch.cat(entropies) if with_entropy else None


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _one_hot_set(token_ids: Collection[int], logits: Tensor) -> Tensor:
    """[V] bool on the logits' device, true at the given ids."""
    vocabulary_size = logits.shape[-1]
    outside = sorted(token_id for token_id in token_ids if not 0 <= token_id < vocabulary_size)
    if outside:
        raise ValueError(f"stop ids {outside} are outside of the {vocabulary_size} ids of the model: check model.path's generation config")
    chosen = torch.zeros(vocabulary_size, dtype=torch.bool, device=logits.device)
    chosen[torch.tensor(sorted(token_ids), device=logits.device)] = True
    return chosen
