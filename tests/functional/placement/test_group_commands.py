# SPDX-License-Identifier: Apache-2.0
"""``openstack numa group …`` on the real Placement: who holds what, where servers hang, where a group would go."""

import json
import uuid
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml
from osc_lib.exceptions import CommandError

from nova_numa_ext.cli.fabric_sources import slurm
from nova_numa_ext.cli.group import ListGroup, ShowGroup, ShowGroupTopology, SimulateGroup
from nova_numa_ext.cli.group_repair import RepairGroup
from nova_numa_ext.fabrics import GroupOwner, PlacementFabrics
from nova_numa_ext.orchestrator.cloud.asking import SilentError
from nova_numa_ext.orchestrator.cloud.cabling import Cabling, ServerCabling
from nova_numa_ext.policy.network.groups import GroupRequest
from nova_numa_ext.policy.network.planner import plan
from placement_traits.client import PlacementError
from placement_traits.fabric import FabricKind
from placement_traits.names import UplinkShare
from tests.support.commands import Compute, as_table, run
from tests.support.fabric_in_placement import put_fabric
from tests.support.fabrics import fabric

PLAN = fabric([3, 3, 3, 3])
GROUP, OTHER = (str(uuid.UUID(int=n)) for n in (1, 2))
HOSTS = {"a": "l000-00", "b": "l000-01", "c": "l001-00", "d": "l001-02"}


class NovaOfGroup(Compute):
    """Nova as an administrator sees it: one group, of four servers and one that failed."""

    def __init__(self):
        super().__init__([])

    def request(self, url, _method, **_options):
        if url == f"/os-server-groups/{GROUP}":
            body = {"server_group": {"members": [*HOSTS, "failed"], "project_id": "mine"}}
        elif url == f"/os-server-groups/{OTHER}":
            body = {"server_group": {"members": [], "project_id": "mine"}}
        elif url.startswith("/os-server-groups/"):
            return SimpleNamespace(status_code=404)
        else:
            name = url.rpartition("/")[2]
            host = {"OS-EXT-SRV-ATTR:hypervisor_hostname": HOSTS.get(name)}
            status = "ACTIVE" if name in HOSTS else "ERROR"
            body = {"server": {"status": status, "name": f"rank-{name}", **host}}
        return SimpleNamespace(status_code=200, json=lambda: body)


@pytest.fixture
def cloud(empty_cloud):
    """Two pods of two leafs of three hosts; a quiet group of four on the first pod::

    net:train
    ├─ net:train:p00
    │  ├─ net:train:l000   l000-00 (server a), l000-01 (b), l000-02
    │  └─ net:train:l001   l001-00 (c), l001-01, l001-02 (d)
    └─ net:train:p01 ── l002, l003    nothing held
    GROUP                  quiet: holds hosts of l000 and l001
    """
    empty_cloud.fabrics = PlacementFabrics(empty_cloud.client)

    def write():
        for host in PLAN.hosts:
            empty_cloud.compute(host)
        put_fabric(empty_cloud.client, PLAN)
        hold(empty_cloud, GROUP, 4)

    empty_cloud.once("a quiet group on the first of two pods", write)
    return empty_cloud


def hold(cloud, group, hosts, share=UplinkShare.QUIET):
    (state,) = cloud.fabrics.read()
    leafs = tuple(replace(leaf, free=leaf.size) for leaf in state.leafs.leafs)
    seen = replace(state.leafs, leafs=leafs)
    found = plan(seen, GroupRequest(hosts, share))
    take = cloud.fabrics.share if share is UplinkShare.SHARED else cloud.fabrics.claim
    take(state, GroupOwner(group, "mine", "user"), found)


def call(cloud, command, *words):
    return run(command, cloud, NovaOfGroup(), *words)[1]


def text(cloud, *words):
    return as_table(ShowGroupTopology, cloud, NovaOfGroup(), GROUP, *map(str, words))


def test_groups_are_listed_with_what_they_hold(cloud):
    assert call(cloud, ListGroup) == [
        {
            "Server group": GROUP,
            "Project": "mine",
            "Fabric": "train",
            "Hosts held": 4,
            "Leafs": "l000, l001",
        }
    ]


def test_a_group_that_shares_is_listed_and_holds_no_host(cloud):
    hold(cloud, OTHER, 5, UplinkShare.SHARED)
    assert call(cloud, ListGroup)[1:] == [
        {
            "Server group": OTHER,
            "Project": "mine",
            "Fabric": "train",
            "Hosts held": 0,
            "Leafs": "l002, l003",
        }
    ]
    with pytest.raises(CommandError, match="groups that share use the uplinks of 2 leafs"):
        call(cloud, SimulateGroup, "train", "4", "--share", "quiet")


def test_a_group_is_shown_by_its_leafs_and_its_neighbours(cloud):
    hold(cloud, OTHER, 1)
    rows = call(cloud, ShowGroup, GROUP)
    assert [(row["Leaf"], row["Pod"], row["Servers"], row["Hosts held"]) for row in rows] == [
        ("l000", "p00", 2, 2),
        ("l001", "p00", 2, 2),
    ]
    assert {row["Other groups"] for row in rows} == {"-"}
    with pytest.raises(CommandError, match="has no server on a host of a fabric"):
        call(cloud, ShowGroup, OTHER)
    with pytest.raises(CommandError, match="Nova knows no server group train: give its uuid"):
        call(cloud, ShowGroup, "train")


@pytest.mark.parametrize(
    ("form", "reader"), [("slurm", slurm.read_yaml), ("slurm-conf", slurm.read_conf)]
)
def test_a_topology_is_read_by_slurm_as_it_is(cloud, form, reader):
    read = reader(text(cloud, "--names", "--format", form), "train", FabricKind.ETHERNET, "")
    assert read.hosts == {"rank-a": "l000", "rank-b": "l000", "rank-c": "l001", "rank-d": "l001"}
    assert read.above("l000") == ("p00",)


def test_nodes_of_kubernetes_have_a_label_for_each_level(cloud):
    first, *_ = yaml.safe_load_all(text(cloud, "--names", "--format", "kueue"))
    assert first["metadata"] == {
        "name": "rank-a",
        "labels": {"numa-ext.openstack.org/leaf": "l000", "numa-ext.openstack.org/pod": "p00"},
    }


def test_hashed_names_show_what_is_near_what_and_nothing_else(cloud, tmp_path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    rows = json.loads(text(cloud, "--key-file", key))
    assert [row["server"] for row in rows] == ["rank-a", "rank-b", "rank-c", "rank-d"]
    assert [row["leaf"] == rows[0]["leaf"] for row in rows] == [True, True, False, False]
    assert len({row["pod"] for row in rows}) == 1
    assert not {row["leaf"] for row in rows} & {"l000", "l001"}
    assert json.loads(text(cloud, "--key-file", key)) == rows
    key.write_text("another")
    assert json.loads(text(cloud, "--key-file", key))[0]["leaf"] != rows[0]["leaf"]
    key.write_text("")
    with pytest.raises(CommandError, match="is empty: a key is needed"):
        text(cloud, "--key-file", key)
    with pytest.raises(CommandError, match="cannot be read: No such file"):
        text(cloud, "--key-file", tmp_path / "gone")


def test_the_job_service_reads_where_servers_hang(cloud):
    """By what they hold: users see no hosts, and the service's user no more of nova than they do."""
    server_on = {host: str(uuid.uuid4()) for host in ("l000-00", "l001-02", "elsewhere")}
    cloud.compute("elsewhere")
    for host, server in server_on.items():
        cloud.claim(server, allocations={cloud.uuid(host): {"VCPU": 1}})
    cabling, nowhere = ServerCabling(cloud.connect()), str(uuid.uuid4())
    assert cabling.of([*server_on.values(), nowhere]) == Cabling(
        "train", ("leaf", "pod"), (("l000", "p00"), ("l001", "p00"), (), ())
    )
    assert cabling.of([server_on["elsewhere"], nowhere]) is None


def test_what_placement_refuses_is_for_operators(cloud, monkeypatch):
    """Its words name providers."""
    cabling = ServerCabling(cloud.connect())
    refused = PlacementError("GET /allocations", 403, "", "provider l000 of others")
    monkeypatch.setattr(cabling._client, "get", Mock(side_effect=refused))
    with pytest.raises(SilentError) as raised:
        cabling.of([str(uuid.uuid4())])
    assert raised.value.service == "Placement"


def test_a_simulated_group_gets_its_leafs_or_the_reason(cloud):
    rows = call(cloud, SimulateGroup, "train", "4", "--share", "quiet", "--within", "pod")
    assert [(row["Leaf"], row["Pod"], row["Hosts"], row["Held"]) for row in rows] == [
        ("l002", "p01", 2, 2),
        ("l003", "p01", 2, 2),
    ]
    with pytest.raises(CommandError, match=f"Server groups that hold hosts: {GROUP}"):
        call(cloud, SimulateGroup, "train", "8", "--share", "quiet")
    with pytest.raises(
        CommandError, match="No place, not even on an empty fabric: the group needs 13"
    ):
        call(cloud, SimulateGroup, "train", "13")
    with pytest.raises(CommandError, match="Placement has no fabric other"):
        call(cloud, SimulateGroup, "other", "1")
    assert len(cloud.fabrics.all()) == 1


def test_a_group_is_simulated_by_the_policy_that_the_scheduler_has(cloud):
    """Leafs of three hosts: the emptiest leafs first, or equal shares; seven quiet hosts leave a remainder of one."""
    cloud.fabrics.release(GROUP)

    def hosts(*words):
        return [row["Hosts"] for row in call(cloud, SimulateGroup, "train", *words)]

    assert sorted(hosts("4")) == [1, 3]
    assert hosts("4", "--policy", "balanced") == [2, 2]
    assert sum(hosts("7", "--share", "quiet")) == 7
    with pytest.raises(CommandError, match="no leaf for remainders has 1 free hosts"):
        hosts("7", "--share", "quiet", "--remainders", "0")


def repaired(cloud, *words):
    return call(cloud, RepairGroup, *words)


def test_a_server_outside_of_the_groups_leafs_and_a_failed_one_are_named(cloud, monkeypatch):
    monkeypatch.setitem(HOSTS, "d", "l002-00")
    found = {row["Which"]: row["Finding"] for row in repaired(cloud, GROUP)}
    assert found.keys() == {GROUP, "rank-d", "rank-failed"}
    assert "make one with the same hint" in found["rank-failed"]
    assert (found[GROUP], "outside of what the group holds" in found["rank-d"]) == ("in use", True)
    shown = {row["Leaf"]: row["Finding"] for row in call(cloud, ShowGroup, GROUP)}
    assert shown == {"l000": "-", "l001": "-", "l002": "outside of what the group holds"}
    monkeypatch.setitem(HOSTS, "c", "l000-02")
    shown = {row["Leaf"]: row["Finding"] for row in call(cloud, ShowGroup, GROUP)}
    assert "no server here" in shown["l001"]


def test_a_group_whose_servers_are_gone_gives_back_its_leafs_and_no_other_one_does(cloud):
    hold(cloud, OTHER, 4)
    (row,) = repaired(cloud, OTHER, "--dry-run")
    assert (row["What"], row["Finding"]) == ("claim", "would be released")
    assert {claim.consumer for claim in cloud.fabrics.all()} == {GROUP, OTHER}
    assert repaired(cloud, OTHER)[0]["Finding"] == "released"
    assert {claim.consumer for claim in cloud.fabrics.all()} == {GROUP}
    assert repaired(cloud, OTHER) == []


def test_uplinks_that_a_group_shares_follow_its_servers_where_there_is_room(cloud, monkeypatch):
    cloud.fabrics.release(GROUP)
    hold(cloud, GROUP, 4, UplinkShare.SHARED)

    def leafs():
        return call(cloud, ListGroup)[0]["Leafs"]

    monkeypatch.setitem(HOSTS, "d", "l002-00")
    assert "would follow" in repaired(cloud, GROUP, "--dry-run")[0]["Finding"]
    assert leafs() == "l000, l001"
    assert "follow its servers" in repaired(cloud, GROUP)[0]["Finding"]
    assert leafs() == "l000, l001, l002"

    monkeypatch.setitem(HOSTS, "d", "l001-02")
    repaired(cloud, GROUP)
    hold(cloud, OTHER, 4)
    monkeypatch.setitem(HOSTS, "d", "l002-00")
    found = {row["Which"]: row["Finding"] for row in repaired(cloud, GROUP)}
    assert "another one has them alone" in found["rank-d"]
    assert leafs() == "l000, l001"
