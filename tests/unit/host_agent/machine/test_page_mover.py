# SPDX-License-Identifier: Apache-2.0
"""The page mover against a model of the kernel with its traps: folios, refusals, cpusets, stale entries."""

import errno
from array import array
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.machine.privileged.page_mover import UNIT, UNIT_PAGES, Sweep
from host_agent.machine.privileged.syscalls import PAGE
from host_agent.model.process import MoveLimits, MoveReport, RamRange, Target

START = 0x7F0000000000
NO_LIMIT = MoveLimits(1 << 40, 0, 3600.0)


class Memory:
    """Pages on nodes; those of a huge page share a folio and move together, once per entry that names another node."""

    def __init__(
        self, units: Sequence[tuple[int, bool]], allowed: frozenset[int] = frozenset(range(4))
    ) -> None:
        self.folio_of: dict[int, int] = {}
        self.node: dict[int, int] = {}
        self.allowed = allowed
        self.bytes_copied = 0
        self.calls = 0
        self.stubborn: dict[int, int] = {}
        for number, (node, huge) in enumerate(units):
            for page in range(UNIT_PAGES):
                address = START + number * UNIT + page * PAGE
                folio = START + number * UNIT if huge else address
                self.folio_of[address] = folio
                self.node[folio] = node
        self.end = START + len(units) * UNIT

    def locate(self, pid: int, addresses: "array[int]") -> "array[int]":
        return array(
            "i",
            (
                self.node[self.folio_of[address]] if address in self.folio_of else -errno.ENOENT
                for address in addresses
            ),
        )

    def move(self, pid: int, addresses: "array[int]", nodes: Sequence[int]) -> int:
        if not set(nodes) <= self.allowed:
            raise OSError(errno.EACCES, "Permission denied")
        self.calls += 1
        failed = 0
        for address, node in zip(addresses, nodes, strict=True):
            folio = self.folio_of.get(address)
            if folio is None or self.node[folio] == node:
                continue
            if self.stubborn.get(folio, 0) > 0:
                self.stubborn[folio] -= 1
                failed += 1
                continue
            self.node[folio] = node
            self.bytes_copied += (
                UNIT if self.folio_of[address] % UNIT == 0 and self._huge(folio) else PAGE
            )
        return failed

    def _huge(self, folio: int) -> bool:
        return self.folio_of.get(folio + PAGE) == folio

    def pages(self) -> Counter[int]:
        return Counter(self.node[folio] for folio in self.folio_of.values())

    def run(
        self, shares: dict[int, float], limits: MoveLimits = NO_LIMIT, thp: bool = True
    ) -> MoveReport:
        sweep = self.sweep(shares, thp)
        return sweep.advance(limits, clock=lambda: 0.0, sleep=lambda _s: None)

    def ram(self, thp: bool = True) -> RamRange:
        resident = Counter(self.node[folio] for folio in self.folio_of.values())
        kib = tuple((node, pages * PAGE // 1024) for node, pages in sorted(resident.items()))
        return RamRange(START, self.end, (), 4, 1 if thp else 0, kib)

    def sweep(self, shares: dict[int, float], thp: bool = True, begin: int = 0) -> Sweep:
        target = Target(START, self.end, tuple(sorted(shares.items())))
        return Sweep(self, 1, [self.ram(thp)], [target], begin)


def test_huge_pages_are_moved_by_one_address_each() -> None:
    memory = Memory([(0, True)] * 16)
    report = memory.run({2: 1.0})
    assert memory.pages() == {2: 16 * UNIT_PAGES}
    assert memory.bytes_copied == 16 * UNIT
    left = (memory.ram(),)
    assert report == MoveReport(16 * UNIT // 1024, 0, 0, 2, 0.0, "", 0.0, left)


def test_small_pages_that_looked_like_huge_ones_follow() -> None:
    """The mapping has huge pages, but these units are made of small ones: the first address moves one page only."""
    memory = Memory([(0, False), (0, True), (0, False)])
    report = memory.run({1: 1.0})
    assert memory.pages() == {1: 3 * UNIT_PAGES}
    assert (report.remaining_kb, report.failed) == (0, 0)


def test_weights_are_reached_with_the_fewest_bytes() -> None:
    memory = Memory([(0, True)] * 100)
    memory.run({0: 0.5, 1: 0.25, 2: 0.15, 3: 0.1})
    assert memory.pages() == {
        node: pages * UNIT_PAGES for node, pages in {0: 50, 1: 25, 2: 15, 3: 10}.items()
    }
    assert memory.bytes_copied == 50 * UNIT


def test_done_again_it_moves_nothing() -> None:
    memory = Memory([(0, True)] * 37)
    memory.run({0: 0.6, 1: 0.4})
    copied = memory.bytes_copied
    report = memory.run({0: 0.6, 1: 0.4})
    assert (memory.bytes_copied, report.calls, report.moved_kb) == (copied, 0, 0)


def test_pages_that_are_busy_are_tried_again() -> None:
    memory = Memory([(0, False)] * 2)
    memory.stubborn = {START + n * PAGE: 2 for n in range(100)}
    report = memory.run({1: 1.0}, thp=False)
    assert memory.pages() == {1: 2 * UNIT_PAGES}
    assert report.failed == 0


def test_pages_that_never_move_are_counted() -> None:
    memory = Memory([(0, False)])
    memory.stubborn = {START: 10**6, START + PAGE: 10**6}
    report = memory.run({1: 1.0}, thp=False)
    assert (report.failed, report.remaining_kb) == (2, 8)
    assert report.ram == (), "where they are is for a full pass to find"


def test_a_node_outside_the_cpuset_is_told_and_nothing_moves() -> None:
    memory = Memory([(0, True)] * 4, allowed=frozenset({0, 1}))
    report = memory.run({3: 1.0})
    assert "never widened" in report.problem
    assert report.ram == ()
    assert memory.pages() == {0: 4 * UNIT_PAGES}


def test_a_range_that_is_not_guest_memory_is_refused() -> None:
    memory = Memory([(0, True)])
    alien = Target(START + UNIT, memory.end + UNIT, ((1, 1.0),))
    report = Sweep(memory, 1, [memory.ram()], [alien]).advance(NO_LIMIT)
    assert "is not guest memory" in report.problem
    assert memory.calls == 0


def test_a_byte_limit_leaves_the_rest_for_the_next_call() -> None:
    memory = Memory([(0, True)] * 32)
    report = memory.run({1: 1.0}, MoveLimits(20 * UNIT // 1024, 0, 3600.0))
    assert report.moved_kb == 20 * UNIT // 1024
    assert report.remaining_kb == 12 * UNIT // 1024
    assert memory.run({1: 1.0}).remaining_kb == 0


def test_the_rate_is_kept_by_sleeping() -> None:
    memory = Memory([(0, True)] * 64)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    memory.sweep({1: 1.0}).advance(MoveLimits(1 << 40, 64, 60.0), clock=lambda: now[0], sleep=sleep)
    assert now[0] == 64 * UNIT / 64e6


def test_a_call_never_takes_much_longer_than_the_guest_may_wait() -> None:
    """The kernel needs 10 ms for each huge page: at most twice the limit, and only until that is seen."""
    memory = Memory([(0, True)] * 64)
    now = [0.0]
    sizes: list[int] = []
    move = memory.move

    def slow(pid: int, addresses: "array[int]", nodes: Sequence[int]) -> int:
        sizes.append(len(addresses))
        now[0] += 0.010 * len(addresses)
        return move(pid, addresses, nodes)

    memory.move = slow  # type: ignore[method-assign]
    sweep = memory.sweep({1: 1.0})
    limits = MoveLimits(1 << 40, 0, 0.2, 25.0)
    reports = [sweep.advance(limits, clock=lambda: now[0], sleep=lambda _s: None)]
    while not reports[-1].over:
        reports.append(sweep.advance(limits, clock=lambda: now[0], sleep=lambda _s: None))
    assert memory.pages() == {1: 64 * UNIT_PAGES}
    assert set(sizes) <= {1, 2}
    assert max(report.longest_ms for report in reports) == 20.0


def test_an_easy_host_is_not_kept_at_small_calls() -> None:
    memory = Memory([(0, True)] * 64)
    memory.run({1: 1.0}, MoveLimits(1 << 40, 0, 3600.0, 25.0))
    assert memory.calls < 64 / 4


def test_one_huge_page_that_takes_too_long_moves_all_the_same() -> None:
    memory = Memory([(0, True)] * 4)
    ticks = iter(range(10_000))
    sweep = memory.sweep({1: 1.0})
    report = sweep.advance(
        MoveLimits(1 << 40, 0, 3600.0, 1.0), clock=lambda: float(next(ticks)), sleep=lambda _s: None
    )
    assert (memory.pages(), memory.calls) == ({1: 4 * UNIT_PAGES}, 4)
    assert report.longest_ms == 1000.0


def test_each_call_makes_progress_however_slow_the_host_is() -> None:
    """Looking up alone takes longer than the whole call may: seen on emulated hosts."""
    memory = Memory([(0, True)] * 32)
    now = [0.0]

    def clock() -> float:
        now[0] += 10.0
        return now[0]

    sweep = memory.sweep({1: 1.0})
    left = [32 * UNIT // 1024]
    while left[-1]:
        limits = MoveLimits(1 << 40, 0, 1.0)
        report = sweep.advance(limits, clock=clock, sleep=lambda _s: None)
        left.append(report.remaining_kb)
        assert left[-1] < left[-2]
    assert memory.pages() == {1: 32 * UNIT_PAGES}


def test_a_call_looks_at_no_more_than_it_has_time_for() -> None:
    """A large guest, and a limit that one window uses up: what a call looks up must not grow with the guest."""
    memory = Memory([(0, True)] * 512)
    looked_at = 0
    locate = memory.locate

    def counted(pid: int, addresses: "array[int]") -> "array[int]":
        nonlocal looked_at
        looked_at += len(addresses)
        return locate(pid, addresses)

    memory.locate = counted  # type: ignore[method-assign]
    sweep = memory.sweep({0: 0.5, 1: 0.5})
    report = sweep.advance(
        MoveLimits(1 << 40, 0, 0.01), clock=lambda: looked_at * 1e-5, sleep=lambda _s: None
    )
    assert looked_at < 32 * UNIT_PAGES
    assert not report.over
    assert report.moved_kb + report.remaining_kb == 256 * UNIT // 1024


def test_slices_reach_the_shares_as_one_call_does() -> None:
    """Halves that lie apart: window by window they must not be evened out, for as a whole they are right already."""
    memory = Memory([(0, True)] * 60 + [(1, True)] * 40)
    sweep = memory.sweep({0: 0.5, 1: 0.4, 2: 0.1})
    reports = []
    while not reports or not reports[-1].over:
        reports.append(
            sweep.advance(MoveLimits(1 << 40, 0, 0.0), clock=lambda: 0.0, sleep=lambda _s: None)
        )
    assert len(reports) > 10
    assert memory.pages() == {0: 50 * UNIT_PAGES, 1: 40 * UNIT_PAGES, 2: 10 * UNIT_PAGES}
    assert sum(report.moved_kb for report in reports) == 10 * UNIT // 1024
    assert memory.bytes_copied == 10 * UNIT


def test_a_walk_that_took_long_leaves_it_to_a_full_pass_to_tell_where_the_pages_are() -> None:
    """Its first windows were seen long before its last."""
    told = []
    for slice_s in (0.1, 5.0):
        memory = Memory([(0, True)] * 32)
        sweep = memory.sweep({1: 1.0})
        times = (slice_s * call for call in range(10_000))
        reports = []
        while not reports or not reports[-1].over:
            now = next(times)
            reports.append(
                sweep.advance(
                    MoveLimits(1 << 40, 0, 0.0), clock=lambda now=now: now, sleep=lambda _s: None
                )
            )
        assert [report.ram for report in reports[:-1]] == [()] * (len(reports) - 1)
        told.append(reports[-1].ram)
    assert told == [(memory.ram(),), ()]


def test_a_new_sweep_goes_on_where_the_last_one_stood() -> None:
    memory = Memory([(0, True)] * 32)
    first = memory.sweep({1: 1.0})
    first.advance(MoveLimits(1 << 40, 0, 0.0), clock=lambda: 0.0, sleep=lambda _s: None)
    second = memory.sweep({2: 1.0}, begin=first.cursor)
    assert not first.serves(1, [Target(START, memory.end, ((2, 1.0),))])
    second.advance(MoveLimits(1 << 40, 0, 0.0), clock=lambda: 0.0, sleep=lambda _s: None)
    nodes = [memory.node[START + number * UNIT] for number in range(32)]
    assert nodes == [1] * 8 + [2] * 8 + [0] * 16
    second.advance(NO_LIMIT, clock=lambda: 0.0, sleep=lambda _s: None)
    assert memory.pages() == {2: 32 * UNIT_PAGES}


def test_small_pages_are_counted_once() -> None:
    memory = Memory([(0, False), (0, True)])
    report = memory.run({1: 1.0})
    assert report.moved_kb == 2 * UNIT // 1024


def test_pages_that_are_not_resident_are_left_alone() -> None:
    memory = Memory([(0, False)])
    for page in range(0, UNIT_PAGES, 2):
        del memory.folio_of[START + page * PAGE]
    report = memory.run({1: 1.0}, thp=False)
    assert memory.pages() == {1: UNIT_PAGES // 2}
    assert report.remaining_kb == 0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12),
    st.lists(st.integers(0, 10), min_size=4, max_size=4).filter(any),
)
def test_any_memory_reaches_any_shares(units: list[tuple[int, bool]], weights: list[int]) -> None:
    memory = Memory(units)
    shares = {node: weight / sum(weights) for node, weight in enumerate(weights)}
    report = memory.run(shares)
    assert not report.problem
    assert report.ram == (memory.ram(),), "the mover tells what a full pass would find"
    total = len(units) * UNIT_PAGES
    for node, share in shares.items():
        off = abs(memory.pages().get(node, 0) - share * total)
        assert off <= UNIT_PAGES + 1, (node, share, memory.pages())
