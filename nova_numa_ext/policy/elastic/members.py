# SPDX-License-Identifier: Apache-2.0
"""Which members leave a group that shrinks.

Only members that the controller created may leave; what users have put into the group is theirs. In this order:

1. members whose host's agent cannot keep others from disturbing them
2. the worst-placed
3. the youngest: it has the least data to move
4. by name, so that two controllers say the same
"""

from collections.abc import Iterable

from nova_numa_ext.policy.elastic.period import Member


def leaving(members: Iterable[Member], count: int) -> tuple[str, ...]:
    """Return the names of the members that leave, first the one that leaves first.

    :param count: at most so many; fewer are returned when fewer were created here
    """
    ours = [member for member in members if member.created_here]
    ours.sort(key=lambda one: (not one.cannot_fix, one.placement, one.age_s, one.name))
    return tuple(one.name for one in ours[: max(count, 0)])
