# SPDX-License-Identifier: Apache-2.0
"""Emulated compute hosts: QEMU machines with NUMA, RDT and PCI devices that share this machine's file tree.

A host's life: ``start`` boots it and starts libvirtd, which needs nothing of the controller; ``start_services`` then
starts nova-compute and our agent; ``stop`` ends the machine. Everything of a host lies in its folder ``hosts/<name>``,
which it sees at the same path::

    machine.env, hosts, ports.nft …   what guest/init reads at boot
    console.log                       the kernel's words; console.failed-N.log of boots that failed
    ssh/  services/  run/  log/       command channel, how services are started, their pid files and logs
    etc/  state/  libvirt/            configuration of nova and of our agent, their state, libvirt's folders

Under multi-threaded emulation a kernel panics now and then while it boots: that is noticed, counted and tried again.
"""

import contextlib
import dataclasses
import json
import shlex
import signal
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import agent_user, configuration, kernel, packages, qemu_build, snapshot, venv_image
from .emulated_machine import GPU_PRODUCT_ID, GPU_VENDOR_ID, Machine, Shape, Share, usual_shape
from .errors import LabError
from .guest_shell import GuestShell
from .memory import proportional_mb
from .process import Process, wait_for
from .service import Service
from .settings import HostConfig, Settings
from .terminal import Progress
from .time_stamp_counter import frequency_khz

PACKAGES = (
    "intel-cmt-cat",
    "kmod",
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-system",
    "nftables",
    "openssh-client",
    "openssh-server",
    "qemu-system-x86",
    *kernel.PACKAGES,
    *venv_image.PACKAGES,
)

SSH_PORT = 0
PEER_PORT = 1  # of host 0: one for the whole lab

# Where a host sees its folder state/instances: at the same place as every other host, so that servers can migrate.
INSTANCES = Path("/var/lib/nova/instances")

_BOOT_TIMEOUT_S = 300.0
_CONNECT_TIMEOUT_S = 120.0
# Longer than any step of a boot on a machine with ten times too much to do.
_SILENCE_S = 90.0
# The last try is with one thread for all CPUs: slower, but without the race that panics kernels.
_BOOT_TRIES = ("multi", "multi", "multi", "single")

_OUR_PACKAGES = ("placement_traits", "nova_numa_ext", "host_agent", "emulation")
# The agent's code as it was when it was last started. Each look at a file of the checkout is a message to QEMU: from
# there, it takes twice as long to start.
_PACKAGES_INSIDE = "/run/numa-lab/packages"
_SETUP_FAILED = "numa-lab: set-up failed"  # guest/init

_preparing = threading.Lock()


@dataclass(frozen=True, slots=True)
class GuestService:
    """How a service inside an emulated host is started.

    :param argv: the command.
    :param environment: in addition to the host's usual variables.
    :param reads: configuration files and code folders whose change asks for a restart.
    :param packages: Python packages of the checkout that it runs from a copy in the host's memory.
    :param ready: shell command that is true, inside, when it serves.
    """

    name: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    reads: tuple[Path, ...] = ()
    packages: tuple[Path, ...] = ()
    ready: str = ""
    ready_within_s: int = 300
    grace_s: int = 20


@dataclass(frozen=True, slots=True)
class BootRecord:
    """What happened at a host's boots since its folder was made.

    :param failed: boots that ended in a panic, or in nothing.
    :param threads: "single" once a boot has succeeded only so.
    :param boot_s: how long the last boot took until commands could be run.
    """

    boots: int = 0
    failed: int = 0
    threads: str = "multi"
    boot_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Ingredients:
    """What all hosts of a lab are made from."""

    qemu: qemu_build.Qemu
    kernel: kernel.Kernel
    initramfs: Path
    image: Path


class EmulatedHost:
    """One emulated host of a lab.

    :param index: 0 for h1.
    :param shape: its size and its GPUs; the default is the lab's for this host.
    :param series: the kernel it boots, "6.12" or "6.1".
    """

    def __init__(
        self,
        settings: Settings,
        index: int,
        shape: Shape | None = None,
        series: str = kernel.DEFAULT_SERIES,
    ) -> None:
        self._settings = settings
        self._series = series
        self._index = index
        self.shape = shape or usual_shape(index)
        self.name = f"h{index + 1}"
        self.folder = settings.hosts / self.name
        self.process = Process(
            self.name, settings.run / f"{self.name}.pid", self.log / "qemu.log", 5
        )
        connection = Process(
            f"connection to {self.name}",
            settings.run / f"{self.name}-ssh.pid",
            self.log / "connection.log",
            grace_s=3,
        )
        self._shell = GuestShell(
            self.name,
            self.folder,
            settings.ports.emulated(index, SSH_PORT),
            self._environment(),
            connection,
        )

    @property
    def log(self) -> Path:
        """Folder of the logs of QEMU and of the services inside."""
        return self.folder / "log"

    @property
    def console(self) -> Path:
        """What the kernel and ``guest/init`` said."""
        return self.folder / "console.log"

    @property
    def config(self) -> HostConfig:
        """Nova's view of the host: a CPU of each node for floating guests, the others for pinned ones."""
        device = {
            "vendor_id": GPU_VENDOR_ID,
            "product_id": GPU_PRODUCT_ID,
            "resource_class": configuration.GPU_RESOURCE_CLASS,
        }
        return HostConfig(
            name=self.name,
            state=self.folder / "state",
            log=self.log,
            instances=INSTANCES,
            cpu_dedicated_set=",".join(map(str, self.shape.dedicated_cpus)),
            cpu_shared_set=",".join(map(str, self.shape.shared_cpus)),
            pci_device_specs=(json.dumps(device),) if self.shape.gpu_nodes else (),
            gpu_matrix=str(self._settings.source / "gpus" / self.shape.gpu_matrix)
            if self.shape.gpu_matrix
            else "",
            migration_address=self.peer_address,
            slow=True,
        )

    # -- life

    def start(self, progress: Progress) -> None:
        """Boot the host, unless it runs, and start libvirtd in it.

        :raises LabError: QEMU, the kernel or a package is not to be had, or the host does not come up.
        """
        if not self.answers():
            self.process.stop()
            ingredients = _prepare(self._settings, progress, self._series)
            if self._usual:
                machine = self._machine(ingredients, _BOOT_TRIES[0])
                with _preparing:
                    snapshot.provide(self._settings, progress, machine)
            self._write_folder()
            self._boot(ingredients, progress)
        self._start_service(self._libvirtd(), progress)

    def start_services(self, progress: Progress) -> None:
        """Start nova-compute and our agent, whose configuration it writes; the controller must serve.

        :raises LabError: one of them ended or did not get ready.
        """
        text = configuration.nova_compute_conf(self._settings, self.config)
        configuration.write_if_changed(self.nova_conf, text)
        for service in self.services()[1:]:
            self._start_service(service, progress)

    def stop(self) -> None:
        """End the machine: guests on it lose their power, what is written stays."""
        self._shell.close()
        self.process.stop()

    def answers(self) -> bool:
        """Whether the host runs and takes commands."""
        if not self.process.alive() or not (self.folder / "ssh" / "config").exists():
            return False
        try:
            self._shell.connect(_CONNECT_TIMEOUT_S)
        except LabError:
            return False
        return True

    def status(self) -> dict[str, Any]:
        """What there is to know, as plain data.

        ``state`` is "up", "stopped" or "silent" (runs, but takes no commands); ``failed_boots`` counts panics;
        ``services`` gives the pid of each that runs, inside.
        """
        identity = self.process.identity()
        record = self._record()
        up = self.answers()
        machine = self._machine_facts()
        return {
            "name": self.name,
            "state": "up" if up else "silent" if identity else "stopped",
            "pid": identity.pid if identity else None,
            "rdt": machine.get("rdt"),
            "kernel": machine.get("kernel"),
            "cpus": self.shape.cpus,
            "threads": record.threads,
            "boots": record.boots,
            "failed_boots": record.failed,
            "boot_s": record.boot_s,
            "memory_mb": proportional_mb([identity.pid]) if identity else 0,
            "services": self.running_services() if up else {},
        }

    # -- commands

    def run(
        self,
        command: str | Sequence[str],
        timeout_s: float = 120.0,
        check: bool = True,
        standard_input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command, or a program with its words, inside.

        :raises LabError: the host does not run; with ``check`` the command failed; it took too long.
        """
        self._require_running()
        self._shell.connect(_CONNECT_TIMEOUT_S)
        return self._shell.run(command, timeout_s, check, standard_input)

    def shell(self, words: Sequence[str] = ()) -> int:
        """A login shell inside, or a command, on the caller's terminal; returns its status."""
        self._require_running()
        self._shell.connect(_CONNECT_TIMEOUT_S)
        return self._shell.interactive(words)

    # -- services inside

    def services(self) -> list[GuestService]:
        """The services of a compute host, in the order of their needs."""
        services = [self._libvirtd(), self._nova_compute()]
        # In a plain cloud such a file is the operator's, who starts the agent by hand.
        if self.agent_conf.exists() and not self._settings.plain:
            services.append(self._agent())
        return services

    def configure_agent(self, helper: Path) -> None:
        """Write what our agent needs; it is started by :meth:`start_services`.

        :param helper: folder of its privileged helper
        """
        state = self.config.state / "numa-host-agent"
        # stevedore makes the inner one, and supervisor or helper, which are root, ask first.
        for folder in (state, self._agent_cache / "python-entrypoints", self._agent_cache):
            agent_user.give_folder(folder)
        text = configuration.agent_conf(self._settings, self.config, self.nova_conf, helper)
        agent_user.write_configuration(self.agent_conf, text)

    @property
    def agent_conf(self) -> Path:
        """Our agent's configuration file; the agent is started only where there is one."""
        return self.folder / "etc" / "numa-host-agent.conf"

    @property
    def _agent_cache(self) -> Path:
        return self.folder / "state" / "numa-host-agent-cache"

    def service(self, name: str) -> "RunningService":
        """One service of the host by name.

        :raises LabError: the host has no such service.
        """
        for service in self.services():
            if service.name == name:
                return RunningService(self, service)
        known = ", ".join(service.name for service in self.services())
        raise LabError(f"{self.name} has no service {name}: it has {known}")

    def running_services(self) -> dict[str, int]:
        """Pids, inside, of the services that run."""
        lines = self._control("list").stdout.splitlines()
        return {name: int(pid) for name, pid in (line.split() for line in lines)}

    def _libvirtd(self) -> GuestService:
        # Its configuration is only written while the host is down: no reason to restart it.
        ready = "[ -S /run/libvirt/libvirt-sock ]"
        return GuestService("libvirtd", ("/usr/sbin/libvirtd", "--listen"), ready=ready)

    def _nova_compute(self) -> GuestService:
        argv = (f"{self._settings.venv}/bin/nova-compute", f"--config-file={self.nova_conf}")
        return GuestService(
            "nova-compute", (str(self._settings.python), *argv), reads=(self.nova_conf,)
        )

    def _agent(self) -> GuestService:
        code = tuple(self._settings.checkout / name for name in _OUR_PACKAGES)
        return GuestService(
            "numa-host-agent",
            (
                str(self._settings.python),
                *configuration.supervisor(self._settings, self.agent_conf, agent_user.NAME),
            ),
            environment=(("XDG_CACHE_HOME", str(self._agent_cache)),),
            reads=(self.agent_conf, *code),
            packages=code,
            # Longer than its longest round: killed in the middle of one, it leaves its helper behind, which writes.
            grace_s=120,
        )

    @property
    def nova_conf(self) -> Path:
        """nova-compute's configuration file."""
        return self.folder / "etc" / "nova.conf"

    def _start_service(self, service: GuestService, progress: Progress) -> None:
        """Make it run as described: one whose files have changed since it was started is started again."""
        runs = service.name in self.running_services()
        stamp = self.folder / "run" / f"{service.name}.started-with"
        if runs and stamp.exists() and stamp.read_text() == self._fingerprint(service):
            return
        verb = "restarting" if runs else "starting"
        with progress.step(f"{verb} {service.name}", self.log / f"{service.name}.log"):
            self._halt(service)
            self._launch(service)

    def _launch(self, service: GuestService) -> None:
        script = self.folder / "services" / service.name
        variables = self._service_environment(service)
        words = (f"{name}={value}" for name, value in variables.items())
        command = shlex.join(["env", "-i", *words, *service.argv])
        fetch = self._fetch(service) if service.packages else ""
        text = f'#!/bin/sh\n{fetch}[ "$1" != prepare ] || exit 0\nexec {command}\n'
        if service.argv[0] == str(self._settings.python):
            request = {
                "argv": service.argv[1:],
                "environment": variables,
                "log": str(self.log / f"{service.name}.log"),
                "pid_file": str(self.folder / "run" / f"{service.name}.pid"),
                "executable": str(self._settings.source / "guest" / "python"),
            }
            configuration.write_if_changed(script.with_suffix(".request"), json.dumps(request))
        configuration.write_if_changed(script, text, 0o755)
        stamp = self.folder / "run" / f"{service.name}.started-with"
        stamp.write_text(self._fingerprint(service))
        wait = (str(service.ready_within_s), service.ready) if service.ready else ()
        self._control("start", service.name, *wait, timeout_s=service.ready_within_s + 60)

    def _fetch(self, service: GuestService) -> str:
        """Pack the service's packages as they are now; returns the shell line that unpacks them inside."""
        _compile(self._settings)
        archive = self.folder / "services" / f"{service.name}.tar"
        with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as stream:
            for package in service.packages:
                stream.add(package, package.name)
        steps = (
            f"rm -rf {_PACKAGES_INSIDE}",
            f"mkdir {_PACKAGES_INSIDE}",
            f"tar -xf {shlex.quote(str(archive))} -C {_PACKAGES_INSIDE}",
            # stevedore reads all entry points again when a folder of sys.path has another time.
            f"touch -d @0 {_PACKAGES_INSIDE}",
        )
        return " && ".join(steps) + " || exit\n"

    def _halt(self, service: GuestService) -> None:
        grace_s = service.grace_s
        self._control("stop", service.name, str(grace_s), timeout_s=grace_s + 30)

    def _fingerprint(self, service: GuestService) -> str:
        variables = self._service_environment(service)
        return Service(self.process, service.argv, variables, service.reads).fingerprint()

    def _service_environment(self, service: GuestService) -> dict[str, str]:
        return self._environment() | dict(service.environment)

    def _control(
        self, action: str, *words: str, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        program = self._settings.source / "guest" / "service"
        return self.run([str(program), str(self.folder), action, *words], timeout_s)

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PATH": f"{self._settings.venv}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": _PACKAGES_INSIDE,
            "PYTHONWARNINGS": "ignore",
            # Entry points of all distributions are read once and kept, which takes long here.
            "XDG_CACHE_HOME": f"{self.folder}/cache",
        }

    # -- boot

    def _boot(self, ingredients: _Ingredients, progress: Progress) -> None:
        record = self._record()
        tries = _BOOT_TRIES if record.threads == "multi" else ("single",)
        with progress.step("booting", self.console):
            for number, threads in enumerate(tries, 1):
                begun = time.monotonic()
                try:
                    self._boot_once(ingredients, threads, resume=number == 1)
                except LabError as error:
                    self._require_kernel_to_blame(error)
                    self.stop()
                    record = replace(record, boots=record.boots + 1, failed=record.failed + 1)
                    self._save(record)
                    kept = self.folder / f"console.failed-{record.failed}.log"
                    with contextlib.suppress(FileNotFoundError):
                        self.console.replace(kept)
                    if number == len(tries):
                        raise LabError(
                            f"{self.name} did not boot in {number} tries: {error}", kept
                        ) from error
                    progress.note(f"boot {number} failed ({error}; see {kept}): trying again")
                    continue
                seconds = round(time.monotonic() - begun, 1)
                record = replace(record, boots=record.boots + 1, threads=threads, boot_s=seconds)
                self._save(record)
                return

    def _require_kernel_to_blame(self, error: LabError) -> None:
        """Raise ``error`` if trying again is useless: QEMU refused to run, or ``guest/init`` gave up."""
        output = self.console.read_text(errors="replace") if self.console.exists() else ""
        if not output and not self.process.alive():
            raise LabError(f"QEMU does not run {self.name}", self.process.log) from error
        if _SETUP_FAILED in output:
            self.stop()
            raise LabError(f"{self.name} booted but could not be set up", self.console) from error

    @property
    def _usual(self) -> bool:
        """Whether it is as hosts of a lab are: a saved state is worth its making."""
        usual = usual_shape(self._index)
        return (self.shape, self._series) == (usual, kernel.DEFAULT_SERIES)

    def _machine(self, ingredients: _Ingredients, threads: str) -> Machine:
        return Machine(
            name=self.name,
            qemu=ingredients.qemu,
            kernel=ingredients.kernel.image,
            initramfs=ingredients.initramfs,
            shape=self.shape,
            shares=self._shares(ingredients.kernel),
            image=ingredients.image,
            ssh_port=self._settings.ports.emulated(self._index, SSH_PORT),
            peer_port=self._settings.ports.emulated(0, PEER_PORT),
            threads=threads,
            tsc_khz=frequency_khz(),
        )

    def _boot_once(self, ingredients: _Ingredients, threads: str, resume: bool) -> None:
        """Start QEMU and wait until it takes commands; with ``resume`` from a saved state, if there is one."""
        machine = self._machine(ingredients, threads)
        if resume:
            machine = replace(machine, state=snapshot.find(self._settings, machine))
        facts = {"rdt": ingredients.qemu.has_rdt, "kernel": ingredients.kernel.release}
        (self.folder / "machine.json").write_text(json.dumps(facts) + "\n")
        for stale in (self.folder / "run").glob("*.pid"):
            stale.unlink()
        self.process.start(machine.command(), folder=self.folder)
        # A panic ends QEMU, which the wait notices.
        wait_for(
            f"{self.name} boots",
            self._listening_unless_hung(),
            _BOOT_TIMEOUT_S,
            self.process,
            log=self.console,
        )
        self._shell.connect(_CONNECT_TIMEOUT_S)

    def _listening_unless_hung(self) -> Callable[[], bool]:
        """A check whether sshd listens, which raises LabError when the console has been silent for too long."""
        size, since = -1, 0.0

        def check() -> bool:
            nonlocal size, since
            now = time.monotonic()
            now_size = self.console.stat().st_size if self.console.exists() else 0
            if now_size != size:
                size, since = now_size, now
            if now - since > _SILENCE_S:
                raise LabError(f"{self.name} has said nothing for {_SILENCE_S:.0f} s", self.console)
            return self._shell.listening()

        return check

    def _shares(self, booted: kernel.Kernel) -> list[Share]:
        return [
            Share("root", Path("/")),
            Share("checkout", self._settings.checkout),
            Share("modules", booted.folder / "lib" / "modules"),
            Share("share", self.folder, writable=True),
        ]

    def _write_folder(self) -> None:
        """Everything that ``guest/init`` and the first services read."""
        for name in ("cache", "etc", "log", "run", "services", "state/instances", "state/lock"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("etc", "log", "cache"):
            (self.folder / "libvirt" / name).mkdir(parents=True, exist_ok=True)
        identity = uuid.uuid5(uuid.NAMESPACE_URL, f"file://{self.folder}")
        gpu_ids = f"{GPU_VENDOR_ID}:{GPU_PRODUCT_ID}" if self.shape.gpu_nodes else ""
        words = {
            "NAME": self.name,
            "NUMBER": f"{self._index + 1:02x}",
            "SHARE": str(self.folder),
            "CHECKOUT": str(self._settings.checkout),
            "PEER_ADDRESS": f"{self.peer_address}/24",
            "INSTANCES": str(INSTANCES),
            "GPU_IDS": gpu_ids,
            "AGENT_ID": str(agent_user.user_id()),
        }
        texts = {
            "machine.env": "".join(f"{name}={shlex.quote(word)}\n" for name, word in words.items()),
            "machine-id": f"{identity.hex}\n",
            "hosts": f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n" + self._peers(),
            "ports.nft": _port_forwarding(self._settings.ports.needed_by_compute()),
        }
        libvirt = configuration.libvirt_files(
            self._settings, identity, Path("/var/log/libvirt"), self.peer_address
        )
        texts |= {f"libvirt/etc/{name}": text for name, text in libvirt.items()}
        for name, text in texts.items():
            configuration.write_if_changed(self.folder / name, text, 0o644)
        self._shell.prepare()

    @property
    def peer_address(self) -> str:
        """The host's address on the Ethernet of the lab's hosts."""
        return _peer_address(self._index)

    def _peers(self) -> str:
        others = (index for index in range(8) if index != self._index)
        return "".join(f"{_peer_address(index)} h{index + 1}\n" for index in others)

    def _machine_facts(self) -> dict[str, Any]:
        path = self.folder / "machine.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    @property
    def _record_file(self) -> Path:
        return self.folder / "boots.json"

    def _record(self) -> BootRecord:
        if not self._record_file.exists():
            return BootRecord()
        return BootRecord(**json.loads(self._record_file.read_text()))

    def _save(self, record: BootRecord) -> None:
        self._record_file.write_text(json.dumps(dataclasses.asdict(record)) + "\n")

    def _require_running(self) -> None:
        if not self.process.alive():
            raise LabError(f"{self.name} does not run: {self._settings.command} up starts it")


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service inside an emulated host, for tests that end it and start it again."""

    host: EmulatedHost
    description: GuestService

    @property
    def log(self) -> Path:
        """Its standard output and error."""
        return self.host.log / f"{self.description.name}.log"

    def pid(self) -> int | None:
        """Its pid inside the host; None if it does not run."""
        return self.host.running_services().get(self.description.name)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal.

        :raises LabError: it does not run.
        """
        self.host._control("signal", self.description.name, number.name.removeprefix("SIG"))

    def start(self) -> None:
        """Start it, unless it runs, and wait until it is ready."""
        self.host._launch(self.description)

    def stop(self) -> None:
        """End it, if it runs: SIGTERM, and SIGKILL when it takes longer than its grace."""
        self.host._halt(self.description)

    def restart(self) -> None:
        """End it and start it again."""
        self.stop()
        self.start()


def _prepare(settings: Settings, progress: Progress, series: str) -> _Ingredients:
    """Get what hosts are made from; hosts that come up side by side wait for the first one's doing it."""
    with _preparing:
        packages.ensure(settings, progress, PACKAGES)
        booted = kernel.provide(settings, progress, series)
        qemu = qemu_build.provide(settings, progress)
        _compile(settings)
        initramfs = kernel.initramfs(settings, booted)
        return _Ingredients(qemu, booted, initramfs, venv_image.provide(settings, progress))


def _compile(settings: Settings) -> None:
    """Byte code of the checkout's packages: hosts cannot write it, and compiling is slow in them."""
    present = [name for name in _OUR_PACKAGES if (settings.checkout / name).is_dir()]
    # A file that does not compile is not the hosts' trouble: who imports it says so.
    subprocess.run(
        [settings.python, "-m", "compileall", "-q", *present],
        cwd=settings.checkout,
        capture_output=True,
        check=False,
    )


def _peer_address(index: int) -> str:
    return f"192.168.77.{index + 1}"


def _port_forwarding(ports: Sequence[int]) -> str:
    """nftables rules: what is sent to these ports of 127.0.0.1 goes to QEMU's gateway, the controller's 127.0.0.1."""
    numbers = ", ".join(map(str, ports))
    return f"""\
table ip numa_lab {{
  chain output {{
    type nat hook output priority -100;
    ip daddr 127.0.0.1 tcp dport {{ {numbers} }} dnat to 10.0.2.2
  }}
  chain postrouting {{
    type nat hook postrouting priority 100;
    ip daddr 10.0.2.2 ip saddr 127.0.0.1 snat to 10.0.2.15
  }}
}}
"""
