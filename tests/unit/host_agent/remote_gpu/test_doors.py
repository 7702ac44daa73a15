# SPDX-License-Identifier: Apache-2.0
"""What leads servers to their leases: devices plugged into a libvirt of this test, and the doorman's file."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emulation.servers import BE_SPECS, Server
from host_agent.cmd.leases import guest_domains
from host_agent.machine.libvirt import ListedDomain
from host_agent.machine.privileged.devices import VSOCK_ALIAS
from host_agent.model.workload import Activity
from host_agent.remote_gpu.answer import AttachedLease
from host_agent.remote_gpu.doors import Doors, DoorsThread, vsock
from host_agent.transports.fake import FakeTransport
from placement_traits.errors import (
    CapabilityMissingError,
    InvalidValueError,
    ServiceUnavailableError,
)
from placement_traits.names import Key

DEVICE = "<vsock model='virtio'><cid auto='yes' address='{cid}'/><alias name='{alias}'/></vsock>"
GPUS = {**BE_SPECS, Key.REMOTE_GPU: "required", Key.REMOTE_GPU_MEMORY_MB: "4000"}


class Hypervisor:
    """A libvirt, the helper that plugs into it, and the doors over both.

    :ivar trouble: what the helper raises when it is asked for a process
    :ivar refusal: what libvirt refuses to plug with
    :ivar between: called between the look at processes and the list of domains
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "attachments.json"
        self.now_s = 100.0
        self.servers: dict[str, Server] = {}
        self.devices: dict[str, str] = {}
        self.activity: dict[str, Activity] = {}
        self.pids: dict[str, int] = {}
        self.trouble: Exception | None = None
        self.refusal = ""
        self.plugs: list[str] = []
        self.unplugs: list[str] = []
        self.between: Callable[[], None] = lambda: None
        self._cids, self._numbers = count(3), count(1000)
        self.leases: list[AttachedLease] = []
        self.start()

    def start(self) -> None:
        """A new process of the agent."""
        self.doors = Doors(
            self,
            lambda: guest_domains(self),  # type: ignore[arg-type]
            FakeTransport(),
            self.file,
            clock=lambda: self.now_s,
        )

    def boot(self, title: str, **specs: str) -> str:
        server = Server(title, {**GPUS, **specs})
        self.servers[server.uuid] = server
        self.activity[server.uuid] = Activity.RUNNING
        self.hard_reboot(server.uuid)
        return server.uuid

    def hard_reboot(self, uuid: str) -> None:
        """Nova writes the XML anew; QEMU is another process."""
        self.devices[uuid], self.pids[uuid] = "", next(self._numbers)

    def domains(self) -> tuple[ListedDomain, ...]:
        self.between()
        return tuple(
            ListedDomain(
                uuid,
                server.xml.replace("</devices>", f"{self.devices[uuid]}</devices>"),
                self.activity[uuid],
            )
            for uuid, server in self.servers.items()
        )

    def process(self, uuid: str) -> Any:
        if self.trouble is not None:
            raise self.trouble
        if uuid not in self.servers:
            raise ServiceUnavailableError("no process")
        return SimpleNamespace(pid=self.pids[uuid], started=self.pids[uuid] * 10)

    def plug_vsock(self, uuid: str) -> None:
        self.plugs.append(uuid)
        if self.refusal:
            raise CapabilityMissingError(self.refusal)
        assert not self.devices[uuid], "libvirt refuses a second one"
        self.devices[uuid] = DEVICE.format(cid=next(self._cids), alias=VSOCK_ALIAS)

    def unplug_vsock(self, uuid: str) -> None:
        self.unplugs.append(uuid)
        assert VSOCK_ALIAS in self.devices[uuid], "libvirt knows no such alias"
        self.devices[uuid] = ""

    def lease(self, number: int, server: str, **more: Any) -> AttachedLease:
        given = {"gpu_host": "g1", "network_mbps": 100} | more
        found = AttachedLease(f"lease-{number}", 1, server, "opencl", "10.0.0.1:7000", **given)
        self.leases.append(found)
        return found

    def turn(self, seconds: float = 2.0) -> list[dict[str, Any]]:
        """A turn of the doors; return what the doorman reads."""
        self.now_s += seconds
        self.doors.turn(self.leases)
        found: list[dict[str, Any]] = json.loads(self.file.read_text())["attachments"]
        return found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Hypervisor]:
    return Hypervisor(tmp_path)


def test_a_server_with_a_lease_gets_a_device_and_the_doorman_its_cid(host: Hypervisor) -> None:
    server, other = host.boot("gpu"), host.boot("other")
    assert host.turn() == []
    host.lease(1, server)
    assert host.turn() == [
        {
            "lease": "lease-1",
            "epoch": 1,
            "cid": 3,
            "pid": host.pids[server],
            "started": host.pids[server] * 10,
            "host": "g1",
            "address": "10.0.0.1:7000",
            "mbps": 100,
            "port": 10998,
            "ports": 1,
            "environment": {"FAKE_GPUS": "127.0.0.1:10998"},
        }
    ]
    host.turn()
    assert (host.plugs, host.unplugs, host.devices[other]) == ([server], [], "")


def test_after_a_hard_reboot_it_gets_one_again(host: Hypervisor) -> None:
    server = host.boot("gpu")
    host.lease(1, server)
    (before,) = host.turn()
    host.hard_reboot(server)
    (after,) = host.turn()
    assert host.plugs == [server, server]
    assert (after["pid"], after["cid"]) == (host.pids[server], before["cid"] + 1)


def test_a_lease_that_is_nobodys_for_a_moment_stays_and_then_its_device_goes(
    host: Hypervisor,
) -> None:
    server = host.boot("gpu")
    lease = host.lease(1, server)
    known = host.turn()
    host.leases.clear()
    assert host.turn() == known, "between two epochs"
    host.leases.append(lease)
    assert host.turn() == known
    host.leases.clear()
    assert host.turn(70.0) == []
    assert host.unplugs == []
    host.turn(70.0)
    assert host.unplugs == [server]
    host.turn(70.0)
    assert (host.unplugs, host.plugs) == ([server], [server])


def test_a_device_of_somebody_else_is_used_and_left(host: Hypervisor) -> None:
    server = host.boot("gpu")
    host.devices[server] = DEVICE.format(cid=77, alias="vsock0")
    host.lease(1, server)
    (found,) = host.turn()
    assert found["cid"] == 77
    host.leases.clear()
    for _ in range(3):
        host.turn(70.0)
    assert (host.plugs, host.unplugs) == ([], [])


def test_a_guest_that_begins_between_two_looks_does_not_get_the_lease_of_another(
    host: Hypervisor,
) -> None:
    """The CID is the new process's already, or the number still the old one's: neither is written."""
    server = host.boot("gpu")
    host.lease(1, server)
    (before,) = host.turn()

    def begins_again() -> None:
        host.hard_reboot(server)
        host.devices[server] = DEVICE.format(cid=50, alias=VSOCK_ALIAS)

    host.between = begins_again
    assert host.turn() == []
    host.between = lambda: None
    (after,) = host.turn()
    assert (after["cid"], after["pid"]) == (50, host.pids[server])
    assert before["pid"] != after["pid"]


@pytest.mark.parametrize(
    "trouble", [ServiceUnavailableError("the helper does not answer"), OSError("refused")]
)
def test_a_helper_that_is_away_changes_nothing(host: Hypervisor, trouble: Exception) -> None:
    host.lease(1, host.boot("gpu"))
    known = host.turn()
    host.trouble = trouble
    assert host.turn() == known
    host.trouble = None
    assert host.turn() == known


def test_a_paused_server_keeps_its_lease_and_is_not_plugged(host: Hypervisor) -> None:
    server, waits = host.boot("gpu"), host.boot("waits")
    host.lease(1, server)
    known = host.turn()
    host.lease(2, waits)
    host.activity |= {server: Activity.PAUSED, waits: Activity.PAUSED}
    assert host.turn() == known
    host.activity[server] = Activity.OFF
    assert host.turn() == []
    assert host.plugs == [server]


def test_leases_of_a_guest_have_ports_that_stay_theirs(host: Hypervisor) -> None:
    server = host.boot("gpu", **{Key.REMOTE_GPU_VGPUS_PER_GPU: "2"})
    second = host.lease(2, server)
    host.turn()
    first = host.lease(1, server)
    found = host.turn()
    assert [(each["lease"], each["port"]) for each in found] == [
        ("lease-2", 10998),
        ("lease-1", 10999),
    ]
    addresses = "127.0.0.1:10998,127.0.0.1:10999"
    assert found[0]["environment"] == {"FAKE_GPUS": f"{addresses},{addresses}"}
    assert found[1]["environment"] == {}
    host.start()
    assert host.turn() == found, "another process of the agent"
    host.leases.remove(second)
    (left,) = host.turn(70.0)
    assert (left["lease"], left["port"]) == (first.id, 10999)
    host.lease(3, server)
    assert {each["lease"]: each["port"] for each in host.turn()} == {
        "lease-1": 10999,
        "lease-3": 10998,
    }


def test_what_libvirt_does_not_plug_is_said_once_and_tried_again_later(
    host: Hypervisor, caplog: pytest.LogCaptureFixture
) -> None:
    server = host.boot("gpu")
    host.lease(1, server)
    host.refusal = "no more free PCI slots"
    for _ in range(5):
        assert host.turn() == []
    assert host.plugs == [server]
    host.refusal = ""
    assert host.turn(40.0) != []
    said = [each for each in caplog.messages if "num_pcie_ports" in each]
    assert len(said) == 1


def test_a_service_that_does_not_say_where_the_gpu_is_attaches_nothing(host: Hypervisor) -> None:
    host.lease(1, host.boot("gpu"), gpu_host="")
    assert host.turn() == []
    assert host.plugs == []


@pytest.mark.parametrize("cid", ["", "2", "4294967295", "x", "-3"])
def test_a_cid_that_no_guest_can_have_is_refused(cid: str) -> None:
    xml = f"<domain><devices>{DEVICE.format(cid=cid, alias='a')}</devices></domain>"
    with pytest.raises(InvalidValueError, match="CID of a domain"):
        vsock(xml, VSOCK_ALIAS)


def test_a_domain_without_a_device_has_no_cid() -> None:
    assert vsock("<domain><devices/></domain>", VSOCK_ALIAS) == (0, False)
    with pytest.raises(InvalidValueError, match="well-formed"):
        vsock("<domain", VSOCK_ALIAS)


def test_a_lease_that_comes_is_led_at_once_and_one_that_is_led_in_its_time() -> None:
    stop, turns, known = threading.Event(), [], [AttachedLease("a", 1, "server", "opencl", "h:1")]
    looks = iter(range(6))

    class Noting:
        def turn(self, leases: Sequence[AttachedLease]) -> None:
            turns.append(list(leases))

    def attaches() -> Sequence[AttachedLease]:
        if (look := next(looks)) == 3:
            known.append(AttachedLease("b", 1, "server", "opencl", "h:2"))
        if look == 5:
            stop.set()
        return tuple(known)

    DoorsThread(cast(Doors, Noting()), attaches, 60.0).run(stop)
    assert turns == [known[:1], known]


def test_a_turn_that_fails_in_a_way_nobody_foresaw_is_logged_and_the_next_one_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop, turns = threading.Event(), []

    class Failing:
        def turn(self, leases: Sequence[AttachedLease]) -> None:
            turns.append(leases)
            if len(turns) == 3:
                stop.set()
            raise RuntimeError("no such thing")

    DoorsThread(cast(Doors, Failing()), list, 0.0).run(stop)
    assert (len(turns), caplog.text.count("guests reach their leases as before")) == (3, 1)
    assert "no such thing" in caplog.text
