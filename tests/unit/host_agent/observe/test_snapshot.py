# SPDX-License-Identifier: Apache-2.0
"""One look at the host: a server that cannot be understood keeps no other from being seen."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, Server
from host_agent.machine.libvirt import ListedDomain
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.operations import OPERATIONS
from host_agent.machine.privileged.table import Operation, Way
from host_agent.model.assignment import Guest
from host_agent.model.process import RamRange
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer
from placement_traits.errors import (
    InvalidValueError,
    NumaExtError,
    ServiceUnavailableError,
)
from placement_traits.topology import HostTopology
from tests.support.fake_host import FakeHost
from tests.support.hosts import shown

GPU = (
    "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x81' slot='0x00' "
    "function='0x0'/></source></hostdev>"
)


class OneBadDomain(FakeHost):
    """libvirt's XML of one server holds what it never should."""

    bad = ""

    def domains(self) -> tuple[ListedDomain, ...]:
        return tuple(
            replace(each, xml=each.xml.replace("<devices>", f"<devices>{self.bad}"))
            if "instance-bad" in each.xml
            else each
            for each in super().domains()
        )


@pytest.mark.parametrize(
    "bad",
    [GPU.replace("0x81", "first"), GPU.replace("0x81", "0x" + "9" * 5000), "\udcff"],
    ids=["a word", "5,000 digits", "half a character"],
)
def test_a_bad_domain_keeps_no_other_from_being_seen(
    bad: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = OneBadDomain(four_nodes())
    host.bad = bad
    ill = Server("ill", BE_SPECS, shared="0-7", uuid="badbadba-0000-4000-8000-000000000001")
    well = host.boot(Server("well", BE_SPECS, shared="0-7"), {0: 64})
    host.boot(ill, {0: 64})
    observer = Observer(host, host, MachineFiles(lambda: host.topology, tmp_path))
    with caplog.at_level(logging.WARNING):
        for _look in range(2):
            seen = observer.observe(full=True, relist=True)

    assert [guest.uuid for guest in seen.guests] == [well.uuid]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"domain {ill.uuid} is skipped: ")


def test_a_look_between_two_resyncs_is_one_request_for_sixteen_servers(tmp_path: Path) -> None:
    """Threads and sampled pages come together: the helper finds and holds the process once for both."""
    host = FakeHost(four_nodes())
    for number in range(20):
        host.boot(Server(f"s{number}", BE_SPECS, shared="0-7"), {0: 16, 1: 48})
    asked: list[str] = []

    def ask(operation: Operation, arguments: tuple[Any, ...]) -> Any:
        asked.append(operation.name)
        return getattr(host, operation.name)(*arguments)

    helper = cast("Privileged", Way(OPERATIONS, ask))
    observer = Observer(host, helper, MachineFiles(lambda: host.topology, tmp_path))
    observer.observe(full=True, relist=True)
    asked.clear()
    seen = observer.observe(full=False, relist=False)
    assert asked == ["look", "look"]
    assert [guest.sampled for guest in seen.guests] == [{0: 0.25, 1: 0.75}] * 20


def watched(host: FakeHost, asked: list[str], trouble: dict[str, Exception]) -> Privileged:
    """A way to the host that notes what is asked for, and fails in some of it."""

    def ask(operation: Operation, arguments: tuple[Any, ...]) -> Any:
        asked.append(operation.name)
        if operation.name in trouble:
            raise trouble[operation.name]
        return getattr(host, operation.name)(*arguments)

    return cast("Privileged", Way(OPERATIONS, ask))


def test_there_is_a_sign_of_life_before_each_walk(tmp_path: Path) -> None:
    """The dead-man switch waits for it: page tables of large servers take seconds each."""
    host = FakeHost(four_nodes())
    for number in range(3):
        host.boot(Server(f"s{number}", BE_SPECS, shared="0-7"), {0: 64})
    asked: list[str] = []
    observer = Observer(
        host,
        watched(host, asked, {}),
        MachineFiles(lambda: host.topology, tmp_path),
        progress=lambda: asked.append("alive"),
    )
    observer.observe(full=True, relist=True)
    assert asked == ["alive", "look", *(["alive", "guest_ram"] * 3)]


def test_a_helper_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    """Each request may take two minutes."""
    host = FakeHost(four_nodes())
    for number in range(40):
        host.boot(Server(f"s{number}", BE_SPECS, shared="0-7"), {0: 64})
    asked: list[str] = []
    helper = watched(host, asked, {"look": ServiceUnavailableError("the helper does not answer")})
    seen = Observer(host, helper, MachineFiles(lambda: host.topology, tmp_path)).observe(
        full=True, relist=True
    )
    assert asked == ["look"]
    assert {guest.problem for guest in seen.guests} == {"the helper does not answer"}


@pytest.mark.parametrize("trouble", [NumaExtError("the helper failed"), OSError(5, "no")])
def test_servers_that_cannot_be_read_together_are_read_one_by_one(
    tmp_path: Path, trouble: Exception
) -> None:
    host = FakeHost(four_nodes())
    well, ill = (host.boot(Server(title, BE_SPECS, shared="0-7"), {0: 64}) for title in "ab")

    def ask(operation: Operation, arguments: tuple[Any, ...]) -> Any:
        if operation.name == "look" and ill.uuid in dict(arguments[0]):
            raise trouble
        return getattr(host, operation.name)(*arguments)

    helper = cast("Privileged", Way(OPERATIONS, ask))
    seen = Observer(host, helper, MachineFiles(lambda: host.topology, tmp_path)).observe(
        full=True, relist=True
    )
    found = {guest.uuid: (guest.process is not None, guest.problem) for guest in seen.guests}
    assert found == {well.uuid: (True, ""), ill.uuid: (False, str(trouble))}


def test_pages_that_were_looked_up_in_another_process_say_nothing(tmp_path: Path) -> None:
    """The server was restarted in between: where it had its memory before is somewhere else now."""
    host = FakeHost(four_nodes())
    server = host.boot(Server("a", BE_SPECS, shared="0-7"), {0: 16, 1: 48})
    observer = Observer(host, host, MachineFiles(lambda: host.topology, tmp_path))
    observer.observe(full=True, relist=True)
    host.delete(server)
    host.boot(server, {1: 64})
    host.sampled = {0: 1000}
    (guest,) = observer.observe(full=False, relist=False).guests
    assert guest.sampled == {}
    assert guest.memory_shares == {1: 1.0}


class Walked(FakeHost):
    """A host with one server, that counts walks over page tables.

    :ivar now_s: the agent's clock
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(four_nodes())
        self.walks = 0
        self.now_s = 0.0
        self.server = self.boot(Server("a", BE_SPECS, shared="0-7"), {0: 16, 1: 48})
        machine = MachineFiles(lambda: self.topology, folder)
        self.observer = Observer(self, self, machine, clock=lambda: self.now_s)
        self.resync()

    def guest_ram(self, uuid: str) -> tuple[RamRange, ...]:
        self.walks += 1
        return super().guest_ram(uuid)

    def resync(self) -> Guest:
        """A full pass, a minute after the last."""
        (guest,) = self.observer.observe(full=True, relist=True).guests
        self.now_s += 60.0
        return guest


def test_page_tables_of_a_server_at_rest_are_walked_each_five_minutes(tmp_path: Path) -> None:
    """The second walk has a sample to be compared with; the next is when that sample is five minutes old."""
    host = Walked(tmp_path)
    walks = []
    for _minute in range(11):
        assert host.resync().memory_shares == {0: 0.25, 1: 0.75}
        walks.append(host.walks)
    assert walks == [2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4]


@pytest.mark.parametrize(
    "memory_mb",
    [{0: 15, 1: 49}, {0: 16, 1: 48, 2: 1}, {0: 8, 1: 24}],
    ids=["moved", "more", "less"],
)
def test_page_tables_are_walked_at_the_next_full_pass_where_the_sample_has_changed(
    tmp_path: Path, memory_mb: dict[int, int]
) -> None:
    host = Walked(tmp_path)
    host.resync()
    host.running[host.server.uuid].memory_kb = {n: mb * 1024 for n, mb in memory_mb.items()}
    assert host.resync().resident_mb == memory_mb
    assert host.walks == 3


def test_page_tables_are_walked_at_each_full_pass_where_a_sample_shows_nothing(
    tmp_path: Path,
) -> None:
    """A guest that has touched little: its sample hits a few pages."""
    host = Walked(tmp_path)
    host.sampled = {0: 40, 1: 59}
    for _minute in range(3):
        host.resync()
    assert host.walks == 4


def test_after_a_move_the_next_full_pass_walks(tmp_path: Path) -> None:
    """What the mover has reported, and a sample confirmed, is no walk."""
    host = Walked(tmp_path)
    host.resync()
    (left,) = FakeHost.guest_ram(host, host.server.uuid)
    host.observer.moved(host.server.uuid, [left])
    host.observer.observe(full=False, relist=False)
    assert host.walks == 2
    host.resync()
    assert host.walks == 3


@pytest.mark.parametrize("cuts", [(), (4096,)], ids=["nothing", "another range"])
def test_a_mover_that_does_not_tell_of_all_of_it_is_not_believed(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    host = Walked(tmp_path)
    (known,) = FakeHost.guest_ram(host, host.server.uuid)
    host.observer.moved(host.server.uuid, [known._replace(end=known.end - cut) for cut in cuts])
    host.observer.observe(full=False, relist=False)
    assert host.walks == 2


@pytest.mark.parametrize("text", ["", "none", "-1", "9" * 5000])
def test_a_device_without_a_node_is_on_none(text: str, tmp_path: Path) -> None:
    host = FakeHost(four_nodes())
    server = host.boot(Server("gpu", BE_SPECS, shared="0-7", devices=GPU), {0: 64})
    device = tmp_path / "pci/0000:81:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(text)
    observer = Observer(
        host, host, MachineFiles(lambda: host.topology, tmp_path, device_root=tmp_path / "pci")
    )
    guest = observer.observe(full=True, relist=True).get(server.uuid)

    assert guest is not None
    assert guest.gpus == {"0000:81:00.0": None}


def test_a_cpu_that_goes_while_its_files_are_read_fails_no_round(tmp_path: Path) -> None:
    """nova powers one CPU after the other down; the look after the last one is whole again."""
    online = tmp_path / "online"
    online.write_text("0-7")
    host = FakeHost(four_nodes())
    going = ["0-6", "0-5"]
    found = shown(four_nodes(), {6, 7})

    def vanishing() -> HostTopology:
        if going:
            online.write_text(going.pop(0))
            raise InvalidValueError("/sys/cpu7/topology", "No such file", "a readable file")
        return found

    looks = iter([four_nodes, vanishing, vanishing, vanishing])

    def discover() -> HostTopology:
        return next(looks)()

    observer = Observer(host, host, MachineFiles(discover, tmp_path, online_cpus=online))
    assert observer.observe(full=True, relist=True).topology == four_nodes()
    online.write_text("0-7 ")
    for expected in (four_nodes(), four_nodes(), found):
        assert observer.observe(full=False, relist=False).topology == expected
    assert observer.observe(full=False, relist=False).topology == found, "nothing new: not read"


def test_a_file_that_says_what_the_kernel_never_says_is_told(tmp_path: Path) -> None:
    host = FakeHost(four_nodes())

    looks = iter([four_nodes()])

    def discover() -> HostTopology:
        for found in looks:
            return found
        raise InvalidValueError("/sys/cpu7/topology", "x", "an integer")

    observer = Observer(host, host, MachineFiles(discover, tmp_path, online_cpus=tmp_path / "none"))
    observer.observe(full=True, relist=True)
    with pytest.raises(InvalidValueError):
        observer.observe(full=True, relist=True)
