# SPDX-License-Identifier: Apache-2.0
"""Rounds of the job service: who leads has jobs that have places carried on, and lets the queue decide who starts."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from nova_numa_ext.flow.solvers import FlowError, installed_solver
from nova_numa_ext.learning.beside import ModelsBeside
from nova_numa_ext.metrics import Sample
from nova_numa_ext.orchestrator.cloud.hosts import ServerHosts
from nova_numa_ext.orchestrator.cloud.room import ServerRoom
from nova_numa_ext.orchestrator.cloud.trusts import Trusts
from nova_numa_ext.orchestrator.cloud.uplinks import LeafUplinks
from nova_numa_ext.orchestrator.conf import EngineOptions
from nova_numa_ext.orchestrator.ended_trusts import delete_ended
from nova_numa_ext.orchestrator.hints import PlanHints
from nova_numa_ext.orchestrator.in_hand import Concern, Done, JobsInHand
from nova_numa_ext.orchestrator.job_turn import JobTurn
from nova_numa_ext.orchestrator.lease_rounds import HostsNow, LeaseRounds, PoolsNow
from nova_numa_ext.orchestrator.metrics import EngineMetrics
from nova_numa_ext.orchestrator.reconcile import LostClaims, LostServers, LostTrusts
from nova_numa_ext.orchestrator.saga import Engaged, time_over
from nova_numa_ext.orchestrator.scaling_actuator import Actuators
from nova_numa_ext.orchestrator.scaling_hooks import ScalingHooks
from nova_numa_ext.orchestrator.scaling_prometheus import PrometheusSource
from nova_numa_ext.orchestrator.scaling_rounds import ScalingRounds
from nova_numa_ext.orchestrator.scaling_saga import ScalingSaga
from nova_numa_ext.orchestrator.scaling_stacks import StackActuator
from nova_numa_ext.orchestrator.server_requests import FlavorOf, LeaseRules
from nova_numa_ext.orchestrator.steps import SERVERS
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.job_rows import KnownRows
from nova_numa_ext.orchestrator.store.jobs import LATEST_S, Jobs
from nova_numa_ext.orchestrator.store.leader import (
    LASTS_S,
    Election,
    Heartbeat,
    NotLeaderError,
    Term,
)
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.recovery import Recovery
from nova_numa_ext.orchestrator.store.scaling import ScalingGroups
from nova_numa_ext.orchestrator.store.scaling_members import ScalingMembers
from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.orchestrator.store.unreadable import Unreadable
from nova_numa_ext.orchestrator.store.wakes import Wakes
from nova_numa_ext.orchestrator.trust_checks import TrustChecks
from nova_numa_ext.orchestrator.workers import Workers
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.remote_gpu.making_room import RebalanceRules
from nova_numa_ext.policy.remote_gpu.network import Solver
from placement_traits.claim_store import ClaimStore
from placement_traits.errors import NumaExtError
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)
_UNFINISHED: Final = tuple(state for state in JobState if not state.final)
# So often in an interval it is looked for servers that come late: the second look deletes, before the interval is over.
_LATE_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """What the queue decides in a round; jobs by uuid.

    :param starts: places of jobs that start
    :param waits: why others wait
    :param ended: jobs that are given up, with the reasons
    :param postponed: waiting jobs whose number of postponements grows
    :param preempted: jobs that have places and go back to the queue, with the reason
    :param reserved: what Placement is to hold for jobs that wait, of each that is to have something
    """

    starts: Mapping[str, Plan[HostPlace]]
    waits: Mapping[str, tuple[Reason, ...]]
    ended: Mapping[str, tuple[Reason, ...]] = field(default_factory=dict)
    postponed: frozenset[str] = frozenset()
    preempted: Mapping[str, Reason] = field(default_factory=dict)
    reserved: Mapping[str, tuple[ProviderAmount, ...]] = field(default_factory=dict)


Decide = Callable[[Sequence[StoredJob], Sequence[StoredJob], float], QueueDecision]
"""Waiting jobs, jobs that have places, the time -> who starts."""


@dataclass(frozen=True, slots=True)
class EngineServices:
    """The other services, as the engine uses them.

    :param trusts: act for users
    :param claims: what Placement holds for jobs
    :param hosts: where servers are
    :param pools: reads which GPUs are lent, for leases
    :param tell: called with each job that this engine has moved to another state, and the reasons; waits for nothing
    :param flavors: what nova says that servers ask of remote GPUs; None: their hosts' word counts
    :param room: whether any host has room for a member of an elastic group; None: nova alone says it
    :param uplinks: says on leafs what best-effort servers may send; None: nothing does
    """

    trusts: Trusts
    claims: ClaimStore
    hosts: ServerHosts
    pools: PoolsNow = lambda: ()
    tell: Callable[[StoredJob, Sequence[Reason]], None] = lambda _job, _reasons: None
    flavors: FlavorOf | None = None
    room: ServerRoom | None = None
    uplinks: LeafUplinks | None = None


@dataclass(frozen=True, slots=True)
class JobPlanning:
    """By what jobs start, and where.

    :param decide: the queue with its planners; called in the thread of the rounds
    :param hints: what nova-scheduler learns of jobs' servers
    :param queue: limits of projects, and the order in which leases wait
    """

    decide: Decide
    hints: PlanHints
    queue: QueueSettings = field(default_factory=QueueSettings)


class JobEngine:
    """One of any number of engines.

    A round gives each job that has something to do to a worker, and each that runs to a watcher when it is its turn;
    beside them it decides who starts. It waits for none of them: what is slow for one job delays no other one, and a
    job that is still in hand is left out.

    :ivar metrics: what it has done
    :param name: of this process, unlike that of any other, a restarted one included
    :param services: what it asks and acts on
    :param planning: by what jobs start, and where
    :param options: the operator's
    :param recovery: tells an old database; None: by what this process has seen itself
    :param lasts_s: seconds after which another engine leads when this one is gone
    """

    def __init__(
        self,
        name: str,
        database: Database,
        services: EngineServices,
        planning: JobPlanning,
        options: EngineOptions,
        *,
        recovery: Recovery | None = None,
        lasts_s: float = LASTS_S,
    ) -> None:
        self._name = name
        self._database = database
        self.metrics = EngineMetrics()
        self._tell = services.tell
        self._jobs = Jobs(database, self._moved)
        self._rows = KnownRows()
        self._recovery = recovery or Recovery(database)
        self._election = Election(database, name, lasts_s)
        self._heartbeat = Heartbeat(self._election)
        self._trusts, self._claims, self._hosts = services.trusts, services.claims, services.hosts
        self._ended = EndedTrusts(database)
        self._decide, self._hints = planning.decide, planning.hints
        self._options = options
        self._workers = Workers("worker", options.workers)
        self._watchers = Workers("watcher", options.watchers)
        self._trust_worker = Workers("trusts", min(options.workers, 1))
        self._hands = JobsInHand()
        self._lost_claims = LostClaims(self._claims, self._jobs)
        self._lost_servers = LostServers(self._jobs, self._trusts)
        self._scaling_groups = ScalingGroups(database)
        self._lost_trusts = LostTrusts(
            self._jobs, self._ended, self._trusts, also=self._scaling_groups.trusts
        )
        self._stored_leases = Leases(database, self._tell)
        self._leases = _lease_rounds(
            self._stored_leases,
            LeaseHosts(database).all,
            services,
            planning.queue,
            options,
        )
        self._leasing = threading.Lock()
        self._scaling = _scaling_rounds(database, self._scaling_groups, services, options)
        self._observing = threading.Lock()
        self._troubled: dict[str, frozenset[str]] = dict.fromkeys(
            (Concern.LEASES, Concern.LEASE_CLAIMS, Concern.SCALING), frozenset()
        )
        self._reconciling = threading.Lock()
        self._reconciled_s = self._late_s = time.monotonic()
        self._late = threading.Lock()
        self._uplinks, self._uplinks_s = services.uplinks, -inf
        self._limiting = threading.Lock()
        self._looked_s: dict[str, float] = {}
        self._trust_checks = TrustChecks(options)
        self._wakes = Wakes(database)
        self._leads = False
        self._more = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Keep the term by a heartbeat from now on; without one, rounds alone keep it."""
        self._heartbeat.start()

    def round(self) -> Done | None:
        """Do one round; None: another engine leads, or the database recovers.

        :raises ServiceUnavailableError: the database does not answer
        """
        began_s, led = time.monotonic(), None
        try:
            done = self._campaign()
            led = done is not None
        finally:
            self._leads = bool(led)
            self.metrics.round(time.monotonic() - began_s, led=led)
        return done

    def woken(self) -> bool:
        """Return whether the next round is to begin at once, if this engine leads.

        It is where a user or a host has changed something since the last one began, or a lease has taken a step, after
        which there may be another one.
        """
        if not self._leads:
            return False
        try:
            return self._more.is_set() or self._wakes.waits()
        except NumaExtError:
            return False  # the round comes in its time, and says so

    def samples(self) -> Iterator[Sample]:
        """Yield its metrics, and those of the jobs that are stored, for :class:`nova_numa_ext.metrics.Exporter`."""
        return self.metrics.samples(self._jobs, self._scaling_groups, self._stored_leases)

    def _moved(self, job: StoredJob, reasons: Sequence[Reason]) -> None:
        self.metrics.moved(job.state, reasons)
        self._tell(job, reasons)

    def _campaign(self) -> Done | None:
        recovers = self._recovers()
        self.metrics.recovers(recovers)
        term = None if recovers else self._election.campaign()
        if term is None or self._stopping.is_set():
            return None
        self._more.clear()
        self._take_wakes()
        engaged = Engaged(
            self._jobs,
            self._trusts,
            self._claims,
            self._hosts,
            Actor(self._name, term),
            partial(self._lead, term),
            self._options.servers_per_round,
            self._options.build_timeout_s,
            self._hints.text,
        )
        turn = JobTurn(engaged, self._database.now(), self._hands)
        self._round(turn)
        self._watchers.give(Concern.LEASES, partial(self._carry_leases, engaged))
        self._watchers.give(Concern.SCALING, partial(self._observe, engaged))
        now_s, interval_s = time.monotonic(), self._options.reconcile_interval_s
        if now_s >= self._late_s + interval_s / _LATE_LOOKS:
            self._late_s = now_s
            self._watchers.give(Concern.LATE, partial(self._look_for_late, engaged))
        if now_s >= self._reconciled_s + interval_s:
            self._reconciled_s = now_s
            self._watchers.give(Concern.CLAIMS, partial(self._reconcile, engaged))
        if self._uplinks and now_s >= self._uplinks_s + self._options.leaf_uplinks_interval_s:
            self._uplinks_s = now_s
            self._watchers.give(
                Concern.UPLINKS, partial(self._limit_uplinks, self._uplinks, engaged)
            )
        return None if turn.over else self._hands.done()

    def stop(self, seconds: float) -> bool:
        """Begin nothing more, and let another engine lead at once; return whether that was done within some seconds.

        Where a request is still under way by then it is not: its answer may come late, and the term ends by itself.

        :raises ServiceUnavailableError: the database does not answer: the term ends by itself
        """
        until_s = time.monotonic() + seconds
        self._stopping.set()
        for finish in (
            self._heartbeat.stop,
            self._workers.finish,
            self._watchers.finish,
            self._trust_worker.finish,
        ):
            if not finish(max(until_s - time.monotonic(), 0.0)):
                return False
        self._scaling.close()
        self._election.resign()
        self._recovery.save()
        return True

    def _recovers(self) -> bool:
        """Return whether the database is an old one, on which nothing is done."""
        try:
            found = self._recovery.look()
        except LostRaceError as error:
            _LOG.info("whether the database is an old one is asked again: %s", error)
            return True
        if found:
            sentence = "nothing is done for jobs until numa-ext-manage recover --commit"
            self._hands.trouble(Concern.RECOVERY, sentence, NumaExtError(found.why))
        else:
            self._hands.well(Concern.RECOVERY)
        return found is not None

    def _take_wakes(self) -> None:
        """Take what has woken this engine; where that fails the round is done all the same."""
        try:
            self._wakes.take()
            self._hands.well(Concern.WAKES)
        except Exception as error:  # noqa: BLE001 - nothing depends on a row: logged, and tried again in the next round
            self._hands.trouble(Concern.WAKES, "rounds begin by the time alone for now", error)

    def _lead(self, term: Term) -> None:
        if self._stopping.is_set():
            raise NotLeaderError(f"{self._name} is being stopped.")
        self._election.check(term)

    def _carry_leases(self, engaged: Engaged) -> None:
        """Let leases take their next steps; one round of them at a time."""
        if not self._leasing.acquire(blocking=False):
            return
        try:
            with self._reports(Concern.LEASES, "lease") as trouble:
                if self._leases.round(engaged.actor, engaged.lead, trouble):
                    self._more.set()
            self._hands.well(Concern.LEASES)
        except NotLeaderError as error:
            _LOG.info("leases stay as they are: %s", error)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again in the next round
            self._hands.trouble(Concern.LEASES, "leases stay as they are for now", error)
        finally:
            self._leasing.release()

    def _observe(self, engaged: Engaged) -> None:
        """Decide on what is new of elastic groups, and carry out what is enforced; one round of them at a time."""
        if not self._observing.acquire(blocking=False):
            return
        try:
            with self._reports(Concern.SCALING, "elastic group") as trouble:
                self._scaling.round(engaged.actor, engaged.lead, trouble)
            self._hands.well(Concern.SCALING)
        except NotLeaderError as error:
            self._scaling.close()
            _LOG.info("elastic groups are not decided on: %s", error)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again in the next round
            self._hands.trouble(Concern.SCALING, "elastic groups are not decided on for now", error)
        finally:
            self._observing.release()

    def _look_at_leases(self, engaged: Engaged) -> int:
        with self._reports(Concern.LEASE_CLAIMS, "lease") as trouble:
            ended = self._leases.end_without_server(engaged.actor, trouble)
            return ended + self._leases.look(engaged.lead, trouble)

    @contextmanager
    def _reports(self, key: str, what: str) -> Iterator[Unreadable]:
        """Yield what takes note of a lease or group that gives trouble; which did before is forgotten at the end."""
        found: set[str] = set()

        def trouble(uuid: str, error: Exception) -> None:
            found.add(uuid)
            self._troubled[key] |= found
            self._hands.trouble(uuid, f"{what} {uuid} stays as it is for now", error)

        yield trouble
        self._troubled[key] = frozenset(found)

    def _reconcile(self, engaged: Engaged) -> None:
        """Give back what is of no job; one look at a time."""
        lead = engaged.lead
        if not self._reconciling.acquire(blocking=False):
            return
        looks: tuple[tuple[str, str, Callable[[], int]], ...] = (
            (Concern.CLAIMS, "claims of no job", lambda: self._lost_claims.release(lead)),
            (Concern.GIVEN, "trusts of no job", lambda: self._lost_trusts.release(lead)),
            (Concern.LEASE_CLAIMS, "claims of no lease", lambda: self._look_at_leases(engaged)),
        )
        try:
            for key, what, look in looks:
                self._look(key, what, look)
        finally:
            self._reconciling.release()

    def _look_for_late(self, engaged: Engaged) -> None:
        """Delete servers that came when their job had no places any more; one look at a time."""
        if not self._late.acquire(blocking=False):
            return
        try:
            lead, alone = engaged.lead, self._hands.alone
            self._look(
                Concern.LATE, "servers of no job", lambda: self._lost_servers.release(lead, alone)
            )
        finally:
            self._late.release()

    def _limit_uplinks(self, uplinks: LeafUplinks, engaged: Engaged) -> None:
        """Say on leafs what best-effort servers may send; one look at a time."""
        if not self._limiting.acquire(blocking=False):
            return
        try:
            lead = engaged.lead
            self._look(Concern.UPLINKS, "uplinks of leafs", lambda: uplinks.look(lead))
        finally:
            self._limiting.release()

    def _look(self, key: str, what: str, look: Callable[[], int]) -> None:
        try:
            look()
            self._hands.well(key)
        except NotLeaderError as error:
            _LOG.info("%s are not looked at: %s", what, error)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again
            self._hands.trouble(key, f"{what} are not looked for now", error)

    def _round(self, turn: JobTurn) -> None:
        left_out: set[str] = set()

        def unreadable(uuid: str, error: Exception) -> None:
            left_out.add(uuid)
            self._hands.trouble(uuid, f"job {uuid} cannot be read and is left out", error)

        found = self._jobs.find(
            states=_UNFINISHED, kind=JobKind.SERVERS, unreadable=unreadable, known=self._rows
        )
        self._hands.forget_others(
            left_out.union((job.uuid for job in found), *self._troubled.values())
        )
        active = {each.uuid: each for each in found if each.state.active}
        waiting = {each.uuid: each for each in found if not each.state.active}
        self._carry_on(active.values(), turn)
        for job in [each for each in waiting.values() if each.cancelled]:
            del waiting[job.uuid]
            turn.end(job, JobState.CANCELLED, job.reasons, self._workers)
        for job in self._trust_checks.due(waiting.values(), active.values()):
            turn.check(job, self._watchers)
        acting = [each for each in waiting.values() if each.trust_lost_at is None]
        decided = self._decided(acting, list(active.values()), turn.now)
        for uuid, plan in decided.starts.items():
            turn.start(waiting[uuid], plan, self._workers)
        for uuid, reasons in decided.ended.items():
            turn.end(waiting[uuid], JobState.FAILED, reasons, self._workers)
        for uuid, reason in decided.preempted.items():
            turn.end(active[uuid], JobState.QUEUED, (reason,), self._workers)
        for uuid, reasons in decided.waits.items():
            turn.wait(waiting[uuid], reasons, postponed=uuid in decided.postponed)
            turn.reserve(waiting[uuid], decided.reserved.get(uuid, ()), self._workers)
        self._trust_worker.give(Concern.TRUSTS, partial(self._delete_trusts, turn))

    def _carry_on(self, active: Iterable[StoredJob], turn: JobTurn) -> None:
        """Hand out what has places; of the jobs that only run those first that were not looked at for longest.

        Of those one is looked at in each round that nova may give another server yet: such a server is soon deleted.
        """
        quiet = {}
        for job in active:
            if job.state is JobState.RUNNING and not (job.cancelled or time_over(job, turn.now)):
                quiet[job.uuid] = job
            else:
                turn.carry_on(job, self._workers)
        self._looked_s = {uuid: self._looked_s.get(uuid, -inf) for uuid in quiet}
        now_s = time.monotonic()
        for uuid, looked_s in sorted(self._looked_s.items(), key=lambda each: each[1]):
            due = now_s - looked_s >= self._options.watch_interval_s
            if due or _may_come(quiet[uuid], turn.now):
                self._looked_s[uuid] = now_s
                turn.carry_on(quiet[uuid], self._watchers)

    def _delete_trusts(self, turn: JobTurn) -> None:
        """Give trusts back, in a thread of its own: however slow Keystone is, no worker waits for it."""
        try:
            delete_ended(self._ended, self._trusts, turn.lead)
            self._hands.well(Concern.TRUSTS)
        except NotLeaderError as error:
            _LOG.info("trusts of jobs that have ended stay: %s", error)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again in the next round
            self._hands.trouble(
                Concern.TRUSTS, "trusts of jobs that have ended stay for now", error
            )

    def _decided(
        self, waiting: Sequence[StoredJob], active: Sequence[StoredJob], now: float
    ) -> QueueDecision:
        """Let the queue decide; while it cannot, no job starts, and what has places is carried on all the same."""
        try:
            decided = self._decide(waiting, active, now)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again in the next round
            self._hands.trouble(Concern.QUEUE, "the queue decides nothing for now", error)
            return QueueDecision({}, {})
        self._hands.well(Concern.QUEUE)
        return decided


def _may_come(job: StoredJob, now: float) -> bool:
    """Return whether nova may still make a server that it was asked for, for a job, and did not answer."""
    return any(
        step.name == SERVERS and step.asked_at is not None and now < step.asked_at + LATEST_S
        for step in job.steps
    )


def _lease_rounds(
    stored: Leases,
    reported: HostsNow,
    services: EngineServices,
    queue: QueueSettings,
    options: EngineOptions,
) -> LeaseRounds:
    hosts = services.hosts
    rules = LeaseRules(
        placed=hosts.names,
        owner=hosts.owner,
        limits=queue.limits_of,
        unmet=options.remote_gpu_unmet,
        queue=queue,
        fabrics=hosts.fabrics,
        solve=_solver(),
        flavor=services.flavors,
        max_wait_s=options.remote_gpu_max_wait_s or None,
        nic=hosts.nic,
        rebalance=RebalanceRules(
            mode=options.remote_gpu_rebalance,
            moves_per_minute=options.remote_gpu_moves_per_minute,
            cool_down_s=options.remote_gpu_cool_down_s,
            by_use=options.remote_gpu_by_use,
            cold=options.remote_gpu_cold,
            speeds=options.remote_gpu_speeds,
            scavenging=options.remote_gpu_scavenging,
        ),
        hold_s=options.remote_gpu_hold_s or None,
    )
    return LeaseRounds(stored, services.claims, services.pools, reported, rules)


def _solver() -> Solver | None:
    """Return what solves flow networks, None where nothing is installed that does."""
    try:
        return installed_solver()
    except FlowError as error:
        _LOG.info("leases that wait are not rearranged: %s", error)
        return None


def _scaling_rounds(
    database: Database, groups: ScalingGroups, services: EngineServices, options: EngineOptions
) -> ScalingRounds:
    models = partial(ModelsBeside, timeout_s=options.scaling_fit_timeout_s)
    hooks = ScalingHooks(options.scaling_hooks, options.scaling_hook_timeout_s)
    members = ScalingMembers(database)
    servers = ScalingSaga(
        groups, members, services.trusts, hooks, options.build_timeout_s, room=services.room
    )
    actuators = Actuators(servers, StackActuator(groups, members, services.trusts))
    prometheus = PrometheusSource(options.scaling_prometheus, options.scaling_prometheus_timeout_s)
    return ScalingRounds(groups, options.scaling_traces, models, actuators, prometheus)
