# SPDX-License-Identifier: Apache-2.0
"""How often page tables are walked while the pages of one server are moved step by step: a count, and when it must be
more than one.
"""

import errno
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import guest_ram, processes
from host_agent.machine.privileged.libvirt_state import RunningDomain
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.privileged.syscalls import PAGE
from host_agent.model.process import MoveLimits, MoveReport, RamRange, Target

START = 0x7F0000000000
PAGES = 4096
END = START + PAGES * PAGE
STEPS = 10


class Server:
    """One server of 4,096 small pages; kernel, files of its process and clock in one.

    :ivar walks: over its page tables
    :ivar started: start time of its process
    :ivar stays: pages that the kernel does not move
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = array("i", [0] * PAGES)
        self.walks = 0
        self.now_s = 0.0
        self.started = 1
        self.mapped = [(START, END)]
        self.stays: set[int] = set()
        self.operations = HostOperations(HostPaths(), self, clock=lambda: self.now_s)
        monkeypatch.setattr(processes, "opened", self._opened)
        monkeypatch.setattr(guest_ram, "read", self._read)
        monkeypatch.setattr(guest_ram, "mapped", lambda _process: self.mapped)

    @contextmanager
    def _opened(self, _paths: object, uuid: str, _libvirt: object) -> Iterator[RunningDomain]:
        yield RunningDomain(uuid, 1, started=self.started)

    def _read(self, _process: Path, *, with_thp: bool) -> tuple[RamRange, ...]:
        assert with_thp
        self.walks += 1
        held = tuple((node, count * PAGE // 1024) for node, count in sorted(self.pages.items()))
        return tuple(RamRange(start, end, (), 4, 0, held) for start, end in self.mapped)

    def locate(self, _pid: int, addresses: "array[int]") -> "array[int]":
        return array("i", (self._page(address) for address in addresses))

    def _page(self, address: int) -> int:
        return self.nodes[(address - START) // PAGE] if START <= address < END else -errno.ENOENT

    def move(self, _pid: int, addresses: "array[int]", nodes: Sequence[int]) -> int:
        for address, node in zip(addresses, nodes, strict=True):
            number = (address - START) // PAGE
            if number not in self.stays:
                self.nodes[number] = node
        return 0

    @property
    def pages(self) -> Counter[int]:
        return Counter(self.nodes)

    def bring(self, share: float, max_kb: int = 1 << 40) -> MoveReport:
        """Ask for this part of the pages on node 1, the rest on node 0."""
        limits = MoveLimits(max_kb, 0, 60.0)
        target = Target(START, END, ((0, 1.0 - share), (1, share)))
        return self.operations.move_memory("uuid", [target], limits)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server(monkeypatch)
    found.bring(0.5)
    assert (found.walks, found.pages) == (1, {0: PAGES // 2, 1: PAGES // 2})
    return found


def test_steps_of_a_search_walk_once(server: Server) -> None:
    """Each step walked twice: over the nodes of the pages, and over the huge ones among them."""
    for step in range(STEPS):
        server.now_s += 5.0
        share = 0.4 - step * 0.04
        assert server.bring(share).over
        assert abs(server.pages[1] - share * PAGES) <= 1
    assert server.walks == 1


def test_a_minute_later_page_tables_are_walked_again(server: Server) -> None:
    server.now_s += 61.0
    server.bring(0.4)
    assert server.walks == 2


def test_another_process_is_walked(server: Server) -> None:
    server.started += 1
    server.bring(0.4)
    assert server.walks == 2


def test_pages_that_another_mover_has_taken_are_found_by_a_walk(server: Server) -> None:
    server.nodes = array("i", [2] * PAGES)
    assert server.bring(0.4).ram[0].resident_kb == ((0, 9832), (1, 6552))
    assert server.walks == 2


def test_what_is_no_guest_memory_any_more_is_never_moved(server: Server) -> None:
    """The mapping has gone, and its addresses may be those of another one of the same process."""
    server.mapped = [(END, END + PAGES * PAGE)]
    before = list(server.nodes)
    assert "is not guest memory" in server.bring(0.4).problem
    assert list(server.nodes) == before


def test_after_pages_that_did_not_move_page_tables_are_walked(server: Server) -> None:
    server.stays = set(range(PAGES))
    assert server.bring(0.4).failed
    server.stays = set()
    assert not server.bring(0.4).failed
    assert server.walks == 2


def test_a_walk_that_was_stopped_for_other_targets_is_not_taken_for_one_that_ended(
    server: Server,
) -> None:
    server.bring(0.0, max_kb=2048)
    assert not server.bring(1.0, max_kb=2048).over
    assert server.walks == 2
