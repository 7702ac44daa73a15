# SPDX-License-Identifier: Apache-2.0
"""Why a lease of a remote GPU is where it is: the terms of its reasons, each with the sentence for people.

None of them names a host or another project. Which user asked for a lease tenants may read, and of no other one.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits import reason as reasons
from placement_traits.reason import Reason


class LeaseTerm(StrEnum):
    """Reasons of a lease's state."""

    ASKED = "asked"
    FLAVOR = "flavor"
    HELD = "held"
    NO_GPU = "no_gpu"
    CLIENT_NETWORK = "client_network"
    IN_ORDER = "in_order"
    RELEASED = "released"
    CANCELLED = "cancelled"
    MAX_WAIT = "max_wait"
    STARTING = "starting"
    ATTACHED = "attached"
    STOPPED = "stopped"
    STOPPED_LONG = "stopped_long"
    HOST_SILENT = "host_silent"
    SERVER_GONE = "server_gone"
    PROCESS_GONE = "process_gone"
    HOST_OFF = "host_off"
    MOVE_ASKED = "move_asked"
    NO_MOVE = "no_move"
    MOVING = "moving"
    MOVED = "moved"
    CARRIED = "carried"
    MOVE_FAILED = "move_failed"
    MAKES_ROOM = "makes_room"
    MOVES_FOR_IT = "moves_for_it"
    ROOM_BY_MOVES = "room_by_moves"
    BY_USE = "by_use"
    GIVES_WAY = "gives_way"
    GIVE_WAY_TO_IT = "give_way_to_it"
    ROOM_BY_SCAVENGERS = "room_by_scavengers"
    AGAIN = "again"
    REPLACED = "replaced"
    IN_PLACE_OF = "in_place_of"
    ADOPTED = "adopted"
    ENDED_SINCE = "ended_since"


LEASE_SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        LeaseTerm.ASKED: "asked for by {value}",
        LeaseTerm.FLAVOR: "its server runs, and the flavor of that asks for it",
        LeaseTerm.HELD: "Placement holds what it needs",
        LeaseTerm.NO_GPU: "no GPU of a pool has {value} and {against} MiB left",
        LeaseTerm.CLIENT_NETWORK: "the NIC of its server's host does not have {value} MB/s left",
        LeaseTerm.RELEASED: "released by {value}",
        LeaseTerm.CANCELLED: "its job was cancelled",
        LeaseTerm.MAX_WAIT: "its job waited {value} s, max_wait is {against} s",
        LeaseTerm.IN_ORDER: "leases that were asked for before it wait for the GPUs that it could get",
        LeaseTerm.STARTING: "the host of its GPU is to serve it",
        LeaseTerm.ATTACHED: "the host of its server may connect",
        LeaseTerm.STOPPED: "its server does not run",
        LeaseTerm.STOPPED_LONG: "its server has not run for {value} s; its GPU is kept for {against} s",
        LeaseTerm.HOST_SILENT: "the host of its GPU has not reported for {value} s",
        LeaseTerm.SERVER_GONE: "its server is on no host any more",
        LeaseTerm.PROCESS_GONE: "what served it has ended, and all that was in the GPU with it: it is started again",
        LeaseTerm.HOST_OFF: "the host of its GPU is off, as an operator has said",
        LeaseTerm.MOVE_ASKED: "an operator has asked for another GPU",
        LeaseTerm.NO_MOVE: "it does not move: no other GPU in reach had room, or its server did not use it",
        LeaseTerm.MOVING: "the host of its GPU ends it, to start it on another GPU",
        LeaseTerm.MOVED: "it starts on another GPU, with empty memory",
        LeaseTerm.CARRIED: "it goes on on another GPU, with all that it had",
        LeaseTerm.MOVE_FAILED: "it goes on where it was, as it could not be moved: {value}",
        LeaseTerm.MAKES_ROOM: "it goes to another GPU, to make room for a lease that waits",
        LeaseTerm.MOVES_FOR_IT: "leases that go to other GPUs, to make room for it: {value}",
        LeaseTerm.ROOM_BY_MOVES: "leases that would make room for it if they went to other GPUs: {value}",
        LeaseTerm.BY_USE: "it goes to another GPU, by how busy or how fast GPUs are",
        LeaseTerm.GIVES_WAY: "it gives its GPU up, to a lease of a higher service level that waits",
        LeaseTerm.GIVE_WAY_TO_IT: "scavengers that give their GPUs up for it: {value}",
        LeaseTerm.ROOM_BY_SCAVENGERS: "scavengers that would make room for it if they gave their GPUs up: {value}",
        LeaseTerm.AGAIN: "asked for again in place of lease {value}, which gave its GPU up",
        LeaseTerm.REPLACED: "lease {value} was asked for in its place",
        LeaseTerm.IN_PLACE_OF: "asked for in place of lease {value}, whose GPU's host is silent",
        LeaseTerm.ADOPTED: "an older state of the service was restored: its server connects again",
        LeaseTerm.ENDED_SINCE: "an older state of the service was restored, and it had ended since",
    }
)


OF_LEASES: Final = "leases"
"""Where a reason of a job is about that is one of its leases: terms of jobs and leases may be spelled alike."""

OTHERS_SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        LeaseTerm.ASKED: "asked for by another user",
        LeaseTerm.RELEASED: "released by another user",
        LeaseTerm.MOVE_FAILED: "it goes on where it was, as it could not be moved",
    }
)
"""What tenants read of the terms that name a user, where it is not the lease's own, or what a host has reported."""


def lease_sentence(reason: Reason) -> str:
    """Return a reason as a sentence for people."""
    return reasons.sentence(reason, LEASE_SENTENCES)


def lease_for_tenants(reason: Reason, user: str) -> tuple[Reason, str]:
    """Return what tenants may know of a reason, with its sentence; of a term that is not known here, its name.

    :param user: who asked for the lease
    """
    if reason.term not in LEASE_SENTENCES:
        return Reason(reason.term, ""), str(reason.term)
    if reason.term in OTHERS_SENTENCES and reason.value != user:
        return replace(reason, value=""), OTHERS_SENTENCES[reason.term]
    return reason, lease_sentence(reason)
