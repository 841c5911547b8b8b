"""Averages of the weights that a stage went through: of all updates, the newest counting most, or of the last k; and of model folders.

`WeightAverage` is called by learner.py after each update and at a stage's end, and by trainer_state.py for checkpoints; all ranks together.
It knows torch and the engine's masters (deepspeed_engine.py), no stage and no loss. What is averaged are the float32 masters of the weights
that are trained: with adapters the adapters, whose product is then not the mean of their products. Each rank averages its own share, in
host memory. `average_model_folders` is called by driver/rollback.py, and knows files only.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, assert_never

import torch
from safetensors import safe_open
from torch import Tensor

from mathrl_ray.actors.tensor_file import TensorPlan, write_tensors
from mathrl_ray.sections import LearnerSection

CHUNK = 1 << 24
"""Numbers that go from the masters' device to the host at once: 64 MiB."""
FLOAT_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""As safetensors names them."""
Shares = list[Tensor]
"""One rank's part of all trained weights, flat, in float32."""


class WeightAverage:
    """What a learner keeps of the weights of a stage.

    ema      after the t-th set of weights w_t: a_t = a_(t-1) + (1 - d) / (1 - d^t) (w_t - a_(t-1)), d = learner.ema_decay

             which is the exponential moving average m_t = d m_(t-1) + (1 - d) w_t, m_0 = 0, with its bias corrected, m_t / (1 - d^t)
             (Kingma & Ba 2015, section 3): w_i has the share (1 - d) d^(t-i) / (1 - d^t), and the start weights, which a short stage
             would hardly leave behind, have none.
    last_k   the mean of the last k sets, k = learner.average_last (as SWA takes it, Izmailov et al. 2018, section 3; the last k: LAWA,
             Kaddour 2022); of all of them, where there are fewer

    A set is taken every learner.average_every updates; an update that was skipped is none.
    """

    def __init__(self, settings: LearnerSection) -> None:
        self.kind, self._decay = settings.average, settings.ema_decay
        self._most, self._every = settings.num_averaged_sets, settings.average_every
        self.sets: list[Shares] = []
        """The average itself (ema), or the last sets, the oldest first (last_k)."""
        self.num_taken = 0
        """Sets of weights so far."""

    def after_update(self, optimizer_step: int, engine: Any) -> None:
        """optimizer_step: updates of the stage, this one included."""
        if optimizer_step % self._every:
            return
        self.num_taken += 1
        shares: Shares = engine.master_shares()
        match self.kind:
            case "ema":
                self._blend(shares, (1 - self._decay) / (1 - self._decay**self.num_taken))
            case "last_k":
                kept = self.sets.pop(0) if len(self.sets) == self._most else [torch.empty_like(share, device="cpu") for share in shares]
                self.sets.append(kept)
                self._each_chunk(kept, shares, Tensor.copy_)
            case "none":
                raise AssertionError("no average is kept")
            case _:
                assert_never(self.kind)

    def _blend(self, shares: Shares, weight: float) -> None:
        if not self.sets:
            self.sets = [[torch.zeros_like(share, device="cpu") for share in shares]]
        self._each_chunk(self.sets[0], shares, lambda kept, fresh: kept.lerp_(fresh, weight))

    @staticmethod
    def _each_chunk(kept: Shares, fresh: Shares, change: Callable[[Tensor, Tensor], object]) -> None:
        for ours, theirs in zip(kept, fresh, strict=True):
            for part, new in zip(ours.split(CHUNK), theirs.split(CHUNK), strict=True):
                change(part, new.to("cpu"))

    @property
    def num_averaged(self) -> int:
        """Sets of weights that have a share in the average."""
        return self.num_taken if self.kind == "ema" else len(self.sets)

    def put_in_place(self, engine: Any) -> dict[str, float]:
        """Make the average the engine's weights. Returns this rank's sums of squares: of the average less the last weights, and of these.

        What was kept is gone afterwards: nothing trains on from an average, and Adam's moments stay those of the last weights.
        """
        difference = last = 0.0
        for index, share in enumerate(engine.master_shares()):
            mean = _mean([kept[index] for kept in self.sets]).to(share.device)
            difference, last = difference + _sum_of_squares(mean, less=share), last + _sum_of_squares(share)
            share.copy_(mean)
        engine.refresh_weights()
        self.sets = []
        return {"difference": difference, "last": last}

    def tensors(self, engine: Any) -> Iterator[tuple[str, Tensor]]:
        """All that a checkpoint keeps: <number of the set>/<parameter>, whole, one at a time. All ranks go through them together.

        The engine can only gather masters, so each set takes their place for a moment; no weight that is computed with is read meanwhile.
        """
        for number, kept in enumerate(self.sets):
            with _in_place_of_masters(kept, engine):
                for name, whole in engine.masters():
                    yield f"{number}/{name}", whole

    def shapes(self, engine: Any) -> list[tuple[str, tuple[int, ...]]]:
        """Of `tensors`, in their order."""
        return [(f"{number}/{name}", shape) for number in range(len(self.sets)) for name, shape in engine.master_shapes()]

    def restore(self, read: Callable[[str], Tensor], num_sets: int, num_taken: int, engine: Any) -> None:
        """Take over what `tensors` gave. Masters and weights of the engine hold something else afterwards: restore them after this.

        Args:
            read: the tensor of a name, whole, on the CPU.
            num_sets: how many there are.
            num_taken: of the average that they come from.
            engine: of the same model, divided as it may be.
        """
        self.sets, self.num_taken = [], num_taken
        for number in range(num_sets)[-self._most :]:
            engine.set_masters(lambda name, number=number: read(f"{number}/{name}"))
            self.sets.append([share.to("cpu", copy=True) for share in engine.master_shares()])


@contextlib.contextmanager
def _in_place_of_masters(kept: Shares, engine: Any) -> Iterator[None]:
    """Exchange the masters with a set for a block; the bits of both are as before afterwards."""
    _exchange(kept, engine.master_shares())
    try:
        yield
    finally:
        _exchange(kept, engine.master_shares())


def _exchange(kept: Shares, masters: Shares) -> None:
    for ours, theirs in zip(kept, masters, strict=True):
        for part, master in zip(ours.split(CHUNK), theirs.split(CHUNK), strict=True):
            before = master.to("cpu", copy=True)
            master.copy_(part)
            part.copy_(before)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    """In float32, in the order given, so that the same tensors always give the same bits."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total.add_(tensor)
    return total.div_(len(tensors))


def _sum_of_squares(tensor: Tensor, less: Tensor | None = None) -> float:
    """In float64, a chunk at a time."""
    others = [None] * len(tensor.split(CHUNK)) if less is None else less.split(CHUNK)
    parts = (part if other is None else part - other for part, other in zip(tensor.split(CHUNK), others, strict=True))
    return sum(float(part.double().square().sum()) for part in parts)


def average_model_folders(folders: Sequence[Path], output: Path) -> None:
    """Write a model folder whose weights are the means of those of others, taken in float32 and kept in their type.

    Every .safetensors file beside the first folder's config is averaged (of a model, in parts or not, or of adapters); all other files
    there are copied from it, folders (a checkpoint's trainer/) are not. It appears whole: written aside, then renamed.

    Args:
        folders: at least one, of the same model.
        output: must not be there yet; its parent is made.

    Raises:
        ValueError: there are no weights, or they differ in names, shapes or types: the folder and the first tensor are named.
        FileExistsError: `output` is there.
    """
    if output.exists():
        raise FileExistsError(f"{output} is there already; an average is never written over")
    places = [_tensor_places(Path(folder)) for folder in folders]
    plans = [_file_plans(Path(folder), of) for folder, of in zip(folders, places, strict=True)]
    for folder, plan in zip(folders[1:], plans[1:], strict=True):
        _check_same(Path(folders[0]), plans[0], Path(folder), plan)
    aside = output.with_name(f".{output.name}.writing-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        for path in sorted(Path(folders[0]).iterdir()):
            if path.suffix == ".safetensors":
                own = [plan for plan in plans[0].values() if places[0][plan.name] == path]
                write_tensors(aside / path.name, own, ((plan.name, _mean_of_files(places, plan)) for plan in own))
            elif path.is_file():
                shutil.copy2(path, aside / path.name)
        aside.rename(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _tensor_places(folder: Path) -> dict[str, Path]:
    """The file of each tensor."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    if not found:
        raise ValueError(f"{folder} has no weights to average: a folder with .safetensors files is wanted")
    return found


def _file_plans(folder: Path, places: dict[str, Path]) -> dict[str, TensorPlan]:
    plans: dict[str, TensorPlan] = {}
    for path in dict.fromkeys(places.values()):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118, no dict
                part = file.get_slice(name)
                if part.get_dtype() not in FLOAT_TYPES:
                    raise ValueError(f"{folder}: {name} is of type {part.get_dtype()}; of {', '.join(FLOAT_TYPES)} there are means")
                plans[name] = TensorPlan(name, FLOAT_TYPES[part.get_dtype()], tuple(part.get_shape()))
    return plans


def _check_same(first: Path, expected: dict[str, TensorPlan], folder: Path, found: dict[str, TensorPlan]) -> None:
    differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if differing:
        name = differing[0]
        raise ValueError(
            f"{folder} and {first} are not of one model: {len(differing)} tensors differ, the first {name}: {found.get(name)} and "
            f"{expected.get(name)}. Average checkpoints of one stage only"
        )


def _mean_of_files(places: Sequence[dict[str, Path]], plan: TensorPlan) -> Tensor:
    tensors = []
    for of in places:
        with safe_open(of[plan.name], framework="pt") as file:
            tensors.append(file.get_tensor(plan.name).float())
    return _mean(tensors).to(plan.dtype)
