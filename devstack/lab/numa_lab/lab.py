# SPDX-License-Identifier: Apache-2.0
"""The lab as a whole: what ``lab up``, ``down``, ``status``, ``reset`` and ``clean`` do."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from . import controlplane, emulated, kernel, packages, pyenv, qemu_build, snapshot
from .cloud_api import CloudApi
from .controlplane import ControlPlane
from .emulated import EmulatedHost
from .errors import AskedWrongError, LabError
from .graph import Task, run
from .localcompute import NAME as LOCAL_NAME
from .localcompute import LocalCompute
from .memory import proportional_mb
from .process import Process, stop_all, wait_for
from .settings import Settings
from .terminal import Progress

# Unix sockets live in the lab folder; their paths may have 107 characters.
_LONGEST_LAB_PATH = 70
_HYPERVISOR_TIMEOUT_S = 180.0
_SLOW_HYPERVISOR_TIMEOUT_S = 600.0
_VIEW_TIMEOUT_S = 120.0
_PUBLISHED = " published"  # ends the names of the steps that wait for it
# On emulated hosts, whose /run is their own: no socket can be made in the lab's folder there.
_HELPER = Path("/run/numa-host-agent-helper")
# Emptied by ``reset``: the virtual environment and the cache stay.
_STATE_FOLDERS = ("state", "etc", "log", "run", "hosts")
_STATE_FILES = ("passwords.json", "openrc", "plain")


class Lab:
    """One lab: the controller, the local compute and its emulated hosts."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._controller = ControlPlane(settings, progress)
        self._local = LocalCompute(settings)

    def up(self, emulated_count: int) -> None:
        """Bring everything up with that many emulated hosts; goes on where an earlier run stopped.

        :raises LabError: a step failed; what runs by then is left running.
        """
        self._require_possible()
        self._settings.make_folders()
        with self._locked():
            self._require_ports()
            self._settings.passwords()  # made once, before steps side by side ask for them
            hosts = [EmulatedHost(self._settings, index) for index in range(emulated_count)]
            run(self._tasks(hosts))
            for service in self._controller.services() + self._local.services():
                service.process.require_alive()

    def prepare(self) -> None:
        """Packages and virtual environment only: enough for all tests but those on the lab, and for documentation."""
        self._require_possible()
        self._settings.make_folders()
        with self._locked():
            names = (
                *packages.BUILD_PACKAGES,
                *packages.LOCAL_COMPUTE_PACKAGES,
                *packages.TEST_PACKAGES,
            )
            packages.ensure(self._settings, self._progress, names)
            pyenv.ensure(self._settings, self._progress)

    def restart(self, names: Collection[str]) -> None:
        """Start services of the controller again, in their order; unlike ``up`` it writes no configuration.

        :raises AskedWrongError: there is no such service
        """
        services = {service.name: service for service in self._controller.services()}
        unknown = ", ".join(name for name in names if name not in services)
        if unknown or not self._settings.run.exists():
            what = f"no service {unknown}" if unknown else "no cloud"
            raise AskedWrongError(
                f"there is {what} here; services of the controller: {', '.join(services)}"
            )
        with self._locked():
            for name, service in services.items():
                if name in names:
                    service.process.stop()
                    service.ensure(self._progress)

    def down(self) -> None:
        """Stop everything; the state stays, so that ``up`` goes on with it."""
        if self._settings.lab.exists():
            with self._locked():
                self._stop()

    def reset(self) -> None:
        """Stop everything and throw the state away; the virtual environment and the cache stay."""
        if self._settings.lab.exists():
            with self._locked():
                self._stop()
                for name in _STATE_FOLDERS:
                    _remove(self._settings.lab / name)
                for name in _STATE_FILES:
                    (self._settings.lab / name).unlink(missing_ok=True)

    def clean(self, cache: bool) -> None:
        """Stop everything and remove the lab's folder; with ``cache`` also the cache folder."""
        if self._settings.lab.exists():
            with self._locked():
                self._stop()
                with self._progress.step(f"removing {self._settings.lab}"):
                    _remove(self._settings.lab)
        if cache and self._settings.cache.exists():
            with self._progress.step(f"removing {self._settings.cache}"):
                _remove(self._settings.cache)

    def emulated_hosts(self) -> list[EmulatedHost]:
        """The emulated hosts that this lab has had since it was made or reset."""
        count = len([p for p in self._settings.hosts.glob("h*") if p.is_dir()])
        return [EmulatedHost(self._settings, index) for index in range(count)]

    def local(self) -> LocalCompute:
        """The local compute."""
        return self._local

    def status(self) -> dict[str, Any]:
        """What runs, as plain data for ``lab status --json``.

        ``services``: name, pid (None: does not run), serves; ``hypervisors``: what nova thinks of
        its computes (None: nova does not answer); ``hosts``: the emulated hosts;
        ``memory_mb``: proportional memory of all processes of the lab.
        """
        services = self._controller.services() + self._local.services()
        rows: list[dict[str, Any]] = []
        for service in services if self._settings.run.exists() else []:
            identity = service.process.identity()
            rows.append(
                {
                    "name": service.name,
                    "pid": identity.pid if identity else None,
                    "serves": identity is not None and service.ready(),
                }
            )
        hosts = [host.status() for host in self.emulated_hosts()]
        pids = [row["pid"] for row in rows if row["pid"]]
        return {
            "lab": str(self._settings.lab),
            "services": rows,
            "hypervisors": self._hypervisors() if pids else None,
            "hosts": hosts,
            "memory_mb": proportional_mb(pids, self._local.members())
            + sum(host["memory_mb"] for host in hosts),
        }

    # -- up

    def _tasks(self, hosts: list[EmulatedHost]) -> dict[str, Task]:
        """Everything that ``up`` does, as one graph, so that nothing waits without need."""
        names = {
            *packages.BUILD_PACKAGES,
            *packages.CONTROL_PLANE_PACKAGES,
            *packages.LOCAL_COMPUTE_PACKAGES,
            *(emulated.PACKAGES if hosts else ()),
        }
        settings, progress = self._settings, self._progress
        cloud = ("nova-scheduler", "resources")
        tasks = {
            "packages": Task(lambda: packages.ensure(settings, progress, names)),
            "machine parts": Task(self._machine_parts if hosts else _nothing, ("packages",)),
            "venv": Task(lambda: pyenv.ensure(settings, progress), ("packages",)),
            "local libvirt": Task(lambda: self._local.start_libvirt(progress), ("packages",)),
            "local nova": Task(lambda: self._local.start_nova(progress), ("local libvirt", *cloud)),
            "local up": Task(
                lambda: self._hypervisor_up(LOCAL_NAME, self._local.nova), ("local nova",)
            ),
        }
        if settings.plugin:
            tasks["local agent"] = Task(lambda: self._local.start_agent(progress), ("local up",))
            tasks[f"local{_PUBLISHED}"] = Task(
                lambda: self._published(LOCAL_NAME, self._local.nova), ("local agent",)
            )
        tasks |= self._controller.tasks()
        for host in hosts:
            tasks |= self._host_tasks(host, cloud)
        if settings.plugin:
            published = tuple(name for name in tasks if name.endswith(_PUBLISHED))
            tasks["view"] = Task(lambda: self._view_read(len(published)), published)
        return tasks

    def _host_tasks(self, host: EmulatedHost, cloud: tuple[str, ...]) -> dict[str, Task]:
        part = self._progress.part(host.name)
        started = f"{host.name} started"
        serving = f"{host.name} services"
        up, published = f"{host.name} up", f"{host.name}{_PUBLISHED}"
        tasks = {
            started: Task(lambda: host.start(part), ("machine parts", "venv")),
            serving: Task(lambda: self._serve(host, part), (started, *cloud)),
            up: Task(lambda: self._hypervisor_up(host.name, host.process), (serving,)),
        }
        if self._settings.plugin:
            tasks[published] = Task(lambda: self._published(host.name, host.process), (up,))
        return tasks

    def _serve(self, host: EmulatedHost, part: Progress) -> None:
        if self._settings.plugin:
            host.configure_agent(_HELPER)
        host.start_services(part)

    def _machine_parts(self) -> None:
        """Kernel and QEMU of the emulated hosts, while pip is at work."""
        kernel.provide(self._settings, self._progress)
        qemu_build.provide(self._settings, self._progress)

    def _hypervisor_up(self, name: str, process: Process) -> None:
        """Nova may schedule to the host, whose nova-compute has run since ``process`` was started."""
        api = CloudApi(self._settings)
        since = process.pid_file.stat().st_mtime

        def up() -> bool:
            return api.has_reported("nova-compute", name, since) and api.has_hypervisor(name)

        if up():
            return
        log = self._log_of(name) / "nova-compute.log"
        with self._progress.step(f"waiting for nova to see hypervisor {name}", log):
            watched = (process, *self._watched())
            wait_for(f"hypervisor {name} is up", up, _patience_s(name), *watched, log=log)

    def _published(self, name: str, process: Process) -> None:
        """Our agent has published the host: flavors that require a tier's trait find it."""
        api = CloudApi(self._settings)
        if api.has_agent(name):
            return
        log = self._log_of(name) / "numa-host-agent.log"
        with self._progress.step(f"waiting for Placement to see the agent of {name}", log):
            published = f"the agent of {name} has published it"
            wait_for(published, lambda: api.has_agent(name), _patience_s(name), process, log=log)

    def _view_read(self, hosts: int) -> None:
        """Our plug-ins have read Placement since all hosts were published, and know where the first server may go.

        Of two readings more at least the second has begun since.
        """
        api = CloudApi(self._settings)
        before = api.scheduler_view().readings

        def read() -> bool:
            view = api.scheduler_view()
            return view.fresh and view.hosts >= hosts and view.readings >= before + 2

        [scheduler] = [s.process for s in self._controller.services() if s.name == "nova-scheduler"]
        log = self._settings.log / "nova-scheduler.log"
        with self._progress.step("waiting for nova-scheduler to read Placement", log):
            wait_for("nova-scheduler's view is fresh", read, _VIEW_TIMEOUT_S, scheduler, log=log)

    def _log_of(self, name: str) -> Path:
        return self._settings.log if name == LOCAL_NAME else self._settings.hosts / name / "log"

    def _watched(self) -> list[Process]:
        """Processes of the controller without which waiting for a hypervisor is in vain."""
        daemons = ("nova-conductor", "nova-scheduler")
        return [s.process for s in self._controller.services() if s.name in daemons]

    def _require_possible(self) -> None:
        if os.geteuid() != 0:
            raise LabError("the lab needs root: it mounts, pins and starts system daemons")
        if os.uname().machine != "x86_64":
            raise LabError(f"the lab needs an x86_64 machine, this one is {os.uname().machine}")
        if len(str(self._settings.lab)) > _LONGEST_LAB_PATH:
            raise LabError(
                f"the lab's folder {self._settings.lab} has a path of more than {_LONGEST_LAB_PATH}"
                " characters, too long for Unix sockets: set NUMA_EXT_LAB to a shorter one"
            )

    def _require_ports(self) -> None:
        """Refuse ports of other processes; ours are known by the services that run."""
        if any(service.process.alive() for service in self._controller.services()):
            return
        used = controlplane.ports_in_use(self._settings)
        if used:
            raise LabError(
                f"another process listens on port {used[0]} of this machine: set NUMA_EXT_PORT_BASE"
                f" (now {self._settings.ports.base}) to the first of 100 free ports"
            )

    # -- down

    def _stop(self) -> None:
        """Callers and called in turn: OpenStack, then its servers, then Erlang's name server."""
        processes = {service.name: service.process for service in self._controller.services()}
        epmd = [processes.pop("epmd")]
        servers = [processes.pop("rabbitmq"), processes.pop("mariadb")]
        openstack = list(processes.values())
        tasks = {
            "OpenStack": Task(lambda: self._stop_group("OpenStack", openstack)),
            "local": Task(self._stop_local),
        }
        for host in self.emulated_hosts():
            tasks[host.name] = Task(partial(self._stop_host, host))
        run(tasks)
        snapshot.process(self._settings).stop()  # one that an interrupted ``up`` has left
        self._stop_group("RabbitMQ and MariaDB", servers)
        self._stop_group("epmd", epmd)

    def _stop_group(self, what: str, processes: list[Process]) -> None:
        if any(process.alive() for process in processes):
            with self._progress.step(f"stopping {what}"):
                stop_all(processes)

    def _stop_host(self, host: EmulatedHost) -> None:
        if host.process.alive():
            with self._progress.step(f"stopping {host.name}"):
                host.stop()
        else:
            host.stop()  # closes what is left of its connection

    def _stop_local(self) -> None:
        if self._local.running():
            with self._progress.step("stopping the local compute"):
                self._local.stop()

    # -- helpers

    def _hypervisors(self) -> list[dict[str, Any]] | None:
        keys = ("hypervisor_hostname", "state", "status")
        try:
            return [{key: h[key] for key in keys} for h in CloudApi(self._settings).hypervisors()]
        except OSError:
            # The status of a cloud that does not answer is just that.
            return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one command changes a lab at a time; the lock is the lab's folder itself."""
        descriptor = os.open(self._settings.lab, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise LabError(
                f"another lab command is at work on {self._settings.lab}: wait for it"
            ) from error
        finally:
            os.close(descriptor)


def _patience_s(name: str) -> float:
    """How long a compute host may take until the controller knows of it."""
    return _HYPERVISOR_TIMEOUT_S if name == LOCAL_NAME else _SLOW_HYPERVISOR_TIMEOUT_S


def _nothing() -> None:
    """The action of a step that this lab does not need."""


def _remove(path: os.PathLike[str]) -> None:
    if os.path.exists(path):
        shutil.rmtree(path)
