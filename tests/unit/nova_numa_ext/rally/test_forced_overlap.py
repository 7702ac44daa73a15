# SPDX-License-Identifier: Apache-2.0
"""The fault that the lab forces for the negative run: it is one of overlap, and of nothing else."""

from nova_numa_ext.rally.agreement import read_back_faults, shared_ways
from tests.support.overlapping_ways import forced
from tests.support.partitioned_host import SERVERS, host, paused


def test_the_second_server_gets_the_ways_of_the_first() -> None:
    facts = host()
    found = forced(facts)
    assert found is not None
    group, line = found
    l3, _, mask = line.removeprefix("L3:").partition("=")
    facts["resctrl"][group]["schemata"]["L3"][l3] = mask
    assert shared_ways(SERVERS, facts) == (1, 4)
    assert [read_back_faults(server, facts) for server in SERVERS] == [(), (), ()]


def test_nothing_is_forced_before_the_agent_is_done() -> None:
    early = host()
    paused(early)
    assert forced(early) is None
    early["domains"] = early["domains"][1:]
    assert forced(early) is None
