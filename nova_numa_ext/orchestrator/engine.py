# SPDX-License-Identifier: Apache-2.0
"""Rounds of the job service: who leads has jobs that have places carried on, and lets the queue decide who starts."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final

from nova_numa_ext.flow.solvers import FlowError, installed_solver
from nova_numa_ext.learning.beside import ModelsBeside
from nova_numa_ext.metrics import Sample
from nova_numa_ext.orchestrator.cloud.hosts import ServerHosts
from nova_numa_ext.orchestrator.cloud.trusts import TrustError, Trusts
from nova_numa_ext.orchestrator.conf import EngineOptions
from nova_numa_ext.orchestrator.ended_trusts import delete_ended
from nova_numa_ext.orchestrator.hints import PlanHints
from nova_numa_ext.orchestrator.lease_rounds import LeaseRounds, PoolsNow
from nova_numa_ext.orchestrator.metrics import EngineMetrics
from nova_numa_ext.orchestrator.reconcile import LostClaims, LostServers, LostTrusts
from nova_numa_ext.orchestrator.reservations import reserve, unanswered
from nova_numa_ext.orchestrator.saga import SERVERS, Engaged, Saga, time_over
from nova_numa_ext.orchestrator.scaling_rounds import ScalingRounds
from nova_numa_ext.orchestrator.server_requests import LeaseRules
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
from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.orchestrator.store.unreadable import Unreadable
from nova_numa_ext.orchestrator.workers import Workers
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.policy.remote_gpu.network import Solver
from placement_traits.claim_store import ClaimStore
from placement_traits.errors import NumaExtError
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)
_UNFINISHED: Final = tuple(state for state in JobState if not state.final)
# Beside uuids of jobs, what may give trouble.
_QUEUE: Final = "queue"
_CLAIMS: Final = "claims"
_LATE: Final = "late servers"
_GIVEN: Final = "given trusts"
_TRUSTS: Final = "trusts"
_RECOVERY: Final = "recovery"
_LEASES: Final = "leases"
_LEASE_CLAIMS: Final = "claims of leases"
_SCALING: Final = "elastic groups"
_OTHERS: Final = (
    _QUEUE,
    _CLAIMS,
    _LATE,
    _GIVEN,
    _TRUSTS,
    _RECOVERY,
    _LEASES,
    _LEASE_CLAIMS,
    _SCALING,
)
_FAILURES_AT_ONCE: Final = 10
_LONGEST_REST_S: Final = 60.0
# So many parts of an interval are jobs' first looks spread over.
_SPREAD: Final = 64
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
class Done:
    """What was done since the round before.

    :param changed: jobs that were changed
    :param failed: jobs that could not be carried on, for now
    """

    changed: int
    failed: int


def _solver() -> Solver | None:
    """Return what solves flow networks, None where nothing is installed that does."""
    try:
        return installed_solver()
    except FlowError as error:
        _LOG.info("leases that wait are not rearranged: %s", error)
        return None


class JobEngine:
    """One of any number of engines.

    A round gives each job that has something to do to a worker, and each that runs to a watcher when it is its turn;
    beside them it decides who starts. It waits for none of them: what is slow for one job delays no other one, and a
    job that is still in hand is left out.

    :ivar metrics: what it has done
    :param name: of this process, unlike that of any other, a restarted one included
    :param decide: the queue with its planners; called in the thread of the rounds
    :param hints: what nova-scheduler learns of jobs' servers
    :param pools: reads which GPUs are lent, for leases
    :param queue: limits of projects, and the order in which leases wait; None: the defaults
    :param recovery: tells an old database; None: by what this process has seen itself
    :param tell: called with each job that this engine has moved to another state, and the reasons; waits for nothing
    :param lasts_s: seconds after which another engine leads when this one is gone
    """

    def __init__(
        self,
        name: str,
        database: Database,
        trusts: Trusts,
        claims: ClaimStore,
        decide: Decide,
        *,
        hosts: ServerHosts,
        options: EngineOptions,
        hints: PlanHints,
        pools: PoolsNow = lambda: (),
        queue: QueueSettings | None = None,
        recovery: Recovery | None = None,
        tell: Callable[[StoredJob, Sequence[Reason]], None] = lambda _job, _reasons: None,
        lasts_s: float = LASTS_S,
    ) -> None:
        self._name = name
        self._database = database
        self.metrics = EngineMetrics()
        self._tell = tell
        self._jobs = Jobs(database, self._moved)
        self._rows = KnownRows()
        self._recovery = recovery or Recovery(database)
        self._election = Election(database, name, lasts_s)
        self._heartbeat = Heartbeat(self._election)
        self._trusts = trusts
        self._claims = claims
        self._hosts = hosts
        self._ended = EndedTrusts(database)
        self._decide = decide
        self._options = options
        self._hints = hints
        self._workers = Workers("worker", options.workers)
        self._watchers = Workers("watcher", options.watchers)
        self._trust_worker = Workers("trusts", min(options.workers, 1))
        self._hands = _Hands()
        self._lost_claims = LostClaims(claims, self._jobs)
        self._lost_servers = LostServers(self._jobs, trusts)
        self._lost_trusts = LostTrusts(self._jobs, self._ended, trusts)
        ranks = queue or QueueSettings()
        self._leases = LeaseRounds(
            Leases(database),
            claims,
            pools,
            LeaseHosts(database).all,
            LeaseRules(
                hosts.name,
                hosts.owner,
                ranks.limits_of,
                options.remote_gpu_unmet,
                ranks,
                hosts.fabrics,
                _solver(),
            ),
        )
        self._leasing = threading.Lock()
        self._scaling_groups = ScalingGroups(database)
        self._scaling = ScalingRounds(
            self._scaling_groups,
            options.scaling_traces,
            partial(ModelsBeside, timeout_s=options.scaling_fit_timeout_s),
        )
        self._observing = threading.Lock()
        self._troubled: dict[str, frozenset[str]] = {
            _LEASES: frozenset(),
            _LEASE_CLAIMS: frozenset(),
            _SCALING: frozenset(),
        }
        self._reconciling = threading.Lock()
        self._reconciled_s = self._late_s = time.monotonic()
        self._late = threading.Lock()
        self._looked_s: dict[str, float] = {}
        self._checked_s: dict[str, float] = {}
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
            self.metrics.round(time.monotonic() - began_s, led=led)
        return done

    def samples(self) -> Iterator[Sample]:
        """Yield its metrics, and those of the jobs that are stored, for :class:`nova_numa_ext.metrics.Exporter`."""
        return self.metrics.samples(self._jobs, self._scaling_groups)

    def _moved(self, job: StoredJob, reasons: Sequence[Reason]) -> None:
        self.metrics.moved(job.state, reasons)
        self._tell(job, reasons)

    def _campaign(self) -> Done | None:
        recovers = self._recovers()
        self.metrics.recovers(recovers)
        term = None if recovers else self._election.campaign()
        if term is None or self._stopping.is_set():
            return None
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
        turn = _Turn(engaged, self._database.now(), self._hands)
        self._round(turn)
        self._watchers.give(_LEASES, partial(self._carry_leases, engaged))
        self._watchers.give(_SCALING, partial(self._observe, engaged))
        now_s, interval_s = time.monotonic(), self._options.reconcile_interval_s
        if now_s >= self._late_s + interval_s / _LATE_LOOKS:
            self._late_s = now_s
            self._watchers.give(_LATE, partial(self._look_for_late, engaged))
        if now_s >= self._reconciled_s + interval_s:
            self._reconciled_s = now_s
            self._watchers.give(_CLAIMS, partial(self._reconcile, engaged))
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
            self._hands.trouble(_RECOVERY, sentence, NumaExtError(found.why))
        else:
            self._hands.well(_RECOVERY)
        return found is not None

    def _lead(self, term: Term) -> None:
        if self._stopping.is_set():
            raise NotLeaderError(f"{self._name} is being stopped.")
        self._election.check(term)

    def _carry_leases(self, engaged: Engaged) -> None:
        """Let leases take their next steps; one round of them at a time."""
        if not self._leasing.acquire(blocking=False):
            return
        try:
            with self._reports(_LEASES, "lease") as trouble:
                self._leases.round(engaged.actor, engaged.lead, trouble)
            self._hands.well(_LEASES)
        except NotLeaderError as error:
            _LOG.info("leases stay as they are: %s", error)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again in the next round
            self._hands.trouble(_LEASES, "leases stay as they are for now", error)
        finally:
            self._leasing.release()

    def _observe(self, engaged: Engaged) -> None:
        """Decide on what is new of elastic groups; one round of them at a time."""
        if not self._observing.acquire(blocking=False):
            return
        try:
            with self._reports(_SCALING, "elastic group") as trouble:
                self._scaling.round(engaged.actor, engaged.lead, trouble)
            self._hands.well(_SCALING)
        except NotLeaderError as error:
            self._scaling.close()
            _LOG.info("elastic groups are not decided on: %s", error)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again in the next round
            self._hands.trouble(_SCALING, "elastic groups are not decided on for now", error)
        finally:
            self._observing.release()

    def _look_at_leases(self, engaged: Engaged) -> int:
        with self._reports(_LEASE_CLAIMS, "lease") as trouble:
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
            (_CLAIMS, "claims of no job", lambda: self._lost_claims.release(lead)),
            (_GIVEN, "trusts of no job", lambda: self._lost_trusts.release(lead)),
            (_LEASE_CLAIMS, "claims of no lease", lambda: self._look_at_leases(engaged)),
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
            self._look(_LATE, "servers of no job", lambda: self._lost_servers.release(lead, alone))
        finally:
            self._late.release()

    def _look(self, key: str, what: str, look: Callable[[], int]) -> None:
        try:
            look()
            self._hands.well(key)
        except NotLeaderError as error:
            _LOG.info("%s are not looked at: %s", what, error)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again
            self._hands.trouble(key, f"{what} are not looked for now", error)

    def _round(self, turn: "_Turn") -> None:
        left_out: set[str] = set()

        def unreadable(uuid: str, error: Exception) -> None:
            left_out.add(uuid)
            self._hands.trouble(uuid, f"job {uuid} cannot be read and is left out", error)

        found = self._jobs.find(states=_UNFINISHED, unreadable=unreadable, known=self._rows)
        self._hands.forget_others(
            left_out.union((job.uuid for job in found), *self._troubled.values())
        )
        active = {each.uuid: each for each in found if each.state.active}
        waiting = {each.uuid: each for each in found if not each.state.active}
        self._carry_on(active.values(), turn)
        for job in [each for each in waiting.values() if each.cancelled]:
            del waiting[job.uuid]
            turn.end(job, JobState.CANCELLED, job.reasons, self._workers)
        self._check(waiting.values(), turn)
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
        self._trust_worker.give(_TRUSTS, partial(self._delete_trusts, turn))

    def _carry_on(self, active: Iterable[StoredJob], turn: "_Turn") -> None:
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

    def _check(self, waiting: Iterable[StoredJob], turn: "_Turn") -> None:
        """Have Keystone asked for jobs that wait, the ones after the others: a service that starts may have thousands.

        One whose user has lost the rights is looked at more often: its user, who has them again, waits.
        """
        options, now_s = self._options, time.monotonic()
        known, self._checked_s = self._checked_s, {}
        for job in waiting:
            first_s = now_s - options.trust_check_s * (job.number % _SPREAD) / _SPREAD
            checked_s = known.get(job.uuid, first_s)
            lost = job.trust_lost_at is not None
            every_s = min(options.watch_interval_s, options.trust_check_s)
            if now_s - checked_s >= (every_s if lost else options.trust_check_s):
                checked_s = now_s
                turn.check(job, self._watchers)
            self._checked_s[job.uuid] = checked_s

    def _delete_trusts(self, turn: "_Turn") -> None:
        """Give trusts back, in a thread of its own: however slow Keystone is, no worker waits for it."""
        try:
            delete_ended(self._ended, self._trusts, turn.lead)
            self._hands.well(_TRUSTS)
        except NotLeaderError as error:
            _LOG.info("trusts of jobs that have ended stay: %s", error)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again in the next round
            self._hands.trouble(_TRUSTS, "trusts of jobs that have ended stay for now", error)

    def _decided(
        self, waiting: Sequence[StoredJob], active: Sequence[StoredJob], now: float
    ) -> QueueDecision:
        """Let the queue decide; while it cannot, no job starts, and what has places is carried on all the same."""
        try:
            decided = self._decide(waiting, active, now)
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and tried again in the next round
            self._hands.trouble(_QUEUE, "the queue decides nothing for now", error)
            return QueueDecision({}, {})
        self._hands.well(_QUEUE)
        return decided


@dataclass(frozen=True, slots=True)
class _Failures:
    """How often in a row a job could not be carried on.

    :param count: so often
    :param rests_until_s: monotonic seconds before which it is not tried again
    """

    count: int = 0
    rests_until_s: float = -inf

    def one_more(self, now_s: float) -> "_Failures":
        """Return what is so after another one: at first each round tries again, then ever fewer."""
        more = self.count + 1 - _FAILURES_AT_ONCE
        if more < 0:
            return _Failures(self.count + 1)
        return _Failures(self.count + 1, now_s + min(2.0 ** min(more, 10), _LONGEST_REST_S))


class _Hands:
    """Which jobs are being changed, and what became of it; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._troubles: dict[str, str] = {}
        self._failures: dict[str, _Failures] = {}
        self._changed = 0
        self._failed = 0

    def holds(self, job: StoredJob) -> bool:
        """Return whether a job is being changed."""
        with self._lock:
            return job.uuid in self._held

    def rests(self, job: StoredJob) -> bool:
        """Return whether a job has failed so often in a row that it is not tried now."""
        with self._lock:
            found = self._failures.get(job.uuid)
            return found is not None and time.monotonic() < found.rests_until_s

    def take(self, job: StoredJob) -> bool:
        """Return whether a job was not in hand; now it is."""
        with self._lock:
            if job.uuid in self._held:
                return False
            self._held.add(job.uuid)
            return True

    def put_back(self, job: StoredJob) -> None:
        """Let another change the job."""
        with self._lock:
            self._held.discard(job.uuid)

    @contextmanager
    def alone(self, job: StoredJob) -> Iterator[bool]:
        """Have a job in hand, unless it is in hand already; yields whether that is so."""
        taken = self.take(job)
        try:
            yield taken
        finally:
            if taken:
                self.put_back(job)

    def well(self, what: str, *, changed: bool = False) -> None:
        """Take note that a job, or the queue, gives no trouble."""
        with self._lock:
            self._troubles.pop(what, None)
            self._failures.pop(what, None)
            self._changed += changed

    def trouble(self, what: str, sentence: str, error: Exception) -> None:
        """Log what is wrong with a job, or the queue: once, until it is something else or well again."""
        said = f"{type(error).__name__}: {error}"
        with self._lock:
            self._failed += 1
            self._failures[what] = self._failures.get(what, _Failures()).one_more(time.monotonic())
            known = self._troubles.get(what) == said
            self._troubles[what] = said
        if not known:
            foreseen = isinstance(error, NumaExtError)
            _LOG.warning("%s: %s", sentence, error, exc_info=None if foreseen else error)

    def forget_others(self, jobs: Collection[str]) -> None:
        """Keep what is known of these jobs only."""
        with self._lock:
            kept = {*jobs, *_OTHERS}
            self._troubles = {key: said for key, said in self._troubles.items() if key in kept}
            self._failures = {key: each for key, each in self._failures.items() if key in kept}

    def done(self) -> Done:
        """Return what was done since this was asked before."""
        with self._lock:
            done = Done(self._changed, self._failed)
            self._changed = self._failed = 0
            return done


class _Turn:
    """What one engine changes in one round; a job that cannot be changed holds up no other one.

    :ivar now: the database's clock at its beginning
    :ivar over: the engine does not lead any more
    :ivar lead: as of :class:`.saga.Engaged`
    """

    def __init__(self, engaged: Engaged, now: float, hands: _Hands) -> None:
        self.now = now
        self.over = False
        self._engaged = engaged
        self.lead = engaged.lead
        self._jobs = engaged.jobs
        self._actor = engaged.actor
        self._saga = Saga(engaged, now)
        self._hands = hands

    def carry_on(self, job: StoredJob, workers: Workers) -> None:
        """Do what is next, until the job has to wait for nova, or has no place any more.

        One that has failed often rests a while, unless its user has cancelled it since.
        """
        is_to_be_cancelled = job.cancelled and job.target is not JobState.CANCELLED
        if self._hands.rests(job) and not is_to_be_cancelled:
            return
        self._give(job, partial(_carried_on, self._saga), workers)

    def end(
        self, job: StoredJob, to: JobState, reasons: Sequence[Reason], workers: Workers
    ) -> None:
        """Let a job end, or go back to the queue."""
        self._give(job, lambda job: self._saga.end(self._released(job), to, reasons), workers)

    def check(self, job: StoredJob, workers: Workers) -> None:
        """Look whether the user of a job that waits has the rights still; one without them for long has failed."""
        if not self._hands.holds(job):
            workers.give(job.uuid, partial(self._attempt, job, partial(self._checked, job)))

    def _checked(self, job: StoredJob) -> StoredJob:
        try:
            self._engaged.trusts.check(job.trust)
        except TrustError as error:
            return self._saga.without_user(self._released(self._unchanged(job)), error)
        return job if job.trust_lost_at is None else self._saga.with_user(self._unchanged(job))

    def start(self, job: StoredJob, plan: Plan[HostPlace], workers: Workers) -> None:
        """Give a job its places; the next round goes on. What is held for it is nova's to claim from now on."""
        hosts = sorted({place.host for place in plan.places})
        reasons = plan.reasons or (Reason(JobTerm.PLACED, ", ".join(hosts), len(hosts)),)

        def planned(job: StoredJob) -> StoredJob:
            job = self._released(job)
            return self._jobs.move(job, JobState.PLANNED, reasons, self._actor, plan=plan)

        if job.reserved or unanswered(job):
            self._give(job, planned, workers)
        else:
            self._attempt(job, lambda: planned(job))

    def wait(self, job: StoredJob, reasons: Sequence[Reason], *, postponed: bool) -> None:
        """Store why a job waits, where that is new; hosts that nova refused are tried again when no others are left."""
        changes: dict[str, Any] = {}
        if postponed:
            changes |= {"postponed": job.postponed + 1, "postponed_at": self.now}
        if any(each.term == JobTerm.HOSTS_EXCLUDED for each in reasons):
            changes["excluded"] = frozenset[str]()
        if changes or _terms(reasons) != _terms(job.reasons):
            self._attempt(job, lambda: self._jobs.set(job, self._actor, reasons, **changes))

    def reserve(
        self, job: StoredJob, amounts: tuple[ProviderAmount, ...], workers: Workers
    ) -> None:
        """Have Placement hold amounts for a job that waits, and no others."""
        if amounts != job.reserved or unanswered(job):
            self._give(job, lambda job: reserve(self._engaged, job, amounts), workers)

    def _released(self, job: StoredJob) -> StoredJob:
        return reserve(self._engaged, job, ())

    def _give(
        self, job: StoredJob, change: Callable[[StoredJob], StoredJob], workers: Workers
    ) -> None:
        if not self._hands.holds(job):
            attempt = partial(self._attempt, job, lambda: change(self._unchanged(job)))
            workers.give(job.uuid, attempt)

    def _unchanged(self, job: StoredJob) -> StoredJob:
        """Return a job for which a worker has time now, as the round has read it.

        :raises LostRaceError: something has changed since; the next round goes on
        """
        if self._jobs.read(job.uuid) != job:
            raise LostRaceError("it has changed since it was read")
        return job

    def _attempt(self, job: StoredJob, change: Callable[[], StoredJob]) -> None:
        if self.over or not self._hands.take(job):
            return
        try:
            self._hands.well(job.uuid, changed=change().version != job.version)
        except NotLeaderError as error:
            self.over = True
            _LOG.warning("%s", error)
        except LostRaceError as error:
            _LOG.info("job %s: %s", job.uuid, error)
        except Exception as error:  # noqa: BLE001 - the outermost guard of a job: logged, and others go on
            self._hands.trouble(job.uuid, f"job {job.uuid} stays as it is for now", error)
        finally:
            self._hands.put_back(job)


def _carried_on(saga: Saga, job: StoredJob) -> StoredJob:
    """Carry a job on until it has to wait for nova, or has no place any more."""
    before, job = job, saga.carry_on(job)
    while job.state is not before.state and job.state.active:
        before, job = job, saga.carry_on(job)
    return job


def _may_come(job: StoredJob, now: float) -> bool:
    """Return whether nova may still make a server that it was asked for, for a job, and did not answer."""
    return any(
        step.name == SERVERS and step.asked_at is not None and now < step.asked_at + LATEST_S
        for step in job.steps
    )


def _terms(reasons: Sequence[Reason]) -> list[tuple[str, str]]:
    return [(each.term, each.where) for each in reasons]
