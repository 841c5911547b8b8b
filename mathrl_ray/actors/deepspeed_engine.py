"""A DeepSpeed engine around the policy: gradients, optimizer steps that a non-finite gradient cannot take, and the whole weights.

Called by learner.py only; with process_group.py the one file that imports DeepSpeed.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)

from mathrl_ray.actors.policy_module import PolicyModule
from mathrl_ray.sections import LearnerSection

MASTER, MOMENTS = "master", ("exp_avg", "exp_avg_sq")
"""What is kept of a trained weight: its float32 value, and Adam's two moments."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of one optimizer step."""

    applied: bool
    """False where the gradient was not finite on some rank: no weight and no moment has changed on any."""
    grad_norm: float
    """Over all ranks, before clipping; inf where it was not finite."""


class Engine:
    """The policy with its optimizer, as one rank holds it. All ranks call each method equally often, and together."""

    def __init__(self, module: PolicyModule, settings: LearnerSection, *, dtype: str, num_ranks: int) -> None:
        self._num_ranks, self._divides_weights = num_ranks, settings.zero_stage == 3
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay)
        self._engine, _, _, _ = deepspeed.initialize(
            model=module, optimizer=optimizer, config=engine_config(settings, dtype), dist_init_required=False
        )

    @property
    def device(self) -> torch.device:
        return torch.device(self._engine.device)

    @property
    def module(self) -> PolicyModule:
        module = self._engine.module
        assert isinstance(module, PolicyModule)
        return module

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs, entropy = self._engine(*arguments)
        return log_probs, entropy

    def backward(self, loss: torch.Tensor) -> None:
        """Add a micro-batch's gradient. A loss that is no number makes the step's whole gradient one, so that `step` skips it.

        DeepSpeed averages over ranks what is to be a sum, hence the factor.
        """
        loss = loss * self._num_ranks
        self._engine.backward(loss if math.isfinite(loss.item()) else loss * math.nan, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> StepResult:
        """One optimizer step of all gradients since the last one, or none where they are not finite; they are gone afterwards."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        skipped = bool(self._engine.optimizer.overflow)
        grad_norm = float(self._engine.get_global_grad_norm())
        return StepResult(applied=not skipped, grad_norm=math.inf if skipped else grad_norm)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight whole, detached, under its checkpoint name, LoRA merged; valid until the next one is asked for.

        Under ZeRO 3 every rank gets every weight, one at a time, so all ranks must go through them together.
        """
        for name, parameter, adapter in _named_weights(self.module.model):
            with _gathered([parameter, *([adapter.down, adapter.up] if adapter else [])]):
                yield name, _merged(parameter.detach(), adapter)

    def weight_shapes(self) -> list[tuple[str, torch.Tensor]]:
        """Names with empty tensors of the weights' whole shapes."""
        return [
            (name, torch.empty(getattr(parameter, "ds_shape", parameter.shape), device="meta"))
            for name, parameter, _ in _named_weights(self.module.model)
        ]

    @property
    def num_optimizer_steps(self) -> int:
        """Steps that Adam has taken, which its bias correction counts; 0 where there are no moments yet."""
        return next((int(state["step"]) for state in self._optimizer.state.values() if "step" in state), 0)

    def trainer_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and whole shape of all that `trainer_tensors` gives, in its order: <what>/<parameter>."""
        kinds = (MASTER, *MOMENTS) if self.num_optimizer_steps else (MASTER,)
        return [(f"{kind}/{name}", _whole_shape(parameter)) for name, parameter in self._trained() for kind in kinds]

    def trainer_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every trained weight's float32 value and moments, each whole, one at a time. All ranks go through them together."""
        by_name = dict(self._trained())
        for label, shape in self.trainer_shapes():
            kind, _, name = label.partition("/")
            parameter = by_name[name]
            value = safe_get_full_fp32_param(parameter) if kind == MASTER else safe_get_full_optimizer_state(parameter, kind)
            yield label, value.reshape(shape)

    def master_shares(self) -> list[torch.Tensor]:
        """This rank's part of the trained weights' float32 values, flat, as the optimizer has it; what is written there it steps from."""
        zero = self._engine.optimizer
        shares = zero.fp32_partitioned_groups_flat if self._divides_weights else zero.single_partition_of_fp32_groups
        return [share.detach() for share in shares]

    def master_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and whole shape of each trained weight."""
        return [(name, _whole_shape(parameter)) for name, parameter in self._trained()]

    def masters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every trained weight's float32 value, whole, one at a time. All ranks go through them together."""
        for name, parameter in self._trained():
            yield name, safe_get_full_fp32_param(parameter).reshape(_whole_shape(parameter))

    def set_masters(self, read: Callable[[str], torch.Tensor]) -> None:
        """Write every trained weight, whole, from its float32 value: read(name), on the CPU."""
        with self._all_divided():
            for name, parameter in self._trained():
                self._set(parameter, read(name), None)

    def refresh_weights(self) -> None:
        """Bring what is computed with to what `master_shares` holds. All ranks together."""
        with self._all_divided():
            for (_, parameter), (_, whole) in zip(self._trained(), self.masters(), strict=True):
                self._set(parameter, whole, None)

    @contextlib.contextmanager
    def _all_divided(self) -> Iterator[None]:
        """Under ZeRO 3 small weights that are held whole are divided too, for the block."""
        if self._divides_weights:
            self._engine.optimizer.checkpoint_event_prologue()
        yield
        if self._divides_weights:
            self._engine.optimizer.checkpoint_event_epilogue()

    def restore(self, read: Callable[[str], torch.Tensor], num_optimizer_steps: int) -> None:
        """Take over what `trainer_tensors` gave another engine of the same model, which may have divided it otherwise.

        Args:
            read: the tensor of a name, whole, on the CPU.
            num_optimizer_steps: of the engine that it comes from.
        """
        if num_optimizer_steps:
            self._begin_moments(num_optimizer_steps)
        with self._all_divided():
            for name, parameter in self._trained():
                self._set(parameter, read(f"{MASTER}/{name}"), None)
                for moment in MOMENTS if num_optimizer_steps else ():
                    self._set(parameter, read(f"{moment}/{name}"), moment)

    def _begin_moments(self, num_steps: int) -> None:
        """Adam makes its state at its first step; here it must be there before."""
        zero = self._engine.optimizer
        groups = [group["params"] for group in self._optimizer.param_groups]
        for part in zero.fp32_partitioned_groups_flat if self._divides_weights else itertools.chain.from_iterable(groups):
            step = torch.tensor(float(num_steps))  # on the CPU, as torch keeps it
            self._optimizer.state[part] = {"step": step, **{moment: torch.zeros_like(part) for moment in MOMENTS}}
        if not self._divides_weights:
            zero._lazy_init_hp_params_optimizer_state()  # else safe_set_full_optimizer_state knows of no moments before a step

    def _set(self, parameter: Any, value: torch.Tensor, moment: str | None) -> None:
        """One whole tensor into this rank's share of it; a master into the weight that is computed with, too."""
        if self._divides_weights:  # not safe_set_full_*, which fails on the last rank where a weight does not divide evenly
            share = _share(value, parameter, self._rank)
            if moment:
                safe_set_local_optimizer_state(parameter, share, moment)
            else:
                safe_set_local_fp32_param(parameter, share)
                parameter.ds_tensor.data.copy_(share)
        elif moment:
            safe_set_full_optimizer_state(parameter, value, moment)
        else:
            safe_set_full_fp32_param(parameter, value)
            parameter.data.copy_(value)

    @property
    def _optimizer(self) -> Any:
        """torch's, inside DeepSpeed's."""
        return self._engine.optimizer.optimizer

    @property
    def _rank(self) -> int:
        return int(deepspeed.comm.get_rank())

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.module.model.named_parameters() if parameter.requires_grad]

    def close(self) -> None:
        self._engine.destroy()


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A LoRA layer's update of its weight: scaling * B A (Hu et al. 2021, section 4.1)."""

    down: torch.nn.Parameter
    up: torch.nn.Parameter
    scaling: float
    transposed: bool
    """The layer keeps its weight as [in, out] (GPT-2's Conv1D)."""

    def delta(self) -> torch.Tensor:
        update = self.scaling * (self.up.detach().float() @ self.down.detach().float())
        return update.T if self.transposed else update


def _adapter(layer: Any) -> Adapter:
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    return Adapter(down, up, layer.scaling["default"], bool(getattr(layer, "fan_in_fan_out", False)))


def _named_weights(model: Any) -> Iterator[tuple[str, torch.nn.Parameter, Adapter | None]]:
    """(checkpoint name, weight, its adapter or None) of a transformers model, wrapped by peft or not."""
    layers = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        layer = layers[name.rpartition(".base_layer.")[0]] if ".base_layer.weight" in name else None
        yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), parameter, None if layer is None else _adapter(layer)


def _whole_shape(parameter: Any) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _share(value: torch.Tensor, parameter: Any, rank: int) -> torch.Tensor:
    """A rank's part of a weight that ZeRO 3 divides; the last ranks' parts are filled up with zeros."""
    size = parameter.ds_tensor.numel()
    flat = value.flatten()
    part = flat[min(rank * size, len(flat)) : min((rank + 1) * size, len(flat))]
    return torch.nn.functional.pad(part, (0, size - len(part)))


def _merged(weight: torch.Tensor, adapter: Adapter | None) -> torch.Tensor:
    """The weight with its adapter added in float32."""
    return weight if adapter is None else (weight.float() + adapter.delta()).to(weight.dtype)


def _gathered(parts: list[Any]) -> contextlib.AbstractContextManager[Any]:
    parameters = [part for part in parts if hasattr(part, "ds_id")]
    return deepspeed.zero.GatheredParameters(parameters) if parameters else contextlib.nullcontext()


def engine_config(settings: LearnerSection, dtype: str) -> dict[str, Any]:
    """DeepSpeed's configuration. Its own gradient accumulation is off: the number of micro-batches differs from step to step.

    ZeRO stage 1 is the least, on one rank too: at stage 0 DeepSpeed reports no gradient norm and applies NaN gradients.
    """
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": settings.max_grad_norm,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": settings.zero_stage, "overlap_comm": False, **_offload(settings)},
        "bf16": {"enabled": dtype == "bfloat16", "check_grad_overflow": True},
    }


def _offload(settings: LearnerSection) -> dict[str, Any]:
    optimizer = {"offload_optimizer": {"device": "cpu"}} if settings.offload != "none" else {}
    weights = {"offload_param": {"device": "cpu"}} if settings.offload == "all" else {}
    return optimizer | weights
