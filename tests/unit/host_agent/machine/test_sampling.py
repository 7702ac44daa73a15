# SPDX-License-Identifier: Apache-2.0
"""How many pages a sample looks up: the kernel's time for it is what the loop pays each round."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import processes
from host_agent.machine.privileged.libvirt_state import RunningDomain
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.privileged.syscalls import PAGE


class Counting:
    """A kernel that finds every page on node 0 and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def locate(self, _pid: int, addresses: "array[int]") -> "array[int]":
        self.asked += addresses
        return array("i", bytes(4 * len(addresses)))

    def move(self, _pid: int, _addresses: "array[int]", _nodes: Sequence[int]) -> int:
        raise AssertionError("a sample moves nothing")


@contextmanager
def opened(_paths: object, uuid: str, _libvirt: object) -> Iterator[RunningDomain]:
    """The process is there."""
    yield RunningDomain(uuid, 1)


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=8), st.integers(16, 4096))
@example([8191], 4096)
@example([4096, 4096, 4096], 4096)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None
)
def test_a_sample_is_never_larger_than_asked(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], pages: int
) -> None:
    monkeypatch.setattr(processes, "opened", opened)
    monkeypatch.setattr(processes, "read_process", lambda *_process: None)
    kernel = Counting()
    ranges = [(n << 40, (n << 40) + size * PAGE) for n, size in enumerate(sizes)]
    HostOperations(HostPaths(), kernel).look([("uuid", ranges)], pages)
    assert len(kernel.asked) <= pages
    for start, end in ranges:
        assert any(start <= address < end for address in kernel.asked), "each range is seen"


def test_looks_that_are_slow_are_answered_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent has to show between them that it lives."""
    monkeypatch.setattr(processes, "opened", opened)
    monkeypatch.setattr(processes, "read_process", lambda *_process: None)
    times = iter([0.0, 0.4, 0.8, 1.2, 10.0, 25.0])
    operations = HostOperations(HostPaths(), Counting(), clock=lambda: next(times))
    servers = [(f"uuid-{number}", []) for number in range(5)]
    assert len(operations.look(servers, 16)) == 3
    assert len(operations.look(servers[3:], 16)) == 1
