# SPDX-License-Identifier: Apache-2.0
"""Stories and invariants of the RDT plan and of the way there."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.conf.rdt import RdtOptions
from host_agent.decide.partitions.changes import changes
from host_agent.decide.partitions.classes import BE_PREFIX
from host_agent.decide.partitions.plan import (
    PartitionPlan,
    lc_group,
    plan,
    vm_monitor,
)
from host_agent.model.levels import mba_levels
from host_agent.model.partition import PartitionRequest, Write, WriteKind
from host_agent.model.rdt import (
    Actual,
    BandwidthControl,
    BandwidthUnit,
    CacheControl,
    Capabilities,
    GroupState,
    Monitoring,
    Schemata,
    is_contiguous,
    validate,
    validate_budget,
)
from host_agent.model.terms import Term, sentence
from placement_traits.names import Tier

A, B, C, D = (f"{digit * 8}-0000-4000-8000-00000000000{digit}" for digit in "abcd")


@dataclass
class Host:
    """A resctrl tree as data: 12 ways, the two highest shareable, unless told otherwise."""

    ways: int = 12
    min_bits: int = 1
    shareable: int = 0xC00
    closids: int = 8
    rmids: int = 32
    domains: tuple[int, ...] = (0, 1)
    foreign: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups: dict[str, GroupState] = {"": self._state("", self.full)}
        for name, mask in self.foreign.items():
            self.groups[name] = self._state(name, mask)
        self.found: Schemata | None = {}

    @property
    def full(self) -> int:
        return (1 << self.ways) - 1

    def _state(self, name: str, mask: int) -> GroupState:
        schemata = {"L3": dict.fromkeys(self.domains, mask), "MB": dict.fromkeys(self.domains, 100)}
        return GroupState(name, "shareable", schemata)

    @property
    def capabilities(self) -> Capabilities:
        cache = CacheControl(
            "L3", self.full, self.min_bits, self.shareable, self.closids, self.domains
        )
        percent = BandwidthUnit.PERCENT
        bandwidth = BandwidthControl(10, 100, 10, True, "max", self.closids, percent, self.domains)
        return Capabilities((cache,), bandwidth, Monitoring(self.rmids, ("llc_occupancy",)))

    @property
    def actual(self) -> Actual:
        return Actual(tuple(self.groups[name] for name in sorted(self.groups)))

    def plan(
        self, *requests: PartitionRequest, wasted_ways_max: int = 1, **choices: object
    ) -> PartitionPlan:
        options = RdtOptions(**choices)  # type: ignore[arg-type]
        return plan(
            self.capabilities,
            self.actual,
            requests,
            options,
            found=self.found,
            wasted_ways_max=wasted_ways_max,
        )

    def perform(self, write: Write) -> None:
        """Do what the kernel would do, and refuse what it would refuse."""
        validate(self.capabilities, write.group, write.schemata)
        if write.kind is WriteKind.MOVE_THREADS:
            assert {write.group, write.target} <= self.groups.keys()
            return
        if write.kind is WriteKind.REMOVE_GROUP:
            del self.groups[write.group]
            return
        if write.kind is WriteKind.CREATE_GROUP:
            self.groups[write.group] = self._state(write.group, self.full)
            return
        old = self.groups[write.group]
        monitors, schemata = set(old.monitors), {k: dict(v) for k, v in old.schemata.items()}
        if write.kind is WriteKind.CREATE_MONITOR:
            monitors.add(write.monitor)
        elif write.kind is WriteKind.REMOVE_MONITOR:
            monitors.remove(write.monitor)
        for name, values in write.schemata.items():
            schemata[name].update(values)
        self.groups[write.group] = GroupState(old.name, old.mode, schemata, tuple(sorted(monitors)))

    def apply(self, *requests: PartitionRequest, **choices: object) -> PartitionPlan:
        found = self.plan(*requests, **choices)
        for write in changes(self.actual, found):
            self.perform(write)
        self.found = found.found
        return found

    def mask(self, group: str, domain: int = 0) -> int:
        return self.groups[group].schemata["L3"][domain]

    def level(self, group: str, domain: int = 0) -> int:
        return self.groups[group].schemata["MB"][domain]


def lc(uuid: str, ways: int, *domains: int) -> PartitionRequest:
    where = domains or (0,)
    return PartitionRequest(uuid, Tier.LC, tuple(where), ways=dict.fromkeys(where, ways))


def be(uuid: str, percent: int = 100, *domains: int) -> PartitionRequest:
    where = domains or (0, 1)
    levels = dict.fromkeys(where, percent)
    return PartitionRequest(uuid, Tier.BE, tuple(where), mba_percent=levels)


# -- stories --


def test_an_lc_alone_takes_its_ways_from_root_and_be() -> None:
    host = Host()
    found = host.apply(lc(A, 4), be(B, 50))

    assert host.mask(lc_group(A)) == 0x00F
    assert host.mask("") == host.mask("numa_ext-be-0") == 0xFF0
    assert host.level("numa_ext-be-0") == 50
    place = found.get(A)
    assert (
        place is not None and place.exclusive and place.group == lc_group(A) and place.monitor == ""
    )
    assert [str(reason) for reason in place.reasons] == ["partition_ways[L3 0]=4 (against 4)"]


def test_root_keeps_everything_where_no_lc_runs() -> None:
    host = Host()
    host.apply(lc(A, 4, 0))

    assert host.mask("", 1) == host.full
    assert host.mask(lc_group(A), 1) == host.full  # Intel has no empty mask; it does not run there


def test_shareable_ways_are_never_given_as_exclusive() -> None:
    host = Host()
    found = host.apply(lc(A, 10))

    assert found.get(A) is None
    assert found.refused[0].sentence == (
        f"server {A} gets no RDT partition: 10 exclusive ways in L3 0 do not fit, 9 are free; "
        "0 of 10 ways that can be exclusive are other servers'; 1 must stay shared"
    )
    assert host.apply(lc(A, 9)).get(A) is not None
    assert host.mask("") == 0xE00


def test_a_refused_lc_leaves_the_others_and_the_tree_alone() -> None:
    host = Host()
    host.apply(lc(B, 6))
    before = host.actual
    found = host.plan(lc(A, 4), lc(B, 6))

    assert [refusal.uuid for refusal in found.refused] == [A]  # the newcomer, though first by name
    assert changes(before, found) == ()


def test_an_impossible_lc_pushes_no_possible_one_out() -> None:
    host = Host(ways=8, shareable=0)
    impossible = PartitionRequest(A, Tier.LC, (0, 1), ways={0: 4, 1: 9})
    found = host.apply(impossible, lc(B, 4))

    assert [place.uuid for place in found.places] == [B]
    assert [refusal.sentence for refusal in found.refused] == [
        f"server {A} gets no RDT partition: 9 exclusive ways in L3 1 do not fit, 7 are free; "
        "0 of 8 ways that can be exclusive are other servers'; 1 must stay shared"
    ]
    assert changes(host.actual, host.plan(impossible, lc(B, 4))) == ()


def test_an_lc_without_room_leaves_its_class_of_service_to_the_next() -> None:
    host = Host(closids=4)  # root, two LCs, one class for best-effort servers
    found = host.plan(lc(A, 2), lc(B, 12), lc(C, 2))

    assert [place.uuid for place in found.places] == [A, C]
    assert [refusal.uuid for refusal in found.refused] == [B]


def test_a_refusal_blames_only_servers_that_have_something() -> None:
    host = Host(ways=8, shareable=0)
    found = host.plan(lc(A, 5), lc(B, 6), lc(C, 4))

    assert [place.uuid for place in found.places] == [A]
    held = [reason for refusal in found.refused for reason in refusal.reasons[1:2]]
    assert [str(reason) for reason in held] == ["ways_held[L3 0]=5 (against 8)"] * 2


def test_a_departure_gives_the_ways_back_and_moves_the_least() -> None:
    host = Host()
    host.apply(lc(A, 3), lc(B, 1), lc(C, 2))
    assert [host.mask(lc_group(u)) for u in (A, B, C)] == [0x007, 0x008, 0x030]

    host.apply(lc(A, 3), lc(C, 2))
    assert host.mask(lc_group(C)) == 0x030  # a hole of one way is not worth a move
    assert host.mask("") == 0xFC0

    host.apply(lc(C, 2))
    assert host.mask(lc_group(C)) == 0x003  # four ways are
    assert host.mask("") == 0xFFC


def test_a_newcomer_that_does_not_fit_between_makes_others_move_together() -> None:
    host = Host()
    host.apply(lc(A, 3), lc(B, 3), lc(C, 2), wasted_ways_max=12)
    host.apply(lc(A, 3), lc(C, 2), wasted_ways_max=12)
    assert host.mask(lc_group(C)) == 0x0C0
    found = host.plan(lc(A, 3), lc(C, 2), lc(D, 4), wasted_ways_max=12)
    lines = [str(write) for write in changes(host.actual, found)]

    assert not found.refused
    assert lines[0] == f"create group {lc_group(D)}"
    host.apply(lc(A, 3), lc(C, 2), lc(D, 4), wasted_ways_max=12)
    masks = [host.mask(lc_group(u)) for u in (A, C, D)]
    assert [mask.bit_count() for mask in masks] == [3, 2, 4]
    assert host.mask("") & (masks[0] | masks[1] | masks[2]) == 0


def test_writes_take_away_before_they_give() -> None:
    host = Host()
    host.apply(lc(A, 2), be(B, 80))
    found = host.plan(lc(A, 2), lc(C, 3), be(B, 30))

    assert [str(write) for write in changes(host.actual, found)] == [
        f"create group {lc_group(C)}",
        "schemata (root) L3:0=fe0",
        "schemata numa_ext-be-0 L3:0=fe0 MB:0=30;1=30",
        f"schemata {lc_group(C)} L3:0=1c",
        f"schemata {lc_group(C)} L3:1=fff MB:0=100;1=100",
    ]


def test_a_foreign_group_is_avoided_and_never_touched() -> None:
    host = Host(foreign={"libvirt": 0x00F})
    found = host.apply(lc(A, 3))

    assert host.mask(lc_group(A)) == 0x070
    place = found.get(A)
    assert place is not None and place.exclusive
    assert host.mask("libvirt") == 0x00F


def test_a_foreign_group_that_has_all_ways_is_told() -> None:
    host = Host(foreign={"other": 0xFFF})
    place = host.apply(lc(A, 3)).get(A)

    assert place is not None and not place.exclusive
    assert str(place.reasons[-1]) == "ways_shared_with[L3 0]=7 (against other)"


def test_monitoring_groups_of_others_cost_rmids_as_ours_do() -> None:
    host = Host(rmids=7)
    host.groups[""] = replace(host.groups[""], monitors=tuple(f"pid-{n}" for n in range(4)))
    found = host.apply(lc(A, 2), be(B), be(C))

    names = {group.name for group in found.groups}
    assert names == {lc_group(A), f"{BE_PREFIX}0"}, "seven ids: root's, four of others, two"
    assert not any(place.monitor for place in found.places)
    validate_budget(host.capabilities, len(found.groups), 4)


@pytest.mark.parametrize("mode", ["exclusive", "pseudo-locked"])
def test_the_shared_run_is_never_squeezed_in_beside_a_closed_foreign_group(mode: str) -> None:
    """One way is left above the foreign group, three below it; a mask needs two."""
    host = Host(ways=8, min_bits=2, shareable=0, domains=(0,), foreign={"qemu": 0b01111000})
    host.groups["qemu"] = replace(host.groups["qemu"], mode=mode)
    host.groups[""] = host._state("", 0b00000111)
    found = host.apply(be(B))

    assert host.mask(f"{BE_PREFIX}0") == 0b00000111
    check_plan(host, [be(B, 100, 0)], found)


def test_root_is_not_widened_over_a_foreign_group_that_was_kept_apart() -> None:
    host = Host(foreign={"libvirt": 0x00F})
    host.groups[""] = host._state("", 0xFF0)  # an operator did this for libvirt
    host.apply(be(B))

    assert host.mask("") == 0xFF0
    assert host.mask("numa_ext-be-0") == 0xFF0


def test_without_an_lc_root_keeps_what_an_operator_gave_it() -> None:
    host = Host()
    host.groups[""] = host._state("", 0x00F)
    host.apply(be(B))

    assert host.mask("") == 0x00F


def test_root_is_given_back_as_it_was_found() -> None:
    host = Host()
    host.groups[""] = host._state("", 0x03F)
    host.apply(lc(A, 4))
    assert (host.mask(lc_group(A)), host.mask(""), host.mask("", 1)) == (0x00F, 0x030, 0x03F)
    host.apply(lc(A, 6))
    assert host.mask("") == 0xFC0  # nothing of its own is left: it shares with the others
    host.apply()

    assert host.mask("") == 0x03F
    assert host.found == {}


def test_on_its_way_to_other_ways_a_mask_is_never_narrower_than_the_kernel_takes() -> None:
    """One way of root's stays its own, a mask needs two: so root goes over the ways that are always shared."""
    host = Host(min_bits=2, shareable=0)
    host.groups[""] = host._state("", 0x01F)
    host.apply(lc(A, 4))

    assert (host.mask(lc_group(A)), host.mask("")) == (0x00F, 0xFF0)


def test_a_server_that_becomes_latency_critical_waits_in_root_for_its_group() -> None:
    host = Host()
    host.apply(be(A))
    writes = changes(host.actual, host.plan(lc(A, 2)))

    assert [str(write) for write in writes[:2]] == [
        f"remove group {BE_PREFIX}0",
        f"create group {lc_group(A)}",
    ]


def test_threads_of_a_class_that_goes_move_straight_to_the_other() -> None:
    host = Host(closids=4)
    host.apply(be(A, 20), be(B, 90), be(C, 90))
    writes = changes(host.actual, host.plan(lc(D, 2), be(A, 20), be(B, 90), be(C, 90)))

    assert [str(write) for write in writes[:2]] == [
        f"move threads {BE_PREFIX}2/{vm_monitor(C)} to {BE_PREFIX}1",
        f"remove group {BE_PREFIX}2",
    ]


def test_root_gets_the_ways_of_a_foreign_group_back_if_it_had_them() -> None:
    host = Host(foreign={"libvirt": 0x00F})
    host.apply(lc(A, 2))
    assert host.mask("") == 0xFC0
    host.apply()

    assert host.mask("") == host.full


def test_a_shrunk_root_without_memory_gets_all_ways_back() -> None:
    host = Host()
    host.apply(lc(A, 4))
    host.found = None
    host.apply()

    assert host.mask("") == host.full


def test_leaving_root_alone_from_now_on_gives_its_ways_back() -> None:
    host = Host()
    host.apply(lc(A, 3))
    host.apply(lc(A, 3), shrink_root=False)

    assert host.mask("") == host.full


def test_root_can_be_left_alone_but_then_nobody_is_exclusive() -> None:
    host = Host()
    place = host.apply(lc(A, 3), shrink_root=False).get(A)

    assert host.mask("") == host.full
    assert place is not None and not place.exclusive
    assert place.reasons[-1].against == "root"


def test_be_classes_are_borrowed_and_merged_where_it_costs_least() -> None:
    host = Host(closids=5)
    bes = (be(A, 20), be(B, 90), be(C, 80))
    host.apply(*bes)
    assert sorted(host.groups) == ["", "numa_ext-be-0", "numa_ext-be-1", "numa_ext-be-2"]

    found = host.apply(*bes, lc(D, 2), lc("e" * 36, 2))
    groups = {place.uuid: place.group for place in found.places}
    assert groups[B] == groups[C] != groups[A]
    assert host.level(groups[B]) == 80  # the lower of 90 and 80: an LC is never hurt by it
    assert host.level(groups[A]) == 20
    assert set(host.groups[groups[B]].monitors) == {vm_monitor(B), vm_monitor(C)}

    split = host.apply(*bes, lc(D, 2))
    assert len({split.get(u).group for u in (A, B, C)}) == 3  # type: ignore[union-attr]


def test_one_class_always_stays_for_best_effort() -> None:
    host = Host(closids=3)
    found = host.apply(lc(A, 1), lc(B, 1))

    assert [place.uuid for place in found.places] == [A]
    assert "no class of service is left" in found.refused[0].sentence


def test_too_few_monitoring_ids_are_told_and_keep_their_owners() -> None:
    host = Host(rmids=5)
    found = host.apply(be(A), be(B), be(C))

    monitored = [place.uuid for place in found.places if place.monitor]
    assert monitored == [A]
    place = found.get(B)
    assert place is not None and place.reasons[-1].term is Term.NO_RMID
    assert changes(host.actual, host.plan(be(A), be(B), be(C))) == ()


def test_a_monitoring_group_knows_better_than_memory_where_a_server_is() -> None:
    host = Host(closids=4)
    host.apply(be(A), be(B), be(C))
    wrong = {A: f"{BE_PREFIX}2", B: f"{BE_PREFIX}0", C: f"{BE_PREFIX}1"}
    found = plan(
        host.capabilities, host.actual, [be(A), be(B), be(C)], found=host.found, before=wrong
    )

    assert changes(host.actual, found) == ()


def test_memory_of_a_class_that_is_gone_is_nothing() -> None:
    host = Host()
    found = plan(
        host.capabilities, host.actual, [be(A)], found=host.found, before={A: f"{BE_PREFIX}7"}
    )

    assert [place.group for place in found.places] == [f"{BE_PREFIX}0"]


def test_a_host_without_l3_cat_refuses_lcs_with_ways_only() -> None:
    host = Host()
    bandwidth = host.capabilities.bandwidth
    only_mba = Capabilities((), bandwidth, None)
    root = GroupState("", "shareable", {"MB": {0: 100, 1: 100}})
    found = plan(only_mba, Actual((root,)), [lc(A, 3), be(B, 40)])

    assert found.refused[0].reasons[0].term is Term.NO_L3_CAT
    assert found.groups[0].schemata == {"MB": {0: 40, 1: 40}}
    assert found.root == {}


def test_an_unknown_domain_is_refused_with_those_there_are() -> None:
    found = Host().plan(lc(A, 2, 7))

    assert found.refused[0].sentence.endswith("L3 domain 7 is not one of [0, 1]")


def test_tampered_masks_are_put_right() -> None:
    host = Host()
    requests = (lc(A, 3), lc(B, 2), be(C, 50))
    host.apply(*requests)
    good = host.actual
    host.perform(Write(WriteKind.SCHEMATA, lc_group(A), schemata={"L3": {0: 0x01F}}))
    host.perform(Write(WriteKind.SCHEMATA, "", schemata={"L3": {0: 0xFFF}}))
    host.apply(*requests)

    assert host.actual == good


def test_bandwidth_of_amd_is_an_absolute_limit() -> None:
    """A level is a share of what an L3 domain draws: 40 GB/s; the largest value, 256 GB/s, is none of its figures."""
    amd = BandwidthControl(0, 2048, 1, False, None, 16, BandwidthUnit.EIGHTH_GBPS, (0,), full=320)

    assert [amd.from_percent(p) for p in (1, 10, 50, 100)] == [4, 32, 160, 2048]


def test_absolute_levels_throttle_nothing_until_it_is_known_what_they_are_of() -> None:
    """Half of 256 GB/s is no limit to a CCX that draws 40."""
    host = Host()
    amd = BandwidthControl(0, 2048, 1, False, None, 16, BandwidthUnit.EIGHTH_GBPS, (0, 1))
    capabilities = Capabilities(host.capabilities.caches, amd, host.capabilities.monitoring)
    found = plan(capabilities, host.actual, [lc(A, 3), be(B, 20)])

    assert [group.schemata["MB"] for group in found.groups] == [{0: 2048, 1: 2048}] * 2
    (place,) = (place for place in found.places if place.uuid == B)
    assert place.reasons[0].term is Term.MBA_NOT_CALIBRATED
    assert "calibrate levels" in sentence(place.reasons[0])
    assert mba_levels(amd) == (), "the SLO controller has none either"
    assert mba_levels(replace(amd, full=320)) == tuple(range(10, 101, 10))


def test_the_kernels_own_bandwidth_loop_is_left_alone() -> None:
    host = Host()
    loop = BandwidthControl(10, 2**32 - 1, 10, True, "max", 8, BandwidthUnit.MBPS, (0, 1))
    capabilities = Capabilities(host.capabilities.caches, loop, host.capabilities.monitoring)
    found = plan(capabilities, host.actual, [be(A, 20)])

    assert "MB" not in found.groups[0].schemata
    assert found.places[0].reasons[0].term is Term.MBA_OF_KERNEL


# -- invariants --

WAYS = st.sampled_from([4, 8, 11, 12, 16, 20])


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    ways = draw(WAYS)
    min_bits = draw(st.sampled_from([1, 1, 2]))
    top, middle = 0b11 << (ways - 2), 0b11 << (ways // 2)
    shareable = draw(st.sampled_from([0, top, 1 << (ways - 1), middle]))
    foreign = {}
    if draw(st.integers(0, 3)) == 0:
        first = draw(st.integers(0, ways - min_bits))
        length = draw(st.integers(min_bits, ways - first))
        foreign["foreign"] = ((1 << length) - 1) << first
    domains = tuple(range(draw(st.sampled_from([1, 2, 4]))))
    closids = draw(st.sampled_from([4, 8, 16]))
    rmids = draw(st.sampled_from([16, 32, 64]))
    host = Host(ways, min_bits, shareable, closids, rmids, domains, foreign)
    if draw(st.booleans()):  # an operator has chosen root's ways
        first = draw(st.integers(0, ways - min_bits))
        length = draw(st.integers(min_bits, ways - first))
        host.groups[""] = host._state("", ((1 << length) - 1) << first)
    monitors = tuple(f"pid-{n}" for n in range(draw(st.sampled_from([0, 0, 4, 13]))))
    host.groups[""] = replace(host.groups[""], monitors=monitors)
    return host


@st.composite
def drawn_requests(draw: st.DrawFn, host: Host, number: int) -> PartitionRequest:
    where = draw(st.lists(st.sampled_from(host.domains), min_size=1, unique=True))
    uuid = f"{number:08x}-0000-4000-8000-000000000000"
    if draw(st.booleans()):
        amounts = {d: draw(st.integers(1, max(1, host.ways // 2))) for d in where}
        return PartitionRequest(uuid, Tier.LC, tuple(where), ways=amounts)
    levels = {d: 10 * draw(st.integers(1, 10)) for d in where}
    return PartitionRequest(uuid, Tier.BE, tuple(where), mba_percent=levels)


def check_plan(host: Host, requests: Sequence[PartitionRequest], found: PartitionPlan) -> None:
    """Legal, complete, disjoint, honoured."""
    for group in found.groups:
        validate(host.capabilities, group.name, group.schemata)
        assert all(is_contiguous(mask) for mask in group.schemata["L3"].values())
    validate(host.capabilities, "", found.root)
    monitors = sum(len(group.monitors) for group in found.groups)
    monitors += len(host.groups[""].monitors)
    validate_budget(host.capabilities, len(found.groups) + len(host.foreign), monitors)
    assert {place.uuid for place in found.places} | {r.uuid for r in found.refused} == {
        w.uuid for w in requests
    }
    by_name = {group.name: group for group in found.groups}
    for request in requests:
        place = found.get(request.uuid)
        if place is None or request.tier is Tier.BE:
            continue
        for domain, ways in request.ways.items():
            mask = by_name[place.group].schemata["L3"][domain]
            assert mask.bit_count() == max(ways, host.min_bits)
            assert not mask & host.shareable
            others = [g.schemata["L3"][domain] for g in found.groups if g.name != place.group]
            assert not any(mask & other for other in [*others, found.root["L3"][domain]])
            if place.exclusive:
                assert not any(mask & mask_there for mask_there in host.foreign.values())


def check_steps(host: Host, found: PartitionPlan) -> None:
    """Perform one command at a time.

    Never do two LCs overlap, never has one less than the smaller of its old and its new amount, and who shared no way
    with an LC before never shares one on the way.
    """
    own = {group.name: group.exclusive for group in found.groups}

    def lcs_at_work(domain: int) -> dict[str, int]:
        anchor = found.anchors[domain]
        masks = {n: host.mask(n, domain) for n in own if n in host.groups and domain in own[n]}
        return {name: mask for name, mask in masks.items() if not mask & anchor}

    before = {domain: lcs_at_work(domain) for domain in host.domains}
    planned = {group.name: group.schemata["L3"] for group in found.groups}
    sharing = [name for name in host.groups if name == "" or name.startswith(BE_PREFIX)]
    apart = {
        (lc, name, domain)
        for domain in host.domains
        for lc, mask in before[domain].items()
        for name in sharing
        if not mask & host.mask(name, domain)
    }
    for write in changes(host.actual, found):
        host.perform(write)
        for domain in host.domains:
            masks = lcs_at_work(domain)
            assert sum(m.bit_count() for m in masks.values()) == sum(masks.values()).bit_count()
            for name, mask in before[domain].items():
                least = min(mask.bit_count(), planned[name][domain].bit_count())
                assert masks[name].bit_count() >= least, f"{write}: {name} lost ways"
            for name, mask in masks.items():
                for other in host.groups.keys() & set(sharing):
                    if (name, other, domain) in apart:
                        assert not mask & host.mask(other, domain), f"{write}: {other} in {name}"
    host.found = found.found


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_sequence_of_arrivals_and_departures(data: st.DataObject) -> None:
    host = data.draw(hosts())
    root = host.groups[""]
    present: dict[str, PartitionRequest] = {}
    for number in range(data.draw(st.integers(1, 7))):
        if present and data.draw(st.integers(0, 2)) == 0:
            del present[data.draw(st.sampled_from(sorted(present)))]
        else:
            request = data.draw(drawn_requests(host, number))
            present[request.uuid] = request
        requests = list(present.values())
        found = host.plan(*requests)
        check_plan(host, requests, found)
        check_steps(host, found)
        again = host.plan(*reversed(requests))
        assert changes(host.actual, again) == (), "planning on the planned state changes something"
        assert {r.uuid for r in again.refused} == {r.uuid for r in found.refused}
    host.apply()
    assert host.actual.root.schemata == root.schemata, "root is not given back as it was found"


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_crash_between_any_two_commands_ends_in_the_same_masks(data: st.DataObject) -> None:
    host = data.draw(hosts())
    first = [data.draw(drawn_requests(host, n)) for n in range(3)]
    second = [*first[1:], data.draw(drawn_requests(host, 9))]
    host.apply(*first)
    found = host.plan(*second)
    writes = changes(host.actual, found)
    done = data.draw(st.integers(0, len(writes)))
    for write in writes[:done]:
        host.perform(write)
    for write in changes(host.actual, found):
        host.perform(write)

    assert changes(host.actual, found) == ()
    check_plan(host, second, host.plan(*second))


@pytest.mark.parametrize("ways", [11, 12, 16, 20])
def test_every_amount_up_to_the_inventory_fits_one_lc(ways: int) -> None:
    """What Placement counts (all ways, less the shareable ones, less one) can be given."""
    host = Host(ways=ways, shareable=0b11 << (ways - 2))
    for amount in range(1, ways - 2):
        assert host.plan(lc(A, amount)).get(A) is not None
    assert host.plan(lc(A, ways - 2)).get(A) is None
