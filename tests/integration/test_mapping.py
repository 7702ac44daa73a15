# SPDX-License-Identifier: Apache-2.0
"""Mapping and memory placement on an emulated host, with servers made by ``openstack server create``.

Actuators are real: threads are pinned and pages are moved in the emulated kernel, and read back from it. Counters are
*modelled* (``[counters]source = model``): nothing on an emulated host feels where its memory is. The host has one
shared CPU per NUMA node: a floating server of one vCPU fills what a node has for it.
"""

import json
import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.integration.cloud import LabCloud, LabHost, ReadBackServer, Server, eventually

LOCAL = {"numa_ext:tier": "BE", "numa_ext:memory_policy": "local"}
SENSITIVE = {**LOCAL, "numa_ext:remote_memory": "sensitive"}
DEVIL = {**LOCAL, "numa_ext:interference_class": "devil"}
RABBIT = {**LOCAL, "numa_ext:interference_class": "rabbit"}
SPREAD = {**LOCAL, "numa_ext:memory_policy": "uniform_all"}
SEARCHED = {
    "numa_ext:tier": "BE",
    "numa_ext:interference_class": "devil",
    "numa_ext:memory_policy": "bwap_uniform",
}
# The search takes 5 samples instead of 20: the model's noise is as much less, or the first step is lost in it.
MODELLED = """
[counters]
source = model
sample_s = 2
model_noise_percent = 0.5
[bwap]
interval_s = 1
samples = 5
drop = 1
stable_samples = 4
[mapping]
interval_s = 10
"""
SEED = int(os.environ.get("NUMA_EXT_SEED", str(time.time_ns() % 10_000)))


@pytest.fixture(scope="module")
def modelled(running_cloud: LabCloud) -> Iterator[LabHost]:
    """The first host with modelled counters; its agent is as before afterwards::

    h1                     no servers
    └─ numa-host-agent     its own configuration and MODELLED: counters of a model, short searches
    """
    host = running_cloud.hosts["h1"]
    left = [d["server"] or d["name"] for d in host.read_back()["domains"]]
    assert not left, f"these stories need h1 for themselves; servers there: {left}"
    conf = host.emulated.agent_conf
    before = conf.read_text()
    conf.write_text(before + MODELLED)
    host.agent.restart()
    yield host
    conf.write_text(before)
    host.agent.restart()


@pytest.fixture
def boot(cloud: LabCloud, modelled: LabHost) -> Callable[..., list[Server]]:
    """Boots servers of one vCPU on h1, one for each set of extra specs, all at once."""

    def make(*wanted: dict[str, str], **sizes: int) -> list[Server]:
        flavors = [cloud.flavor(specs, **sizes) for specs in wanted]
        made = [cloud.create(flavor, "--host", modelled.name) for flavor in flavors]
        return [cloud.active(server) for server in made]

    return make


def pinned(host: LabHost, server: Server) -> ReadBackServer:
    """Wait until each vCPU has a CPU of its own and the memory is where the vCPUs are."""

    def probe() -> ReadBackServer | None:
        domain = host.domain(server.id)
        if domain is None or not domain.enforced():
            return None
        near = sum(domain.memory_share.get(node, 0.0) for node in domain.nodes)
        return domain if len(domain.cpus) == len(domain.facts["vcpus"]) and near >= 0.99 else None

    return eventually(f"{server.flavor} has its own cores and its memory there", probe, 300, 3)


def running(host: LabHost, *servers: Server) -> None:
    """Assert that the servers run: no controller ever stops one."""
    for server in servers:
        domain = host.domain(server.id)
        assert domain is not None
        assert domain.facts["state"] == "running"


def reasons(host: LabHost, server: Server) -> str:
    """What the agent has noted about a server."""
    return json.dumps([entry for entry in host.journal() if entry.get("server") == server.id])


@pytest.mark.long
def test_f_001_12_a_mix_of_classes_gets_cores_of_its_own_and_memory_beside_them(
    modelled: LabHost, boot: Callable[..., list[Server]]
) -> None:
    """F-001-06, F-001-12: a devil, a rabbit and a remote-sensitive server; >= 99 % of the pages are near."""
    devil, rabbit, sensitive = boot(DEVIL, RABBIT, SENSITIVE)
    found = [pinned(modelled, server) for server in (devil, rabbit, sensitive)]
    cpus = [cpu for domain in found for cpu in domain.cpus]
    assert len(cpus) == len(set(cpus)), "two vCPUs share a core"
    assert not found[0].l3 & found[1].l3, "the rabbit lives with the devil"
    running(modelled, devil, rabbit, sensitive)
    assert "mapped" in reasons(modelled, sensitive)


@pytest.mark.long
def test_f_001_04_an_overfull_host_says_so_and_moves_nobody(
    modelled: LabHost, boot: Callable[..., list[Server]]
) -> None:
    servers = boot(*[LOCAL] * 4)
    before = [pinned(modelled, server).cpus for server in servers]
    (late,) = boot(LOCAL)
    eventually("host_full is told", lambda: "host_full" in reasons(modelled, late), 120, 3)
    assert [pinned(modelled, server).cpus for server in servers] == before
    running(modelled, *servers, late)


@pytest.mark.long
def test_f_001_08_a_sheep_makes_room_for_a_devil_that_must_not_live_with_an_lc(
    cloud: LabCloud, modelled: LabHost, boot: Callable[..., list[Server]]
) -> None:
    """The only shared CPU left is in the LC's L3 domain: one server moves there, its memory with it."""
    lc = cloud.boot("lc.small", "--host", "h1")
    (home,) = modelled.enforced(lc.id).nodes
    sheep = boot(*[LOCAL] * 4)
    placed = {server.id: pinned(modelled, server) for server in sheep}
    (beside,) = [server for server in sheep if placed[server.id].nodes == {home}]
    cloud.delete([beside.id])
    others = [server for server in sheep if server is not beside]
    (devil,) = boot(DEVIL)
    assert home not in pinned(modelled, devil).nodes
    after = {server.id: pinned(modelled, server) for server in others}
    moved = [s for s in others if after[s.id].nodes != placed[s.id].nodes]
    assert [after[server.id].nodes for server in moved] == [{home}]
    assert "reshuffled_for" in reasons(modelled, moved[0])
    running(modelled, lc, devil, *others)
    assert modelled.enforced(lc.id).facts["pid"] > 0


def searched(host: LabHost, server: Server) -> ReadBackServer:
    """Wait until a search has ended, and return what the kernel says then."""

    def ended() -> ReadBackServer | None:
        return host.domain(server.id) if "dwp_found" in reasons(host, server) else None

    return eventually("the search has ended", ended, 600, 5)


def assert_near(domain: ReadBackServer) -> None:
    """The modelled program wants its memory near: the search has brought the spread pages back."""
    near = sum(domain.memory_share.get(node, 0.0) for node in domain.nodes)
    assert near >= 0.9, f"vCPUs on nodes {domain.nodes}, memory {domain.memory_share}"


@pytest.mark.long
def test_f_004_13_a_search_closes_over_the_model_with_real_page_moves(
    modelled: LabHost, boot: Callable[..., list[Server]]
) -> None:
    """F-004-09, F-004-13, F-004-14: pages are spread first, then brought back step by step, on a running guest."""
    (server,) = boot(SEARCHED)

    def spread() -> ReadBackServer | None:
        domain = modelled.domain(server.id)
        return domain if domain and len(domain.memory_share) == 4 and domain.enforced() else None

    started = eventually("the pages are spread over all nodes", spread, 300, 2)
    assert min(started.memory_share.values()) >= 0.02
    found = searched(modelled, server)
    assert_near(found)
    assert found.facts["pid"] == started.facts["pid"]
    running(modelled, server)


# migrate_pages(2), x86-64: all pages of a process, wherever they are, to one of the four nodes.
BRING = """
import ctypes, sys
pid, node = map(int, sys.argv[1:])
old, new = ctypes.c_ulong(0b1111), ctypes.c_ulong(1 << node)
sys.exit(ctypes.CDLL(None).syscall(256, pid, 64, ctypes.byref(old), ctypes.byref(new)) != 0)
"""


def brought(host: LabHost, server: Server, node: str) -> None:
    """Bring all memory of a running server to a node, past the agent."""
    domain = host.domain(server.id)
    assert domain is not None
    host.run(f"/usr/bin/python3 -I -S -c {shlex.quote(BRING)} {domain.facts['pid']} {node}")
    after = host.domain(server.id)
    assert after is not None
    assert after.memory_share.get(node, 0.0) >= 0.99, f"not on node {node}: {after.memory_share}"


def placed_exactly(host: LabHost, server: Server, shares: dict[str, float]) -> ReadBackServer:
    """Wait until every node holds its share of the server's memory to one percentage point."""

    def probe() -> ReadBackServer | None:
        domain = host.domain(server.id)
        if domain is None or not domain.enforced():
            return None
        found = domain.memory_share
        errors = [abs(found.get(node, 0.0) - shares.get(node, 0.0)) for node in "0123"]
        return domain if max(errors) <= 0.01 else None

    return eventually(f"{server.flavor} has its memory at {shares}", probe, 900, 3)


@pytest.mark.long
def test_f_004_13_memory_of_running_servers_is_moved_both_ways_to_a_percentage_point(
    modelled: LabHost, boot: Callable[..., list[Server]]
) -> None:
    """One goes from its node to all four, one from another node to its own; neither is stopped.

    Of 256 MiB a huge page is 0.8 percentage points: the shares are exact up to one of them.
    """
    spread, near = boot(SPREAD, LOCAL, ram=256)
    everywhere = dict.fromkeys("0123", 0.25)
    (home,) = pinned(modelled, near).nodes
    before = [
        placed_exactly(modelled, spread, everywhere),
        placed_exactly(modelled, near, {home: 1.0}),
    ]
    (its_own,) = before[0].nodes
    away = str(3 - int(home))
    modelled.agent.stop()
    try:
        brought(modelled, spread, its_own)
        brought(modelled, near, away)
        running(modelled, spread, near)
    finally:
        modelled.agent.start()
    after = [
        placed_exactly(modelled, spread, everywhere),
        placed_exactly(modelled, near, {home: 1.0}),
    ]
    assert [domain.nodes for domain in after] == [{its_own}, {home}], "the vCPUs stay"
    assert [d.facts["pid"] for d in after] == [d.facts["pid"] for d in before]
    running(modelled, spread, near)


@pytest.mark.long
def test_an_agent_killed_in_the_middle_of_a_search_converges(
    modelled: LabHost, boot: Callable[..., list[Server]]
) -> None:
    """SIGKILL at a sampled moment; the seed is printed and ``NUMA_EXT_SEED`` repeats it."""
    wait_s = random.Random(SEED).uniform(5, 60)
    sys.stdout.write(f"seed {SEED}: SIGKILL {wait_s:.1f} s after the server runs\n")
    (server,) = boot(SEARCHED)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        running(modelled, server)
        time.sleep(1.0)
    modelled.agent.kill()
    running(modelled, server)
    modelled.agent.start()
    assert_near(searched(modelled, server))
    running(modelled, server)


@pytest.mark.long
@pytest.mark.parametrize("wait_s", range(2, 90, 8))
def test_an_agent_killed_at_every_point_of_a_search_converges(
    modelled: LabHost, boot: Callable[..., list[Server]], wait_s: int
) -> None:
    (server,) = boot(SEARCHED)
    time.sleep(wait_s)
    modelled.agent.kill()
    modelled.agent.start()
    assert_near(searched(modelled, server))
    running(modelled, server)


@pytest.mark.long
def test_f_004_05_bandwidths_are_measured_on_emulated_numa(modelled: LabHost) -> None:
    """The command runs to completion and the weights sum to 1; the figures themselves mean nothing here."""
    modelled.agent.stop()  # beside an agent nothing is measured
    try:
        rows = modelled.ctl(
            "calibrate",
            "--force",
            "--megabytes=8",
            "--seconds=0.2",
            "--cpus-per-node=1",
            "--dry-run",
        )
    finally:
        modelled.agent.start()
    assert len(rows) >= 4
    weights = [row["weights"] for row in rows]
    assert {len(each) for each in weights} == {4}, weights
    assert [each for each in weights if abs(sum(each.values()) - 1.0) >= 0.01] == []


@pytest.mark.long  # copies a disk between emulated hosts
def test_after_a_live_migration_the_agent_of_the_target_takes_over(
    cloud: LabCloud, h1: LabHost
) -> None:
    """No pin travels: on h2, whose CPU set is another one, the server gets a CPU of that set."""
    if "h2" not in cloud.hosts:
        pytest.skip("needs a second emulated host")
    # Without shared storage the disk is copied: one of the image's size, not of a gigabyte.
    server = cloud.boot(cloud.flavor(LOCAL, disk=0), "--host", h1.name)
    pinned(h1, server)
    cloud.openstack("server", "migrate", "--live-migration", "--host", "h2", server.id)
    cloud.settled(server, 900)
    told = cloud.openstack("server", "migration", "list", "--server", server.id).stdout
    assert server.host == "h2", f"it did not leave {server.host}: {server.fault}\n{told}"
    target = cloud.hosts["h2"]
    domain = pinned(target, server)
    own = set(target.emulated.shape.shared_cpus)
    assert domain.cpus <= own
    assert own & set(h1.emulated.shape.shared_cpus) == set()
    assert domain.group.startswith("numa_ext-be")
    assert h1.domain(server.id) is None
