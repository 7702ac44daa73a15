# SPDX-License-Identifier: Apache-2.0
"""Decision, allocation and host held against each other: a deviation is the fault of one SLA, and only of that one."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from nova_numa_ext.rally.agreement import (
    latency,
    orphans,
    placement_faults,
    read_back_faults,
    shared_ways,
)
from tests.support.partitioned_host import (
    BE,
    LC1,
    LC2,
    NAMES,
    OPEN,
    SERVERS,
    Facts,
    domain,
    empty,
    explained,
    held,
    host,
    paused,
)


def faults(facts: Facts) -> tuple[int, int, int]:
    """Servers with a fault of placement and of reading back, and shared ways."""
    return (
        sum(bool(placement_faults(one, explained(one), facts)) for one in SERVERS),
        sum(bool(read_back_faults(one, facts)) for one in SERVERS),
        shared_ways(SERVERS, facts)[1],
    )


def test_a_host_that_does_what_was_decided_has_no_fault() -> None:
    assert faults(host()) == (0, 0, 0)
    assert shared_ways(SERVERS, host())[0] == 1


def few_ways(facts: Facts) -> None:
    facts["resctrl"][NAMES[LC1]]["schemata"]["L3"]["0"] = "7"


def two_groups(facts: Facts) -> None:
    facts["domains"][2]["groups"] = ["", NAMES[BE]]


def far_memory(facts: Facts) -> None:
    facts["domains"][1]["pages_kb"] = {"1": 65536, "2": 65536}


def not_resident(facts: Facts) -> None:
    facts["domains"][2]["pages_kb"] = {"2": 1024}


@pytest.mark.parametrize(
    ("deviation", "servers"),
    [
        (paused, 1),
        (few_ways, 1),
        (two_groups, 1),
        (far_memory, 1),
        (not_resident, 1),
    ],
)
def test_what_the_host_does_not_do_is_a_fault_of_reading_back_alone(
    deviation: Callable[[Facts], None], servers: int
) -> None:
    facts = host()
    deviation(facts)
    assert faults(facts) == (0, servers, 0)


def test_ways_on_a_host_without_resctrl_are_a_fault() -> None:
    facts = host()
    facts["resctrl"] = {}
    (sentence,) = read_back_faults(SERVERS[0], facts)
    assert "4 L3 ways on a host without resctrl" in sentence
    assert read_back_faults(SERVERS[2], facts) == ()


def test_overlapping_masks_are_a_fault_of_overlap_alone() -> None:
    """Forced: the second server's group has as many ways as before, those of the first."""
    facts = host()
    facts["resctrl"][NAMES[LC2]]["schemata"]["L3"]["0"] = "f"
    assert faults(facts) == (0, 0, 4)


def test_servers_in_one_group_share_all_its_ways() -> None:
    facts = host()
    facts["domains"][1]["groups"] = [NAMES[LC1]]
    assert shared_ways(SERVERS, facts) == (1, 8)


def test_without_a_second_latency_critical_server_no_pair_is_looked_at() -> None:
    assert shared_ways((SERVERS[0], SERVERS[2]), host()) == (0, 0)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ([], "has noted no decision"),
        ([{"filter": None, "weigh": {}}], "has noted no decision"),
        ([{"filter": {"alternates": True, "details": []}}], "has noted no decision"),
        ([{"filter": {"details": []}, "weigh": None}], "which the filter has not let pass"),
    ],
)
def test_a_server_without_a_decision_is_a_fault_of_placement(
    told: list[Facts], sentence: str
) -> None:
    (found,) = placement_faults(SERVERS[0], told, host())
    assert sentence in found


def test_of_a_server_that_does_not_concern_us_no_decision_is_expected() -> None:
    plain = replace(SERVERS[0], decided=False)
    assert placement_faults(plain, [], host()) == ()
    refused = explained(plain)
    refused[0]["filter"]["details"][0]["reasons"] = [{"text": "full"}]
    assert "has not let pass" in placement_faults(plain, refused, host())[0]


def test_a_host_that_the_filter_refused_is_a_fault_of_placement() -> None:
    told = explained(SERVERS[0])
    told[0]["filter"]["details"][0]["reasons"] = [{"text": "full"}]
    assert "has not let pass" in placement_faults(SERVERS[0], told, host())[0]


def test_of_many_hosts_the_weigher_s_entry_describes_the_one_taken() -> None:
    told = explained(SERVERS[0])
    told[0]["weigh"] = {"details": told[0]["filter"]["details"]}
    told[0]["filter"] = {"details": []}
    assert placement_faults(SERVERS[0], told, host()) == ()


def test_an_allocation_elsewhere_than_decided_or_running_is_a_fault_of_placement() -> None:
    told = explained(SERVERS[0])
    moved = held(LC1, 2)
    found = placement_faults(moved, told, host())
    assert len(found) == 2
    assert "is not the candidate decided for" in found[0]
    assert "allocated in L3 2, runs in L3 0" in found[1]
    assert read_back_faults(moved, host()) == ()


def test_other_nodes_than_decided_are_a_fault_of_placement() -> None:
    told = explained(SERVERS[0])
    told[0]["filter"]["details"][0]["nodes"] = [3]
    (found,) = placement_faults(SERVERS[0], told, host())
    assert "NUMA node 3 decided, runs on 0" in found


def test_a_server_that_does_not_run_is_a_fault_of_both() -> None:
    facts = host()
    del facts["domains"][0]
    assert "does not run on h1" in placement_faults(SERVERS[0], explained(SERVERS[0]), facts)[0]
    assert "does not run on h1" in read_back_faults(SERVERS[0], facts)[0]


def test_nothing_is_left_of_deleted_servers() -> None:
    assert orphans(SERVERS, host(), empty(), {one.uuid: () for one in SERVERS}) == ()


def test_the_best_effort_group_stays_for_others() -> None:
    after = empty()
    after["resctrl"][NAMES[BE]] = {"schemata": {"L3": OPEN}, "monitors": []}
    assert orphans(SERVERS, host(), after, {}) == ()


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        (lambda after: after["domains"].append(domain(LC1, "1", "0")), "its domain still runs"),
        (
            lambda after: after["resctrl"].update(
                {NAMES[LC1]: {"schemata": {"L3": OPEN}, "monitors": []}}
            ),
            "its group numa_ext-lc-1 is still",
        ),
        (lambda after: after["resctrl"][""]["monitors"].append("mon-3"), "monitoring group mon-3"),
    ],
)
def test_what_is_left_is_named(left: Callable[[Facts], None], sentence: str) -> None:
    after = empty()
    left(after)
    (found,) = orphans(SERVERS, host(), after, {})
    assert sentence in found


def test_groups_of_servers_that_were_never_looked_at_are_known_by_their_names() -> None:
    after = empty()
    after["resctrl"][f"numa_ext-lc-{LC1[:13]}"] = {"schemata": {"L3": OPEN}, "monitors": []}
    (found,) = orphans(SERVERS, {"domains": []}, after, {})
    assert found.startswith(f"{LC1}: its group numa_ext-lc-{LC1[:13]} is still")


def test_allocations_that_are_left_are_named() -> None:
    (found,) = orphans(SERVERS, host(), empty(), {LC2: ("h1:l3_1", "h1")})
    assert found == f"{LC2}: allocations in h1, h1:l3_1"


def test_a_latency_is_read_off_the_agent_s_status() -> None:
    rows = [{"uuid": BE, "slo": {}}, {"uuid": LC1, "slo": {"p99_us": 900, "slo_p99_us": 1000}}]
    assert latency(rows, LC1) == (900.0, 1000.0)
    assert latency(rows, BE) is None
    assert latency(rows, LC2) is None
    unknown = copy.deepcopy(rows)
    unknown[1]["slo"]["p99_us"] = None
    assert latency(unknown, LC1) is None
