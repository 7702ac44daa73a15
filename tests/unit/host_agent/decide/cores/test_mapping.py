# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 as a closed loop over small hosts: arrivals, full hosts, deviations, learning, rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from emulation.physics.machines import grid
from host_agent.conf.mapping import MappingOptions, PerformanceMetric
from host_agent.decide.cores import arrival, mapping, repair
from host_agent.decide.cores.mapping_state import MappingObservation, MappingState
from host_agent.decide.cores.performance import deviation
from host_agent.decide.cores.reshuffle import reshuffle
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from host_agent.model.terms import Term
from placement_traits.interference import INITIAL_BENEFIT, IsolationLevel, updated_benefit
from placement_traits.names import InterferenceClass
from placement_traits.reason import Reason

SHEEP, RABBIT, DEVIL = InterferenceClass.SHEEP, InterferenceClass.RABBIT, InterferenceClass.DEVIL
LAYOUT = CoreLayout(grid(1, 4, 4, memory_mb_per_node=16384, nodes_per_socket=2))
QUICK = MappingOptions(quiet_samples=2, smooth_samples=1, settle_s=4.0, interval_s=5.0)


def server(
    name: str, vcpus: int = 4, kind: InterferenceClass = SHEEP, **more: object
) -> MappedServer:
    return MappedServer(name, vcpus, 1024, kind, **more)  # type: ignore[arg-type]


@dataclass
class Host:
    """The agent's loop over one host; what it wants becomes true at once."""

    options: MappingOptions = QUICK
    state: MappingState = field(default_factory=MappingState)
    servers: dict[str, MappedServer] = field(default_factory=dict)
    now_s: float = 0.0
    layout: CoreLayout = LAYOUT

    def round(
        self, measured: Mapping[str, float] | None = None, **actual: Slot
    ) -> Mapping[str, tuple[Reason, ...]]:
        self.now_s += self.options.interval_s
        seen = MappingObservation(self.now_s, dict(self.servers), actual, measured or {})
        self.state, reasons = mapping.decide(seen, self.state, self.options, self.layout)
        used = [cpu for slot in self.state.slots.values() for cpu in slot.cpus]
        assert len(used) == len(set(used)), "never two vCPUs on a core"
        return reasons

    def arrive(self, *servers: MappedServer, **actual: Slot) -> Mapping[str, tuple[Reason, ...]]:
        self.servers |= {one.name: one for one in servers}
        return self.round(**actual)

    def node(self, name: str) -> int:
        (node,) = {LAYOUT.group_of_cpu[cpu].node for cpu in self.state.slots[name].cpus}
        return node


def terms(reasons: tuple[Reason, ...]) -> set[str]:
    return {reason.term for reason in reasons}


def test_a_server_leaves_cores_that_it_may_use_no_more() -> None:
    """A strict rabbit has come to the domain of its cores: no measurement is waited for, and no way back."""
    host = Host()
    host.arrive(server("devil", kind=DEVIL))
    was = host.node("devil")
    other = frozenset(range(16)) - {cpu for cpu in range(16) if cpu // 4 == was}
    host.arrive(replace(server("devil", kind=DEVIL), allowed_cpus=other))
    assert host.node("devil") != was
    assert host.round(devil=Slot((4 * was, 4 * was + 1, 4 * was + 2, 4 * was + 3))) == {}
    assert host.node("devil") != was


def test_f_001_04_a_full_host_gives_a_clear_event_and_changes_nothing() -> None:
    host = Host()
    host.arrive(*(server(f"s{n}", 4) for n in range(3)), server("last", 3))
    before = host.state.slots
    reasons = host.arrive(server("late", 2))
    assert reasons["late"] == (Reason("host_full", "1 free CPUs", "2 vCPUs"),)
    assert host.state.slots == before
    del host.servers["last"]
    assert "mapped" in terms(host.round()["late"]), "it is mapped as soon as there is room"


def test_f_001_08_an_arrival_without_a_good_slot_moves_the_fewest() -> None:
    host = Host()
    halves = {f"h{n}": Slot((4 * n, 4 * n + 1), {n: 1024}) for n in range(4)}
    host.arrive(*(server(name, 2) for name in halves), **halves)
    reasons = host.arrive(server("new", 4))
    moved = [name for name in halves if host.state.slots[name] != halves[name]]
    assert len(moved) == 1
    assert host.node("new") == int(moved[0][1])
    assert reasons[moved[0]] == (Reason("reshuffled_for", "new"),)


def test_a_restart_leaves_servers_where_they_are() -> None:
    actual = {"a": Slot((1, 6), {0: 512, 1: 512}), "b": Slot((2, 3), {0: 1024})}
    host = Host()
    assert host.arrive(server("a", 2), server("b", 2), **actual) == {}
    assert dict(host.state.slots) == actual


def _lc(name: str = "lc", vcpus: int = 2) -> MappedServer:
    return server(name, vcpus, RABBIT, movable=False, latency_critical=True)


BESIDE = {"be": Slot((2, 3), {0: 1024}), "lc": Slot((0, 1), {0: 1024})}


def test_a_sheep_makes_way_for_a_latency_critical_server_that_comes_later() -> None:
    host = Host()
    host.arrive(server("be", 2), be=BESIDE["be"])
    reasons = host.arrive(_lc(), lc=BESIDE["lc"])
    assert host.node("be") != host.node("lc") == 0
    assert reasons["be"] == (Reason(Term.REMAPPED, f"nodes {host.node('be')}", "makes way for lc"),)
    where = host.state.slots["be"]
    del host.servers["lc"]
    host.round()
    assert host.state.slots["be"] == where, "nothing is gained by going back"


def test_a_server_stays_beside_a_latency_critical_one_where_no_slot_is_as_good() -> None:
    """Its vCPUs would be torn apart over the cores that are left."""
    host = Host()
    full = {f"f{n}": Slot(tuple(range(4 * n, 4 * n + 3)), {n: 1024}) for n in (1, 2, 3)}
    host.arrive(server("be", 2), *(server(name, 3) for name in full), be=BESIDE["be"], **full)
    assert host.arrive(_lc(), lc=BESIDE["lc"]) == {}
    assert host.state.slots["be"] == BESIDE["be"]


def test_a_restart_beside_a_latency_critical_server_moves_no_server() -> None:
    host = Host()
    assert host.arrive(server("be", 2), _lc(), **BESIDE) == {}
    host.round()
    assert dict(host.state.slots) == BESIDE


def test_servers_on_a_core_that_went_offline_are_mapped_again() -> None:
    host = Host()
    host.arrive(server("s", 2))
    gone = replace(host.state, slots={"s": Slot((0, 99), {0: 1024})})
    host.state = gone
    assert "mapped" in terms(host.round()["s"])


def _disturbed(metric: PerformanceMetric = PerformanceMetric.IPC, **fixed: bool) -> Host:
    """A rabbit that was quiet, then got a devil beside it which was put there by somebody else."""
    host = Host(options=replace(QUICK, metric=metric))
    host.arrive(
        server("r", 2, RABBIT, movable=not fixed.get("rabbit", False)), r=Slot((0, 1), {0: 1024})
    )
    for _ in range(4):
        host.round({"r": 1.0})
    assert host.state.expectations["r"].value == 1.0
    host.arrive(
        server("d", 2, DEVIL, movable=not fixed.get("devil", False)), d=Slot((2, 3), {0: 1024})
    )
    return host


@pytest.mark.parametrize(
    ("metric", "bad"), [(PerformanceMetric.IPC, 0.6), (PerformanceMetric.MPI, 1.6)]
)
def test_f_001_09_a_disturbed_rabbit_is_separated_by_ipc_or_by_mpi(
    metric: PerformanceMetric, bad: float
) -> None:
    host = _disturbed(metric)
    reasons = host.round({"r": bad, "d": 1.0})
    moved = [name for name in ("r", "d") if "remapped" in terms(reasons.get(name, ()))]
    assert len(moved) == 1, "the least reshuffling is one move"
    assert host.node("r") != host.node("d")


def test_a_rabbit_is_separated_from_a_sheep_that_has_begun_to_disturb_it() -> None:
    """The program in a server changes; what its flavor declares does not."""
    host = Host()
    places = {"r": Slot((0, 1), {0: 1024}), "s": Slot((2, 3), {0: 1024})}
    host.arrive(server("r", 2, RABBIT), server("s", 2, SHEEP), **places)
    for _ in range(4):
        assert host.round(dict.fromkeys(places, 1.0)) == {}
    host.round({"r": 0.6, "s": 1.0})
    assert host.node("r") != host.node("s")


def test_of_equal_places_the_one_nearest_to_the_memory_is_taken() -> None:
    """Until its pages have followed, the rabbit reads them from where they are."""
    layout = CoreLayout(grid(2, 4, 4, memory_mb_per_node=16384, nodes_per_socket=2))
    host = Host(layout=layout)
    places = {"x": Slot((0, 1), {0: 1024}), "r": Slot((20, 21), {5: 1024})}
    host.arrive(server("x", 2), server("r", 2, RABBIT), **places)
    for _ in range(4):
        host.round(dict.fromkeys(places, 1.0))
    host.arrive(server("d", 2, DEVIL, movable=False), d=Slot((22, 23), {5: 1024}))
    host.round({"r": 0.6})
    assert layout.nodes(host.state.slots["r"]) == (4,), "1 to 3 are free, too, in another chassis"


def test_f_001_09_a_deviation_below_the_threshold_moves_nothing() -> None:
    host = _disturbed()
    assert host.round({"r": 0.95}) == {}


def test_f_001_09_the_sign_of_mpi_is_turned() -> None:
    assert deviation(0.8, 1.0, PerformanceMetric.IPC) == pytest.approx(0.2)
    assert deviation(1.2, 1.0, PerformanceMetric.MPI) == pytest.approx(0.2)


def test_f_001_09_the_worst_is_helped_first() -> None:
    host = Host(options=replace(QUICK, moves_per_round=1))
    places = {"mild": Slot((0, 1), {0: 1024}), "bad": Slot((4, 5), {1: 1024})}
    host.arrive(*(server(name, 2, RABBIT) for name in places), **places)
    for _ in range(4):
        host.round(dict.fromkeys(places, 1.0))
    devils = {"d0": Slot((2,), {0: 512}), "d1": Slot((6,), {1: 512})}
    host.arrive(*(server(name, 1, DEVIL) for name in devils), **devils)
    reasons = host.round({"mild": 0.8, "bad": 0.5})
    assert all(
        "bad" in str(reason.against)
        for r in reasons.values()
        for reason in r
        if reason.term == "remapped"
    )
    assert any(reason.term == "remapped" for r in reasons.values() for reason in r)


def test_f_001_09_no_move_when_nothing_would_be_better() -> None:
    host = Host()
    host.arrive(server("r", 4, RABBIT))
    for _ in range(4):
        host.round({"r": 1.0})
    where = host.state.slots["r"]
    host.round({"r": 0.5})
    assert host.state.slots["r"] == where


def test_a_neighbour_does_not_go_where_it_is_in_a_forbidden_pair_again() -> None:
    """Two rabbits run as well as they can: beside a devil one of them would not, and the devil would be next."""
    host = Host()
    places = {"r0": Slot((0, 1), {0: 1024}), "r1": Slot((2,), {0: 1024})}
    devils = {f"d{n}": Slot((4 * n, 4 * n + 1), {n: 1024}) for n in (1, 2, 3)}
    host.arrive(
        server("r0", 2, RABBIT),
        server("r1", 1, RABBIT),
        *(server(name, 2, DEVIL, movable=False) for name in devils),
        **places,
        **devils,
    )
    for _ in range(4):
        reasons = host.round(dict.fromkeys(host.servers, 1.0))
        assert "propose_live_migration" in terms(reasons["r0"])
    assert dict(host.state.slots) == {**places, **devils}


@pytest.mark.parametrize(("free_together", "goes"), [(False, False), (True, True)])
def test_a_neighbour_is_not_torn_apart_for_another_server(free_together: bool, goes: bool) -> None:
    host = _disturbed(rabbit=True)
    places = {
        "a": Slot((4, 5) if free_together else (4, 5, 6), {1: 1024}),
        "b": Slot((8, 9, 10), {2: 1024}),
        "c": Slot((12, 13, 14), {3: 1024}),
    }
    host.arrive(*(server(n, len(slot.cpus), movable=False) for n, slot in places.items()), **places)
    host.round({"r": 0.6})
    assert (host.state.slots["d"] != Slot((2, 3), {0: 1024})) is goes
    assert len(host.layout.nodes(host.state.slots["d"])) == 1


def test_a_dedicated_rabbit_stays_and_the_devil_goes() -> None:
    host = _disturbed(rabbit=True)
    host.round({"r": 0.6})
    assert host.state.slots["r"].cpus == (0, 1)
    assert host.node("d") != 0


def test_when_nobody_may_move_a_live_migration_is_proposed() -> None:
    host = _disturbed(rabbit=True, devil=True)
    before = host.state.slots
    assert "propose_live_migration" in terms(host.round({"r": 0.6})["r"])
    assert host.state.slots == before


def test_a_moved_server_rests_and_does_not_return() -> None:
    host = _disturbed(rabbit=True)
    host.round({"r": 0.6})
    settled = host.state.slots["d"]
    for _ in range(int(QUICK.cooldown_s / QUICK.interval_s) - 2):
        host.round({"r": 0.3, "d": 0.1})
        assert host.state.slots["d"] == settled
    left = host.state.left[0]
    assert left.until_s > host.now_s
    assert (left.server, left.nodes) == ("d", (0,))


def test_a_moved_server_makes_way_for_no_one_while_it_rests() -> None:
    """A rabbit that may not move comes to where it went."""
    host = _disturbed(rabbit=True)
    host.round({"r": 0.6})
    moved_s, settled, node = host.now_s, host.state.slots["d"], host.node("d")
    assert node != 0
    free = sorted(set(LAYOUT.topology.cpus_of_node(node)) - set(settled.cpus))
    beside = Slot(tuple(free[:2]), {node: 512})
    host.arrive(server("r2", 2, RABBIT, movable=False), r2=beside)
    while host.now_s + QUICK.interval_s < moved_s + QUICK.cooldown_s:
        host.round({"r2": 0.5})
        assert host.state.slots["d"] == settled
    host.round({"r2": 0.5})
    assert host.node("d") not in (0, node)


def test_nothing_is_expected_of_what_was_measured_beside_a_devil() -> None:
    """A sheep may be beside one, and is disturbed all the same."""
    host = Host()
    places = {"s": Slot((0, 1), {0: 1024}), "d": Slot((2, 3), {0: 1024})}
    host.arrive(server("s", 2), server("d", 2, DEVIL), **places)
    for _ in range(4):
        host.round({"s": 0.6})
    assert host.state.expectations["s"].value is None
    del host.servers["d"]
    for _ in range(4):
        host.round({"s": 1.0})
    assert host.state.expectations["s"].value == 1.0


def test_nothing_is_expected_of_what_was_measured_soon_after_a_move() -> None:
    host = Host(options=replace(QUICK, settle_s=18.0))
    host.arrive(server("s", 2))
    for _ in range(3):
        host.round({"s": 0.6})
        assert host.state.expectations["s"].value is None
    for _ in range(2):
        host.round({"s": 1.0})
    assert host.state.expectations["s"].value == 1.0


@pytest.mark.parametrize("movable", [False, True])
def test_nothing_is_moved_for_a_server_that_rests_from_its_own_move(movable: bool) -> None:
    """A devil comes to where it went: one of the two goes when it has been seen what the first move did."""
    host = _disturbed(devil=True)
    host.round({"r": 0.6})
    moved_s, settled, node = host.now_s, host.state.slots["r"], host.node("r")
    assert node != 0
    (free, *_) = set(LAYOUT.topology.cpus_of_node(node)) - set(settled.cpus)
    beside = Slot((free,), {node: 512})
    host.arrive(server("d2", 1, DEVIL, movable=movable), d2=beside)
    while host.now_s + QUICK.interval_s < moved_s + QUICK.cooldown_s:
        host.round({"r": 0.5})
        assert (host.state.slots["r"], host.state.slots["d2"]) == (settled, beside)
    host.round({"r": 0.5})
    assert host.node("r") != host.node("d2")


def test_f_001_10_the_benefit_matrix_learns_what_a_move_gained() -> None:
    host = _disturbed()
    host.round({"r": 0.6})
    assert host.state.trials
    domain = host.state.trials[0].domain
    for _ in range(4):
        host.round({"r": 1.0})
    assert not host.state.trials
    old = INITIAL_BENEFIT[domain][RABBIT]
    assert host.state.benefit[domain][RABBIT] == pytest.approx(0.8 * old + 0.2 * 8.2)


def test_f_001_10_a_matrix_that_learnt_that_moving_does_not_pay_stops_moves() -> None:
    host = _disturbed()
    benefit = INITIAL_BENEFIT
    for _ in range(20):
        for domain in IsolationLevel:
            benefit = updated_benefit(benefit, domain, RABBIT, 1.0)
    host.state = replace(host.state, benefit=benefit)
    before = host.state.slots
    host.round({"r": 0.6})
    assert host.state.slots == before


def test_a_rabbit_that_was_never_quiet_moves_when_a_slot_is_freed() -> None:
    host = Host()
    host.arrive(
        server("d", 2, DEVIL),
        server("r", 2, RABBIT),
        *(server(f"s{n}", 4) for n in (1, 2, 3)),
        d=Slot((0, 1), {0: 512}),
        r=Slot((2, 3), {0: 512}),
        **{f"s{n}": Slot(tuple(range(4 * n, 4 * n + 4)), {n: 1024}) for n in (1, 2, 3)},
    )
    assert host.node("r") == host.node("d")
    del host.servers["s2"]
    host.round()
    assert host.node("r") == host.node("d"), "without a measurement nothing is repaired"
    host.round({"r": 0.4})
    assert host.node("r") != host.node("d")


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the servers for which others were looked at that could make room."""
    asked: list[str] = []
    search = reshuffle

    def counted(occupancy: Occupancy, needy: MappedServer, *limits: Any) -> Any:
        asked.append(needy.name)
        return search(occupancy, needy, *limits)

    for module in (arrival, repair):
        monkeypatch.setattr(module, "reshuffle", counted)
    return asked


def _crowded(options: MappingOptions = QUICK) -> Host:
    """Every node is full with a rabbit and a devil."""
    host = Host(options=options)
    sitting = {
        f"{kind}{node}": Slot((4 * node + at, 4 * node + at + 1), {node: 1024})
        for node in range(4)
        for kind, at in (("r", 0), ("d", 2))
    }
    for name in sitting:
        host.servers[name] = server(name, 2, RABBIT if name.startswith("r") else DEVIL)
    host.round(dict.fromkeys(sitting, 1.0), **sitting)
    return host


def test_what_was_found_to_be_no_use_is_searched_again_only_when_something_has_changed(
    searches: list[str],
) -> None:
    """A full host of 36 nodes took half a minute for each decision."""
    host = _crowded()
    measured = dict.fromkeys(host.servers, 1.0)
    for _ in range(10):
        explained = host.round(measured)
    assert sorted(searches) == sorted(host.servers), "each was searched for once"
    assert {
        name for name in host.servers if "propose_live_migration" in terms(explained[name])
    } == set(host.servers), "the proposal stands while nothing changes"
    del host.servers["r0"], measured["r0"]
    explained = host.round(measured)
    assert any("remapped" in terms(reasons) for reasons in explained.values())


def test_a_host_with_another_topology_is_searched_again(searches: list[str]) -> None:
    host = _crowded()
    measured = dict.fromkeys(host.servers, 1.0)
    for _ in range(3):
        host.round(measured)
    searches.clear()
    host.layout = CoreLayout(grid(1, 4, 4, memory_mb_per_node=32768, nodes_per_socket=2))
    host.round(measured)
    assert sorted(searches) == sorted(host.servers)


def test_searches_of_one_decision_share_the_limit_and_all_get_their_turn(
    searches: list[str],
) -> None:
    host = _crowded(replace(QUICK, reshuffle_operations=5))
    measured = dict.fromkeys(host.servers, 1.0)
    explained: Mapping[str, tuple[Reason, ...]] = {}
    assert len(host.state.searched.exhausted) == 1
    for known in (*range(2, len(host.servers) + 1), len(host.servers)):
        explained = host.round(measured)
        assert len(host.state.searched.exhausted) == known, "one more in each decision"
    assert set(explained) == set(host.servers)


def test_a_server_without_room_is_tried_again_only_when_something_has_changed(
    searches: list[str],
) -> None:
    host = Host()
    host.arrive(*(server(f"s{n}", 3) for n in range(4)))
    large = replace(server("large", 2), memory_mb=10**7)
    assert "host_full" in terms(host.arrive(large)["large"])
    for _ in range(5):
        assert "large" not in host.round()
    assert searches == ["large"]
    del host.servers["s0"]
    assert "host_full" in terms(host.round()["large"])
