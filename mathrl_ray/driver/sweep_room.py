"""How many runs of a sweep fit beside each other on the machines.

Called by sweep_runs.py before it starts one more. Pure: asks nobody but the functions that it is given.

    at most          sweep.side_by_side, and what all machines have: CPUs, GPUs, memory where it is known
    and only where   what is free now is enough for it and for those that have been started and have not yet taken their share

so that on a cluster which others use a run waits here, rather than to fail for want of a CPU. One that is alone need not have its memory,
nor a CPU for each of its threads: its own preflight judges that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ROUNDING = 1e-4
"""Ray counts in ten-thousandths."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one run takes."""

    cpus: float
    gpus: float = 0.0
    memory_bytes: int = 0
    """On the hosts, estimated; 0 where it is not known."""
    threads: float = 0.0
    """Of its engines; Ray reserves `cpus` for them, which may be fewer."""

    @property
    def text(self) -> str:
        threads = f" (for {self.threads:g} threads)" if self.threads > self.cpus else ""
        return f"{self.cpus:g} CPU{'s' if self.cpus > 1 else ''}{threads}" + (f" and {self.gpus:g} GPUs" if self.gpus else "")


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
        unsettled = [claim.needs for claim in claims if not claim.has_settled]
        return self._has_room([claim.needs for claim in claims], needs) and _enough(self.free(), [*unsettled, needs])

    def most(self, needs: Sequence[Needs]) -> int:
        """How many of these runs fit at once where nobody else is there, the first ones; at least 1."""
        started = list[Needs]()
        for each in needs:
            if not self._has_room(started, each):
                break
            started.append(each)
        return max(1, len(started))

    def _has_room(self, started: Sequence[Needs], needs: Needs) -> bool:
        """Whether all machines are enough, and the recipe allows it."""
        together, total = [*started, needs], self.total()
        if self.side_by_side and len(together) > self.side_by_side:
            return False
        if started and self.memory_bytes and sum(each.memory_bytes for each in together) > self.memory_bytes:
            return False
        if started and sum(max(each.cpus, each.threads) for each in together) > total.get("CPU", 0.0) + ROUNDING:
            return False
        return _enough(total, together)


def _enough(there: Mapping[str, float], needs: Sequence[Needs]) -> bool:
    cpus, gpus = sum(each.cpus for each in needs), sum(each.gpus for each in needs)
    return cpus <= there.get("CPU", 0.0) + ROUNDING and gpus <= there.get("GPU", 0.0) + ROUNDING
