"""The policy with its optimizer in plain PyTorch, in one process: what deepspeed_engine.py is for a run, for looking at a run afterwards.

Called by commands/replayed_step.py. Knows torch; starts no engine and meets no other rank. Gradients are taken out before they are used, so
that several losses can be asked at the same weights. A step is DeepSpeed's of ZeRO 1: the gradient's norm, clipped to
learner.max_grad_norm, then torch's AdamW on float32 masters, from which the weights in model.dtype are copied.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mathrl_ray.actors.policy_module import PolicyModule
from mathrl_ray.sections import LearnerSection

MASTER, MOMENTS = "master", ("exp_avg", "exp_avg_sq")
"""As trainer_state.py finds them in a checkpoint."""


class PlainEngine:
    """One policy, its gradient and its AdamW."""

    def __init__(self, module: PolicyModule, device: str | torch.device = "cpu") -> None:
        self.module = module.to(device)
        self.device = torch.device(device)
        self._trained = [(name, weight) for name, weight in module.model.named_parameters() if weight.requires_grad]
        self._masters = [weight if weight.dtype == torch.float32 else _master(weight) for _, weight in self._trained]
        self._optimizer = torch.optim.AdamW(self._masters)

    def __call__(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        log_probs, entropy = self.module(*arguments)
        return log_probs, entropy

    def backward(self, loss: Tensor) -> None:
        """Add a micro-batch's gradient; a loss that is no number makes the whole gradient one."""
        (loss if math.isfinite(loss.item()) else loss * math.nan).backward()

    def take_gradient(self) -> list[Tensor]:
        """The gradient since the last call, in float32, a tensor a trained weight; it is gone from the weights afterwards."""
        gradient = [torch.zeros_like(master) if weight.grad is None else weight.grad.float() for weight, master in self._pairs()]
        for _, weight in self._trained:
            weight.grad = None
        return gradient

    def apply(self, gradient: list[Tensor], learning_rate: float, settings: LearnerSection) -> bool:
        """One optimizer step; False where the gradient is not finite, and nothing has changed.

        Args:
            gradient: as `take_gradient` gave it; changed by the clip.
            learning_rate: of this step.
            settings: the clip's limit and AdamW's betas and weight decay.
        """
        norm = _norm_as_deepspeed(gradient)
        if not torch.isfinite(norm):
            return False
        # Its 1e-6 stands elsewhere than in torch's clip, and all of it is a float32 tensor's arithmetic.
        scale = ((norm + 1e-6) / settings.max_grad_norm).clamp(min=1.0)
        self._optimizer.param_groups[0].update(lr=learning_rate, betas=settings.betas, weight_decay=settings.weight_decay)
        for master, part in zip(self._masters, gradient, strict=True):
            master.grad = part.mul_(1.0 / scale)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._copy_masters()
        return True

    def trainer_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """As deepspeed_engine.Engine has it before any step."""
        return [(f"{MASTER}/{name}", tuple(weight.shape)) for name, weight in self._trained]

    @torch.no_grad()
    def restore(self, read: Callable[[str], Tensor], num_optimizer_steps: int) -> None:
        """Take over the masters and moments of a checkpoint, as deepspeed_engine.Engine does.

        Args:
            read: the tensor of a name, whole, on the CPU.
            num_optimizer_steps: that Adam has taken.
        """
        for (name, _), master in zip(self._trained, self._masters, strict=True):
            master.copy_(read(f"{MASTER}/{name}"))
            if num_optimizer_steps:
                moments = {moment: read(f"{moment}/{name}").to(master.device) for moment in MOMENTS}
                self._optimizer.state[master] = {"step": torch.tensor(float(num_optimizer_steps)), **moments}
        self._copy_masters()

    @torch.no_grad()
    def _copy_masters(self) -> None:
        for weight, master in self._pairs():
            if weight is not master:
                weight.copy_(master)

    def _pairs(self) -> list[tuple[torch.nn.Parameter, Tensor]]:
        return [(weight, master) for (_, weight), master in zip(self._trained, self._masters, strict=True)]


def _norm_as_deepspeed(gradient: list[Tensor]) -> Tensor:
    """To the bit (get_grad_norm_direct): Adam's first steps make much of a rounding error in the clip."""
    return torch.stack([torch.linalg.vector_norm(part.double()) for part in gradient]).pow(2.0).sum().float().pow(1.0 / 2.0)


def _master(weight: torch.nn.Parameter) -> Tensor:
    return weight.detach().float().clone().requires_grad_()
