"""The plain engine's step against AdamW written out, in float64; that it is DeepSpeed's is shown in tests/e2e_cpu/test_replay.py."""

from math import inf, nan, sqrt

import pytest
import torch

from mathrl_ray.actors.plain_engine import PlainEngine
from mathrl_ray.sections import LearnerSection

SETTINGS = LearnerSection(max_grad_norm=1.0, betas=(0.9, 0.95), weight_decay=0.1)


class OneWeight(torch.nn.Module):
    """A 'policy' with one trained weight and one that is frozen."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.model = torch.nn.ParameterDict(
            {
                "trained": torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=dtype)),
                "frozen": torch.nn.Parameter(torch.tensor([5.0]), requires_grad=False),
            }
        )


def adamw(weights, gradients, rate, *, limit=1.0, decay=0.1, betas=(0.9, 0.95)):
    """Loshchilov & Hutter 2019, algorithm 2, after a clip of the whole gradient."""
    first, second = [0.0] * len(weights), [0.0] * len(weights)
    for number, gradient in enumerate(gradients, 1):
        length = sqrt(sum(value * value for value in gradient))
        scale = max(1.0, (length + 1e-6) / limit)
        for index, value in enumerate(gradient):
            clipped = value / scale
            first[index] = betas[0] * first[index] + (1 - betas[0]) * clipped
            second[index] = betas[1] * second[index] + (1 - betas[1]) * clipped**2
            mean, square = first[index] / (1 - betas[0] ** number), second[index] / (1 - betas[1] ** number)
            weights[index] -= rate * decay * weights[index] + rate * mean / (sqrt(square) + 1e-8)
    return weights


def backward(engine, values):
    engine.backward((engine.module.model["trained"] * torch.tensor(values, dtype=engine.module.model["trained"].dtype)).sum())


def test_steps_are_clipped_adamw_and_leave_what_is_frozen():
    engine, gradients = PlainEngine(OneWeight()), [[3.0, 4.0], [0.1, -0.2]]
    for values in gradients:
        backward(engine, values)
        assert engine.apply(engine.take_gradient(), 0.01, SETTINGS)
    assert engine.module.model["trained"].tolist() == pytest.approx(adamw([1.0, -2.0], gradients, 0.01), rel=1e-6)
    assert engine.module.model["frozen"].item() == 5


def test_a_clip_near_deepspeeds_1e_6_is_deepspeeds():
    # of lengths 5e-6 and 0.5 with a limit of 1e-6 the first is divided by 6 and not by 5, the second by 500,001: AdamW sees another ratio
    engine, gradients = PlainEngine(OneWeight()), [[3e-6, 4e-6], [0.3, -0.4]]
    for values in gradients:
        backward(engine, values)
        engine.apply(engine.take_gradient(), 0.1, SETTINGS.model_copy(update={"max_grad_norm": 1e-6}))
    assert engine.module.model["trained"].tolist() == pytest.approx(adamw([1.0, -2.0], gradients, 0.1, limit=1e-6), rel=1e-6)


def test_micro_batches_add_up_and_a_gradient_is_taken_once():
    engine = PlainEngine(OneWeight())
    backward(engine, [1.0, 2.0])
    backward(engine, [0.5, 0.0])
    assert engine.take_gradient()[0].tolist() == [1.5, 2.0]
    assert engine.take_gradient()[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_loss_that_is_no_number_moves_nothing(bad):
    engine = PlainEngine(OneWeight())
    engine.backward((engine.module.model["trained"] * bad).sum())
    gradient = engine.take_gradient()
    assert not torch.isfinite(gradient[0]).any()
    assert not engine.apply(gradient, 0.01, SETTINGS)
    assert engine.module.model["trained"].tolist() == [1.0, -2.0]


def test_steps_too_small_for_bfloat16_add_up_in_the_master():
    engine = PlainEngine(OneWeight(torch.bfloat16))
    for _ in range(8):  # each moves 1.0 by about 0.001, and the next bfloat16 below 1 is 0.996
        backward(engine, [1.0, 1.0])
        engine.apply(engine.take_gradient(), 0.001, SETTINGS)
    assert engine.module.model["trained"].dtype == torch.bfloat16
    assert engine.module.model["trained"][0].item() == pytest.approx(0.992, abs=0.002)


def test_an_engine_that_takes_over_masters_and_moments_goes_on_as_the_other_would():
    whole, gradients = PlainEngine(OneWeight()), [[0.3, 0.4], [0.1, -0.2], [0.5, 0.1]]
    for values in gradients[:2]:
        backward(whole, values)
        whole.apply(whole.take_gradient(), 0.01, SETTINGS)
    master = whole.module.model["trained"]
    state = whole._optimizer.state[master]
    saved = {"master/trained": master.detach().clone(), **{f"{name}/trained": state[name].clone() for name in ("exp_avg", "exp_avg_sq")}}
    other = PlainEngine(OneWeight())
    assert other.trainer_shapes() == [("master/trained", (2,))]
    other.restore(saved.__getitem__, 2)
    for engine in (whole, other):
        backward(engine, gradients[2])
        engine.apply(engine.take_gradient(), 0.01, SETTINGS)
    assert torch.equal(other.module.model["trained"], whole.module.model["trained"])
