"""One training step of a run again, on its saved batch: every loss at the same weights, and the run's own moves them on.

Called by replay.py. The parts of a step are the learner's (learner_steps.py, learner.py's train_policy); here one process takes them, in
plain PyTorch, and asks several losses before each update:

    weights before the step -> update 1: each loss's figures and gradient on its rows -> the run's own gradient moves the weights
                            -> update 2: the same at the new weights (grpo.minibatches, grpo.epochs) -> ...

A loss that trains on other rows than the run did (another baseline drops other groups) has, in each update, those of the run's rows that it
trains on, and its equal part of the rest.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from mathrl_ray.actors.learner_steps import LearnerSteps, PolicyBatch, example_of, mean_of_steps, minibatches, policy_loss_of
from mathrl_ray.actors.model_folder import load_model, with_adapters
from mathrl_ray.actors.plain_engine import PlainEngine
from mathrl_ray.actors.policy_module import PolicyModule
from mathrl_ray.actors.process_group import ProcessGroup
from mathrl_ray.actors.trainer_state import read_checkpoint
from mathrl_ray.commands.named_losses import NamedLoss
from mathrl_ray.commands.replay_origin import Origin
from mathrl_ray.commands.saved_batch import Key, SavedStep, key_of
from mathrl_ray.config import Recipe
from mathrl_ray.core.gradient_comparison import Cosines, cosines, mean_cosines, norm
from mathrl_ray.core.loss_batch import LossFunction
from mathrl_ray.core.statistics import max_abs_difference, mean_importance_ratio, mismatch_kl
from mathrl_ray.device import DeviceKind, attention_implementation
from mathrl_ray.policy import stop_token_ids
from mathrl_ray.types import SamplingSettings, Trajectory

Logprobs = Mapping[Key, Sequence[float]]


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """What the losses say of one step."""

    figures: list[dict[str, float]]
    """Of each loss, the run's own first; empty where it drops every response. Means over the step's updates, as metrics.jsonl has them."""
    cosines: Cosines
    """Between the gradients of those with figures, in their order."""
    batch: dict[str, float]
    """importance_ratio_mean and mismatch_kl: of the weights before the step against the generator, whatever the loss."""
    logprob_gap: float
    """Largest difference, in nats, between the log-probs of the batch now and those that the run has saved."""


@dataclass
class Replayer:
    """A policy that stands before a step of a run, and can be moved on from step to step."""

    engine: PlainEngine
    steps: LearnerSteps
    stop_token_ids: tuple[int, ...]
    reference: Any
    """The stage's start model, where a loss has a KL; else None."""
    draw: random.Random
    """What shuffles minibatches."""
    num_updates: int = 0
    """That the stage has applied so far."""

    @classmethod
    def begin(cls, recipe: Recipe, origin: Origin, *, reference: Path | None, entropy_gradient: bool) -> "Replayer":
        """Open the weights.

        Args:
            recipe: of the first step to come.
            origin: where they are.
            reference: the stage's start model, where some loss needs it.
            entropy_gradient: whether some loss has an entropy bonus.
        """
        transformers_logging.disable_progress_bar()  # its bars would stand in the tables
        kind: DeviceKind = "cuda" if recipe.device.kind != "cpu" and torch.cuda.is_available() else "cpu"
        learner = recipe.learner.model_copy(update={"lora_rank": 0}) if origin.is_given else recipe.learner
        torch.set_num_threads(learner.num_threads)  # as the run had it: sums in another order round otherwise
        torch.manual_seed(recipe.run.seed)  # adapters begin at random
        model, tokenizer = _model(recipe, origin.folder, kind)
        ids = tuple(sorted(stop_token_ids(model, tokenizer)))
        module = PolicyModule(with_adapters(model, learner), learner.logits_chunk_tokens, entropy_gradient=entropy_gradient)
        engine = PlainEngine(module, kind)
        pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        steps = LearnerSteps(engine, ProcessGroup(0, 1), pad_id or 0, learner.micro_batch_tokens, learner.logits_chunk_tokens)
        older = None if reference is None else PolicyModule(_model(recipe, reference, kind)[0].to(kind).eval(), learner.logits_chunk_tokens)
        replayer = cls(engine, steps, ids, older, random.Random(recipe.run.seed))
        if origin.checkpoint is not None:
            counters = read_checkpoint(origin.checkpoint, engine, rank=0)
            replayer.num_updates = counters.optimizer_step
            replayer.draw.setstate(counters.random_state)
        return replayer

    def replay(
        self, step: SavedStep, recipe: Recipe, losses: Sequence[NamedLoss], rates: Sequence[float], *, in_one: bool = False
    ) -> ReplayedStep:
        """All losses on a step's batch; the first one moves the weights.

        Args:
            step: what was saved.
            recipe: of this step.
            losses: the run's own first.
            rates: a learning rate an update; where there is none, the weights stay as they are behind that update.
            in_one: take the whole batch as one update.
        """
        max_tokens = recipe.generator.max_tokens
        batches = [step.trained if each.advantage is None else step.batch_of(each.advantage, max_tokens) for each in losses]
        all_rows = list(range(len(batches[0])))
        parts = [all_rows] if in_one else list(minibatches(len(all_rows), recipe.grpo, self.draw))
        of_updates = updates_of(batches, parts, 1 if in_one else recipe.grpo.minibatches)
        asked = _Asked(self, step, recipe, losses, [each.function() for each in losses])
        behaviour = asked.logprobs(self.engine.module, batches)
        proximal = behaviour if len(of_updates) > 1 else None
        reference = None if self.reference is None else asked.logprobs(self.reference, batches)
        figures: list[list[dict[str, float]]] = [[] for _ in losses]
        angles = []
        for number, of_losses in enumerate(of_updates):
            gradients = [asked.figures(index, batch, proximal, reference) for index, batch in enumerate(of_losses)]
            for found, (numbers, _) in zip(figures, gradients, strict=True):
                found += [numbers] if numbers else []
            angles.append(cosines([gradient for _, gradient in gradients]))
            if number < len(rates) and (own := gradients[0])[1] is not None:
                self.num_updates += self.engine.apply(own[1], rates[number], recipe.learner)
        return asked.result(
            [mean_of_steps(found) | _counts(batch) if found else {} for found, batch in zip(figures, batches, strict=True)],
            mean_cosines(angles),
            behaviour,
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    """The losses that a replayer is asked for on one step."""

    replayer: Replayer
    step: SavedStep
    recipe: Recipe
    losses: Sequence[NamedLoss]
    functions: Sequence[LossFunction]

    @property
    def sampling(self) -> SamplingSettings:
        generator = self.recipe.generator
        return SamplingSettings(
            generator.temperature, generator.max_tokens, generator.min_tokens, stop_token_ids=self.replayer.stop_token_ids
        )

    def figures(
        self, index: int, batch: Sequence[Trajectory], proximal: Logprobs | None, reference: Logprobs | None
    ) -> tuple[dict[str, float], list[torch.Tensor] | None]:
        """One loss's numbers and gradient on its rows of one update; ({}, None) without rows."""
        if not batch:
            return {}, None
        older = reference if self.losses[index].loss.kl_coefficient > 0 else None
        chosen = [None if values is None else [values[key_of(each)] for each in batch] for values in (proximal, older)]
        part = PolicyBatch(batch, chosen[0], chosen[1], self.step.learner_version, self.recipe.generator.max_tokens)
        loss_of = policy_loss_of(part, self.functions[index])
        totals, _ = self.replayer.steps.accumulate([example_of(each) for each in batch], self.sampling, loss_of)
        gradient = self.replayer.engine.take_gradient()
        length = norm(gradient)
        return {**totals, "grad_norm": length, "skipped_updates": float(not isfinite(length))}, gradient

    def logprobs(self, module: Any, batches: Sequence[Sequence[Trajectory]]) -> dict[Key, tuple[float, ...]]:
        """Of the run's own batch, cut as it was then, and of what only other losses train on."""
        own = {key_of(each): each for each in batches[0]}
        others = {key_of(each): each for batch in batches[1:] for each in batch if key_of(each) not in own}
        found: dict[Key, tuple[float, ...]] = {}
        for part in (own, others):
            if part:
                statistics = self.replayer.steps.statistics(module, [example_of(each) for each in part.values()], self.sampling)
                found |= {key: each.logprobs for key, each in zip(part, statistics, strict=True)}
        return found

    def result(self, figures: list[dict[str, float]], angles: Cosines, behaviour: Logprobs) -> ReplayedStep:
        named = [index for index, found in enumerate(figures) if found]
        own = [each for each in self.step.trained if key_of(each) in self.step.learner_logprobs]
        now, generator = [behaviour[key_of(each)] for each in own], [each.completion.logprobs for each in own]
        return ReplayedStep(
            figures=figures,
            cosines=[[angles[row][column] for column in named] for row in named],
            batch={"importance_ratio_mean": mean_importance_ratio(now, generator), "mismatch_kl": mismatch_kl(now, generator)},
            logprob_gap=max_abs_difference(now, [self.step.learner_logprobs[key_of(each)] for each in own]),
        )


def _counts(batch: Sequence[Trajectory]) -> dict[str, float]:
    return {"num_responses": len(batch), "num_response_tokens": sum(len(each.completion.token_ids) for each in batch)}


def updates_of(batches: Sequence[Sequence[Trajectory]], parts: Sequence[Sequence[int]], per_epoch: int) -> list[list[list[Trajectory]]]:
    """[updates][losses] the rows that each loss has in each update.

    Args:
        batches: of each loss, the run's own first.
        parts: rows of the run's own batch, an update each.
        per_epoch: updates that go over the batch once.
    """
    own = [key_of(each) for each in batches[0]]
    per_epoch = min(per_epoch, len(own))
    known = set(own)
    rest = [[each for each in batch if key_of(each) not in known] for batch in batches]
    updates = []
    for number, rows in enumerate(parts):
        chosen = [own[row] for row in rows]
        of_losses = []
        for batch, extra in zip(batches, rest, strict=True):
            by_key = {key_of(each): each for each in batch}
            start, end = list(pairwise(round(len(extra) * part / per_epoch) for part in range(per_epoch + 1)))[number % per_epoch]
            of_losses.append([by_key[key] for key in chosen if key in by_key] + extra[start:end])
        updates.append(of_losses)
    return updates


def _model(recipe: Recipe, folder: Path, kind: DeviceKind) -> tuple[Any, Any]:
    asked = recipe.learner.attention
    attention, _ = attention_implementation("auto" if kind == "cpu" and asked == "flash_attention_2" else asked, kind, recipe.model.dtype)
    return load_model(str(folder), dtype=recipe.model.dtype, attention=attention, trust_remote_code=recipe.model.trust_remote_code)
