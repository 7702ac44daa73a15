# SPDX-License-Identifier: Apache-2.0
"""Stories of the agent on a real libvirt."""

import pytest

from tests.functional.host_agent.conftest import BE_SPECS, LC_SPECS, ComputeHost, Server

pytestmark = pytest.mark.root


def test_one_round_pins_and_partitions(host: ComputeHost) -> None:
    lc = Server("lc", LC_SPECS, cpus=(1,))
    be = Server("be", BE_SPECS)
    host.boot(lc)
    host.boot(be)
    print(host.run_once("--dry-run"))
    host.run_once()
    print(host.groups(), host.schemata(), (host.state/"journal.jsonl").read_text())
    assert 0
