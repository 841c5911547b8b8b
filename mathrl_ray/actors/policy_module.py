"""The policy as the learner runs it: token ids in, log-probabilities and entropies of the response tokens out.

Called by the learner, which wraps it in DeepSpeed. Knows torch and a transformers model; no optimizer, no loss, no Ray.
"""

import torch
from transformers import PreTrainedModel

from mathrl_ray.core.logprobs import chunked_response_log_probs
from mathrl_ray.core.tokenization import PaddedBatch
from mathrl_ray.types import SamplingSettings


class PolicyModule(torch.nn.Module):
    """A causal language model whose head is applied to response tokens only, a chunk at a time.

    No attention mask is passed: rows are padded on the right, and with causal attention no real token sees what stands behind it.
    """

    def __init__(self, model: PreTrainedModel, chunk_tokens: int, *, entropy_gradient: bool = False) -> None:
        super().__init__()
        self.model = model
        self._chunk_tokens = chunk_tokens
        self._entropy_gradient = entropy_gradient

    def forward(self, batch: PaddedBatch, sampling: SamplingSettings, num_chunks: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (log_probs [B, T-1], entropy in nats [B, T-1]), float32, 0 outside the response.

        num_chunks: how often the head runs, where all ranks must agree on it; default: as often as chunk_tokens asks.
        """
        hidden = self.model.get_decoder()(input_ids=batch.input_ids, use_cache=False).last_hidden_state
        mask = batch.response_mask
        log_probs, entropy = chunked_response_log_probs(
            hidden[mask],
            self.model.get_output_embeddings(),
            batch.labels[mask],
            batch.response_position[mask],
            temperature=sampling.temperature,
            min_tokens=sampling.min_tokens,
            stop_token_ids=sampling.stop_token_ids,
            chunk_tokens=self._chunk_tokens,
            with_entropy=True,
            entropy_gradient=self._entropy_gradient,
            num_chunks=num_chunks,
        )
        assert entropy is not None
        zeros = torch.zeros(mask.shape, dtype=log_probs.dtype, device=mask.device)
        return zeros.masked_scatter(mask, log_probs), zeros.masked_scatter(mask, entropy)
