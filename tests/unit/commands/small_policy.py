"""A policy that learned nothing, small enough to train in a test, and what it says of single responses."""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from mathrl_ray.data.tiny_model import build_tokenizer


def write_model(folder):
    """The folder, with model and tokenizer in it."""
    torch.manual_seed(1)
    tokenizer = build_tokenizer(128)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=128, initializer_range=0.5,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def logprobs(model, trajectory, temperature):
    """[T] of a response, by the whole model on it alone."""
    ids = torch.tensor([[*trajectory.prompt_ids, *trajectory.completion.token_ids]])
    logits = model(ids).logits[0, len(trajectory.prompt_ids) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, len(trajectory.prompt_ids) :, None])[:, 0]
