# SPDX-License-Identifier: Apache-2.0
"""Release what server groups hold of a fabric and no server of theirs uses any more.

nova-scheduler claims leafs for a group before its servers have hosts. Where all of them fail then, or the scheduler is
killed, the claim stays; this finds it. A group is alive while one of its members is on a host, or is still to be
placed: nova-api makes a request's servers members before nova-scheduler sees the request. Members that failed stay in
the group, in ERROR and without a host.

Nova lets a group be deleted while its servers run, and does not show then whose members they were. So what a group
holds that nova does not know is left, unless who sweeps can see where the servers of its project are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from placement_traits.claims import Claim

_FAILED: Final = frozenset({"ERROR", "DELETED"})


class SweepResult(StrEnum):
    """What became of a claim."""

    RELEASED = "released"
    WOULD = "would"  # a dry run
    ALIVE = "alive"
    UNKNOWN = "unknown"  # to nova, and servers may use it
    CHANGED = "changed"  # meanwhile; it is looked at in the next run


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A server of a group, as nova shows it.

    :param status: such as ACTIVE, BUILD or ERROR
    :param host: where it is, '' for nowhere
    :param name: of the server
    """

    status: str
    host: str
    name: str = ""

    @property
    def is_live(self) -> bool:
        """It uses what its group holds, or may do so yet: it is shelved, not placed yet, or in a cell that is down."""
        return bool(self.host) or self.status not in _FAILED


class GroupMembers(Protocol):
    """Nova's server groups."""

    def members(self, group: str) -> list[GroupMember] | None:
        """Return the members of a group that are not deleted; None where nova does not know the group."""


class GroupClaims(Protocol):
    """What groups hold of fabrics."""

    def all(self) -> list[Claim]:
        """Return the claims of all groups."""

    def release_dead(self, claim: Claim) -> bool:
        """Release a claim as it was read; return False where it has changed since."""


def sweep(
    claims: GroupClaims,
    servers: GroupMembers,
    *,
    dry_run: bool = False,
    may_be_used: Callable[[Claim], bool] | None = None,
) -> Iterator[tuple[Claim, SweepResult]]:
    """Look at the claim of each group; yield it with what became of it.

    Members are read after the claim: a claim that is released was held when none of them was alive.

    :param dry_run: nothing is released
    :param may_be_used: whether a server may use the claim of a group that nova does not know; None: each may
    """
    for claim in claims.all():
        members = servers.members(claim.consumer)
        if members is None and (may_be_used is None or may_be_used(claim)):
            yield claim, SweepResult.UNKNOWN
        elif any(member.is_live for member in members or ()):
            yield claim, SweepResult.ALIVE
        elif dry_run:
            yield claim, SweepResult.WOULD
        elif claims.release_dead(claim):
            yield claim, SweepResult.RELEASED
        else:
            yield claim, SweepResult.CHANGED
