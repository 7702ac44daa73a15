# SPDX-License-Identifier: Apache-2.0
"""Groups on a fabric of 6 leafs with 4 hosts each, by the commands that operators and users type.

Hosts are nova-computes with nova's fake driver, all in one process; all else is the lab's own: nova, Placement,
RabbitMQ, MariaDB, Keystone.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from placement_traits.client import PlacementClient
from tests.integration.cloud import LabCloud, Server
from tests.integration.fake_computes import FakeComputes
from tests.integration.test_rally import rally

PODS, LEAFS_PER_POD, HOSTS_PER_LEAF = 3, 2, 4
LEAFS = [f"l{number}" for number in range(PODS * LEAFS_PER_POD)]
LEAF_OF = {f"{leaf}-{number}": leaf for leaf in LEAFS for number in range(HOSTS_PER_LEAF)}
POD_OF = {leaf: f"p{at // LEAFS_PER_POD}" for at, leaf in enumerate(LEAFS)}
QUIET = {"numa_ext:net_share": "quiet", "numa_ext:net_within": "pod"}
FABRIC = "story"
SLURM = "\n".join(
    [
        *(f"SwitchName={leaf} Nodes={leaf}-[0-{HOSTS_PER_LEAF - 1}]" for leaf in LEAFS),
        *(
            f"SwitchName={pod} Switches={','.join(leaf for leaf in LEAFS if POD_OF[leaf] == pod)}"
            for pod in dict.fromkeys(POD_OF.values())
        ),
        f"SwitchName=top Switches={','.join(dict.fromkeys(POD_OF.values()))}",
    ]
)


class Story:
    """What an operator and a user do on the fabric."""

    def __init__(self, cloud: LabCloud, computes: FakeComputes) -> None:
        self.cloud, self.computes = cloud, computes
        self._groups: list[str] = []

    def numa(self, *words: str) -> list[dict[str, Any]]:
        """Run ``openstack numa WORDS`` and return its rows."""
        done = self.cloud.openstack("numa", *words, "-f", "json")
        return list(json.loads(done.stdout))

    def plan(self, folder: Path) -> None:
        """Have the fabric in Placement, from a file of Slurm's, and nova-scheduler know it."""
        (folder / "topology.conf").write_text(SLURM)
        words = ("numa", "fabric", "import", "--from", "slurm-conf", f"{folder}/topology.conf")
        (folder / "plan.yaml").write_text(self.cloud.openstack(*words, "--name", FABRIC).stdout)
        applied = self.numa("fabric", "apply", f"{folder}/plan.yaml")
        assert {row["Result"] for row in applied} == {"done"}
        self.computes.wait_until_read()

    def group(self) -> str:
        """Make a server group; returns its uuid."""
        words = ("server", "group", "create", "--policy", "anti-affinity", "train")
        self._groups.append(self.cloud.openstack(*words, "-f", "value", "-c", "id").stdout.strip())
        return self._groups[-1]

    def made(self, flavor: str, group: str, count: int) -> list[Server]:
        """Make servers of a group by one request, and wait for them; returns them by rank."""
        many = ("--min", f"{count}", "--max", f"{count}") if count > 1 else ()
        first = self.cloud.create(flavor, *many, "--hint", f"group={group}")
        name = first.name
        rows = [
            (each.id, each.name)
            for each in self.cloud.api.compute.servers(details=False, name=f"^{name}")
        ]
        assert len(rows) == count
        self.cloud.adopt(server for server, _ in rows)
        rows.sort(key=lambda row: int(row[1].rpartition("-")[2]) if count > 1 else 0)
        return [self.cloud.settled(Server(server, its, flavor)) for server, its in rows]

    def end(self) -> None:
        """Take groups and fabric away; the servers are gone."""
        for group in self._groups:
            self.cloud.api.compute.delete_server_group(group)
        forget_fabric(PlacementClient(self.cloud.api.placement))


def forget_fabric(client: PlacementClient) -> None:
    """Delete the tree of the fabric and what groups hold there, children first."""
    root = client.provider_named(f"net:{FABRIC}")
    if root is None:
        return
    tree = client.get(f"/resource_providers?in_tree={root['uuid']}")["resource_providers"]
    for each in tree:
        held = client.get(f"/resource_providers/{each['uuid']}/allocations")["allocations"]
        for consumer in held:
            client.delete(f"/allocations/{consumer}")
    while tree:
        parents = {each["parent_provider_uuid"] for each in tree}
        for each in tree:
            if each["uuid"] not in parents:
                client.delete(f"/resource_providers/{each['uuid']}")
        tree = [each for each in tree if each["uuid"] in parents]


@pytest.fixture
def story(cloud: LabCloud) -> Iterator[Story]:
    """Hosts and no fabric yet::

    controller      as the lab has it
    └─ one process  24 nova-computes l0-0 … l5-3, VCPU 10, MEMORY_MB 8192, as agents with nothing to control publish
    """
    computes = FakeComputes(cloud, [*LEAF_OF])
    made = Story(cloud, computes)
    try:
        forget_fabric(PlacementClient(cloud.api.placement))
        computes.start()
        yield made
    finally:
        computes.end()
        made.end()


def leafs_of(servers: Sequence[Server]) -> list[str]:
    """The leafs of some servers, in their order; each has a host of its own."""
    assert [each.status for each in servers] == ["ACTIVE"] * len(servers)
    assert len({each.host for each in servers}) == len(servers)
    return [LEAF_OF[each.host] for each in servers]


@pytest.mark.long
def test_groups_of_two_leafs_are_alone_in_a_pod_and_a_server_that_is_replaced_comes_back(
    story: Story, tmp_path: Path
) -> None:
    """Design 8.4, check 6, with a real nova: made, shown, refused, replaced, swept."""
    cloud = story.cloud
    story.plan(tmp_path)
    flavor = cloud.flavor(QUIET)

    groups = [story.group() for _ in range(4)]
    size = 2 * HOSTS_PER_LEAF
    first, second = (story.made(flavor, group, size) for group in groups[:2])
    used = []
    for servers in (first, second):
        at = leafs_of(servers)
        assert at == [at[0]] * HOSTS_PER_LEAF + [at[-1]] * HOSTS_PER_LEAF, "in the order of ranks"
        assert POD_OF[at[0]] == POD_OF[at[-1]] and at[0] != at[-1]
        used += [at[0], at[-1]]
    small = leafs_of(story.made(flavor, groups[2], HOSTS_PER_LEAF))
    assert small == [LEAFS[-1]] * HOSTS_PER_LEAF
    assert len({*used, *small}) == 5, "no two share a leaf"

    refused = story.made(flavor, groups[3], size)
    assert {each.status for each in refused} == {"ERROR"}, "all or nothing"
    assert {row["Server group"] for row in story.numa("group", "list")} == {*groups[:3]}

    shown = story.numa("group", "show", groups[0])
    seen = [(row["Leaf"], row["Servers"], row["Hosts held"], row["Finding"]) for row in shown]
    assert seen == [(leaf, HOSTS_PER_LEAF, HOSTS_PER_LEAF, "-") for leaf in used[:2]]
    topology = cloud.openstack(
        "numa", "group", "topology", groups[0], "--names", "--format", "slurm-conf"
    ).stdout
    assert all(f"SwitchName={leaf} " in topology for leaf in used[:2])
    assert all(each.name in topology for each in first)
    svg = tmp_path / "fabric.svg"
    rows = {
        row["Node"].strip(): row for row in story.numa("fabric", "show", FABRIC, "--svg", f"{svg}")
    }
    assert {rows[leaf]["Use"] for leaf in used} == {"large"}
    assert rows[small[0]]["Use"] == "small"
    assert svg.read_text().count("uplinks: alone") == 4

    lost = first[5]
    cloud.delete([lost.id])
    (again,) = story.made(flavor, groups[0], 1)
    assert again.status == "ACTIVE"
    assert again.host == lost.host, "its block has no other host free"
    repaired = story.numa("group", "repair", groups[0], "--dry-run")
    assert [(row["What"], row["Finding"]) for row in repaired] == [("claim", "in use")]

    cloud.delete([each.id for each in (*first, again, *refused) if each is not lost])
    swept = {row["Server group"]: row["Result"] for row in story.numa("fabric", "sweep")}
    assert swept == {groups[0]: "released", **dict.fromkeys(groups[1:3], "in use")}
    late = leafs_of(story.made(flavor, groups[3], size))
    assert {*late} == {*used[:2]}


@pytest.mark.long
def test_rally_reports_that_quiet_groups_keep_apart_and_is_red_where_they_fit_in_a_leaf(
    story: Story, tmp_path: Path
) -> None:
    """Two groups of two leafs each; then one that uses no uplinks, of which a task can say nothing."""
    story.plan(tmp_path)
    run = rally(story.cloud, "groups", groups=[2 * HOSTS_PER_LEAF] * 2)
    assert run.status == 0, run.output
    assert run.failed() == set()
    story.numa("fabric", "sweep")
    small = rally(story.cloud, "groups", groups=[HOSTS_PER_LEAF])
    assert small.failed() == {"numa_ext_sharing"}, small.output
    assert small.status == 1
