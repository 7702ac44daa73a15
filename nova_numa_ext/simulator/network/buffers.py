# SPDX-License-Identifier: Apache-2.0
"""Applications that share a channel through a buffer of finite size, cut into lanes or not (Jokanović, section 5.3).

Slot by slot. In front of the channel is a buffer; each lane has an equal part of it, first in, first out. An
application in turn sends a burst and computes: while it sends it puts four packets a slot into its lane as far as there
is room, else it stalls, which is how a full buffer holds back who fills it, and who shares its lane. When the burst is
in the buffer it computes; a new burst begins when all packets of the last one have arrived. The channel passes a packet
a slot, of the lane that :class:`.arbiter.LaneArbiter` chooses. Behind it each application has an outlet of its own,
which may be slower: a packet whose outlet is busy waits at the head of its lane, and all behind it wait, too.

So a lane of its own saves an application from waiting behind packets of others, and has a smaller buffer, in which less
of a burst fits. Only signs are to be had: whether less is lost. What applications send and how fast their outlets are
are not the traces of the thesis, which are not published.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from nova_numa_ext.simulator.network.arbiter import LaneArbiter, ListedLane
from nova_numa_ext.simulator.network.contention import SharedRun, total_contention_s
from placement_traits.errors import InvalidValueError

BUFFER: Final = 16
"""Packets: 64 KB in segments of 4 KB, as in the thesis."""

_HOSTS: Final = 4  # that send into the channel at once, of an application: contention of 4:1
_SLOTS: Final = 60_000


@dataclass(frozen=True, slots=True)
class BurstyApplication:
    """An application in slots.

    :param sends: packets of a burst, >= 1
    :param computes: slots of computing after each, >= 0
    :param outlet: slots that its outlet is busy with a packet, >= 1
    """

    sends: int
    computes: int
    outlet: int = 1


@dataclass(slots=True)
class _Running:
    """An application that runs.

    :param unsent: packets of the burst that are not in the buffer yet
    :param under_way: packets that have not arrived
    :param computes: slots that are left of computing
    :param free_at: slot in which its outlet is free
    :param rounds: bursts that have begun
    """

    application: BurstyApplication
    unsent: int = 0
    under_way: int = 0
    computes: int = 0
    free_at: int = 0
    rounds: int = 0

    def step(self, queue: deque["_Running"], room: int) -> None:
        """Compute, send or stall for a slot."""
        if not self.unsent:
            if self.computes:
                self.computes -= 1
                return
            if self.under_way:
                return
            self.unsent, self.rounds = self.application.sends, self.rounds + 1
        put = min(_HOSTS, self.unsent, room - len(queue))
        queue.extend([self] * put)
        self.under_way += put
        self.unsent -= put
        if not self.unsent:
            self.computes = self.application.computes


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """Who is in which lane, and how much each lane may send in a row.

    :param lanes: of each application, 0 to 14
    :param weights: packets of each lane, by its number; empty: 1 each
    :param buffer: packets of all lanes together, which have equal parts
    """

    lanes: tuple[int, ...]
    weights: tuple[int, ...] = ()
    buffer: int = BUFFER
    room: int = field(init=False)
    """Packets of a lane."""

    def __post_init__(self) -> None:
        count = len({*self.lanes})
        if {*self.lanes} != {*range(count)} or len(self.weights) not in {0, count}:
            raise InvalidValueError("lanes", (self.lanes, self.weights), "0, 1 …, a weight each")
        if self.buffer < max(1, count):
            raise InvalidValueError("buffer", self.buffer, "a packet of each lane, or more")
        object.__setattr__(self, "room", self.buffer // max(1, count))


def round_slots(
    applications: Sequence[BurstyApplication], layout: LaneLayout, slots: int = _SLOTS
) -> list[float]:
    """Return how many slots a burst and its computing take each application, in the mean of a run.

    :param slots: that are run
    :raises InvalidValueError: not every application has a lane
    """
    if len(applications) != len(layout.lanes) or not applications:
        raise InvalidValueError("applications", len(applications), f"{len(layout.lanes)}")
    running = [_Running(each) for each in applications]
    queues: list[deque[_Running]] = [deque() for _ in {*layout.lanes}]
    weights = layout.weights or (1,) * len(queues)
    arbiter = LaneArbiter([], [ListedLane(*each) for each in enumerate(weights)], None)
    for now in range(slots):
        ready = {lane for lane, queue in enumerate(queues) if queue and queue[0].free_at <= now}
        lane = arbiter.chosen(ready) if ready else None
        if lane is not None:
            owner = queues[lane].popleft()
            owner.free_at = now + owner.application.outlet
            owner.under_way -= 1
        first = now % len(running)  # who shares a lane takes turns in asking for its last place
        for at in (*range(first, len(running)), *range(first)):
            running[at].step(queues[layout.lanes[at]], layout.room)
    return [slots / each.rounds for each in running]


def contention(
    applications: Sequence[BurstyApplication], layout: LaneLayout, slots: int = _SLOTS
) -> float:
    """Return what sharing costs all applications together, in parts of the time that each takes alone (Eq. 5.2).

    As in the thesis, alone an application has one lane with the smaller buffer of a lane of its own, whatever the
    layout is: it is the same for all layouts of so many applications.
    """
    shares = layout.buffer // len(applications)
    found = round_slots(applications, layout, slots)
    runs = []
    for application, sharing in zip(applications, found, strict=True):
        (alone,) = round_slots([application], LaneLayout((0,), buffer=shares), slots)
        runs.append(SharedRun(1, 1.0, sharing / alone))
    return total_contention_s(runs)
