# SPDX-License-Identifier: Apache-2.0
"""Release what server groups hold of a fabric and no server of theirs uses any more.

nova-scheduler claims leafs for a group before its servers have hosts. Where all of them fail then, or the scheduler is
killed, the claim stays; this finds it. A group is alive while one of its members is on a host, or is still to be
placed: nova-api makes a request's servers members before nova-scheduler sees the request. Members that failed stay in
the group, in ERROR and without a host.

Nova lets a group be deleted while its servers run, and does not show then whose members they were. So what a group
holds that nova does not know is left, unless who sweeps can see where the servers of its project are
(:mod:`.forgotten_groups`).

A group that shares uplinks holds only those. They follow its servers: a leaf that none of them is on any more is given
back, one that they have come to is taken where there is room; not while a server is on its way.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from placement_traits.claims import Amounts, Claim

_FAILED: Final = frozenset({"ERROR", "DELETED"})


class SweepResult(StrEnum):
    """What became of a claim."""

    RELEASED = "released"
    WOULD = "would"  # a dry run
    ALIVE = "alive"
    FOLLOWED = "followed"  # the uplinks that it shares are those of its servers again
    WOULD_FOLLOW = "would_follow"  # a dry run
    UNKNOWN = "unknown"  # to nova, and servers may use it
    CHANGED = "changed"  # meanwhile; it is looked at in the next run


class Swept(NamedTuple):
    """A claim and what became of it.

    :param claim: as it was
    :param after: what the group holds now, or would hold
    """

    claim: Claim
    result: SweepResult
    after: Amounts


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A server of a group, as nova shows it.

    :param status: such as ACTIVE, BUILD or ERROR
    :param host: where it is, '' for nowhere
    :param name: of the server
    :param moves: nova is doing something with it, after which it may be elsewhere
    :param uuid: of the server
    """

    status: str
    host: str
    name: str = ""
    moves: bool = False
    uuid: str = ""

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

    def follow(self, claim: Claim, hosts: Collection[str], *, dry_run: bool) -> Amounts | None:
        """Let the uplinks that a group shares be those of its servers; a claim of more than uplinks stays.

        :param claim: as it was read
        :param hosts: compute nodes with servers of the group
        :param dry_run: nothing is written
        :returns: what it holds now; None where it has changed since it was read
        """


def sweep(
    claims: GroupClaims,
    servers: GroupMembers,
    *,
    dry_run: bool = False,
    may_be_used: Callable[[Claim], bool] | None = None,
    only: str | None = None,
) -> Iterator[Swept]:
    """Look at the claim of each group; yield it with what became of it.

    Members are read after the claim: a claim that is released was held when none of them was alive.

    :param dry_run: nothing is released
    :param may_be_used: whether a server may use the claim of a group that nova does not know; None: each may
    :param only: a group's uuid: no claim of another is looked at
    """
    for claim in (each for each in claims.all() if only in (None, each.consumer)):
        members = servers.members(claim.consumer)
        if members is None and (may_be_used is None or may_be_used(claim)):
            yield Swept(claim, SweepResult.UNKNOWN, claim.amounts)
        elif any(member.is_live for member in members or ()):
            yield _followed(claims, claim, members or (), dry_run=dry_run)
        elif dry_run:
            yield Swept(claim, SweepResult.WOULD, {})
        elif claims.release_dead(claim):
            yield Swept(claim, SweepResult.RELEASED, {})
        else:
            yield Swept(claim, SweepResult.CHANGED, claim.amounts)


def _followed(
    claims: GroupClaims, claim: Claim, members: Collection[GroupMember], *, dry_run: bool
) -> Swept:
    """Let the uplinks of a group that is alive follow its servers, while none of them is on its way."""
    if any(member.moves for member in members):
        return Swept(claim, SweepResult.ALIVE, claim.amounts)
    hosts = {member.host for member in members if member.host}
    after = claims.follow(claim, hosts, dry_run=dry_run)
    if after is None:
        return Swept(claim, SweepResult.CHANGED, claim.amounts)
    if after == claim.amounts:
        return Swept(claim, SweepResult.ALIVE, after)
    return Swept(claim, SweepResult.WOULD_FOLLOW if dry_run else SweepResult.FOLLOWED, after)
