# SPDX-License-Identifier: Apache-2.0
"""The running lab as the integration tests see it: servers, compute hosts, and what is read back on them.

Servers are made by ``openstack server create``, as a user would; what is only waited for or tidied up goes through
openstacksdk, since each start of the command costs seconds of the processor that the emulated hosts run on.

Nothing here uses the host agent's code: what a test asserts about a host comes from ``devstack/lab/readback.py``, from
the kernel's files or from ``numa-host-agent-ctl`` as an operator would call it.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from numa_lab.cloud_api import CloudApi
from numa_lab.emulated import EmulatedHost, RunningService
from numa_lab.emulated_machine import Shape
from numa_lab.inside.catalog import connect
from numa_lab.lab import Lab
from numa_lab.settings import Settings
from numa_lab.show import build_failures, cpu_set, run_on
from numa_lab.terminal import Progress
from openstack.connection import Connection

CHECKOUT = Path(__file__).resolve().parents[2]

__all__ = [
    "EmulatedHost",
    "LabCloud",
    "LabHost",
    "Progress",
    "ReadBackServer",
    "Server",
    "Shape",
    "cpu_set",
    "eventually",
    "run_on",
]

Facts = dict[str, Any]
T = TypeVar("T")


def eventually(
    what: str,
    probe: Callable[[], T | None],
    timeout_s: float = 240.0,
    pause_s: float = 1.0,
    seen: Callable[[], object] | None = None,
) -> T:
    """Wait until ``probe`` returns something true and return it.

    The pause after a probe is at least as long as the probe took: on an emulated host the questions would else slow
    down what they wait for.

    :param seen: what there is instead; asked when it did not happen in time
    :raises AssertionError: naming ``what``, the last answer and what is seen, when it did not happen in time
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        answer = probe()
        if answer:
            return answer
        now = time.monotonic()
        if now > deadline:
            got = f"last answer: {answer!r}" if seen is None else f"seen: {seen()!r}"
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}; {got}")
        time.sleep(max(pause_s, now - began))


@dataclass(frozen=True)
class ReadBackServer:
    """One running server as kernel and libvirt of its host show it (``readback.py``)."""

    facts: Facts
    host: Facts

    @property
    def cpus(self) -> set[int]:
        """CPUs on which the vCPU threads may run."""
        return set().union(*(cpu_set(vcpu["cpus"]) for vcpu in self.facts["vcpus"]))

    @property
    def nodes(self) -> set[str]:
        """NUMA nodes of these CPUs."""
        return {node for node, cpus in self.host["node_cpus"].items() if cpu_set(cpus) & self.cpus}

    @property
    def l3(self) -> set[str]:
        """L3 domains of these CPUs."""
        return {
            domain for domain, cpus in self.host["l3_cpus"].items() if cpu_set(cpus) & self.cpus
        }

    @property
    def memory_share(self) -> dict[str, float]:
        """Part of the resident guest RAM per NUMA node; they sum to 1."""
        total = sum(self.facts["pages_kb"].values())
        return {node: kb / total for node, kb in self.facts["pages_kb"].items()} if total else {}

    @property
    def group(self) -> str:
        """The one control group that holds all vCPU threads."""
        assert len(self.facts["groups"]) == 1, (
            f"vCPU threads are in several groups: {self.facts['groups']}"
        )
        return str(self.facts["groups"][0])

    def mask(self, domain: str) -> int:
        """L3 mask of its group in an L3 domain."""
        return int(self.host["resctrl"][self.group]["schemata"]["L3"][domain], 16)

    def enforced(self) -> bool:
        """Memory is resident and all vCPU threads are in one group of their own tier."""
        grouped = len(self.facts["groups"]) == 1 and self.facts["groups"] != [""]
        resident = sum(self.facts["pages_kb"].values()) >= 0.95 * self.facts["ram_kb"]
        return grouped and resident


class LabHost:
    """One emulated compute host."""

    def __init__(self, lab: Lab, emulated: EmulatedHost) -> None:
        self._lab = lab
        self.emulated = emulated
        self.name = emulated.name

    @property
    def agent(self) -> RunningService:
        """Its agent as the lab starts it; a plain lab has none."""
        return self.emulated.service("numa-host-agent")

    def run(self, command: str, timeout_s: float = 120.0) -> str:
        """Run a shell command inside and return its output; fails the test when the command fails."""
        return run_on(self._lab, self.name, command, timeout_s)

    def read_back(self) -> Facts:
        """All facts of ``readback.py``."""
        return json.loads(self.run(f"/usr/bin/python3 -I -S {CHECKOUT}/devstack/lab/readback.py"))

    def domains(self) -> dict[str, ReadBackServer]:
        """All running domains, by the UUID of the server."""
        facts = self.read_back()
        return {domain["uuid"]: ReadBackServer(domain, facts) for domain in facts["domains"]}

    def domain(self, server_id: str) -> ReadBackServer | None:
        """The running domain of a server, None when there is none."""
        return self.domains().get(server_id)

    def enforced(self, server_id: str) -> ReadBackServer:
        """Wait until the server is pinned, resident and in its group, and return what is read back."""
        (domain,) = self.all_enforced([server_id], 300)
        return domain

    def all_enforced(
        self, server_ids: Sequence[str], timeout_s: float = 420.0
    ) -> list[ReadBackServer]:
        """Wait until this is so for some servers, and return what is read back at one moment, in their order."""

        def probe() -> list[ReadBackServer] | None:
            found = self.domains()
            wanted = [found[server_id] for server_id in server_ids if server_id in found]
            ready = len(wanted) == len(server_ids) and all(one.enforced() for one in wanted)
            return wanted if ready else None

        return eventually(f"{', '.join(server_ids)} enforced on {self.name}", probe, timeout_s)

    def journal(self) -> list[Facts]:
        """What the agent did, oldest first: its file itself, for its reader takes a minute to start on a busy host."""
        lines = (
            (self._state / "journal.jsonl").read_text(errors="replace").splitlines(keepends=True)
        )
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def latencies(self) -> Facts:
        """What the agent's SLO controller reported last: its phase, and each latency-critical server by UUID."""
        return dict(json.loads((self._state / "slo.json").read_text())["report"] or {})

    @property
    def _state(self) -> Path:
        return self.emulated.folder / "state" / "numa-host-agent"

    @contextmanager
    def helper(self) -> Iterator[None]:
        """The helper alone, while agent and supervisor are stopped: root's commands go on as the agent's user."""
        program = f"{sys.executable} {sys.prefix}/bin/numa-host-agent-helper"
        command = f"{program} --config-file {self.emulated.agent_conf}"
        started = f"(nohup {command} >/tmp/helper.log 2>&1 </dev/null & echo $!)"
        pid = self.run(started).strip()
        listens = "grep -c numa-host-agent-helper.sock /proc/net/unix || true"
        try:
            eventually("the helper listens", lambda: int(self.run(listens)), pause_s=2)
            yield
        finally:
            self.run(f"kill {pid}; while [ -d /proc/{pid} ]; do sleep 0.2; done")

    def ctl(self, *words: str) -> Any:
        """``numa-host-agent-ctl WORDS -f json`` as an operator would call it."""
        command = f"{sys.prefix}/bin/numa-host-agent-ctl --config-file {self.emulated.agent_conf}"
        return json.loads(self.run(f"{sys.executable} {command} {' '.join(words)} -f json", 240))


@dataclass
class Server:
    """A server made by a test."""

    id: str
    name: str
    flavor: str
    status: str = ""
    host: str = ""
    fault: str = ""


@dataclass
class LabCloud:
    """The lab: its hosts, its API, and the servers of one test."""

    settings: Settings
    lab: Lab
    hosts: dict[str, LabHost]
    api: Connection
    _made: list[str] = field(default_factory=list)
    _flavors: list[str] = field(default_factory=list)

    @classmethod
    def connect(cls, environment: Mapping[str, str] = os.environ) -> "LabCloud":
        """Find the lab of this checkout, or the one to which other variables lead.

        :raises AssertionError: it does not run
        """
        settings = Settings.from_environment(CHECKOUT, environment)
        lab = Lab(settings, Progress())
        emulated = [host for host in lab.emulated_hosts() if host.answers()]
        assert emulated, (
            f"the lab with emulated hosts does not run: {settings.command} up starts it"
        )
        hosts = {host.name: LabHost(lab, host) for host in emulated}
        keystone = settings.url(settings.ports.keystone, "/v3")
        administrator = {"OS_AUTH_URL": keystone, "OS_PASSWORD": settings.passwords().admin}
        return cls(settings, lab, hosts, connect(administrator))

    def of_one_test(self) -> "LabCloud":
        """The same cloud, with servers and flavors that end with a test."""
        return LabCloud(self.settings, self.lab, self.hosts, self.api)

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the virtual environment with the administrator's credentials."""
        script = '. "$0"; exec "$@"'
        program = [f"{sys.prefix}/bin/{words[0]}", *words[1:]]
        done = subprocess.run(
            ["sh", "-c", script, str(self.settings.lab / "openrc"), *program],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
        return done

    def openstack(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``openstack WORDS``."""
        return self.command("openstack", *words, check=check)

    def flavor(self, extra_specs: dict[str, str], **sizes: int) -> str:
        """Make a flavor that ends with the test and return its name."""
        name = f"it-{uuid.uuid4().hex[:8]}"
        made = self.api.compute.create_flavor(
            name=name, **{"vcpus": 1, "ram": 128, "disk": 1, **sizes}
        )
        self._flavors.append(made.id)
        if extra_specs:
            self.api.compute.create_flavor_extra_specs(made, extra_specs)
        return name

    def create(self, flavor: str, *options: str, image: str = "toucher") -> Server:
        """Create a server by the command line, without waiting."""
        name = f"it-{uuid.uuid4().hex[:8]}"
        words = (
            "server",
            "create",
            "--flavor",
            flavor,
            "--image",
            image,
            "--nic",
            "none",
            *options,
            name,
        )
        made = json.loads(self.openstack(*words, "-f", "json").stdout)
        self._made.append(made["id"])
        return Server(made["id"], name, flavor)

    def adopt(self, servers: Iterable[str]) -> None:
        """Let servers that one request has made besides end with the test, too."""
        self._made = list(dict.fromkeys((*self._made, *servers)))

    def placed(self, server: Server) -> Server:
        """Wait until a server has its host, CPUs and devices; it need not run yet."""

        def probe() -> bool:
            shown = self.api.compute.get_server(server.id)
            server.host = shown.compute_host or ""
            assert shown.status != "ERROR", f"{server.flavor}: {(shown.fault or {}).get('message')}"
            return bool(server.host)

        eventually(f"{server.name} has its place", probe, 180, 0.5)
        return server

    def settled(self, server: Server, timeout_s: float = 420.0) -> Server:
        """Wait until a server is ACTIVE or in ERROR."""

        def probe() -> Server | None:
            shown = self.api.compute.get_server(server.id)
            server.status = shown.status
            server.host = shown.compute_host or ""
            server.fault = (shown.fault or {}).get("message", "")
            return server if server.status in ("ACTIVE", "ERROR") and not shown.task_state else None

        return eventually(f"{server.name} settles", probe, timeout_s, 2.0)

    def boot(self, flavor: str, *options: str, image: str = "toucher") -> Server:
        """Create a server and wait until it is ACTIVE."""
        return self.active(self.create(flavor, *options, image=image))

    def active(self, server: Server) -> Server:
        """Wait until a server is ACTIVE."""
        self.settled(server)
        failed = build_failures(self.settings.log, server.id)
        assert server.status == "ACTIVE", (
            f"{server.flavor}: {server.status} {server.fault} {failed}"
        )
        return server

    def providers(self) -> dict[str, str]:
        """Placement's providers: names by UUID."""
        listed = self._placement("/resource_providers")["resource_providers"]
        return {provider["uuid"]: provider["name"] for provider in listed}

    def traits(self, provider: str) -> set[str]:
        """Traits of a provider, which is given by UUID."""
        return set(self._placement(f"/resource_providers/{provider}/traits")["traits"])

    def held(self, server: Server) -> dict[str, dict[str, int]]:
        """What Placement counts for a server: amounts by the provider's name."""
        found, names = self._placement(f"/allocations/{server.id}")["allocations"], self.providers()
        return {names[provider]: dict(part["resources"]) for provider, part in found.items()}

    def published(self) -> Facts:
        """What Placement knows, but for generations: providers by name, and the cloud's own traits and classes."""
        found: Facts = {
            "traits": sorted(self._placement("/traits?name=startswith:CUSTOM_")["traits"]),
            "classes": sorted(
                one["name"]
                for one in self._placement("/resource_classes")["resource_classes"]
                if one["name"].startswith("CUSTOM_")
            ),
        }
        for uuid_, name in self.providers().items():
            own = f"/resource_providers/{uuid_}"
            found[name] = {
                "traits": sorted(self.traits(uuid_)),
                "inventories": self._placement(f"{own}/inventories")["inventories"],
                "allocations": self._placement(f"{own}/allocations")["allocations"],
            }
        return found

    def _placement(self, path: str) -> dict[str, Any]:
        answer = self.api.placement.get(path, microversion="1.39", raise_exc=True)
        return dict(answer.json())

    def restart_compute(self, host: LabHost) -> None:
        """Restart a host's nova-compute and wait until it works again.

        While it starts it sets servers that are being built there to ERROR.
        """
        service = host.emulated.service("nova-compute")
        service.stop()  # the old one may report to its very end
        since = time.time()
        service.start()
        api = CloudApi(self.settings)
        eventually(
            f"nova-compute on {host.name} has reported",
            lambda: api.has_reported("nova-compute", host.name, since + 1),
            300,
            2,
        )

    def empty(self) -> None:
        """Delete all servers, those of the show, too, and wait until the hosts are without domains."""

        def gone() -> bool:
            left = list(self.api.compute.servers(details=False, all_projects=True))
            for server in left:
                self.api.compute.delete_server(server)  # answers well when it is gone already
            return not left

        eventually("all servers are gone", gone, pause_s=3)
        for host in self.hosts.values():
            eventually(f"{host.name} is empty", lambda h=host: not h.read_back()["domains"])

    def delete(self, servers: Sequence[str]) -> None:
        """Delete servers and wait until nova has forgotten them."""
        for server in servers:
            self.api.compute.delete_server(server)
        for server in servers:
            eventually(
                f"server {server} is deleted",
                lambda s=server: self.api.compute.find_server(s, details=False) is None,
            )
        self._made = [made for made in self._made if made not in servers]

    def end(self) -> None:
        """Remove all that the test made."""
        self.delete(list(self._made))
        for flavor in self._flavors:
            self.api.compute.delete_flavor(flavor)
        self._flavors.clear()
