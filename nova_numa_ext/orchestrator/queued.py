# SPDX-License-Identifier: Apache-2.0
"""Jobs that are stored, as the queue and its planners see them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final

from nova_numa_ext.orchestrator.store.stored_job import NewJob, StoredJob, StoredPart
from nova_numa_ext.policy.jobs.job import ActiveJob, Job, Part
from nova_numa_ext.policy.jobs.part_specs import group_of
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.request import InvalidRequestError, parse
from placement_traits.workload_request import WorkloadRequest

_REQUESTS: Final = (
    4096  # thousands of jobs have few flavors between them, and each round reads all jobs
)


def part(stored: StoredPart) -> Part:
    """Return a part.

    :raises InvalidRequestError: its extra specs have no meaning
    :raises InvalidValueError: its scopes contradict each other
    """
    specs = tuple(sorted(stored.extra_specs.items()))
    request = _parsed(specs, stored.sizes.vcpus, stored.sizes.memory_mb)
    network = group_of(stored.extra_specs, stored.count, apart=stored.apart)
    return Part(
        stored.name,
        stored.count,
        stored.flavor,
        request,
        stored.image,
        stored.networks,
        stored.sizes.disk_gb,
        stored.wait_for,
        stored.apart or network is not None,
        stored.on_failure,
        network,
    )


def is_group(stored: StoredPart) -> bool:
    """Return whether the servers of a part are one group on the fabric; of one that cannot be read they are none."""
    try:
        return group_of(stored.extra_specs, stored.count, apart=stored.apart) is not None
    except InvalidRequestError:
        return False


@lru_cache(maxsize=_REQUESTS)
def _parsed(specs: tuple[tuple[str, str], ...], vcpus: int, memory_mb: int) -> WorkloadRequest:
    return parse(dict(specs), vcpus=vcpus, memory_mb=memory_mb)


def job(stored: StoredJob) -> Job:
    """Return a job.

    :raises InvalidRequestError: extra specs of a part have no meaning
    :raises InvalidValueError: numbers or parts of it have no meaning
    """
    return Job(
        stored.uuid,
        stored.project,
        tuple(part(each) for each in stored.parts),
        stored.submitted_at,
        queued_at=stored.queued_at,
        waited_s=stored.waited_s,
        priority=stored.priority,
        walltime_s=stored.walltime_s,
        deadline_at=stored.deadline_at,
        max_wait_s=stored.max_wait_s,
        held=stored.held,
        not_before=stored.not_before,
        postponed=stored.postponed,
        postponed_at=stored.postponed_at,
        excluded=stored.excluded,
        refusals=stored.refusals,
        at_quota=any(each.term == JobTerm.QUOTA for each in stored.reasons),
        preemptible=stored.preemptible,
        user=stored.user,
        name=stored.name,
    )


class KnownJobs:
    """Jobs as of the round before: most are read as they were, and are not made again."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[StoredJob, Job]] = {}
        self._now: dict[str, tuple[StoredJob, Job]] = {}
        self._ran: dict[str, tuple[StoredJob, ActiveJob[Plan[HostPlace]]]] = {}
        self._runs: dict[str, tuple[StoredJob, ActiveJob[Plan[HostPlace]]]] = {}

    def begin(self) -> None:
        """Begin a round: jobs that the last one did not ask for are forgotten."""
        self._before, self._now = self._now, {}
        self._ran, self._runs = self._runs, {}

    def job(self, stored: StoredJob) -> Job:
        """Return a job; errors as of :func:`job`."""
        known = self._before.get(stored.uuid)
        if known is None or (known[0] is not stored and known[0] != stored):
            known = stored, job(stored)
        self._now[stored.uuid] = known
        return known[1]

    def active(self, stored: StoredJob, now: float) -> ActiveJob[Plan[HostPlace]]:
        """Return a job that has places; errors as of :func:`active`."""
        read = self.job(stored)
        known = self._ran.get(stored.uuid)
        if known is None or known[0] is not stored:
            known = stored, active(stored, now, lambda _: read)
        if stored.state is JobState.RUNNING and stored.started_at is not None:
            self._runs[stored.uuid] = known  # nothing of it depends on the time
        return known[1]


def submitted(new: NewJob) -> Job:
    """Return a job that is not stored yet; errors as of :func:`job`."""
    return Job("", new.project, tuple(part(each) for each in new.parts), submitted_at=0.0)


def active(
    stored: StoredJob, now: float, read: Callable[[StoredJob], Job] = job
) -> ActiveJob[Plan[HostPlace]]:
    """Return a job that has places; errors as of :func:`job`.

    A server is where it really is, where that is known, else where it was planned. A job that does not run yet is as if
    it began to run now. Of one that runs or ends only the servers count of which it is known where they are: others
    were never made, were deleted, or shelved, and who is promised their places gets none.

    :param read: returns the job
    """
    started_at = stored.started_at if stored.state is JobState.RUNNING else None
    return ActiveJob(
        read(stored),
        _plan(stored),
        now if started_at is None else started_at,
        stored.ending_at if stored.state is JobState.ENDING else None,
    )


def _plan(stored: StoredJob) -> Plan[HostPlace]:
    plan: Plan[HostPlace] = stored.plan or Plan(())
    if stored.state not in (JobState.RUNNING, JobState.ENDING):
        return plan
    return replace(
        plan,
        places=tuple(
            HostPlace(each.name, host, count)
            for each in stored.parts
            for host, count in Counter(each.hosts.values()).items()
        ),
    )


def settled(stored: StoredJob) -> Iterator[str]:
    """Yield the servers of a job that hold amounts in Placement: nova claims them before a server has a host."""
    for each in stored.parts:
        for member, server in each.servers.items():
            if server and (member in each.hosts or stored.state is JobState.RUNNING):
                yield server


def unseen(stored: StoredJob, plan: Plan[HostPlace], seen: Collection[str]) -> Plan[HostPlace]:
    """Return those places of a job that Placement did not show as taken when it was read.

    :param plan: of :func:`active`
    :param seen: servers that were :func:`settled` by then
    """
    servers_of = [(each.servers, each.hosts) for each in stored.parts]
    if stored.state in (JobState.RUNNING, JobState.ENDING) and all(
        servers.get(member) in seen for servers, hosts in servers_of for member in hosts
    ):
        return Plan(())  # of nearly all jobs, so nothing is made for them in each round
    places: list[HostPlace] = []
    for each in stored.parts:
        left = Counter(
            {place.host: place.count for place in plan.places if place.part == each.name}
        )
        shown = [member for member, server in each.servers.items() if server in seen]
        left -= Counter(each.hosts[member] for member in shown if member in each.hosts)
        somewhere = sum(member not in each.hosts for member in shown)
        hosts = Counter(list(left.elements())[somewhere:])
        places += [HostPlace(each.name, host, count) for host, count in hosts.items()]
    return replace(plan, places=tuple(places))
