# SPDX-License-Identifier: Apache-2.0
"""Scenarios and contexts over a nova and a Placement of a few lines: what they ask for, hand on, and delete."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from novaclient.exceptions import NotFound
from rally.task.sla import SLAChecker

from nova_numa_ext.rally import contexts, scenarios, servers
from nova_numa_ext.rally.agreement import HeldAmounts
from nova_numa_ext.rally.cloud_checks import NotInTimeError
from nova_numa_ext.rally.lease_checks import LeaseChecks, LeaseStaysError
from nova_numa_ext.rally.load_sequence import sessions
from nova_numa_ext.simulator.gpu.machines import graph
from placement_traits.errors import InvalidValueError
from tests.support.elastic_cloud import GROUP, FollowedGroup
from tests.support.leased_servers import LeasedServers
from tests.support.partitioned_host import LC1, LC2, SERVERS, explained, host

TIER = {"numa_ext:tier": "LC"}
HOST = "OS-EXT-SRV-ATTR:host"
CHECKED = ("numa_ext_placement", "numa_ext_read_back", "numa_ext_overlap", "numa_ext_orphans")


class Nova:
    """Servers that are ACTIVE at once, and flavors; it is its own ``servers`` and ``flavors``."""

    def __init__(self, *uuids: str, console: Callable[[str], str] = lambda uuid: "") -> None:
        self.servers = self.flavors = self
        self.there: dict[str, SimpleNamespace] = {}
        self.asked: list[dict[str, Any]] = []
        self.sizes: list[SimpleNamespace] = []
        self.specs: dict[str, dict[str, str]] = {}
        self._uuids = iter(uuids) if uuids else map(str, itertools.count())
        self._console = console
        self._times = itertools.count()

    def create(self, name: str, *what: Any, **more: Any) -> SimpleNamespace:
        if all(isinstance(number, int) for number in what):
            size = SimpleNamespace(
                name=name,
                id=f"id of {name}",
                vcpus=what[1],
                ram=what[0],
                description=more.get("description"),
                set_keys=lambda specs: self.specs.update({name: specs}),
                get_keys=lambda: self.specs.get(name, {}),
            )
            self.sizes.append(size)
            return size
        self.asked.append({"flavor": what[1].name, "image": what[0], **more})
        made = [self._one(name, what[1].name) for _ in range(more.get("min_count", 1))]
        return Created(self, made[0].id)

    def _one(self, name: str, flavor: str) -> SimpleNamespace:
        uuid = next(self._uuids)
        made = SimpleNamespace(id=uuid, name=name, status="ACTIVE", manager=self, **{HOST: "h1"})
        made.flavor = {"original_name": flavor, "extra_specs": self.specs.get(flavor, TIER)}
        made.delete = Created(self, uuid).delete
        self.there[uuid] = made
        return made

    def get(self, which: Any) -> SimpleNamespace:
        uuid = getattr(which, "id", which)
        if uuid not in self.there:
            raise NotFound(404)
        # What novaclient returns is equal to what it returned before only while nothing has changed.
        return SimpleNamespace(**vars(self.there[uuid]), asked=next(self._times))

    def list(
        self, search_opts: Mapping[str, str] | None = None, is_public: bool | None = True
    ) -> list[SimpleNamespace]:
        if search_opts is None:
            return self.sizes
        return [one for one in self.there.values() if one.name == search_opts["name"][1:]]

    def delete(self, flavor: str) -> None:
        self.sizes = [size for size in self.sizes if size.id != flavor]

    def live_migrate(self, uuid: str, *, host: None, block_migration: str) -> None:
        setattr(self.there[uuid], HOST, "h2")

    def get_console_output(self, uuid: str) -> str:
        return self._console(uuid)


class Created:
    """What novaclient returns of a creation: the id, and all else when it is asked for, while the server is there."""

    def __init__(self, nova: Nova, uuid: str) -> None:
        self.manager, self.id = nova, uuid

    def delete(self) -> None:
        if self.manager.there.pop(self.id, None) is None:
            raise NotFound(404)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager.get(self.id), name)


class Placement:
    """Counts one way-holding allocation for each server that is there."""

    def __init__(self, nova: Nova, held: Callable[[str], HeldAmounts]) -> None:
        self._nova, self._held = nova, held

    def request(self, url: str, method: str, **_: Any) -> Any:
        path = url.partition("?")[0]
        if path == "/usages":
            body: Any = {"usages": {"INSTANCE": {"consumer_count": len(self._nova.there)}}}
        elif path.startswith("/allocations/"):
            uuid = path.rpartition("/")[2]
            found = self._held(uuid).amounts if uuid in self._nova.there else {}
            body = {
                "allocations": {
                    f"uuid of {name}": {"resources": dict(some)} for name, some in found.items()
                }
            }
        else:
            body = {"name": path.rpartition("uuid of ")[2]}
        content = json.dumps(body).encode()
        return SimpleNamespace(status_code=200, content=content, json=lambda: body)


def held(uuid: str) -> HeldAmounts:
    """The allocations of one of the servers."""
    return next(server for server in SERVERS if server.uuid == uuid)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A cloud with one host that does all it should, and what a test may change of it."""
    nova = Nova(LC1, LC2)
    nova.create("lc", 128, 1, 1)
    told = SimpleNamespace(nova=nova, facts=host(), decisions=True, folder=tmp_path)
    monkeypatch.setattr(servers.NumaScenario, "clients", lambda self, *_: told.nova)
    monkeypatch.setattr(servers.NumaScenario, "admin_clients", lambda self, *_: told.nova)
    monkeypatch.setattr(servers.NumaScenario, "_adapter", lambda self, _: Placement(nova, held))
    monkeypatch.setattr(servers.NumaScenario, "generate_random_name", lambda self: "rally")
    monkeypatch.setattr(servers.NumaScenario, "image", lambda self, name: f"id of {name}")

    def ask(command: str, timeout_s: float, **values: str) -> Any:
        if "server" in values:
            return explained(held(values["server"])) if told.decisions else []
        facts = json.loads(json.dumps(told.facts))
        facts["domains"] = [one for one in facts["domains"] if one["uuid"] in nova.there]
        groups = {group for one in facts["domains"] for group in one["groups"]}
        facts["resctrl"] = {
            name: group for name, group in facts["resctrl"].items() if name in groups | {""}
        }
        return facts

    monkeypatch.setattr("nova_numa_ext.rally.cloud_checks.ask", ask)
    yield told
    assert nova.there == {}, "a scenario leaves servers"


def outcome(scenario: Any, **arguments: Any) -> dict[str, bool]:
    """Run a scenario and judge it by the SLAs of agreement."""
    scenario.run(**arguments)
    checker = SLAChecker({"sla": {name: {"max": 0} for name in CHECKED}})
    checker.add_iteration({"output": scenario._output, "atomic_actions": []})
    return {result["criterion"]: result["success"] for result in checker.results()}


def scenario(kind: type) -> Any:
    """A scenario of the task's first user."""
    return kind(context={"tenant": {"id": "p"}, "task": {"uuid": "t"}, "owner_id": "t"})


CHECK = {"image": "i", "flavors": ["lc", "lc"], "read_back": "x", "explain": "x", "settle_s": 0.0}


def test_a_cloud_that_keeps_its_promises_passes(cloud: SimpleNamespace) -> None:
    found = outcome(
        scenario(scenarios.BootAndCheckPlacement), **CHECK, server={"nics": "none", "host": "h1"}
    )
    assert found == dict.fromkeys(CHECKED, True)
    expected = {"flavor": "lc", "image": "i", "nics": "none", "host": "h1"}
    assert cloud.nova.asked == [expected, expected]


def without_decision(cloud: SimpleNamespace) -> None:
    cloud.decisions = False


def agent_paused(cloud: SimpleNamespace) -> None:
    cloud.facts["domains"][0]["groups"] = [""]


def overlapping(cloud: SimpleNamespace) -> None:
    cloud.facts["resctrl"]["numa_ext-lc-2"]["schemata"]["L3"]["0"] = "f"


@pytest.mark.parametrize(
    ("deviation", "red"),
    [
        (without_decision, "numa_ext_placement"),
        (agent_paused, "numa_ext_read_back"),
        (overlapping, "numa_ext_overlap"),
    ],
)
def test_each_deviation_is_red_for_its_sla_only(
    cloud: SimpleNamespace, deviation: Callable[[SimpleNamespace], None], red: str
) -> None:
    deviation(cloud)
    found = outcome(scenario(scenarios.BootAndCheckPlacement), **CHECK)
    assert found == dict.fromkeys(CHECKED, True) | {red: False}


def test_a_server_that_fails_to_boot_is_deleted(cloud: SimpleNamespace) -> None:
    made = scenario(scenarios.BootAndCheckPlacement)
    with pytest.raises(InvalidValueError, match="the name of a flavor of this cloud"):
        made.run(**CHECK | {"flavors": ["lc", "unknown"]})
    assert len(cloud.nova.asked) == 1


def test_scheduling_is_timed_until_placement_counts_all_servers(cloud: SimpleNamespace) -> None:
    cloud.nova._uuids = map(str, range(9))
    made = scenario(scenarios.Schedule)
    made.run(image="i", flavor="lc", count=4)
    assert cloud.nova.asked[0]["min_count"] == 4
    assert "numa_ext.schedule" in {action["name"] for action in made.atomic_actions()}


def test_churn_looks_for_what_is_left_of_every_server(cloud: SimpleNamespace) -> None:
    made = scenario(scenarios.Churn)
    found = outcome(made, **CHECK, steps=3, most=1, look_every=2, seed=1)
    assert found == dict.fromkeys(CHECKED, True) | {"numa_ext_overlap": False}, "one at a time"
    counted = [(chart["title"], dict(chart["data"])) for chart in made._output["additive"]]
    assert ("What is left of deleted servers", {"looked at": 2, "faults": 0}) in counted


def test_servers_that_are_not_scheduled_in_time_are_all_deleted(
    cloud: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.nova._uuids = map(str, range(9))
    monkeypatch.setattr(
        "nova_numa_ext.rally.cloud_checks.CloudChecks.consumers", lambda self, project: 0
    )
    with pytest.raises(NotInTimeError, match="0 of 4 servers"):
        scenario(scenarios.Schedule).run(image="i", flavor="lc", count=4, within_s=0.0)


def test_arrivals_are_all_booted_and_deleted(cloud: SimpleNamespace) -> None:
    cloud.nova._uuids = map(str, range(9))
    made = scenario(scenarios.PoissonArrivals)
    made.run(image="i", flavors=["lc"], rate_per_min=60_000, arrivals=5, stay_s=0.0)
    assert len(cloud.nova.asked) == 5


def test_figures_of_guests_stand_beside_the_host_s(cloud: SimpleNamespace) -> None:
    cloud.nova._console = lambda uuid: f"noise\nevents: {10 if uuid == LC1 else 20}\n"
    made = scenario(scenarios.MeasureGuests)
    made.run(image="i", flavor="lc", pattern=r"events: (\d+)", count=2, baseline="echo 30")
    (table,) = made._output["complete"]
    assert table["data"]["rows"][-1] == ["guests' mean over the host", 0.5]


def test_workloads_are_characterised_and_the_file_says_that_it_is_void(
    cloud: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-000-43 over servers: GPUs are read back, run times are what the images print."""
    nova, gpus = cloud.nova, graph("dgx1")
    nova._uuids = map(str, itertools.count())
    for name in ("pack", "spread"):
        nova.create(name, 128, 1, 1)
    pairs = {"spread": [(0, 4)], "pack": [(0, 1), (2, 3)]}

    def read_back(self: Any, host: str) -> dict[str, Any]:
        taken = {"spread": 0, "pack": 0}
        domains = []
        for server, asked in zip(nova.there.values(), nova.asked[-len(nova.there) :], strict=True):
            kind = asked["flavor"]
            pair = pairs[kind][taken[kind]]
            taken[kind] += 1
            domains.append({"uuid": server.id, "hostdevs": [gpus.gpus[gpu] for gpu in pair]})
        return {"domains": domains}

    def console(uuid: str) -> str:
        kind, beside = nova.asked[-1]["flavor"], len(nova.there) > 1
        return f"seconds={ {'pack': 10.0, 'spread': 13.0}[kind] * (1.2 if beside else 1.0) }\n"

    nova._console = console
    monkeypatch.setattr(
        "nova_numa_ext.rally.cloud_checks.CloudChecks.gpus", lambda self, host: gpus
    )
    monkeypatch.setattr("nova_numa_ext.rally.cloud_checks.CloudChecks.read_back", read_back)
    file = cloud.folder / "profiles.yaml"
    scenario(scenarios.CharacteriseGpus).run(
        workloads={"a": {"image": "image-a"}},
        flavors={"pack": "pack", "spread": "spread"},
        gpus=2,
        host="h2",
        ended="seconds=([0-9.]+)",
        read_back="x",
        file=str(file),
        void=True,
    )
    assert "# VOID" in file.read_text()
    assert yaml.safe_load(file.read_text()) == {
        "a": {"pack_s": [10.0] * 5, "spread_s": [13.0] * 5, "beside_s": {"a": [12.0] * 5}}
    }
    assert {asked["host"] for asked in nova.asked} == {"h2"}


def test_flavors_are_made_with_their_keys_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    nova = Nova()
    monkeypatch.setattr(contexts.CheckedFlavors, "_nova", lambda self: nova)
    specs = {"numa_ext:tier": "BE"}
    context = {"config": {"numa_ext_flavors": [{"name": "be", "extra_specs": specs}]}, "task": {}}
    made = contexts.CheckedFlavors(context)
    made.setup()
    assert nova.specs == {"be": specs}
    made.cleanup()
    assert nova.sizes == []


def test_of_flavors_with_a_mistake_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    nova = Nova()
    monkeypatch.setattr(contexts.CheckedFlavors, "_nova", lambda self: nova)
    wrong = {"name": "lc", "extra_specs": {"numa_ext:teir": "LC"}}
    context = {"config": {"numa_ext_flavors": [{"name": "be"}, wrong]}, "task": {}}
    with pytest.raises(InvalidValueError, match="numa_ext:teir"):
        contexts.CheckedFlavors(context).setup()
    assert nova.sizes == []


def test_flavors_that_a_killed_task_left_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nova = Nova()
    monkeypatch.setattr(contexts.CheckedFlavors, "_nova", lambda self: nova)
    config = {"numa_ext_flavors": [{"name": "be", "ram": 64}]}
    for _ in range(2):
        contexts.CheckedFlavors({"config": config, "task": {}}).setup()
    assert [size.ram for size in nova.sizes] == [64]


def test_a_flavor_of_the_cloud_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    nova = Nova()
    nova.create("be", 4096, 1, 1)
    monkeypatch.setattr(contexts.CheckedFlavors, "_nova", lambda self: nova)
    config = {"numa_ext_flavors": [{"name": "new"}, {"name": "be"}]}
    with pytest.raises(InvalidValueError, match="names that no flavor of this cloud has"):
        contexts.CheckedFlavors({"config": config, "task": {}}).setup()
    assert [size.ram for size in nova.sizes] == [4096]


def test_noise_runs_until_its_context_ends(cloud: SimpleNamespace) -> None:
    context = {
        "config": {"numa_ext_noise": {"image": "i", "flavor": "lc", "count": 2}},
        "admin": {"credential": None},
        "task": {"uuid": "t"},
        "owner_id": "t",
        "users": [{"tenant_id": "p", "credential": None}],
        "tenants": {"p": {"id": "p"}},
    }
    noise = contexts.Noise(context)
    noise.setup()
    assert set(cloud.nova.there) == {LC1, LC2}
    del cloud.nova.there[LC1]  # by Rally's own clean-up
    noise.cleanup()


FOLLOW: dict[str, Any] = {
    "image": "i",
    "flavor": "lc",
    "load": "load {members}",
    "source": {"csv": "rally-{group}.csv"},
    "settings": {"objective_ms": 35.0, "granularity": [9, 9, 9], "most": 6, "period_s": 15.0},
    "training": [120.0, 480.0],
    "loads": [[430.0, 5], [180.0, 3]],
    "within_s": 0.0,
}
SCALED = ("numa_ext_scaled", "numa_ext_scaling_limits", "numa_ext_orphans")


@pytest.fixture
def elastic(cloud: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> FollowedGroup:
    """A job service that has the group follow its load, whose added servers are there when nova is asked."""
    group, nova = FollowedGroup(), cloud.nova
    nova._uuids = iter(sorted(group.users))

    def servers_now(_: str) -> SimpleNamespace:
        for uuid in group.servers() - nova.there.keys():
            nova._uuids = iter([uuid])
            nova._one("added", "lc")
        for uuid in nova.there.keys() - group.servers():
            nova.there.pop(uuid)
        return SimpleNamespace(members=list(nova.there))

    def made(name: str, policy: str) -> SimpleNamespace:
        return SimpleNamespace(id=GROUP)

    def ended(uuid: str) -> None:
        assert (uuid, nova.there, group.asked) == (GROUP, {}, None)

    nova.server_groups = SimpleNamespace(create=made, get=servers_now, delete=ended)
    monkeypatch.setattr(servers.NumaScenario, "_jobs", lambda self: group)
    monkeypatch.setattr("nova_numa_ext.rally.elastic_checks.ask", group.ask)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return group


def followed(**changes: Any) -> dict[str, bool]:
    """Run the scenario of elastic groups and judge it by its SLAs."""
    made = scenario(scenarios.FollowLoad)
    made.run(**FOLLOW | changes)
    checker = SLAChecker({"sla": {name: {"max": 0} for name in SCALED}})
    checker.add_iteration({"output": made._output, "atomic_actions": []})
    return {result["criterion"]: result["success"] for result in checker.results()}


def test_f_004_47_an_elastic_group_that_follows_its_load_passes(
    cloud: SimpleNamespace, elastic: FollowedGroup
) -> None:
    asked: list[dict[str, Any]] = []
    elastic.set_scaling = lambda group, what: (asked.append(what), setattr(elastic, "asked", what))  # type: ignore[method-assign]
    assert followed(within_s=60.0, server={"nics": "none"}) == dict.fromkeys(SCALED, True)
    assert asked[0]["source"] == {"csv": f"rally-{GROUP}.csv"}
    assert asked[0]["enforce"]["networks"] == ["none"]
    assert cloud.nova.asked[0]["scheduler_hints"] == {"group": GROUP}


@pytest.mark.parametrize(
    ("deviation", "red"),
    [
        ({"moves": False}, "numa_ext_scaled"),
        ({"step": 4}, "numa_ext_scaling_limits"),
        ({"beyond": 1}, "numa_ext_orphans"),
    ],
)
def test_each_fault_of_an_elastic_group_is_red_for_its_sla_only(
    elastic: FollowedGroup, deviation: dict[str, Any], red: str
) -> None:
    for name, value in deviation.items():
        setattr(elastic, name, value)
    within_s = 0.1 if red != "numa_ext_scaled" else 0.0
    assert followed(within_s=within_s) == dict.fromkeys(SCALED, True) | {red: False}


LEASED = {"numa_ext:remote_gpu": "allowed", "numa_ext:remote_gpu_memory_mb": "500"}


@pytest.fixture
def leased(cloud: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> LeasedServers:
    """A job service that gives each server of the cloud a lease; Rally waits by its clock."""
    nova = cloud.nova
    nova._uuids, nova.specs["lc"] = map(str, itertools.count()), LEASED
    service = LeasedServers(nova.there)
    made = partial(LeaseChecks, clock=service.clock, sleep=service.sleep)
    monkeypatch.setattr(servers.NumaScenario, "_jobs", lambda self: service)
    monkeypatch.setattr(scenarios, "LeaseChecks", made)
    monkeypatch.setattr("time.sleep", service.sleep)
    return service


def left_of_leases(made: Any, at_least: int) -> bool:
    """Whether an SLA finds that nothing is left of servers with leases."""
    checker = SLAChecker({"sla": {"numa_ext_orphans": {"max": 0, "at_least": at_least}}})
    checker.add_iteration({"output": made._output, "atomic_actions": []})
    (result,) = checker.results()
    return not result["success"]


def test_f_002_93_servers_use_remote_gpus_one_after_another(
    cloud: SimpleNamespace, leased: LeasedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps_s: list[float] = []
    monkeypatch.setattr("time.sleep", gaps_s.append)
    cloud.nova._console = lambda uuid: "done"
    made = scenario(scenarios.UseRemoteGpu)
    made.run(image="i", flavors=["lc"], sessions=4, gaps_s=[90, 0], seed=1, ended="done")
    assert gaps_s == [each.gap_s for each in sessions(["lc"], [90, 0], 4, 1)]
    assert len(cloud.nova.asked) == 4
    assert not left_of_leases(made, 4)
    names = [action["name"] for action in made.atomic_actions()]
    for each in ("numa_ext.attach_leases", "numa_ext.use_remote_gpu", "numa_ext.end_leases"):
        assert names.count(each) == 4


def test_a_lease_that_is_left_of_a_server_is_red(leased: LeasedServers) -> None:
    made = scenario(scenarios.UseRemoteGpu)
    leased.stuck = "releasing"
    made.run(image="i", flavors=["lc"], within_s=20.0)
    assert left_of_leases(made, 1)


def test_a_server_without_its_lease_fails_and_is_deleted(leased: LeasedServers) -> None:
    leased.stuck = "ready"
    with pytest.raises(NotInTimeError, match="0 of 1 leases"):
        scenario(scenarios.UseRemoteGpu).run(image="i", flavors=["lc"], within_s=20.0)


def test_a_flavor_without_a_remote_gpu_is_refused(
    cloud: SimpleNamespace, leased: LeasedServers
) -> None:
    cloud.nova.specs["lc"] = {}
    with pytest.raises(InvalidValueError, match="numa_ext:remote_gpu_memory_mb"):
        scenario(scenarios.UseRemoteGpu).run(image="i", flavors=["lc"])


def test_f_002_94_how_long_a_lease_that_moves_is_out_of_use_is_in_the_report(
    cloud: SimpleNamespace, leased: LeasedServers
) -> None:
    cloud.nova._console = lambda uuid: '{"rounds": 9, "worst_s": 0.25}'
    made = scenario(scenarios.MoveLeases)
    made.run(image="i", flavor="lc", moves=2, pause=r'"worst_s": ([0-9.]+)')
    assert not left_of_leases(made, 1)
    chart, _ = made._output["additive"]
    figures = dict(chart["data"])
    assert 0 < figures["out of use at most"] < figures["whole"]
    table, text = made._output["complete"]
    assert len(table["data"]["rows"]) == 2
    assert text["data"] == ["The longest pause in the server was 0.25 s"]
    assert [action["name"] for action in made.atomic_actions()].count("numa_ext.move_lease") == 2


def test_a_lease_that_does_not_move_fails(leased: LeasedServers) -> None:
    leased.full = True
    with pytest.raises(LeaseStaysError, match="it does not move"):
        scenario(scenarios.MoveLeases).run(image="i", flavor="lc")


WHERE = {
    "g0": [("l0", "p0"), ("l1", "p0")],
    "g1": [("l1", "p0"), ("l2", "p0"), ("l3", "p1")],
    "g2": [("l1", "p0")],
}


@pytest.fixture
def fabric(cloud: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A nova with server groups, whose servers hang where a test says; returns the groups that have ended."""
    nova, names, ended = cloud.nova, itertools.count(), list[str]()
    nova._uuids = map(str, itertools.count())
    monkeypatch.setattr(
        servers.NumaScenario, "generate_random_name", lambda self: f"rally{next(names)}"
    )
    made: list[str] = []

    def create(name: str, policy: str) -> SimpleNamespace:
        assert policy == "anti-affinity"
        made.append(f"g{len(made)}")
        return SimpleNamespace(id=made[-1])

    def get(group: str) -> SimpleNamespace:
        asked = [each["scheduler_hints"]["group"] for each in nova.asked]
        counts = [each.get("min_count", 1) for each in nova.asked]
        first = sum(counts[: asked.index(group)])
        own = map(str, range(first, first + counts[asked.index(group)]))
        return SimpleNamespace(members=[uuid for uuid in own if uuid in nova.there])

    def delete(group: str) -> None:
        assert get(group).members == []
        ended.append(group)

    def ask(command: str, timeout_s: float, *, group: str) -> Any:
        assert command == "topology {group}"
        assert len(get(group).members) == len(WHERE[group]), "it is asked when all are there"
        return [{"server": "s", "leaf": leaf, "pod": pod} for leaf, pod in WHERE[group]]

    nova.server_groups = SimpleNamespace(create=create, get=get, delete=delete)
    monkeypatch.setattr(scenarios, "ask", ask)
    return ended


@pytest.mark.parametrize(("most", "passes"), [(1, False), (2, True)])
def test_f_003_40_groups_that_share_uplinks_are_counted(
    fabric: list[str], most: int, passes: bool
) -> None:
    made = scenario(scenarios.PlaceGroups)
    made.run(image="i", flavor="lc", groups=[2, 3, 1], topology="topology {group}")
    assert sorted(fabric) == sorted(WHERE)
    checker = SLAChecker({"sla": {"numa_ext_sharing": {"max": most, "at_least": 2}}})
    checker.add_iteration({"output": made._output, "atomic_actions": []})
    assert [result["success"] for result in checker.results()] == [passes]
    table, text = made._output["complete"]
    assert [row[-1] for row in table["data"]["rows"]] == ["group 1", "group 0", "-"]
    assert text["data"][0].startswith("2 of 3 groups share uplinks")
    assert [action["name"] for action in made.atomic_actions()].count("numa_ext.place_group") == 3
