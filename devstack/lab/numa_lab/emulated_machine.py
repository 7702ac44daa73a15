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
behind an IOMMU: nova counts them, and VFIO hands them to guests. They have no NVLinks; a host's recorded
``nvidia-smi topo -m`` (``devstack/lab/gpus``) says what they stand for, in order of PCI address. The first host is a
Minsky with four, the second a DGX-1 with eight.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import LabError
from .qemu_build import Qemu

NODES = 4

# Local, same socket, the near and the far node of the other socket.
_DISTANCES = {(0, 1): 16, (2, 3): 16, (0, 2): 22, (1, 3): 22, (0, 3): 160, (1, 2): 160}

# QEMU's pci-testdev
GPU_VENDOR_ID = "1b36"
GPU_PRODUCT_ID = "0005"

# An Intel model: with AMD's the kernel finds an L3 cache per CPU. check=off: TCG lacks some of its instructions.
_CPU_MODEL = "Icelake-Server,check=off"
_KERNEL_OPTIONS = " ".join(
    (
        "console=ttyS0 panic=-1",
        "mitigations=off nokaslr audit=0 numa_balancing=disable",
        "intel_iommu=on iommu=pt",
        # This machine may be busy, and then time jumps inside: neither the timer nor the clock is broken.
        "no_timer_check tsc=reliable nowatchdog rcupdate.rcu_cpu_stall_suppress=1",
    )
)
_FIRMWARE_FOLDERS = ("/usr/share/seabios", "/usr/share/qemu")
_ROOT_BUS = "bus=pcie.0"
_FIRST_BRIDGE_BUS = 32
_BUSES_PER_NODE = 32
# PCIe slots of every host, so that hosts with other GPUs can go on with one saved state: a GPU has none that QEMU
# saves, but whether there is a card in it belongs to a slot's. So each has one.
_SLOTS = {0: 4, 2: 4}
_GPU = "pci-testdev"
_OTHER_CARD = "pvpanic-pci"
# What tells guest/init that this is no host yet, but the machine whose state is saved.
NO_HOST = "-"
_NAME_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of an emulated host.

    :param cpus_per_node: host CPUs of each of the four NUMA nodes.
    :param node_memory_mb: memory of each node; the machine only takes what is touched.
    :param gpu_nodes: the NUMA node of each GPU.
    :param gpu_matrix: file of ``devstack/lab/gpus`` with the links of the GPUs; "" for those of PCI only.
    :param shared_core: which core of each node is for floating guests and the host's own work.
    :param sockets: 1, 2 or 4: in how many sockets the dies lie.
    """

    cpus_per_node: int = 4
    node_memory_mb: int = 1280
    gpu_nodes: tuple[int, ...] = (0, 2)
    gpu_matrix: str = ""
    shared_core: int = 0
    sockets: int = 2

    def __post_init__(self) -> None:
        if self.cpus_per_node < 1:
            raise LabError(f"an emulated host needs a CPU per NUMA node, not {self.cpus_per_node}")
        if not 0 <= self.shared_core < self.cpus_per_node:
            raise LabError(
                f"a node has {self.cpus_per_node} cores, none of them is {self.shared_core}"
            )
        if self.sockets not in (1, 2, NODES):
            raise LabError(f"{NODES} dies lie in 1, 2 or {NODES} sockets, not in {self.sockets}")
        if any(not 0 <= node < NODES for node in self.gpu_nodes):
            raise LabError(f"GPUs sit on NUMA nodes 0 to {NODES - 1}, not {self.gpu_nodes}")

    @property
    def cpus(self) -> int:
        return self.cpus_per_node * NODES

    def cpus_of(self, node: int) -> range:
        """CPU numbers of a NUMA node."""
        return range(node * self.cpus_per_node, (node + 1) * self.cpus_per_node)

    @property
    def slots(self) -> dict[int, int]:
        """Number of PCIe slots by the NUMA node to which they belong."""
        counts = {node: self.gpu_nodes.count(node) for node in range(NODES)}
        return {node: n for node in counts if (n := max(counts[node], _SLOTS.get(node, 0)))}

    @property
    def dies_per_socket(self) -> int:
        return NODES // self.sockets

    @property
    def shared_cpus(self) -> list[int]:
        """For floating guests and the host's own work: one CPU of each node."""
        return [self.cpus_of(node)[self.shared_core] for node in range(NODES)]

    @property
    def dedicated_cpus(self) -> list[int]:
        """For pinned guests: all others."""
        return [cpu for cpu in range(self.cpus) if cpu not in self.shared_cpus]


MINSKY = Shape(gpu_nodes=(0, 0, 2, 2), gpu_matrix="minsky.txt")
# Another core than h1's, so that a server that migrates finds other CPUs to run on.
DGX_1 = Shape(gpu_nodes=(0,) * 4 + (2,) * 4, gpu_matrix="dgx-1.txt", shared_core=1)


def usual_shape(index: int) -> Shape:
    """The shape of a lab's host; 0 is h1."""
    return (MINSKY, DGX_1)[index] if index < 2 else Shape()


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
    :param ssh_port: on 127.0.0.1, leads to the host's sshd.
    :param peer_port: UDP port on which the hosts of a lab are one Ethernet, on the loopback device only.
    :param threads: "multi": each virtual CPU runs in a thread of its own; "single": slower, steadier.
    :param tsc_khz: of the time stamp counter, so that the kernel need not calibrate it; None: it has to.
    :param monitor: socket for control by QMP, in the host's folder; "" for none.
    :param state: saved state that it goes on with, of a machine with the same ``identity``; None: it boots.
    """

    name: str
    qemu: Qemu
    kernel: Path
    initramfs: Path
    shape: Shape
    shares: Sequence[Share]
    image: Path
    ssh_port: int
    peer_port: int
    threads: str = "multi"
    tsc_khz: int | None = None
    monitor: str = ""
    state: Path | None = None

    def nameless(self, folder: Path) -> "Machine":
        """The machine whose state this one can go on with: without all that differs between hosts.

        :param folder: what is behind its shares, of which it mounts none.
        """
        every_slot = tuple(node for node, n in self.shape.slots.items() for _ in range(n))
        return replace(
            self,
            name=NO_HOST,
            shape=replace(self.shape, gpu_nodes=every_slot, gpu_matrix="", shared_core=0),
            shares=[replace(share, folder=folder) for share in self.shares],
            ssh_port=0,
            monitor="monitor.sock",
            state=None,
        )

    def identity(self) -> list[str]:
        """Two machines can go on with the same saved state if and only if these words are the same."""
        return replace(self.nameless(Path("/")), peer_port=0, tsc_khz=None).command()

    def command(self) -> list[str]:
        """The QEMU command line; file names in it are relative to the host's folder."""
        return [str(self.qemu.binary), *(word for option in self._options() for word in option)]

    def _options(self) -> Iterator[tuple[str, ...]]:
        for folder in _FIRMWARE_FOLDERS:
            yield "-L", folder
        yield "-name", self.name
        yield from (("-nodefaults",), ("-no-user-config",), ("-no-reboot",))
        yield "-display", "none"
        yield "-serial", "file:console.log"
        yield "-machine", "q35,usb=off"
        # tb-size: translated code, in MiB; by default it would grow to a gigabyte.
        yield "-accel", f"tcg,thread={self.threads},tb-size=512"
        yield "-cpu", _CPU_MODEL + (",+rdt-m,+rdt-a" if self.qemu.has_rdt else "")
        yield from self._nodes()
        yield "-kernel", str(self.kernel)
        yield "-initrd", str(self.initramfs)
        clock = f" tsc_early_khz={self.tsc_khz}" if self.tsc_khz else ""
        yield "-append", _KERNEL_OPTIONS + clock
        yield "-fw_cfg", f"name=opt/numa-lab/name,string={self.name:{_NAME_LENGTH}}"
        if self.monitor:
            yield "-qmp", f"unix:{self.monitor},server=on,wait=off"
        if self.state:
            yield "-incoming", f"exec:cat {shlex.quote(str(self.state))}"
        # Before the devices that it stands in front of.
        yield "-device", "intel-iommu,intremap=on,caching-mode=on"
        # The kernel of a machine that goes on with a saved state learns by it that it needs new random numbers.
        yield "-device", "vmgenid,guid=auto"
        yield "-device", f"virtio-rng-pci,{_ROOT_BUS}"
        yield from self._network()
        for share in self.shares:
            yield from _file_system(share)
        yield "-drive", f"if=none,id=image,format=raw,readonly=on,file={_escaped(self.image)}"
        yield "-device", f"virtio-blk-pci,{_ROOT_BUS},drive=image"
        yield from self._cards()

    def _nodes(self) -> Iterator[tuple[str, ...]]:
        shape = self.shape
        cores, memory_mb = shape.cpus_per_node, shape.node_memory_mb
        dies = f"sockets={shape.sockets},dies={shape.dies_per_socket}"
        yield "-smp", f"{shape.cpus},{dies},cores={cores},threads=1"
        yield "-m", f"{memory_mb * NODES}M"
        for node in range(NODES):
            yield "-object", f"memory-backend-ram,id=memory{node},size={memory_mb}M"
            yield "-numa", f"node,nodeid={node},memdev=memory{node}"
        for node in range(NODES):
            socket, die = divmod(node, shape.dies_per_socket)
            place = f"node-id={node},socket-id={socket}"
            if shape.dies_per_socket > 1:  # QEMU takes no number of an only die
                place += f",die-id={die}"
            for core in range(cores):
                yield "-numa", f"cpu,{place},core-id={core},thread-id=0"
        for (source, target), distance in _DISTANCES.items():
            yield "-numa", f"dist,src={source},dst={target},val={distance}"

    def _network(self) -> Iterator[tuple[str, ...]]:
        peers = f"mcast=230.0.0.1:{self.peer_port},localaddr=127.0.0.1"
        yield "-netdev", f"user,id=user,hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22"
        yield "-netdev", f"socket,id=peers,{peers}"
        # Their addresses are the host's to set: a saved state brings those of the machine that was saved.
        for network in ("user", "peers"):
            yield "-device", f"virtio-net-pci,{_ROOT_BUS},romfile=,netdev={network}"

    def _cards(self) -> Iterator[tuple[str, ...]]:
        chassis = 10
        for node, count in self.shape.slots.items():
            bus = _FIRST_BRIDGE_BUS + node * _BUSES_PER_NODE
            yield "-device", f"pxb-pcie,{_ROOT_BUS},id=bridge{node},numa_node={node},bus_nr={bus}"
            for slot in range(count):
                place = f"bus=bridge{node},chassis={chassis},slot={slot + 1}"
                yield "-device", f"pcie-root-port,id=port{node}.{slot},{place},hotplug=off"
                card = _GPU if slot < self.shape.gpu_nodes.count(node) else _OTHER_CARD
                yield "-device", f"{card},bus=port{node}.{slot}"
                chassis += 1


def _file_system(share: Share) -> Iterator[tuple[str, ...]]:
    access = "" if share.writable else ",readonly=on"
    folder = f"path={_escaped(share.folder)},security_model=none,multidevs=remap"
    yield "-fsdev", f"local,id={share.tag},{folder}{access}"
    yield "-device", f"virtio-9p-pci,{_ROOT_BUS},fsdev={share.tag},mount_tag={share.tag}"


def _escaped(path: Path) -> str:
    """QEMU's way to write a comma in a value."""
    return str(path).replace(",", ",,")
