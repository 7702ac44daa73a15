# SPDX-License-Identifier: Apache-2.0
"""Scavengers give their GPUs to leases of higher levels that wait, and come back: F-002-86."""

from dataclasses import replace

import pytest

from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.making_room import RebalanceRules, Rebalancing
from placement_traits.names import ServiceLevel
from placement_traits.reason import Reason
from tests.support.lease_service import ASKED, ENGINE, SERVER, LeaseService

SCAVENGER = replace(ASKED, level=ServiceLevel.SCAVENGER, priority=9)
GOLD = replace(ASKED, memory_mb=4000, level=ServiceLevel.GOLD)


@pytest.fixture
def service(lending, tmp_path):
    """g1 lends its only GPU to a scavenger, whose server runs on c1."""
    found = LeaseService(lending, tmp_path)
    found.report("g1")
    found.placed[SERVER] = "c1"
    found.report("c1", servers=[SERVER])
    found.leases.create("project-1", "user-1", SCAVENGER, SERVER)
    turns(found, 3)
    return found


def turns(service, count):
    for _ in range(count):
        service.round()
        service.obey()
    service.round()


def scavenging(service, mode):
    service.rebalance = RebalanceRules(scavenging=mode)
    service.start()
    service.report("g1")
    service.report("c1", servers=[SERVER])


def living(service):
    return [
        (each.asked.level.value, each.state.value)
        for each in service.leases.find()
        if not each.state.final
    ]


@pytest.mark.parametrize("mode", Rebalancing)
def test_a_scavenger_gives_way_where_that_is_asked_for(service, mode):
    """Although it has the highest priority; what it did before it was asked for again is in the reasons of both."""
    (first,) = service.leases.find()
    scavenging(service, mode)
    gold = service.leases.create("project-2", "user-2", GOLD)
    service.round()
    said = {"off": [], "observe": [("room_by_scavengers", 1)], "enforce": [("give_way_to_it", 1)]}
    found = [(each.term, each.value) for each in service.leases.read(gold.uuid).reasons]
    assert found == [("no_gpu", "opencl"), *said[mode]]
    turns(service, 4)
    if mode is not Rebalancing.ENFORCE:
        assert living(service) == [("scavenger", "attached"), ("gold", "reserved")]
        return
    assert living(service) == [("gold", "ready"), ("scavenger", "reserved")]
    again = service.leases.find()[-1]
    assert (again.server, again.asked) == (SERVER, SCAVENGER)
    gone = service.leases.read(first.uuid)
    assert [each.term for each in gone.reasons] == ["gives_way", "replaced"]
    assert service.claims.read(first.uuid) is None
    jobs = Jobs(service.database)
    assert [jobs.read(each.job).state for each in (gone, again)] == [JobState.DONE, JobState.QUEUED]


def test_it_comes_back_when_there_is_room(service):
    scavenging(service, Rebalancing.ENFORCE)
    gold = service.leases.create("project-2", "user-2", GOLD)
    turns(service, 4)
    service.leases.change(service.leases.read(gold.uuid), life.release, ENGINE)
    turns(service, 4)
    assert living(service) == [("scavenger", "attached")]


def test_none_gives_way_while_one_does(service, lending):
    """What it leaves may be all that is needed: a host that is slow to end it costs no other lease."""
    scavenging(service, Rebalancing.ENFORCE)
    for _ in range(2):
        service.leases.create("project-2", "user-2", GOLD)
    for _ in range(3):
        service.round()
    assert living(service) == [
        ("scavenger", "releasing"),
        ("gold", "reserved"),
        ("gold", "reserved"),
        ("scavenger", "reserved"),
    ]
    turns(service, 3)
    states = [state for level, state in living(service) if level == "gold"]
    assert states == ["ready", "reserved"], "no scavenger is left"


def test_whose_job_is_cancelled_at_that_moment_is_not_asked_for_again(service):
    (lease,) = service.leases.find()
    jobs = Jobs(service.database)
    why = (Reason(JobTerm.CANCELLED, "user-1"),)
    jobs.set(jobs.read(lease.job), Actor("user-1"), why, cancelled=True)
    with pytest.raises(LostRaceError, match="cancelled"):
        service.leases.give_way([lease], ENGINE)
    assert service.leases.find() == [service.leases.read(lease.uuid)]
    assert service.state(lease) is not LeaseState.RELEASING
