# SPDX-License-Identifier: Apache-2.0
"""What belongs where: folders, ports and passwords of one lab, as frozen data.

Everything a lab makes lies under two folders: ``lab`` (one ignored folder of the checkout) and ``cache`` (outside
of it: kernel, QEMU build, wheels). Environment variables that move things, so that labs can live side by side:

``NUMA_EXT_LAB``        the lab folder (default ``<checkout>/.lab``)
``NUMA_EXT_CACHE``      the cache folder (default ``$XDG_CACHE_HOME/nova-numa-ext`` or ``~/.cache/nova-numa-ext``)
``NUMA_EXT_VENV``       an existing virtual environment to use as it is: never built, changed or removed
``NUMA_EXT_PLUGIN``     0: nova's scheduler without our filter and weigher, for comparisons
``NUMA_EXT_PORT_BASE``  the first of the 100 TCP ports of this lab on 127.0.0.1 (default 21000)
"""

import dataclasses
import hashlib
import hmac
import json
import os
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .errors import LabError

DEFAULT_PORT_BASE = 21000
PORT_SPAN = 100
JOB_ENGINES = 2
"""Of the job service: one leads, the other follows it."""
_FIRST_EMULATED_OFFSET = 20
_PORTS_PER_EMULATED = 10


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports of one lab, all on 127.0.0.1 and all within ``[base, base + PORT_SPAN)``."""

    base: int

    @property
    def keystone(self) -> int:
        return self.base

    @property
    def placement(self) -> int:
        return self.base + 1

    @property
    def nova(self) -> int:
        return self.base + 2

    @property
    def glance(self) -> int:
        return self.base + 3

    @property
    def network(self) -> int:
        return self.base + 4

    @property
    def mariadb(self) -> int:
        return self.base + 5

    @property
    def rabbitmq(self) -> int:
        return self.base + 6

    @property
    def rabbitmq_distribution(self) -> int:
        return self.base + 7

    @property
    def epmd(self) -> int:
        return self.base + 8

    @property
    def agent_metrics(self) -> int:
        """Of the agent on each compute host, on that host's 127.0.0.1."""
        return self.base + 9

    @property
    def scheduler_metrics(self) -> int:
        """Of nova-scheduler's plug-ins."""
        return self.base + 10

    @property
    def jobs(self) -> int:
        """Of the job service's API."""
        return self.base + 11

    def engine_metrics(self, engine: int) -> int:
        """Of one of the job service's engines, from 0."""
        if not 0 <= engine < JOB_ENGINES:
            raise LabError(f"no port is set aside for engine {engine}")
        return self.base + 12 + engine

    @property
    def prometheus(self) -> int:
        """Of a Prometheus that a story starts: the lab has none, and its job service asks this one."""
        return self.base + 15

    def needed_by_compute(self) -> tuple[int, ...]:
        """Ports that nova-compute, our agent and its leases on an emulated host must reach on *its* 127.0.0.1."""
        apis = (self.keystone, self.placement, self.nova, self.glance, self.network, self.jobs)
        return (*apis, self.rabbitmq)

    def emulated(self, index: int, which: int = 0) -> int:
        """The ``which``-th port (0-9) set aside for the emulated host ``index`` (0 is h1)."""
        offset = _FIRST_EMULATED_OFFSET + index * _PORTS_PER_EMULATED + which
        if not 0 <= which < _PORTS_PER_EMULATED or index < 0 or offset >= PORT_SPAN:
            raise LabError(f"no port is set aside for emulated host {index}, port {which}")
        return self.base + offset


@dataclass(frozen=True, slots=True)
class Passwords:
    """Random passwords of one lab; made once, kept in a file only root reads."""

    admin: str
    service: str
    database: str
    rabbitmq: str

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """Read the passwords from ``path``, or make new ones and write them there (mode 0600)."""
        if path.exists():
            return cls(**json.loads(path.read_text()))
        made = cls(*(secrets.token_hex(12) for _ in dataclasses.fields(cls)))
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        with open(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as stream:
            json.dump(dataclasses.asdict(made), stream, indent=1)
        draft.replace(path)
        return made


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What differs between the nova-computes of the lab.

    :param name: host name, also the hypervisor's host name: ``local``, ``h1``, ``h2`` …
    :param state: folder of nova's state (compute_id, locks), as that host sees it.
    :param log: folder of its log files, as that host sees it.
    :param instances: folder of the servers' disks, as that host sees it; hosts between which servers migrate need the
        same one: the paths in a domain's XML travel as they are.
    :param cpu_dedicated_set: nova's list of CPUs for pinned guests ("1,3,5-7"); "" leaves nova's default.
    :param cpu_shared_set: nova's list of CPUs for floating guests; "" leaves nova's default.
    :param pci_device_specs: JSON texts for ``[pci] device_spec``, one per device.
    :param gpu_matrix: recorded ``nvidia-smi topo -m`` of the host's GPUs; "" without.
    :param migration_address: where live migrations to it arrive; "" if none can.
    :param slow: an emulated host: Python runs 20-30 times slower there, so timeouts are generous.
    """

    name: str
    state: Path
    log: Path
    instances: Path
    cpu_dedicated_set: str = ""
    cpu_shared_set: str = ""
    pci_device_specs: tuple[str, ...] = ()
    gpu_matrix: str = ""
    migration_address: str = ""
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders and ports of one lab.

    :param plugin: nova's scheduler has our filter and weigher, and each compute our agent.
    :param plain: a cloud without anything of this project, until ``reset``: where the operator's guide begins.
    """

    checkout: Path
    lab: Path
    cache: Path
    venv: Path
    owns_venv: bool
    ports: Ports
    plugin: bool = True
    plain: bool = False

    @classmethod
    def from_environment(cls, checkout: Path, environment: Mapping[str, str]) -> Self:
        """Settings for the lab of this checkout, moved by the variables of the module's text."""
        checkout = checkout.resolve()
        home = Path(environment.get("HOME") or "/root")
        lab = Path(environment.get("NUMA_EXT_LAB") or checkout / ".lab").absolute()
        user_cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
        cache = Path(environment.get("NUMA_EXT_CACHE") or user_cache / "nova-numa-ext").absolute()
        foreign_venv = environment.get("NUMA_EXT_VENV")
        plain = _mark_of_plain(lab).exists()
        venv = Path(foreign_venv).absolute() if foreign_venv else lab / "venv"
        return cls(
            checkout=checkout,
            lab=lab,
            cache=cache,
            venv=venv,
            owns_venv=foreign_venv is None,
            ports=Ports(_port_base(environment)),
            plugin=not plain and environment.get("NUMA_EXT_PLUGIN", "1") != "0",
            plain=plain,
        )

    @property
    def compute_names(self) -> tuple[str, ...]:
        """Names of all compute hosts that a lab can have."""
        emulated = (PORT_SPAN - _FIRST_EMULATED_OFFSET) // _PORTS_PER_EMULATED
        return ("local", *(f"h{number + 1}" for number in range(emulated)))

    def password_of(self, user: str) -> str:
        """The password of a Keystone user that one host alone has: it shows neither the others' nor the services'."""
        key = self.passwords().service.encode()
        return hmac.new(key, user.encode(), hashlib.sha256).hexdigest()[:24]

    def job_hint_key(self) -> str:
        """What seals the job service's scheduler hints: 32 bytes in URL-safe base64, for one lab for ever the same."""
        key = self.passwords().service.encode()
        return urlsafe_b64encode(hmac.digest(key, b"job hints", "sha256")).decode()

    @property
    def etc(self) -> Path:
        """Generated configuration files."""
        return self.lab / "etc"

    @property
    def state(self) -> Path:
        """Databases, images, instances: what ``reset`` throws away."""
        return self.lab / "state"

    @property
    def log(self) -> Path:
        """Log files, one per service."""
        return self.lab / "log"

    @property
    def run(self) -> Path:
        """Pid files and sockets."""
        return self.lab / "run"

    @property
    def hosts(self) -> Path:
        """One folder per emulated host."""
        return self.lab / "hosts"

    @property
    def source(self) -> Path:
        """The folder of the lab program itself."""
        return self.checkout / "devstack" / "lab"

    @property
    def command(self) -> str:
        """The lab program as people type it from the checkout's top folder."""
        return "devstack/lab/lab"

    @property
    def timings_file(self) -> Path:
        """How long each step took last time, for the expected times shown."""
        return self.cache / "timings.json"

    @property
    def python(self) -> Path:
        """The virtual environment's interpreter."""
        return self.venv / "bin" / "python"

    def become_plain(self) -> Self:
        """The settings of a lab without anything of this project, which it stays until ``reset``.

        :raises LabError: it has been brought up with all of it.
        """
        if not self.plain and (self.lab / "openrc").exists():
            raise LabError(
                f"the cloud at {self.lab} has this project in it: {self.command} reset, then"
                f" {self.command} up --plain"
            )
        self.lab.mkdir(parents=True, exist_ok=True)
        _mark_of_plain(self.lab).touch()
        return dataclasses.replace(self, plugin=False, plain=True)

    def passwords(self) -> Passwords:
        """The lab's passwords; made at the first call."""
        return Passwords.load_or_create(self.lab / "passwords.json")

    def url(self, port: int, path: str = "") -> str:
        """``http://127.0.0.1:<port><path>``: the same inside emulated hosts, which forward the ports."""
        return f"http://127.0.0.1:{port}{path}"

    def make_folders(self) -> None:
        """Create the lab's folders; configuration and state are for root only."""
        for folder in (self.etc, self.state):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        for folder in (self.log, self.run, self.hosts, self.cache):
            folder.mkdir(parents=True, exist_ok=True)


def _mark_of_plain(lab: Path) -> Path:
    return lab / "plain"


def _port_base(environment: Mapping[str, str]) -> int:
    text = environment.get("NUMA_EXT_PORT_BASE") or str(DEFAULT_PORT_BASE)
    if not text.isdecimal() or not 1024 <= int(text) <= 65536 - PORT_SPAN:
        raise LabError(
            f"NUMA_EXT_PORT_BASE is {text!r}: a number from 1024 to {65536 - PORT_SPAN} is required"
        )
    return int(text)
