# SPDX-License-Identifier: Apache-2.0
"""The life of a lease of a remote GPU, and who may use it at each moment::

    RESERVED -> STARTING -> READY -> ATTACHED <-> DETACHED
       |           |          |        |  ^          |
       |           |          |        v  |          |        each of them -> LOST, where the GPU's host is silent
       |           |          |      MOVING          |        LOST -> STARTING, or RELEASING
       +-----------+----------+--------+-------------+-> RELEASING -> GONE

A request that waits is RESERVED, too, and Placement holds nothing for it yet. No lease leaves a host that has not
reported that it serves it no more: one whose GPU's host stays silent is LOST until that reports.

*The fence.* At each moment one client at most may use the GPU: the doorman of the server's host. Each lease has an
*epoch*, which rises whenever another client, another server process or another GPU host gets it. The gateway on the
GPU's host accepts connections of the epoch that it knows, and forgets the one before when it learns a newer one
(:mod:`.gateway`). So a new epoch goes two ways, one after the other::

    1. the GPU's host learns E + 1, cuts what epoch E has open, and acknowledges E + 1
    2. only then a client learns that it may connect with E + 1

A server process that is gone, by its own fault or not, is never followed by another one at its epoch: the GPU's host
reports that it is gone, and starts another one when it learns E + 1.

A lease that ends, or moves, does so the same way: its claim is released, or it starts elsewhere, when the host has
acknowledged that it serves it no more.
One that no host was ever asked to start has nothing to acknowledge.

A GPU host that does not answer has acknowledged nothing, and may still serve epoch E: the attachment waits, it is never
given to a second client by guess. Only an operator can say in its place that it is off. What hosts tell may come late
or twice; an acknowledgement counts for its epoch and those before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits.errors import NumaExtError


class LeaseState(StrEnum):
    """Where a lease is in its life."""

    RESERVED = "reserved"  # it waits for a GPU, or Placement holds its claim
    STARTING = "starting"  # the GPU's host starts its server process
    READY = "ready"  # that runs, and no client may connect
    ATTACHED = "attached"  # a client may connect
    DETACHED = "detached"  # the server is stopped, its process waits
    MOVING = "moving"  # to another GPU: its process is being ended
    LOST = "lost"  # its GPU's host is silent
    RELEASING = "releasing"  # its process is being ended, its claim released
    GONE = "gone"

    @property
    def final(self) -> bool:
        """Nothing follows."""
        return self is LeaseState.GONE


_S = LeaseState
TRANSITIONS: Final[Mapping[LeaseState, frozenset[LeaseState]]] = MappingProxyType(
    {
        _S.RESERVED: frozenset({_S.STARTING, _S.RELEASING}),
        _S.STARTING: frozenset({_S.READY, _S.LOST, _S.RELEASING}),
        _S.READY: frozenset({_S.ATTACHED, _S.STARTING, _S.LOST, _S.RELEASING}),
        _S.ATTACHED: frozenset({_S.DETACHED, _S.STARTING, _S.MOVING, _S.LOST, _S.RELEASING}),
        _S.DETACHED: frozenset({_S.STARTING, _S.LOST, _S.RELEASING}),
        _S.MOVING: frozenset({_S.STARTING, _S.LOST, _S.RELEASING}),
        _S.LOST: frozenset({_S.STARTING, _S.RELEASING}),
        _S.RELEASING: frozenset({_S.GONE}),
        _S.GONE: frozenset(),
    }
)
"""What may follow each state."""


class LeaseError(NumaExtError):
    """A lease would go where its state does not lead.

    :param lease: its uuid
    :param state: where it is
    :param to: where it should have gone
    """

    def __init__(self, lease: str, state: LeaseState, to: LeaseState) -> None:
        super().__init__(lease, state, to)
        self.lease, self.state, self.to = lease, state, to

    def __str__(self) -> str:
        allowed = ", ".join(sorted(TRANSITIONS.get(self.state, ()))) or "nothing, it has ended"
        return (
            f"Lease {self.lease} is {self.state} and cannot become {self.to}; allowed: {allowed}."
        )


class UnfencedError(NumaExtError):
    """A host may still serve a client of a lease that would go elsewhere.

    :param lease: its uuid
    :param host: that has not acknowledged
    """

    def __init__(self, lease: str, host: str) -> None:
        super().__init__(lease, host)
        self.lease, self.host = lease, host

    def __str__(self) -> str:
        return f"Lease {self.lease} cannot leave host {self.host}, which may still serve a client of it."


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease.

    :param uuid: its own, and its consumer's in Placement
    :param gpu_host: where its server process runs
    :param client_host: whose doorman may connect; '' where no client may
    :param state: where it is in its life
    :param epoch: that counts now, from 1
    :param acknowledged: newest epoch that its GPU's host has acknowledged, 0 before the first
    """

    uuid: str
    gpu_host: str
    client_host: str = ""
    state: LeaseState = LeaseState.RESERVED
    epoch: int = 1
    acknowledged: int = 0

    @property
    def fenced(self) -> bool:
        """The GPU's host serves no epoch but this one: a client may connect."""
        return self.acknowledged >= self.epoch

    def may_connect(self, host: str) -> int | None:
        """Return the epoch with which a host's doorman may connect, None while it may not."""
        attached = self.state is LeaseState.ATTACHED and self.fenced
        return self.epoch if attached and host and host == self.client_host else None

    def epoch_at(self, host: str) -> int | None:
        """Return the epoch that a GPU's host is to serve, None where it is to serve none of this lease."""
        ended = self.state in _NOT_SERVED
        return None if ended or host != self.gpu_host else self.epoch

    def ends_at(self, host: str) -> int | None:
        """Return the epoch that a GPU's host acknowledges by ending the process, None where it has none to end."""
        ends = self.state in _BEING_ENDED and host == self.gpu_host
        return self.epoch if ends else None


_BEING_ENDED: Final = frozenset({_S.MOVING, _S.RELEASING})
_NOT_SERVED: Final = frozenset({_S.RESERVED, _S.GONE}) | _BEING_ENDED


def to(lease: Lease, state: LeaseState) -> Lease:
    """Return a lease in another state.

    :raises LeaseError: its state does not lead there
    """
    if state not in TRANSITIONS[lease.state]:
        raise LeaseError(lease.uuid, lease.state, state)
    return replace(lease, state=state)


def start(lease: Lease) -> Lease:
    """Return a lease whose GPU's host is to start its server process. Errors as of :func:`to`."""
    return to(lease, LeaseState.STARTING)


def acknowledge(lease: Lease, host: str, epoch: int) -> Lease:
    """Return a lease after a GPU's host reported that it serves an epoch and none before.

    Of another host, of an epoch that never was, or of one that is known already, it changes nothing.
    """
    if host != lease.gpu_host or not lease.acknowledged < epoch <= lease.epoch:
        return lease
    found = replace(lease, acknowledged=epoch)
    starting = lease.state is LeaseState.STARTING
    return to(found, LeaseState.READY) if starting and found.fenced else found


def fail(lease: Lease, host: str, epoch: int) -> Lease:
    """Return a lease after a GPU's host reported that the process is gone that served an epoch.

    What was in the GPU is lost: it is attached again when the host has acknowledged the new epoch, by another process.
    Of another host, of an epoch that does not count any more, or where it is not to be served, it changes nothing.
    """
    if epoch != lease.epoch_at(host):
        return lease
    starts = lease.state in {LeaseState.READY, LeaseState.ATTACHED}
    state = LeaseState.STARTING if starts else lease.state
    return replace(lease, state=state, client_host="", epoch=epoch + 1)


def attach(lease: Lease, client_host: str) -> Lease:
    """Return a lease that a host's doorman may use; it is READY, so the GPU's host has acknowledged.

    :raises LeaseError: it is not READY
    """
    return replace(to(lease, LeaseState.ATTACHED), client_host=client_host)


def detach(lease: Lease) -> Lease:
    """Return a lease that no client may use: its server was stopped. Errors as of :func:`to`."""
    return replace(to(lease, LeaseState.DETACHED), client_host="", epoch=lease.epoch + 1)


def restart(lease: Lease) -> Lease:
    """Return a lease whose client is another one, or begins again: moved, rebooted or started.

    It is attached again when the GPU's host has acknowledged the new epoch. Errors as of :func:`to`.
    """
    return replace(to(lease, LeaseState.STARTING), client_host="", epoch=lease.epoch + 1)


def move(lease: Lease) -> Lease:
    """Return a lease that is being moved to another GPU; its client may not connect until it is there."""
    return replace(to(lease, LeaseState.MOVING), client_host="", epoch=lease.epoch + 1)


def arrive(lease: Lease, gpu_host: str) -> Lease:
    """Return a lease that is on another GPU's host, or back on its own; that host has acknowledged nothing yet.

    :raises UnfencedError: the host that it leaves has not acknowledged the move
    :raises LeaseError: it does not move
    """
    if not lease.fenced:
        raise UnfencedError(lease.uuid, lease.gpu_host)
    there = replace(to(lease, LeaseState.STARTING), gpu_host=gpu_host, epoch=lease.epoch + 1)
    return replace(there, acknowledged=0)


def lose(lease: Lease) -> Lease:
    """Return a lease whose GPU's host has been silent too long; no client may connect. Errors as of :func:`to`."""
    return replace(to(lease, LeaseState.LOST), client_host="", epoch=lease.epoch + 1)


def release(lease: Lease) -> Lease:
    """Return a lease that ends; one that no host has learned of needs no acknowledgement. Errors as of :func:`to`."""
    epoch = lease.epoch + 1
    known = lease.state is not LeaseState.RESERVED
    ending = replace(to(lease, LeaseState.RELEASING), client_host="", epoch=epoch)
    return ending if known else replace(ending, acknowledged=epoch)


def write_off(lease: Lease) -> Lease:
    """Return a lease that ends after an operator said that its GPU's host is off.

    That is the acknowledgement which a host that is off cannot give: it serves no client of any epoch. Errors as of
    :func:`to`.
    """
    ending = lease if lease.state is LeaseState.RELEASING else release(lease)
    return replace(ending, acknowledged=ending.epoch)


def recovered(lease: Lease, seen: int, gpu_host: str, *, known: bool) -> Lease:
    """Return a lease of an old database at an epoch above all that may have been counted since its backup.

    No client of an older one may connect; who used it attaches again when the GPU's host has acknowledged.

    :param seen: the highest epoch that a host may know of it, 0: none
    :param gpu_host: of the GPU that it holds
    :param known: a host may serve it
    """
    starts = known and lease.state is not LeaseState.RELEASING
    return replace(
        lease,
        gpu_host=gpu_host,
        client_host="",
        state=LeaseState.STARTING if starts else lease.state,
        epoch=1 + max(lease.epoch, seen),
        acknowledged=0,
    )


def end(lease: Lease) -> Lease:
    """Return a lease that has ended; its claim was released.

    :raises UnfencedError: the GPU's host has not acknowledged that it serves it no more
    :raises LeaseError: it does not end
    """
    gone = to(lease, LeaseState.GONE)
    if not lease.fenced:
        raise UnfencedError(lease.uuid, lease.gpu_host)
    return gone
