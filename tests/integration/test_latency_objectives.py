# SPDX-License-Identifier: Apache-2.0
"""Latency objectives on an emulated host: a load step violates one, the agent heals it, moves pages, releases.

Servers, ports, groups, levels and pages are real and read back from the kernel. What the guests would report is
*modelled* (:mod:`emulation.slo_guests`): a law over the levels and pages in force, sent over the real line
protocol through the sockets that the agent has had plugged in.

The crowd's loads have room (:mod:`tests.support.slo_crowd`, held by a unit test): there is a state without throttles in
which all objectives are met. The faults are for the long run: ``--long``, one of them with ``-k NAME``.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cloud import CHECKOUT, LabCloud, LabHost, ReadBackServer, Server, eventually
from tests.support.slo_crowd import BUSY, GAIN, QUIET, REPORT_S, SLO_US, UNSATISFIABLE

IMAGE = "toucher"
PORT = "org.numa_ext.slo.0"
LC = {
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "numa_ext:tier": "LC",
    "numa_ext:slo_p99_us": str(SLO_US),
    "resources:CUSTOM_RDT_CLOS": "1",
    "resources_NODE:CUSTOM_LLC_WAY": "2",
}
BE = {"numa_ext:tier": "BE", "numa_ext:memory_policy": "uniform_all"}
PATIENCE_S = 600.0
AT_EASE = 0.6
"""Pressure from which on ``BUSY`` is red beyond doubt; 0.75 with pages everywhere and all levels at 100 %."""
RESCTRL = "/sys/fs/resctrl"


@dataclass
class Crowd:
    """Two latency-critical and three best-effort servers on one host, and the guests' model."""

    cloud: LabCloud
    host: LabHost
    lcs: list[Server]
    bes: list[Server]
    file: Path
    guests: dict[str, Any]

    def load(self, load: float, **more: object) -> None:
        """Step the load of the first latency-critical server."""
        self.guests["lcs"][0] |= {"load": load, **more}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.guests))
        new.replace(self.file)

    def levels(self) -> dict[str, set[int]]:
        """Best-effort server -> bandwidth levels of its group, over the L3 domains of its CPUs."""
        found = self.host.domains()
        return {be.id: _levels(found[be.id]) for be in self.bes if be.id in found}

    def doctor(self) -> str:
        """All that ``openstack numa doctor`` says."""
        return self.cloud.openstack("numa", "doctor", "-f", "json", check=False).stdout

    def throttled(self) -> bool:
        """Tell whether a best-effort server is throttled in the tree."""
        return any(min(levels, default=100) <= 20 for levels in self.levels().values())

    def released(self) -> bool:
        """Tell whether each best-effort server has at least the level that it had before there was a controller."""
        levels = self.levels()
        return len(levels) == len(self.bes) and all(
            min(found, default=0) >= 50 for found in levels.values()
        )

    def near(self) -> float:
        """Share of the best-effort servers' pages on the node of the first latency-critical one, summed."""
        return sum(share for share, _ in self._by_be())

    def pressure(self) -> float:
        """The same, each share times the server's level: what the model makes latencies from."""
        return sum(share * level / 100 for share, level in self._by_be())

    def _by_be(self) -> list[tuple[float, int]]:
        found = self.host.domains()
        (node,) = found[self.lcs[0].id].nodes
        domains = [found[be.id] for be in self.bes if be.id in found]
        return [(d.memory_share.get(node, 0.0), min(_levels(d), default=0)) for d in domains]

    def since(self, began: str = "") -> list[dict[str, Any]]:
        """The newest entries of the agent's journal, those after a time."""
        return [entry for entry in self.host.journal() if entry["time"] > began]

    def now(self) -> str:
        """Time of the newest entry in the journal."""
        return max((entry["time"] for entry in self.since()), default="")

    def calm(self) -> None:
        """Wait until the controller watches and has given back so much that the busy load violates the objective."""
        self.load(QUIET, flood=False)
        eventually(
            "levels and pages are given back",
            lambda: self.rests() and self.pressure() >= AT_EASE,
            3 * PATIENCE_S,
            10,
        )

    def rests(self) -> bool:
        """Tell whether the objective is met and nothing is searched."""
        told = self.host.latencies()
        first = told.get("lcs", {}).get(self.lcs[0].id, {})
        return first.get("state") in {"ample", "met"} and told.get("phase") == "watch"

    def told(self, began: str, action: str, result: str = "") -> bool:
        """Tell whether the journal knows an action after a time."""
        return any(
            entry["action"] == action and result in ("", entry["result"])
            for entry in self.since(began)
        )


def _levels(domain: ReadBackServer) -> set[int]:
    if len(domain.facts["groups"]) != 1 or not domain.group:
        return set()
    bandwidth = domain.host["resctrl"][domain.group]["schemata"]["MB"]
    return {int(bandwidth[l3]) for l3 in domain.l3}


def socket_of(host: LabHost, server: Server) -> str:
    """Path of the host's end of a server's port, "" while there is none."""
    text = host.run(
        f"virsh -q dumpxml {server.id} | grep -B2 {PORT} | grep -o \"path='[^']*'\" || true"
    )
    return text.strip().removeprefix("path='").removesuffix("'")


@pytest.fixture(scope="module")
def crowd(running_cloud: LabCloud) -> Iterator[Crowd]:
    """Servers on h1, the LCs' ports plugged in by the agent, and behind these the modelled guests::

    NUMA node of LC 1    LC 1  dedicated, one cell, 2 ways, p99 objective; its load is stepped
    NUMA node of LC 2    LC 2  the same, with a load that stays quiet
    all nodes            BE 1 to BE 3  float, pages uniform_all
    """
    cloud = running_cloud.of_one_test()
    host = cloud.hosts["h1"]
    cloud.openstack("image", "set", "--property", "hw_qemu_guest_agent=yes", IMAGE)
    try:
        lc, be = cloud.flavor(LC), cloud.flavor(BE)
        made = [cloud.create(flavor, "--host", "h1") for flavor in (lc, lc, be, be, be)]
        servers = [cloud.active(server) for server in made]
        lcs, bes = servers[:2], servers[2:]
        ports = [eventually("a port", partial(socket_of, host, s), PATIENCE_S, 5) for s in lcs]
        domains = host.all_enforced([server.id for server in servers], PATIENCE_S)[: len(lcs)]
        told = {
            "gain": GAIN,
            "interval_s": REPORT_S,
            "bes": [server.id for server in bes],
            "lcs": [
                {"port": port, "node": int(min(domain.nodes)), "slo_p99_us": SLO_US, "load": QUIET}
                for port, domain in zip(ports, domains, strict=True)
            ],
        }
        file = host.emulated.agent_conf.with_name("slo-guests.json")
        crowd = Crowd(cloud, host, lcs, bes, file, told)
        crowd.load(QUIET)
        host.agent.stop()  # its connections are to QEMU; it will find the model at the same paths
        module = f"{sys.executable} -m emulation.slo_guests {file}"
        log = "/tmp/slo-guests.log"
        pid = host.run(f"cd {CHECKOUT} && (nohup {module} >{log} 2>&1 & echo $!)").strip()
        try:
            eventually("the model listens", lambda: _listens(host, pid), 120, 2)
            host.agent.start()
            crowd.calm()
            yield crowd
        finally:
            host.run(f"kill {pid} || true")
            file.unlink(missing_ok=True)
            host.agent.start()  # where the model did not come up
    finally:
        cloud.openstack("image", "unset", "--property", "hw_qemu_guest_agent", IMAGE)
        cloud.end()


def _listens(host: LabHost, pid: str) -> bool:
    answer = host.run(f"kill -0 {pid} && ls -l /proc/{pid}/fd | grep -c socket || true")
    return bool(answer.strip()) and int(answer.split()[-1]) >= 2


def read_by_somebody(host: LabHost, path: str) -> bool:
    """Tell whether the kernel knows a connection to a listening socket."""
    count = f'awk \'$6 == "03" && $8 == "{path}" {{ n++ }} END {{ print n + 0 }}\' /proc/net/unix'
    return int(host.run(count)) > 0


@pytest.mark.long
def test_a_port_travels_with_a_live_migration(cloud: LabCloud) -> None:
    """On the target its socket is another one, and the agent there reads it; nothing is plugged in a second time."""
    if "h2" not in cloud.hosts:
        pytest.skip("needs a second emulated host")
    source, target = cloud.hosts["h1"], cloud.hosts["h2"]
    cloud.openstack("image", "set", "--property", "hw_qemu_guest_agent=yes", IMAGE)
    try:
        # Without shared storage the disk is copied: one of the image's size, not of a gigabyte.
        server = cloud.boot(cloud.flavor(LC, disk=0), "--host", source.name)
    finally:
        cloud.openstack("image", "unset", "--property", "hw_qemu_guest_agent", IMAGE)
    path = eventually("a port", partial(socket_of, source, server), PATIENCE_S, 5)
    eventually("the agent reads it", partial(read_by_somebody, source, path), PATIENCE_S, 5)
    cloud.openstack("server", "migrate", "--live-migration", "--host", target.name, server.id)
    cloud.settled(server, 900)
    assert server.host == target.name, f"it did not leave {server.host}: {server.fault}"
    there = eventually("a port on the target", partial(socket_of, target, server), PATIENCE_S, 5)
    eventually(
        "the target's agent reads it", partial(read_by_somebody, target, there), PATIENCE_S, 5
    )
    plugged = [
        entry["action"]
        for entry in target.journal()
        if entry.get("server") == server.id and entry["action"] == "plug"
    ]
    assert plugged == []


def test_ports_were_plugged_in_by_the_agent(crowd: Crowd) -> None:
    plugged = {
        a["server"] for a in crowd.since() if a["action"] == "plug" and a["result"] == "done"
    }
    assert {lc.id for lc in crowd.lcs} <= plugged


def test_a_load_step_is_healed_pages_move_and_bandwidth_is_released(crowd: Crowd) -> None:
    crowd.calm()
    before = crowd.near()
    began = crowd.now()
    crowd.load(BUSY)
    eventually(
        "a best-effort server is throttled in the tree",
        crowd.throttled,
        PATIENCE_S,
        2,
    )
    eventually(
        "pages have left the node, the objective is met, and bandwidth is released",
        lambda: crowd.near() < before - 0.05 and crowd.rests() and crowd.released(),
        PATIENCE_S,
        10,
    )
    news = crowd.since(began)
    violated = [entry for entry in news if entry["action"] == "violated"]
    assert {entry["server"] for entry in violated} == {crowd.lcs[0].id}
    assert any(entry["action"] == "met" for entry in news), "it was never healed"
    touched = {entry["server"] for entry in news if entry["action"] == "balm" and "server" in entry}
    assert touched <= {be.id for be in crowd.bes}, "somebody else was throttled"
    found = crowd.host.domains()
    for lc in crowd.lcs:
        domain = found[lc.id]
        assert set(domain.memory_share) == domain.nodes, "pages of an LC server were moved"
        assert _levels(domain) == {100}


# -- faults ------------------------------------------------------------------------------------------------------------


def flood(crowd: Crowd, began: str) -> None:
    """A guest sends far more than it may."""
    crowd.load(QUIET, flood=True)
    eventually("the flood is told", lambda: crowd.told(began, "listen"), PATIENCE_S, 5)


def always_red(crowd: Crowd, began: str) -> None:
    """A guest is violated whatever is done: it is proposed that somebody leaves, and that is seen from anywhere."""
    crowd.load(UNSATISFIABLE)
    eventually("a proposal", lambda: crowd.told(began, "cannot_fix"), 3 * PATIENCE_S, 10)
    eventually(
        "the doctor knows it",
        lambda: "cannot be kept" in crowd.doctor(),
        PATIENCE_S,
        10,
    )


def search(crowd: Crowd, began: str) -> None:
    """Bring a search about."""
    crowd.load(BUSY)
    eventually("a search", lambda: crowd.told(began, "balm"), PATIENCE_S, 2)


def libvirtd_restarted(crowd: Crowd, began: str) -> None:
    """libvirtd restarts in a search."""
    search(crowd, began)
    crowd.host.emulated.service("libvirtd").restart()


def resctrl_unmounted(crowd: Crowd, began: str) -> None:
    """The tree is away for some seconds in a search, and as new afterwards."""
    search(crowd, began)
    # The agent reads it all the time: it is busy now and then.
    away = f"for n in $(seq 100); do umount {RESCTRL} && break; sleep 0.1; done"
    crowd.host.run(f"{away}; sleep 5; mount -t resctrl resctrl {RESCTRL}")


def classes_exhausted(crowd: Crowd, began: str) -> None:
    """A stranger holds all classes of service when the agent starts; when it lets go, violations are healed again."""
    host = crowd.host
    host.agent.stop()
    with host.helper():
        host.ctl("reset")
    host.run(f"cd {RESCTRL} && for n in $(seq 99); do mkdir stranger$n 2>/dev/null || break; done")
    try:
        host.agent.start()
        eventually("it is told", lambda: crowd.told(began, "join", "failed"), PATIENCE_S, 5)
        crowd.load(BUSY)
        eventually("the violation", lambda: crowd.told(began, "violated"), PATIENCE_S, 5)
    finally:
        host.run(f"rmdir {RESCTRL}/stranger*")
    eventually("each has its class again", lambda: all(crowd.levels().values()), PATIENCE_S, 5)
    eventually("the violation is healed", crowd.rests, PATIENCE_S, 5)


# What the counters of each RMID say is set by registers of the lab's processor: 0 numbers, 1 Unavailable, 2 Error; see
# devstack/lab/qemu.
_BREAK = f"""
import os, struct, sys
rmids = int(open("{RESCTRL}/info/L3_MON/num_rmids").read())
registers = os.open("/dev/cpu/0/msr", os.O_WRONLY)
for rmid in range(rmids):
    os.pwrite(registers, struct.pack("<Q", int(sys.argv[1])), 0x4F002000 + rmid)
"""


def counters(fault: int, word: str, crowd: Crowd, _began: str) -> None:
    """No traffic is known: violations are healed all the same."""
    host = crowd.host
    break_them = f"modprobe msr && {sys.executable} -c {shlex.quote(_BREAK)}"
    host.run(f"{break_them} {fault}")
    try:
        said = host.run(f"cat {RESCTRL}/numa_ext-*/mon_data/*/mbm_total_bytes")
        assert set(said.split()) == {word}
        crowd.load(BUSY)
        eventually("a throttle without counters", crowd.throttled, PATIENCE_S, 2)
    finally:
        host.run(f"{break_them} 0")


def killed(phase: str, load: float, crowd: Crowd, _began: str) -> None:
    """The agent is killed in a phase of the controller and started again.

    The phase is read on this side, where it takes no time. A shell inside waits for the word: to start one takes as
    long as a phase does.
    """
    host = crowd.host
    if phase == "trial":  # only what is in force can be taken back on trial
        before = crowd.near()
        crowd.load(BUSY)
        eventually(
            "pages have left, and nothing is searched",
            lambda: crowd.near() < before - 0.05 and crowd.rests(),
            3 * PATIENCE_S,
            10,
        )
    pid = host.agent.pid()
    assert pid is not None
    shell = [CHECKOUT / "devstack" / "lab" / "lab", "shell", host.name, "sh", "-c"]
    script = f"echo waiting; read word && kill -KILL {pid}"
    with subprocess.Popen(
        [*map(str, shell), script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killer:
        assert killer.stdout is not None
        assert killer.stdout.readline() == "waiting\n"
        crowd.load(load)
        eventually(
            f"phase {phase}",
            lambda: host.latencies().get("phase") == phase,
            3 * PATIENCE_S,
            0.005,
        )
        killer.communicate("now\n", PATIENCE_S)
    assert host.latencies()["phase"] == phase, "the phase was over before the agent was dead"
    host.agent.start()


FAULTS: dict[str, Callable[[Crowd, str], None]] = {
    "always_red": always_red,
    "classes_exhausted": classes_exhausted,
    "counters_error": partial(counters, 2, "Error"),
    "counters_unavailable": partial(counters, 1, "Unavailable"),
    "flood": flood,
    "killed_in_climb": partial(killed, "climb", BUSY),
    "killed_in_heal": partial(killed, "heal", BUSY),
    "killed_in_release": partial(killed, "release", UNSATISFIABLE),
    "killed_in_trial": partial(killed, "trial", QUIET),
    "killed_in_watch": partial(killed, "watch", QUIET),
    "libvirtd_restarted": libvirtd_restarted,
    "resctrl_unmounted": resctrl_unmounted,
}


@pytest.mark.long
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_after_a_fault_nobody_stays_throttled(crowd: Crowd, fault: str) -> None:
    """Whatever happens in a search: in the end the objective is met or reported, and levels are released."""
    crowd.calm()
    FAULTS[fault](crowd, crowd.now())
    crowd.load(QUIET, flood=False)
    eventually("nobody is throttled any more", crowd.released, 3 * PATIENCE_S, 10)
    assert crowd.host.agent.pid() is not None
