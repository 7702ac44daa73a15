# SPDX-License-Identifier: Apache-2.0
"""A program of OpenCL goes on while its lease goes to another host: real CRIU, ``pocld`` and TLS between two hosts.

Two folders of one machine stand for two hosts, and the processor for their GPUs.
"""

import json
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from host_agent.remote_gpu.answer import ServedLease
from tests.functional.host_agent import test_lease_moves
from tests.functional.host_agent.test_lease_link import LEASE
from tests.functional.host_agent.test_lease_moves import MOVES_S, GpuHosts
from tests.functional.host_agent.test_pocl_lease import PoclRoad
from tests.support.built_pocl import cached_pocl
from tests.support.polling import until

ENDS_S = 120.0
WORKS_S = 20
HOLDS_S = 60
COMPUTES_S = 0.5
MOVES = 20
MIB = 1 << 20
BUFFERS = 1000


class PoclHosts(GpuHosts):
    """g1 and g2, whose leases are of OpenCL."""

    def served(self, client="c1", epoch=0):
        return ServedLease(LEASE, epoch or self.epoch, "gpu", 400, "silver", "opencl", 0, client)


@contextmanager
def opened(kind, pocl, monkeypatch):
    """Two hosts of a kind, of which the first serves the lease to a client that has reached it.

    :param pocl: returns what ``lab pocl`` has built
    """

    def road(folder, processes, **_given):
        return PoclRoad(folder, processes, pocl(), apart=False)

    monkeypatch.setattr(test_lease_moves, "LeaseRoad", road)
    monkeypatch.setattr(test_lease_moves, "NAME", "pocl")
    with tempfile.TemporaryDirectory() as short, ExitStack() as processes:
        found = kind(Path(short), processes)
        found.serve()
        found.road.open()
        found.road.client().close()
        yield found


@pytest.fixture
def hosts(monkeypatch):
    with opened(PoclHosts, cached_pocl, monkeypatch) as found:
        yield found


@pytest.mark.long
def test_programs_compute_on_while_their_lease_goes_there_and_back(hosts):
    """F-002-61, 62, 64, 72: twenty moves in mid-job; programs are not made for that, and each number is compared."""
    moves = 0
    while moves < MOVES:
        program = hosts.road.bench("-t", WORKS_S, "-m", 16)
        assert program.stdout.readline() == "working\n"
        while program.poll() is None and moves < MOVES:
            source = hosts.where
            assert hosts.move() == ""
            hosts.serve()
            assert hosts.where != source
            assert hosts.nothing_of(source)
            moves += 1
            time.sleep(COMPUTES_S)
        said, why = program.communicate(timeout=ENDS_S)
        assert program.returncode == 0, why
        assert json.loads(said.splitlines()[-1])["rounds"] > 1


@pytest.mark.long
def test_what_it_holds_stays_its_own_and_counted(hosts):
    """F-002-60, 65: the counters of the slice go along; what is over it is refused there as here."""
    held = hosts.road.bench("-a", 10 * MIB, "-n", 30, "-t", HOLDS_S)
    assert json.loads(held.stdout.readline())["taken"] == 30
    assert hosts.move() == ""
    hosts.serve()
    assert hosts.road.says("-a", 10 * MIB, "-n", 11)["taken"] == 10
    held.kill()
    until(lambda: hosts.road.says("-a", 10 * MIB, "-n", 40)["taken"] == 40, MOVES_S)


@pytest.mark.long
def test_each_of_a_thousand_buffers_has_its_own_number_after_a_move(hosts):
    """F-002-64; there they are freed with the program that had them."""
    program = hosts.road.bench("-a", 100_000, "-n", BUFFERS, "-t", 20)
    assert json.loads(program.stdout.readline()) == {"taken": BUFFERS, "error": 0}
    assert hosts.move() == ""
    hosts.serve()
    _said, why = program.communicate(timeout=ENDS_S)
    assert program.returncode == 0, why
    assert hosts.road.says("-a", 100 * MIB, "-n", 5)["taken"] == 4
