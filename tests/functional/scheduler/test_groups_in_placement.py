# SPDX-License-Identifier: Apache-2.0
"""Server groups in nova's own scheduler over a real Placement: fabric, claims and servers are all there."""

import os
import signal
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
from nova import exception, objects
from nova.conf import CONF
from nova.scheduler import utils as scheduler_utils

from nova_numa_ext.cli import explain_command
from nova_numa_ext.conf import NetworkOptions, SchedulerOptions
from nova_numa_ext.fabrics import GroupOwner, PlacementFabrics
from nova_numa_ext.heal.group_claims import GroupMember, SweepResult, sweep
from nova_numa_ext.policy.modes import Mode
from nova_numa_ext.policy.network.groups import LeafPlan
from nova_numa_ext.policy.network.planner import plan
from nova_numa_ext.policy.network.singles import Singles
from nova_numa_ext.scheduler import process, session
from nova_numa_ext.scheduler.group_plan import GroupPlanner
from nova_numa_ext.scheduler.single_leafs import SingleLeafs
from placement_traits import names
from placement_traits.journal import Journal
from tests.functional.scheduler.conftest import SchedulerCloud
from tests.support.fabric_in_placement import put_fabric
from tests.support.fabrics import fabric
from tests.support.group_hosts import leaf_trait, server_group
from tests.support.placement_over_http import PlacementOverHttp

QUIET = {"numa_ext:net_share": "quiet", "numa_ext:net_within": "pod"}


class Trained:
    """A fabric in the scheduler's Placement: leafs of some hosts, two a pod, hosts named ``l000-00`` …

    :param made: databases and compute nodes that an earlier test has made, by the first two arguments
    :param leafs_per_pod: in the order of leafs
    """

    def __init__(self, cloud, leafs, hosts_per_leaf, made, leafs_per_pod=2):
        self.cloud = cloud
        if (leafs, hosts_per_leaf) not in made:
            self.make(leafs, hosts_per_leaf, leafs_per_pod)
            made[leafs, hosts_per_leaf] = (cloud.service.image(), [*cloud.hosts.computes])
        image, nodes = made[leafs, hosts_per_leaf]
        cloud.hosts.computes = [*nodes]
        cloud.service.restore(image)
        self.fabrics = PlacementFabrics(cloud.placement)
        self.configure()

    def make(self, leafs, hosts_per_leaf, leafs_per_pod):
        """Put fabric and hosts into Placement."""
        cloud = self.cloud
        plan = fabric([hosts_per_leaf] * leafs, leafs_per_pod=leafs_per_pod)
        put_fabric(cloud.placement, plan)
        cloud.placement.put(f"/traits/{names.HOST}")
        cloud.placement.put(f"/traits/{names.OWNER}")
        for leaf in range(leafs):
            for number in range(hosts_per_leaf):
                name = f"l{leaf:03}-{number:02}"
                node = cloud.host(name, agent=False)
                self.traits(node.uuid, 1, names.HOST, leaf_trait(f"l{leaf:03}"))
                child = {"name": f"{name}:rdt", "parent_provider_uuid": node.uuid}
                made = cloud.placement.post("/resource_providers", child)
                self.traits(made["uuid"], 0, names.OWNER)

    def traits(self, provider, generation, *traits):
        body = {"resource_provider_generation": generation, "traits": [*traits]}
        self.cloud.placement.put(f"/resource_providers/{provider}/traits", body)

    def configure(self, **options):
        self.cloud.view.refresh()
        chosen = SchedulerOptions(**options)
        engine = session.Engine(
            CONF,
            chosen,
            self.cloud.view,
            Journal(self.cloud.journal_path, 2**22, 1),
            beyond=session.BeyondHosts(
                GroupPlanner(lambda: self.fabrics, plan, chosen.net.plan_options),
                singles=SingleLeafs(lambda: self.fabrics, interval_s=0.0),
            ),
        )
        self.engine = engine
        process.use(engine)

    def boot(self, group, count, keys=QUIET, **fields):
        """Names of the hosts of a group's new servers, in the order of their ranks.

        Nova knows a server's group by a hint, and for one that has it asks Placement for all hosts, else for 1,000.
        """
        hints = {"group": [group.uuid]} if group is not None else {}
        spec = {"num_instances": count, "instance_group": group, "hints": hints} | fields
        found = self.cloud.boot(keys, count=count, memory_mb=64, **spec)
        assert not self.engine.faults
        return [host for host, _ in found]

    def holds(self, group):
        (state,) = self.fabrics.read()
        return state.held(self.fabrics.held(GroupOwner(group.uuid, "project", "user")))


@pytest.fixture(scope="module")
def made():
    """Worlds of this module, made once."""
    return {}


@pytest.fixture
def large(cloud, made):
    """Two pods of two leafs of 18 hosts, in the scheduler's Placement::

    net:train
    ├─ net:train:p00 ── l000, l001    each LEAF_BLOCK 16, LEAF_REST 2
    └─ net:train:p01 ── l002, l003    the same
    l000-00 … l003-17                 72 hosts with the trait of their leaf, each with its :rdt
    """
    return Trained(cloud, 4, 18, made)


@pytest.fixture
def small(cloud, made):
    """The same with leafs of 3 hosts::

    net:train
    ├─ net:train:p00 ── l000, l001    each LEAF_BLOCK 2, LEAF_REST 1
    └─ net:train:p01 ── l002, l003    the same
    l000-00 … l003-02                 12 hosts with the trait of their leaf, each with its :rdt
    """
    return Trained(cloud, 4, 3, made)


def free(small):
    """Delete the servers of the last request."""
    for server in small.cloud.last_servers:
        small.cloud.placement.delete(f"/allocations/{server}")


def elsewhere(*leafs):
    """A plan that shares the uplinks of some leafs."""
    return LeafPlan((), uplinks=dict.fromkeys(leafs, 1000))


def empty_again(state):
    """A fabric as it was before any group came."""
    leafs = [replace(leaf, held={}, residents=()) for leaf in state.leafs.leafs]
    return replace(state, leafs=replace(state.leafs, leafs=tuple(leafs), uplinks={}))


def leafs_of(hosts):
    return [host.partition("-")[0] for host in hosts]


@pytest.mark.long  # the fixture writes 72 hosts
def test_32_quiet_servers_are_on_two_leafs_of_one_pod_in_the_order_of_ranks(large):
    """Issue 17: two leafs of 16, rank after rank; a second group is alone on its own two."""
    first, second = server_group(1), server_group(2)
    hosts = large.boot(first, 32)
    assert leafs_of(hosts) == ["l000"] * 16 + ["l001"] * 16
    assert len({*hosts}) == 32
    block = {names.LEAF_BLOCK: 16}
    assert large.holds(first) == {"l000": block, "l001": block, "p00": {names.POD_UPLINK: 1}}
    assert set(leafs_of(large.boot(second, 32))) == {"l002", "l003"}
    with pytest.raises(exception.NoValidHost):
        large.boot(server_group(3), 32)
    assert large.holds(server_group(3)) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("leafs", "hosts_per_leaf", "leafs_per_pod", "whole"),
    [(6, 4, 2, 4), (24, 8, 6, 8), (172, 18, 18, 16)],
    ids=["6x4", "24x8", "172x18"],
)
def test_groups_on_fabrics_of_these_sizes_never_share(  # noqa: PLR0917 - what a size is
    cloud, made, leafs, hosts_per_leaf, leafs_per_pod, whole
):
    """Groups of a part of a leaf, of one leaf and of two, until none of two fits into a pod any more.

    :param whole: hosts of a block
    """
    large = Trained(cloud, leafs, hosts_per_leaf, made, leafs_per_pod)
    pairs = (
        (leafs - 1) // leafs_per_pod * (leafs_per_pod // 2)
    )  # in the pods before that of the small group
    small = leafs_of(large.boot(server_group(1), whole // 2))
    assert set(small) == {f"l{leafs - 1:03}"}
    one = leafs_of(large.boot(server_group(8), whole))
    assert one == [f"l{leafs - 2:03}"] * whole
    taken = {*small, *one}
    for number in range(min(pairs, 3)):
        hosts = large.boot(server_group(2 + number), 2 * whole)
        assert len({*hosts}) == 2 * whole
        first, *_, last = leafs_of(hosts)
        assert leafs_of(hosts) == [first] * whole + [last] * whole
        assert int(first[1:]) // leafs_per_pod == int(last[1:]) // leafs_per_pod
        assert taken.isdisjoint({first, last})
        taken |= {first, last}
    if pairs < 3:
        with pytest.raises(exception.NoValidHost):
            large.boot(server_group(9), 2 * whole)
    assert len(large.fabrics.all()) == 2 + min(pairs, 3)


@pytest.mark.long
def test_of_two_groups_of_32_that_were_planned_in_the_same_moment_each_is_alone(large):
    """Another scheduler claims what was planned for the first group right before it does."""
    claim, first, other = large.fabrics.claim, server_group(1), server_group(2)

    def late(state, owner, found):
        large.fabrics.claim = claim
        claim(state, replace(owner, group=other.uuid), found)
        claim(state, owner, found)

    large.fabrics.claim = late
    hosts = large.boot(first, 32)
    assert leafs_of(hosts) == ["l002"] * 16 + ["l003"] * 16
    assert set(large.holds(first)) == {"l002", "l003", "p01"}
    assert leafs_of(large.boot(other, 32)) == ["l000"] * 16 + ["l001"] * 16
    assert set(large.holds(other)) == {"l000", "l001", "p00"}


@pytest.mark.long
@pytest.mark.parametrize("lost", range(6))
def test_32_servers_whose_hosts_others_fill_use_their_spares_and_of_a_failure_nothing_stays(
    large, monkeypatch, lost
):
    """Design 8.4, check 5: a host is lost as it is in a cloud, to a server that another scheduler claims first."""
    planned = large.boot(server_group(1), 32)
    free(large)
    large.fabrics.release(server_group(1).uuid)
    gone = {large.cloud.provider(planned[at]) for at in (3, 20, 8, 31, 0)[:lost]}
    waiting, tried, claim = {*gone}, [], scheduler_utils.claim_resources

    def others_first(context, client, spec, server, allocation, **more):
        (root,) = allocation["allocations"]
        tried.append(root)
        if root in waiting:
            waiting.remove(root)
            fill(large, root)
        return claim(context, client, spec, server, allocation, **more)

    monkeypatch.setattr(scheduler_utils, "claim_resources", others_first)
    large.configure()
    group = server_group(2)
    if lost <= 4:
        hosts = large.boot(group, 32)
        assert hosts[: 32 - lost] == [
            host for host in planned if large.cloud.provider(host) not in gone
        ]
        assert len({*hosts}) == 32
        assert {*leafs_of(hosts)} == {"l000", "l001"}
        assert {*large.holds(group)} == {"l000", "l001", "p00"}
    else:
        with pytest.raises(exception.NoValidHost):
            large.boot(group, 32)
        assert large.fabrics.all() == []
        for server in large.cloud.last_servers:
            assert large.cloud.placement.get(f"/allocations/{server}")["allocations"] == {}
    assert [tried.count(root) for root in gone] == [1] * lost


def fill(large, root):
    """Let another server take all memory of a host."""
    body = {
        "allocations": {root: {"resources": {"MEMORY_MB": 8192}}},
        "project_id": "another",
        "user_id": "user",
        "consumer_type": "INSTANCE",
        "consumer_generation": None,
    }
    large.cloud.placement.put(f"/allocations/{uuid.uuid4()}", body)


def test_alternates_are_in_the_groups_own_leafs(small):
    small.boot(server_group(1), 4)
    for selections in small.cloud.last_selections:
        assert {each.service_host[:4] for each in selections} <= {"l000", "l001"}
        assert len(selections) == 3


def test_single_servers_stay_off_a_groups_uplinks_and_go_where_others_are(small):
    """A host of the group's leafs is as free as any other one, and it is left alone."""
    assert set(leafs_of(small.boot(server_group(1), 4))) == {"l000", "l001"}
    keys = {"numa_ext:net_class": "low"}
    singles = [host for _ in range(3) for host in small.boot(None, 1, keys=keys)]
    assert leafs_of(singles) == ["l003"] * 3
    small.configure(net_block_multiplier=0.0)
    free(small)
    assert set(leafs_of(small.boot(None, 1, keys=keys))) <= {"l000", "l001"}


def test_single_servers_are_refused_on_a_groups_own_uplinks_where_the_operator_says_so(small):
    """Both pods have a quiet group; a single server that exists may still move there."""
    keys = {"numa_ext:net_class": "low"}
    small.boot(server_group(1), 4)
    small.boot(server_group(2), 4)
    (host,) = small.boot(None, 1, keys=keys)
    small.configure(net=NetworkOptions(singles=Singles.REFUSE))
    with pytest.raises(exception.NoValidHost):
        small.boot(None, 1, keys=keys)
    refused = small.cloud.entries("filter")[-1]["details"][0]["reasons"][0]["text"]
    assert refused == (
        "a server group has the uplinks of its leaf alone, and [numa_ext]net_singles is refuse"
    )
    here = objects.Destination(cell=objects.CellMapping(uuid=str(uuid.uuid4())))
    assert small.boot(None, 1, keys=keys, requested_destination=here)
    small.fabrics.release(server_group(1).uuid)
    small.configure(net=NetworkOptions(singles=Singles.REFUSE))
    assert set(leafs_of(small.boot(None, 1, keys=keys))) <= {"l000", "l001"}
    assert host


def test_explain_shows_where_a_group_goes_and_why(small, capsys):
    group = server_group(1)
    small.boot(group, 4)
    first = small.cloud.last_servers[0]
    assert explain_command.main([first, "--journal", str(small.cloud.journal_path)]) == 0
    told = capsys.readouterr().out
    assert (
        f"group    {group.uuid}: servers by leaf: l000 2, l001 2; 2 spare hosts; its leafs" in told
    )
    assert "leafs chosen by vnb; leafs: 2, at least needed: 2" in told


def test_a_quiet_group_keeps_off_uplinks_that_a_group_before_it_shares(small):
    """And one that shares and gets no servers leaves no trace."""
    within = {"numa_ext:net_within": "pod"}
    shared = server_group(1)
    assert set(leafs_of(small.boot(shared, 4, keys=within))) == {"l000", "l001"}
    assert small.holds(shared) == {}
    assert set(leafs_of(small.boot(server_group(2), 4))) == {"l002", "l003"}
    with pytest.raises(exception.NoValidHost):
        small.boot(server_group(3), 4)
    assert {claim.consumer for claim in small.fabrics.all()} == {
        server_group(1).uuid,
        server_group(2).uuid,
    }


def booted_in_a_process_of_its_own(small, placed, *arguments):
    """Let another nova-scheduler place servers that is killed when so many of them have their hosts.

    Returns the signal that has ended it.
    """
    placement = PlacementOverHttp(small.cloud.service.application)
    pid = os.fork()
    if not pid:
        try:
            there = SimpleNamespace(adapter=placement.cloud.adapter)
            cloud = SchedulerCloud(there, small.cloud.journal_path)
            cloud.hosts.computes = small.cloud.hosts.computes
            left, claim = [None] * placed, scheduler_utils.claim_resources

            def claimed(*of_server, **more):
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left.pop()
                return claim(*of_server, **more)

            scheduler_utils.claim_resources = claimed
            other = object.__new__(Trained)
            other.cloud, other.fabrics = cloud, PlacementFabrics(cloud.placement)
            other.configure()
            other.boot(*arguments)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    placement.close()
    return os.WTERMSIG(status)


@pytest.mark.parametrize("placed", [0, 3])
def test_what_a_killed_scheduler_leaves_is_swept(small, placed):
    """Issue 17: killed between the claim and the servers, nova has members in ERROR and without a host."""
    group = server_group(1)
    (state,) = small.fabrics.read()
    assert booted_in_a_process_of_its_own(small, placed, group, 4) == signal.SIGKILL
    assert {*small.holds(group)} == {"l000", "l001", "p00"}

    class Nova:
        def members(self, _group):
            return [GroupMember("ERROR", "")] * 4

    assert [found.result for found in sweep(small.fabrics, Nova())] == [SweepResult.RELEASED]
    (after,) = small.fabrics.read()
    assert after.leafs == state.leafs
    small.configure()
    assert len(small.boot(server_group(2), 4)) == 4


def test_a_member_that_failed_is_replaced_in_the_groups_own_block(small):
    group = server_group(1)
    hosts = small.boot(group, 4)
    failed = small.cloud.last_servers[1]
    allocation = small.cloud.placement.get(f"/allocations/{failed}")
    assert allocation["allocations"]
    small.cloud.placement.delete(f"/allocations/{failed}")
    stay = tuple(host for host in hosts if host != hosts[1])
    held = small.holds(group)
    (replaced,) = small.boot(server_group(1, hosts=stay), 1)
    assert replaced.startswith(("l000", "l001"))
    assert small.holds(group) == held


def test_a_group_whose_servers_are_gone_begins_again_and_is_seen(small):
    """It shared, and asks to be alone now; what it shared before is no reason against its own leafs."""
    group = server_group(1)
    small.boot(server_group(1), 4, keys={"numa_ext:net_within": "pod"})
    assert small.holds(group) == {}
    free(small)
    assert set(leafs_of(small.boot(server_group(1), 4))) == {"l000", "l001"}
    assert set(small.holds(group)) == {"l000", "l001", "p00"}


def test_a_group_that_shares_and_begins_again_is_not_placed_on_uplinks_of_another(small):
    """Its servers are gone, its claim is there yet; its leafs are another group's when it is planned."""
    within = {"numa_ext:net_within": "pod"}
    group = server_group(1)
    small.boot(server_group(1), 4, keys=within)
    free(small)
    small.fabrics.release(group.uuid)
    small.boot(server_group(2), 4)
    taken = small.fabrics.read()
    share, read = small.fabrics.share, small.fabrics.read
    stale = [empty_again(state) for state in taken]
    tried: list[object] = []
    small.fabrics.read = lambda: read() if tried else stale

    def noted(*arguments):
        tried.append(arguments)
        share(*arguments)

    small.fabrics.share = noted
    (state,) = taken
    share(state, GroupOwner(group.uuid, "project", "user"), elsewhere("l002", "l003"))
    hosts = small.boot(server_group(1), 4, keys=within)
    assert len(tried) == 2
    assert set(leafs_of(hosts)) == {"l002", "l003"}


def test_an_operator_chooses_how_leafs_are_chosen(small):
    within = {"numa_ext:net_within": "pod"}
    assert leafs_of(small.boot(server_group(1), 4, keys=within)).count("l000") == 3
    small.fabrics.release(server_group(1).uuid)
    free(small)
    small.configure(net=NetworkOptions(policy="balanced"))
    hosts = leafs_of(small.boot(server_group(2), 4, keys=within))
    assert sorted(hosts.count(leaf) for leaf in {*hosts}) == [2, 2]


def test_no_leaf_is_for_remainders_where_the_operator_wants_none(small):
    """Seven hosts are two whole leafs and one host more."""
    small.configure(net=NetworkOptions(remainders=0))
    with pytest.raises(exception.NoValidHost):
        small.boot(server_group(1), 7, keys={"numa_ext:net_share": "quiet"})
    small.configure()
    assert len(small.boot(server_group(1), 7, keys={"numa_ext:net_share": "quiet"})) == 7


def test_what_a_group_holds_is_kept_when_it_begins_again(small):
    """A sweep that had read the claim before finds it changed."""
    group = server_group(1)
    small.boot(server_group(1), 4)
    free(small)
    (read,) = small.fabrics.all()
    small.boot(server_group(1), 4)
    assert not small.fabrics.release_dead(read)
    assert small.holds(group)


def test_a_group_does_not_grow_out_of_what_it_holds(small):
    small.boot(server_group(1), 4)
    with pytest.raises(exception.NoValidHost):
        small.boot(server_group(1, hosts=("l000-00", "l000-01", "l001-00", "l001-01")), 4)


def test_a_group_grows_near_its_servers_whatever_nova_compute_calls_itself(small):
    """A host's name in nova's groups is that of nova-compute, in Placement that of the hypervisor."""
    small.cloud.hosts.computes = [each.obj_clone() for each in small.cloud.hosts.computes]
    for compute in small.cloud.hosts.computes:
        compute.host = f"service-{compute.hypervisor_hostname}"
    member = str(uuid.uuid4())
    held = {small.cloud.provider("l002-00"): {"resources": {"VCPU": 1, "MEMORY_MB": 64}}}
    small.cloud.placement.put(
        f"/allocations/{member}",
        {
            "allocations": held,
            "project_id": "project",
            "user_id": "user",
            "consumer_type": "INSTANCE",
            "consumer_generation": None,
        },
    )
    group = server_group(1, hosts=("service-l002-00",), members=(member, str(uuid.uuid4())))
    (host,) = small.boot(group, 1, keys={"numa_ext:net_within": "pod"})
    assert host.startswith("service-l002")


def in_mode(small, leafs, mode):
    """Put the hosts of some leafs into an aggregate of another mode."""
    for compute in small.cloud.hosts.computes:
        if compute.host.startswith(leafs):
            aggregate = SimpleNamespace(metadata={"numa_ext_mode": mode})
            small.cloud.hosts.aggregates[compute.host] = [aggregate]


@pytest.mark.parametrize("mode", [Mode.RANK, Mode.OBSERVE])
def test_a_quiet_group_holds_leafs_whose_hosts_refuse_while_others_only_watch(small, mode):
    """A cloud that is switched on an aggregate at a time: what asks to be alone goes where that can be kept."""
    in_mode(small, ("l000", "l001"), mode)
    group = server_group(1)
    assert set(leafs_of(small.boot(group, 4))) == {"l002", "l003"}
    assert set(small.holds(group)) == {"l002", "l003", "p01"}


def test_a_quiet_group_without_a_place_that_can_be_kept_is_placed_and_holds_nothing(small):
    in_mode(small, ("l001", "l002"), Mode.RANK)
    group = server_group(1)
    assert set(leafs_of(small.boot(group, 4))) == {"l000", "l001"}
    assert small.holds(group) == {}


def test_ranks_are_kept_and_nothing_is_claimed_while_hosts_are_only_ranked(small):
    small.configure(mode=Mode.RANK)
    group = server_group(1)
    assert set(leafs_of(small.boot(group, 4))) == {"l000", "l001"}
    assert small.holds(group) == {}


def test_a_host_that_is_cabled_wrong_takes_no_server_of_a_group(small):
    root = small.cloud.provider("l000-00")
    path = f"/resource_providers/{root}"
    small.cloud.placement.put(f"/traits/{names.MISCABLED}")
    there = small.cloud.placement.get(f"{path}/traits")
    generation = there["resource_provider_generation"]
    small.traits(root, generation, *there["traits"], names.MISCABLED)
    small.cloud.view._full_at = float("-inf")
    small.configure()
    hosts = small.boot(server_group(1), 4)
    assert "l000-00" not in hosts
    assert set(leafs_of(hosts)) == {"l000", "l001"}


def test_servers_of_no_group_are_placed_as_before(small):
    spec = {"num_instances": 1, "instance_group": None}
    assert small.cloud.boot(QUIET, memory_mb=64, **spec)
    assert uuid.UUID(small.cloud.last_servers[0])
    assert small.fabrics.all() == []
