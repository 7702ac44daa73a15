# SPDX-License-Identifier: Apache-2.0
"""Look at the host: domains, threads, where guest memory is, how much is free.

Cheap looks (threads, sampled pages) happen every round; expensive ones (domain XML, page tables, the topology) at
events, at resyncs and after moves that the mover cannot tell the end of. A server that cannot be read is reported with
its problem and does not keep the others from being seen.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from host_agent.machine.libvirt import DomainSource, ListedDomain
from host_agent.machine.privileged.api import Privileged
from host_agent.model.assignment import Guest, Observation
from host_agent.model.pages import SAMPLE_MIN, ram_shares, sample_agrees
from host_agent.model.process import LOOKED_AT_ONCE, Look, Process, RamRange
from host_agent.model.workload import Activity, Unmanaged, Workload, parse
from host_agent.observe.machine_files import MachineFiles
from placement_traits.errors import InvalidValueError, NumaExtError, ServiceUnavailableError
from placement_traits.topology import HostTopology

LOG = logging.getLogger(__name__)

WALK_S: Final = 300.0
"""Seconds after which the page tables of a server are walked again, whatever a sample shows."""

_NO_RAM: Final = "its memory was not found among its mappings, so its pages stay"


@dataclass(frozen=True, slots=True)
class _Memory:
    """Guest memory as the last full pass saw it, or the mover left it, and the process it belongs to.

    :param at: when, seconds
    :param reported: by the mover, and not compared with a sample yet
    :param sampled: node -> pages of the sample right before that pass; empty where none was taken
    """

    pid: int
    started: int
    ram: tuple[RamRange, ...]
    at: float
    reported: bool = False
    sampled: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerScope:
    """Which servers are looked at.

    :param manage_untagged: see :func:`host_agent.model.workload.parse`
    :param denied: returns the servers that must not be touched
    :param read_all: read processes and memory of unmanaged servers, too (to show them)
    """

    manage_untagged: bool = False
    denied: Callable[[], Collection[str]] = frozenset
    read_all: bool = False


class Observer:
    """Makes observations and remembers what is expensive to read.

    :param source: domains
    :param privileged: processes and memory
    :param machine: topology, free memory and devices
    :param scope: which servers it looks at
    :param sample_pages: pages looked up per memory range in a cheap look
    :param progress: called before each look, at some servers at once, and before each walk over page tables
    """

    def __init__(
        self,
        source: DomainSource,
        privileged: Privileged,
        machine: MachineFiles,
        *,
        scope: ServerScope = ServerScope(),
        sample_pages: int = 512,
        progress: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._privileged = privileged
        self._machine = machine
        self._scope = scope
        self._sample_pages = sample_pages
        self._progress = progress
        self._clock = clock
        self._workloads: dict[str, Workload] = {}
        self._seen: dict[str, ListedDomain] = {}
        self._memory: dict[str, _Memory] = {}
        self._warned: dict[str, str] = {}
        self._last: Observation | None = None

    def observe(self, *, full: bool, relist: bool) -> Observation:
        """Look at the host.

        :param full: read the topology, and walk the page tables of every managed server but those whose last walk is
            younger than :data:`WALK_S` and of whose pages a sample finds as many on each node as right before it
        :param relist: ask libvirt for its domains; else those of the last time are taken
        :raises ServiceUnavailableError: libvirt does not answer
        """
        if relist:
            self._list()
        topology = self._machine.topology(full=full)
        denied = self._scope.denied()
        workloads = [
            workload.denied if workload.uuid in denied else workload
            for workload in self._workloads.values()
        ]
        return self._seen_now(topology, self._guests(workloads, full=full))

    def again(self, changed: Collection[str]) -> Observation:
        """Look again, cheaply, at some servers only; the others are as they were seen last.

        :param changed: their UUIDs
        """
        last = self._last or self.observe(full=False, relist=False)
        workloads = [guest.workload for guest in last.guests if guest.uuid in changed]
        seen = {guest.uuid: guest for guest in self._guests(workloads, full=False)}
        guests = tuple(seen.get(guest.uuid, guest) for guest in last.guests)
        return self._seen_now(last.topology, guests)

    def _seen_now(self, topology: HostTopology, guests: tuple[Guest, ...]) -> Observation:
        free = {node: self._machine.free_mb(node) for node in topology.node_ids}
        self._last = Observation(topology, guests, free)
        return self._last

    @property
    def has_looked(self) -> bool:
        """The host was seen at least once."""
        return self._last is not None

    def forget_memory(self, uuid: str) -> None:
        """Walk the page tables of a server again at the next look."""
        self._memory.pop(uuid, None)

    def moved(self, uuid: str, ram: Sequence[RamRange]) -> None:
        """Take note that the pages of a server were moved.

        The mover's word holds for what it has walked as a whole, when the sample of the next look agrees with it; else
        page tables are walked again.

        :param ram: the ranges as the mover has left them
        """
        known = self._memory.pop(uuid, None)
        left = {(found.start, found.end): found for found in ram}
        if known and left.keys() == {(found.start, found.end) for found in known.ram}:
            self._memory[uuid] = replace(
                known, ram=tuple(ram), at=self._clock(), reported=True, sampled={}
            )

    def _list(self) -> None:
        listed = {domain.uuid: domain for domain in self._source.domains()}
        workloads = {}
        for uuid, domain in listed.items():
            if domain.activity is Activity.OFF:
                continue
            if self._seen.get(uuid) == domain:
                workloads[uuid] = self._workloads[uuid]
                continue
            try:
                workload = parse(
                    domain.xml, domain.activity, manage_untagged=self._scope.manage_untagged
                )
            except NumaExtError as error:
                self._warn(uuid, f"domain {uuid} is skipped: {error}")
                continue
            workloads[uuid] = workload
            self.forget_memory(uuid)
            if workload.unmanaged is Unmanaged.MALFORMED:
                self._warn(uuid, f"server {uuid} is left alone: {workload.problem}")
        self._seen = {uuid: domain for uuid, domain in listed.items() if uuid in workloads}
        self._workloads = workloads
        self._memory = {uuid: seen for uuid, seen in self._memory.items() if uuid in listed}
        self._warned = {uuid: text for uuid, text in self._warned.items() if uuid in listed}

    def _warn(self, uuid: str, sentence: str) -> None:
        """Log it once, and again only when it changes."""
        if self._warned.get(uuid) != sentence:
            self._warned[uuid] = sentence
            LOG.warning("%s", sentence)

    def _guests(self, workloads: Sequence[Workload], *, full: bool) -> tuple[Guest, ...]:
        looks = self._looks([workload for workload in workloads if self._read(workload)])
        return tuple(self._guest(found, looks.get(found.uuid), full=full) for found in workloads)

    def _read(self, workload: Workload) -> bool:
        """Tell whether a server's process is read.

        A bound one counts even when it is left alone: what nova promised it and it has not touched is not free.
        """
        bound = bool(workload.domain.cells)
        return workload.request is not None or bound or self._scope.read_all

    def _looks(self, workloads: Sequence[Workload]) -> dict[str, Look]:
        found: dict[str, Look] = {}
        while left := workloads[len(found) :]:
            some = left[:LOOKED_AT_ONCE]
            self._progress()
            try:
                found |= self._look(some)
            except ServiceUnavailableError as error:  # the others would wait for it as long
                return found | {workload.uuid: Look(problem=str(error)) for workload in left}
            except (NumaExtError, OSError):
                for workload in some:
                    found |= self._look_alone(workload)
        return found

    def _look_alone(self, workload: Workload) -> dict[str, Look]:
        """Look at one of some that cannot be looked at together."""
        self._progress()
        try:
            return self._look([workload])
        except (NumaExtError, OSError) as error:
            return {workload.uuid: Look(problem=str(error))}

    def _look(self, workloads: Sequence[Workload]) -> dict[str, Look]:
        """Return the looks at the first of some servers, at one at least."""
        asked = [(workload.uuid, self._known_ranges(workload)) for workload in workloads]
        looks = self._privileged.look(asked, self._sample_pages)
        if not 1 <= len(looks) <= len(asked):
            raise InvalidValueError("looks of the helper", len(looks), f"1 to {len(asked)}")
        return {uuid: look for (uuid, _), look in zip(asked, looks, strict=False)}

    def _known_ranges(self, workload: Workload) -> list[tuple[int, int]]:
        acted_on = workload.request and workload.activity is Activity.RUNNING
        known = self._memory.get(workload.uuid) if acted_on else None
        return _ranges(known.ram) if known else []

    def _guest(self, workload: Workload, look: Look | None, *, full: bool) -> Guest:
        gpus = {address: self._machine.node_of(address) for address in workload.domain.pci_devices}
        if look is None or look.process is None:
            return Guest(workload, problem=look.problem if look else "", gpus=gpus)
        try:
            memory, fresh = self._ram(workload.uuid, look.process, dict(look.pages), full=full)
        except (NumaExtError, OSError) as error:
            return Guest(workload, problem=str(error), gpus=gpus)
        sampled = {} if fresh else _shares(dict(look.pages))
        age = self._clock() - memory.at
        problem = "" if memory.ram else _NO_RAM
        return Guest(workload, look.process, memory.ram, age, sampled, problem, gpus)

    def _ram(
        self, uuid: str, process: Process, pages: Mapping[int, int], *, full: bool
    ) -> tuple[_Memory, bool]:
        """Return what is known of a server's memory, and whether it is newer than the sample, or as new."""
        known = self._memory.get(uuid)
        if known and (known.pid, known.started) != (process.pid, process.started):
            known = None
        if known and full and self._unchanged(known, pages):
            return known, True
        if known and not full and not known.reported:
            return known, False
        if known and not full and sample_agrees(pages, ram_shares(known.ram)):
            self._memory[uuid] = replace(known, reported=False)
            return known, True
        self._progress()
        ram = self._privileged.guest_ram(uuid)
        memory = _Memory(process.pid, process.started, ram, self._clock())
        if known and _ranges(known.ram) == _ranges(ram):
            memory = replace(memory, sampled=pages)
        if ram:  # a process that has just begun has not mapped it yet: look again
            self._memory[uuid] = memory
        return memory, True

    def _unchanged(self, known: _Memory, pages: Mapping[int, int]) -> bool:
        """Tell whether a sample of the same pages as before finds each node's as it did then."""
        young = self._clock() - known.at < WALK_S
        return young and pages == known.sampled and sum(pages.values()) >= SAMPLE_MIN


def _ranges(ram: Sequence[RamRange]) -> list[tuple[int, int]]:
    return [(found.start, found.end) for found in ram]


def _shares(pages: Mapping[int, int]) -> Mapping[int, float]:
    """Return node -> share of sampled pages; nothing where there are too few."""
    total = sum(pages.values())
    return {n: count / total for n, count in pages.items()} if total >= SAMPLE_MIN else {}
