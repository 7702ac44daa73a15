# SPDX-License-Identifier: Apache-2.0
"""The way from servers of this host to their leases: a vsock device in each, and the doorman's file.

What is there is read from libvirt's live XML again and again, and what lacks is plugged in: after a hard reboot, where
nova has written the XML again, too.

Between two epochs no host may use a lease for a moment, as when it moves. So it stays in the file for a while, by its
old epoch, which its gateway refuses: were it not offered to the guest, that would end its streams. As long a device
stays.

The doorman knows a guest by its CID, and a CID by the process that the file names. Both must be of one domain: a CID is
given to another guest when its first one has ended. So the process is looked up before the XML is read and again
after, and a server whose process was not the same is not in the file this time.

Sources: libvirt's domain XML format, "Vsock"; Linux vsock(7).
"""

import logging
import math
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Protocol

from host_agent.remote_gpu.answer import AttachedLease, lease_id
from host_agent.transports.transport import AttachedGpu, RemoteGpuTransport
from placement_traits.errors import InvalidValueError, NumaExtError
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_LOG: Final = logging.getLogger(__name__)
_VERSION: Final = 1
_FIRST_PORT: Final = 10_998
_LEAST_CID: Final = 3
_MOST_CID: Final = (1 << 32) - 2
_RETRY_S: Final = 30.0
_KEEPS_S: Final = 60.0
_HIGHEST_PORT: Final = 65_535
_LOOK_S: Final = 0.2
"""Seconds between two looks whether leases have come or gone."""


class Plugs(Protocol):
    """What plugs devices, and knows the processes of domains."""

    def plug_vsock(self, uuid: str) -> None:
        """Plug one in; raises NumaExtError where that cannot be."""

    def unplug_vsock(self, uuid: str) -> None:
        """Ask the guest to let go of it; raises NumaExtError where that cannot be."""

    def process(self, uuid: str) -> "DomainProcess":
        """Return a domain's process; raises NumaExtError where there is none."""


class DomainProcess(Protocol):
    """A process: number and start time together never come again."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def started(self) -> int:
        """When it began, clock ticks since boot."""


@dataclass(frozen=True, slots=True)
class GuestDomain:
    """A domain that runs, or is paused.

    :param uuid: of the server
    :param cid: of its vsock device, 0 where it has none
    :param ours: the device is one that a helper plugged in
    :param runs: devices can be plugged
    :param vgpus_per_gpu: as which each GPU is shown to its guest
    """

    uuid: str
    cid: int = 0
    ours: bool = False
    runs: bool = True
    vgpus_per_gpu: int = 1


def vsock(xml: str, alias: str) -> tuple[int, bool]:
    """Return the CID of a domain's vsock device, 0 for none, and whether the device is ours.

    :param xml: live, of libvirt
    :param alias: of devices that are ours
    :raises InvalidValueError: it is no XML, or names a CID that no guest can have
    """
    try:
        device = ET.fromstring(xml).find("./devices/vsock")
    except ET.ParseError as error:
        raise InvalidValueError("domain XML", xml[:80], f"well-formed XML ({error})") from error
    if device is None:
        return 0, False
    cid, name = device.find("cid"), device.find("alias")
    text = "" if cid is None else cid.get("address", "")
    if not (text.isascii() and text.isdecimal()) or not _LEAST_CID <= int(text) <= _MOST_CID:
        raise InvalidValueError("CID of a domain", text, f"{_LEAST_CID} to {_MOST_CID}")
    return int(text), name is not None and name.get("name") == alias


@dataclass(frozen=True, slots=True)
class Attachment:
    """A lease of a server of this host, as the doorman reads it (``link/doorman.go``).

    :param lease: its uuid
    :param epoch: with which the doorman may connect
    :param cid: of the guest
    :param pid: of the guest's process
    :param started: when that began, clock ticks since boot
    :param host: of the GPU, as its certificate names it
    :param address: of the lease's gateway
    :param mbps: promised, megabytes a second; 0: no limit
    :param port: first of the ports on the guest's 127.0.0.1
    :param ports: how many
    :param environment: by which the guest's programs find all GPUs of the guest; of its first lease, {} of others
    """

    lease: str
    epoch: int
    cid: int
    pid: int
    started: int
    host: str
    address: str
    mbps: int
    port: int
    ports: int
    environment: Mapping[str, str] = field(default_factory=dict)


def attachments_in(file: Path) -> JsonStore[tuple[Attachment, ...]]:
    """Return the doorman's file."""
    return JsonStore(
        file, _VERSION, _decoded, lambda found: {"attachments": [asdict(each) for each in found]}
    )


def _decoded(found: Value) -> tuple[Attachment, ...]:
    return tuple(_attachment(each) for each in found.member("attachments").items())


def _attachment(found: Value) -> Attachment:
    environment = found.member("environment").members()
    return Attachment(
        lease_id(found.member("lease").text()),
        found.member("epoch").integer(1),
        found.member("cid").integer(_LEAST_CID, _MOST_CID),
        found.member("pid").integer(1),
        found.member("started").integer(),
        found.member("host").text(),
        found.member("address").text(),
        found.member("mbps").integer(),
        found.member("port").integer(1, _HIGHEST_PORT),
        found.member("ports").integer(1, _HIGHEST_PORT),
        {name: value.text() for name, value in environment.items()},
    )


class Doors:
    """Leads servers of this host to their leases; for one thread at a time.

    :param plugs: plugs devices
    :param domains: returns the domains that run or are paused; raises NumaExtError where libvirt does not answer
    :param transport: that carries the leases of this host's servers
    :param file: of the doorman
    :param first_port: of a guest's 127.0.0.1
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        plugs: Plugs,
        domains: Callable[[], Sequence[GuestDomain]],
        transport: RemoteGpuTransport,
        file: Path,
        *,
        first_port: int = _FIRST_PORT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plugs = plugs
        self._domains = domains
        self._transport = transport
        self._ports = transport.capabilities().ports
        self._store = attachments_in(file)
        self._written = self._store.load()
        # A port that a guest knows stays its lease's, over restarts of this process, too.
        self._lease_ports = {each.lease: each.port for each in self._written or ()}
        self._first_port, self._clock = first_port, clock
        self._seen: dict[str, tuple[AttachedLease, float]] = {}
        self._tried_s: dict[str, float] = {}
        self._without_s: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    def turn(self, attaches: Sequence[AttachedLease]) -> None:
        """Plug, unplug, and write the file.

        :param attaches: leases of this host's servers that may connect
        :raises NumaExtError: libvirt does not answer; the file stays as it is
        :raises OSError: a file cannot be written
        """
        leases = self._remembered(attaches)
        servers = {each.server_id for each in leases}
        self._give_ports(leases)
        domains = self._look(leases)
        if self._plug(servers & domains.keys(), domains):
            domains = self._look(leases)
        self._unplug(servers, domains)

    def _remembered(self, attaches: Sequence[AttachedLease]) -> list[AttachedLease]:
        """Return the leases that may connect, and those that might a while ago, as they were then."""
        now_s = self._clock()
        known = self._seen | {each.id: (each, now_s) for each in attaches if each.gpu_host}
        self._seen = {lease: seen for lease, seen in known.items() if now_s - seen[1] < _KEEPS_S}
        return [each for each, _ in self._seen.values()]

    def _give_ports(self, leases: Sequence[AttachedLease]) -> None:
        """See that each lease has ports of its guest, those that it had while it is remembered."""
        ports = {
            each.id: self._lease_ports[each.id] for each in leases if each.id in self._lease_ports
        }
        for each in sorted(leases, key=lambda one: one.id):
            others = {
                ports[one.id]
                for one in leases
                if one.server_id == each.server_id and one.id in ports and one.id != each.id
            }
            if each.id not in ports or ports[each.id] in others:
                free = range(self._first_port, _HIGHEST_PORT, self._ports)
                ports[each.id] = next(port for port in free if port not in others)
        self._lease_ports = ports

    def _look(self, leases: Sequence[AttachedLease]) -> Mapping[str, GuestDomain]:
        """Write what the doorman leads guests by; return the domains that run."""
        servers = {each.server_id for each in leases}
        before = self._processes(servers)
        domains = {each.uuid: each for each in self._domains()}
        after = self._processes(uuid for uuid in before if uuid in domains and domains[uuid].cid)
        found: list[Attachment] = []
        for uuid in sorted(uuid for uuid in servers & domains.keys() if domains[uuid].cid):
            of_guest = [each for each in leases if each.server_id == uuid]
            if uuid in after and after[uuid] == before[uuid]:
                found += self._of_guest(domains[uuid], after[uuid], of_guest)
            else:
                # What was written was true of the process that it names, and the doorman looks whether that lives.
                ids, cid = {each.id for each in of_guest}, domains[uuid].cid
                written = self._written or ()
                found += [each for each in written if each.lease in ids and each.cid == cid]
        if tuple(found) != self._written:
            self._store.save(tuple(found))
            self._written = tuple(found)
        return domains

    def _processes(self, servers: Iterable[str]) -> dict[str, tuple[int, int]]:
        found = {}
        for uuid in servers:
            try:
                process = self._plugs.process(uuid)
            except (NumaExtError, OSError) as error:
                self._report(uuid, f"its process is not known: {error}")
            else:
                found[uuid] = process.pid, process.started
        return found

    def _of_guest(
        self, domain: GuestDomain, process: tuple[int, int], leases: Sequence[AttachedLease]
    ) -> list[Attachment]:
        """Return the attachments of one guest, in the order of their ports."""
        ordered = sorted(leases, key=lambda each: self._lease_ports[each.id])
        ports = [self._lease_ports[each.id] for each in ordered]
        try:
            gpus = [AttachedGpu(port) for port in ports]
            environment = self._transport.guest_environment(gpus, domain.vgpus_per_gpu)
        except InvalidValueError as error:
            self._report(domain.uuid, str(error))
            return []
        pid, started = process
        return [
            Attachment(
                each.id,
                each.epoch,
                domain.cid,
                pid,
                started,
                each.gpu_host,
                each.address,
                each.network_mbps,
                port,
                self._ports,
                {} if number else environment,
            )
            for number, (each, port) in enumerate(zip(ordered, ports, strict=True))
        ]

    def _plug(self, servers: set[str], domains: Mapping[str, GuestDomain]) -> bool:
        """Return whether a device was plugged in."""
        lacking = [uuid for uuid in sorted(servers) if domains[uuid].runs and not domains[uuid].cid]
        self._tried_s = {uuid: at for uuid, at in self._tried_s.items() if uuid in lacking}
        self._reported = {uuid: each for uuid, each in self._reported.items() if uuid in servers}
        plugged = False
        for uuid in lacking:
            if self._clock() < self._tried_s.get(uuid, 0.0):
                continue
            try:
                self._plugs.plug_vsock(uuid)
            except (NumaExtError, OSError) as error:
                self._tried_s[uuid] = self._clock() + _RETRY_S
                self._report(uuid, f"{error}; it needs a free PCIe port ([libvirt]num_pcie_ports)")
            else:
                plugged = True
                _LOG.info("server %s has a vsock device now", uuid)
        return plugged

    def _unplug(self, servers: set[str], domains: Mapping[str, GuestDomain]) -> None:
        now_s, without = self._clock(), domains.keys() - servers
        self._without_s = {
            uuid: self._without_s.get(uuid, now_s)
            for uuid in without
            if domains[uuid].ours and domains[uuid].runs
        }
        for uuid, since_s in self._without_s.items():
            if now_s - since_s < _KEEPS_S:
                continue
            self._without_s[uuid] = now_s  # asked again as late
            try:
                self._plugs.unplug_vsock(uuid)
            except (NumaExtError, OSError) as error:
                _LOG.warning("server %s keeps its vsock device: %s", uuid, error)
            else:
                _LOG.info("server %s has no lease: its vsock device goes", uuid)

    def _report(self, uuid: str, problem: str) -> None:
        if self._reported.get(uuid) != problem:
            self._reported[uuid] = problem
            _LOG.warning("server %s does not reach its leases: %s", uuid, problem)


class DoorsThread:
    """Takes turns of its own: a libvirt that hangs delays neither leases nor the report.

    :param doors: that are led
    :param attaches: returns the leases of this host's servers, None while they are not known
    :param interval_s: seconds between two turns while these are the same
    """

    def __init__(
        self,
        doors: Doors,
        attaches: Callable[[], Sequence[AttachedLease] | None],
        interval_s: float,
    ) -> None:
        self._doors, self._attaches, self._interval_s = doors, attaches, interval_s

    def start(self, stop: threading.Event) -> None:
        """Take turns in a thread that holds up no end of this process."""
        threading.Thread(target=self.run, args=(stop,), name="doors", daemon=True).start()

    def run(self, stop: threading.Event) -> None:
        """Take turns until the end is asked for."""
        problem = ""
        last: Sequence[AttachedLease] | None = None
        turned_s = -math.inf
        while not stop.wait(min(_LOOK_S, self._interval_s)):
            leases = self._attaches()
            if leases is None:
                continue  # what guests reach is as it was
            if leases == last and time.monotonic() - turned_s < self._interval_s:
                continue
            last, turned_s = leases, time.monotonic()
            try:
                self._doors.turn(leases)
                problem = ""
            except (NumaExtError, OSError) as error:
                if str(error) != problem:
                    problem = str(error)
                    _LOG.warning("guests reach their leases as before: %s", error)
            except Exception as error:  # noqa: BLE001 - the thread's outermost guard: logged, and the next turn is taken
                if repr(error) != problem:
                    problem = repr(error)
                    _LOG.exception("guests reach their leases as before")
