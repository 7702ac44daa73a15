# SPDX-License-Identifier: Apache-2.0
"""Leases of servers: awaited, moved with the time that they are out of use, and gone."""

from typing import Any

import pytest

from nova_numa_ext.rally import lease_checks
from nova_numa_ext.rally.cloud_checks import NotInTimeError
from nova_numa_ext.rally.lease_checks import LeaseChecks, LeaseStaysError
from tests.support.leased_servers import LOOK_S, LeasedServers

LOOKS_S = 0.2  # between two looks at a lease that moves


def checks(service: LeasedServers) -> LeaseChecks:
    """Checks by the service's clock."""
    jobs: Any = service
    return LeaseChecks(jobs, clock=service.clock, sleep=service.sleep)


@pytest.fixture
def service() -> LeasedServers:
    """Two servers with a lease each."""
    return LeasedServers({"u1": None, "u2": None})


def test_a_server_is_waited_for_until_it_can_use_its_own_lease(service: LeasedServers) -> None:
    found = checks(service).attached("u1", 1, 60.0)
    assert [(each["id"], each["state"]) for each in found] == [("lease of u1", "attached")]


def test_a_lease_that_waits_is_said_with_its_reason(service: LeasedServers) -> None:
    service.stuck = "starting"
    with pytest.raises(NotInTimeError, match=r"0 of 1 leases .*: lease lease of u1 is starting"):
        checks(service).attached("u1", 1, 10.0)


def test_a_server_without_a_lease_is_said(service: LeasedServers) -> None:
    with pytest.raises(NotInTimeError, match="it has no lease"):
        checks(service).attached("u3", 1, 5.0)


@pytest.mark.parametrize("carries", [False, True])
def test_a_move_is_out_of_use_from_the_last_look_before_to_the_first_after(
    service: LeasedServers, carries: bool
) -> None:
    """The request and four looks: the first still finds it in use, three find it on its way, the fifth arrived."""
    made = checks(service)
    service.carries = carries
    (lease,) = made.attached("u1", 1, 60.0)
    begun_s = service.now_s
    moved = made.move(lease, "h3", 60.0)
    assert service.asked == ["h3"]
    assert moved.whole_s == service.now_s - begun_s
    step_s = LOOK_S + LOOKS_S
    assert moved.whole_s == pytest.approx(5 * step_s)
    assert moved.out_of_use_s == pytest.approx(5 * step_s - LOOKS_S)
    assert moved.carried is carries
    (row,) = lease_checks.rows([moved])
    assert row[:4] == ["lease of u1", "h2", "h2", "yes" if carries else "no"]
    figures = dict(lease_checks.chart([moved])["data"])
    assert figures == {"out of use at most": moved.out_of_use_s, "whole": moved.whole_s}


def test_a_lease_that_stays_is_no_move(service: LeasedServers) -> None:
    service.full = True
    made = checks(service)
    (lease,) = made.attached("u1", 1, 60.0)
    with pytest.raises(LeaseStaysError, match="is attached, it does not move"):
        made.move(lease, "", 60.0)


def test_a_move_that_does_not_end_is_said(service: LeasedServers) -> None:
    made = checks(service)
    (lease,) = made.attached("u1", 1, 60.0)
    service.stuck = "moving"
    with pytest.raises(NotInTimeError, match="is moving"):
        made.move(lease, "", 10.0)


def test_leases_of_a_deleted_server_are_left_until_they_are_gone(service: LeasedServers) -> None:
    made = checks(service)
    made.attached("u1", 1, 60.0)
    service.running.pop("u1")
    service.stuck = "releasing"
    assert made.left("u1", 10.0) == ["lease lease of u1 is releasing"]
    service.stuck = ""
    assert made.left("u1", 60.0) == []
