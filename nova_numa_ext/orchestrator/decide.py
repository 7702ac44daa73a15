# SPDX-License-Identifier: Apache-2.0
"""Who starts in a round of the service: stored jobs and Placement's hosts in, the queue's decision out.

What a round plans with is what Placement showed when it was last read, and beyond it what jobs take since:

* a job that is planned, until Placement shows its servers, at its planned places
* a server that nova has placed since, on the host that it is on

A server that is gone since keeps its place until Placement is read again. What a consumer of ours holds for a job that
waits is room for it when Placement has shown it as taken: it had granted it before it was read. Of what it has given
back since, Placement still shows all as taken.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Protocol, TypeVar
from uuid import UUID

from oslo_config import cfg

from nova_numa_ext import gpu_options
from nova_numa_ext.orchestrator import conf as jobs_conf
from nova_numa_ext.orchestrator import queued
from nova_numa_ext.orchestrator.cloud.fleet import PlacementHosts
from nova_numa_ext.orchestrator.engine import QueueDecision
from nova_numa_ext.orchestrator.reservations import unanswered
from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from nova_numa_ext.policy.jobs import queue, quotas, reserving
from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.host_planner import HostPlanner
from nova_numa_ext.policy.jobs.host_view import HostClaims, HostsView
from nova_numa_ext.policy.jobs.job import ActiveJob, Job
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.queue import Fleet
from nova_numa_ext.policy.jobs.queue_order import in_order
from nova_numa_ext.policy.jobs.queue_round import NO_ROUND_BEFORE, QueueRound
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits import devices
from placement_traits.client import HttpAdapter
from placement_traits.errors import InvalidValueError, cut
from placement_traits.reason import Reason
from placement_traits.view import ViewSettings

_LOG: Final = logging.getLogger(__name__)

_FORGOTTEN_S: Final = 60.0  # without a round: another engine has led since
_FREED_S: Final = 30.0  # nova deletes a server's allocation some moments after the server is gone
_HELD_AGAIN_S: Final = (
    60.0  # of a reservation: each change is an event of its job, and a write to Placement
)

FoundT = TypeVar("FoundT")


class Hosts(Protocol):
    """Where jobs may be placed."""

    def read(self, freed: Collection[str] = ()) -> HostsView:
        """Return the hosts; another object each time that they were read again.

        :param freed: root providers of hosts on which something was freed lately
        """


class HostQueue:
    """The queue of jobs over the hosts of the cloud.

    :param hosts: of the cloud
    :param settings: of the queue
    :param planner: settings of the planner of hosts
    """

    def __init__(self, hosts: Hosts, settings: QueueSettings, planner: PlannerSettings) -> None:
        self._hosts = hosts
        self._settings = settings
        self._planner = planner
        self._view: HostsView | None = None
        self._seen: frozenset[str] = frozenset()
        self._held: dict[str, tuple[ProviderAmount, ...]] = {}
        self._unreadable: frozenset[str] = frozenset()
        self._used = _UsedHosts()
        self._known = queued.KnownJobs()
        self._state = NO_ROUND_BEFORE
        self._decided_at = -inf
        self._first = _First("")

    def decide(
        self, waiting: Sequence[StoredJob], active: Sequence[StoredJob], now: float
    ) -> QueueDecision:
        """Decide who starts; a job that cannot be read waits, and holds up no other one.

        :param waiting: jobs in state QUEUED
        :param active: jobs that have places, read before this call
        :param now: the time
        :raises ServiceUnavailableError: Placement does not answer: no job starts
        :raises PlacementError: Placement refuses what is asked
        """
        view = self._hosts.read(self._used.freed(active, now))
        if view is not self._view:
            self._view = view
            self._seen = frozenset(server for each in active for server in queued.settled(each))
            self._held = {each.uuid: each.reserved for each in waiting if not unanswered(each)}
        trouble: dict[str, Reason] = {}
        self._known.begin()
        read = self._known.job
        jobs = [job for _, job in _readable(waiting, read, trouble)]
        running = [*_readable(active, lambda one: self._known.active(one, now), trouble)]
        claims, coming = self._claims(view, running, waiting)
        state = self._state if now - self._decided_at < _FORGOTTEN_S else NO_ROUND_BEFORE
        state = replace(state, quotas=quotas.waits(state.quotas, jobs, now))
        self._report(trouble)
        found = queue.decide(
            in_order(jobs, now, self._settings),
            [each for _, each in running],
            Fleet(view, claims, HostPlanner(), self._planner),
            now,
            self._settings,
            state=state,
        )
        self._state, self._decided_at = found.state, now
        unreadable = {each.uuid: (trouble[each.uuid],) for each in waiting if each.uuid in trouble}
        coming |= {host for each in found.starts for host in _taking(each.job, each.plan)}
        return QueueDecision(
            starts={each.job.uuid: each.plan for each in found.starts},
            waits={uuid: each.reasons for uuid, each in found.waits.items()} | unreadable,
            ended=found.ended,
            postponed=frozenset(found.postponed),
            preempted={each.active.job.uuid: each.reason for each in found.preempted},
            reserved=_reserved(found, waiting, jobs, view, now, shown=self._held)
            | self._of_first(found, waiting, jobs, view, now, coming=coming),
        )

    def _claims(
        self,
        view: HostsView,
        running: Iterable[tuple[StoredJob, ActiveJob[Plan[HostPlace]]]],
        waiting: Iterable[StoredJob],
    ) -> tuple[HostClaims, set[str]]:
        """Return what jobs have that the view does not show yet, and the hosts where that is."""
        claims, coming = HostClaims(view), set[str]()
        for stored, each in running:
            unseen = queued.unseen(stored, each.plan, self._seen)
            claims.take(each.job, unseen)
            if unseen.places:
                coming |= _taking(each.job, unseen)
        for stored in waiting:
            held = self._held.get(stored.uuid, ())
            if {*stored.reserved} <= {*held}:
                claims.release(held)
        return claims, coming

    def _of_first(
        self,
        found: QueueRound[HostPlace],
        waiting: Iterable[StoredJob],
        jobs: Iterable[Job],
        view: HostsView,
        now: float,
        *,
        coming: Collection[str],
    ) -> dict[str, tuple[ProviderAmount, ...]]:
        """Return what is to be held for the first job that found no place: less at once, more now and then.

        :param coming: root providers of hosts on which jobs of the queue are about to get what may be held
        """
        plans = {each.job: each.plan for each in found.reservations}
        of_jobs = {each.uuid: each for each in jobs}
        for stored in waiting:
            if stored.uuid not in plans or stored.uuid in found.state.preempting:
                continue
            left = reserving.beside(stored.reserved, coming, view)
            shown = self._held.get(stored.uuid, ())
            plan = plans[stored.uuid]
            asked = reserving.amounts(of_jobs[stored.uuid], plan, view, shown)
            asked = reserving.beside(asked, coming, view)
            self._first = self._first.seen(stored, now)
            is_less = {*asked} <= {*left}
            may_be_more = now >= self._first.changed_at + _HELD_AGAIN_S
            return {stored.uuid: asked if is_less or may_be_more else left}
        return {}

    def _report(self, trouble: dict[str, Reason]) -> None:
        """Log jobs that cannot be read, each once."""
        for uuid in trouble.keys() - self._unreadable:
            _LOG.error("job %s is left out: %s", uuid, trouble[uuid])
        self._unreadable = frozenset(trouble)


@dataclass(frozen=True, slots=True)
class _First:
    """What was held for the first job that found no place, as it was stored.

    :param changed_at: when it was found to be another amount
    """

    uuid: str
    reserved: tuple[ProviderAmount, ...] = ()
    changed_at: float = -inf

    def seen(self, stored: StoredJob, now: float) -> "_First":
        """Return what is so after a look at a job."""
        if stored.uuid != self.uuid:
            return _First(stored.uuid, stored.reserved)
        if stored.reserved == self.reserved:
            return self
        return _First(stored.uuid, stored.reserved, now)


class _UsedHosts:
    """Tells on which hosts jobs have freed something lately."""

    def __init__(self) -> None:
        self._hosts: Mapping[str, tuple[StoredJob, frozenset[str]]] = {}
        self._freed: dict[str, float] = {}

    def freed(self, active: Iterable[StoredJob], now: float) -> Collection[str]:
        """Return the hosts of jobs, or of servers of them, that are gone since a short time.

        :param active: all jobs that have places
        """
        used = {each.uuid: self._used(each) for each in active}
        for uuid, (before, hosts) in self._hosts.items():
            after, still = used.get(uuid, (None, frozenset[str]()))
            for host in hosts - still if before is not after else ():
                self._freed[host] = now
        self._hosts = used
        self._freed = {host: at for host, at in self._freed.items() if abs(now - at) < _FREED_S}
        return self._freed.keys()

    def _used(self, stored: StoredJob) -> tuple[StoredJob, frozenset[str]]:
        before = self._hosts.get(stored.uuid)
        if before is not None and before[0] is stored:
            return before
        return stored, frozenset(_hosts_of(stored))


def _hosts_of(stored: StoredJob) -> Iterator[str]:
    """Yield the hosts on which servers of a job are, or may be."""
    if stored.plan is not None:
        yield from (place.host for place in (*stored.plan.places, *stored.plan.spare))
    for part in stored.parts:
        yield from part.hosts.values()


def _taking(job: Job, plan: Plan[HostPlace]) -> set[str]:
    """Return the hosts, spare ones included, that servers of a job may take what may be held for others of."""
    parts = {part.name for part in job.parts if reserving.takes(part)}
    return {place.host for place in (*plan.places, *plan.spare) if place.part in parts}


def _readable(
    stored: Iterable[StoredJob], read: Callable[[StoredJob], FoundT], trouble: dict[str, Reason]
) -> Iterator[tuple[StoredJob, FoundT]]:
    """Yield what can be read of jobs.

    :param trouble: what cannot is added, by uuid
    """
    for each in stored:
        try:
            found = read(each)
        except Exception as error:  # noqa: BLE001 - whatever is stored, other jobs go on
            trouble[each.uuid] = Reason(JobTerm.UNREADABLE, cut(str(error) or repr(error)))
        else:
            yield each, found


def _reserved(
    found: QueueRound[HostPlace],
    waiting: Iterable[StoredJob],
    jobs: Iterable[Job],
    view: HostsView,
    now: float,
    *,
    shown: Mapping[str, tuple[ProviderAmount, ...]],
) -> dict[str, tuple[ProviderAmount, ...]]:
    """Return what is to be held for each job that others free places for; what is held stays until these are seen.

    :param shown: what the view shows as taken of what is held for each job
    """
    held = {each.uuid: each.reserved for each in waiting if each.uuid in found.state.preempting}
    plans = {each.job: each.plan for each in found.reservations}
    for job in jobs:
        if found.state.preempting.get(job.uuid) == now:
            held[job.uuid] = reserving.amounts(job, plans[job.uuid], view, shown.get(job.uuid, ()))
    return held


def _uuid(aggregate: str) -> str:
    try:
        return str(UUID(aggregate)) if aggregate else ""
    except ValueError:
        option = f"[{jobs_conf.GROUP}]aggregate"
        raise InvalidValueError(option, aggregate, "the uuid of an aggregate of nova's") from None


def made(conf: cfg.ConfigOpts, placement: HttpAdapter) -> HostQueue:
    """Return the queue that a configuration asks for.

    :param conf: with the options of :func:`nova_numa_ext.orchestrator.conf.register_opts`
    :param placement: a keystoneauth1 adapter of the service's own user
    :raises InvalidValueError: one of the options, or a file that one names, cannot be used
    :raises ConfigurationError: names the option that cannot be read
    """
    configured = jobs_conf.read(conf)
    options = configured.planning
    view = ViewSettings(interval_s=options.hosts_interval_s)
    aliases = devices.classes_of_aliases(options.pci_alias)
    hosts = PlacementHosts(placement, view, aliases, aggregate=_uuid(options.aggregate))
    rules = gpu_options.rules(options.gpu, jobs_conf.GROUP)
    planner = replace(
        options.planner, rules=rules, leafs=options.net.plan_options, singles=options.net.singles
    )
    return HostQueue(hosts, configured.queue, planner)
