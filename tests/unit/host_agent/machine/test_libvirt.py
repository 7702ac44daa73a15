# SPDX-License-Identifier: Apache-2.0
"""One connection to libvirt, used by the loop and by the thread that plugs ports: libvirt's own test driver answers."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from host_agent.machine.libvirt import LibvirtSource
from host_agent.observe.latency.ports import DEVICE
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError

libvirt = pytest.importorskip("libvirt")
GONE = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def source() -> Iterator[LibvirtSource]:
    made = LibvirtSource("test:///default")
    yield made
    made.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Connections opened; opening one takes a while, as over a busy socket."""
    found: list[Any] = []
    really = libvirt.open

    def slowly(uri: str) -> Any:
        time.sleep(0.05)
        found.append(really(uri))
        return found[-1]

    monkeypatch.setattr(libvirt, "open", slowly)
    return found


def test_a_port_for_a_domain_that_has_gone_leaves_the_loops_connection_alone(
    source: LibvirtSource, opened: list[Any]
) -> None:
    assert source.domains()
    with pytest.raises(CapabilityMissingError, match="plugs nothing in"):
        source.attach(GONE, DEVICE)
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
            source.attach(GONE, DEVICE)
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
