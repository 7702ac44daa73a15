# SPDX-License-Identifier: Apache-2.0
"""What ``numa-host-agent-leases`` reports of servers: those that run, and what their flavors ask of remote GPUs."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace

import pytest

from emulation.servers import BE_SPECS, Server
from host_agent.cmd.leases import servers
from host_agent.machine.libvirt import ListedDomain
from host_agent.model.workload import Activity
from host_agent.remote_gpu.answer import LeaseReport, RunningServers
from nova_numa_ext.orchestrator.api.schemas import check_report
from placement_traits.names import Key

GPUS = {
    **BE_SPECS,
    Key.REMOTE_GPU: "required",
    Key.REMOTE_GPU_COUNT: "2",
    Key.REMOTE_GPU_MEMORY_MB: "4000",
    Key.REMOTE_GPU_PRIORITY: "7",
}


def listed(server: Server, activity: Activity = Activity.RUNNING) -> ListedDomain:
    return ListedDomain(server.uuid, server.xml, activity)


def found(*domains: ListedDomain) -> RunningServers:
    return servers(SimpleNamespace(domains=lambda: domains))  # type: ignore[arg-type]


def test_a_server_that_runs_asks_for_what_its_flavor_says() -> None:
    asks, other = Server("gpu", GPUS), Server("other", BE_SPECS)
    paused = listed(Server("paused", GPUS), Activity.PAUSED)
    running = found(listed(asks), listed(other), paused)
    assert running.uuids == {asks.uuid, other.uuid}
    assert LeaseReport(servers=running).body()["report"]["requests"] == [
        {
            "server_id": asks.uuid,
            "count": 2,
            "memory_mb": 4000,
            "service_level": "silver",
            "api": "opencl",
            "network_mbps": 0,
            "priority": 7,
            "migratable": False,
        }
    ]


def test_a_domain_has_the_number_that_libvirt_gave_it_at_its_start() -> None:
    first, second = Server("first", GPUS), Server("second", BE_SPECS)
    started = replace(
        listed(first), xml=first.xml.replace("<domain type='qemu'>", "<domain type='qemu' id='7'>")
    )
    no_xml = ListedDomain("c", "<domain", Activity.RUNNING)
    assert found(started, listed(second), no_xml).domains == {first.uuid: "7"}


def test_the_xml_of_a_domain_is_parsed_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of servers on a busy host, every two seconds."""
    asks, other = Server("gpu", GPUS), Server("other", BE_SPECS)
    parsed: list[str] = []
    plain = ET.fromstring

    def counted(xml: str) -> ET.Element:
        parsed.append(xml)
        return plain(xml)

    monkeypatch.setattr(ET, "fromstring", counted)
    found(listed(asks), listed(other))
    assert sorted(parsed) == sorted([asks.xml, other.xml])


def test_a_flavor_that_cannot_be_understood_asks_for_nothing() -> None:
    wrong = Server("wrong", GPUS | {Key.REMOTE_GPU_COUNT: "many"})
    no_xml = ListedDomain("b", "<domain", Activity.RUNNING)
    running = found(listed(wrong), no_xml)
    assert running == RunningServers(frozenset({wrong.uuid, "b"}))
    assert "requests" not in LeaseReport(servers=running).body()["report"]


@pytest.mark.parametrize("key", [Key.REMOTE_GPU_MEMORY_MB, Key.REMOTE_GPU_NETWORK_MBPS])
def test_a_flavor_of_more_than_placement_counts_keeps_nothing_from_being_reported(key: Key) -> None:
    most = listed(Server("most", GPUS | {key: str(2**31 - 1)}))
    more = listed(Server("more", GPUS | {key: str(2**31)}))
    running = found(most, more)
    assert running.uuids == {most.uuid, more.uuid}
    assert running.requests.keys() == {most.uuid}
    check_report(LeaseReport(servers=running).body())
