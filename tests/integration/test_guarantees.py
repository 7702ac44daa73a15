# SPDX-License-Identifier: Apache-2.0
"""An LC server gets its node, its cache ways and its group, and keeps them whatever fails; a BE server gets the rest.

All that is asserted is read back from the kernel and libvirt of the emulated host.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.cloud import Facts, LabCloud, LabHost, ReadBackServer, Server, eventually


@dataclass
class Pair:
    """An LC and a BE server on one host."""

    lc: Server
    be: Server
    host: LabHost

    def domains(self) -> tuple[ReadBackServer, ReadBackServer]:
        """Both, once they are enforced."""
        lc, be = self.host.all_enforced([self.lc.id, self.be.id])
        return lc, be


@pytest.fixture(scope="module")
def pair(running_cloud: LabCloud) -> Iterator[Pair]:
    """One LC and one BE server on the same emulated host::

    h1 or h2, as nova chooses for the first
    ├─ lc.small
    └─ be.small    made with --host
    """
    cloud = running_cloud.of_one_test()
    try:
        lc = cloud.placed(cloud.create("lc.small"))
        be = cloud.create("be.small", "--host", lc.host)
        yield Pair(cloud.active(lc), cloud.active(be), cloud.hosts[lc.host])
    finally:
        cloud.end()


def assert_partitioned(lc: ReadBackServer, host_name: str) -> None:
    """In the LC's L3 domains its ways belong to no other group, the root and the shareable ways counted in."""
    groups = lc.host["resctrl"]
    shareable = int(lc.host["shareable"], 16)
    for domain in lc.l3:
        mask = lc.mask(domain)
        assert mask.bit_count() >= 4, (
            f"{host_name}: the flavor asks for 4 ways, the mask is {mask:#x}"
        )
        assert mask & shareable == 0, (
            f"{host_name}: the mask {mask:#x} holds ways that devices share"
        )
        for name, facts in groups.items():
            if name != lc.group:
                other = int(facts["schemata"]["L3"][domain], 16)
                assert mask & other == 0, (
                    f"{host_name}: {name or 'the root group'} overlaps in L3 domain {domain}"
                )


def assert_lc(lc: ReadBackServer, host_name: str) -> None:
    """The whole promise of lc.small."""
    assert len(lc.nodes) == 1, f"vCPUs are on nodes {lc.nodes}"
    (node,) = lc.nodes
    assert lc.memory_share.get(node, 0.0) >= 0.99, f"memory is spread: {lc.memory_share}"
    assert lc.group.startswith("numa_ext-lc")
    assert_partitioned(lc, host_name)


def test_the_lc_server_has_its_node_its_ways_and_its_group(pair: Pair) -> None:
    lc, be = pair.domains()
    assert_lc(lc, pair.host.name)
    assert be.group.startswith("numa_ext-be")
    assert not lc.cpus & be.cpus, "LC and BE share a CPU"
    assert be.facts["monitors"], "no monitoring group of the BE server's own"
    # The LC server's control group holds nobody else, so it counts the server without a monitoring group.
    total = pair.host.run(f"cat /sys/fs/resctrl/{lc.group}/mon_data/*/mbm_total_bytes")
    assert sum(map(int, total.split())) > 0


def test_placement_counts_what_the_lc_server_took(cloud: LabCloud, pair: Pair) -> None:
    shown = json.loads(cloud.openstack("numa", "server", "show", pair.lc.id, "-f", "json").stdout)
    assert shown["host"] == pair.lc.host
    assert shown["tier"] == "LC"
    lc, _ = pair.domains()
    held = cloud.held(pair.lc)
    resources = sum(map(Counter, held.values()), Counter())
    assert resources["CUSTOM_RDT_CLOS"] == 1
    assert resources["CUSTOM_LLC_WAY"] == 4
    assert resources["CUSTOM_MEMORY_BANDWIDTH_MBPS"] == 2000
    (l3_name,) = [name for name, amounts in held.items() if "CUSTOM_LLC_WAY" in amounts]
    assert {l3_name.rpartition("l3_")[2]} == lc.l3, (
        "the claimed L3 domain is not the one the server runs in"
    )


def test_the_agent_explains_what_it_did(pair: Pair) -> None:
    lc, _ = pair.domains()
    (told,) = [row for row in pair.host.ctl("status") if row["uuid"] == pair.lc.id]
    assert told["managed"] is True
    assert told["rdt_group"] == lc.group
    assert {str(node) for node in told["nodes"]} == lc.nodes
    assert told["exclusive"] is True
    explained = json.dumps(pair.host.ctl("explain", pair.lc.id))
    assert lc.group in explained, "the explanation does not name the server's group"


def test_the_scheduler_explains_its_choice(cloud: LabCloud, pair: Pair) -> None:
    told = cloud.command(
        "numa-ext-explain",
        "--config-file",
        str(cloud.settings.etc / "nova" / "nova.conf"),
        pair.lc.id,
    )
    assert pair.lc.host in told.stdout


def test_a_hard_reboot_ends_in_the_same_state(cloud: LabCloud, pair: Pair) -> None:
    before, _ = pair.domains()
    cloud.openstack("server", "reboot", "--hard", pair.lc.id)
    cloud.settled(pair.lc)

    def rebooted() -> ReadBackServer | None:
        domain = pair.host.domain(pair.lc.id)
        return (
            domain
            if domain and domain.facts["pid"] != before.facts["pid"] and domain.enforced()
            else None
        )

    after = eventually("the rebooted server is enforced", rebooted, 300)
    assert_lc(after, pair.host.name)
    assert after.nodes == before.nodes


MOMENTS = {
    "at-once": "true",
    "group-made": "until [ -d /sys/fs/resctrl/{group} ]; do :; done",
    "first-thread-in": "until grep -qs . /sys/fs/resctrl/{group}/tasks; do :; done",
}


@pytest.mark.parametrize(
    "moment",
    [m if m == "group-made" else pytest.param(m, marks=pytest.mark.long) for m in MOMENTS],
)
def test_an_agent_killed_in_the_middle_ends_in_the_same_state(pair: Pair, moment: str) -> None:
    """The LC server's group is taken away, the agent begins to make it again and is killed at some point of that."""
    before, _ = pair.domains()
    pair.host.agent.stop()
    pair.host.run(f"rmdir /sys/fs/resctrl/{before.group}")
    pair.host.agent.start()
    pid = pair.host.agent.pid()
    reached = MOMENTS[moment].format(group=before.group)
    pair.host.run(f"timeout 200 sh -c '{reached}' && kill -KILL {pid}", 240)
    middle = pair.host.domain(pair.lc.id)
    assert middle is not None, "the server ended with the agent"
    assert middle.facts["pid"] == before.facts["pid"]
    pair.host.agent.start()
    after, be = pair.domains()
    assert after.facts["pid"] == before.facts["pid"]
    assert_lc(after, pair.host.name)
    assert be.group.startswith("numa_ext-be")


@pytest.mark.long
def test_a_dry_run_writes_nothing(pair: Pair) -> None:
    """With everything taken away by hand, the dry run says what it would do, and the host stays as it is."""
    pair.domains()
    conf = pair.host.emulated.agent_conf
    venv = pair.host.agent.description.argv[0].removesuffix("/python")
    pair.host.agent.stop()
    try:
        with pair.host.helper():
            reset = f"{venv}/python {venv}/numa-host-agent-ctl --config-file {conf} reset"
            pair.host.run(reset, 240)
            before = without_comings_and_goings(pair.host.read_back())
            ours = [name for name in before["resctrl"] if name.startswith("numa_ext-")]
            assert ours == [], "reset left groups"
            dry = f"{venv}/python {venv}/numa-host-agent --config-file {conf} --dry-run --once"
            told = pair.host.run(dry, 240)
            assert without_comings_and_goings(pair.host.read_back()) == before
    finally:
        pair.host.agent.start()
    assert pair.lc.id[:8] in told, "the dry run does not say what it would do"
    assert_lc(pair.domains()[0], pair.host.name)


def without_comings_and_goings(facts: Facts) -> Facts:
    """Leave out what changes on any living host: its age, and the threads of all the rest in the default group.

    The threads of each server are compared with their groups under ``domains``.
    """
    default = {key: value for key, value in facts["resctrl"][""].items() if key != "tasks"}
    rest = {key: value for key, value in facts.items() if key != "uptime_s"}
    return {**rest, "resctrl": {**facts["resctrl"], "": default}}


def test_malformed_metadata_leaves_the_domain_alone_and_others_unaffected(pair: Pair) -> None:
    host = pair.host
    before, _ = pair.domains()
    xml = """<domain type='qemu'><name>broken</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
    <os><type>hvm</type></os><metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'>
    <nova:flavor name='x'><nova:extraSpecs><nova:extraSpec name='numa_ext:tier'>gold</nova:extraSpec></nova:extraSpecs>
    </nova:flavor></nova:instance></metadata></domain>"""
    host.run(f"cat > /tmp/broken.xml <<'END'\n{xml}\nEND\nvirsh -q create /tmp/broken.xml")
    try:
        (uuid,) = [d["uuid"] for d in host.read_back()["domains"] if d["name"] == "broken"]

        def warned() -> bool:
            return uuid in host.agent.log.read_text()

        eventually("the agent warns about the domain", warned)
        (told,) = [row for row in host.ctl("status") if row["uuid"] == uuid]
        assert told["managed"] is False
        broken = host.domain(uuid)
        assert broken is not None
        assert broken.group == "", "an unmanaged domain belongs to the root group"
        warnings = [
            line
            for line in host.agent.log.read_text().splitlines()
            if uuid in line and "WARNING" in line
        ]
        assert len(warnings) == 1
        after = pair.domains()[0]
        assert (after.group, after.cpus) == (before.group, before.cpus)
    finally:
        host.run("virsh -q destroy broken")


@pytest.fixture
def placement_frozen(cloud: LabCloud) -> Iterator[Callable[[], None]]:
    """Placement does not answer until the value is called: its processes are frozen, so that no data is lost."""
    (pid,) = [row["pid"] for row in cloud.lab.status()["services"] if row["name"] == "placement"]
    workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    processes = (pid, *map(int, workers))

    def thaw() -> None:
        for process in processes:
            os.kill(process, signal.SIGCONT)

    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield thaw
    finally:
        thaw()


def synced(cloud: LabCloud, host: LabHost) -> bool:
    """What the agent's metric says about Placement."""
    port = cloud.settings.ports.agent_metrics
    metrics = host.run(f"curl -sf http://127.0.0.1:{port}/metrics")
    (value,) = [
        line.split()[1]
        for line in metrics.splitlines()
        if line.startswith("numa_ext_placement_synced ")
    ]
    return float(value) == 1.0


@pytest.mark.long
def test_with_placement_down_the_agent_keeps_controlling_and_catches_up(
    cloud: LabCloud, pair: Pair, request: pytest.FixtureRequest
) -> None:
    host = pair.host
    before, _ = pair.domains()
    eventually("the agent has published", lambda: synced(cloud, host), 120, 3)
    thaw = request.getfixturevalue("placement_frozen")
    host.run(f"rmdir /sys/fs/resctrl/{before.group}")
    after = pair.domains()[0]
    assert after.group == before.group
    eventually("the agent notices that Placement is away", lambda: not synced(cloud, host), 240, 3)
    thaw()
    eventually("the agent has caught up", lambda: synced(cloud, host), 180, 3)


def neighbours(cloud: LabCloud, host: LabHost, l3: str) -> set[str]:
    """What Placement knows of who lives in an L3 domain: traits of its provider."""
    name = f"{host.name}:l3_{l3}"
    (provider,) = [uuid for uuid, known in cloud.providers().items() if known == name]
    return {trait for trait in cloud.traits(provider) if trait.startswith("CUSTOM_NUMA_EXT_HAS_")}


def test_deletion_takes_group_monitors_and_neighbourhood_away(cloud: LabCloud, pair: Pair) -> None:
    """The last story of the pair: its LC server is deleted."""
    server, host = pair.lc, pair.host
    domain = host.enforced(server.id)
    group, (l3,) = domain.group, domain.l3
    has_lc = "CUSTOM_NUMA_EXT_HAS_LC"
    eventually("Placement knows it", lambda: has_lc in neighbours(cloud, host, l3), 120, 3)
    cloud.delete([server.id])

    def gone() -> bool:
        facts = host.read_back()
        monitors = [name for group in facts["resctrl"].values() for name in group["monitors"]]
        mine = [name for name in (*facts["resctrl"], *monitors) if server.id[:8] in name]
        return not mine and all(domain["uuid"] != server.id for domain in facts["domains"])

    eventually(f"group {group} is gone", gone)
    facts = host.read_back()
    claimed = [name for name in facts["resctrl"] if name.startswith("numa_ext-lc")]
    full = max(int(mask, 16) for mask in facts["resctrl"][""]["schemata"]["L3"].values())
    if not claimed:
        masks = {int(mask, 16) for mask in facts["resctrl"][""]["schemata"]["L3"].values()}
        assert masks == {full}, "the root group has not got its ways back"
        eventually(
            "Placement has forgotten it", lambda: has_lc not in neighbours(cloud, host, l3), 120, 3
        )
