# SPDX-License-Identifier: Apache-2.0
"""The main job's show: boot servers with our flavors and print what kernel and libvirt then do with them.

Servers are made by the ``openstack`` command that a user would type. Each cell of the table is read back on the compute
host by ``readback.py``, which shares no code with the host agent.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .cloud_api import CloudApi
from .errors import LabError, LateError
from .lab import Lab
from .localcompute import NAME as LOCAL_NAME
from .process import wait_for
from .settings import Settings
from .terminal import Progress

# name, flavor; made in this order
SERVERS = (
    ("lc1", "lc.small"),
    ("be1", "be.small"),
    ("lc2", "lc.small"),
    ("be2", "be.small"),
    ("gpu1", "be.gpu"),
)
IMAGE = "toucher"
MADE_AGAIN = "could not be built and is made once more"
_ACTIVE_TIMEOUT_S = 600.0
_ENFORCED_TIMEOUT_S = 600.0
_READ_TIMEOUT_S = 120.0
_REASON_CHARS = 500  # the end of a host's traceback, which names the fault
_START_WITH = "Some commands to start with"

Facts = dict[str, Any]


class Show:
    """Makes the show's servers and reads back what became of them."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._lab = Lab(settings, progress)
        self._api = CloudApi(settings)

    def run(self) -> list[list[str]]:
        """Make what is missing, wait until it is enforced, and return the table with its head.

        :raises LabError: a server did not become ACTIVE, or was not enforced in time
        """
        self._create()
        placed = self._wait_active()
        with self._progress.step("agents pin, place memory and set RDT partitions"):
            facts = wait_enforced(placed, self.read_back, _ENFORCED_TIMEOUT_S)
        return [list(HEAD), *(row(facts[name], placed[name]) for name, _ in SERVERS)]

    def _openstack(self, *words: str, show: bool = False) -> str:
        """Run the openstack command; ``show`` prints it first, as a user would type it."""
        if show:
            self._progress.note(f"$ openstack {shlex.join(words)}")
        command = f". {shlex.quote(str(self._settings.lab / 'openrc'))} && exec openstack {shlex.join(words)}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(
                f"openstack {shlex.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done.stdout

    def _create(self) -> None:
        for server in self._api.servers():
            if server["status"] == "ERROR" and server["name"] in dict(SERVERS):
                self._remove(server)
        present = {server["name"] for server in self._api.servers()}
        for name, flavor in SERVERS:
            if name not in present:
                self._make(name, flavor)

    def _make(self, name: str, flavor: str) -> None:
        words = ("--flavor", flavor, "--image", IMAGE, "--nic", "none", name)
        self._openstack("server", "create", *words, "-f", "value", "-c", "id", show=True)

    def _remove(self, server: Facts) -> None:
        self._openstack("server", "delete", "--wait", server["id"], show=True)

    def _wait_active(self) -> dict[str, Facts]:
        """Nova's record of each server of the show, all ACTIVE; one that no host could build is made once more."""
        latest: dict[str, Facts] = {}
        again: set[str] = set()

        def active() -> bool:
            latest.update({server["name"]: server for server in self._api.servers()})
            shown = [latest[name] for name, _ in SERVERS]
            for server in shown:
                if server["status"] == "ERROR":
                    self._replace(server, again)
                    return False
            return all(server["status"] == "ACTIVE" for server in shown)

        with self._progress.step("servers become ACTIVE"):
            wait_for(
                "all servers are ACTIVE",
                active,
                _ACTIVE_TIMEOUT_S,
                log=self._settings.log / "nova-scheduler.log",
            )
        return {name: latest[name] for name, _ in SERVERS}

    def _replace(self, server: Facts, again: set[str]) -> None:
        """Make a server again that its hosts could not build, the first time; ``again`` holds the names that were.

        :raises LabError: it was made again before, or no host has tried to build it
        """
        message = server.get("fault", {}).get("message", "no reason given")
        failed = build_failures(self._settings.log, server["id"])
        reason = "; ".join([message, *failed])
        if server["name"] in again or not failed:
            raise LabError(
                f"server {server['name']} is in ERROR: {reason}; "
                f"why: {self._settings.command} explain {server['name']}",
                log=self._settings.log / "nova-scheduler.log",
            )
        again.add(server["name"])
        self._progress.note(f"server {server['name']} {MADE_AGAIN}: {reason}")
        self._remove(server)
        self._make(server["name"], dict(SERVERS)[server["name"]])

    def read_back(self, host: str, uuids: Sequence[str]) -> dict[str, Facts]:
        """What kernel and libvirt of one host say of some servers, by name; the host's own facts stand under ``on``.

        :raises LateError: the host does not answer in time
        """
        program = self._settings.source / "readback.py"
        command = shlex.join(["/usr/bin/python3", "-I", "-S", str(program), *uuids])
        facts = json.loads(run_on(self._lab, host, command, _READ_TIMEOUT_S))
        return {domain["server"]: {**domain, "on": facts} for domain in facts["domains"]}


def build_failures(log: Path, uuid: str) -> list[str]:
    """What hosts said when they failed to build a server, oldest first: nova's API tells only that all of them failed.

    :param log: the folder of the lab's logs; nova-conductor keeps the answers of the hosts there
    """
    try:
        lines = (log / "nova-conductor.log").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    said = (line.partition("Error from last host: ")[2] for line in lines if uuid in line)
    return [f"{text[:60]} ... {text[-_REASON_CHARS:]}" for text in said if text]


def wait_enforced(
    placed: dict[str, Facts],
    read_back: Callable[[str, Sequence[str]], dict[str, Facts]],
    timeout_s: float,
) -> dict[str, Facts]:
    """Read the hosts of some servers until each server is enforced, a host that is done no more.

    :param placed: nova's record of each server, by name
    :param read_back: says what a host does with the servers of these UUIDs, by name
    :raises LateError: not done in time; it names the late hosts or servers and the load of this machine
    """
    hosts: dict[str, dict[str, str]] = {}
    for name, server in placed.items():
        hosts.setdefault(server["OS-EXT-SRV-ATTR:host"], {})[name] = server["id"]
    latest: dict[str, Facts] = {}
    silent: set[str] = set()

    def missing(host: str) -> list[str]:
        return [name for name in hosts[host] if name not in latest or not is_enforced(latest[name])]

    def enforced() -> bool:
        for host in filter(missing, sorted(hosts)):
            try:
                latest.update(read_back(host, list(hosts[host].values())))
                silent.discard(host)
            except LateError:
                silent.add(host)  # slow, not broken: it is asked again
        return not any(map(missing, hosts))

    try:
        wait_for("every server is enforced", enforced, timeout_s)
    except LateError as error:
        late = "; ".join(
            f"{host} does not answer in time"
            if host in silent
            else f"{host} has not enforced {', '.join(missing(host))} in time"
            for host in filter(missing, sorted(hosts))
        )
        raise LateError(f"{late} (load {os.getloadavg()[0]:.0f}); run it again") from error
    return latest


HEAD = (
    "server",
    "flavor",
    "host",
    "node",
    "vCPUs on",
    "memory there",
    "RDT group",
    "L3 mask",
    "MBA",
    "state",
)


def run_on(lab: Lab, host: str, command: str, timeout_s: float) -> str:
    """Run a shell command on a compute host and return its output.

    :raises LateError: the command takes too long
    :raises LabError: the command failed
    """
    if host == LOCAL_NAME:
        words: Sequence[str] = lab.local().inside(["sh", "-c", command])
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, check=False, timeout=timeout_s
            )
        except subprocess.TimeoutExpired as error:
            raise LateError(f"on {host} not done after {timeout_s:.0f} s: {command}") from error
    else:
        hosts = {emulated.name: emulated for emulated in lab.emulated_hosts()}
        done = hosts[host].run(command, timeout_s)
    if done.returncode != 0:
        raise LabError(f"{host}: {command}: {done.stderr.strip()[-400:]}")
    return str(done.stdout)


def is_enforced(facts: Facts) -> bool:
    """Guest memory is resident, and the vCPU threads are in one group that is not the root's.

    On a host without resctrl there are no groups to wait for.
    """
    resident = sum(facts["pages_kb"].values()) >= 0.9 * facts["ram_kb"]
    grouped = not facts["on"]["resctrl"] or (len(facts["groups"]) == 1 and facts["groups"] != [""])
    return resident and grouped


def cpu_set(text: str) -> set[int]:
    """CPU numbers of a kernel CPU list such as ``0-2,5``."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def row(facts: Facts, server: Facts) -> list[str]:
    """One line of the table."""
    on = facts["on"]
    cpus = set().union(*(cpu_set(vcpu["cpus"]) for vcpu in facts["vcpus"]))
    nodes = sorted(node for node, text in on["node_cpus"].items() if cpu_set(text) & cpus)
    total_kb = sum(facts["pages_kb"].values())
    shares = {node: 100 * kb / total_kb for node, kb in sorted(facts["pages_kb"].items())}
    if len(nodes) == 1:
        memory = f"{shares.get(nodes[0], 0.0):.0f} %"
    else:
        memory = " ".join(f"{node}:{share:.0f}%" for node, share in shares.items() if share >= 0.5)
    group = facts["groups"][0] if facts["groups"] else None
    values = _schemata(on, group, cpus)
    return [
        facts["server"],
        facts["flavor"],
        on["host"],
        ",".join(nodes),
        ",".join(sorted({vcpu["cpus"] for vcpu in facts["vcpus"]})),
        memory,
        "-" if group is None else group or "(root)",
        values("L3"),
        values("MB"),
        f"{server['status']}/{facts['state']}",
    ]


def _schemata(on: Facts, group: str | None, cpus: set[int]) -> Callable[[str], str]:
    """Look up the values of a group as ``domain:value``, in the L3 domains of some CPUs."""
    domains = [domain for domain, text in on["l3_cpus"].items() if cpu_set(text) & cpus]

    def values(resource: str) -> str:
        if group is None or resource not in on["resctrl"][group]["schemata"]:
            return "-"
        schemata = on["resctrl"][group]["schemata"][resource]
        return " ".join(f"{domain}:{schemata[domain]}" for domain in domains if domain in schemata)

    return values


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text; the first row is the head."""
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def next_steps(settings: Settings) -> str:
    """The commands that README.md offers to start with, for the folder of this lab."""
    _, _, rest = (settings.checkout / "README.md").read_text().partition(_START_WITH)
    block = rest.split("```")[1].replace("$PWD/.lab", ".lab").replace(".lab/", f"{settings.lab}/")
    return f"{_START_WITH}:\n{block}".rstrip()


REAL_AND_EMULATED = """\
Real: Keystone, Placement, Glance, Nova with its scheduler, MariaDB, RabbitMQ, libvirt, the Linux kernels' NUMA, cpuset,
      page migration, resctrl and VFIO, our filter, weigher and agents.
Emulated: the compute hosts h1, h2 (QEMU without KVM): their sockets, NUMA nodes, L3 caches, RDT registers and PCI
      devices; the network service is a stub. Nothing here shows speed: caches and bandwidth have no effect on an
      emulated CPU."""
