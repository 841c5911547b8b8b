"""One rank's share of a batch: micro-batches in, gradients and totals out.

Called by learner.py, and by commands/replayed_step.py for a saved batch. Knows the engine and the losses' records; knows no stage and no
schedule. Every number that is returned is of the whole batch, the same on every rank.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from mathrl_ray.actors.process_group import ProcessGroup
from mathrl_ray.config import RecipeError
from mathrl_ray.core.batching import micro_batches, padding_fraction
from mathrl_ray.core.loss_batch import LossFunction, LossInput, LossResult, as_result, metric_shares, result_fault
from mathrl_ray.core.losses import aggregate, sft_loss
from mathrl_ray.core.tokenization import PaddedBatch, pad_batch, pad_response_values, unpad
from mathrl_ray.sections import GrpoSection
from mathrl_ray.types import ResponseStatistics, SamplingSettings, SftExample, Trajectory

LossOfRows = Callable[[Sequence[int], PaddedBatch, Tensor, Tensor], tuple[LossResult, dict[str, float]]]
"""(rows of the batch, the rows padded, log-probs, entropies) -> the loss, and what is added to the batch's totals."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass of one rank."""

    rows: tuple[int, ...]
    """Indices into the batch."""
    num_chunks: int
    """How often the head runs: as often as the largest of the micro-batches that other ranks run at the same time needs."""
    counts: bool
    """False for a pass that only keeps step with the other ranks: its loss is multiplied by 0."""


def rank_share(sequences: Sequence[SftExample], group: ProcessGroup, *, max_tokens: int, chunk_tokens: int) -> list[MicroBatch]:
    """This rank's micro-batches; each rank gets as many."""
    groups = micro_batches([num_tokens(sequence) for sequence in sequences], max_tokens, group.num_ranks)
    shortest = groups[0]
    share = []
    for start in range(0, len(groups), group.num_ranks):
        together = [rows or shortest for rows in groups[start : start + group.num_ranks]]
        longest = max(sum(len(sequences[row].response_ids) for row in rows) for rows in together)
        own = groups[start + group.rank]
        share.append(MicroBatch(tuple(own or shortest), num_chunks=max(1, math.ceil(longest / chunk_tokens)), counts=bool(own)))
    return share


@dataclass
class LearnerSteps:
    """What the steps of one stage share."""

    engine: Any
    group: ProcessGroup
    pad_id: int
    max_tokens: int
    """Padded tokens of one micro-batch."""
    chunk_tokens: int

    def accumulate(
        self, sequences: Sequence[SftExample], sampling: SamplingSettings, loss_of: LossOfRows
    ) -> tuple[dict[str, float], list[list[float]]]:
        """Forward and backward of a whole batch. Returns its totals, and each row's log-probabilities from this pass."""
        totals: dict[str, float] = defaultdict(float)
        logprobs: dict[int, list[float]] = {}
        for micro_batch in self._share(sequences):
            padded = self._pad(sequences, micro_batch)
            log_probs, entropy = self.engine(padded, sampling, micro_batch.num_chunks)
            result, shares = loss_of(micro_batch.rows, padded, log_probs, entropy)
            self.engine.backward(result.loss * float(micro_batch.counts))
            for name, value in {**shares, "loss": result.loss.item()}.items():
                totals[name] += value * micro_batch.counts
            if micro_batch.counts:
                logprobs |= dict(zip(micro_batch.rows, unpad(log_probs.detach(), padded), strict=True))
        merged = self._merge(logprobs)
        return self.group.sum(totals), [merged[row] for row in range(len(sequences))]

    @torch.no_grad()
    def statistics(self, module: Any, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        """Log-probabilities and mean entropies of responses under a module's present weights."""
        found: dict[int, ResponseStatistics] = {}
        for micro_batch in self._share(sequences):
            padded = self._pad(sequences, micro_batch)
            log_probs, entropy = module(padded, sampling, micro_batch.num_chunks)
            rows = zip(micro_batch.rows, unpad(log_probs, padded), unpad(entropy, padded), strict=True)
            found |= {row: ResponseStatistics(tuple(values), fmean(entropies)) for row, values, entropies in rows}
        merged = self._merge(found)
        return [merged[row] for row in range(len(sequences))]

    def padding(self, sequences: Sequence[SftExample]) -> dict[str, float]:
        """How the batch was cut, over all ranks."""
        lengths = [num_tokens(sequence) for sequence in sequences]
        groups = micro_batches(lengths, self.max_tokens, self.group.num_ranks)
        return {
            "num_sequences": len(sequences),
            "num_tokens": sum(lengths),
            "num_micro_batches": len(groups),
            "padding_fraction": padding_fraction(lengths, groups),
        }

    def _share(self, sequences: Sequence[SftExample]) -> list[MicroBatch]:
        return rank_share(sequences, self.group, max_tokens=self.max_tokens, chunk_tokens=self.chunk_tokens)

    def _pad(self, sequences: Sequence[SftExample], micro_batch: MicroBatch) -> PaddedBatch:
        return pad_batch([sequences[row] for row in micro_batch.rows], self.pad_id).to(self.engine.device)

    def _merge(self, of_rows: Mapping[int, Any]) -> dict[int, Any]:
        return {row: value for part in self.group.gather(dict(of_rows)) for row, value in part.items()}


def sft_loss_of(batch: Sequence[SftExample]) -> LossOfRows:
    """The mean negative log-likelihood of the batch's response tokens."""
    num_response_tokens = sum(len(example.response_ids) for example in batch)

    def loss_of(_: Sequence[int], padded: PaddedBatch, log_probs: Tensor, entropy: Tensor) -> tuple[LossResult, dict[str, float]]:
        per_token = sft_loss(log_probs)
        loss = aggregate(
            per_token, padded.response_mask, how="token", num_sequences=len(batch), num_tokens=num_response_tokens, constant=1.0
        )
        return LossResult(loss), {"entropy_nats": entropy.detach().sum().item() / num_response_tokens}

    return loss_of


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """The trajectories of one optimizer step, with what older or other weights say of their tokens."""

    trajectories: Sequence[Trajectory]
    proximal: Sequence[Sequence[float]] | None
    """[T] a trajectory; None where the learner itself is the proximal policy."""
    reference: Sequence[Sequence[float]] | None
    learner_version: int
    max_tokens: int

    def loss_input(self, rows: Sequence[int], padded: PaddedBatch, log_probs: Tensor, entropy: Tensor) -> LossInput:
        """The record that a loss sees, of some rows."""
        chosen = [self.trajectories[row] for row in rows]

        def padded_rows(values: Sequence[Sequence[float]]) -> Tensor:
            return pad_response_values(values, padded)

        return LossInput(
            learner_logprobs=log_probs,
            entropy=entropy,
            generator_logprobs=padded_rows([trajectory.completion.logprobs for trajectory in chosen]),
            proximal_logprobs=log_probs.detach() if self.proximal is None else padded_rows([self.proximal[row] for row in rows]),
            reference_logprobs=None if self.reference is None else padded_rows([self.reference[row] for row in rows]),
            advantages=torch.tensor([[trajectory.advantage] for trajectory in chosen], dtype=log_probs.dtype, device=log_probs.device),
            mask=padded.response_mask,
            policy_versions=padded_rows([list(token_versions(trajectory)) for trajectory in chosen]).long(),
            learner_version=self.learner_version,
            num_sequences=len(self.trajectories),
            num_tokens=sum(len(trajectory.completion.token_ids) for trajectory in self.trajectories),
            max_tokens=self.max_tokens,
        )


def policy_loss_of(batch: PolicyBatch, function: LossFunction) -> LossOfRows:
    """The loss of a batch of trajectories by one function, ours or the user's; what it logs is added to the batch's totals."""

    def loss_of(rows: Sequence[int], padded: PaddedBatch, log_probs: Tensor, entropy: Tensor) -> tuple[LossResult, dict[str, float]]:
        given = batch.loss_input(rows, padded, log_probs, entropy)
        result = as_result(function(given))
        return result, metric_shares({"entropy_nats": entropy, **result.metrics}, given)

    return loss_of


def minibatches(num_rows: int, grpo: GrpoSection, draw: random.Random) -> Iterator[list[int]]:
    """Rows of each optimizer step of one batch; shuffled when there is more than one, so that no step sees one prompt's siblings alone."""
    rows = list(range(num_rows))
    num_parts = min(grpo.minibatches, num_rows)
    ends = [round(num_rows * part / num_parts) for part in range(num_parts + 1)]
    for _ in range(grpo.epochs):
        if grpo.minibatches > 1:
            draw.shuffle(rows)
        yield from (rows[start:end] for start, end in pairwise(ends))


def mean_of_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over a batch's optimizer steps; skipped ones are counted, and left out of the gradient norm where another was not."""
    names = dict.fromkeys(name for step in steps for name in step)
    metrics = {name: fmean(step[name] for step in steps if name in step) for name in names}
    metrics["skipped_updates"] = sum(step["skipped_updates"] for step in steps)
    if norms := [step["grad_norm"] for step in steps if not step["skipped_updates"]]:
        metrics["grad_norm"] = fmean(norms)
    return metrics


def own_loss(function: LossFunction) -> LossFunction:
    """A loss of the user's own, whose faults are told in the user's words."""
    advice = "Try it with `python -m mathrl_ray check-loss`."

    def checked(given: LossInput) -> LossResult:
        try:
            result = as_result(function(given))
        except Exception as error:  # whatever a stranger's function raises, the person must hear which function it was
            raise RecipeError(f"loss.function raised {type(error).__name__}: {error}. {advice}") from error
        if fault := result_fault(result):
            raise RecipeError(f"loss.function: {fault}. {advice}")
        return result

    return checked


def token_versions(trajectory: Trajectory) -> Iterator[int]:
    """The policy_version of each response token."""
    for version, count in trajectory.completion.version_runs:
        yield from [version] * count


def example_of(trajectory: Trajectory) -> SftExample:
    return SftExample(prompt_ids=trajectory.prompt_ids, response_ids=trajectory.completion.token_ids)


def num_tokens(sequence: SftExample) -> int:
    return len(sequence.prompt_ids) + len(sequence.response_ids)
