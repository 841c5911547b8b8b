"""The learner: the policy that is trained, its optimizer, and the publication of its weights.

Wrapped by Ray in placement.py, seen by the driver as `interfaces.Learner`. Knows DeepSpeed and torch; knows no generator and no reward.
A loss is always divided by counts of the whole batch, so how the batch is cut into micro-batches changes nothing.
"""

import gc
import math
import os
import random
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from mathrl_ray.actors.model_folder import load_model, save_model
from mathrl_ray.config import Recipe
from mathrl_ray.core.batching import micro_batches, padding_fraction
from mathrl_ray.core.schedule import learning_rate_at
from mathrl_ray.core.statistics import mean_importance_ratio, mismatch_kl
from mathrl_ray.device import Device, attention_implementation
from mathrl_ray.types import PolicyUpdate, ResponseStatistics, SamplingSettings, SftExample, StageSettings, Trajectory, WeightManifest

SFT_SAMPLING = SamplingSettings(temperature=1.0, max_tokens=1)
"""Supervised learning uses the model's own distribution: no temperature, no masked stop ids."""


class Learner:
    """See `interfaces.Learner`; the methods are plain, Ray makes them asynchronous."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._block: Any = None
        self._optimizer_step = 0

    def preload(self, recipe: Recipe, device: Device) -> None:
        """Import the engine and join the process group, which takes seconds, while the driver still prepares."""
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
        import deepspeed
        import torch

        torch.set_num_threads(recipe.learner.num_threads)
        if not torch.distributed.is_initialized():
            deepspeed.init_distributed(device.communication_backend)

    def setup(self, recipe: Recipe, device: Device) -> dict[str, str]:
        """Get ready for `start_stage`. Returns facts for environment.json.

        Raises:
            ValueError: the recipe asks for an attention implementation that cannot work here.
        """
        self.preload(recipe, device)
        self._recipe, self._device = recipe, device
        self._attention, reason = attention_implementation(recipe.learner.attention, device.kind, recipe.model.dtype)
        return {"attention": self._attention, "attention_reason": reason}

    def start_stage(self, settings: StageSettings) -> None:
        """Load a model folder and begin a new optimizer and learning-rate schedule."""
        from mathrl_ray.actors.deepspeed_engine import build_engine

        self._close_engine()
        self._settings, self._optimizer_step = settings, 0
        self._random = random.Random(self._recipe.run.seed)
        model, self._tokenizer = load_model(settings.model_path, dtype=self._recipe.model.dtype, attention=self._attention)
        self._engine = build_engine(model, self._recipe.learner, dtype=self._recipe.model.dtype)

    def train_sft(self, batch: Sequence[SftExample]) -> dict[str, float]:
        """One optimizer step on the mean negative log-likelihood of the batch's response tokens."""
        from mathrl_ray.core.losses import aggregate, sft_loss

        num_tokens = sum(len(example.response_ids) for example in batch)
        groups = self._micro_batches(batch)
        losses, entropies = [], []
        for rows in groups:
            padded = self._pad([batch[row] for row in rows])
            log_probs, entropy = self._engine(padded, SFT_SAMPLING)
            loss = aggregate(
                sft_loss(log_probs), padded.response_mask, how="token", num_sequences=len(batch), num_tokens=num_tokens, constant=1.0
            )
            self._backward(loss)
            losses.append(loss.item())
            entropies.append(entropy.sum().item())
        return {
            "loss": sum(losses),
            "entropy_nats": sum(entropies) / num_tokens,
            **self._step(),
            **_batch_metrics(batch, groups),
        }

    def train_policy(self, batch: Sequence[Trajectory], sampling: SamplingSettings) -> PolicyUpdate:
        """The optimizer steps of one batch of trajectories.

        With one step a batch the proximal policy is the learner itself; with more, its log-probabilities are computed once, beforehand.
        """
        grpo = self._recipe.grpo
        examples = [_example(trajectory) for trajectory in batch]
        proximal: list[Sequence[float]] | None = None
        if grpo.epochs * grpo.minibatches > 1:
            proximal = [statistics.logprobs for statistics in self.response_statistics(examples, sampling)]
        steps: list[dict[str, float]] = []
        behaviour: Sequence[Sequence[float]] = proximal or ()
        for rows in self._minibatches(len(batch)):
            chosen = None if proximal is None else [proximal[row] for row in rows]
            metrics, log_probs = self._policy_step([batch[row] for row in rows], chosen, sampling)
            steps.append(metrics)
            behaviour = behaviour or log_probs
        generator_logprobs = [trajectory.completion.logprobs for trajectory in batch]
        metrics = {name: fmean(step[name] for step in steps) for name in steps[0]}
        metrics["importance_ratio_mean"] = mean_importance_ratio(behaviour, generator_logprobs)
        metrics["mismatch_kl"] = mismatch_kl(behaviour, generator_logprobs)
        return PolicyUpdate(metrics=metrics, learner_logprobs=tuple(map(tuple, behaviour)), num_optimizer_steps=len(steps))

    def _minibatches(self, num_rows: int) -> Iterator[list[int]]:
        """Rows of each optimizer step; shuffled when there is more than one, so that no step sees one prompt's siblings alone."""
        grpo = self._recipe.grpo
        rows = list(range(num_rows))
        size = math.ceil(num_rows / grpo.minibatches)
        for _ in range(grpo.epochs):
            if grpo.minibatches > 1:
                self._random.shuffle(rows)
            for start in range(0, num_rows, size):
                yield rows[start : start + size]

    def _policy_step(
        self, batch: Sequence[Trajectory], proximal: Sequence[Sequence[float]] | None, sampling: SamplingSettings
    ) -> tuple[dict[str, float], list[list[float]]]:
        """One optimizer step. Returns its metrics and the learner's log-probabilities from before it, in the batch's order."""
        import torch

        from mathrl_ray.core.losses import aggregate, policy_token_loss
        from mathrl_ray.core.tokenization import pad_response_values, unpad

        grpo = self._recipe.grpo
        examples = [_example(trajectory) for trajectory in batch]
        num_tokens = sum(len(example.response_ids) for example in examples)
        groups = self._micro_batches(examples)
        totals = dict.fromkeys(("loss", "entropy_nats", "clip_fraction"), 0.0)
        learner_logprobs: list[list[float]] = [[] for _ in batch]
        for rows in groups:
            padded = self._pad([examples[row] for row in rows])
            log_probs, entropy = self._engine(padded, sampling)
            advantages = torch.tensor([[batch[row].advantage] for row in rows], dtype=log_probs.dtype, device=log_probs.device)
            reference = log_probs.detach() if proximal is None else pad_response_values([proximal[row] for row in rows], padded)
            token_loss = policy_token_loss(grpo.loss, log_probs, reference, advantages, clip_low=grpo.clip_low, clip_high=grpo.clip_high)
            loss = aggregate(
                token_loss.loss,
                padded.response_mask,
                how=grpo.aggregation,
                num_sequences=len(batch),
                num_tokens=num_tokens,
                constant=float(self._recipe.generator.max_tokens),
            )
            self._backward(loss)
            totals["loss"] += loss.item()
            totals["entropy_nats"] += entropy.sum().item() / num_tokens
            totals["clip_fraction"] += (token_loss.clipped & padded.response_mask).sum().item() / num_tokens
            for row, values in zip(rows, unpad(log_probs.detach(), padded), strict=True):
                learner_logprobs[row] = values
        return {**totals, **self._step(), **_batch_metrics(examples, groups)}, learner_logprobs

    def response_statistics(self, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        """Log-probabilities and mean token entropy of given responses under the present weights; no gradient."""
        import torch

        from mathrl_ray.core.tokenization import unpad

        results: dict[int, ResponseStatistics] = {}
        with torch.no_grad():
            for rows in self._micro_batches(sequences):
                padded = self._pad([sequences[row] for row in rows])
                log_probs, entropy = self._engine.module(padded, sampling)
                for row, values, entropies in zip(rows, unpad(log_probs, padded), unpad(entropy, padded), strict=True):
                    results[row] = ResponseStatistics(logprobs=tuple(values), mean_token_entropy_nats=fmean(entropies))
        return [results[row] for row in range(len(sequences))]

    def publish(self, policy_version: int) -> WeightManifest:
        """Write the present weights into shared memory, in model.dtype and under their checkpoint names."""
        from mathrl_ray.weight_sync.shared_memory import SharedMemoryBlock

        parameters = dict(self._engine.module.model.named_parameters())
        if self._block is None:
            self._block = SharedMemoryBlock(parameters.items(), next(iter(parameters.values())).dtype)
        return self._block.write(((name, parameter.detach()) for name, parameter in parameters.items()), policy_version)

    def save(self, folder: str) -> None:
        """Write the model and its tokenizer as a folder that AutoModelForCausalLM and vLLM open; whole or not at all."""
        save_model(self._engine.module.model, self._tokenizer, Path(folder))

    def shutdown(self) -> None:
        self._close_engine()
        if self._block is not None:
            self._block.close()
            self._block = None

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.destroy()
            self._engine = None
            gc.collect()  # the engine and its module point at each other; the next model needs the memory now

    def _micro_batches(self, sequences: Sequence[SftExample]) -> list[list[int]]:
        return micro_batches([_num_tokens(sequence) for sequence in sequences], self._recipe.learner.micro_batch_tokens)

    def _pad(self, sequences: Sequence[SftExample]) -> Any:
        from mathrl_ray.core.tokenization import pad_batch

        pad_id = self._tokenizer.pad_token_id if self._tokenizer.pad_token_id is not None else self._tokenizer.eos_token_id
        return pad_batch(sequences, pad_id).to(self._engine.device)

    def _backward(self, loss: Any) -> None:
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"the loss is {loss.item()} in optimizer step {self._optimizer_step}: lower learner.learning_rate")
        self._engine.backward(loss, scale_wrt_gas=False)

    def _step(self) -> dict[str, float]:
        """Step the optimizer with the schedule's learning rate; returns the rate and the gradient's norm before clipping."""
        learner = self._recipe.learner
        learning_rate = learning_rate_at(
            self._optimizer_step,
            peak=self._settings.learning_rate,
            num_steps=self._settings.num_optimizer_steps,
            warmup_steps=learner.warmup_steps,
            schedule=learner.schedule,
        )
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        grad_norm = float(self._engine.get_global_grad_norm())
        if not math.isfinite(grad_norm):
            raise FloatingPointError(f"the gradient's norm is {grad_norm} in optimizer step {self._optimizer_step}")
        self._optimizer_step += 1
        return {"learning_rate": learning_rate, "grad_norm": grad_norm}


def _example(trajectory: Trajectory) -> SftExample:
    return SftExample(prompt_ids=trajectory.prompt_ids, response_ids=trajectory.completion.token_ids)


def _num_tokens(sequence: SftExample) -> int:
    return len(sequence.prompt_ids) + len(sequence.response_ids)


def _batch_metrics(batch: Sequence[SftExample], groups: Sequence[Sequence[int]]) -> dict[str, float]:
    lengths = [_num_tokens(example) for example in batch]
    return {
        "num_sequences": len(batch),
        "num_tokens": sum(lengths),
        "num_micro_batches": len(groups),
        "padding_fraction": padding_fraction(lengths, groups),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
