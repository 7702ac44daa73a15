# SPDX-License-Identifier: Apache-2.0
"""The rounds of a real agent as its service manager sees them, and a libvirt that accepts and does not answer."""

import ctypes
import fcntl
import os
import platform
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from emulation.servers import BE_SPECS, Server
from placement_traits import notify
from tests.functional.host_agent.conftest import ComputeHost, wait_for
from tests.functional.host_agent.test_agent import (
    BE_GROUP,
    BE_LEVEL,
    be_level,
    fingerprint,
    journal,
)
from tests.support.old_state import VERSIONS, written_by
from tests.support.ports import free_port

pytestmark = pytest.mark.root

RELEASE_S = 4
_TGKILL = 234  # x86-64


class NotifiedAgent:
    """The agent with a service manager's socket, and the metrics that it serves."""

    def __init__(self, host: ComputeHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self._receiver = notify.Receiver()
        self._states: list[str] = []
        self._port = free_port()
        with monkeypatch.context() as patch:
            patch.setenv(notify.VARIABLE, self._receiver.address)
            self.process = host.agent(
                agent__metrics_port=self._port,
                agent__resync_s=1,
                libvirt_host__timeout_s=1,
                rdt__release_after_s=RELEASE_S,
            )

    def states(self) -> list[str]:
        """All notifications so far."""
        self._states += self._receiver.received(self.process.pid)
        return self._states

    def finish_round(self) -> None:
        """Wait for the next finished round."""
        before = self.states().count("WATCHDOG=1")
        wait_for(lambda: self.states().count("WATCHDOG=1") > before, "a finished round", 30)

    def metric(self, name: str) -> float:
        """A metric without labels."""
        url = f"http://127.0.0.1:{self._port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))

    def stop(self) -> float:
        """Send SIGTERM; return the seconds that the agent took to end as it should."""
        begun = time.monotonic()
        self.process.terminate()
        assert self.process.wait(20) == 0
        return time.monotonic() - begun

    def kill(self) -> None:
        """End what is left of it."""
        self.process.kill()
        self.process.wait(10)
        self._receiver.close()


@pytest.fixture
def notified(
    host: ComputeHost, pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> Iterator[NotifiedAgent]:
    """An agent that has finished a round: the best-effort server is throttled."""
    found = NotifiedAgent(host, monkeypatch)
    try:
        found.finish_round()
        assert be_level(host) == BE_LEVEL
        yield found
    finally:
        found.kill()


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Let one thread take a signal, tgkill(2): of one that goes to the process the kernel may choose any."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(_TGKILL, pid, thread, number) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def held(host: ComputeHost) -> Iterator[None]:
    """Hold resctrl's lock, as a tool that hangs would: a round waits for it, and nothing else does."""
    tree = os.open(host.resctrl, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(tree, fcntl.LOCK_EX)
        yield
    finally:
        os.close(tree)


@contextmanager
def silent_libvirtd(host: ComputeHost) -> Iterator[None]:
    """libvirtd accepts connections and answers none."""
    host.libvirtd.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        host.libvirtd.send_signal(signal.SIGCONT)


def test_the_service_manager_learns_of_each_finished_round_and_of_no_other(
    host: ComputeHost, notified: NotifiedAgent
) -> None:
    notified.finish_round()
    with held(host):
        time.sleep(1)  # what does not need the lock may end
        before = len(notified.states())
        time.sleep(2.5)
        assert len(notified.states()) == before, "a round that hangs is reported"
    notified.finish_round()
    notified.stop()
    states = notified.states()
    assert (states[0], states[-1]) == ("READY=1", "STOPPING=1")
    assert set(states[1:-1]) == {"WATCHDOG=1"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of a system call")
def test_it_ends_whichever_of_its_threads_takes_the_signal(notified: NotifiedAgent) -> None:
    """Seen once on a host: SIGTERM was never obeyed, and after two minutes the agent was killed."""
    pid = notified.process.pid
    others = [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
    assert others
    signal_thread(pid, others[0], signal.SIGTERM)
    assert notified.process.wait(20) == 0


def test_a_libvirt_that_accepts_and_does_not_answer_stops_neither_rounds_nor_throttles_nor_the_end(
    host: ComputeHost, notified: NotifiedAgent
) -> None:
    """H5. The dead-man switch, the controllers and the kernel agree about what is in effect all the while."""
    assert notified.metric("numa_ext_libvirt_lost") == 0
    with silent_libvirtd(host):
        wait_for(lambda: notified.metric("numa_ext_libvirt_lost") == 1, "the loss", 30)
        lost = time.monotonic()
        (host.resctrl / BE_GROUP / "schemata").write_text("MB:0=100\n")
        wait_for(lambda: be_level(host) == BE_LEVEL, "control without libvirt", 30)
        while time.monotonic() < lost + 1.5 * RELEASE_S:
            assert be_level(host) == BE_LEVEL, "the dead-man switch has released it"
            time.sleep(0.1)
        notified.finish_round()
        assert notified.stop() < 5
        assert notified.states()[-1] == "STOPPING=1"
    assert be_level(host) == BE_LEVEL


def test_when_libvirt_answers_again_servers_that_came_meanwhile_are_found(
    host: ComputeHost, notified: NotifiedAgent
) -> None:
    with silent_libvirtd(host):
        wait_for(lambda: notified.metric("numa_ext_libvirt_lost") == 1, "the loss", 30)
    late = Server("late", BE_SPECS)
    host.boot(late)
    wait_for(lambda: host.group_of(host.pid(late)), "the late server", 60)
    assert notified.metric("numa_ext_libvirt_lost") == 0
    notified.stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_upgrade_while_servers_run_changes_nothing(
    host: ComputeHost,
    pair: tuple[Server, Server],
    monkeypatch: pytest.MonkeyPatch,
    version: int,
) -> None:
    """0 pages, pins and masks, whatever the version before has left in the state folder."""
    pids = [host.pid(server) for server in pair]
    before = NotifiedAgent(host, monkeypatch)
    before.finish_round()
    assert be_level(host) == BE_LEVEL
    before.stop()
    before.kill()
    assert "state.json" in written_by(version, host.state)
    written, done = fingerprint(host, *pids), len(journal(host))
    after = NotifiedAgent(host, monkeypatch)
    try:
        for _round in range(3):
            after.finish_round()
        after.stop()
    finally:
        after.kill()
    assert fingerprint(host, *pids) == written
    changes = [entry for entry in journal(host)[done:] if entry["result"] != "noted"]
    assert changes == []
