# SPDX-License-Identifier: Apache-2.0
"""The service's planner of hosts lets the same jobs start as the simulator's strategies, at each moment of table 7.

They are two planners in one queue: a strategy chooses GPUs and knows neighbours, the planner of hosts knows what
Placement counts and leaves the GPUs to nova. Which GPUs are taken is the replay's here, as it is nova's in a cloud.
"""

import pytest

from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.host_planner import HostPlanner
from nova_numa_ext.policy.jobs.host_view import HostClaims
from nova_numa_ext.policy.jobs.job import Job, Part
from nova_numa_ext.policy.jobs.queue import Fleet, decide
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.simulator.gpu import table7
from nova_numa_ext.simulator.gpu.cluster import strategy_class
from nova_numa_ext.simulator.gpu.simulation import Record
from tests.support.job_hosts import gpu_request, machine, view

POSTPONES = {"bf": False, "fcfs": False, "topo": False, "topo_p": True}


def as_job(record: Record, *, postpones: bool) -> Job:
    """A job of table 7 as the service has it; only ``topo_p`` waits for better GPUs."""
    asked = record.submission.job
    request = gpu_request(
        asked.gpus,
        policy="topo_p" if postpones else "topo",
        minimum=asked.min_utility if postpones else 0.0,
    )
    part = Part("p", 1, "flavor", request)
    return Job(str(record.submission.number), "project", (part,), record.submission.arrival_s)


@pytest.mark.parametrize("strategy", sorted(POSTPONES))
def test_f_000_15_the_planner_of_hosts_starts_the_jobs_of_table_7_when_the_strategy_does(
    strategy: str,
) -> None:
    records = table7.replay(strategy).records
    times = {time for each in records for time in (each.submission.arrival_s, each.end_s)}
    settings = QueueSettings(strategy_class(strategy).discipline, ageing_per_hour=0.0)
    started = {}
    for now in sorted(times):
        busy = [
            gpu
            for each in records
            if each.start_s < now < each.end_s
            for place in each.places
            for gpu in place.gpus
        ]
        waiting = [
            as_job(each, postpones=POSTPONES[strategy])
            for each in records
            if each.submission.arrival_s <= now <= each.start_s
        ]
        hosts = view(machine("minsky", busy=busy))
        fleet = Fleet(hosts, HostClaims(hosts), HostPlanner(), PlannerSettings())
        for start in decide(waiting, [], fleet, now, settings).starts:
            started[int(start.job.uuid)] = now
    assert started == {each.submission.number: each.start_s for each in records}
