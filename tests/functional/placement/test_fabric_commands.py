# SPDX-License-Identifier: Apache-2.0
"""``openstack numa fabric …`` on the real Placement, from another source's file to a drained leaf."""

import json
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
from osc_lib.exceptions import CommandError

from nova_numa_ext.cli.fabric import (
    ApplyFabric,
    DrainFabric,
    ImportFabric,
    RemoveFabric,
    ShowFabric,
    SweepFabric,
    UndrainFabric,
    VerifyFabric,
)
from nova_numa_ext.cli.fabric_figures import CalculateFabric, ShowFabricCapacity
from nova_numa_ext.cli.fabric_sources import native
from nova_numa_ext.fabrics import GroupOwner, PlacementFabrics
from nova_numa_ext.policy.network.groups import GroupRequest
from nova_numa_ext.policy.network.planner import plan
from placement_traits import names
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import Claim
from placement_traits.fabric_tree import FabricWriter
from placement_traits.names import GROUP_CONSUMER, UplinkShare
from tests.support.commands import Compute, as_table, run
from tests.support.fabrics import fabric

SLURM = """SwitchName=l1 Nodes=h[1-4]
SwitchName=l2 Nodes=h[5-8]
SwitchName=top Switches=l[1-2]
"""


@pytest.fixture
def cloud(empty_cloud, tmp_path):
    """Two hosts, and a plan of two leafs that was imported from Slurm's file; Placement has no fabric yet::

    plan train              Placement
    └─ top                  h1    VCPU 8, MEMORY_MB 8192
       ├─ l1   h1 … h4      h5    VCPU 8, MEMORY_MB 8192
       └─ l2   h5 … h8
    """
    for host in ("h1", "h5"):
        empty_cloud.compute(host)
    (tmp_path / "topology.conf").write_text(SLURM)
    plan = as_table(
        ImportFabric, empty_cloud, Compute([]),
        "--from", "slurm-conf", str(tmp_path / "topology.conf"), "--name", "train",
    )  # fmt: skip
    empty_cloud.plan = tmp_path / "plan.yaml"
    empty_cloud.plan.write_text(plan)
    return empty_cloud


def call(cloud, command, *words):
    return run(command, cloud, Compute([]), *map(str, words))[1]


def host_traits(cloud, host):
    root = cloud.client.provider_named(host)["uuid"]
    return set(cloud.client.get(f"/resource_providers/{root}/traits")["traits"])


def test_from_another_schedulers_file_to_a_drained_leaf(cloud, tmp_path):
    would = call(cloud, ApplyFabric, cloud.plan, "--dry-run")
    assert {row["Result"] for row in would} == {"would be done", "problem"}
    done = call(cloud, ApplyFabric, cloud.plan)
    assert [row["What"] for row in done if row["Result"] == "done"][:4] == [
        "net:train created",
        "net:train:l1 created",
        "net:train:l2 created",
        "h1 has CUSTOM_NUMA_EXT_LEAF_TRAIN_L1",
    ]
    assert sum(row["Result"] == "problem" for row in done) == 6
    shown = call(cloud, ShowFabric, "train", "--svg", tmp_path / "train.svg")
    assert [(row["Node"], row["Level"], row["Layout"], row["Hosts"]) for row in shown] == [
        ("train", "fabric", "-", "-"),
        ("  l1", "leaf", "partitioned", "4"),
        ("  l2", "leaf", "partitioned", "4"),
    ]
    assert [row["Use"] for row in shown] == ["2 free; uplinks of 0 of 2 leafs idle", "free", "free"]
    assert ">l2<" in (tmp_path / "train.svg").read_text()
    assert call(cloud, DrainFabric, "train", "l1") == [{"Leaf": "l1", "Result": "drained"}]
    assert call(cloud, DrainFabric, "train", "l1") == [{"Leaf": "l1", "Result": "unchanged"}]
    hold(cloud, str(uuid.uuid4()), "net:train:l2")
    call(cloud, DrainFabric, "train", "l2")
    shown = call(cloud, ShowFabric, "train", "--svg", tmp_path / "train.svg")
    assert [row["Use"] for row in shown] == [
        "1 drained, 1 large; uplinks of 0 of 2 leafs idle",
        "drained",
        "large, drained",
    ]
    assert (tmp_path / "train.svg").read_text().count("fill='#c9ccd1'") == 3, "two, and the key"
    assert call(cloud, UndrainFabric, "train", "l1") == [{"Leaf": "l1", "Result": "undrained"}]


def test_a_fabric_is_removed_once(cloud):
    before = cloud.everything()
    call(cloud, ApplyFabric, cloud.plan)
    would = [row["What"] for row in call(cloud, RemoveFabric, "train", "--dry-run")]
    assert [row["What"] for row in call(cloud, RemoveFabric, "train")] == would
    assert "h1 has CUSTOM_NUMA_EXT_LEAF_TRAIN_L1 no longer" in would
    assert cloud.everything() == before
    with pytest.raises(CommandError, match="Placement has no fabric train"):
        call(cloud, RemoveFabric, "train")


def test_a_host_on_another_leaf_is_marked_until_it_is_where_it_should_be(cloud, tmp_path):
    call(cloud, ApplyFabric, cloud.plan)
    seen = tmp_path / "seen.conf"
    seen.write_text("SwitchName=l1 Nodes=h[2-5]\nSwitchName=l2 Nodes=h[6-8]\n")
    words = (cloud.plan, "--from", "slurm-conf", seen, "--mark")
    assert call(cloud, VerifyFabric, *words) == [
        {"Host": "h1", "Planned": "l1", "Seen": "not seen"},
        {"Host": "h5", "Planned": "l2", "Seen": "l1"},
    ]
    assert names.MISCABLED in host_traits(cloud, "h5")
    assert names.MISCABLED not in host_traits(cloud, "h1"), "what is not seen is not wrong"
    seen.write_text(SLURM)
    assert call(cloud, VerifyFabric, *words) == []
    assert names.MISCABLED not in host_traits(cloud, "h5")


def test_a_host_that_has_heard_another_leaf_is_marked(cloud, tmp_path):
    """By lldpd: one cable swapped, one host that hears a switch of another network alone, one that hears nothing."""

    def said(*systems):
        entries = [
            {f"eth{n}": {"chassis": {each: {}}, "port": {"id": {"value": "7"}}}}
            for n, each in enumerate(systems)
        ]
        return {"lldp": {"interface": entries}}

    call(cloud, ApplyFabric, cloud.plan)
    plan = {f"h{n}": "l1" if n < 5 else "l2" for n in range(1, 9)}
    heard = {host: said("mgmt", f"{leaf}.example.org") for host, leaf in plan.items()}
    heard |= {"h5": said("mgmt", "l1"), "h6": said("mgmt"), "h7": said()}
    seen = tmp_path / "heard.json"
    seen.write_text(json.dumps(heard))
    words = (cloud.plan, "--from", "lldp", seen, "--mark")
    assert call(cloud, VerifyFabric, *words) == [
        {"Host": "h5", "Planned": "l2", "Seen": "l1 port 7"},
        {"Host": "h6", "Planned": "l2", "Seen": "mgmt port 7"},
        {"Host": "h7", "Planned": "l2", "Seen": "not seen"},
    ]
    assert names.MISCABLED in host_traits(cloud, "h5")
    assert names.MISCABLED not in host_traits(cloud, "h1")
    seen.write_text(json.dumps(heard | {"h5": said("l2"), "h6": said("l2")}))
    assert [row["Host"] for row in call(cloud, VerifyFabric, *words)] == ["h7"]
    assert names.MISCABLED not in host_traits(cloud, "h5")


def test_leafs_that_were_seen_by_other_names_are_known_by_their_hosts(cloud, tmp_path):
    """A switch has the name that it was given, or none but its GUID."""
    seen = tmp_path / "seen.conf"
    seen.write_text("SwitchName=sw-a Nodes=h[6-8]\nSwitchName=sw-b Nodes=h[1-5]\n")
    assert call(cloud, VerifyFabric, cloud.plan, "--from", "slurm-conf", seen) == [
        {"Host": "h5", "Planned": "l2", "Seen": "sw-b"}
    ]


def test_aggregates_of_nova_are_a_source(cloud):
    compute = Compute([])
    compute.aggregates = lambda: [
        SimpleNamespace(name="r1", hosts=["h1"], metadata={"numa_ext:leaf": "l1"}),
        SimpleNamespace(name="Neutron segment id 7", hosts=["h5"], metadata={}),
    ]
    plan = as_table(ImportFabric, cloud, compute, "--from", "aggregates", "--name", "racks")
    assert native.read(plan, "").hosts == {"h1": "l1"}
    plan = as_table(ImportFabric, cloud, compute, "--from", "segments")
    assert native.read(plan, "").hosts == {"h5": "7"}


class NovaWithGroups(Compute):
    """Nova as an administrator sees it: members of server groups by group, servers by uuid."""

    def __init__(self, members, statuses, on_hosts=()):
        super().__init__([])
        self._on_hosts = on_hosts  # (project, host)
        self._of = {f"/os-server-groups/{group}": {"server_group": {"members": uuids}}
                    for group, uuids in members.items()}  # fmt: skip
        self._of |= {f"/servers/{uuid}": {"server": {"status": status}}
                     for uuid, status in statuses.items()}  # fmt: skip

    def request(self, url, method, **_options):
        assert method == "GET"
        body = self._of.get(url)
        if url.startswith("/servers/detail"):
            last = "marker" in url
            body = {"servers": [] if last else [_on(*each) for each in self._on_hosts]}
        if url.startswith("/os-hypervisors"):
            rows = [{"id": host, "hypervisor_hostname": host} for host in ("h1", "h5")]
            body = {"hypervisors": [] if "marker" in url else rows}
        return SimpleNamespace(status_code=404 if body is None else 200, json=lambda: body, text="")


def _on(project, host):
    """A server as nova lists it."""
    sizes = dict.fromkeys(("vcpus", "ram", "disk", "ephemeral", "swap"), 1)
    place = {"OS-EXT-SRV-ATTR:hypervisor_hostname": host, "OS-EXT-STS:task_state": None}
    whose = {"tenant_id": project, "user_id": "user"}
    return {
        "id": "s",
        "name": "s",
        "status": "ACTIVE",
        "flavor": sizes,
        "image": "",
        **place,
        **whose,
    }


def hold(cloud, group, leaf, project=None):
    """Let a group hold the hosts of a leaf."""
    provider = cloud.client.provider_named(leaf)["uuid"]
    there = cloud.client.get(f"/resource_providers/{provider}/inventories")["inventories"]
    (whole,) = there.keys() - {names.LEAF_UPLINK}
    owner = (project or str(uuid.uuid4()), str(uuid.uuid4()))
    ClaimStore(cloud.client).write(Claim(group, GROUP_CONSUMER, *owner, {provider: {whole: 4}}))


def test_a_deleted_group_is_swept_when_no_server_of_its_project_is_on_its_leafs(cloud):
    call(cloud, ApplyFabric, cloud.plan)
    group, project = str(uuid.uuid4()), str(uuid.uuid4())
    hold(cloud, group, "net:train:l1", project)
    swept = []
    for on_hosts in ([(project, "h1")], [("other", "h1"), (project, "h5")]):
        (row,) = run(SweepFabric, cloud, NovaWithGroups({}, {}, on_hosts))[1]
        swept.append(row["Result"])
    assert swept[0].startswith("left: nova does not know the group")
    assert swept[1] == "released"


def test_a_group_without_living_servers_is_swept_from_its_leafs(cloud):
    call(cloud, ApplyFabric, cloud.plan)
    dead, alive = str(uuid.uuid4()), str(uuid.uuid4())
    hold(cloud, dead, "net:train:l1")
    hold(cloud, alive, "net:train:l2")
    nova = NovaWithGroups({dead: ["a"], alive: ["b"]}, {"a": "ERROR", "b": "BUILD"})
    for words, result in ((["--dry-run"], "would be released"), ([], "released"), ([], None)):
        rows = {
            row["Server group"]: row["Result"] for row in run(SweepFabric, cloud, nova, *words)[1]
        }
        assert rows.get(dead) == result
        assert rows[alive] == "in use"


def claim(fabrics, group, hosts, share):
    """Let a group have its place, where every host is free."""
    (state,) = fabrics.read()
    whole = tuple(replace(leaf, free=leaf.size) for leaf in state.leafs.leafs)
    found = plan(replace(state.leafs, leafs=whole), GroupRequest(hosts, share))
    fabrics.claim(state, GroupOwner(group, "project", "user"), found)


def share(fabrics, hosts):
    """Let a group of no quiet neighbourhood use uplinks, where every host that is not held is free."""
    (state,) = fabrics.read()
    left = tuple(replace(leaf, free=leaf.size - leaf.held_hosts) for leaf in state.leafs.leafs)
    found = plan(replace(state.leafs, leafs=left), GroupRequest(hosts, UplinkShare.SHARED))
    fabrics.share(state, GroupOwner(str(uuid.uuid4()), "project", "user"), found)


def test_what_leafs_are_for_and_what_is_left_is_shown(empty_cloud):
    """A block is 4 of a leaf's 6 hosts; a large group is on two leafs, a small one on one whose uplinks are idle."""
    FabricWriter(empty_cloud.client).apply(fabric([6] * 6))
    fabrics = PlacementFabrics(empty_cloud.client)
    before = call(empty_cloud, ShowFabricCapacity, "train", "8", "12", "40", "--share", "quiet")
    assert before == [
        {"Hosts": 8, "Groups": 3, "Out of reach": "33 %", "Others at most": 0},
        {"Hosts": 12, "Groups": 2, "Out of reach": "33 %", "Others at most": 0},
        {"Hosts": 40, "Groups": 0, "Out of reach": "100 %", "Others at most": "-"},
    ]
    claim(fabrics, str(uuid.uuid4()), 8, UplinkShare.QUIET)
    claim(fabrics, str(uuid.uuid4()), 2, UplinkShare.QUIET)
    rows = {row["Node"].strip(): row for row in call(empty_cloud, ShowFabric, "train")}
    assert {node: row["Use"] for node, row in rows.items()} == {
        "train": "3 free, 2 large, 1 small; uplinks of 1 of 6 leafs idle",
        "p00": "-", "l000": "large", "l001": "large",
        "p01": "-", "l002": "free", "l003": "free",
        "p02": "-", "l004": "free", "l005": "small",
    }  # fmt: skip
    seen = {node: (row["Held"], row["Uplinks"]) for node, row in rows.items()}
    assert {node: pair for node, pair in seen.items() if pair != ("-", "-")} == {
        "p00": ("-", "1 quiet"),
        "l000": ("LEAF_BLOCK 4", "alone"), "l001": ("LEAF_BLOCK 4", "alone"),
        "l005": ("LEAF_HOST 2", "-"),
    }  # fmt: skip
    (quiet,) = call(empty_cloud, ShowFabricCapacity, "train", "8", "--share", "quiet")
    assert quiet["Groups"] == 1
    (shared,) = call(empty_cloud, ShowFabricCapacity, "train", "8", "--policy", "first_available")
    assert (shared["Groups"], shared["Others at most"]) == (2, 4)
    assert call(empty_cloud, ShowFabricCapacity, "train", "4")[0]["Others at most"] == 0
    share(fabrics, 7)
    rows = {row["Node"].strip(): row for row in call(empty_cloud, ShowFabric, "train")}
    assert [node for node, row in rows.items() if row["Uplinks"] == "1 share"] == ["l004", "l005"]
    with pytest.raises(CommandError, match="Placement has no fabric other"):
        call(empty_cloud, ShowFabricCapacity, "other", "4")


def test_a_fat_tree_is_calculated(cloud):
    """XGFT(3; 16, 16, 8; 1, 4, 4) of table 3.2, and what a group of 256 on halves of leafs sees and shares."""
    rows = call(
        cloud, CalculateFabric, "16,16,8", "1,4,4",
        "--link-mbps", "10000", "--hosts", "256", "--per-leaf", "8",
    )  # fmt: skip
    assert [tuple(row.values()) for row in rows] == [
        (0, 2048, "-", "-", "-", "-", "-"),
        (1, 128, 2048, "20480000", "4", "-", 0),
        (2, 32, 512, "5120000", "4", "1280000", 256),
        (3, 16, 128, "1280000", "-", "320000", 256),
    ]
    assert list(call(cloud, CalculateFabric, "4,2", "1,2")[1]) == [
        "Level", "Nodes", "Links", "Mbit/s", "Down per up",
    ]  # fmt: skip
    for words, sentence in (
        (("4,2", "1,2", "--hosts", "4"), "Give --hosts and --per-leaf, or neither"),
        (("4,2", "1,2", "--hosts", "4", "--per-leaf", "3"), "--hosts 4 is no multiple"),
        (("4,2", "1,2", "--hosts", "16", "--per-leaf", "4"), "do not fit in the tree"),
    ):
        with pytest.raises(CommandError, match=sentence):
            call(cloud, CalculateFabric, *words)


def test_wrong_use_gets_a_sentence(cloud, tmp_path):
    with pytest.raises(CommandError, match="Give a file; only aggregates and segments"):
        as_table(ImportFabric, cloud, Compute([]), "--from", "slurm-conf")
    with pytest.raises(CommandError, match="gone cannot be read: No such file"):
        call(cloud, ApplyFabric, tmp_path / "gone")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match="binary is no text in UTF-8"):
        call(cloud, ApplyFabric, tmp_path / "binary")
    with pytest.raises(CommandError, match="Placement has no fabric other"):
        call(cloud, ShowFabric, "other")
    half = {"name": "net:half", "uuid": str(uuid.uuid4())}
    cloud.client.post("/resource_providers", half)  # where apply was killed
    with pytest.raises(CommandError, match="has a part of fabric half only: apply its plan again"):
        call(cloud, ShowFabric, "half")
    call(cloud, ApplyFabric, cloud.plan)
    with pytest.raises(CommandError, match="cannot be written: No such file"):
        call(cloud, ShowFabric, "train", "--svg", tmp_path / "no" / "file")
