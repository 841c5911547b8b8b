"""Finished groups on their way from the scorers to the learner, in the order in which they were admitted.

Called by the training loop. Knows versions and groups; no actor, no Ray.
"""

from collections import deque

from mathrl_ray.types import TrajectoryGroup


class StalenessError(RuntimeError):
    """A group is older than driver.max_staleness allows at the moment it is consumed."""


def staleness(group: TrajectoryGroup, policy_version: int) -> int:
    """Learner's policy_version minus the oldest version that sampled a token of the group."""
    return policy_version - group.min_policy_version


class TrajectoryBuffer:
    """A bounded queue of groups.

    Invariant: every group that was added is taken exactly once, in order, and none is staler than `max_staleness` when taken.
    """

    def __init__(self, *, capacity_groups: int, max_staleness: int) -> None:
        self._capacity_groups, self._max_staleness = capacity_groups, max_staleness
        self._groups: deque[TrajectoryGroup] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: TrajectoryGroup) -> None:
        """Append a graded group.

        Raises:
            OverflowError: the buffer is full; whoever admits prompts must not admit more than it holds.
        """
        if len(self._groups) >= self._capacity_groups:
            raise OverflowError(f"the trajectory buffer holds {self._capacity_groups} groups and is full")
        self._groups.append(group)

    def take(self, num_groups: int, policy_version: int) -> list[TrajectoryGroup]:
        """Remove the `num_groups` oldest groups, for a learner that is at `policy_version`.

        Raises:
            IndexError: there are fewer.
            StalenessError: one of them is too old; nothing is removed.
        """
        if num_groups > len(self._groups):
            raise IndexError(f"{num_groups} groups asked for, {len(self._groups)} buffered")
        chosen = [self._groups[index] for index in range(num_groups)]
        for group in chosen:
            if staleness(group, policy_version) > self._max_staleness:
                raise StalenessError(
                    f"group {group.group_id} was sampled at policy version {group.min_policy_version} and is consumed at {policy_version}: "
                    f"more than driver.max_staleness = {self._max_staleness}"
                )
        for _ in chosen:
            self._groups.popleft()
        return chosen
