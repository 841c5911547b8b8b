"""How many runs of a sweep fit beside each other on the machines.

Called by sweep_runs.py before it starts one more. Pure: asks nobody but the functions that it is given.

    at most          sweep.side_by_side, and what all machines have: CPUs, GPUs, memory where it is known
    and only where   what is free now is enough for it and for those that have been started and have not yet taken their share

so that on a cluster which others use a run waits here, rather than to fail for want of a CPU. One that is alone need not have its memory:
its own preflight judges that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Needs:
    """What one run takes."""

    cpus: float
    gpus: float = 0.0
    memory_bytes: int = 0
    """On the hosts, estimated; 0 where it is not known."""

    @property
    def text(self) -> str:
        return f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that has been started."""

    needs: Needs
    has_settled: bool
    """Its actors have their share, which is therefore no longer free."""


@dataclass(frozen=True, slots=True)
class Room:
    """The machines.

    >>> room = Room(lambda: {"CPU": 4.0}, lambda: {"CPU": 4.0})
    >>> room.fits(Needs(2), [Claim(Needs(2), False)]), room.fits(Needs(2), [Claim(Needs(2), False)] * 2)
    (True, False)
    """

    total: Callable[[], Mapping[str, float]]
    """CPU and GPU of all machines."""
    free: Callable[[], Mapping[str, float]]
    memory_bytes: int = 0
    """Free on all hosts before the sweep began; 0 where it is not known."""
    side_by_side: int = 0
    """At most so many; 0: no such limit."""

    def fits(self, needs: Needs, claims: Sequence[Claim]) -> bool:
        """Whether one more run can begin beside those that were started."""
        if self.side_by_side and len(claims) >= self.side_by_side:
            return False
        started, unsettled = [claim.needs for claim in claims], [claim.needs for claim in claims if not claim.has_settled]
        if started and self.memory_bytes and needs.memory_bytes + sum(each.memory_bytes for each in started) > self.memory_bytes:
            return False
        return _enough(self.total(), [*started, needs]) and _enough(self.free(), [*unsettled, needs])

    def most(self, needs: Sequence[Needs]) -> int:
        """How many of these runs fit at once where nobody else is there, the first ones; at least 1."""
        claims = list[Claim]()
        for each in needs:
            if self.side_by_side and len(claims) >= self.side_by_side:
                break
            if claims and self.memory_bytes and sum(c.needs.memory_bytes for c in claims) + each.memory_bytes > self.memory_bytes:
                break
            if not _enough(self.total(), [*(claim.needs for claim in claims), each]):
                break
            claims.append(Claim(each, True))
        return max(1, len(claims))


def _enough(there: Mapping[str, float], needs: Sequence[Needs]) -> bool:
    cpus, gpus = sum(each.cpus for each in needs), sum(each.gpus for each in needs)
    # Ray counts in ten-thousandths
    return cpus <= there.get("CPU", 0.0) + 1e-4 and gpus <= there.get("GPU", 0.0) + 1e-4
