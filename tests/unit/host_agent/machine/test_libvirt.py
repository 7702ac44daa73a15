# SPDX-License-Identifier: Apache-2.0
"""The agent's one connection to libvirt, for several threads, and the helper's: libvirt's own test driver answers."""

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from host_agent.machine.libvirt import AgentEndsError, LibvirtSource
from host_agent.machine.privileged.devices import LATENCY_PORT, VSOCK, VSOCK_ALIAS, Devices
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError

libvirt = pytest.importorskip("libvirt")
GONE = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def source() -> Iterator[LibvirtSource]:
    made = LibvirtSource("test:///default", timeout_s=10.0)
    yield made
    made.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Connections opened; opening one takes a while, as over a busy socket."""
    found: list[Any] = []
    really = libvirt.openReadOnly

    def slowly(uri: str) -> Any:
        time.sleep(0.05)
        found.append(really(uri))
        return found[-1]

    monkeypatch.setattr(libvirt, "openReadOnly", slowly)
    monkeypatch.setattr(libvirt, "open", lambda uri: pytest.fail(f"{uri} opened for writing"))
    return found


def test_a_question_about_a_domain_that_has_gone_leaves_the_loops_connection_alone(
    source: LibvirtSource, opened: list[Any]
) -> None:
    assert source.domains()
    assert not source.migrating(GONE)
    assert source.domains()
    assert len(opened) == 1, "the connection was closed under the loop"


def test_threads_that_come_together_open_one_connection(
    source: LibvirtSource, opened: list[Any]
) -> None:
    with ThreadPoolExecutor(4) as threads:
        names = {found.result() for found in [threads.submit(source.hostname) for _ in range(4)]}
    assert len(names) == 1
    assert len(opened) == 1


def test_a_connection_that_is_lost_in_the_middle_of_a_call_is_told_and_opened_anew(
    source: LibvirtSource, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread closes it while this one looks for the domain: no AttributeError of a None."""

    def lost(connection: Any, _uuid: str) -> None:
        source.close()
        raise libvirt.libvirtError("client socket is closed")

    with monkeypatch.context() as patch:
        patch.setattr(libvirt.virConnect, "lookupByUUIDString", lost)
        with pytest.raises(ServiceUnavailableError):
            source.migrating(GONE)
    assert source.domains()
    assert len(opened) == 2


def test_what_failed_on_an_old_connection_does_not_close_the_new_one(
    source: LibvirtSource, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(_connection: Any) -> str:
        source.close()
        other = threading.Thread(target=source.domains)
        other.start()
        other.join()
        raise libvirt.libvirtError("client socket is closed")

    with monkeypatch.context() as patch:
        patch.setattr(libvirt.virConnect, "getHostname", overtaken)
        with pytest.raises(ServiceUnavailableError):
            source.hostname()
    assert source.domains()
    assert len(opened) == 2


def test_a_wake_ends_the_wait_and_is_no_news_of_domains(source: LibvirtSource) -> None:
    assert source.domains()
    assert source.has_events(), "a new connection"
    source.wait(0.0)
    source.wake()
    assert source.wait(60.0)
    assert not source.has_events()
    source._on_event()
    assert source.wait(60.0)
    assert [source.has_events(), source.has_events()] == [True, False]


def test_an_event_that_comes_while_it_is_asked_for_is_not_lost(
    source: LibvirtSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: between the look and the clearing."""
    really, came = source._changed.is_set, []

    def then_one_comes() -> bool:
        seen = really()
        if not came:
            came.append(True)
            source._on_event()
        return seen

    monkeypatch.setattr(source._changed, "is_set", then_one_comes)
    assert [source.has_events(), source.has_events(), source.has_events()] == [False, True, False]


@pytest.mark.parametrize("event", ["LIFECYCLE", "DEVICE_ADDED"])
def test_a_domain_or_device_that_comes_ends_the_wait_and_is_news(
    source: LibvirtSource, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    told: dict[int, Callable[..., None]] = {}

    def register(_c: Any, _domain: Any, number: int, call: Callable[..., None], _o: Any) -> None:
        told[number] = call

    monkeypatch.setattr(libvirt.virConnect, "domainEventRegisterAny", register)
    assert source.domains()
    source.wait(0.0)
    source.has_events()
    told[getattr(libvirt, f"VIR_DOMAIN_EVENT_ID_{event}")](None, None, "virtio-disk1", None)
    assert source.wait(60.0)
    assert source.has_events()


def test_the_agent_may_change_nothing(source: LibvirtSource) -> None:
    name = libvirt.openReadOnly("test:///default").listAllDomains()[0].name()
    source.domains()
    with pytest.raises(libvirt.libvirtError, match="read only access"):
        source._connection.lookupByName(name).attachDevice(LATENCY_PORT)


class Plugged:
    """What libvirt was asked to plug in or out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices: list[tuple[str, str, int]] = []

        def change(domain: Any, device: str, flags: int) -> None:
            self.devices.append((domain.UUIDString(), device, flags))

        monkeypatch.setattr(libvirt.virDomain, "attachDeviceFlags", change)
        monkeypatch.setattr(libvirt.virDomain, "detachDeviceAlias", change)


def test_the_helper_plugs_a_port_into_the_running_domain_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libvirt's test driver plugs nothing in."""
    plugged = Plugged(monkeypatch)
    uuid = libvirt.openReadOnly("test:///default").listAllDomains()[0].UUIDString()
    Devices("test:///default").plug_latency_port(uuid)
    assert plugged.devices == [(uuid, LATENCY_PORT, libvirt.VIR_DOMAIN_AFFECT_LIVE)]


def test_the_helper_plugs_a_vsock_of_its_own_and_unplugs_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugged = Plugged(monkeypatch)
    uuid = libvirt.openReadOnly("test:///default").listAllDomains()[0].UUIDString()
    devices = Devices("test:///default")
    devices.plug_vsock(uuid)
    devices.unplug_vsock(uuid)
    live = libvirt.VIR_DOMAIN_AFFECT_LIVE
    assert plugged.devices == [(uuid, VSOCK, live), (uuid, VSOCK_ALIAS, live)]
    assert f"name='{VSOCK_ALIAS}'" in VSOCK


@pytest.mark.parametrize("change", ["plug_latency_port", "plug_vsock", "unplug_vsock"])
def test_what_libvirt_does_not_plug_is_said(change: str) -> None:
    with pytest.raises(CapabilityMissingError, match="plugs nothing in"):
        getattr(Devices("test:///default"), change)(GONE)
    with pytest.raises(ServiceUnavailableError, match="libvirt does not answer"):
        getattr(Devices("qemu:///system?socket=/nonexistent"), change)(GONE)


@pytest.fixture
def silent_uri() -> Iterator[str]:
    """A libvirtd that accepts connections and never answers."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as libvirtd:
        libvirtd.bind(f"{folder}/sock")
        libvirtd.listen(50)
        yield f"qemu+unix:///system?socket={folder}/sock"


@pytest.fixture
def silent(silent_uri: str) -> LibvirtSource:
    return LibvirtSource(silent_uri, timeout_s=0.1)


def test_a_libvirt_that_does_not_answer_holds_up_no_connection_of_the_helper(
    silent_uri: str,
) -> None:
    asked = time.monotonic()
    for _again in range(2):
        with pytest.raises(ServiceUnavailableError, match="libvirt does not answer"):
            Devices(silent_uri, timeout_s=0.1).plug_latency_port(GONE)
    assert time.monotonic() - asked < 10


def test_a_libvirt_that_accepts_and_does_not_answer_is_as_one_that_is_down(
    silent: LibvirtSource,
) -> None:
    """H5: opening a connection has no time limit in libvirt."""
    with pytest.raises(
        ServiceUnavailableError, match=r"libvirt does not answer: no answer in 0\.1 s"
    ):
        silent.domains()
    before = threading.active_count()
    asked = time.monotonic()
    for ask in (silent.domains, silent.hostname, lambda: silent.migrating(GONE)):
        with pytest.raises(ServiceUnavailableError, match="no answer for"):
            ask()
    assert time.monotonic() - asked < 0.1, "each asked again"
    assert threading.active_count() <= before, "threads pile up"


def test_at_the_agents_end_nobody_waits_for_libvirt(silent: LibvirtSource) -> None:
    patient = LibvirtSource(silent._uri, timeout_s=60.0)
    threading.Timer(0.1, patient.end).start()
    asked = time.monotonic()
    with pytest.raises(AgentEndsError, match=r"^the agent ends$"):
        patient.domains()
    assert time.monotonic() - asked < 10


THREE = "".join(
    f"<domain type='test'><name>{name}</name><uuid>{name * 8}-{name * 4}-4000-8000-000000000000</uuid>"
    "<memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>"
    for name in "abc"
)


class Unreadable:
    """Makes libvirt fail to describe a domain; the connection lives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = ""
        really = libvirt.virDomain.XMLDesc

        def described(domain: Any) -> str:
            if domain.name() == self.name:
                raise libvirt.libvirtError("internal error: its status file is damaged")
            return str(really(domain))

        monkeypatch.setattr(libvirt.virDomain, "XMLDesc", described)


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Unreadable:
    return Unreadable(monkeypatch)


@pytest.fixture
def three(tmp_path: Path) -> LibvirtSource:
    """libvirt's test driver with domains a, b and c."""
    (tmp_path / "node.xml").write_text(f"<node>{THREE}</node>")
    return LibvirtSource(f"test://{tmp_path}/node.xml", timeout_s=10.0)


def test_a_domain_that_libvirt_cannot_describe_keeps_no_other_from_being_listed(
    three: LibvirtSource, unreadable: Unreadable, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable.name = "b"
    for _listing in range(2):
        assert {domain.uuid[0] for domain in three.domains()} == {"a", "c"}
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert warned[0].startswith("libvirt cannot describe domain bbbbbbbb-")
    assert warned[0].endswith("internal error: its status file is damaged")


def test_a_known_domain_that_libvirt_cannot_describe_stays_as_it_was(
    three: LibvirtSource, unreadable: Unreadable
) -> None:
    """It runs: left out of the list, it would lose its partition."""
    before = frozenset(three.domains())
    unreadable.name = "b"
    for _listing in range(2):
        assert frozenset(three.domains()) == before
