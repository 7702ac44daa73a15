# SPDX-License-Identifier: Apache-2.0
"""The full rule over the simple one: floating servers get cores and shares, the others stay as nova placed them."""

from dataclasses import dataclass, field, replace

import pytest

from emulation.physics.machines import grid
from host_agent.conf.bwap import BwapOptions
from host_agent.conf.mapping import MappingOptions, PerformanceMetric
from host_agent.conf.memory import MemoryOptions
from host_agent.conf.options import Options
from host_agent.decide.balancing import BalancingState, refine
from host_agent.decide.cores.slots import CoreLayout
from host_agent.decide.pages.turns import read_often
from host_agent.model.assignment import Assignment, Decision, Guest, Observation
from host_agent.model.balancing import BalancingInputs
from host_agent.model.counters import ServerCounters
from host_agent.model.partition import PartitionRequest
from host_agent.model.process import Process, RamRange, Role, Thread
from host_agent.model.workload import Activity, Domain, Workload
from placement_traits import request

TOPOLOGY = grid(1, 4, 4, memory_mb_per_node=16384)
LAYOUT = CoreLayout(TOPOLOGY)
ROOM = dict.fromkeys(range(4), 8192)
QUICK = Options(
    bwap=BwapOptions(samples=4, drop=1, stable_samples=3), memory=MemoryOptions(margin_mb=0)
)


def guest(
    name: str, specs: dict[str, str], vcpus: int = 2, cpus: tuple[str, ...] = (), node: int = 3
) -> Guest:
    parsed = request.parse(specs, vcpus=vcpus, memory_mb=1024)
    threads = tuple(
        Thread(10 + v, Role.VCPU, v, "CPU", cpus[v] if cpus else "0-15") for v in range(vcpus)
    )
    ram = RamRange(0x1000, 0x2000, (), 4, 0, ((node, 1024 * 1024),))
    domain = Domain(name, name, vcpus, 1024)
    return Guest(Workload(domain, request=parsed), Process(9, 1, "0-3", threads), (ram,))


BE = {"numa_ext:tier": "BE"}
LC = {
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "numa_ext:tier": "LC",
    "resources:CUSTOM_RDT_CLOS": "1",
}


@dataclass
class Rounds:
    """Rounds of the loop; pins come true at once, pages when asked to."""

    guests: list[Guest]
    options: Options = QUICK
    state: BalancingState = field(default_factory=BalancingState)
    now_s: float = 0.0
    counters: dict[str, ServerCounters] = field(default_factory=dict)
    canonical: dict[frozenset[int], dict[int, float]] = field(default_factory=dict)
    room: dict[int, int] = field(default_factory=lambda: dict(ROOM))
    refused: str = ""

    def round(self) -> Decision:
        self.now_s += 5.0
        base = Decision(
            tuple(
                Assignment(g.uuid, (0,), {}, partition=_partition(g))
                for g in self.guests
                if g.workload.request is not None
            )
        )
        inputs = BalancingInputs(
            self.now_s,
            Observation(TOPOLOGY, tuple(self.guests), self.room),
            self.counters,
            self.counters,
            self.canonical,
            self.refused,
        )
        decision, self.state = refine(base, inputs, self.state, self.options, LAYOUT)
        return decision

    def obey(self, decision: Decision) -> None:
        """Move all pages to where they should be."""
        self.guests = [_obeyed(one, decision.get(one.uuid)) for one in self.guests]


def _obeyed(one: Guest, desired: Assignment | None) -> Guest:
    if desired is None or not desired.memory_shares:
        return one
    kib = tuple((n, round(s * 1024 * 1024)) for n, s in sorted(desired.memory_shares.items()))
    return replace(one, ram=(one.ram[0]._replace(resident_kb=kib),))


def _partition(one: Guest) -> PartitionRequest | None:
    tier = one.workload.tier
    if tier is None:
        return None
    domains = tuple(sorted({c // 4 for chosen in one.vcpu_cpus.values() for c in chosen}))
    return PartitionRequest(one.uuid, tier, domains if tier == "LC" else (0,))


def desired(decision: Decision, name: str) -> Assignment:
    found = decision.get(name)
    assert found is not None
    return found


def test_each_vcpu_of_a_floating_server_gets_a_core_of_its_own() -> None:
    rounds = Rounds([guest("a", BE), guest("b", BE)])
    decision = rounds.round()
    pins = [cpus for name in ("a", "b") for cpus in desired(decision, name).vcpu_cpus.values()]
    assert all(len(cpus) == 1 for cpus in pins)
    assert len(set(pins)) == 4
    assert any(reason.term == "mapped" for reason in desired(decision, "a").reasons)


def test_f_001_06_local_memory_follows_the_cores() -> None:
    rounds = Rounds([guest("a", {**BE, "numa_ext:memory_policy": "local"}, node=3)])
    found = desired(rounds.round(), "a")
    assert found.memory_shares is not None
    assert found.memory_shares[found.nodes[0]] == 1.0


def test_local_memory_that_strayed_is_brought_back_after_a_restart() -> None:
    strayed = guest("a", {**BE, "numa_ext:memory_policy": "local"}, cpus=("4", "5"), node=3)
    found = desired(Rounds([strayed]).round(), "a")
    assert found.nodes == (1,)
    assert found.memory_shares is not None
    assert found.memory_shares[1] == 1.0


def test_a_dedicated_server_keeps_its_assignment_and_its_cores() -> None:
    lc = guest("lc", LC, cpus=("0", "1"))
    rounds = Rounds([lc, guest("be", BE)])
    decision = rounds.round()
    assert desired(decision, "lc").vcpu_cpus == {}
    used = {cpu for cpus in desired(decision, "be").vcpu_cpus.values() for cpu in cpus}
    assert not used & {0, 1}


def test_a_devil_keeps_out_of_the_cache_of_a_latency_critical_server() -> None:
    lc = guest("lc", LC, cpus=("0", "1"))
    devil = guest("devil", {**BE, "numa_ext:interference_class": "devil"})
    found = desired(Rounds([lc, devil]).round(), "devil")
    assert 0 not in found.nodes
    assert found.partition is not None
    assert dict(found.partition.mba_percent) == {found.nodes[0]: 100}


@pytest.mark.parametrize(
    ("claim", "leaves"),
    [({"resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000"}, True), ({}, False)],
)
def test_a_devil_leaves_its_home_for_a_rabbit_that_has_claimed_the_cache(
    claim: dict[str, str], leaves: bool
) -> None:
    """Neighbours drive no server from its home; what Placement has counted does."""
    rounds = Rounds([guest("devil", {**BE, "numa_ext:interference_class": "devil"})])
    (home,) = desired(rounds.round(), "devil").nodes
    rabbit = guest(
        "rabbit", {**BE, "hw:numa_nodes": "1", "numa_ext:interference_class": "rabbit", **claim}
    )
    pins = dict.fromkeys(range(2), frozenset(range(4 * home, 4 * home + 4)))
    bound = replace(rabbit.workload, domain=replace(rabbit.workload.domain, vcpu_pins=pins))
    rounds.guests.append(replace(rabbit, workload=bound))
    assert (home not in desired(rounds.round(), "devil").nodes) == leaves


def test_bandwidth_levels_follow_the_cores_into_the_cache_of_an_lc() -> None:
    lc = guest("lc", LC, cpus=("0", "1"))
    fillers = [guest(f"f{n}", {"numa_ext:tier": "BE"}, vcpus=4) for n in range(3)]
    decision = Rounds([lc, *fillers, guest("late", BE)]).round()
    beside = [name for name in ("f0", "f1", "f2", "late") if 0 in desired(decision, name).nodes]
    assert len(beside) == 1
    partition = desired(decision, beside[0]).partition
    assert partition is not None
    assert dict(partition.mba_percent)[0] == QUICK.rdt.be_mba_percent


def test_on_an_overcommitted_host_the_simple_rule_stays() -> None:
    rounds = Rounds([guest(f"s{n}", BE, vcpus=4) for n in range(5)])
    decision = rounds.round()
    left = [a for a in decision.assignments if not a.vcpu_cpus]
    assert len(left) == 1
    assert "host_full" in {reason.term for reason in left[0].reasons}
    assert rounds.round() == decision, "the same is reported once, whatever is free by then"


def test_bwap_starts_at_the_canonical_weights_and_climbs_with_real_moves() -> None:
    rounds = Rounds([guest("a", {**BE, "numa_ext:memory_policy": "bwap"})])
    rounds.counters = {"a": ServerCounters(ipc=1.0, mpi=0.02, stall_rate=1.0)}
    rounds.canonical = {
        frozenset({n}): {m: 0.4 if m == n else 0.2 for m in range(4)} for n in range(4)
    }
    first = desired(rounds.round(), "a")
    assert first.memory_shares is None, "nothing moves before it is steady"
    home = first.nodes[0]
    for _ in range(QUICK.bwap.stable_samples - 2):
        rounds.round()
    shares = []
    for _ in range(120):
        decision = rounds.round()
        rounds.obey(decision)
        here = desired(decision, "a").memory_shares
        assert here is not None
        assert sum(here.values()) == pytest.approx(1.0)
        shares.append(here[home])
        rounds.counters = {
            "a": ServerCounters(ipc=1.0, mpi=0.02, stall_rate=1 + (here[home] - 0.7) ** 2)
        }
    assert shares[0] == pytest.approx(0.4)
    assert shares[-1] == pytest.approx(0.7, abs=0.06)


def test_a_search_waits_for_pages_that_it_can_divide() -> None:
    """A guest that starts has a few huge pages: they would count as placed wherever they are, and steps as measured."""
    whole = guest("a", {**BE, "numa_ext:memory_policy": "bwap_uniform"})
    starting = replace(whole, ram=(whole.ram[0]._replace(resident_kb=((3, 6 * 1024),)),))
    rounds = Rounds([starting])
    rounds.counters = {"a": ServerCounters(mpi=0.02, stall_rate=1.0)}
    for _ in range(3 * QUICK.bwap.stable_samples):
        assert desired(rounds.round(), "a").memory_shares is None
    rounds.guests = [replace(one, ram=whole.ram) for one in rounds.guests]
    for _ in range(QUICK.bwap.stable_samples):
        found = desired(rounds.round(), "a")
    assert found.memory_shares == pytest.approx(dict.fromkeys(range(4), 0.25))


def test_a_search_whose_pages_cannot_be_divided_any_more_keeps_no_other_one_waiting() -> None:
    """Its guest has started again; it goes on when that has its memory back."""
    specs = {**BE, "numa_ext:memory_policy": "bwap_uniform"}
    options = replace(QUICK, bwap=replace(QUICK.bwap, at_once=1))
    rounds = Rounds([guest("a", specs), guest("b", specs)], options)
    rounds.counters = dict.fromkeys("ab", ServerCounters(mpi=0.02, stall_rate=1.0))

    def begun() -> set[str]:
        for _ in range(2 * options.bwap.stable_samples):
            rounds.round()
        known = rounds.state.memory
        found = {name for name in "ab" if known[name].begun}
        assert {name for name in "ab" if known[name].moving} == found
        assert read_often(known, options.bwap) == found
        return found

    (first,) = begun()
    whole = rounds.guests
    few = tuple(one.ram[0]._replace(resident_kb=((3, 6 * 1024),)) for one in whole)
    rounds.guests = [
        replace(one, ram=(little,)) if one.uuid == first else one
        for one, little in zip(whole, few, strict=True)
    ]
    assert begun() == {"a", "b"} - {first}
    rounds.guests = whole
    assert begun() == {"a", "b"}


def test_a_search_that_leaves_the_queue_says_no_more_that_it_waits_for_its_turn() -> None:
    specs = {**BE, "numa_ext:memory_policy": "bwap_uniform"}
    options = replace(QUICK, bwap=replace(QUICK.bwap, at_once=1))
    rounds = Rounds([guest("a", specs), guest("b", specs)], options)
    rounds.counters = dict.fromkeys("ab", ServerCounters(mpi=0.02, stall_rate=1.0))

    def queued() -> int:
        decision = rounds.round()
        of_both = [reason.term for name in "ab" for reason in desired(decision, name).reasons]
        return of_both.count("search_queued")

    for _ in range(2 * options.bwap.stable_samples):
        waits = queued()
    assert waits == 1
    rounds.counters = dict.fromkeys("ab", ServerCounters())
    assert queued() == 0


def test_bwap_without_a_calibration_starts_uniform_and_says_so() -> None:
    rounds = Rounds([guest("a", {**BE, "numa_ext:memory_policy": "bwap"})])
    rounds.counters = {"a": ServerCounters(mpi=0.02, stall_rate=1.0)}
    for _ in range(QUICK.bwap.stable_samples):
        found = desired(rounds.round(), "a")
    assert found.memory_shares == pytest.approx(dict.fromkeys(range(4), 0.25))
    assert "memory_policy_used" in {reason.term for reason in found.reasons}


def test_room_that_nova_promised_to_others_is_not_used() -> None:
    rounds = Rounds([guest("a", {**BE, "numa_ext:memory_policy": "uniform_all"}, node=0)])
    rounds.room = {0: 8192, 1: 0, 2: 100, 3: 8192}
    found = desired(rounds.round(), "a").memory_shares
    assert found is not None
    assert found[1] == 0
    assert found[2] * 1024 <= 100


def test_a_paused_server_is_not_touched() -> None:
    one = guest("a", BE)
    paused = replace(one, workload=replace(one.workload, activity=Activity.PAUSED))
    assert desired(Rounds([paused]).round(), "a").vcpu_cpus == {}


def test_a_restart_of_the_agent_moves_no_server() -> None:
    first = Rounds([guest("a", BE), guest("b", BE)])
    decision = first.round()
    pinned = []
    for one in first.guests:
        cpus = tuple(
            str(next(iter(c))) for _, c in sorted(desired(decision, one.uuid).vcpu_cpus.items())
        )
        pinned.append(guest(one.uuid, BE, cpus=cpus))
    again = Rounds(pinned).round()
    assert [a.vcpu_cpus for a in again.assignments] == [a.vcpu_cpus for a in decision.assignments]


def test_mpi_can_guide_the_mapping() -> None:
    options = replace(QUICK, mapping=MappingOptions(metric=PerformanceMetric.MPI))
    rounds = Rounds([guest("a", BE)], options=options)
    rounds.counters = {"a": ServerCounters(ipc=9.0, mpi=0.01)}
    for _ in range(12):
        rounds.round()
    assert rounds.state.mapper.expectations["a"].value == 0.01


def test_cpus_that_nova_gave_to_one_server_are_of_no_other_server_though_it_cannot_be_seen() -> (
    None
):
    """A dedicated server whose process is just not there: its CPUs stay its own."""
    gone = guest("lc", LC)
    pins = {vcpu: frozenset({vcpu}) for vcpu in range(2)}
    domain = replace(gone.workload.domain, vcpu_pins=pins)
    gone = replace(gone, workload=replace(gone.workload, domain=domain), process=None, ram=())
    floating = [guest(f"s{n}", BE, vcpus=2) for n in range(7)]
    decision = Rounds([gone, *floating]).round()
    used = [
        c
        for one in floating
        for cpus in desired(decision, one.uuid).vcpu_cpus.values()
        for c in cpus
    ]
    assert len(used) == len(set(used)) == 14
    assert not {0, 1} & set(used)


def test_f_001_04_the_event_counts_the_cpus_that_the_server_may_use() -> None:
    """Idle CPUs of nova's dedicated set are no room for a floating server."""
    floating = []
    for one in (guest(f"s{n}", BE, vcpus=2) for n in range(3)):
        domain = replace(one.workload.domain, vcpu_cpuset=frozenset({0, 4, 8, 12}))
        floating.append(replace(one, workload=replace(one.workload, domain=domain)))
    decision = Rounds(floating).round()
    (late,) = [a for a in decision.assignments if not a.vcpu_cpus]
    (event,) = [reason for reason in late.reasons if reason.term == "host_full"]
    assert str(event) == "host_full=0 free CPUs (against 2 vCPUs)"
