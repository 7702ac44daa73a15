# SPDX-License-Identifier: Apache-2.0
"""Mapping on a real libvirt with real QEMU processes: cores of their own, sensors that are there or not, restarts."""

import json
import time

import pytest

from emulation.servers import BE_SPECS, Server
from tests.functional.host_agent.conftest import ComputeHost, wait_for
from tests.functional.host_agent.test_agent import journal, vcpu_cpus

pytestmark = pytest.mark.root

QUICK = {"counters__sample_s": 0.1, "mapping__quiet_samples": 2, "agent__resync_s": 1}


def pins(host: ComputeHost, *servers: Server) -> list[str]:
    """CPUs of the vCPU of each server."""
    return [cpus for server in servers for cpus in vcpu_cpus(host.pid(server))]


@pytest.fixture
def two(empty_host: ComputeHost) -> tuple[Server, Server]:
    """Servers of one vCPU on a host of two CPUs::

    CPU 0   one ┐   float, as nova leaves a server without a policy
    CPU 1   two ┘
    """
    servers = Server("one", BE_SPECS), Server("two", BE_SPECS)
    for server in servers:
        empty_host.boot(server)
    return servers


def test_f_001_12_each_vcpu_of_a_running_domain_gets_a_core_and_the_guest_runs_on(
    host: ComputeHost, two: tuple[Server, Server]
) -> None:
    pids = [host.pid(server) for server in two]
    host.run_once()
    assert sorted(pins(host, *two)) == ["0", "1"]
    assert [host.pid(server) for server in two] == pids
    for server in two:
        assert host.domain(server).state()[0] == 1, "running"
        spent = host.domain(server).info()[4]
        wait_for(lambda s=server, t=spent: host.domain(s).info()[4] > t, "its vCPU runs")


def test_a_third_server_floats_and_the_others_keep_their_cores(
    host: ComputeHost, two: tuple[Server, Server]
) -> None:
    host.run_once()
    before = pins(host, *two)
    late = Server("late", BE_SPECS)
    host.boot(late)
    host.run_once()
    assert pins(host, *two) == before
    assert pins(host, late) == ["0-1"]
    reported = [e for e in journal(host) if "host_full" in str(e.get("reasons"))]
    assert [entry["server"] for entry in reported] == [late.uuid]


def test_a_machine_without_counters_is_told_once_and_servers_are_mapped_all_the_same(
    host: ComputeHost, two: tuple[Server, Server]
) -> None:
    log = host.folder / "agent.log"
    log.write_text("")  # all agents of this host write to one file
    agent = host.agent(counters__source="libvirt", **QUICK)
    try:
        wait_for(lambda: sorted(pins(host, *two)) == ["0", "1"], "pins")
        wait_for(lambda: "no performance counters" in log.read_text(), "the log line")
        time.sleep(1.0)
    finally:
        agent.terminate()
        assert agent.wait(20) == 0
    assert log.read_text().count("no performance counters") == 1


def test_what_is_learnt_outlives_a_killed_agent(
    host: ComputeHost, two: tuple[Server, Server]
) -> None:
    """Modelled counters; the second agent begins with the first one's expectations and pins nobody anew."""
    agent = host.agent(counters__source="model", **QUICK)
    kept = host.state / "balancing.json"

    def learnt() -> dict[str, float]:
        return (
            dict(json.loads(kept.read_text())["mapping"]["expectations"]) if kept.exists() else {}
        )

    try:
        wait_for(lambda: len(learnt()) == 2, "expectations")
    finally:
        agent.kill()
        agent.wait(20)
    before, pinned = learnt(), pins(host, *two)
    entries = len(journal(host))
    host.run_once(counters__source="model", **QUICK)
    assert set(learnt()) == set(before)
    assert pins(host, *two) == pinned
    assert not [entry for entry in journal(host)[entries:] if entry["action"] == "pin"]
