"""The learner: the policy that is trained, its optimizer, and the publication of its weights.

Wrapped by Ray in placement.py, seen by the driver as `interfaces.Learner`. Knows DeepSpeed and torch; knows no generator and no reward.
With learner.num_ranks = N there are N of these, and the driver calls each method on all at once with the same arguments; each takes its
share of every batch. A loss is always divided by counts of the whole batch, so how the batch is cut changes nothing.
"""

import gc
import random
import time
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from mathrl_ray.actors.learner_dump import write_dump
from mathrl_ray.actors.model_folder import load_model, save_model, with_adapters
from mathrl_ray.actors.process_group import ProcessGroup, Rendezvous, free_port
from mathrl_ray.actors.publishing import Publisher, go_through, publisher_for
from mathrl_ray.actors.watchdog import Watchdog
from mathrl_ray.config import Recipe, with_changes
from mathrl_ray.core.schedule import learning_rate_at
from mathrl_ray.core.statistics import mean_importance_ratio, mismatch_kl
from mathrl_ray.core.throughput import peak_flops, training_flops
from mathrl_ray.custom import load_function
from mathrl_ray.device import Device, attention_implementation, device_name, limit_gpu_memory, peak_memory_gib, release_cached_memory
from mathrl_ray.types import (
    OWN_DISTRIBUTION,
    PolicyUpdate,
    ResponseStatistics,
    SamplingSettings,
    SftExample,
    StageSettings,
    Trajectory,
    WeightManifest,
    WeightMeeting,
)


class Learner:
    """See `interfaces.Learner`; the methods are plain, Ray makes them asynchronous."""

    def __init__(self, rank: int = 0, num_ranks: int = 1) -> None:
        self._group = ProcessGroup(rank, num_ranks)
        self._engine: Any = None
        self._steps: Any = None
        self._reference: Any = None
        self._average: Any = None
        self._publisher: Publisher | None = None
        self._watchdog: Watchdog | None = None
        self._address = "127.0.0.1"
        self._optimizer_step = 0
        self._policy_version = 0
        self._skipped_in_a_row = 0

    def preload(self, recipe: Recipe, device: Device, rendezvous: Rendezvous | None = None) -> None:
        """Import the engine and meet the other ranks, which takes seconds, while the driver still prepares.

        rendezvous: where the ranks meet; needed only where there are several.
        """
        import torch

        from mathrl_ray.weight_sync.shared_memory import SHARED_MEMORY_FOLDER, block_prefix

        if self._watchdog is None:
            self._watchdog = Watchdog(patterns=[f"{SHARED_MEMORY_FOLDER}/{block_prefix()}*"])
        torch.set_num_threads(recipe.learner.num_threads)
        place = rendezvous or Rendezvous(self._address, free_port())
        self._address = place.address
        self._group.join(place, device.communication_backend, max(recipe.learner.limit_s, recipe.driver.start_limit_s))
        self._watchdog.note()  # ranks may share memory from now on

    def setup(self, recipe: Recipe, device: Device) -> dict[str, str]:
        """Get ready for `start_stage`, after `preload`. Returns facts for environment.json.

        Raises:
            ValueError: the recipe asks for an attention implementation that cannot work here, or for a loss that cannot be loaded.
        """
        self._given_recipe, self._recipe, self._device = recipe, recipe, device
        self._attention, reason = attention_implementation(recipe.learner.attention, device.kind, recipe.model.dtype)
        self._loss = self._loss_function()
        self._publisher = publisher_for(
            device.weight_transport,
            rank=self._group.rank,
            dtype=recipe.model.dtype,
            host=self._address,
            limit_s=recipe.driver.sync_limit_s,
        )
        return {"attention": self._attention, "attention_reason": reason}

    def _loss_function(self) -> Any:
        from functools import partial

        from mathrl_ray.actors.learner_steps import own_loss
        from mathrl_ray.core.losses import policy_loss

        settings = self._recipe.loss
        if settings.function:
            return own_loss(load_function(settings.function, key="loss.function", kwargs=settings.kwargs))
        return partial(policy_loss, settings=settings)

    def start_stage(self, settings: StageSettings) -> None:
        """Load a model folder and begin a new optimizer and learning-rate schedule."""
        import torch

        from mathrl_ray.actors.deepspeed_engine import Engine
        from mathrl_ray.actors.learner_steps import LearnerSteps
        from mathrl_ray.actors.policy_module import PolicyModule
        from mathrl_ray.actors.weight_average import WeightAverage

        # Not in `setup`: the first call to the GPU takes memory of it, and a generator that starts meanwhile would measure that.
        limit_gpu_memory(self._device, self._given_recipe.generator.share_left)
        self._close_engine()
        recipe = with_changes(self._given_recipe, settings.changes) if settings.changes else self._given_recipe
        if recipe is not self._recipe:
            self._recipe = recipe
            self._loss = self._loss_function()
        learner, loss, seed = self._recipe.learner, self._recipe.loss, self._recipe.run.seed
        self._settings, self._optimizer_step, self._skipped_in_a_row = settings, settings.first_step, 0
        self._random = random.Random(seed)
        torch.manual_seed(seed)  # adapters begin at random, and must be the same on every rank
        model, self._tokenizer = self._load_model(settings.model_path)
        self._count_flops(model)
        model = with_adapters(model, learner)
        module = PolicyModule(model, learner.logits_chunk_tokens, entropy_gradient=loss.entropy_coefficient > 0 or bool(loss.function))
        self._engine = Engine(module, learner, dtype=self._recipe.model.dtype, num_ranks=self._group.num_ranks)
        self._average = WeightAverage(learner) if learner.average != "none" else None
        self._reference = self._load_reference() if loss.kl_coefficient > 0 else None
        pad_id = self._tokenizer.pad_token_id if self._tokenizer.pad_token_id is not None else self._tokenizer.eos_token_id
        self._steps = LearnerSteps(self._engine, self._group, pad_id or 0, learner.micro_batch_tokens, learner.logits_chunk_tokens)

    def _load_reference(self) -> Any:
        """A second copy of the start model, on this rank's device, for the KL."""
        from mathrl_ray.actors.policy_module import PolicyModule

        model, _ = self._load_model(self._settings.reference_path or self._settings.model_path)
        return PolicyModule(model.to(self._engine.device).eval(), self._recipe.learner.logits_chunk_tokens)

    def _load_model(self, folder: str) -> tuple[Any, Any]:
        """A model and its tokenizer."""
        asked = self._recipe.model
        return load_model(folder, dtype=asked.dtype, attention=self._attention, trust_remote_code=asked.trust_remote_code)

    def _count_flops(self, model: Any) -> None:
        self._num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self._num_layers, self._hidden_size = model.config.num_hidden_layers, model.config.hidden_size

    def train_sft(self, batch: Sequence[SftExample]) -> dict[str, float]:
        """One optimizer step on the mean negative log-likelihood of the batch's response tokens."""
        from mathrl_ray.actors.learner_steps import sft_loss_of

        began = time.monotonic()
        totals, _ = self._steps.accumulate(batch, OWN_DISTRIBUTION, sft_loss_of(batch))
        metrics = {**totals, **self._step(totals, batch), **self._steps.padding(batch)}
        return metrics | self._throughput(metrics["num_tokens"], len(batch), time.monotonic() - began)

    def train_policy(self, batch: Sequence[Trajectory], sampling: SamplingSettings) -> PolicyUpdate:
        """The optimizer steps of one batch of trajectories.

        With one step a batch the proximal policy is the learner itself; with more, its log-probabilities are computed once, beforehand.
        """
        from mathrl_ray.actors.learner_steps import PolicyBatch, example_of, mean_of_steps, minibatches

        began, grpo, max_tokens = time.monotonic(), self._recipe.grpo, self._recipe.generator.max_tokens
        examples = [example_of(trajectory) for trajectory in batch]
        proximal = self._logprobs(self._engine.module, examples, sampling) if grpo.updates_per_step > 1 else None
        reference = None if self._reference is None else self._logprobs(self._reference, examples, sampling)
        steps: list[dict[str, float]] = []
        behaviour: Sequence[Sequence[float]] = proximal or ()
        for rows in minibatches(len(batch), grpo, self._random):
            chosen = [None if values is None else [values[row] for row in rows] for values in (proximal, reference)]
            part = PolicyBatch([batch[row] for row in rows], chosen[0], chosen[1], self._policy_version, max_tokens)
            metrics, log_probs = self._policy_step(part, sampling)
            steps.append(metrics)
            behaviour = behaviour or log_probs
        num_tokens = sum(step["num_tokens"] for step in steps)
        metrics = mean_of_steps(steps) | self._throughput(num_tokens, len(batch) * grpo.epochs, time.monotonic() - began)
        generator_logprobs = [trajectory.completion.logprobs for trajectory in batch]
        metrics["importance_ratio_mean"] = mean_importance_ratio(behaviour, generator_logprobs)
        metrics["mismatch_kl"] = mismatch_kl(behaviour, generator_logprobs)
        num_applied = len(steps) - int(metrics["skipped_updates"])
        return PolicyUpdate(metrics=metrics, learner_logprobs=tuple(map(tuple, behaviour)), num_optimizer_steps=num_applied)

    def _policy_step(self, batch: Any, sampling: SamplingSettings) -> tuple[dict[str, float], list[list[float]]]:
        """One optimizer step. Returns its metrics and the learner's log-probabilities from before it, in the batch's order."""
        from mathrl_ray.actors.learner_steps import example_of, policy_loss_of

        examples = [example_of(trajectory) for trajectory in batch.trajectories]
        totals, logprobs = self._steps.accumulate(examples, sampling, policy_loss_of(batch, self._loss))
        return {**totals, **self._step(totals, batch.trajectories), **self._steps.padding(examples)}, logprobs

    def _step(self, totals: Mapping[str, float], batch: Sequence[Any]) -> dict[str, float]:
        """Step the optimizer with the schedule's learning rate, or skip it where loss or gradient is no number.

        Raises:
            FloatingPointError: learner.max_skipped_steps updates in a row were skipped.
        """
        learner, num_steps = self._recipe.learner, self._settings.num_optimizer_steps
        learning_rate = learning_rate_at(
            self._optimizer_step,
            peak=self._settings.learning_rate,
            num_steps=num_steps,
            warmup_steps=learner.warmup_steps or round(learner.warmup_fraction * num_steps),
            schedule=learner.schedule,
        )
        result = self._engine.step(learning_rate)
        if result.applied:
            self._optimizer_step, self._skipped_in_a_row = self._optimizer_step + 1, 0
            if self._average is not None:
                self._average.after_update(self._optimizer_step, self._engine)
        else:
            self._skipped_in_a_row += 1
            self._report_skip(totals, batch)
        return {"learning_rate": learning_rate, "grad_norm": result.grad_norm, "skipped_updates": float(not result.applied)}

    def _report_skip(self, totals: Mapping[str, float], batch: Sequence[Any]) -> None:
        limit, own = self._recipe.learner.max_skipped_steps, self._recipe.loss.function
        name = f"{self._settings.stage}-update-{self._optimizer_step}-skip-{self._skipped_in_a_row}.json"
        dump = Path(self._settings.dump_folder) / name if self._settings.dump_folder else None
        if dump and self._group.rank == 0:
            write_dump(dump, totals, batch)
        if self._skipped_in_a_row >= limit:
            remedy = f"lower the learning rate ({self._settings.learning_rate:g}) or learner.max_grad_norm"
            raise FloatingPointError(
                f"{self._skipped_in_a_row} updates in a row had a loss or gradient that is no finite number (the last loss: "
                f"{totals['loss']}), which is learner.max_skipped_steps = {limit}: {remedy}{', or look at loss.function' if own else ''}. "
                f"The batches: {dump.parent if dump else 'not kept'}"
            )

    def response_statistics(self, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        """Log-probabilities and mean token entropy of given responses under the present weights; no gradient."""
        found: list[ResponseStatistics] = self._steps.statistics(self._engine.module, sequences, sampling)
        return found

    def _logprobs(self, module: Any, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[tuple[float, ...]]:
        return [statistics.logprobs for statistics in self._steps.statistics(module, sequences, sampling)]

    def invite(self, num_generators: int) -> WeightMeeting:
        """Say where generators meet the learner, where the transport needs it; at once."""
        return self._publishing.invite(num_generators)

    def meet(self, meeting: WeightMeeting) -> None:
        """Wait for the generators there."""
        self._publishing.meet(meeting, self._engine)

    def publish(self, policy_version: int) -> WeightManifest | None:
        """Name the present weights `policy_version`, in model.dtype and under their checkpoint names. None on other ranks than the first.

        Shared memory is written here, in place: every generator must have applied what was published before.
        """
        self._policy_version = policy_version
        release_cached_memory(self._device)
        return self._publishing.publish(policy_version, self._engine)

    def release_memory(self) -> None:
        """Give back what is kept for later of a GPU that the generator shares: one that starts wants its share to be free."""
        release_cached_memory(self._device)

    def published_block(self, manifest: WeightManifest) -> tuple[int, Any]:
        """(policy_version, bytes [num_bytes] uint8) of what was published, for generators that cannot see this machine's shared memory.

        Raises:
            BlockError: it is not there any more, or of another version.
        """
        from mathrl_ray.weight_sync.carried_block import block_bytes

        return manifest.policy_version, block_bytes(manifest)

    def send_weights(self, manifest: WeightManifest) -> None:
        """Send what was published while the generators apply it, where the transport does that."""
        self._publishing.send(manifest)

    @property
    def _publishing(self) -> Publisher:
        assert self._publisher is not None, "setup() comes first"
        return self._publisher

    def use_average(self) -> dict[str, float]:
        """Put the average of the stage's weights in their place; see `interfaces.Learner`."""
        if self._average is None or not self._average.sets:
            return {}
        num_averaged = self._average.num_averaged
        sums = self._group.sum(self._average.put_in_place(self._engine))
        distance, size = sqrt(sums["difference"]), sqrt(sums["last"])
        return {"num_averaged": num_averaged, "average_distance": distance, "average_relative_distance": distance / size if size else 0.0}

    def save(self, folder: str) -> None:
        """Write the model and its tokenizer as a folder that AutoModelForCausalLM and vLLM open; whole or not at all."""
        from mathrl_ray.actors.trainer_state import weight_plans

        if self._group.rank != 0:
            go_through(self._engine)
            return
        plans = weight_plans(self._engine, self._recipe.model.dtype)
        save_model(self._engine.module.model, self._tokenizer, Path(folder), plans, self._engine.weights())

    def save_checkpoint(self, folder: str) -> dict[str, float]:
        """Write model and trainer state into an empty folder, all ranks together, so that `load_checkpoint` goes on from here.

        Returns:
            checkpoint_bytes, and checkpoint_memory_gib: how much larger this process got meanwhile, at most.
        """
        from mathrl_ray.actors.trainer_state import Counters, write_checkpoint

        rank, dtype, average = self._group.rank, self._recipe.model.dtype, self._average
        kept = (average.kind, len(average.sets), average.num_taken) if average else ("none", 0, 0)
        counters = Counters(self._optimizer_step, self._policy_version, self._skipped_in_a_row, self._random.getstate(), *kept)
        return write_checkpoint(Path(folder), self._engine, self._tokenizer, counters, rank=rank, dtype=dtype, average=average)

    def load_checkpoint(self, folder: str) -> None:
        """After `start_stage` with the settings of the stage that was saved: go on from where it was.

        Raises:
            ValueError: the checkpoint is of another model, or of other trained weights.
        """
        from mathrl_ray.actors.trainer_state import read_checkpoint

        counters = read_checkpoint(Path(folder), self._engine, rank=self._group.rank, average=self._average)
        self._optimizer_step, self._policy_version = counters.optimizer_step, counters.policy_version
        self._skipped_in_a_row = counters.skipped_in_a_row
        self._random.setstate(counters.random_state)

    def shutdown(self) -> None:
        self._close_engine()
        if self._publisher is not None:
            self._publisher.close()

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = self._steps = self._reference = self._average = None
            gc.collect()  # the engine and its module point at each other; the next model needs the memory now

    def _throughput(self, num_tokens: float, num_sequences: int, seconds: float) -> dict[str, float]:
        """Speed over all ranks, and this rank's memory."""
        metrics = {"train_tokens_per_s": num_tokens / seconds, "learner_peak_memory_gib": peak_memory_gib(self._device.kind)}
        if peak := peak_flops(device_name(self._device.kind)):
            mean_length, frozen = num_tokens / num_sequences, self._recipe.learner.lora_rank > 0
            flops = training_flops(self._num_parameters, self._num_layers, self._hidden_size, int(num_tokens), mean_length, frozen=frozen)
            metrics["mfu"] = flops / seconds / (peak * self._group.num_ranks)
        return metrics
