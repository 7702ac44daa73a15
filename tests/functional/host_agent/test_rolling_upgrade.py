# SPDX-License-Identifier: Apache-2.0
"""The agent of the release before, this one, and the one before again, beside servers that run on and feel nothing."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from emulation.servers import Server
from placement_traits import formats
from placement_traits.names import TierTrait
from tests.functional.host_agent.conftest import ComputeHost, wait_for
from tests.support.old_release import OldRelease
from tests.support.placement_over_http import PlacementOverHttp, placement_over_http

pytestmark = [pytest.mark.root, pytest.mark.long]


@pytest.fixture
def placement() -> Iterator[PlacementOverHttp]:
    """What nova-compute makes at its first start::

    h1    VCPU 8, MEMORY_MB 8192; HW_CPU_X86_AVX2
    """
    with placement_over_http() as found:
        found.root = found.cloud.compute("h1")
        yield found


@pytest.fixture
def old(tmp_path_factory: pytest.TempPathFactory) -> OldRelease:
    """The release before this one."""
    return OldRelease(tmp_path_factory.mktemp("old"))


def root_traits(placement: PlacementOverHttp) -> frozenset[str]:
    path = f"/resource_providers/{placement.root}/traits"
    return frozenset(placement.cloud.client.get(path)["traits"])


def enforced(host: ComputeHost, server: Server) -> dict[str, object]:
    """What the kernel has of a server: its group, the group's masks, and where each thread may run."""
    pid = host.pid(server)
    group = host.group_of(pid)
    tasks = sorted((host.root / f"proc/{pid}/task").iterdir())
    allowed = [
        next(line for line in (task / "status").read_text().splitlines() if "Cpus_allowed:" in line)
        for task in tasks
    ]
    return {"group": group, "masks": host.schemata(group), "allowed": allowed}


def end(agent: "subprocess.Popen[bytes]") -> None:
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(60) == 0


def test_servers_keep_what_they_have_over_an_upgrade_and_a_downgrade(
    host: ComputeHost,
    pair: tuple[Server, Server],
    placement: PlacementOverHttp,
    old: OldRelease,
) -> None:
    lc, _be = pair
    options = {**placement.options, "host__name": "h1"}

    def start_old() -> "subprocess.Popen[bytes]":
        config = f"--config-file={host.config(**options)}"
        module = [sys.executable, "-m", "host_agent.cmd.agent", config]
        where = [f"--chdir={old.folder}", f"PYTHONPATH={old.folder}"]
        return host._start(["env", *where, *module], "old-agent.log")

    def published(number: int) -> None:
        wait_for(
            lambda: (
                formats.of(found := root_traits(placement)) == number
                and not found.isdisjoint(TierTrait)
            ),
            f"format {number}",
        )

    agent = start_old()
    wait_for(lambda: host.group_of(host.pid(lc)), "the group of the old agent")
    published(formats.FIRST)
    before = enforced(host, lc)
    end(agent)
    assert enforced(host, lc) == before

    agent = host.agent(**options)
    published(formats.CURRENT)
    assert enforced(host, lc) == before, "upgraded"
    end(agent)
    host.stop_helper()

    agent = start_old()
    published(formats.FIRST)
    assert enforced(host, lc) == before, "downgraded"
    end(agent)

    agent = host.agent(**options)
    published(formats.CURRENT)
    assert enforced(host, lc) == before, "upgraded again"
    end(agent)
