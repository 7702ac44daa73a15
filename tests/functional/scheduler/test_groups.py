# SPDX-License-Identifier: Apache-2.0
"""Server groups in nova's own scheduler: planned once for all servers, taken in the order of the plan."""

import uuid
from collections import Counter
from dataclasses import replace

import pytest
from nova import context, exception
from nova.conf import CONF

from benchmarks import nova_scheduler
from benchmarks.cloud import Cloud, Flavor, request
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.fabrics import FabricState
from nova_numa_ext.metrics import WorkerMetrics, of_workers
from nova_numa_ext.policy.modes import Mode
from nova_numa_ext.policy.network.groups import LeafPlaces, LeafPlan, NoLeafs, PlanOptions
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.planner import plan
from nova_numa_ext.policy.network.terms import GroupTerm
from nova_numa_ext.scheduler import decision, fleet, moves, process, session
from nova_numa_ext.scheduler.group_plan import GroupPlanner
from nova_numa_ext.scheduler.measures import Measures
from placement_traits import names
from placement_traits.claim_store import ForeignConsumerError, NoRoomError
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.journal import Journal, read
from placement_traits.reason import Reason
from tests.support.group_hosts import leaf_trait, on_leaf, server_group

LEAFS, HOSTS_PER_LEAF, BLOCK = 6, 6, 4
SHARED = Flavor("shared", 1, 256, {"numa_ext:tier": "BE", "numa_ext:net_within": "pod"})
QUIET = Flavor("quiet", 1, 256, {"numa_ext:tier": "BE", "numa_ext:net_share": "quiet"})


def leaf_of(host: str) -> int:
    return int(host.removeprefix("host")) // HOSTS_PER_LEAF


class Blocks:
    """Two leafs a pod; groups that are quiet hold blocks of leafs, kept here and not in Placement.

    :param leafs: how many
    :param hosts: of each leaf
    :param block: hosts of each that a group may have as a whole
    """

    def __init__(self, leafs: int = LEAFS, hosts: int = HOSTS_PER_LEAF, block: int = BLOCK) -> None:
        self.leafs, self.hosts, self.block = leafs, hosts, block
        self.claims: dict[str, dict[str, dict[str, int]]] = {}
        self.projects: dict[str, str] = {}
        self.writes = 0
        self.takes_first = ""  # a leaf that another group claims right before the next claim

    def read(self):
        leafs = tuple(
            Leaf(f"l{n}", (f"p{n // 2}",), self.hosts, 0, self.block, held=self._held(f"l{n}"))
            for n in range(self.leafs)
        )
        traits = {leaf_trait(leaf.name): leaf.name for leaf in leafs}
        uuids = {leaf.name: leaf.name for leaf in leafs}
        return [FabricState("train", Leafs(("leaf", "pod"), leafs, self.hosts), traits, uuids)]

    def _held(self, leaf: str) -> dict[str, int]:
        return {names.LEAF_BLOCK: sum(self.block for held in self.claims.values() if leaf in held)}

    def held(self, owner):
        if self.projects.get(owner.group, owner.project) != owner.project:
            raise ForeignConsumerError(f"{owner.group} is another project's.")
        return self.claims.get(owner.group, {})

    def claim(self, fabric, owner, found) -> None:
        self.writes += 1
        if self.takes_first:
            self.claims["other"] = {self.takes_first: {names.LEAF_BLOCK: BLOCK}}
            self.takes_first = ""
        if any(self._held(leaf)[names.LEAF_BLOCK] for leaf in found.claims):
            raise NoRoomError("the claim", 409, "", "no room")
        self.claims[owner.group] = {**found.claims}

    def release(self, group: str) -> None:
        del self.claims[group]

    def keep(self, owner, amounts) -> None:
        assert self.claims[owner.group] == amounts

    def share(self, fabric, owner, found) -> None:
        raise AssertionError("no plan of these tests uses uplinks beside others")

    def providers_of(self, server: str) -> frozenset[str]:
        return frozenset()


def blocks_in_a_pod(leafs: Leafs, asked, options: PlanOptions) -> LeafPlan | NoLeafs:
    """Blocks of leafs one after the other, in the first pod with enough; in what the group holds, where it does."""
    del options
    for pod in range(LEAFS // 2):
        able = [
            leaf
            for leaf in leafs.leafs[2 * pod : 2 * pod + 2]
            if (leaf.name in asked.holds if asked.holds else not leaf.held_hosts) and leaf.free
        ]
        places, missing = [], asked.hosts
        for leaf in able:
            places.append(LeafPlaces(leaf.name, min(leaf.free, BLOCK, missing)))
            missing -= places[-1].hosts
            if not missing:
                claims = {each.leaf: {names.LEAF_BLOCK: BLOCK} for each in places}
                spares = tuple(
                    LeafPlaces(each.leaf, HOSTS_PER_LEAF - each.hosts) for each in places
                )
                return LeafPlan(tuple(places), claims, spares=spares)
    return NoLeafs((Reason(GroupTerm.FREE_HOSTS, 0, asked.hosts),))


class World:
    """36 hosts on leafs, by default 6 of 3 pods, and nova's scheduler over them."""

    def __init__(self, path, blocks=None, planner=blocks_in_a_pod) -> None:
        CONF.set_override("service_down_time", 10**9)
        self.blocks, self.planner, self.path, self.number = blocks or Blocks(), planner, path, 0
        self.cloud = Cloud(self.blocks.leafs * self.blocks.hosts, 1)
        views = [
            on_leaf(view, f"l{at // self.blocks.hosts}")
            for at, view in enumerate(self.cloud.views.values())
        ]
        self.cloud._arrays = FleetArrays.of(views)
        self.scheduler = nova_scheduler.Scheduler(self.cloud, ours=True)
        self.configure()

    def configure(self, measures=None, **options) -> None:
        self.scheduler.engine = session.Engine(
            CONF,
            SchedulerOptions(**options),
            self.cloud,
            Journal(self.path, 2**22, 1),
            measures=measures,
            beyond=session.BeyondHosts(GroupPlanner(lambda: self.blocks, self.planner)),
        )

    def ask(self, servers: int, flavor=QUIET, *, group=None, hints=None, **fields):
        """Selections of nova for servers of one group, or NoValidHost."""
        self.number += 1
        spec = request(self.number, flavor, servers)
        spec.instance_group = server_group(self.number) if group is None else group
        spec.scheduler_hints = hints or {}
        for name, value in fields.items():
            setattr(spec, name, value)
        offered = self.cloud.offer(spec, flavor)
        process.use(self.scheduler.engine)
        uuids = [str(uuid.UUID(int=self.number << 32 | n)) for n in range(servers)]
        spec.instance_uuid = uuids[0]
        found = self.scheduler._schedule(
            context.get_admin_context(), spec, uuids, offered, offered, "1.39", True
        )
        assert not self.scheduler.engine.faults
        return [[each.service_host for each in of_server] for of_server in found]

    def reason(self) -> str:
        (entry,) = [each for each in read(self.path) if each["kind"] == "filter"][-1:]
        return entry["refused"][0]["reason"]


@pytest.fixture
def world(nova_configuration, tmp_path, monkeypatch):
    """Nova's scheduler over hosts on leafs; what groups hold is kept in the test, not in Placement::

    train
    ├─ p0 ── l0 host0 … host5,  l1 host6 … host11     each leaf: a block of 4 and 2 beside it
    ├─ p1 ── l2, l3
    └─ p2 ── l4, l5                                   36 hosts in all
    """
    monkeypatch.setattr(fleet, "from_nova", fleet.from_nova)
    return World(tmp_path / "decisions.jsonl")


def test_a_group_gets_its_blocks_in_the_order_of_ranks(world):
    found = world.ask(8)
    assert [leaf_of(hosts[0]) for hosts in found] == [0] * 4 + [1] * 4
    assert len({hosts[0] for hosts in found}) == 8
    assert world.blocks.writes == 1


def test_alternates_are_the_spares_of_its_leafs(world):
    found = world.ask(8)
    chosen = {hosts[0] for hosts in found}
    for hosts in found:
        assert len(hosts) == CONF.scheduler.max_attempts
        assert not chosen & {*hosts[1:]}
        assert {leaf_of(host) for host in hosts[1:]} <= {0, 1}


def test_two_groups_share_no_leaf(world):
    first, second = world.ask(8), world.ask(8)
    leafs = [{leaf_of(hosts[0]) for hosts in each} for each in (first, second)]
    assert leafs == [{0, 1}, {2, 3}]


def test_a_group_whose_leafs_are_taken_in_between_is_planned_again(world):
    world.blocks.takes_first = "l1"
    found = world.ask(8)
    assert {leaf_of(hosts[0]) for hosts in found} == {2, 3}
    assert world.blocks.writes == 2


def test_plans_of_groups_and_claims_that_were_lost_are_counted(world, tmp_path):
    stem = tmp_path / "view-1-abc"
    world.configure(measures=Measures(WorkerMetrics(stem)))
    world.blocks.takes_first = "l1"
    world.ask(8)
    world.ask(4, SHARED)
    with pytest.raises(exception.NoValidHost):
        world.ask(13)
    shown = [
        (metric.name.removeprefix("numa_ext_scheduler_"), *labels[1:], value)
        for metric, labels, value in of_workers(stem)
    ]
    assert [each for each in shown if each[0].startswith("group_")] == [
        ("group_plans", "claimed", 1),
        ("group_plans", "placed", 1),
        ("group_plans", "none", 1),
        ("group_conflicts", 1),
    ]
    (taken,) = [value for *name, value in shown if name == ["decision_seconds", "group"]]
    assert sum(taken[:-1]) == 3


def test_lost_claims_are_not_tried_again_and_the_places_move_up(world, monkeypatch):
    planned = [hosts[0] for hosts in world.ask(8)]
    world.blocks.claims.clear()
    tried, lost = [], planned[1]
    by_uuid = {state.uuid: state.host for state in world.cloud._states}

    def claim(_context, _client, _spec, _server, allocation, **_more):
        host = by_uuid[next(iter(allocation["allocations"]))]
        tried.append(host)
        return host != lost

    monkeypatch.setattr("nova.scheduler.utils.claim_resources", claim)
    found = [hosts[0] for hosts in world.ask(8)]
    assert tried.count(lost) == 1
    assert found[:7] == [host for host in planned if host != lost]
    assert {leaf_of(host) for host in found} == {0, 1}
    assert world.blocks.writes == 2


@pytest.fixture
def wide(nova_configuration, tmp_path, monkeypatch):
    """The same with the real policy, and leafs as large as those that issue 17 names::

    train
    └─ p0 ── l0 host0 … host17,  l1 host18 … host35     each leaf: a block of 16 and 2 beside it
    """
    monkeypatch.setattr(fleet, "from_nova", fleet.from_nova)
    return World(tmp_path / "decisions.jsonl", Blocks(2, 18, 16), plan)


@pytest.mark.parametrize("lost", [4, 5])
def test_32_quiet_servers_lose_claims_up_to_their_spares_and_all_of_them_beyond(
    wide, monkeypatch, lost
):
    """Design 8.4, check 5: each lost host is tried once, ranks keep their order, and of a failure nothing stays."""
    planned = [hosts[0] for hosts in wide.ask(32)]
    assert [int(host.removeprefix("host")) // 18 for host in planned] == [0] * 16 + [1] * 16
    wide.blocks.claims.clear()
    gone = [planned[at] for at in (3, 20, 8, 31, 0)[:lost]]
    tried, claimed, deleted = [], set(), []
    by_uuid = {state.uuid: state.host for state in wide.cloud._states}

    def claim(_context, _client, _spec, server, allocation, **_more):
        host = by_uuid[next(iter(allocation["allocations"]))]
        tried.append(host)
        if host not in gone:
            claimed.add(server)
        return host not in gone

    def delete(_context, server, **_more):
        deleted.append(server)

    monkeypatch.setattr("nova.scheduler.utils.claim_resources", claim)
    monkeypatch.setattr(wide.scheduler.placement_client, "delete_allocation_for_instance", delete)
    if lost <= 4:
        found = [hosts[0] for hosts in wide.ask(32)]
        kept = [host for host in planned if host not in gone]
        assert found[: 32 - lost] == kept
        assert len({*found}) == 32
        assert deleted == []
        assert {*wide.blocks.claims[server_group(wide.number).uuid]} == {"l0", "l1", "p0"}
    else:
        with pytest.raises(exception.NoValidHost):
            wide.ask(32)
        assert {*deleted} == claimed
        assert len(claimed) == 31
        assert wide.blocks.claims == {}
    assert [tried.count(host) for host in gone] == [1] * lost


def test_hosts_that_are_refused_leave_the_plan(world, monkeypatch):
    first = world.ask(8)
    world.blocks.claims.clear()
    full = [hosts[0] for hosts in first[:3]]
    judge = decision.judge

    def judged(parsed, spec, ctx):
        one = judge(parsed, spec, ctx)

        def verdict(state):
            found = one(state)
            return replace(found, reasons=(Reason("test", 0),)) if state.host in full else found

        return verdict

    monkeypatch.setattr(session, "judge", judged)
    found = [hosts[0] for hosts in world.ask(7)]
    assert not {*full} & {*found}
    assert Counter(map(leaf_of, found)) == {0: 3, 1: 4}


def test_a_group_that_every_host_refuses_is_planned_few_times(world, monkeypatch):
    """Not once for each two hosts: what is planned looks at all of the fabric."""
    plans = []

    def counted(leafs, asked, options):
        plans.append(1)
        return blocks_in_a_pod(leafs, asked, options)

    world.scheduler.engine._groups = GroupPlanner(lambda: world.blocks, counted)
    judge = decision.judge

    def judged(*three):
        one = judge(*three)
        return lambda state: replace(one(state), reasons=(Reason("test", 0),))

    monkeypatch.setattr(session, "judge", judged)
    with pytest.raises(exception.NoValidHost):
        world.ask(1)
    assert len(plans) <= 8


def test_a_group_that_grows_stays_in_what_it_holds(world):
    group = server_group(7)
    world.ask(6, group=group)
    assert {leaf_of(hosts[0]) for hosts in world.ask(1, group=server_group(7))} <= {0, 1}
    assert world.blocks.writes == 1


@pytest.fixture
def move(monkeypatch):
    """All requests are of a server that leaves its host."""
    return lambda: monkeypatch.setattr(moves, "is_move", lambda *_: True)


def test_a_group_that_was_placed_while_nothing_was_claimed_claims_no_more(world, move):
    """Its leafs may have others on them by now; it grows and moves without holding any."""
    group = server_group(7, hosts=("host0",))
    assert len(world.ask(1, group=group)) == 1
    move()
    assert len(world.ask(1, group=group)) == 1
    assert world.blocks.writes == 0


def test_a_server_that_must_move_goes_where_it_can_when_its_group_has_no_place(world, move):
    """An evacuation is worth more than the uplinks' quiet; only the level that it must stay within refuses."""
    for leaf in range(LEAFS):
        world.blocks.claims[f"other{leaf}"] = {f"l{leaf}": {names.LEAF_BLOCK: BLOCK}}
    group = server_group(7, hosts=("host0",))
    with pytest.raises(exception.NoValidHost):
        world.ask(1, group=group)
    move()
    assert len(world.ask(1, group=group)) == 1
    within = {"numa_ext_within": ["leaf"]}
    with pytest.raises(exception.NoValidHost):
        world.ask(1, group=group, hints=within)


def test_another_projects_group_is_refused(world):
    world.ask(8, group=server_group(7))
    world.blocks.projects[server_group(7).uuid] = "another"
    with pytest.raises(exception.NoValidHost):
        world.ask(1, group=server_group(7))
    assert "another project's" in world.reason()


def test_a_group_that_finds_no_place_is_refused_with_the_planners_sentence(world):
    with pytest.raises(exception.NoValidHost):
        world.ask(13)
    assert world.reason() == (
        "its server group cannot be placed on the fabric: "
        "the group needs 13 hosts, and 0 are free for it"
    )
    assert not world.blocks.claims


@pytest.mark.parametrize(
    ("hints", "policy", "sentence"),
    [
        ({"numa_ext_share": ["exclusive"]}, "anti-affinity", "is more than the flavor allows"),
        (
            {"numa_ext_shares": ["quiet"]},
            "anti-affinity",
            "numa_ext_shares is not a scheduler hint",
        ),
        ({}, "affinity", "the group's policy is affinity"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(world, hints, policy, sentence):
    with pytest.raises(exception.NoValidHost):
        world.ask(2, group=server_group(policy=policy), hints=hints)
    assert sentence in world.reason()


def test_a_group_that_shares_claims_nothing(world):
    found = world.ask(8, SHARED)
    assert {leaf_of(hosts[0]) for hosts in found} == {0, 1}
    assert world.blocks.writes == 0


def test_observing_plans_and_claims_nothing(world):
    world.configure(mode=Mode.OBSERVE)
    asked = []
    world.blocks.read = lambda: asked.append(1) or []
    assert len(world.ask(13)) == 13
    assert (asked, world.blocks.writes) == ([], 0)


def test_a_group_whose_later_servers_find_no_host_gives_its_claim_back(world, monkeypatch):
    """Nova gives all servers up; another group can have the leafs at once."""
    monkeypatch.setattr("nova.scheduler.utils.claim_resources", lambda *_, **__: len(calls) < 3)
    calls: list[int] = []
    original = session.Engine.filter

    def counted(self, states, spec):
        calls.append(1)
        return original(self, states, spec) if len(calls) < 3 else original(self, [], spec)

    monkeypatch.setattr(session.Engine, "filter", counted)
    with pytest.raises(exception.NoValidHost):
        world.ask(8)
    assert world.blocks.claims == {}


def test_two_servers_of_a_group_on_each_host_where_its_rule_allows_them(world):
    found = world.ask(8, group=server_group(9, max_server_per_host="2"))
    assert [*Counter(hosts[0] for hosts in found).values()] == [2] * 4
    assert {leaf_of(hosts[0]) for hosts in found} == {0}
