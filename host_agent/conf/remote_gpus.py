# SPDX-License-Identifier: Apache-2.0
"""Options of leases of remote GPUs: section ``[remote_gpus]``."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from placement_traits import names
from placement_traits.errors import InvalidValueError
from placement_traits.names import RemoteGpuApi
from placement_traits.offers import RemoteGpuClient
from placement_traits.options import Section, option
from placement_traits.pool_tree import LentGpu, LentNic, LentPool, pool_tree

FAKE: Final = "fake"

PAUSE_SPREAD: Final = 0.25
"""Part by which a pause between two turns is longer or shorter, so that hosts do not ask in step."""

SILENT_S: Final = 60.0
"""Seconds without a report after which the job service takes a host for silent."""


@dataclass(frozen=True, slots=True)
class RemoteGpuOptions(Section):
    """``[remote_gpus]``."""

    section: ClassVar = "remote_gpus"
    title: ClassVar = "Leases of remote GPUs: numa-host-agent-leases, which is optional"

    gpus: tuple[str, ...] = option(
        (),
        "GPUs that this host lends, NAME=MiB each: the name by which its driver selects it, such as its uuid, and what "
        "leases may have of its memory, without what the driver keeps for itself. One transport carries them all.",
        change="this host lends GPUs that neither nova nor another program has",
        leave="this host lends none",
    )
    transport: str = option(
        "",
        "What carries the use of lent GPUs to other hosts: pocl (OpenCL), the name in a file of transports, or of one "
        "that another distribution provides. fake has no GPU behind it: it sends back what it gets, and needs "
        "trying_out.",
        change="this host lends GPUs, which needs one",
        leave="this host lends none",
    )
    transports: Path = option(
        Path("/etc/numa-host-agent/transports"),
        "Folder of files NAME.toml that declare transports, and pocl.toml, which says where parts of pocl are; samples "
        "are beside the sample of this file.",
        change="they are elsewhere",
        leave="it need not be there where no file declares one",
    )
    trying_out: bool = option(
        False,
        "Leases of this host may be without a GPU: the transport fake is allowed. Servers that require a remote GPU "
        "are placed by such leases as by others.",
        change="you try the control plane of remote GPUs in a cloud without users",
        leave="users could get a lease: they would get no GPU",
    )
    models: tuple[str, ...] = option(
        (),
        "Models of lent GPUs, NAME=MODEL each, by names of your own: 1 to 64 lower-case letters, digits and "
        "underscores. The job service knows by them which GPUs are faster ([numa_ext_jobs]remote_gpu_speeds).",
        change="GPUs of several models are lent, and leases of higher priority are to have the faster ones",
        leave="all are alike",
    )
    devices: tuple[str, ...] = option(
        (),
        "Nodes in /dev of lent GPUs, NAME=/dev/… each; one that several GPUs need, such as /dev/nvidiactl, is given "
        "for each. A lease's server sees those of its own GPU and no other.",
        change="this host lends GPUs by another transport than fake",
        leave="the transport needs no device",
    )
    isolated: bool = option(
        True,
        "The process of each lease runs in namespaces and a control group of its own. Off needs trying_out, and is for "
        "hosts without namespaces: servers of leases then reach each other and what the agent's user may read.",
        change="you try the control plane in a container that has no user namespaces (off)",
        leave="leases are of users",
    )
    tasks_per_lease: int = option(
        1024,
        "Processes and threads that the server of one lease may have together with what leads clients to it. More are "
        "refused to it; other leases do not notice.",
        minimum=64,
        change="servers of leases do not start, and their logs speak of resources or threads (raise)",
        leave="they start",
    )
    folder_mb_per_lease: int = option(
        64,
        "Room of the folder that the server of one lease writes to, MiB. It is in memory, and gone with the lease.",
        minimum=1,
        change="servers keep more there than fits, such as compiled kernels (raise)",
        leave="servers write little",
    )
    memory_mb_per_lease: int = option(
        0,
        "Memory of this host that the server of one lease may have, what it writes to its folder included, MiB; one "
        "that takes more is killed as a whole, and started again. 0: no bound. Needs isolated, control groups of "
        "version 2 alone, and a systemd (254) by which the supervisor is in a part of its unit: a drop-in with "
        "DelegateSubgroup=supervisor. Never tried on such a host.",
        minimum=0,
        change="a lease's server could take the memory of others, and this host has such a systemd",
        leave="it has an older one, or servers need what they take",
    )
    cores_per_lease: float = option(
        0.0,
        "Processor time that the server of one lease may have, in cores; 0: no bound. Needs what memory_mb_per_lease "
        "needs.",
        minimum=0.0,
        change="leases' servers keep each other from running, and this host has such a systemd",
        leave="there are cores enough for them",
    )
    nics: tuple[str, ...] = option(
        (),
        "NICs over which lent GPUs are reached, NAME=MB/s each: what leases may be promised together, without "
        "what else goes over it.",
        change="this host lends GPUs, which needs one or more",
        leave="this host lends none",
    )
    fabrics: tuple[str, ...] = option(
        (),
        "Networks of remote GPUs in which this host is, by names of your own: 1 to 64 lower-case letters, digits and "
        "underscores. From these its lent GPUs are reached; by these its servers reach GPUs of other hosts.",
        change="this host lends GPUs, or its servers use those of other hosts, which needs one or more",
        leave="this host does neither, or its servers use its own GPUs only",
    )
    cores: int = option(
        1,
        "Cores for the processes of leases, one each.",
        minimum=1,
        change="this host lends GPUs to more than one lease",
        leave="this host lends none",
    )
    address: str = option(
        "127.0.0.1",
        "Address of this host on which the processes of leases listen.",
        change="this host lends GPUs to other hosts: its address in the network of the fabric",
        leave="it lends none, or only to itself",
    )
    certificate: str = option(
        "",
        "Certificate of this host, PEM with its chain, for servers (serverAuth), with the name that nova has for this "
        "host among its DNS names; libvirt's own is /etc/pki/libvirt/servercert.pem. With it, clients of leases come "
        "by TLS 1.3 and have to show a certificate of the host that may use the lease; without, by plain TCP that "
        "nothing encrypts, and no guest reaches a lease. Files that change are read again.",
        change="this host lends GPUs to users",
        leave="it lends none, or you try the control plane",
    )
    key: Path = option(
        Path("/etc/pki/libvirt/private/serverkey.pem"),
        "Key of that certificate. The agent's user has to be able to read it.",
        change="it is elsewhere, as where libvirt's own is root's alone",
        leave="there is no certificate",
    )
    authorities: Path = option(
        Path("/etc/pki/CA/cacert.pem"),
        "Certificates of those who sign hosts' certificates, PEM.",
        change="they are elsewhere",
        leave="there is no certificate",
    )
    revoked: Path = option(
        Path("/etc/pki/CA/cacrl.pem"),
        "Lists of revoked certificates, PEM; where the file is there, each authority needs one that has not ended.",
        change="they are elsewhere",
        leave="there is no certificate",
    )
    link: Path = option(
        Path("/usr/bin/numa-ext-rgpu"),
        "Program of the link, which takes clients by these certificates.",
        change="it is elsewhere",
        leave="there is no certificate",
    )
    criu: str = option(
        "",
        "Program of CRIU (4.1 or newer), by which a lease goes to another host that has it, too, with all that its "
        "server has in memory and with its clients' connections. Needs isolated and certificate. It runs without "
        "any right over this host, and only while a lease comes or goes. At each start it is tried with the "
        "transport's own server; where that fails, the log says why, and leases move with nothing. The unit's filters "
        "of system calls are in its way: see the drop-in moves.conf among the samples.",
        change="this host lends GPUs whose memory CRIU can dump, as a CPU's or, with gpu_suspend, NVIDIA's",
        leave="leases need not move, or may begin with empty memory where they come to",
    )
    gpu_suspend: str = option(
        "",
        "Command line that has a GPU's memory written into its process before a dump, in words as a shell has them; "
        "{pid} is the server. Of NVIDIA's driver (550) cuda-checkpoint --toggle --pid {pid}, with its whole path. "
        "Tried with an imitation, never with a GPU.",
        change="criu is set and the transport's server uses such a GPU",
        leave="the server has no memory but its own",
    )
    gpu_resume: str = option(
        "",
        "Command line that reverses gpu_suspend: after a restore, and where a lease goes on that was dumped.",
        change="gpu_suspend is set",
        leave="it is not",
    )
    uses: bool = option(
        False,
        "Servers of this host use leases: which ones run is asked of libvirt and reported to the job service.",
        change="this is a compute node whose servers may use leases",
        leave="this host only lends GPUs",
    )
    client_mbps: int = option(
        0,
        "With uses: what leases of this host's servers may be promised together of the NIC by which they reach GPUs of "
        "other hosts, MB/s, without what else goes over it; the agent publishes it. 0: nothing, so that only leases "
        "without numa_ext:remote_gpu_network_mbps get a GPU of another host.",
        minimum=0,
        change="flavors ask for numa_ext:remote_gpu_network_mbps",
        leave="none does",
    )
    guests: bool = option(
        False,
        "Leases are led into servers: numa-host-agent-helper plugs a vsock device into a running server that has a "
        "lease, and numa-host-agent-doorman gets the file by which it leads guests. Needs uses, and transport: the one "
        "of the hosts whose GPUs servers of this host use.",
        change="this is a compute node whose servers use leases of hosts that have certificates",
        leave="you try the control plane, or images of servers have no numa-ext-rgpu",
    )
    interval_s: float = option(
        2.0,
        "Seconds between two questions to the job service; each pause is up to a quarter longer or shorter. While "
        "something is missing to a lease that is new here, it is half a second, for ten seconds.",
        minimum=0.5,
        change="the job service is loaded by its hosts (raise)",
        leave="a lease should be attached within seconds",
    )
    rest_s: float = option(
        30.0,
        "Seconds between two questions to the job service while no flavor of this host's servers asks for a remote GPU "
        "and none of them has a lease: a server that starts or stops is reported at once all the same. A lease that "
        "is asked for by hand, for a server of such a host, is attached after this time. A host that lends GPUs asks "
        "every interval_s. 0: this one does so, too.",
        minimum=0.0,
        maximum=45.0,
        change="leases are often asked for by hand (lower)",
        leave="leases are what flavors ask for; with 1.25 times interval_s it must be less than the 60 s after which a "
        "host that is silent counts as gone",
    )

    use_window_s: float = option(
        300.0,
        "Seconds over which it is counted how busy a lease keeps its GPU, where the transport can tell. The job "
        "service may move leases by that; of one that has run for less it is not known.",
        minimum=10.0,
        change="leases work in bursts that are longer (raise), or it is to be tried out (lower)",
        leave="nothing is moved by use",
    )

    def check(self) -> None:
        """See :meth:`Section.check`."""
        if self.transport == FAKE and not self.trying_out:
            allowed = "another one, or trying_out = true: no GPU is behind it"
            raise InvalidValueError("[remote_gpus]transport", FAKE, allowed)
        if not self.isolated and not self.trying_out:
            allowed = "true, or trying_out = true: nothing keeps leases apart"
            raise InvalidValueError("[remote_gpus]isolated", self.isolated, allowed)
        if not self.isolated and (self.memory_mb_per_lease or self.cores_per_lease):
            what = "memory_mb_per_lease and cores_per_lease"
            value = (self.memory_mb_per_lease, self.cores_per_lease)
            raise InvalidValueError(f"[remote_gpus]{what}", value, "0, or isolated = true")
        if self.guests and not (self.uses and self.transport):
            allowed = "false, or uses = true and the name of a transport"
            raise InvalidValueError("[remote_gpus]guests", self.guests, allowed)
        if self.criu and not (self.isolated and self.certificate):
            allowed = "nothing, or isolated = true and a certificate"
            raise InvalidValueError("[remote_gpus]criu", self.criu, allowed)
        for name in ("gpu_suspend", "gpu_resume"):
            words = self.words(name)
            if words and not (self.criu and words[0].startswith("/")):
                allowed = "nothing, or an absolute path and criu"
                raise InvalidValueError(f"[remote_gpus]{name}", words[0], allowed)
        self._check_rest()
        wrong = [name for name in self.fabrics if not names.is_fabric(name)]
        if wrong:
            allowed = "1 to 64 lower-case letters, digits and underscores"
            raise InvalidValueError("[remote_gpus]fabrics", wrong[0], allowed)
        self.nodes()
        if self.gpus:
            if not self.transport:
                allowed = "the name of a transport, as gpus are lent"
                raise InvalidValueError("[remote_gpus]transport", "", allowed)
            pool_tree(self.lent("this host"))

    def _check_rest(self) -> None:
        """Refuse a rest after which the service may have taken this host for silent; it ends at a turn."""
        longest_s = SILENT_S - (1 + PAUSE_SPREAD) * self.interval_s
        if self.uses and not self.gpus and self.rest_s and self.rest_s >= longest_s:
            allowed = f"0, or less than {longest_s:g} s with this interval_s"
            if longest_s <= 0:
                allowed = "0 with this interval_s"
            raise InvalidValueError("[remote_gpus]rest_s", self.rest_s, allowed)

    def words(self, name: str) -> tuple[str, ...]:
        """Return the words of a command line.

        :param name: of the option
        :raises InvalidValueError: a quote has no end
        """
        text = getattr(self, name)
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            raise InvalidValueError(f"[remote_gpus]{name}", text, str(error)) from error

    def nodes(self) -> Mapping[str, tuple[Path, ...]]:
        """Return the nodes in /dev of each lent GPU that has some.

        :raises InvalidValueError: one is of no lent GPU, or not in /dev
        """
        lent = dict(_amounts("gpus", self.gpus))
        found: dict[str, tuple[Path, ...]] = {}
        for each in self.devices:
            name, _, node = each.partition("=")
            path = Path(node)
            if name not in lent or path.parts[:2] != ("/", "dev") or ".." in path.parts:
                raise InvalidValueError("[remote_gpus]devices", each, "NAME=/dev/… of a lent GPU")
            found[name] = (*found.get(name, ()), path)
        return found

    def _models(self) -> Mapping[str, frozenset[str]]:
        """Return the trait of each lent GPU whose model is named.

        :raises InvalidValueError: one is of no lent GPU, or has no such name
        """
        lent = dict(_amounts("gpus", self.gpus))
        found = {}
        for each in self.models:
            name, _, model = each.rpartition("=")
            if name not in lent or not names.is_fabric(model):
                raise InvalidValueError(
                    "[remote_gpus]models", each, "NAME=MODEL of a lent GPU, in lower case"
                )
            found[name] = frozenset({names.gpu_model(model)})
        return found

    def reach(self) -> RemoteGpuClient | None:
        """Return how servers of this host reach pools; None: they use no leases."""
        return RemoteGpuClient(frozenset(self.fabrics), self.client_mbps) if self.uses else None

    def lent(
        self,
        host: str,
        apis: frozenset[RemoteGpuApi] = frozenset(),
        *,
        enforced: bool = False,
        movable: bool = False,
    ) -> LentPool:
        """Return what this host lends.

        :param host: its name in Placement
        :param apis: by which the transport lets GPUs be used
        :param enforced: the transport keeps leases to their slices
        :param movable: leases of the transport lose nothing by a move
        :raises InvalidValueError: an amount or a name cannot be
        """
        transports, models = frozenset({self.transport}), self._models()
        return LentPool(
            host,
            self.cores,
            tuple(LentNic(name, mbps) for name, mbps in _amounts("nics", self.nics)),
            tuple(
                LentGpu(
                    name,
                    mib,
                    apis,
                    transports,
                    enforced=enforced,
                    migratable=movable,
                    traits=models.get(name, frozenset()),
                )
                for name, mib in _amounts("gpus", self.gpus)
            ),
            frozenset(self.fabrics),
        )


def _amounts(name: str, given: tuple[str, ...]) -> list[tuple[str, int]]:
    found = []
    for each in given:
        what, _, amount = each.rpartition("=")
        if not what or not (amount.isascii() and amount.isdecimal()):
            raise InvalidValueError(f"[remote_gpus]{name}", each, "NAME=NUMBER")
        found.append((what, int(amount)))
    return found
