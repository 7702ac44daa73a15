# SPDX-License-Identifier: Apache-2.0
"""A compute host with many servers for one agent, below ``unshare``: what is real, and what stands in for the rest.

``python -m benchmarks.agent_world COUNT MODE SECONDS`` builds the host, runs the agent on it in a process of its own
(:mod:`benchmarks.agent_process`) and prints its figures.

* The helper: the product's, behind its socket, in a process of its own (:mod:`benchmarks.agent_helper`).
* libvirt: its own ``test:///`` driver, in the agent's process, with domains as nova defines them.
* Servers: a process each with threads and page tables (:mod:`benchmarks.stand_in`): proc(5) and move_pages(2) are real.
* RDT: the resctrl model by FUSE, in a process of its own, with real threads in its groups.
* Placement: the real application over HTTP, in a process of its own.
* Counters: real ones, though not of the hardware; what they show is made up (:mod:`benchmarks.agent_counters`).
* An old kernel (mode ``old_kernel``, otherwise as ``idle``): 2,000 real processes that are no servers, and files in
  place of kthreadd's children, with two vhost workers a server, whose part some of these processes take.
* Topology: sysfs files written from a preset; how much memory is free changes all the time. Affinities and pages per
  node are remembered instead of set, because this machine has other CPUs and nodes.
"""

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from benchmarks.agent_helper import KERNEL_THREADS
from emulation import libvirt_state
from emulation.kernel.fuse import serve
from emulation.kernel.profiles import LINUX_6_12
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import Shape
from emulation.kernel.threads import ThreadTable
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.control import calibration_store
from host_agent.decide.pages.worker_sets import profile_sets
from host_agent.model import cpus
from host_agent.observe.topology.capture import restore
from placement_traits import presets
from placement_traits.names import MemoryPolicy
from placement_traits.topology import Core, HostTopology

# Of its own: mounts, so that nothing is left behind; processes, so that the resctrl model looks through few of them.
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
PRESET = "epyc-7763-nps4"
MEMORY_MB = 256
VCPUS = 2
IDLE, SEARCH, OLD_KERNEL = "idle", "search", "old_kernel"
MODES = (IDLE, SEARCH, OLD_KERNEL)

_OTHER_PROCESSES = 2000
_OTHER_KERNEL_THREADS = 1000
_FIRST_KERNEL_THREAD = 5_000_000  # above any process id
_VHOST_PER_SERVER = 2

_DEDICATED_EVERY = 4  # each fourth core belongs to nova's dedicated set
_LC_MAX = 10  # fewer than the machine has classes of service
_LOCAL_MBPS = 40_000.0
_PATIENCE_S = 60.0
_COMES_AND_GOES_MB = (-512, 512)
_CHANGES_S = 0.25


def split_cores(topology: HostTopology) -> tuple[list[Core], list[int]]:
    """Return nova's dedicated cores, and the CPUs of its shared set."""
    dedicated = list(topology.cores[_DEDICATED_EVERY - 1 :: _DEDICATED_EVERY])
    taken = {cpu for core in dedicated for cpu in core.cpus}
    return dedicated, [cpu for cpu in topology.cpus if cpu not in taken]


def servers(topology: HostTopology, count: int, mode: str) -> list[Server]:
    """Return ``count`` servers: a third latency-critical, ten at most, spread over the nodes; the others best-effort.

    :param mode: "search": memory policies that are tuned at run time; else memory stays at home
    """
    dedicated, shared = split_cores(topology)
    specs = {
        **BE_SPECS,
        "numa_ext:memory_policy": MemoryPolicy.BWAP if mode == SEARCH else MemoryPolicy.LOCAL,
    }
    critical = min(count // 3, _LC_MAX)
    stride = len(dedicated) // max(1, critical)
    made = []
    for number in range(critical):
        core = dedicated[number * stride]
        size = {"vcpus": len(core.cpus), "memory_mb": MEMORY_MB}
        made.append(Server(f"lc{number}", LC_SPECS, cpus=core.cpus, node=core.node, **size))
    for number in range(count - critical):
        node = topology.node_ids[number % len(topology.node_ids)]
        size = {"vcpus": VCPUS, "memory_mb": MEMORY_MB}
        made.append(Server(f"be{number}", specs, shared=cpus.text(shared), node=node, **size))
    return made


def sysfs(topology: HostTopology) -> dict[str, Any]:
    """Return the files of ``/sys/devices/system`` that discovery reads, for :func:`restore`."""
    caches = {domain.id: domain for domain in topology.l3_domains}
    tree: dict[str, Any] = {"cpu": {"online": cpus.text(topology.cpus)}, "node": {}}
    for core in topology.cores:
        files: dict[str, Any] = {
            "topology": {
                "physical_package_id": str(core.socket),
                "core_cpus_list": cpus.text(core.cpus),
            }
        }
        if core.l3 is not None:
            sharing = (cpu for other in topology.cores if other.l3 == core.l3 for cpu in other.cpus)
            files["cache"] = {
                "index3": {
                    "level": "3",
                    "id": str(core.l3),
                    "size": f"{caches[core.l3].size_kb or 0}K",
                    "shared_cpu_list": cpus.text(sharing),
                }
            }
        tree["cpu"] |= {f"cpu{cpu}": files for cpu in core.cpus}
    for position, node in enumerate(topology.nodes):
        mine = [cpu for core in topology.cores if core.node == node.id for cpu in core.cpus]
        total = node.memory_mb or 0
        tree["node"][f"node{node.id}"] = {
            "cpulist": cpus.text(mine),
            "distance": " ".join(map(str, topology.distances[position])),
            "meminfo": _meminfo(node.id, total, total // 2),
            **{f"cpu{cpu}": [f"../../cpu/cpu{cpu}"] for cpu in mine},
        }
    return {"devices": {"system": tree}}


def _meminfo(node: int, total_mb: int, free_mb: int) -> str:
    amounts = {"MemTotal": total_mb, "MemFree": free_mb, "Inactive(file)": 0}
    return "".join(f"Node {node} {name}: {mb * 1024} kB\n" for name, mb in amounts.items())


def change_free_memory(topology: HostTopology, folder: Path) -> None:
    """Change how much memory is free on each node four times a second, for ever: what the host itself uses comes and
    goes.

    :param folder: stands for ``/sys/devices/system/node``
    """
    drawn = random.Random(0)
    while True:
        for node in topology.nodes:
            total = node.memory_mb or 0
            new = folder / f"node{node.id}" / "meminfo.new"
            new.write_text(
                _meminfo(node.id, total, total // 2 + drawn.randint(*_COMES_AND_GOES_MB))
            )
            new.rename(new.with_name("meminfo"))
        time.sleep(_CHANGES_S)


@contextmanager
def _running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process that ends with its standard input, or at the end of the block."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    output: IO[str] | None = process.stdout
    line = output.readline() if output else ""
    if not line:
        raise RuntimeError(f"{' '.join(map(str, process.args))} ended before it was ready")
    return line


def start_servers(made: Sequence[Server], folder: Path, ends: ExitStack) -> list[int]:
    """Start the processes and write libvirt's files; return the pids."""
    pids = []
    memory = os.memfd_create("guest")
    os.ftruncate(memory, MEMORY_MB << 20)
    script = str(Path(__file__).with_name("stand_in.py"))
    options = {"stdout": subprocess.PIPE, "pass_fds": [memory]}
    for server in made:
        argv = [sys.executable, "-SI", script, "-uuid", server.uuid, "-m", str(server.memory_mb)]
        process = ends.enter_context(_running([*argv, str(memory), str(server.vcpus)], **options))
        _line(process)
        name = f"instance-{server.uuid[:8]}"
        libvirt_state.write(folder / "pids", name, server.uuid, process.pid)
        pids.append(process.pid)
    return pids


def start_others(ends: ExitStack) -> list[int]:
    """Start processes that are no servers; return their pids."""
    script = f"for i in $(seq {_OTHER_PROCESSES}); do sleep infinity & echo $!; done; wait"
    shell = ends.enter_context(_running(["bash", "-c", script], stdout=subprocess.PIPE))
    return [int(_line(shell)) for _ in range(_OTHER_PROCESSES)]


def write_kernel_threads(qemus: Sequence[int], workers: Sequence[int], folder: Path) -> None:
    """Write what the agent reads of kthreadd's children.

    :param workers: the ids that vhost workers have, as many for each server
    """
    each = len(workers) // len(qemus)
    names = {tid: f"vhost-{qemus[at // each]}" for at, tid in enumerate(workers)}
    others = range(_FIRST_KERNEL_THREAD, _FIRST_KERNEL_THREAD + _OTHER_KERNEL_THREADS)
    names |= {tid: f"kworker/{tid % 128}:1-events" for tid in others}
    tree: dict[str, Any] = {"2": {"task": {"2": {"children": " ".join(map(str, names))}}}}
    flags = 0x00208040  # a kernel thread's
    for tid, name in names.items():
        fields = f"S 2 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 1 0"
        tree[str(tid)] = {"comm": f"{name}\n", "stat": f"{tid} ({name}) {fields}"}
    restore(tree, folder / KERNEL_THREADS)


def start_resctrl(topology: HostTopology, servers: Sequence[int], mountpoint: Path) -> None:
    """Mount the resctrl model with the machine's figures.

    :param servers: pids, of vhost workers, too; the model knows their threads and no others, so that it answers as
        fast as it can
    """
    mountpoint.mkdir()
    rdt = topology.rdt
    if rdt is None or rdt.cat is None or rdt.monitoring is None:
        raise RuntimeError(f"preset {PRESET} has no RDT")
    shape = Shape(
        domains=tuple(rdt.l3_ids),
        cbm_len=rdt.cat.cbm_len,
        shareable=rdt.cat.shareable_bits,
        closids=rdt.cat.num_closids,
        rmids=rdt.monitoring.num_rmids,
        cpus=frozenset(topology.cpus),
    )
    threads = ThreadTable(int(tid) for pid in servers for tid in os.listdir(f"/proc/{pid}/task"))
    model = ResctrlModel(shape, LINUX_6_12, threads=threads)
    server = multiprocessing.Process(target=serve, args=(model, str(mountpoint)), daemon=True)
    server.start()
    deadline = time.monotonic() + _PATIENCE_S
    while not (mountpoint / "info").exists():
        if not server.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the resctrl model did not come up")
        time.sleep(0.02)


def write_files(topology: HostTopology, made: Sequence[Server], port: str, folder: Path) -> None:
    """Write sysfs, libvirt's node, the agent's configuration and what a calibration would have found."""
    restore(sysfs(topology), folder / "sys")
    domains = "".join(server.xml.replace("type='qemu'", "type='test'") for server in made)
    (folder / "node.xml").write_text(f"<node>{domains}</node>")
    far = calibration_store.distances(topology)
    pairs = {a: {b: _LOCAL_MBPS * 10 / far[a][b] for b in far} for a in far}
    sets = {
        workers: {a: {b: pairs[a][b] for b in workers} for a in far}
        for profile in profile_sets(far)
        for workers in list(profile.members)[:1]
    }
    calibration = calibration_store.Calibration(far, sets, pairs, "by distance, for a benchmark")
    (folder / "state").mkdir()
    calibration_store.store(folder / "state" / "calibration.json").save(calibration)
    facts = [{"uuid": s.uuid, "node": s.node, "bound": bool(s.cpus)} for s in made]
    (folder / "servers.json").write_text(json.dumps(facts))
    (folder / "agent.conf").write_text(f"""\
[agent]
state_dir = {folder}/state
metrics_port = 0
takeover_interval_s = 0
[libvirt_host]
uri = test://{folder}/node.xml
pid_dir = {folder}/pids
[helper]
socket = {folder}/helper.sock
state_dir = {folder}/helper
[host]
name = host0
sys = {folder}/sys
resctrl = {folder}/resctrl
[placement]
auth_type = admin_token
endpoint = http://127.0.0.1:{port}
token = admin
endpoint_override = http://127.0.0.1:{port}
[counters]
source = perf
""")


def main() -> int:
    """Build the host, run the agent, print its figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    topology = presets.load(PRESET).topology
    made = servers(topology, given.count, given.mode)
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder = Path(name)
        ends.callback(subprocess.run, ["umount", "--lazy", folder / "resctrl"], check=False)
        placement = [sys.executable, "-m", "benchmarks.placement_server", "1"]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        port, _ = _line(ends.enter_context(_running(placement, **quiet))).split()
        pids = start_servers(made, folder, ends)
        workers: list[int] = []
        if given.mode == OLD_KERNEL:
            workers = start_others(ends)[: _VHOST_PER_SERVER * len(pids)]
            write_kernel_threads(pids, workers, folder)
        start_resctrl(topology, [*pids, *workers], folder / "resctrl")
        write_files(topology, made, port, folder)
        nodes = folder / "sys" / "devices" / "system" / "node"
        used = multiprocessing.Process(
            target=change_free_memory, args=(topology, nodes), daemon=True
        )
        used.start()
        ends.callback(used.kill)
        agent = [sys.executable, "-m", "benchmarks.agent_process", name, str(given.seconds)]
        return subprocess.run(agent, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
