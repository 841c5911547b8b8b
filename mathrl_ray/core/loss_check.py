"""Is a loss of your own right? What every policy loss must keep, tried on a small batch in float64, in well under a second.

Called by `python -m mathrl_ray check-loss`, and by the tests for our own losses. Pure: a function in, findings out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mathrl_ray.core.loss_batch import LossFunction, LossInput, LossResult, as_result, metric_shares, result_fault

LENGTHS = (1, 3, 6, 2, 5, 4)
ADVANTAGES = (1.5, -0.5, 0.75, -1.25, 0.5, -1.0)
CUTS = ([[0, 1, 2], [3, 4, 5]], [[4], [2, 0], [1, 3, 5]], [[row] for row in range(len(LENGTHS))])
TOLERANCE = 1e-7
LOGPROB_FIELDS = ("learner_logprobs", "generator_logprobs", "proximal_logprobs", "reference_logprobs")
TOKEN_FIELDS = (*LOGPROB_FIELDS, "entropy", "mask", "policy_versions")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried."""

    name: str
    verdict: Literal["ok", "fault", "note"]
    text: str
    """What is wrong and what to do; empty where nothing is."""


Try = Callable[[LossFunction], Iterator[str | Finding]]
"""Gives nothing where all is well, else what is wrong; only the first is told."""


@dataclass(frozen=True, slots=True, eq=False)
class _Evaluated:
    loss: Tensor
    gradient: Tensor
    """[B, T] of learner_logprobs."""
    metrics: dict[str, float]


def check_loss(function: LossFunction) -> list[Finding]:
    """Everything that is tried, in the order of the list below; where the result is of no use, nothing else is.

    The names: result, sign, detach, gradient, micro-batches, mask, NaN safety, reference.
    """
    first = _tried("result", _result, function)
    if first.verdict == "fault":
        return [first]
    tries: dict[str, Try] = {
        "sign": _sign,
        "detach": _detach,
        "gradient": _gradient,
        "micro-batches": _micro_batches,
        "mask": _mask,
        "NaN safety": _nan_safety,
        "reference": _reference,
    }
    return [first, *(_tried(name, attempt, function) for name, attempt in tries.items())]


def _tried(name: str, attempt: Try, function: LossFunction) -> Finding:
    try:
        found = next(attempt(function), "")
    except Exception as error:  # whatever a stranger's function raises is what the person wants to know
        return Finding(name, "fault", f"raised {type(error).__name__}: {error}")
    if isinstance(found, Finding):
        return found
    return Finding(name, "fault", found) if found else Finding(name, "ok", "")


def _result(function: LossFunction) -> Iterator[str | Finding]:
    batch = _batch()
    result = _call(function, batch)
    if fault := result_fault(result):
        yield fault
    elif not result.loss.isfinite():
        yield f"the loss of an ordinary batch is {result.loss.item()}"
    metric_shares(result.metrics, batch)


def _sign(function: LossFunction) -> Iterator[str | Finding]:
    batch = _on_policy(_batch())
    gradient = _evaluate(function, batch).gradient
    towards = (-gradient * batch.advantages)[batch.mask]  # positive where a step against the gradient makes a good token likelier
    wrong = towards < -TOLERANCE * gradient.abs().max()
    if wrong.any():
        some = "" if wrong.all() else " (some tokens only: look at detach first)"
        yield (
            f"on-policy, {int(wrong.sum())} of {len(wrong)} tokens are pushed the wrong way{some}: good ones (advantage > 0) get less "
            "likely or bad ones likelier. The loss is minus the objective: -advantage * ratio, and + for a penalty such as a KL"
        )


def _detach(function: LossFunction) -> Iterator[str | Finding]:
    """Faults of gradients on-policy, where every ratio is 1. The two that come last need a function without a stop-gradient of its own:
    then gradients must not depend on the level of the log-probs (a factor of log p times an undetached ratio would), and grow at most as
    the ratio does (an undetached weight times a ratio grows as its square)."""
    batch = _batch()
    on_policy, elsewhere = _on_policy(batch), _on_policy(replace(batch, learner_logprobs=batch.learner_logprobs * 2 - 1))
    gradient = _evaluate(function, on_policy).gradient
    if not gradient.abs().max() > 0:
        yield (
            "on-policy the gradient is 0, so nothing is learned: a ratio of learner_logprobs with itself is constant. "
            "Take it against proximal_logprobs, or detach the second one"
        )
    elif _agrees_with_differences(function, batch):
        gap = _relative_gap(_evaluate(function, elsewhere).gradient, gradient)
        if not gap <= 1e-6:
            yield (
                f"on-policy the gradient depends on how likely the tokens are (it changes by {gap:.0%} in another batch with the same "
                "advantages): a weight that multiplies log p carries a gradient. Detach it: weight.detach()"
            )
        power = _power(function, on_policy)
        if power > 1.5:
            yield (
                f"the gradient grows as the ratio to the power of {power:.2g}, not 1: the gap to older weights counts more than once. "
                "Detach the importance weight (weight.detach()), or build it from proximal_logprobs and generator_logprobs"
            )


def _power(function: LossFunction, on_policy: LossInput) -> float:
    """The k of a gradient a + b ratio^k, median over tokens; 0 where the gradient does not depend on the ratio.

    One token moves at a time, since the ratio of a whole response may be the product of its tokens'. The reference moves with it, so that
    a KL only adds to a.
    """
    step = 1e-4  # within the narrowest clip, GSPO's
    largest = _evaluate(function, on_policy).gradient.abs().max()
    powers = []
    for row, column in on_policy.mask.nonzero().tolist():
        below, here, above = (_gradient_of_moved(function, on_policy, row, column, by) for by in (-step, 0.0, step))
        slope, curvature = (above - below) / (2 * step), (above - 2 * here + below) / step**2
        if slope.abs() > 1e-3 * largest:
            powers.append(curvature / slope)
    return torch.stack(powers).median().item() if powers else 0.0


def _gradient_of_moved(function: LossFunction, batch: LossInput, row: int, column: int, by: float) -> Tensor:
    moved = batch.learner_logprobs.clone()
    moved[row, column] += by
    return _evaluate(function, replace(batch, learner_logprobs=moved, reference_logprobs=moved)).gradient[row, column]


def _gradient(function: LossFunction) -> Iterator[str | Finding]:
    if not _agrees_with_differences(function, _batch()):
        text = (
            "autograd differs from finite differences: right if the function detaches a factor of learner_logprobs on purpose (an "
            "importance weight, CISPO's), a fault if it does not"
        )
        yield Finding("gradient", "note", text)


def _micro_batches(function: LossFunction) -> Iterator[str | Finding]:
    whole = _evaluate(function, _batch())
    for parts in CUTS:
        pieces = [_evaluate(function, _rows(_batch(), rows)) for rows in parts]
        loss = torch.stack([piece.loss for piece in pieces]).sum()
        gradient = torch.zeros_like(whole.gradient)
        for rows, piece in zip(parts, pieces, strict=True):
            gradient[rows, : piece.gradient.shape[1]] = piece.gradient
        if not (_relative_gap(loss, whole.loss) <= TOLERANCE and _relative_gap(gradient, whole.gradient) <= TOLERANCE):
            yield (
                f"cut into {len(parts)} micro-batches the losses add up to {loss.item():.6g} instead of {whole.loss.item():.6g} and the "
                f"gradient changes by {_relative_gap(gradient, whole.gradient):.0%}: divide sums by batch.num_tokens or "
                "batch.num_sequences (the whole batch's), and take no mean or std over the rows of a micro-batch"
            )
        for name, value in whole.metrics.items():
            if not abs(sum(piece.metrics.get(name, 0.0) for piece in pieces) - value) <= TOLERANCE * max(1, abs(value)):
                yield (
                    f"the metric {name!r} depends on how the batch is cut: give it as [B, T] or [B], whose means over the batch are "
                    "logged, or as a sum divided by batch.num_tokens or batch.num_sequences"
                )


def _mask(function: LossFunction) -> Iterator[str | Finding]:
    batch = _batch()
    clean, dirty, wider = (_evaluate(function, case) for case in (batch, _with_junk(batch), _wider(batch)))
    if any(result.gradient[~batch.mask].abs().max() > 0 for result in (clean, dirty)):
        yield "tokens outside of batch.mask get a gradient: prompts and padding would be trained. Sum torch.where(batch.mask, loss, 0)"
    elif not _are_equal(clean, dirty):
        yield "what stands outside of batch.mask changes the loss: sum over response tokens only, torch.where(batch.mask, loss, 0)"
    elif not _are_equal(clean, replace(wider, gradient=wider.gradient[:, : batch.mask.shape[1]])):
        yield (
            "two more columns of padding change the loss: a mean over [B, T] counts padding. Divide by batch.num_tokens, or by "
            "batch.num_sequences after a mean over each row's own tokens"
        )


def _reference(function: LossFunction) -> Iterator[str | Finding]:
    """Not a fault of the function: the learner keeps a reference model only where the recipe says so."""
    try:
        _evaluate(function, replace(_batch(), reference_logprobs=None))
    except Exception:  # whatever a stranger's function does with None, the advice is the same
        yield Finding("reference", "note", "it reads batch.reference_logprobs: set loss.kl_coefficient above 0, which loads the model")


def _nan_safety(function: LossFunction) -> Iterator[str | Finding]:
    batch = _batch()
    cases = {
        "all advantages are 0 (every reward equal)": replace(batch, advantages=torch.zeros_like(batch.advantages)),
        "all advantages are equal": replace(batch, advantages=torch.ones_like(batch.advantages)),
        "a micro-batch is one row of one token": _rows(batch, [0]),
        "a row has no response token": replace(batch, mask=batch.mask & (torch.arange(len(LENGTHS)) != 1).unsqueeze(1)),
        "the policy is 30 nats away from the older weights (float32)": _far(batch),
    }
    for what, case in cases.items():
        result = _evaluate(function, case)
        if not (result.loss.isfinite() and result.gradient.isfinite().all()):
            yield (
                f"the loss or its gradient is not finite when {what}: look for a division by a std, a count or a sum that can be 0, a "
                "log of 0, and an exp that nothing bounds"
            )


def _batch() -> LossInput:
    """Six responses of 1 to 6 tokens, a little off-policy at each border."""
    draw = torch.Generator().manual_seed(0)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(len(LENGTHS), max(LENGTHS) + 1, dtype=torch.float64, generator=draw)

    mask = torch.arange(max(LENGTHS) + 1).unsqueeze(0) < torch.tensor(LENGTHS).unsqueeze(1)
    generator = -noise(1.0).abs() - 0.5  # far enough below 0 to stay log-probs with what is added
    proximal = generator + noise(0.03)
    return LossInput(
        learner_logprobs=proximal + noise(0.03),
        entropy=noise(0.1).abs() + 0.5,
        generator_logprobs=generator,
        proximal_logprobs=proximal,
        reference_logprobs=proximal + noise(0.1),
        advantages=torch.tensor(ADVANTAGES, dtype=torch.float64).unsqueeze(1),
        mask=mask,
        policy_versions=torch.full(mask.shape, 3),
        learner_version=4,
        num_sequences=len(LENGTHS),
        num_tokens=sum(LENGTHS),
        max_tokens=max(LENGTHS) + 1,
    )


def _on_policy(batch: LossInput) -> LossInput:
    same = batch.learner_logprobs
    return replace(batch, generator_logprobs=same, proximal_logprobs=same, reference_logprobs=same)


def _far(batch: LossInput) -> LossInput:
    """Where its clip would stop each: good tokens 30 nats likelier than they were, bad ones 30 less likely; all still log-probs."""
    below = torch.where(batch.advantages > 0, 0.0, 30.0)
    older = _changed(batch, LOGPROB_FIELDS[1:], lambda value: value - 30 + below)
    moved = replace(older, learner_logprobs=batch.learner_logprobs - below)
    return _changed(moved, (*LOGPROB_FIELDS, "entropy", "advantages"), Tensor.float)


def _with_junk(batch: LossInput) -> LossInput:
    return _changed(batch, (*LOGPROB_FIELDS, "entropy"), lambda value: torch.where(batch.mask, value, value - 1.7))


def _wider(batch: LossInput) -> LossInput:
    return _changed(batch, TOKEN_FIELDS, lambda value: pad(value, (0, 2)))


def _rows(batch: LossInput, rows: Sequence[int]) -> LossInput:
    """Some rows, padded to their own longest, as the learner cuts them."""
    width = max(LENGTHS[row] for row in rows)
    chosen = _changed(batch, TOKEN_FIELDS, lambda value: value[list(rows), :width])
    return replace(chosen, advantages=batch.advantages[list(rows)])


def _with_leaves(batch: LossInput) -> LossInput:
    """The batch with learner_logprobs and entropy that carry a gradient, as they do in the learner."""
    return _changed(batch, ("learner_logprobs", "entropy"), lambda value: value.clone().requires_grad_())


def _changed(batch: LossInput, names: Sequence[str], change: Callable[[Tensor], Tensor]) -> LossInput:
    changed: dict[str, Any] = {name: change(getattr(batch, name)) for name in names}
    return replace(batch, **changed)


def _call(function: LossFunction, batch: LossInput) -> LossResult:
    return as_result(function(_with_leaves(batch)))


def _evaluate(function: LossFunction, batch: LossInput) -> _Evaluated:
    batch = _with_leaves(batch)
    result = as_result(function(batch))
    result.loss.backward()
    gradient = batch.learner_logprobs.grad
    metrics = metric_shares(result.metrics, batch)
    return _Evaluated(result.loss.detach(), torch.zeros_like(batch.learner_logprobs) if gradient is None else gradient, metrics)


def _agrees_with_differences(function: LossFunction, batch: LossInput) -> bool:
    """Whether autograd's gradient is that of central differences, at each response token."""
    step, base = 1e-6, batch.learner_logprobs
    gradient = _evaluate(function, batch).gradient
    for row, column in batch.mask.nonzero().tolist():
        moved = [base.clone() for _ in range(2)]
        moved[0][row, column] += step
        moved[1][row, column] -= step
        above, below = (_call(function, replace(batch, learner_logprobs=point)).loss.item() for point in moved)
        if not abs((above - below) / (2 * step) - gradient[row, column].item()) <= 1e-5 * gradient.abs().max().item() + 1e-9:
            return False
    return True


def _are_equal(left: _Evaluated, right: _Evaluated) -> bool:
    return _relative_gap(left.loss, right.loss) <= TOLERANCE and _relative_gap(left.gradient, right.gradient) <= TOLERANCE


def _relative_gap(left: Tensor, right: Tensor) -> float:
    return float((left - right).norm() / right.norm().clamp(min=1e-12))
