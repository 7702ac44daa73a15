# SPDX-License-Identifier: Apache-2.0
"""What the agent publishes in Placement, and what happens while Placement is down."""

import dataclasses
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf import configuration
from host_agent.conf.options import Options
from host_agent.conf.placement import PlacementOptions
from host_agent.conf.rdt import RdtOptions
from host_agent.conf.remote_gpus import RemoteGpuOptions
from host_agent.decide.amounts.claims import DomainPart, ServerClaim, declared_mbps
from host_agent.decide.amounts.reserved_bandwidth import ReservationSettings
from host_agent.model.assignment import Assignment, Decision, Guest, Observation
from host_agent.model.process import Process, Role, Thread
from host_agent.model.round import Round
from host_agent.model.traffic import Traffic
from host_agent.model.workload import Activity, parse
from host_agent.observe.bandwidth import Bandwidth
from host_agent.report.claimed import Claimed
from host_agent.report.clients import check_credentials, make_adapter
from host_agent.report.metrics import Metrics
from host_agent.report.published import declarations, in_use, neighbours, published_tree
from host_agent.report.publisher import PublishedFacts, Publisher
from host_agent.report.reserved_bandwidth import BandwidthReservation
from placement_traits import names
from placement_traits.client import (
    REQUEST_TIMEOUT_S,
    PlacementClient,
    PlacementError,
    RetrySettings,
)
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError
from placement_traits.names import NeighbourTrait, TierTrait
from placement_traits.oslo_options import ConfigurationError
from placement_traits.tree import ProviderTree
from tests.support.placement_side import GivenPlacement

OPTIONS = Options(placement=PlacementOptions(cell_packing="pack", backoff_max_s=0.01))


def turn(*servers: tuple[Server, int], activity: Activity = Activity.RUNNING) -> Round:
    """A round in which each server was put on one CPU."""
    guests = tuple(Guest(parse(server.xml, activity)) for server, _ in servers)
    decided = tuple(
        Assignment(server.uuid, vcpu_cpus={0: frozenset({cpu})}) for server, cpu in servers
    )
    return Round(Observation(four_nodes(), guests), Decision(decided))


def test_neighbours_are_told_per_l3_domain() -> None:
    devil = Server("devil", {**BE_SPECS, "numa_ext:interference_class": "devil"})
    found = neighbours(turn((Server("lc", LC_SPECS, cpus=(1,)), 1), (devil, 4)))
    assert found == {
        0: {NeighbourTrait.LC},
        1: set(),
        2: {NeighbourTrait.BE, NeighbourTrait.DEVIL},
        3: set(),
    }


def test_where_an_objective_cannot_be_kept_is_told() -> None:
    lc = Server("lc", LC_SPECS, cpus=(1,))
    round_ = turn((lc, 1), (Server("be", BE_SPECS), 4))
    tree = published_tree(round_, "compute1", OPTIONS, 0, unsatisfiable={lc.uuid})
    reported = [
        l3
        for l3 in range(4)
        if (child := tree.child(f"compute1:l3_{l3}")) and NeighbourTrait.UNMET_SLO in child.traits
    ]
    assert reported == [0]


def test_who_uses_gpus_is_told_near_them() -> None:
    """The scheduler reads there who disturbs whom on a socket's buses (F-000-11)."""
    reported = turn((Server("be", {**BE_SPECS, "numa_ext:gpu_comm": "3"}), 0))
    [guest] = reported.observation.guests
    guest = dataclasses.replace(guest, gpus={"0000:85:00.0": 2, "0000:86:00.0": None})
    observation = dataclasses.replace(reported.observation, guests=(guest,))
    found = neighbours(dataclasses.replace(reported, observation=observation))
    assert {l3 for l3, traits in found.items() if NeighbourTrait.GPU_COMM_3 in traits} == {2}


def floating(specs: dict[str, str], seen: str = "", shared: str = "0-7") -> Round:
    """A best-effort server that was given no place; ``seen``: where its thread may run."""
    server = Server("be", specs, shared=shared)
    threads = (Thread(1, Role.VCPU, 0, "CPU 0/TCG", seen),) if seen else ()
    process = Process(1, 0, "0-3", threads) if seen else None
    guest = Guest(parse(server.xml, Activity.RUNNING), process)
    return Round(Observation(four_nodes(), (guest,)), Decision())


def test_a_floating_server_without_a_place_lives_in_every_domain_that_it_may_run_in() -> None:
    be = {NeighbourTrait.BE}
    assert neighbours(floating(BE_SPECS)) == dict.fromkeys(range(4), be)
    assert neighbours(floating(BE_SPECS, shared="0-3")) == {0: be, 1: be, 2: set(), 3: set()}


def test_a_server_without_a_place_lives_where_its_threads_are() -> None:
    found = neighbours(floating(BE_SPECS, seen="2-5"))
    assert [l3 for l3, traits in found.items() if traits] == [1, 2]


def test_without_pinning_a_server_lives_where_it_is_and_not_where_it_was_decided_to_be() -> None:
    server = Server("be", BE_SPECS, shared="0-7")
    decided = turn((server, 2))
    assert [l3 for l3, traits in neighbours(decided).items() if traits] == [1]
    assert all(neighbours(decided, pinned=False).values())


def test_declared_bandwidth_of_a_floating_server_is_split_over_its_domains() -> None:
    specs = {**BE_SPECS, "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "4000"}
    placed = (ServerClaim("lc", "lc", (DomainPart(0, 4, 1_000),)),)
    found = declarations(floating(specs, shared="0-3"), placed)
    assert declared_mbps(found) == {0: 3_000, 1: 2_000}


@pytest.mark.parametrize("activity", list(Activity))
def test_only_what_runs_is_in_use(activity: Activity) -> None:
    """A paused server may be arriving: nova has not finished with it."""
    specs = {**BE_SPECS, "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "4000"}
    round_ = turn((Server("be", specs), 4), activity=activity)
    found = in_use(round_, declarations(round_, ()))
    expected = [(DomainPart(2, 0, 4_000),)] if activity is Activity.RUNNING else []
    assert [claim.parts for claim in found] == expected


def test_what_is_held_back_is_in_the_tree() -> None:
    tree = published_tree(turn(), "compute1", OPTIONS, 0, {2: 1_500})
    child = tree.child("compute1:l3_2")
    assert child is not None
    assert child.inventories["CUSTOM_MEMORY_BANDWIDTH_MBPS"].reserved == 1_500
    other = tree.child("compute1:l3_1")
    assert other is not None
    assert other.inventories["CUSTOM_MEMORY_BANDWIDTH_MBPS"].reserved is None, "not measured yet"


RABBIT = {"numa_ext:interference_class": "rabbit"}
DEVIL = {"numa_ext:interference_class": "devil"}
WHOLE, PLACE = ({"resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": units} for units in ("1000", "1"))
NEAR = {**BE_SPECS, "hw:numa_nodes": "1"}


def bound(title: str, specs: dict[str, str], *cpus: int) -> tuple[Server, int]:
    return Server(title, specs, cpus=cpus, vcpus=len(cpus), node=cpus[0] // 2), cpus[0]


def reserved(*servers: tuple[Server, int], activity: Activity = Activity.RUNNING) -> list[int]:
    """Reserved units of the four domains, which have two CPUs each."""
    tree = published_tree(turn(*servers, activity=activity), "compute1", OPTIONS, 0)
    children = [tree.child(f"compute1:l3_{l3}") for l3 in range(4)]
    return [
        child.inventories["CUSTOM_LLC_NEIGHBOURHOOD"].reserved or 0 for child in children if child
    ]


@pytest.mark.parametrize("activity", list(Activity))
def test_the_neighbourhood_of_bound_servers_that_did_not_claim_it_is_reserved(
    activity: Activity,
) -> None:
    """Upgrades and mixed flavors: what is there already is not sold to strict flavors, shut off or not."""
    servers = (
        bound("devil", {**NEAR, **DEVIL}, 0),
        bound("devil too", {**NEAR, **DEVIL}, 1),
        bound("rabbit", {**LC_SPECS, **RABBIT}, 2),
        bound("sheep", LC_SPECS, 4),
        bound("strict", {**LC_SPECS, **RABBIT, **WHOLE}, 6),
    )
    assert reserved(*servers, activity=activity) == [2, 1_000, 0, 0]


def test_a_floating_devil_reserves_nothing_for_it_makes_way() -> None:
    assert reserved((Server("devil", {**BE_SPECS, **DEVIL}, shared="0-7"), 4)) == [0] * 4


def test_the_further_domains_of_a_claim_on_one_are_reserved() -> None:
    """Placement gives each NUMA node one group; where its CPUs are in two caches, the second is not claimed."""
    assert reserved(bound("wide", {**NEAR, **DEVIL, **PLACE}, 0, 1, 2)) == [0, 1, 0, 0]
    assert reserved(bound("wide", {**LC_SPECS, **RABBIT, **WHOLE}, 4, 6, 7)) == [0, 0, 1_000, 0]


def test_the_tree_offers_no_latency_critical_tier_where_rdt_is_off() -> None:
    without = dataclasses.replace(OPTIONS, rdt=RdtOptions(enabled=False))
    assert TierTrait.LC in published_tree(turn(), "compute1", OPTIONS, 0).root_traits
    assert TierTrait.LC not in published_tree(turn(), "compute1", without, 0).root_traits


def test_a_host_whose_servers_use_leases_publishes_how_they_reach_pools() -> None:
    """Without it the filter refuses the host to each server that requires a remote GPU."""
    remote = RemoteGpuOptions(uses=True, fabrics=("rack_7",), client_mbps=1_250)
    uses = published_tree(turn(), "compute1", dataclasses.replace(OPTIONS, remote_gpus=remote), 0)
    assert {names.REMOTE_GPU_CLIENT, names.fabric("rack_7")} <= uses.root_traits
    nic = uses.child(names.client_provider("compute1"))
    assert nic is not None
    assert nic.inventories[names.REMOTE_GPU_NETWORK_MBPS].total == 1_250
    lends = dataclasses.replace(OPTIONS, remote_gpus=dataclasses.replace(remote, uses=False))
    for options in (OPTIONS, lends):
        tree = published_tree(turn(), "compute1", options, 0)
        assert not {names.REMOTE_GPU_CLIENT, names.fabric("rack_7")} & tree.root_traits
        assert tree.child(names.client_provider("compute1")) is None


@dataclass
class _Report:
    changes: tuple[()] = ()
    problems: tuple[()] = ()


class Placement:
    """Down as often as told, then up."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.tries = 0
        self.written: list[ProviderTree] = []
        self.changed = threading.Condition()

    def sync(self, tree: ProviderTree) -> _Report:
        with self.changed:
            self.tries += 1
            self.changed.notify_all()
            if self.tries <= self.failures:
                raise ServiceUnavailableError("Placement is down")
            self.written.append(tree)
        return _Report()

    def wait_for_writes(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.written) >= number, 30)


def test_what_was_missed_is_caught_up_in_one_pass() -> None:
    placement, metrics = Placement(failures=3), Metrics()
    publisher = Publisher(OPTIONS, GivenPlacement(placement), metrics)
    thread = publisher.start()
    for cpu in (0, 2, 4):
        publisher.on_round(turn((Server("be", BE_SPECS), cpu)))
    last = published_tree(turn((Server("be", BE_SPECS), 4)), "compute1", OPTIONS, 0)
    placement.wait_for_writes(1)
    publisher.stop()
    thread.join(10)
    assert placement.written[-1] == last
    assert metrics.placement_synced


def test_a_placement_that_accepts_and_does_not_answer_keeps_no_round_waiting() -> None:
    placement, metrics = Placement(failures=0), Metrics()
    asked, answers = threading.Event(), threading.Event()
    sync = placement.sync

    def slow(tree: ProviderTree) -> _Report:
        asked.set()
        assert answers.wait(30)
        return sync(tree)

    placement.sync = slow  # type: ignore[method-assign]
    publisher = Publisher(OPTIONS, GivenPlacement(placement), metrics)
    thread = publisher.start()
    publisher.on_round(turn())
    assert asked.wait(30)
    for cpu in (0, 2, 4):  # it is not waited for, or this would not end
        publisher.on_round(turn((Server("be", BE_SPECS), cpu)))
    assert placement.written == []
    assert not metrics.placement_synced
    answers.set()
    placement.wait_for_writes(2)
    publisher.stop()
    thread.join(10)
    last = published_tree(turn((Server("be", BE_SPECS), 4)), "compute1", OPTIONS, 0)
    assert placement.written[1:] == [last]


def test_a_request_without_an_answer_ends_in_time(tmp_path: Path) -> None:
    config = tmp_path / "agent.conf"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        text = f"[placement]\nauth_type = none\nendpoint = {endpoint}\n"
        config.write_text(text)
        assert make_adapter(load(config)).session.timeout == REQUEST_TIMEOUT_S
        config.write_text(f"{text}timeout = 1\n")
        client = PlacementClient(make_adapter(load(config)), RetrySettings(attempts=1))
        with pytest.raises(ServiceUnavailableError, match=r"did not answer GET /x in 1 tries: .+"):
            client.get("/x")


def load(config: Path) -> configuration.Configuration:
    return configuration.load([f"--config-file={config}"])


def test_an_unchanged_tree_is_not_written_again() -> None:
    placement = Placement(failures=0)
    publisher = Publisher(OPTIONS, GivenPlacement(placement), Metrics())
    thread = publisher.start()
    publisher.on_round(turn())
    placement.wait_for_writes(1)
    publisher.on_round(turn())
    publisher.on_round(turn((Server("be", BE_SPECS), 2)))
    placement.wait_for_writes(2)
    publisher.stop()
    thread.join(10)
    assert len(placement.written) == 2


def test_a_tree_that_changes_during_a_pass_is_written_right_after_it() -> None:
    """The interval is a minute: without the change being noticed it would come then."""
    placement = Placement(failures=0)
    publisher = Publisher(OPTIONS, GivenPlacement(placement), Metrics())
    newest = turn((Server("be", BE_SPECS), 2))
    sync = placement.sync

    def slow(tree: ProviderTree) -> _Report:
        report = sync(tree)
        if len(placement.written) == 1:
            publisher.on_round(newest)
        return report

    placement.sync = slow  # type: ignore[method-assign]
    publisher.on_round(turn())
    thread = publisher.start()
    placement.wait_for_writes(2)
    publisher.stop()
    thread.join(10)
    assert placement.written == [
        published_tree(turn(), "compute1", OPTIONS, 0),
        published_tree(newest, "compute1", OPTIONS, 0),
    ]


def test_an_unforeseen_error_does_not_end_the_thread() -> None:
    placement = Placement(failures=0)
    tries = 0

    class Late(GivenPlacement):
        def writer(self) -> Placement:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise RuntimeError("unforeseen")
            return placement

    publisher = Publisher(OPTIONS, Late(placement), Metrics())
    thread = publisher.start()
    publisher.on_round(turn())
    placement.wait_for_writes(1)
    publisher.stop()
    thread.join(10)
    assert tries == 3


LC_ON_2 = Server("lc", LC_SPECS, cpus=(5,), node=2)
WAYS = {LC_ON_2.uuid: {"CUSTOM_LLC_WAY": 4}}


class Claims:
    """What servers have claimed, or the error of asking."""

    def __init__(self, held: Claimed, error: Exception | None = None) -> None:
        self.held = held
        self.error = error

    def read(self) -> Claimed:
        if self.error:
            raise self.error
        return self.held


def publisher_over(placement: Placement, claims: Claims) -> Publisher:
    """A publisher after a round with a server in L3 domain 2."""
    publisher = Publisher(
        OPTIONS,
        GivenPlacement(placement, claimed=claims),
        Metrics(),
    )
    publisher.on_round(turn((LC_ON_2, 5)))
    return publisher


def reserved_ways(tree: ProviderTree) -> list[int]:
    """Reserved ways of the four domains."""
    children = [tree.child(f"compute1:l3_{l3}") for l3 in range(4)]
    return [child.inventories["CUSTOM_LLC_WAY"].reserved or 0 for child in children if child]


@pytest.mark.parametrize(
    ("held", "reserved"),
    [({0: WAYS}, [0, 0, 4, 0]), ({2: WAYS}, [0, 0, 0, 0]), ({}, [0, 0, 0, 0])],
    ids=["elsewhere", "where it runs", "nowhere"],
)
def test_what_is_counted_in_another_domain_is_reserved_where_it_runs(
    held: Claimed, reserved: list[int]
) -> None:
    placement = Placement(failures=0)
    assert publisher_over(placement, Claims(held)).publish_once()
    assert reserved_ways(placement.written[-1]) == reserved


def test_what_was_reserved_is_for_sale_again_when_the_claim_has_moved() -> None:
    placement, claims = Placement(failures=0), Claims({0: WAYS})
    publisher = publisher_over(placement, claims)
    publisher.publish_once()
    claims.held = {2: WAYS}
    publisher.publish_once()
    assert [reserved_ways(tree) for tree in placement.written] == [[0, 0, 4, 0], [0, 0, 0, 0]]


def test_claims_that_may_not_be_read_leave_the_tree_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An older policy file in Placement."""
    placement = Placement(failures=0)
    refused = PlacementError("GET /resource_providers/x/allocations", 403, "", "not allowed")
    assert publisher_over(placement, Claims({}, refused)).publish_once()
    assert len(placement.written) == 1
    assert "Nothing is reserved for servers that are counted elsewhere. Placement" in caplog.text


def test_nothing_is_written_by_what_a_placement_that_is_down_does_not_show() -> None:
    """Written without it, what is reserved would be for sale for a moment."""
    placement = Placement(failures=0)
    claims = Claims({0: WAYS}, ServiceUnavailableError("Placement is down"))
    assert not publisher_over(placement, claims).publish_once()
    assert placement.written == []


def test_traffic_that_nobody_declared_reaches_placement() -> None:
    placement = Placement(failures=0)
    traffic = Bandwidth({l3: Traffic(0.0, 3_000.0 * (l3 == 2)) for l3 in range(4)})
    reservation = BandwidthReservation(lambda: traffic, ReservationSettings(), 10.0)
    publisher = Publisher(
        OPTIONS,
        GivenPlacement(placement),
        Metrics(),
        PublishedFacts(reservation=reservation),
    )
    publisher.on_round(turn())
    assert publisher.publish_once()
    assert placement.written == [
        published_tree(turn(), "compute1", OPTIONS, 0, {0: 0, 1: 0, 2: 3_000, 3: 0})
    ]


def test_a_paused_round_says_nothing_new() -> None:
    placement = Placement(failures=0)
    publisher = Publisher(OPTIONS, GivenPlacement(placement), Metrics())
    publisher.on_round(dataclasses.replace(turn(), paused=True))
    assert not publisher.publish_once()


def test_credentials_come_from_novas_own_section(tmp_path: Path) -> None:
    config = tmp_path / "agent.conf"
    config.write_text("[placement]\nauth_type = none\nendpoint = http://127.0.0.1:8778\n")
    adapter = make_adapter(configuration.load([f"--config-file={config}"]))
    assert adapter.service_type == "placement"
    assert adapter.get_endpoint() == "http://127.0.0.1:8778"


@pytest.mark.parametrize(
    "text",
    [
        "auth_type = password\npassword = pa$word\n",
        "auth_type = password\npassword = pa$password\n",
        "auth_type = $password\n",
        "auth_section = $word\n",
    ],
)
def test_a_dollar_in_a_password_is_told_without_a_part_of_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "agent.conf").write_text(f"[placement]\n{text}")
    conf = load(tmp_path / "agent.conf")
    with pytest.raises(ConfigurationError, match=r"write \$\$ for a \$") as caught:
        check_credentials(conf)
    assert "word" not in str(caught.value)


def test_missing_credentials_are_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "agent.conf").write_text("")
    with pytest.raises(CapabilityMissingError, match="auth_type"):
        make_adapter(configuration.load([f"--config-file={tmp_path}/agent.conf"]))


class Beats:
    """Counts the turns of a beat."""

    def __init__(self, error: str = "") -> None:
        self.turns = 0
        self.error = error

    def turn(self) -> None:
        self.turns += 1
        if self.error:
            raise ServiceUnavailableError(self.error)


def test_an_agent_without_finished_rounds_writes_and_beats_no_more() -> None:
    """Its loop hangs, its publisher does not: it must not put back what was withdrawn for it."""
    placement, beats = Placement(failures=0), Beats()
    often = dataclasses.replace(OPTIONS, placement=PlacementOptions(interval_s=0.001))
    publisher = Publisher(
        often,
        GivenPlacement(placement, beating=beats),
        Metrics(),
    )
    thread = publisher.start()
    publisher.on_round(turn())
    placement.wait_for_writes(1)
    thread.join(0.2)
    assert (len(placement.written), beats.turns) == (1, 1)
    publisher.on_round(turn())
    placement.wait_for_writes(2)
    paused = dataclasses.replace(turn(), paused=True)
    publisher.on_round(paused)
    placement.wait_for_writes(3)
    publisher.stop()
    thread.join(10)
    assert beats.turns == 3, "a paused agent is there"


def test_a_beat_that_is_not_written_leaves_the_tree_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    placement = Placement(failures=0)
    publisher = Publisher(
        OPTIONS,
        GivenPlacement(placement, beating=Beats("no")),
        Metrics(),
    )
    publisher.on_round(turn())
    assert publisher.publish_once()
    assert "The beat of this host is not written. no" in caplog.text
