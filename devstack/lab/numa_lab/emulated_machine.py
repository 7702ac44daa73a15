# SPDX-License-Identifier: Apache-2.0
"""What an emulated host looks like, and the QEMU command line that makes it: pure data and functions.

One machine: two sockets with two dies each, one NUMA node and one L3 domain per die, so that a die is at once
QEMU's unit of the RDT model, the kernel's L3 domain and a NUMA node::

    socket 0                socket 1
    die 0      die 1        die 2      die 3          distances   0   1   2   3
    node 0 --- node 1       node 2 --- node 3              0     10  16  22 160
      | \\______________________/ |                         1     16  10 160  22
      |                          |                         2     22 160  10  16
     GPU                        GPU                        3    160  22  16  10

GPUs are QEMU's test devices, each behind a root port of a PCIe bridge that firmware reports on that NUMA node, and
behind an IOMMU: nova counts them, and VFIO hands them to guests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError
from .qemu_build import Qemu

SOCKETS = 2
DIES_PER_SOCKET = 2
NODES = SOCKETS * DIES_PER_SOCKET

# Local, same socket, the near and the far node of the other socket.
_DISTANCES = {(0, 1): 16, (2, 3): 16, (0, 2): 22, (1, 3): 22, (0, 3): 160, (1, 2): 160}

# QEMU's pci-testdev
GPU_VENDOR_ID = "1b36"
GPU_PRODUCT_ID = "0005"

# An Intel model: with AMD's the kernel finds an L3 cache per CPU. check=off: TCG lacks some of its instructions.
_CPU_MODEL = "Icelake-Server,check=off"
_KERNEL_OPTIONS = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 numa_balancing=disable "
    "intel_iommu=on iommu=pt"
)
_FIRMWARE_FOLDERS = ("/usr/share/seabios", "/usr/share/qemu")
_FIRST_BRIDGE_BUS = 32
_BUSES_PER_NODE = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of an emulated host.

    :param cpus_per_node: host CPUs of each of the four NUMA nodes.
    :param node_memory_mb: memory of each node; the machine only takes what is touched.
    :param gpu_nodes: the NUMA node of each GPU.
    """

    cpus_per_node: int = 4
    node_memory_mb: int = 1280
    gpu_nodes: tuple[int, ...] = (0, 2)

    def __post_init__(self) -> None:
        if self.cpus_per_node < 1:
            raise LabError(f"an emulated host needs a CPU per NUMA node, not {self.cpus_per_node}")
        if any(not 0 <= node < NODES for node in self.gpu_nodes):
            raise LabError(f"GPUs of an emulated host sit on NUMA nodes 0 to {NODES - 1}, not {self.gpu_nodes}")

    @property
    def cpus(self) -> int:
        return self.cpus_per_node * NODES

    def cpus_of(self, node: int) -> range:
        """CPU numbers of a NUMA node."""
        return range(node * self.cpus_per_node, (node + 1) * self.cpus_per_node)

    @property
    def shared_cpus(self) -> list[int]:
        """For floating guests and the host's own work: the first CPU of each node."""
        return [self.cpus_of(node)[0] for node in range(NODES)]

    @property
    def dedicated_cpus(self) -> list[int]:
        """For pinned guests: all others."""
        return [cpu for node in range(NODES) for cpu in self.cpus_of(node)[1:]]


@dataclass(frozen=True, slots=True)
class Share:
    """A folder of this machine that an emulated host mounts by its tag (9p)."""

    tag: str
    folder: Path
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything the command line of one emulated host is made from.

    :param image: a read-only disk with the virtual environment.
    :param number: 1 for h1: decides its hardware addresses.
    :param ssh_port: on 127.0.0.1, leads to the host's sshd.
    :param peer_port: UDP port on which the hosts of a lab are one Ethernet, on the loopback device only.
    :param threads: "multi": each virtual CPU runs in a thread of its own; "single": slower, steadier.
    """

    name: str
    number: int
    qemu: Qemu
    kernel: Path
    initramfs: Path
    shape: Shape
    shares: Sequence[Share]
    image: Path
    ssh_port: int
    peer_port: int
    threads: str = "multi"

    def command(self) -> list[str]:
        """The QEMU command line; file names in it are relative to the host's folder."""
        memory_mb = self.shape.node_memory_mb * NODES
        return [
            str(self.qemu.binary),
            *(word for folder in _FIRMWARE_FOLDERS for word in ("-L", folder)),
            *("-name", self.name, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-accel", f"tcg,thread={self.threads}", "-machine", "q35,usb=off"),
            *("-cpu", _CPU_MODEL + (",+rdt-m,+rdt-a" if self.qemu.has_rdt else "")),
            *("-smp", self._topology(), "-m", f"{memory_mb}M"),
            *self._numa(),
            *("-kernel", str(self.kernel), "-initrd", str(self.initramfs), "-append", _KERNEL_OPTIONS),
            *("-serial", "file:console.log", "-qmp", "unix:qmp.sock,server=on,wait=off"),
            # Before the devices that it stands in front of.
            *("-device", "intel-iommu,intremap=on,caching-mode=on"),
            *("-device", "virtio-rng-pci,bus=pcie.0"),
            *self._network(),
            *(word for share in self.shares for word in _file_system(share)),
            *self._disk(),
            *self._gpus(),
        ]

    def _topology(self) -> str:
        cores = self.shape.cpus_per_node
        return f"{self.shape.cpus},sockets={SOCKETS},dies={DIES_PER_SOCKET},cores={cores},threads=1"

    def _numa(self) -> list[str]:
        words: list[str] = []
        for node in range(NODES):
            memory = f"memory-backend-ram,id=memory{node},size={self.shape.node_memory_mb}M"
            words += ["-object", memory, "-numa", f"node,nodeid={node},memdev=memory{node}"]
        for node in range(NODES):
            socket, die = divmod(node, DIES_PER_SOCKET)
            words += [
                word
                for core in range(self.shape.cpus_per_node)
                for word in (
                    "-numa",
                    f"cpu,node-id={node},socket-id={socket},die-id={die},core-id={core},thread-id=0",
                )
            ]
        for (source, target), distance in _DISTANCES.items():
            words += ["-numa", f"dist,src={source},dst={target},val={distance}"]
        return words

    def _network(self) -> list[str]:
        address = f"52:54:00:4e:{{}}:{self.number:02x}"
        return [
            *("-netdev", f"user,id=user,hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22"),
            *("-device", f"virtio-net-pci,bus=pcie.0,netdev=user,romfile=,mac={address.format('00')}"),
            *("-netdev", f"socket,id=peers,mcast=230.0.0.1:{self.peer_port},localaddr=127.0.0.1"),
            *("-device", f"virtio-net-pci,bus=pcie.0,netdev=peers,romfile=,mac={address.format('01')}"),
        ]

    def _disk(self) -> list[str]:
        drive = f"if=none,id=image,format=raw,readonly=on,file={_escaped(self.image)}"
        return ["-drive", drive, "-device", "virtio-blk-pci,bus=pcie.0,drive=image"]

    def _gpus(self) -> list[str]:
        words: list[str] = []
        for node in sorted(set(self.shape.gpu_nodes)):
            bus = _FIRST_BRIDGE_BUS + node * _BUSES_PER_NODE
            words += ["-device", f"pxb-pcie,bus=pcie.0,id=bridge{node},numa_node={node},bus_nr={bus}"]
        for index, node in enumerate(self.shape.gpu_nodes):
            port = f"pcie-root-port,bus=bridge{node},id=port{index},chassis={10 + index},slot={1 + index}"
            words += ["-device", port, "-device", f"pci-testdev,bus=port{index}"]
        return words


def _file_system(share: Share) -> list[str]:
    access = "" if share.writable else ",readonly=on"
    folder = f"path={_escaped(share.folder)},security_model=none,multidevs=remap"
    device = f"virtio-9p-pci,bus=pcie.0,fsdev={share.tag},mount_tag={share.tag}"
    return ["-fsdev", f"local,id={share.tag},{folder}{access}", "-device", device]


def _escaped(path: Path) -> str:
    """QEMU's way to write a comma in a value."""
    return str(path).replace(",", ",,")
