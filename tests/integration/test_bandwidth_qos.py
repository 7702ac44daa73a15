# SPDX-License-Identifier: Apache-2.0
"""Latency objectives on an emulated host: a load step violates one, the agent heals it, moves pages, releases.

Servers, ports, groups, levels and pages are real and read back from the kernel. What the guests would report is
*modelled* (:mod:`host_agent.hostmodel.slo_guests`): a law over the levels and pages in force, sent over the real line
protocol through the sockets that the agent has had plugged in.

One of the faults is sampled per run; all of them with ``NUMA_EXT_ALL_FAULTS=1``.
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cloud import CHECKOUT, Cloud, Domain, Host, Server, eventually

IMAGE = "toucher"
PORT = "org.numa_ext.slo.0"
SLO_US = 1000
GAIN = 4.0
QUIET, BUSY, HOPELESS = 0.45, 0.7, 1.5
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
SEED = int(os.environ.get("NUMA_EXT_SEED", str(time.time_ns() % 10_000)))
FAULTS = ("agent_killed", "always_red", "flood", "libvirtd_restarted", "resctrl_unmounted")
SAMPLED = FAULTS if os.environ.get("NUMA_EXT_ALL_FAULTS") else random.Random(SEED).sample(FAULTS, 1)


@dataclass
class Crowd:
    """Two latency-critical and three best-effort servers on one host, and the guests' model."""

    host: Host
    lcs: list[Server]
    bes: list[Server]
    file: Path
    told: dict[str, Any]

    def load(self, load: float, **more: object) -> None:
        """Step the load of the first latency-critical server."""
        self.told["lcs"][0] |= {"load": load, **more}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.told))
        new.replace(self.file)

    def domains(self) -> dict[str, Domain]:
        """All servers as the kernel and libvirt of the host have them now."""
        facts = self.host.read_back()
        return {domain["uuid"]: Domain(domain, facts) for domain in facts["domains"]}

    def levels(self) -> dict[str, set[int]]:
        """Best-effort server -> bandwidth levels of its group, over the L3 domains of its CPUs."""
        found = self.domains()
        return {be.id: _levels(found[be.id]) for be in self.bes if be.id in found}

    def near(self) -> float:
        """Share of the best-effort servers' pages on the node of the first latency-critical one, summed."""
        found = self.domains()
        (node,) = found[self.lcs[0].id].nodes
        return sum(found[be.id].memory_share.get(node, 0.0) for be in self.bes)

    def actions(self) -> list[dict[str, Any]]:
        """The agent's journal."""
        return list(self.host.ctl("journal", "-n", "2000"))

    def calm(self) -> None:
        """Wait until nobody is throttled and the controller watches with known latencies."""
        self.load(QUIET, flood=False)

        def probe() -> bool:
            rows = {row["uuid"]: row["slo"] for row in self.host.ctl("status")}
            first = rows.get(self.lcs[0].id, {})
            return first.get("colour") in {"green", "grey"} and first.get("phase") == "watch"

        eventually("the objectives are met and nothing is searched", probe, PATIENCE_S, 5)


def _levels(domain: Domain) -> set[int]:
    if len(domain.facts["groups"]) != 1 or not domain.group:
        return set()
    bandwidth = domain.host["resctrl"][domain.group]["schemata"]["MB"]
    return {int(bandwidth[l3]) for l3 in domain.l3}


def socket_of(host: Host, server: Server) -> str:
    """Path of the host's end of a server's port, "" while there is none."""
    text = host.run(
        f"virsh -q dumpxml {server.id} | grep -B2 {PORT} | grep -o \"path='[^']*'\" || true"
    )
    return text.strip().removeprefix("path='").removesuffix("'")


@pytest.fixture(scope="module")
def crowd(running_cloud: Cloud) -> Iterator[Crowd]:
    """The servers, their ports plugged in by the agent, and behind these the modelled guests."""
    cloud = Cloud(running_cloud.settings, running_cloud.lab, running_cloud.hosts)
    host = cloud.hosts["h1"]
    cloud.openstack("image", "set", "--property", "hw_qemu_guest_agent=yes", IMAGE)
    try:
        lc, be = cloud.flavor(LC), cloud.flavor(BE)
        lcs = [cloud.boot(lc, "--host", "h1") for _ in range(2)]
        bes = [cloud.boot(be, "--host", "h1") for _ in range(3)]
        ports = [eventually("a port", partial(socket_of, host, s), PATIENCE_S, 5) for s in lcs]
        domains = [host.enforced(server.id) for server in (*lcs, *bes)][: len(lcs)]
        told = {
            "gain": GAIN,
            "interval_s": 0.25,
            "bes": [server.id for server in bes],
            "lcs": [
                {"port": port, "node": int(min(domain.nodes)), "slo_p99_us": SLO_US, "load": QUIET}
                for port, domain in zip(ports, domains, strict=True)
            ],
        }
        file = host.emulated.agent_conf.with_name("slo-guests.json")
        made = Crowd(host, lcs, bes, file, told)
        made.load(QUIET)
        host.agent.stop()  # its connections are to QEMU; it will find the model at the same paths
        module = f"{sys.executable} -m host_agent.hostmodel.slo_guests {file}"
        log = "/tmp/slo-guests.log"
        pid = host.run(f"cd {CHECKOUT} && (nohup {module} >{log} 2>&1 & echo $!)").strip()
        try:
            eventually("the model listens", lambda: _listens(host, pid), 120, 2)
            host.agent.start()
            made.calm()
            yield made
        finally:
            host.run(f"kill {pid} || true")
            file.unlink(missing_ok=True)
    finally:
        cloud.openstack("image", "unset", "--property", "hw_qemu_guest_agent", IMAGE)
        cloud.end()


def _listens(host: Host, pid: str) -> bool:
    answer = host.run(f"kill -0 {pid} && ls -l /proc/{pid}/fd | grep -c socket || true")
    return bool(answer.strip()) and int(answer.split()[-1]) >= 2


def test_ports_were_plugged_in_by_the_agent(crowd: Crowd) -> None:
    plugged = {
        a["server"] for a in crowd.actions() if a["action"] == "plug" and a["result"] == "done"
    }
    assert {lc.id for lc in crowd.lcs} <= plugged


def test_a_load_step_is_healed_pages_move_and_bandwidth_is_released(crowd: Crowd) -> None:
    crowd.calm()
    before = crowd.near()
    began = len(crowd.actions())
    crowd.load(BUSY)
    eventually(
        "a best-effort server is throttled in the tree",
        lambda: any(min(levels, default=100) <= 20 for levels in crowd.levels().values()),
        PATIENCE_S,
        2,
    )
    eventually(
        "pages have left the node and the throttles are released",
        lambda: (
            crowd.near() < before - 0.05
            and all(levels == {100} for levels in crowd.levels().values())
        ),
        3 * PATIENCE_S,
        10,
    )
    news = crowd.actions()[began:]
    violated = [entry for entry in news if entry["action"] == "violated"]
    assert {entry["server"] for entry in violated} == {crowd.lcs[0].id}
    assert any(entry["action"] == "met" for entry in news), "it was never healed"
    touched = {entry["server"] for entry in news if entry["action"] == "balm" and "server" in entry}
    assert touched <= {be.id for be in crowd.bes}, "somebody else was throttled"
    for lc in crowd.lcs:
        domain = crowd.domains()[lc.id]
        assert set(domain.memory_share) == domain.nodes, "pages of an LC server were moved"
        assert _levels(domain) == {100}


@pytest.mark.parametrize("fault", SAMPLED)
def test_after_a_fault_nobody_stays_throttled(crowd: Crowd, fault: str) -> None:
    """Whatever happens in a search: in the end the objective is met or reported, and levels are released."""
    print(f"NUMA_EXT_SEED={SEED}")  # noqa: T201 - to repeat the run
    crowd.calm()
    host = crowd.host
    began = len(crowd.actions())
    if fault == "flood":
        crowd.load(QUIET, flood=True)
        eventually(
            "the flood is in the journal", lambda: _told(crowd, began, "listen"), PATIENCE_S, 5
        )
    elif fault == "always_red":
        crowd.load(HOPELESS)
        eventually("a proposal", lambda: _told(crowd, began, "cannot_fix"), 3 * PATIENCE_S, 10)
    else:
        crowd.load(BUSY)
        eventually("a search", lambda: _told(crowd, began, "balm"), PATIENCE_S, 2)
        if fault == "agent_killed":
            host.run(f"kill -KILL {host.agent.pid()}")
            host.agent.start()
        elif fault == "libvirtd_restarted":
            host.emulated.service("libvirtd").restart()
        else:
            host.run(
                "umount /sys/fs/resctrl && sleep 5 && mount -t resctrl resctrl /sys/fs/resctrl"
            )
    crowd.load(QUIET, flood=False)
    eventually(
        "nobody is throttled any more",
        lambda: all(min(levels, default=100) >= 50 for levels in crowd.levels().values()),
        3 * PATIENCE_S,
        10,
    )


def _told(crowd: Crowd, began: int, action: str) -> bool:
    return any(entry["action"] == action for entry in crowd.actions()[began:])
