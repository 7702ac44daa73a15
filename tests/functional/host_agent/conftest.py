# SPDX-License-Identifier: Apache-2.0
"""A compute host on this machine: a real libvirtd with real QEMU processes, and resctrl by FUSE.

libvirtd has its own /run/libvirt, /var/lib/libvirt … in a private mount namespace, which a small process holds; what
is needed from outside is reached through ``/proc/HOLDER/root``. The agent runs as on a host, as a process of its own
with a configuration file. Domains have no disk and idle in the firmware: 64 MiB, a fraction of a second to start.
"""

import io
import os
import subprocess
import sys
import time
import uuid as uuids
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from emulation import unix_sockets
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.cmd import agent, ctl

_HOLD = """
import os, subprocess, sys, time
root = sys.argv[1]
for place in ("/run", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt"):
    os.makedirs(place, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "numa-ext-test", place], check=True)
os.makedirs("/run/resctrl")
for name in ("qemu.conf", "libvirtd.conf"):
    subprocess.run(["mount", "--bind", f"{root}/{name}", f"/etc/libvirt/{name}"], check=True)
open(f"{root}/ready", "w").close()
while os.getppid() == int(sys.argv[2]):
    time.sleep(0.5)
"""


class ComputeHost:
    """libvirtd, resctrl and the agent's files; ``root`` is the holder's view of the file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connection: Any = None
        self.helper: subprocess.Popen[bytes] | None = None
        self.kept: tuple[Server, ...] = ()
        self._foreign_cgroups = set(_machine_cgroups())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "qemu.conf").write_text(
            'user = "root"\ngroup = "root"\nsecurity_driver = "none"\nremember_owner = 0\nnamespaces = []\n'
            'stdio_handler = "file"\n'
        )
        (folder / "libvirtd.conf").write_text(
            f'auth_unix_rw = "none"\nauth_unix_ro = "none"\nunix_sock_dir = "{folder}/sock"\n'
            f'unix_sock_rw_perms = "0777"\n'
            f'host_uuid = "{uuids.uuid4()}"\nlog_outputs = "2:file:{folder}/libvirtd.log"\n'
        )
        (folder / "sock").mkdir()
        hold = ["unshare", "--mount", sys.executable, "-c", _HOLD, str(folder), str(os.getpid())]
        self.holder = self._start(hold)
        wait_for((folder / "ready").exists, "the mount namespace")
        self.start_libvirtd()
        self.start_resctrl()

    @property
    def root(self) -> Path:
        """The file system as libvirtd sees it."""
        return Path(f"/proc/{self.holder.pid}/root")

    @property
    def resctrl(self) -> Path:
        """The FUSE tree."""
        return self.root / "run/resctrl"

    @property
    def uri(self) -> str:
        """Connection URI, from outside the namespace."""
        return f"qemu:///system?socket={self.folder}/sock/libvirt-sock"

    @property
    def state(self) -> Path:
        """The agent's state folder."""
        return self.folder / "state"

    def _start(self, command: list[str], log: str = "output.log") -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        self._processes.append(process)
        return process

    def _inside(self, *command: str) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--", *command]

    def start_libvirtd(self) -> None:
        """Start libvirtd and wait until it answers."""
        self.libvirtd = self._start(
            self._inside("/usr/sbin/libvirtd", "--config=/etc/libvirt/libvirtd.conf")
        )
        wait_for(self._answers, "libvirtd")

    def _answers(self) -> bool:
        import libvirt

        try:
            self._connection = libvirt.open(self.uri)
        except libvirt.libvirtError:
            return False
        return True

    def stop_libvirtd(self) -> None:
        """Stop libvirtd; domains run on."""
        self._connection = None
        self.libvirtd.terminate()
        self.libvirtd.wait(10)

    def start_resctrl(self) -> None:
        """Serve the resctrl model for this machine's L3 domains and CPUs."""
        domains = ",".join(sorted(_l3_ids()))
        self._start(
            self._inside(
                sys.executable,
                "-m",
                "emulation.kernel.fuse",
                "/run/resctrl",
                f"--domains={domains}",
            )
        )
        wait_for((self.resctrl / "info").is_dir, "the resctrl tree")

    def stop_resctrl(self) -> None:
        """Unmount the tree, as ``umount /sys/fs/resctrl`` does; its server ends with it."""
        subprocess.run(self._inside("umount", "--lazy", "/run/resctrl"), check=True)

    def boot(self, server: Server, *, paused: bool = False) -> int:
        """Start a server; return the pid of its QEMU."""
        import libvirt

        flags = libvirt.VIR_DOMAIN_START_PAUSED if paused else 0
        self._connection.createXML(server.xml, flags)
        return self.pid(server)

    def domain(self, server: Server) -> Any:
        """libvirt's object."""
        return self._connection.lookupByUUIDString(server.uuid)

    def pid(self, server: Server) -> int:
        """Pid of the server's QEMU."""
        return int((self.root / f"run/libvirt/qemu/instance-{server.uuid[:8]}.pid").read_text())

    def destroy(self, server: Server) -> None:
        """Delete a server."""
        self.domain(server).destroy()

    def destroy_all(self, keep: Collection[str] = ()) -> None:
        """Delete all servers."""
        for domain in self._connection.listAllDomains():
            if domain.UUIDString() not in keep:
                domain.destroy()

    def uuids(self) -> set[str]:
        """Servers that run."""
        return {domain.UUIDString() for domain in self._connection.listAllDomains()}

    def tasks(self, group: str) -> set[int]:
        """Threads in a control group, by its path below the tree."""
        return set(map(int, (self.resctrl / group / "tasks").read_text().split()))

    def schemata(self, group: str = "") -> dict[str, dict[int, str]]:
        """Schemata of a group."""
        found: dict[str, dict[int, str]] = {}
        for line in (self.resctrl / group / "schemata").read_text().splitlines():
            name, _, values = line.strip().partition(":")
            found[name] = {
                int(domain): value.strip()
                for domain, _, value in (pair.partition("=") for pair in values.split(";"))
            }
        return found

    def groups(self) -> set[str]:
        """Names of all control groups."""
        fixed = {"info", "mon_groups", "mon_data"}
        return {entry.name for entry in self.resctrl.iterdir() if entry.is_dir()} - fixed

    def group_of(self, tid: int) -> str:
        """The control group that holds a thread, "" for root's."""
        return next((group for group in sorted(self.groups()) if tid in self.tasks(group)), "")

    def config(self, **options: object) -> Path:
        """Write the agent's configuration; options are spelt ``group__name``."""
        values: dict[str, dict[str, object]] = {
            "agent": {
                "state_dir": self.state,
                "interval_s": 0.1,
                "metrics_port": 0,
                "takeover_interval_s": 0,
                "deny_servers": self.folder / "deny-servers",
            },
            "libvirt_host": {"uri": self.uri, "pid_dir": self.root / "run/libvirt/qemu"},
            "host": {"resctrl": self.resctrl},
            "helper": {"socket": self.folder / "helper.sock", "state_dir": self.folder / "helper"},
            "rdt": {"verify_s": 0.2},
            "placement": {"enabled": False},
        }
        for key, value in options.items():
            group, _, name = key.partition("__")
            values.setdefault(group, {})[name] = value
        path = self.folder / "agent.conf"
        path.write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
                for group, entries in values.items()
            )
        )
        return path

    def agent(self, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        """Start the agent, and a helper with the same options in place of the one before."""
        config = f"--config-file={self.config(**options)}"
        self.stop_helper()
        module = [sys.executable, "-m", "host_agent.cmd.helper"]
        self.helper = self._start([*module, config], "helper.log")
        wait_for(lambda: unix_sockets.listens(self.folder / "helper.sock"), "the helper")
        module = [sys.executable, "-m", "host_agent.cmd.agent"]
        return self._start([*module, config, *arguments], "agent.log")

    def stop_helper(self) -> None:
        """End the helper, if one runs."""
        if self.helper is not None:
            self.helper.terminate()
            self.helper.wait(10)
            self.helper = None

    def run_once(self, *arguments: str, **options: object) -> str:
        """Run one round of the agent in this process; return its standard output."""
        return _run(agent.main, [f"--config-file={self.config(**options)}", "--once", *arguments])

    def ctl(self, *arguments: str, status: int = 0) -> str:
        """Run numa-host-agent-ctl in this process; return its standard output."""
        return _run(ctl.main, [f"--config-file={self.config()}", *arguments], status)

    def stop(self) -> None:
        """End all processes; the mounts end with their namespace."""
        with suppress(Exception):
            self.destroy_all()
        for process in reversed(self._processes):
            process.kill()
            process.wait(10)
        for folder in set(_machine_cgroups()) - self._foreign_cgroups:
            with suppress(OSError):  # somebody else's libvirt uses it by now
                folder.rmdir()


def wait_for(condition: Callable[[], object], what: str, seconds: float = 180.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come in {seconds} s"
        time.sleep(0.05)


def _run(main: Callable[[list[str]], int], arguments: list[str], status: int = 0) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(arguments) == status, out.getvalue()
    return out.getvalue()


def _machine_cgroups() -> Iterator[Path]:
    """What libvirt makes in each cgroup hierarchy and never takes away."""
    root = Path("/sys/fs/cgroup")
    return (path for path in (root / "machine", *root.glob("*/machine")) if path.is_dir())


def _l3_ids() -> set[str]:
    caches = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index3/id")
    return {path.read_text().strip() for path in caches}


@pytest.fixture(scope="session")
def compute_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComputeHost]:
    """One compute host for all stories, on this machine's own CPUs; in a mount namespace, so that nothing is left::

    this machine
    ├─ libvirtd           its own sockets, /run and /var; boots real QEMU processes
    │  └─ instance-…      one process per server, threads and cpusets as libvirt makes them
    ├─ /run/resctrl       the kernel's resctrl as a FUSE tree: this machine's L3 ids, real threads in its groups
    ├─ agent.conf, state  the agent's configuration and state folder
    └─ no Placement       [placement]enabled = false
    """
    if os.geteuid() != 0:
        pytest.skip("needs root: mount namespaces, cpusets, FUSE")
    for needed in ("/usr/sbin/libvirtd", "/usr/bin/qemu-system-x86_64", "/dev/fuse"):
        if not Path(needed).exists():
            pytest.skip(
                f"needs {needed}: apt-get install libvirt-daemon-system qemu-system-x86 fuse3"
            )
    pytest.importorskip("libvirt")
    host = ComputeHost(tmp_path_factory.mktemp("host"))
    yield host
    host.stop()


@pytest.fixture
def host(compute_host: ComputeHost) -> Iterator[ComputeHost]:
    """The host, as a fresh one afterwards, but with the servers of :func:`pair`: starting QEMU takes longest."""
    yield compute_host
    compute_host.stop_helper()
    compute_host.destroy_all(keep={server.uuid for server in compute_host.kept})
    compute_host.ctl("reset")
    for folder in (compute_host.state, compute_host.folder / "helper"):
        for leftover in folder.glob("*"):
            leftover.unlink()


@pytest.fixture
def empty_host(host: ComputeHost) -> ComputeHost:
    """The host without servers."""
    host.destroy_all()
    host.kept = ()
    return host


@pytest.fixture
def pair(host: ComputeHost) -> tuple[Server, Server]:
    """The two servers that most stories begin with; they run on from story to story::

    CPU 0   be ┐               floats, as nova leaves a server without a policy
    CPU 1   be ┘  lc           pinned by nova: dedicated, one cell, 4 ways
    """
    if {server.uuid for server in host.kept} - host.uuids() or not host.kept:
        host.destroy_all()
        host.kept = (Server("lc", LC_SPECS, cpus=(1,)), Server("be", BE_SPECS))
        for server in host.kept:
            host.boot(server)
    lc, be = host.kept
    return lc, be
