# SPDX-License-Identifier: Apache-2.0
"""What a service manager receives, on a socket as systemd would have opened it; no systemd is needed."""

import itertools
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from host_agent.conf.options import Options
from host_agent.control.agent import Agent, AgentFiles, Listeners, Stages
from host_agent.machine.libvirt import ListedDomain
from host_agent.model.assignment import Decision, Observation
from host_agent.model.round import Round
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer
from placement_traits.service_manager import ServiceManager
from tests.support.executors import make_executor
from tests.support.fake_host import FakeHost

ROUND = Round(Observation(four_nodes(), ()), Decision())


class Receiver:
    """The service manager's end of ``NOTIFY_SOCKET``."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def received(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    found = Receiver(str(tmp_path / "notify"))
    yield found
    found.close()


@pytest.fixture
def manager(receiver: Receiver, tmp_path: Path) -> ServiceManager:
    """Each look at its clock is two seconds later than the one before."""
    return ServiceManager(str(tmp_path / "notify"), clock=itertools.count(0, 2).__next__)


def test_ready_comes_once_and_the_watchdog_hears_of_each_finished_round(
    manager: ServiceManager, receiver: Receiver
) -> None:
    manager.on_round(ROUND)
    manager.on_round(ROUND)
    manager.stopping()
    assert receiver.received() == ["READY=1\nWATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_round_that_ends_while_the_service_stops_is_not_reported(
    manager: ServiceManager, receiver: Receiver
) -> None:
    manager.on_round(ROUND)
    manager.stopping()
    manager.on_round(ROUND)
    assert receiver.received() == ["READY=1\nWATCHDOG=1", "STOPPING=1"]


def test_what_is_applied_between_two_rounds_is_reported_once_a_second(
    receiver: Receiver, tmp_path: Path
) -> None:
    """A controller that polls applies its part up to fifty times a second; systemd has other work."""
    times = iter(number / 50 for number in range(101))
    manager = ServiceManager(str(tmp_path / "notify"), clock=times.__next__)
    for _ in range(101):
        manager.on_round(ROUND)
    assert receiver.received() == ["READY=1\nWATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_name_in_the_abstract_namespace_is_understood() -> None:
    receiver = Receiver("\0numa-ext-test-notify")
    ServiceManager("@numa-ext-test-notify").on_round(ROUND)
    assert receiver.received() == ["READY=1\nWATCHDOG=1"]
    receiver.close()


def test_what_the_agent_starts_does_not_report_for_it(tmp_path: Path, receiver: Receiver) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "PATH": "/bin"}
    ServiceManager.of(environment).on_round(ROUND)
    assert receiver.received() == ["READY=1\nWATCHDOG=1"]
    assert environment == {"PATH": "/bin"}


def test_without_a_service_manager_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager.of({}).on_round(ROUND)
    assert caplog.records == []


def test_a_service_manager_that_is_gone_is_logged_once(
    manager: ServiceManager,
    receiver: Receiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    receiver.close()
    manager.on_round(ROUND)
    manager.on_round(ROUND)
    assert [record.message for record in caplog.records] == [
        "the service manager cannot be notified and may end this service: Connection refused"
    ]


def test_a_service_manager_that_does_not_read_holds_no_round_up(
    manager: ServiceManager, receiver: Receiver
) -> None:
    for _round in range(10_000):  # far more than the queue of a socket holds
        manager.on_round(ROUND)
    assert receiver.received()[0] == "READY=1\nWATCHDOG=1"


class UnsteadyHost(FakeHost):
    """Its libvirt accepts requests; while ``hangs`` is set it does not answer them."""

    def __init__(self) -> None:
        super().__init__(four_nodes())
        self.hangs = threading.Event()
        self.asked = threading.Event()
        self.answers = threading.Event()

    def domains(self) -> tuple[ListedDomain, ...]:
        if self.hangs.is_set():
            self.asked.set()
            assert self.answers.wait(30)
        return super().domains()


def looped(host: UnsteadyHost, manager: ServiceManager, folder: Path) -> Agent:
    """An agent over a host without servers."""
    observer = Observer(host, host, MachineFiles(lambda: host.topology, folder))
    executor = make_executor(host, Nothing(), Options(), observer.moved)
    return Agent(
        Stages(host, observer, executor),
        Options(),
        AgentFiles(None, folder / "paused"),
        Listeners((manager,)),
        write=False,
    )


class Nothing:
    """A journal that is not kept."""

    def write(self, _entry: object) -> None:
        """Forget it."""


def test_a_round_that_hangs_is_not_reported_until_it_is_finished(
    manager: ServiceManager, receiver: Receiver, tmp_path: Path
) -> None:
    host = UnsteadyHost()
    agent = looped(host, manager, tmp_path)
    agent.round(full=True, relist=True)
    assert receiver.received() == ["READY=1\nWATCHDOG=1"]
    host.hangs.set()
    hanging = threading.Thread(target=agent.round, kwargs={"full": True, "relist": True})
    hanging.start()
    assert host.asked.wait(30)
    assert receiver.received() == []
    host.answers.set()
    hanging.join(30)
    assert receiver.received() == ["WATCHDOG=1"]


def test_a_round_that_fails_is_not_reported(
    manager: ServiceManager, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = looped(UnsteadyHost(), manager, tmp_path)

    def fail(*_arguments: object) -> None:
        raise RuntimeError("no round ends")

    monkeypatch.setattr(agent._executor, "apply", fail)
    with pytest.raises(RuntimeError):
        agent.round(full=True, relist=True)
    assert receiver.received() == []
