# SPDX-License-Identifier: Apache-2.0
"""The local compute: libvirtd and nova-compute on this machine, in mount and UTS namespaces of their own.

A holder process keeps the namespaces (see ``namespace.py``); everything else enters them with ``nsenter``. What lives
in that mount namespace is ours, so stopping is exact: guests and helpers are found by it, not by name.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from . import agent_user, configuration
from .controlplane import service_environment
from .process import Process, stop_all, wait_for
from .service import Service
from .settings import HostConfig, Settings
from .terminal import Progress

NAME = "local"
_CGROUPS = Path("/sys/fs/cgroup")
_AGENT_CODE = ("placement_traits", "nova_numa_ext", "host_agent", "emulation")
# The lab's own folders are closed to all but root.
_AGENT_ETC, _AGENT_STATE = Path("/run/numa-lab/etc"), Path("/run/numa-lab/state")
_SYSTEM_FOLDERS = {
    "etc/libvirt": Path("/etc/libvirt"),
    "state/libvirt/lib": Path("/var/lib/libvirt"),
    "state/libvirt/cache": Path("/var/cache/libvirt"),
    "log/libvirt": Path("/var/log/libvirt"),
    "run/libvirt": Path("/run/libvirt"),
    "etc/numa-host-agent": _AGENT_ETC,
    "state/nova-local/numa-host-agent": _AGENT_STATE,
}


class LocalCompute:
    """The compute host ``local``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._holder = Process(
            "local-namespaces",
            settings.run / "local-namespaces.pid",
            settings.log / "output-local-namespaces.log",
            grace_s=5,
        )

    @property
    def config(self) -> HostConfig:
        """Nova's view of this machine: the first CPU floats, the others are for pinned guests."""
        cpus = sorted(os.sched_getaffinity(0))
        dedicated = ",".join(map(str, cpus[1:]))
        return HostConfig(
            name=NAME,
            state=self._settings.state / "nova-local",
            log=self._settings.log,
            instances=self._settings.state / "nova-local" / "instances",
            cpu_dedicated_set=dedicated,
            cpu_shared_set=str(cpus[0]) if dedicated else "",
        )

    @property
    def libvirt_uri(self) -> str:
        """How to reach its libvirtd from outside of the namespaces."""
        return f"qemu:///system?socket={self._settings.run}/libvirt/libvirt-sock"

    def start_libvirt(self, progress: Progress) -> None:
        """Namespaces and libvirtd; needs nothing of the controller."""
        configuration.write_libvirt(self._settings)
        self._hold_namespaces(progress)
        self._libvirtd().ensure(progress)

    def start_nova(self, progress: Progress) -> None:
        """nova-compute; needs the controller and libvirtd."""
        for name in ("instances", "lock"):
            (self.config.state / name).mkdir(parents=True, exist_ok=True)
        text = configuration.nova_compute_conf(self._settings, self.config)
        configuration.write_if_changed(self._nova_conf, text)
        self._nova_compute().ensure(progress)

    def start_agent(self, progress: Progress) -> None:
        """Our host agent; needs nova-compute's resource provider."""
        if not self._agent_user:
            progress.note(
                f"the local agent runs as root: no other user gets to {self._settings.checkout}"
            )
        state = self.config.state / "numa-host-agent"
        agent_user.give_folder(state, None if self._agent_user else 0)
        helper = self._settings.run / "numa-host-agent-helper"
        text = configuration.agent_conf(
            self._settings, self.config, self._nova_conf, helper, _AGENT_STATE
        )
        agent_user.write_configuration(self.agent_conf, text)
        self._agent().ensure(progress)

    def services(self) -> list[Service]:
        """Its services, in the order of their needs; empty when the namespaces are not there."""
        if not self._holder.alive():
            return []
        services = [self._libvirtd(), self._nova_compute()]
        return [*services, self._agent()] if self._settings.plugin else services

    @property
    def agent_conf(self) -> Path:
        """Our agent's configuration file, as root reaches it from everywhere."""
        return self._settings.etc / "numa-host-agent" / "numa-host-agent.conf"

    @property
    def _agent_user(self) -> str:
        """Who runs our agent: its own user, "" (root) where that does not get to the code."""
        python = self._settings.python
        places = (self._settings.checkout, self._settings.run, python, python.resolve())
        return agent_user.NAME if all(map(agent_user.gets_to, places)) else ""

    @property
    def nova(self) -> Process:
        """Its nova-compute."""
        return self._nova_compute().process

    def alive(self) -> bool:
        """Whether its namespaces are held: without them nothing can be started in it."""
        return self._holder.alive()

    def running(self) -> bool:
        """Whether anything of it runs."""
        return any(process.alive() for process in self._processes()) or bool(self._guests())

    def inside(self, argv: Sequence[str | Path]) -> list[str]:
        """The command ``argv`` as it is run within the namespaces."""
        identity = self._holder.identity()
        pid = identity.pid if identity else 0
        entered = ["nsenter", f"--mount=/proc/{pid}/ns/mnt", f"--uts=/proc/{pid}/ns/uts", "--"]
        return entered + [str(word) for word in argv]

    def shell(self, words: Sequence[str]) -> int:
        """A shell within the namespaces, or a command, on the caller's terminal; returns its status.

        numa-host-agent-ctl finds the agent's configuration there by itself.
        """
        environment = os.environ | {"NUMA_HOST_AGENT_CONFIG": str(self.agent_conf)}
        command = self.inside(list(words) or ["bash"])
        return subprocess.run(command, env=environment, check=False).returncode

    def stop(self) -> None:
        """End services, guests and namespaces, and take our cgroups away."""
        *services, last = self._processes()
        members = self._members_check()
        stop_all(services)
        wait_for("guests of the local compute have ended", members, 10)
        last.stop()
        self._remove_cgroups()

    # -- parts

    @property
    def _nova_conf(self) -> Path:
        return self._settings.etc / "nova-local" / "nova.conf"

    def _hold_namespaces(self, progress: Progress) -> None:
        ready = self._settings.run / "local-namespaces.ready"
        if self._holder.alive() and ready.exists():
            return
        with progress.step("namespaces of the local compute", self._holder.log):
            self._holder.stop()
            ready.unlink(missing_ok=True)
            hosts = self._settings.etc / "local-hosts"
            configuration.write_if_changed(hosts, f"127.0.0.1 localhost\n127.0.1.1 {NAME}\n", 0o644)
            script = Path(__file__).with_name("namespace.py")
            argv: list[str | Path] = ["unshare", "--mount", "--uts", "/usr/bin/python3", script]
            argv += ["--hostname", NAME, "--ready", ready]
            binds = {hosts: Path("/etc/hosts"), **agent_user.write_accounts(self._settings.etc)}
            binds |= {self._settings.lab / ours: at for ours, at in _SYSTEM_FOLDERS.items()}
            for ours, system in binds.items():
                argv += ["--bind", f"{ours}:{system}"]
            self._holder.start(argv, service_environment(self._settings))
            wait_for("the namespaces are set up", ready.exists, 30, self._holder)

    def _libvirtd(self) -> Service:
        run, log = self._settings.run, self._settings.log
        folder = self._settings.etc / "libvirt"
        return Service(
            Process("libvirtd", run / "libvirtd.pid", log / "output-libvirtd.log"),
            tuple(
                self.inside(
                    [
                        "/usr/sbin/libvirtd",
                        "--config=/etc/libvirt/libvirtd.conf",
                        "--pid-file=/run/libvirtd.pid",
                    ]
                )
            ),
            service_environment(self._settings),
            (folder / "libvirtd.conf", folder / "qemu.conf"),
            self._libvirt_answers,
            also=str(self._holder.identity()),
        )

    def _nova_compute(self) -> Service:
        run, log = self._settings.run, self._settings.log
        command = [f"{self._settings.venv}/bin/nova-compute", f"--config-file={self._nova_conf}"]
        return Service(
            Process("nova-compute", run / "nova-compute.pid", log / "output-nova-compute.log"),
            tuple(self.inside(command)),
            service_environment(self._settings),
            (self._nova_conf,),
            also=str(self._holder.identity()),
        )

    def _agent(self) -> Service:
        run, log = self._settings.run, self._settings.log
        python = str(self._settings.python)
        checkout = self._settings.checkout
        conf = _AGENT_ETC / self.agent_conf.name
        return Service(
            Process("numa-host-agent", run / "numa-host-agent.pid", log / "numa-host-agent.log"),
            tuple(
                self.inside(
                    [python, *configuration.supervisor(self._settings, conf, self._agent_user)]
                )
            ),
            service_environment(self._settings),
            (self.agent_conf, *(checkout / name for name in _AGENT_CODE)),
            also=str(self._holder.identity()),
        )

    def _libvirt_answers(self) -> bool:
        if not (self._settings.run / "libvirt" / "libvirt-sock").exists():
            return False
        argv = ["virsh", "--connect", self.libvirt_uri, "version"]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    def members(self) -> list[int]:
        """Pids of all processes in our mount namespaces, guests included, but for the holder."""
        holder = self._holder.identity()
        found = _in_mount_namespaces(self._namespaces())
        return [pid for pid in found if holder is None or pid != holder.pid]

    def _processes(self) -> list[Process]:
        """All that are started by pid file, the holder of the namespaces last."""
        services = (self._agent(), self._nova_compute(), self._libvirtd())
        return [*(service.process for service in services), self._holder]

    def _namespaces(self) -> set[int]:
        """Inodes of the mount namespaces that our processes live in; never the caller's own one.

        A process that was just started may not have left the caller's namespace yet.
        """
        own = os.stat("/proc/self/ns/mnt").st_ino
        identities = [process.identity() for process in self._processes()]
        pids = [identity.pid for identity in identities if identity] + self._guests()
        found = set()
        for pid in pids:
            with contextlib.suppress(FileNotFoundError):
                found.add(os.stat(f"/proc/{pid}/ns/mnt").st_ino)
        return found - {own}

    def _guests(self) -> list[int]:
        """Pids of guests, by libvirt's pid files: they outlive everything else."""
        mark = f"guest={configuration.instance_prefix(self._settings)}".encode()
        found = []
        for file in (self._settings.run / "libvirt" / "qemu").glob("*.pid"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid = int(file.read_text())
                if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def _members_check(self) -> Callable[[], bool]:
        """A check that kills who is left in our namespaces, and is true when there are none.

        The namespaces are looked up now: later the processes that show them may have ended.
        """
        namespaces = self._namespaces()
        holder = self._holder.identity()
        spared = {holder.pid} if holder else set()

        def gone() -> bool:
            left = set(_in_mount_namespaces(namespaces)) - spared
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        return gone

    def _remove_cgroups(self) -> None:
        """libvirt leaves the groups of guests that were killed, and never takes /machine away."""
        prefix = configuration.instance_prefix(self._settings)
        tops = [_CGROUPS / "machine", *_CGROUPS.glob("*/machine")]
        guests = [guest for top in tops for guest in top.glob(f"qemu-*-{prefix}*")]

        def gone() -> bool:
            # A group stays busy until the kernel is done with the process that was killed.
            for guest in guests:
                for folder in [*sorted(guest.rglob("*/"), reverse=True), guest]:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            return not any(guest.exists() for guest in guests)

        wait_for("control groups of the local compute are gone", gone, 20)
        for top in tops:
            # Guests of others keep it.
            with contextlib.suppress(OSError):
                top.rmdir()


def _in_mount_namespaces(inodes: set[int]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            # A process may end while we look; kernel threads and zombies have no namespace.
            with contextlib.suppress(OSError):
                if (entry / "ns" / "mnt").stat().st_ino in inodes:
                    found.append(int(entry.name))
    return found
