# SPDX-License-Identifier: Apache-2.0
"""What the job service asks of a host about leases, and what the host reports: ``/v1/hosts/HOST/leases``."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from placement_traits.errors import InvalidValueError
from placement_traits.plain import Value
from placement_traits.remote_gpu_request import RemoteGpuRequest


@dataclass(frozen=True, slots=True)
class ServedLease:
    """A lease whose server process this host is to run.

    :param id: its uuid
    :param epoch: that counts now
    :param gpu: provider of the GPU
    :param memory_mb: of the GPU, MiB
    :param service_level: part of its time
    :param api: by which the GPU is used
    :param network_mbps: promised on this host's NIC, megabytes a second; 0: what others leave
    :param client_host: that may connect, as its certificate names it; '': none, or the service is too old to say
    """

    id: str
    epoch: int
    gpu: str
    memory_mb: int
    service_level: str
    api: str
    network_mbps: int
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class EndedLease:
    """A lease of which no process is to run here any more.

    :param id: its uuid
    :param epoch: that is acknowledged by it
    """

    id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SentLease:
    """A lease of which the process is to go to another host, with all that it has.

    :param id: its uuid
    :param epoch: of its move; the end of the process acknowledges it
    :param to: the other host, as its certificate names it
    :param address: where that takes the images; '': it is not ready
    :param network_mbps: promised to the lease, megabytes a second; 0: what others leave
    :param cancelled: it is to go on here
    """

    id: str
    epoch: int
    to: str
    address: str = ""
    network_mbps: int = 0
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class ReceivedLease:
    """A lease that comes to a GPU of this host, with all that its process has.

    :param lease: as it will be served; its epoch is that of the move
    :param source: the host that it comes from, as its certificate names it
    """

    lease: ServedLease
    source: str


@dataclass(frozen=True, slots=True)
class AttachedLease:
    """A lease of a server of this host.

    :param id: its uuid
    :param epoch: with which this host may connect
    :param server_id: the server that may use it
    :param api: by which the GPU is used
    :param address: where its server process listens
    :param gpu_host: that it runs on, as its certificate names it; '': the service is too old to say
    :param network_mbps: promised, megabytes a second; 0: what others leave
    """

    id: str
    epoch: int
    server_id: str
    api: str
    address: str
    gpu_host: str = ""
    network_mbps: int = 0


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """All that a host is to do for leases."""

    serves: tuple[ServedLease, ...] = ()
    ends: tuple[EndedLease, ...] = ()
    attaches: tuple[AttachedLease, ...] = ()
    sends: tuple[SentLease, ...] = ()
    receives: tuple[ReceivedLease, ...] = ()

    @property
    def moves(self) -> bool:
        """Some lease comes or goes: what this host does is waited for."""
        return bool(self.sends or self.receives)


@dataclass(frozen=True, slots=True)
class RunningServers:
    """The servers that run here.

    :param uuids: of all
    :param requests: server -> GPUs of other hosts that its flavor asks for
    :param domains: server -> libvirt's number of its domain, which is another one after each start; where it is known
    """

    uuids: frozenset[str] = frozenset()
    requests: Mapping[str, RemoteGpuRequest] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict, compare=False)

    def without(self, servers: Collection[str]) -> "RunningServers":
        """Return the same as if some servers did not run."""
        if not servers:
            return self
        requests = {key: each for key, each in self.requests.items() if key not in servers}
        return replace(self, uuids=self.uuids.difference(servers), requests=requests)


@dataclass(frozen=True, slots=True)
class LeaseMoveReport:
    """What a host does for one lease that comes or goes.

    :param epoch: of its move
    :param address: where its images are taken; '': this host sends them, or cannot take them
    :param sent_mb: of its images, MiB
    :param of_mb: of all its images, MiB; 0: they are not made yet
    :param why: it does not move, and where it goes on there, if it had begun to leave; '': it may still
    """

    epoch: int
    address: str = ""
    sent_mb: int = 0
    of_mb: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """What a host does for leases.

    :param serves: lease -> epoch and address of its process
    :param ended: lease -> epoch since which none runs
    :param servers: that run here; None: that is not known now
    :param busy: lease -> part of the time in which it kept its GPU busy, of those of which it is known. It changes all
        the time, and is no reason to report
    :param moves: lease -> what is done for its move
    :param link_mbps: lease -> what has gone over its link, megabytes a second; as of ``busy``
    :param used_mb: lease -> memory of its GPU that it has in use, MiB, to the byte; as of ``busy``
    :param can_move: leases of this host's GPUs can come and go with all that their processes have
    """

    serves: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    servers: RunningServers | None = RunningServers()
    busy: Mapping[str, float] = field(default_factory=dict, compare=False)
    moves: Mapping[str, LeaseMoveReport] = field(default_factory=dict)
    can_move: bool = False
    link_mbps: Mapping[str, float] = field(default_factory=dict, compare=False)
    used_mb: Mapping[str, float] = field(default_factory=dict, compare=False)

    def body(self, asked: LeaseAnswer | None = None) -> dict[str, Any]:
        """Return it as the service takes it.

        :param asked: what this host was last asked, where the service does not say now; None: it does
        """
        serves = [
            {"id": lease, "epoch": epoch, "address": address}
            | ({"busy": round(self.busy[lease], 3)} if lease in self.busy else {})
            | ({"link_mbps": round(self.link_mbps[lease], 3)} if lease in self.link_mbps else {})
            | ({"used_mb": self.used_mb[lease]} if lease in self.used_mb else {})
            for lease, (epoch, address) in sorted(self.serves.items())
        ]
        ended = [{"id": lease, "epoch": epoch} for lease, epoch in sorted(self.ended.items())]
        servers = None if self.servers is None else sorted(self.servers.uuids)
        report: dict[str, Any] = {"serves": serves, "ended": ended, "servers": servers}
        if self.servers is not None and self.servers.requests:  # an older service refuses it
            report["requests"] = [
                _requested(server, request)
                for server, request in sorted(self.servers.requests.items())
            ]
        if self.can_move:
            report["can_move"] = True
        if self.moves:
            report["moves"] = [
                {"id": lease} | asdict(move) for lease, move in sorted(self.moves.items())
            ]
        if asked is not None:
            report["asked"] = kept_answer(replace(asked, sends=(), receives=()))
        return {"report": report}


def _requested(server: str, request: RemoteGpuRequest) -> dict[str, Any]:
    return {
        "server_id": server,
        "count": request.count,
        "memory_mb": request.memory_mb,
        "service_level": request.level.value,
        "api": request.api.value,
        "network_mbps": request.network_mbps,
        "priority": request.priority,
        "migratable": request.migratable,
    }


def read_answer(found: Value) -> LeaseAnswer:
    """Return an answer of the service, or one that was kept; what it has beyond that form is ignored.

    :raises InvalidValueError: it has another form
    """
    return LeaseAnswer(
        tuple(_served(each) for each in found.member("serves").items()),
        tuple(
            EndedLease(lease_id(each.member("id").text()), each.member("epoch").integer(1))
            for each in found.member("ends").items()
        ),
        tuple(_attached(each) for each in found.member("attaches").items()),
        tuple(_sent(each) for each in _optional_items(found, "sends")),
        tuple(
            ReceivedLease(_served(each), each.member("source").text())
            for each in _optional_items(found, "receives")
        ),
    )


def lease_id(text: str) -> str:
    """Return the uuid of a lease, which becomes part of paths.

    :raises InvalidValueError: it has anything but letters, digits and hyphens
    """
    if not text.isascii() or not text.replace("-", "").isalnum():
        raise InvalidValueError("lease", text, "a uuid")
    return text


def kept_answer(answer: LeaseAnswer) -> dict[str, Any]:
    """Return an answer as it is kept, for :func:`read_answer`.

    Without what says nothing: a service that does not say it refuses it, too.
    """
    found = asdict(answer)
    found["receives"] = [each["lease"] | {"source": each["source"]} for each in found["receives"]]
    for name in ("sends", "receives"):
        if not found[name]:
            del found[name]
    for each in (*found["serves"], *found["attaches"]):
        for name in ("client_host", "gpu_host"):
            if each.get(name) == "":
                del each[name]
    for each in found["attaches"]:
        if each["network_mbps"] == 0:
            del each["network_mbps"]
    return found


def _served(found: Value) -> ServedLease:
    return ServedLease(
        lease_id(found.member("id").text()),
        found.member("epoch").integer(1),
        found.member("gpu").text(),
        found.member("memory_mb").integer(1),
        found.member("service_level").text(),
        found.member("api").text(),
        found.member("network_mbps").integer(),
        _optional_text(found, "client_host"),
    )


def _sent(found: Value) -> SentLease:
    return SentLease(
        lease_id(found.member("id").text()),
        found.member("epoch").integer(1),
        found.member("to").text(),
        found.member("address").text(),
        found.member("network_mbps").integer(),
        found.member("cancelled").flag(),
    )


def _optional_items(found: Value, name: str) -> Sequence[Value]:
    value = found.members().get(name)
    return () if value is None else value.items()


def _attached(found: Value) -> AttachedLease:
    return AttachedLease(
        found.member("id").text(),
        found.member("epoch").integer(1),
        found.member("server_id").text(),
        found.member("api").text(),
        found.member("address").text(),
        _optional_text(found, "gpu_host"),
        0 if "network_mbps" not in found.members() else found.member("network_mbps").integer(),
    )


def _optional_text(found: Value, name: str) -> str:
    """Return a member that an older service does not say, '' where it does not."""
    value = found.members().get(name)
    return "" if value is None else value.text()
