"""The learner's ranks as one group: joining it, and agreeing on numbers.

Called by learner.py and deepspeed_engine.py. Knows torch.distributed through DeepSpeed; knows no model.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one learner meet: an address and a free port on rank 0's machine."""

    address: str
    port: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


class ProcessGroup:
    """This process's place among the ranks."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks

    def join(self, rendezvous: Rendezvous, backend: str, limit_s: float) -> None:
        """Wait for the other ranks, at most `limit_s`; the same limit holds for each later exchange. Joining twice does nothing."""
        import deepspeed
        import torch

        if torch.distributed.is_initialized():
            return
        os.environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.num_ranks),
            LOCAL_RANK="0",  # Ray shows each actor its own device only
            MASTER_ADDR=rendezvous.address,
            MASTER_PORT=str(rendezvous.port),
        )
        deepspeed.init_distributed(backend, timeout=timedelta(seconds=limit_s), verbose=False)

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The sums over all ranks; what a rank does not name counts as 0."""
        gathered = self.gather(dict(numbers))
        names = dict.fromkeys(name for part in gathered for name in part)
        return {name: sum(part.get(name, 0.0) for part in gathered) for name in names}

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank, in the ranks' order."""
        if self.num_ranks == 1:
            return [value]
        import torch

        gathered: list[Any] = [None] * self.num_ranks
        torch.distributed.all_gather_object(gathered, value)
        return gathered
