"""A learner's part of a checkpoint where writing fails: every rank takes part in all gathering, or the others would wait for ever."""

from types import SimpleNamespace

import pytest
import torch

from mathrl_ray.actors.trainer_state import Counters, write_checkpoint

COUNTERS = Counters(optimizer_step=1, policy_version=1, skipped_in_a_row=0, random_state=(3, (1, 2), None))


class SmallEngine:
    """Three weights and three masters; notes each that the ranks gather together."""

    num_optimizer_steps = 0

    def __init__(self):
        self.gathered = []
        self.module = SimpleNamespace(model=Saved())

    def weights(self):
        return self._gather("w")

    def trainer_tensors(self):
        return self._gather("master/w")

    def _gather(self, prefix):
        for number in range(3):
            self.gathered.append(f"{prefix}{number}")
            yield f"{prefix}{number}", torch.ones(2)

    def weight_shapes(self):
        return [(f"w{number}", torch.empty(2, device="meta")) for number in range(3)]

    def trainer_shapes(self):
        return [(f"master/w{number}", (2,)) for number in range(3)]


class Saved:
    """Model and tokenizer, which leave no file."""

    def save_pretrained(self, folder, **more):
        pass


class FullDisk(Saved):
    def save_pretrained(self, folder, **more):
        raise OSError(28, "No space left on device")


ALL = ["w0", "w1", "w2", "master/w0", "master/w1", "master/w2"]


def write(folder, engine, tokenizer=None, rank=0):
    return write_checkpoint(folder, engine, tokenizer or Saved(), COUNTERS, rank=rank, dtype="float32")


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_gathers_everything_once(tmp_path, rank):
    engine = SmallEngine()
    figures = write(tmp_path, engine, rank=rank)
    assert engine.gathered == ALL
    assert bool(figures) == (rank == 0)
    assert (tmp_path / "trainer" / "optimizer.safetensors").exists() == (rank == 0)


def test_a_failure_at_the_second_weight_comes_after_all_gathers(tmp_path):
    engine = SmallEngine()
    engine.weight_shapes = lambda: [(f"w{number}", torch.empty(2 + (number == 1), device="meta")) for number in range(3)]
    with pytest.raises(ValueError, match="planned"):
        write(tmp_path, engine)
    assert engine.gathered == ALL


def test_a_failure_at_the_second_master_comes_after_all_gathers(tmp_path):
    engine = SmallEngine()
    engine.trainer_shapes = lambda: [(f"master/w{number}", (2 + (number == 1),)) for number in range(3)]
    with pytest.raises(ValueError, match="planned"):
        write(tmp_path, engine)
    assert engine.gathered == ALL


def test_a_full_disk_before_the_first_weight_comes_after_all_gathers(tmp_path):
    engine = SmallEngine()
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, engine, tokenizer=FullDisk())
    assert engine.gathered == ALL


def test_another_rank_that_cannot_write_its_random_state_takes_part_too(tmp_path):
    (tmp_path / "trainer" / "random-rank1.safetensors").mkdir(parents=True)
    engine = SmallEngine()
    with pytest.raises(IsADirectoryError):
        write(tmp_path, engine, rank=1)
    assert engine.gathered == ALL
