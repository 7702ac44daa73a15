# SPDX-License-Identifier: Apache-2.0
"""A program in a guest computes on a device of another host: all processes from that program to ``pocld``.

Unix sockets stand for vsock, and this process for the guest's QEMU::

    numa-rgpu-bench ── TCP ── guest ══ Unix ══ doorman ══ TLS 1.3 ══ gateway ── TCP ── pocld ── device on the processor
                                                                     └─ namespaces of the lease ─┘
"""

import json
import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from host_agent.remote_gpu.doors import Doors, GuestDomain
from host_agent.remote_gpu.processes import LeaseProcessGoneError
from tests.functional.host_agent.test_lease_link import ANSWERS_S, CID, LEASE, SERVER, LeaseRoad
from tests.support.built_pocl import built_pocl, cached_pocl
from tests.support.pocl_server import FAILED, HANGS_S, transport, write_pocl
from tests.support.polling import until

ATTACHED_S = 5.0
SLICE_MIB = 500


class PoclRoad(LeaseRoad):
    """The way of a lease by OpenCL; its guest has the environment that the doorman says."""

    def __init__(self, folder, processes, pocl, *, apart):
        write_pocl(folder, pocl.server, pocl.layer)
        super().__init__(folder, processes, apart=apart, transport="pocl")
        self.pocl = pocl
        self.doors = Doors(
            self,
            lambda: [GuestDomain(SERVER, CID)],
            transport(pocl),
            folder / "attachments.json",
            first_port=self.port,
        )

    def environment(self):
        """Of programs in the guest; the library is where it was built."""
        file = self.folder / "env"
        until(file.exists, ANSWERS_S)
        found = dict(line.split("=", 1) for line in file.read_text().splitlines())
        assert found["POCL_REMOTE0_PARAMETERS"] == f"127.0.0.1:{self.port}/0"
        return found | {"OCL_ICD_VENDORS": str(self.pocl.vendors), "PATH": "/usr/bin:/bin"}

    def bench(self, *words):
        """Start ``numa-rgpu-bench`` in the guest."""
        started = subprocess.Popen(
            [self.pocl.bench, *map(str, words)],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.callback(lambda: (started.kill(), started.wait()))
        return started

    def says(self, *words):
        """Run it to its end; return what it says last."""
        said, why = self.bench(*words).communicate(timeout=HANGS_S)
        assert said, why
        return json.loads(said.splitlines()[-1])

    def server_process(self):
        """Number of ``pocld`` in the host."""
        for each in Path("/proc").iterdir():
            try:
                words = (each / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            environment = ""
            if words[0] == str(self.pocl.server):
                environment = (each / "environ").read_text()
            if f"NUMA_EXT_SLICE_BYTES={SLICE_MIB << 20}" in environment.split("\0"):
                return int(each.name)
        raise AssertionError("no pocld runs")


@pytest.fixture
def road(request):
    with tempfile.TemporaryDirectory() as short, ExitStack() as processes:
        pocl = built_pocl() if request.node.get_closest_marker("long") else cached_pocl()
        found = PoclRoad(Path(short), processes, pocl, apart=True)
        processes.callback(lambda: found.processes.end(LEASE))
        yield found


def test_a_program_in_a_guest_computes_on_a_device_of_another_host(road):
    """F-002-43, 48: from the start of the lease's process to where a program of the guest can connect."""
    begun_s = time.monotonic()
    road.attach(road.serve())
    road.open()
    road.client().close()
    attached_s = time.monotonic() - begun_s
    assert road.says("-t", 0.5)["rounds"] > 0
    assert road.says()["write_16mib"] > 1
    assert attached_s < ATTACHED_S, attached_s


def test_no_more_than_its_slice_is_given_over_the_link(road):
    road.attach(road.serve())
    road.open()
    assert road.says("-a", 2 * SLICE_MIB << 20, "-n", 1)["taken"] == 0
    assert road.says("-a", 100 << 20, "-n", 6) == {"taken": 5, "error": -5}


@pytest.mark.long
def test_how_busy_a_lease_keeps_its_device_is_reported(road):
    road.attach(road.serve())
    road.open()

    def busy_s():
        return road.processes._ask(LEASE, {})["busy_s"]

    assert busy_s() == 0.0
    road.says("-t", 1, "-m", 16)
    assert 0.01 < busy_s() < 30.0


def test_the_memory_that_a_lease_has_in_use_is_reported_to_the_byte(road):
    address = road.serve()
    road.attach(address)
    road.open()
    assert road.processes.memory_mb() == {LEASE: 0.0}
    holds = road.bench("-a", 1_000_003, "-n", 3, "-t", 60)

    def held_bytes():
        road.serve()
        return road.processes.memory_mb()[LEASE] * (1 << 20)

    until(lambda: held_bytes() == 3 * 1_000_003, ANSWERS_S)
    holds.kill()
    until(lambda: held_bytes() == 0, ANSWERS_S)
    road.processes.end(LEASE)
    assert road.processes.memory_mb() == {}


def test_a_dead_server_is_an_error_in_the_guest_and_the_next_epoch_computes(road):
    road.attach(road.serve())
    road.open()
    program = road.bench("-t", 60)
    assert program.stdout.readline() == "working\n"
    os.kill(road.server_process(), 9)
    _, why = program.communicate(timeout=HANGS_S)
    assert (program.returncode, "OpenCL error" in why) == (FAILED, True)
    with pytest.raises(LeaseProcessGoneError):
        until(lambda: road.processes.serve(LEASE, 1, "c1") and False, ANSWERS_S)
    road.attach(road.serve(2), 2)
    assert road.says("-t", 0.2)["rounds"] > 0


@pytest.mark.long
def test_a_job_goes_on_at_a_newer_epoch_with_all_its_numbers_right(road):
    """Its server and its state stay where they are; all links are cut, and come up again at the new epoch."""
    address = road.serve()
    road.attach(address)
    road.open()
    program = road.bench("-t", 4)
    assert program.stdout.readline() == "working\n"
    for epoch in (2, 3):
        time.sleep(0.5)
        road.attach(road.serve(epoch), epoch)
    said, why = program.communicate(timeout=HANGS_S)
    assert program.returncode == 0, why
    assert json.loads(said.splitlines()[-1])["rounds"] > 3
