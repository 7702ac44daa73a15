# SPDX-License-Identifier: Apache-2.0
"""What dies, or is cut off, while programs of OpenCL compute by a lease: right numbers or an error, nothing is left.

Each process from the guest's end to ``pocld`` is killed in each state of a program, and of a move; cables are pulled
out; a host of GPUs goes. ``numa-rgpu-bench`` compares each number; for a wrong one it ends otherwise than for an error.
"""

import json
import os
import signal
import time
from contextlib import suppress
from functools import partial

import pytest

from host_agent.remote_gpu.answer import LeaseAnswer
from tests.functional.host_agent.test_lease_link import LEASE
from tests.functional.host_agent.test_lease_moves import (
    MOVES_S,
    dies_at,
    full_disk,
    without_criu,
)
from tests.functional.host_agent.test_pocl_moves import PoclHosts, opened
from tests.support.built_link import built_link
from tests.support.built_pocl import built_pocl
from tests.support.cables import Cable
from tests.support.killing import descendants, killing, words_of
from tests.support.pocl_server import FAILED, HANGS_S
from tests.support.polling import until

pytestmark = pytest.mark.long

RIGHT = 0
STEPS = (3, 8, 13, 19, 27)
STATES = ("opens it", "builds", "computes")
STARTED_S = {"opens it": 0.02, "builds": 0.3}
OF_LEASE = ("server", "hold", "gateway", "lease_process")
OF_MOVES = ("dump", "restore", "checkpoint", "send", "receive")
VICTIMS = ("doorman", "guest", *OF_LEASE)


class Hosts(PoclHosts):
    """The same, with a cable to each host of GPUs."""

    def __init__(self, folder, processes):
        self.cables = {host: Cable() for host in ("g1", "g2")}
        for each in self.cables.values():
            processes.callback(each.close)
        self.pocl = built_pocl()
        super().__init__(folder, processes)

    def cabled(self, host, address):
        return self.cables[host].to(address)

    def serve(self, host=None):
        """As the service does: where the process is gone, at the next epoch by another one."""
        self.where = host or self.where
        until_s = time.monotonic() + MOVES_S
        while time.monotonic() < until_s:
            answer = LeaseAnswer(serves=(self.served(),))
            serves, ended = self.hosts[self.where].obey(answer)
            if LEASE in serves:
                self.lead(serves[LEASE][1])
                return
            if LEASE in ended:
                self.epoch += 1
        raise AssertionError(f"{self.where} does not serve it")

    def running(self, what, host=None):
        """Numbers of processes: of a host's lease, or else of the guest, the doorman, or what moves it."""
        if what in ("guest", "doorman"):
            return [getattr(self.road, what).pid]
        found = self.processes(host) if host else descendants()
        return [each for each in found if self.is_it(what, words_of(each))]

    def processes(self, host):
        """Numbers of the processes of the lease on a host; other tests have leases of that name."""
        with suppress(OSError):
            procs = self.folder / host / f"{LEASE}.group" / "cgroup.procs"
            return list(map(int, procs.read_text().split()))
        return []

    def is_it(self, what, words):
        if what in ("dump", "restore"):
            return words[:2] == [str(self.criu), what]
        if what == "server":
            return words[:1] == [str(self.pocl.server)]
        if what in ("lease_process", "checkpoint"):
            return f"host_agent.remote_gpu.{what}" in words
        return words[:2] == [str(self.road.program), what]

    def is_of_a_lease(self, process):
        words = words_of(process)
        return any(self.is_it(each, words) for each in (*OF_LEASE, *OF_MOVES))

    def mended(self, killed):
        """As systemd and the service do when something has died."""
        if killed == "doorman":
            self.road.doorman.wait()
            self.road.open_doorman()
        if killed == "guest":
            self.road.guest.wait()
            self.road.open_guest()
            self.road.client().close()  # it listens
        if killed in OF_LEASE:
            gone = self.epoch
            until(lambda: self.serve() or self.epoch > gone, MOVES_S)
        else:
            self.serve()


@pytest.fixture
def hosts(monkeypatch):
    built_link()
    with opened(Hosts, built_pocl, monkeypatch) as found:
        yield found


def working(hosts, seconds, mib=4):
    """A program that has compared its first number."""
    program = hosts.road.bench("-t", seconds, "-m", mib)
    assert program.stdout.readline() == "working\n"
    return program


def ended(program, *may):
    """How a program ends: with right numbers, or with an error."""
    said, why = program.communicate(timeout=HANGS_S)
    assert program.returncode in may, (program.returncode, said, why)
    assert program.returncode == RIGHT or "OpenCL error" in why, why
    return json.loads(said.splitlines()[-1]) if program.returncode == RIGHT else None


def computes(hosts):
    """A new program reaches it, and nothing of the lease is on the other host after two rounds."""
    assert hosts.nothing_of("g2" if hosts.where == "g1" else "g1")
    assert hosts.road.says("-t", 0.1)["rounds"] > 0
    own = hosts.processes(hosts.where)
    for each in OF_LEASE[:-1]:
        assert len(hosts.running(each, hosts.where)) == 1, each
    assert [each for each in descendants() if hosts.is_of_a_lease(each) and each not in own] == []


@pytest.mark.parametrize("victim", VICTIMS)
def test_whichever_process_is_killed_no_number_is_wrong(hosts, victim):
    """F-002-42: in each state of a program."""
    may = (RIGHT,) if victim == "doorman" else (RIGHT, FAILED)
    errors = 0
    for state in STATES:
        if state == "computes":
            program = working(hosts, 1)
        else:
            program = hosts.road.bench("-t", 1)
            time.sleep(STARTED_S[state])
        os.kill(hosts.running(victim, hosts.where)[-1], signal.SIGKILL)
        hosts.mended(victim)
        ended(program, *may)
        errors += program.returncode != RIGHT
        computes(hosts)
    assert errors > 0 or victim == "doorman"


@pytest.mark.parametrize("cut_s", [3, 120])
def test_a_program_goes_on_when_the_cable_is_in_again(hosts, cut_s):
    """So does one that has begun meanwhile; the seconds are the cable's."""
    program = working(hosts, 2)
    cable = hosts.cables["g1"]
    before = cable.carried
    cable.pull()
    late = hosts.road.bench("-t", 0.1)
    time.sleep(cut_s)
    assert (program.poll(), late.poll()) == (None, None)
    cable.plug()
    assert ended(program, RIGHT)["worst_s"] > cut_s - 0.5
    assert ended(late, RIGHT)["rounds"] > 0
    assert cable.carried > before
    assert hosts.epoch == 1


@pytest.mark.parametrize("comes_back", ["dead", "alive"])
def test_where_a_host_of_gpus_goes_its_programs_have_an_error(hosts, comes_back):
    """Nobody hears of it: its cable is out. The lease is given to the other host, with empty memory."""
    program = working(hosts, 2)
    hosts.cables["g1"].pull()
    if comes_back == "dead":
        for each in hosts.processes("g1"):
            with suppress(ProcessLookupError):  # it ends with another one
                os.kill(each, signal.SIGKILL)
    time.sleep(1.0)
    assert program.poll() is None
    hosts.epoch += 1
    hosts.serve("g2")
    ended(program, FAILED)
    assert hosts.road.says("-t", 0.1)["rounds"] > 0
    hosts.cables["g1"].plug()
    second = working(hosts, 2)
    hosts.start("g1")
    assert hosts.nothing_of("g1")
    ended(second, RIGHT)
    computes(hosts)


@pytest.mark.parametrize(("cut_s", "moves"), [(3, True), (40, False)])
def test_a_cable_that_is_out_while_images_go(hosts, cut_s, moves):
    """A lease comes to the other host, or goes on where it was; its program does not see which."""
    program = working(hosts, cut_s + 5, 64)
    until_s = []

    def stop(_source, _destination):
        if not until_s and hosts.running("send"):
            hosts.cables["g2"].pull()
            until_s.append(time.monotonic() + cut_s)
        elif until_s and time.monotonic() > until_s[0]:
            hosts.cables["g2"].plug()
        return False

    why = hosts.move(stop)
    assert until_s
    assert (why == "") == moves, why
    hosts.cables["g2"].plug()
    hosts.serve()
    assert hosts.where == ("g2" if moves else "g1")
    ended(program, RIGHT)
    computes(hosts)


def test_a_full_disk_and_a_refused_restore_leave_a_program_where_it_is(hosts):
    """F-002-70."""
    program = working(hosts, 10, 16)
    with full_disk(hosts):
        assert "cannot be dumped" in hosts.move()
    hosts.serve()
    with without_criu(hosts, "g2"):
        assert hosts.move().startswith("refused: ")
        hosts.serve()
        assert hosts.nothing_of("g2")
    assert hosts.where == "g1"
    assert hosts.move() == ""
    hosts.serve()
    ended(program, RIGHT)
    computes(hosts)


SOURCE, DESTINATION = "source", "destination"
IN_MOVES = {
    ("dump", SOURCE): ("dump", "checkpoint", *VICTIMS),
    ("send", SOURCE): ("send", *VICTIMS),
    ("restore", SOURCE): ("send", "gateway", "server", "doorman", "guest"),
    ("restore", DESTINATION): ("receive", "restore", "lease_process"),
    ("gateway", DESTINATION): (*OF_LEASE, "receive"),
}


@pytest.mark.parametrize(("seen", "end"), IN_MOVES)
def test_whichever_process_is_killed_in_a_move_no_number_is_wrong(hosts, seen, end):
    """It is killed when the move has come as far as a process that is seen: of the other host, the last two."""
    killed_at_all = 0
    for number, victim in enumerate(IN_MOVES[seen, end]):
        source, destination = hosts.where, "g2" if hosts.where == "g1" else "g1"
        of = {SOURCE: source, DESTINATION: destination}[end]
        program = working(hosts, 3, 16)
        come = destination if seen in ("restore", "gateway") else None
        place = of if victim in (*OF_LEASE, "restore") else None
        with killing(
            partial(hosts.running, seen, come),
            partial(hosts.running, victim, place),
            0.02 * (number % 3),
        ) as killed:
            hosts.move()
        if victim in ("guest", "doorman"):
            hosts.mended(victim)
        hosts.serve()
        ended(program, RIGHT, FAILED)
        computes(hosts)
        killed_at_all += len(killed)
    assert killed_at_all > len(IN_MOVES[seen, end]) // 2


@pytest.mark.parametrize("who", [SOURCE, DESTINATION])
def test_a_supervisor_that_dies_in_a_move_leaves_a_program_right_or_an_error(hosts, who):
    """Of either end, at some steps; :mod:`.test_lease_moves` has all of them."""
    lived = 0
    for step in STEPS:
        program = working(hosts, 4, 16)
        lived += dies_at(hosts, who, step)
        ended(program, RIGHT, FAILED)
        computes(hosts)
    assert lived < len(STEPS)
