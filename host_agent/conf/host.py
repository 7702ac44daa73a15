# SPDX-License-Identifier: Apache-2.0
"""Options of this host: sections ``[libvirt_host]`` and ``[host]``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from placement_traits.errors import InvalidValueError
from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class LibvirtOptions(Section):
    """``[libvirt_host]``."""

    section: ClassVar = "libvirt_host"
    title: ClassVar = "The libvirt of this host"

    uri: str = option(
        "qemu:///system",
        "Connection URI.",
        change="libvirt listens elsewhere",
        leave="nova's own [libvirt] section has no connection_uri",
    )
    timeout_s: float = option(
        10.0,
        "Longest wait for an answer of libvirt, seconds. One that does not answer is lost, as one that is down: the "
        "agent goes on with the servers that it knows, and learns of others when libvirt answers again.",
        minimum=1.0,
        maximum=20.0,
        change="libvirt takes longer to list the servers of this host though it works (raise)",
        leave="numa_ext_libvirt_lost stays 0",
    )
    pid_dir: Path = option(
        Path("/run/libvirt/qemu"),
        "Folder of libvirt's own files of running domains, NAME.pid and NAME.xml each. Only root may be able to "
        "write there: they tell which processes are domains.",
        change="libvirt was built with another run folder",
        leave="the folder could be written by a user other than root",
    )


@dataclass(frozen=True, slots=True)
class HostOptions(Section):
    """``[host]``."""

    section: ClassVar = "host"
    title: ClassVar = "Where the kernel's files are"

    name: str | None = option(
        None,
        "Name of this host's root provider in Placement (nova's hypervisor hostname). Default: what libvirt says.",
        change="nova's hypervisor hostname differs from libvirt's host name",
        leave="openstack hypervisor list shows libvirt's",
    )
    gpu_products: tuple[str, ...] = option(
        (),
        "vendor:product ids (hexadecimal, such as 10de:20b5) of PCI devices to take as GPUs beside display "
        "controllers.",
        change="accelerators do not present themselves as display controllers",
        leave="GPUs are found: numa-host-agent-ctl topology",
    )
    gpu_matrix: str = option(
        "",
        "File with a recorded `nvidia-smi topo -m`, followed by the output of `nvidia-smi "
        "--query-gpu=index,pci.bus_id --format=csv,noheader`. Needed where GPUs are given to servers: their "
        "driver is vfio-pci then, so that NVIDIA's own cannot be asked for NVLinks. Read again with the topology. "
        "Empty: NVML is asked where there are NVIDIA GPUs.",
        change="GPUs are given to servers (vfio-pci), so that NVML cannot be asked",
        leave="no GPU has NVLinks",
    )
    chassis: Mapping[str, int] = option(
        {},
        "Server node of each socket, such as 0:0,1:0,2:1,3:1, for machines that join several server nodes under "
        "one kernel (NumaConnect, HPE Superdome): firmware does not say it. A socket that is missing is in node "
        "0, so leave it empty on any other machine.",
        minimum=0,
        change="several server nodes are joined under one kernel (NumaConnect, Superdome)",
        leave="none of this applies",
    )
    nova_conf: tuple[str, ...] = option(
        (
            "/etc/nova/nova.conf",
            "/etc/nova/nova-compute.conf",
        ),
        "Configuration files of this host's nova-compute, later ones win. Only the doctor reads them, to compare "
        "them with what the agent and the scheduler count on; files that are not there are skipped.",
        change="nova-compute reads other files than /etc/nova/nova.conf",
        leave="the doctor finds them",
    )
    proc: Path = option(
        Path("/proc"),
        "Mount point of proc.",
        change="the host's files are mounted elsewhere (tests, containers)",
        leave="the agent runs on the host itself",
    )
    sys: Path = option(
        Path("/sys"),
        "Mount point of sysfs.",
        change="the host's files are mounted elsewhere (tests, containers)",
        leave="the agent runs on the host itself",
    )
    resctrl: Path = option(
        Path("/sys/fs/resctrl"),
        "Mount point of resctrl.",
        change="the host's files are mounted elsewhere (tests, containers)",
        leave="the agent runs on the host itself",
    )

    @property
    def server_node_of_socket(self) -> dict[int, int]:
        """Socket -> server node, of the sockets that the operator named."""
        return {int(socket): number for socket, number in self.chassis.items()}

    def check(self) -> None:
        """See :meth:`~placement_traits.options.Section.check`."""
        for socket in self.chassis:
            if not socket.isdecimal():
                raise InvalidValueError(
                    "[host]chassis, a socket", socket, "its number, such as 0:0,1:1"
                )
