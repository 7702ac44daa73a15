# SPDX-License-Identifier: Apache-2.0
"""The application. Requests come with the headers that keystonemiddleware sets; it is not part of this application.

A request to submit a job may carry an ``Idempotency-Key`` that its client has chosen: sent again, because the answer
got lost, it is answered with the job that the first one has stored.

Answers to GET carry an ETag: asked with ``If-None-Match``, what has not changed is a 304 without a body.
"""

import logging
import math
import re
import time
import uuid as uuids
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NoReturn, Protocol, TypeVar

import flask
import microversion_parse
from oslo_context.context import RequestContext
from oslo_policy import policy
from werkzeug.exceptions import HTTPException

from nova_numa_ext.group_topology import FORMATS, CabledServer, hashed, hashed_fabric
from nova_numa_ext.orchestrator import queued
from nova_numa_ext.orchestrator.api import bodies, intake, policies, views
from nova_numa_ext.orchestrator.api.routes import MOST_ROWS, ROUTES, ROWS
from nova_numa_ext.orchestrator.api.schemas import (
    check_attach,
    check_create,
    check_lease,
    check_report,
    check_scaling,
)
from nova_numa_ext.orchestrator.cloud.asking import SilentError
from nova_numa_ext.orchestrator.cloud.cabling import Cabling
from nova_numa_ext.orchestrator.cloud.user import UserCloud
from nova_numa_ext.orchestrator.conf import ApiOptions
from nova_numa_ext.orchestrator.notify import Tell, no_receiver
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import DatabaseError, LostRaceError
from nova_numa_ext.orchestrator.store.jobs import ExistsError, Jobs
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import Leases, StoredLease
from nova_numa_ext.orchestrator.store.recovery import Recovery
from nova_numa_ext.orchestrator.store.scaling import (
    ScalingGroups,
    StoredScaling,
)
from nova_numa_ext.orchestrator.store.stored_job import NewJob, StoredJob
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.orchestrator.store.unreadable import UnreadableError
from nova_numa_ext.policy.jobs import limits as of_projects
from nova_numa_ext.policy.jobs import queue as queue_order
from nova_numa_ext.policy.jobs.queue import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm, sentence
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.errors import InvalidValueError, NumaExtError, ServiceUnavailableError
from placement_traits.reason import Reason
from placement_traits.request import InvalidRequestError

_LOG: Final = logging.getLogger(__name__)

SERVICE_TYPE: Final = "numa-ext"
VERSION: Final = "1.0"
_HEADER: Final = "OpenStack-API-Version"
_MOST_BYTES: Final = 1024 * 1024
_TRIES: Final = 10
_ACTIONS: Final = {
    JobTerm.CANCELLED: "cancel",
    JobTerm.HELD: "hold",
    JobTerm.RELEASED: "release",
}
_ACTIVE: Final = tuple(state for state in JobState if state.active)
_State = TypeVar("_State", bound=StrEnum)
_Stored = TypeVar("_Stored", StoredLease, StoredScaling)
_KEY: Final = "Idempotency-Key"
# Jobs' uuids are made of their clients' keys in it.
_KEYS: Final = uuids.UUID("7d0c6d3e-6b0c-4f0a-9d39-6a0f6a1f2a57")


class _RefusedError(NumaExtError):
    """A request that is answered with an error.

    :param status: HTTP status
    :param sentence: the answer
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status, sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class _Asking:
    """Who asks.

    :param project: of the token, '' where it has another scope
    """

    user: str
    project: str
    context: RequestContext


CloudOf = Callable[[Mapping[str, Any]], UserCloud]
"""WSGI environment of a request -> the cloud, asked with the token of its user."""


class CablingOf(Protocol):
    """Where servers hang on fabrics."""

    def of(self, servers: Sequence[str]) -> Cabling | None:
        """Return where servers hang, by their uuids; None: on no fabric."""


def make(
    jobs: Jobs,
    ended_trusts: EndedTrusts,
    enforcer: policy.Enforcer,
    cloud: CloudOf,
    options: ApiOptions | None = None,
    *,
    leases: Leases,
    lease_hosts: LeaseHosts,
    recovery: Recovery,
    scaling: ScalingGroups,
    cabling: CablingOf,
    queue: QueueSettings | None = None,
    tell: Tell = no_receiver,
) -> flask.Flask:
    """Return the WSGI application.

    :param recovery: says whether the database is an old one, of which hosts learn nothing
    :param enforcer: has :data:`.policies.RULES` registered
    :param queue: as the engines have them; None: the defaults
    :param tell: called with each job that is submitted, held, released or cancelled
    """
    app = flask.Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = _MOST_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]
    routes = _Routes(
        jobs,
        ended_trusts,
        enforcer,
        cloud,
        options or ApiOptions(),
        leases=leases,
        lease_hosts=lease_hosts,
        recovery=recovery,
        scaling=scaling,
        cabling=cabling,
        queue=queue or QueueSettings(),
        tell=tell,
    )
    for route in ROUTES:
        app.add_url_rule(
            _rule(route.path),
            f"{route.method} {route.path}",
            getattr(routes, route.view),
            methods=[route.method],
        )
    app.before_request(_check_version)
    app.after_request(_name_version)
    app.after_request(_conditional)
    app.register_error_handler(NumaExtError, _error)
    app.register_error_handler(HTTPException, _http_error)
    return app


def _rule(path: str) -> str:
    named = path.replace("{job}", "<uuid>").replace("{lease}", "<uuid>")
    named = named.replace("{group}", "<uuid>")
    return named.replace("{host}", "<host>")


class _Routes:
    def __init__(
        self,
        jobs: Jobs,
        ended_trusts: EndedTrusts,
        enforcer: policy.Enforcer,
        cloud: CloudOf,
        options: ApiOptions,
        *,
        leases: Leases,
        lease_hosts: LeaseHosts,
        recovery: Recovery,
        scaling: ScalingGroups,
        cabling: CablingOf,
        queue: QueueSettings,
        tell: Tell,
    ) -> None:
        self._tell = tell
        self._cabling = cabling
        self._scaling = scaling
        self._leases = leases
        self._lease_hosts = lease_hosts
        self._recovery = recovery
        self._jobs = jobs
        self._ended_trusts = ended_trusts
        self._enforcer = enforcer
        self._cloud = cloud
        self._options = options
        self._queue = queue

    def versions(self) -> Any:
        version = {"id": "v1.0", "status": "CURRENT", "min_version": VERSION, "version": VERSION}
        link = {"rel": "self", "href": flask.request.url_root + "v1"}
        return {"versions": [{**version, "links": [link]}]}

    def create(self) -> Any:
        asking = _asking()
        self._allow(asking, policies.CREATE)
        asked = check_create(bodies.parsed(flask.request.get_data()))
        if asked.get("priority", 0) > 0:
            self._allow(asking, policies.PRIORITY)
        dry_run = _flag("dry_run")
        fingerprint, keyed = intake.fingerprint(asked), None if dry_run else _keyed(asking)
        if keyed and (there := self._jobs.read(keyed, incomplete=True)):
            return self._again(there, fingerprint)
        cloud = self._cloud(flask.request.environ)
        now = time.time()
        new = intake.job_of(asked, asking.project, asking.user, cloud, now)
        self._check_limits(new)
        cloud.check_trust()
        if dry_run:
            return {"job": views.new_job(new)}
        trust = cloud.trust(intake.trust_until(new, now, self._options.trust_lasts_s))
        new = replace(new, trust=trust, fingerprint=fingerprint)
        uuid = keyed or str(uuids.uuid4())
        try:
            job = self._stored(new, uuid, cloud)
        except ExistsError:  # another request of the same key was faster
            if there := self._jobs.read(uuid, incomplete=True):
                return self._again(there, fingerprint)
            raise
        self._tell(job, job.reasons)
        return self._shown(job), 201

    def _stored(self, new: NewJob, uuid: str, cloud: UserCloud) -> StoredJob:
        """Store a job; where that fails, its trust is given back."""
        stored = None
        try:
            stored = self._jobs.create(new, uuid)
        finally:
            if stored is None:
                self._give_back(uuid, new.trust, cloud)
        return stored

    def _give_back(self, uuid: str, trust: str, cloud: UserCloud) -> None:
        """Have a trust deleted, unless a job was stored with it, or may have been."""
        try:
            there = self._jobs.read(uuid, incomplete=True)
        except ServiceUnavailableError as error:
            _LOG.error(
                "trust %s is kept, job %s may have been stored with it: %s", trust, uuid, error
            )
            return
        if there is not None and there.trust == trust:
            return
        try:
            cloud.delete_trust(trust)
        except NumaExtError as error:
            _LOG.error("trust %s is of no job and could not be deleted yet: %s", trust, error)
            self._ended_trusts.add(trust)

    def _check_limits(self, new: NewJob) -> None:
        never = of_projects.unsatisfiable(queued.submitted(new), self._queue.limits_of(new.project))
        if never:
            why = "; ".join(map(sentence, never))
            raise intake.OverQuotaError(f"The job would wait for ever: {why}.")
        used = self._jobs.usage(new.project, [JobState.QUEUED])
        asked = (1, sum(part.count for part in new.parts))
        for limit, more in zip(views.waiting_limits(self._options, *used), asked, strict=True):
            if limit["used"] + more > limit["limit"]:
                raise intake.OverQuotaError(
                    f"Limit {limit['name']} of the project is {limit['limit']}, {limit['used']} are in use, and the "
                    f"job needs {more}."
                )

    def find(self) -> Any:
        asking = _asking()
        everywhere = _flag("all_projects")
        self._allow(asking, policies.LIST_ALL if everywhere else policies.LIST)
        found = self._jobs.find(
            project=None if everywhere else asking.project,
            states=_states(JobState),
            after=flask.request.args.get("marker"),
            limit=_number("limit", ROWS, 1, MOST_ROWS),
            incomplete=True,
        )
        known = {each: self._knows(each) for each in {job.project for job in found}}
        places = self._places(found)
        return {
            "jobs": [
                views.job(job, internals=known[job.project], place=places.get(job.uuid))
                for job in found
            ]
        }

    def show(self, uuid: str) -> Any:
        return self._shown(self._job(uuid, policies.SHOW))

    def events(self, uuid: str) -> Any:
        job = self._job(uuid, policies.SHOW)
        after = _number("marker", 0, 0, 2**62)
        found = self._jobs.events(job, after, _number("limit", ROWS, 1, MOST_ROWS))
        internals = self._knows(job.project)
        return {"events": [views.event(each, internals=internals) for each in found]}

    def limits(self) -> Any:
        asking = _asking()
        self._allow(asking, policies.LIMITS)
        waiting = self._jobs.usage(asking.project, [JobState.QUEUED])
        placed = self._jobs.usage(asking.project, _ACTIVE)
        return {
            "limits": [
                *views.waiting_limits(self._options, *waiting),
                *views.queue_limits(self._queue.limits_of(asking.project), *placed),
                *self._lease_limits(asking.project),
            ]
        }

    def cancel(self, uuid: str) -> Any:
        return self._change(uuid, policies.CANCEL, JobTerm.CANCELLED, cancelled=True)

    def hold(self, uuid: str) -> Any:
        return self._change(uuid, policies.HOLD, JobTerm.HELD, held=True)

    def release(self, uuid: str) -> Any:
        return self._change(uuid, policies.RELEASE, JobTerm.RELEASED, held=False)

    def create_lease(self) -> Any:
        asking = _asking()
        self._allow(asking, policies.LEASE_CREATE)
        asked, server = check_lease(bodies.parsed(flask.request.get_data()))
        if server:
            self._check_server("$.lease.server_id", server, asking.project)
        for limit, more in zip(
            self._lease_limits(asking.project), (1, asked.memory_mb), strict=True
        ):
            if limit["limit"] is not None and limit["used"] + more > limit["limit"]:
                raise intake.OverQuotaError(
                    f"Limit {limit['name']} of the project is {limit['limit']}, {limit['used']} are in use, and the "
                    f"lease needs {more}."
                )
        made = self._leases.create(asking.project, asking.user, asked, server)
        return self._shown_lease(made), 202

    def _lease_limits(self, project: str) -> list[dict[str, Any]]:
        used = self._leases.usage(project, _left_out)
        return views.lease_limits(self._queue.limits_of(project), *used)

    def find_leases(self) -> Any:
        asking = _asking()
        everywhere = _flag("all_projects")
        self._allow(asking, policies.LEASE_LIST_ALL if everywhere else policies.LEASE_LIST)
        found = self._leases.find(
            project=None if everywhere else asking.project,
            states=_states(LeaseState),
            after=flask.request.args.get("marker"),
            limit=_number("limit", ROWS, 1, MOST_ROWS),
            unreadable=_left_out,
        )
        return {"leases": [self._shown_lease(each)["lease"] for each in found]}

    def show_lease(self, uuid: str) -> Any:
        return self._shown_lease(self._lease(uuid, policies.LEASE_SHOW))

    def attach_lease(self, uuid: str) -> Any:
        asking = _asking()
        server = ""
        for _ in range(_TRIES):
            lease = self._lease(uuid, policies.LEASE_ATTACH)
            if not server:
                server = check_attach(bodies.parsed(flask.request.get_data()))
                self._check_server("$.attach.server_id", server, lease.project)
            try:
                lease = self._leases.assign(lease, server, Actor(asking.user))
            except LostRaceError:
                continue
            return self._shown_lease(lease), 202
        raise _RefusedError(409, f"Lease {uuid} changes all the time: try again.")

    def _check_server(self, where: str, server: str, project: str) -> None:
        """Look whether a server is of the project whose lease it is to use.

        :raises InvalidValueError: it is not, or is not there
        """
        if self._cloud(flask.request.environ).project_of(server) != project:
            raise InvalidValueError(where, server, "a server of the lease's project")

    def release_lease(self, uuid: str) -> Any:
        asking = _asking()
        for _ in range(_TRIES):
            lease = self._lease(uuid, policies.LEASE_RELEASE)
            if lease.state is LeaseState.RELEASING:
                return self._shown_lease(lease), 202
            if lease.state.final:
                raise _RefusedError(409, f"Lease {uuid} has ended.")
            reasons = (Reason(LeaseTerm.RELEASED, asking.user),)
            try:
                lease = self._leases.change(lease, life.release, Actor(asking.user), reasons)
            except LostRaceError:
                continue
            return self._shown_lease(lease), 202
        raise _RefusedError(409, f"Lease {uuid} changes all the time: try again.")

    def requeue_lease(self, uuid: str) -> Any:
        asking = _asking()
        for _ in range(_TRIES):
            lease = self._lease(uuid, policies.LEASE_REQUEUE)
            after = (each.value for each in lease.reasons if each.term == LeaseTerm.REPLACED)
            if heir := next(after, None):
                return self._shown_lease(self._lease(str(heir), policies.LEASE_REQUEUE)), 202
            try:
                made = self._leases.requeue(lease, Actor(asking.user))
            except LostRaceError:
                continue
            return self._shown_lease(made), 202
        raise _RefusedError(409, f"Lease {uuid} changes all the time: try again.")

    def host_leases(self, host: str) -> Any:
        self._allow_host(_asking(), policies.HOST_LEASES, host)
        return views.host_leases(self._leases_of(host), host)

    def report_leases(self, host: str) -> Any:
        asking = _asking()
        self._allow_host(asking, policies.HOST_REPORT, host)
        report = check_report(bodies.parsed(flask.request.get_data()))
        serves = {each["id"]: each for each in report["serves"]}
        ended = {each["id"]: each["epoch"] for each in report["ended"]}
        kept = report if self._recovery.recovering() else None
        # It lives, whatever becomes of the rest; of what it has, an old database is made whole.
        self._lease_hosts.report(host, report["servers"], kept)
        for lease in self._leases_of(host):
            served, actor = lease.lease.epoch_at(host) is not None, Actor(asking.user)
            try:
                if served and lease.uuid in serves:
                    epoch, address = serves[lease.uuid]["epoch"], serves[lease.uuid]["address"]
                    self._leases.acknowledge(lease, host, epoch, address, actor)
                elif served and lease.uuid in ended:
                    self._leases.fail(lease, host, ended[lease.uuid], actor)
                elif lease.uuid in ended and lease.state is LeaseState.RELEASING:
                    self._leases.acknowledge(lease, host, ended[lease.uuid], "", actor)
            except LostRaceError as error:
                _LOG.info("lease %s: %s", lease.uuid, error)  # it is reported again
        return views.host_leases(self._leases_of(host), host)

    def set_scaling(self, uuid: str) -> Any:
        asking = _asking()
        self._allow(asking, policies.SCALING_SET)
        settings, source = check_scaling(bodies.parsed(flask.request.get_data()))
        project = self._cloud(flask.request.environ).server_group(uuid)
        if project is None or not self._may(asking, policies.SCALING_SET, project):
            raise _RefusedError(404, f"There is no server group {uuid}.")
        group = self._scaling.set(uuid, project, asking.user, settings, source)
        return self._shown_scaling(group)

    def show_scaling(self, uuid: str) -> Any:
        return self._shown_scaling(self._scaling_group(uuid, policies.SCALING_SHOW))

    def scaling_decisions(self, uuid: str) -> Any:
        self._scaling_group(uuid, policies.SCALING_SHOW)
        found = self._scaling.decisions(
            uuid, after=_seconds("marker"), limit=_number("limit", ROWS, 1, MOST_ROWS)
        )
        return {"decisions": found}

    def pause_scaling(self, uuid: str) -> Any:
        return self._paused(uuid, paused=True)

    def resume_scaling(self, uuid: str) -> Any:
        return self._paused(uuid, paused=False)

    def topology(self, uuid: str) -> Any:
        asking = _asking()
        self._allow(asking, policies.TOPOLOGY)
        form = flask.request.args.get("format", "json")
        if form not in FORMATS:
            raise InvalidValueError("query format", form, ", ".join(FORMATS))
        cloud = self._cloud(flask.request.environ)
        group = cloud.user_group(uuid)
        if group is None or not self._may(asking, policies.TOPOLOGY, group.project):
            raise _RefusedError(404, f"There is no server group {uuid}.")
        key = self._options.topology_key.encode()
        if not key:
            raise _RefusedError(409, "The operator has set no topology_key: no topology is shown.")
        names = cloud.servers_of(group.project)
        seen = [server for server in group.members if server in names]
        found = self._cabling.of(seen)
        if found is None:
            raise _RefusedError(409, f"No server of group {uuid} is on a host of a fabric.")
        cabled = list(map(CabledServer, (names[each] for each in seen), found.nodes))
        servers = hashed(cabled, group.project, found.fabric, key)
        return {
            "topology": {
                "server_group_id": uuid,
                "fabric": hashed_fabric(group.project, found.fabric, key),
                "levels": list(found.levels),
                "servers": [
                    {"id": server, "name": each.name, "nodes": list(each.nodes)}
                    for server, each in zip(seen, servers, strict=True)
                ],
                "file": None if form == "json" else FORMATS[form](servers, found.levels),
            }
        }

    def _paused(self, uuid: str, *, paused: bool) -> Any:
        asking = _asking()
        self._scaling_group(uuid, policies.SCALING_PAUSE)
        group = self._scaling.pause(uuid, asking.user, paused=paused)
        if group is None:
            raise _no_scaling(uuid)
        return self._shown_scaling(group)

    def _scaling_group(self, uuid: str, rule: str) -> StoredScaling:
        """Return an elastic group; see :meth:`_readable`."""
        return self._readable(
            self._scaling.read, uuid, policies.SCALING_SHOW, rule, _no_scaling(uuid)
        )

    def _shown_scaling(self, group: StoredScaling) -> dict[str, Any]:
        return {"scaling": views.scaling(group, self._scaling.last_decision(group))}

    def _leases_of(self, host: str) -> list[StoredLease]:
        """Return a host's leases.

        :raises _RefusedError: the database is an old one, or a lease is of another release: what lacks would be ended
        """
        if self._recovery.recovering():
            raise _RefusedError(503, "The database recovers: leases run on as they are.")
        return self._leases.of_host(host, _unreadable)

    def _allow_host(self, asking: _Asking, rule: str, host: str) -> None:
        target = {"project_id": asking.project, "host": host}
        credentials = {
            **asking.context.to_policy_values(),
            "user_name": asking.context.user_name or "",
            "project_name": asking.context.project_name or "",
        }
        if not self._authorized(rule, target, credentials):
            raise _forbidden(rule)

    def _shown_lease(self, lease: StoredLease) -> dict[str, Any]:
        internals = self._may(_asking(), policies.LEASE_INTERNALS, lease.project)
        return {"lease": views.lease(lease, internals=internals)}

    def _lease(self, uuid: str, rule: str) -> StoredLease:
        """Return a lease; see :meth:`_readable`."""
        missing = _RefusedError(404, f"There is no lease {uuid}.")
        return self._readable(self._leases.read, uuid, policies.LEASE_SHOW, rule, missing)

    def _readable(
        self,
        read: Callable[[str], _Stored | None],
        uuid: str,
        show: str,
        rule: str,
        missing: _RefusedError,
    ) -> _Stored:
        """Return what is stored; that of a project that the user has no rights in is not there.

        :param show: rule by which the user may see it
        :param rule: rule by which the user may do what is asked
        :raises _RefusedError: it is not there (``missing``), may not be had, or is of another release
        """
        asking = _asking()
        found: _Stored | UnreadableError | None
        try:
            found = read(uuid)
        except UnreadableError as error:
            found = error
        if found is None or not self._may(asking, show, found.project):
            self._allow(asking, rule)
            raise missing
        if not self._may(asking, rule, found.project):
            raise _forbidden(rule)
        if isinstance(found, UnreadableError):
            _LOG.error("request %s: %s", _context().request_id, found)
            raise _RefusedError(409, f"{found.what} {uuid} is stored in a form of another release.")
        return found

    def _change(self, uuid: str, rule: str, term: JobTerm, **change: bool) -> Any:
        asking = _asking()
        for _ in range(_TRIES):
            job = self._job(uuid, rule)
            if not job.whole:
                (why,) = views.reasons(job.reasons, internals=self._knows(job.project))
                raise _RefusedError(409, f"Job {uuid} is {why['sentence']}.")
            (name, value) = next(iter(change.items()))
            if getattr(job, name) == value:
                return self._shown(job), 202
            if job.state.final or (name == "held" and job.state is not JobState.QUEUED):
                raise _RefusedError(
                    409, f"Job {uuid} is {job.state}: it cannot be {term} any more."
                )
            try:
                reasons = (Reason(term, asking.user),)
                job = self._jobs.set(job, Actor(asking.user), reasons, **change)
            except LostRaceError:
                continue
            self._tell(job, reasons, _ACTIONS[term])
            return self._shown(job), 202
        raise _RefusedError(409, f"Job {uuid} changes all the time: try again.")

    def _again(self, there: StoredJob, fingerprint: str) -> Any:
        """Answer a request to submit a job that is there already."""
        if there.fingerprint != fingerprint:
            raise _RefusedError(
                422,
                f"{_KEY} has been used for job {there.uuid}, which is another one: choose a new key.",
            )
        return self._shown(there), 201

    def _shown(self, job: StoredJob) -> dict[str, Any]:
        place = self._places([job]).get(job.uuid)
        return {"job": views.job(job, internals=self._knows(job.project), place=place)}

    def _places(self, found: Sequence[StoredJob]) -> dict[str, tuple[int, int]]:
        """Return which place of how many jobs have in the queue, in the order in which engines ask them, by uuid."""
        if all(job.state is not JobState.QUEUED for job in found):
            return {}
        waiting, now = self._jobs.in_queue()
        in_order = queue_order.in_order(waiting, now, self._queue)
        return {each.uuid: (place, len(in_order)) for place, each in enumerate(in_order, 1)}

    def _knows(self, project: str) -> bool:
        """Return whether who asks may know more of a project's jobs than nova would tell its users."""
        return self._may(_asking(), policies.INTERNALS, project)

    def _job(self, uuid: str, rule: str) -> StoredJob:
        """Return a job; one of a project that the user has no rights in is not there."""
        asking = _asking()
        job = self._jobs.read(uuid, incomplete=True)
        if job is None or not self._may(asking, policies.SHOW, job.project):
            self._allow(asking, rule)
            raise _RefusedError(404, f"There is no job {uuid}.")
        if not self._may(asking, rule, job.project):
            raise _forbidden(rule)
        return job

    def _allow(self, asking: _Asking, rule: str) -> None:
        if not self._may(asking, rule, asking.project):
            raise _forbidden(rule)

    def _may(self, asking: _Asking, rule: str, project: str) -> bool:
        return self._authorized(rule, {"project_id": project}, asking.context)

    def _authorized(self, rule: str, target: Mapping[str, str], credentials: Any) -> bool:
        try:
            return bool(self._enforcer.authorize(rule, target, credentials))
        except policy.InvalidScope:
            return False


def _left_out(uuid: str, error: Exception) -> None:
    _LOG.warning("lease %s cannot be read and is left out: %s", uuid, error)


def _unreadable(uuid: str, error: Exception) -> NoReturn:
    _LOG.error("lease %s cannot be read, and its hosts learn nothing: %s", uuid, error)
    raise _RefusedError(
        503, "A lease is stored in a form of another release: leases run on as they are."
    )


def _no_scaling(uuid: str) -> _RefusedError:
    return _RefusedError(404, f"There is no elastic group {uuid}.")


def _forbidden(rule: str) -> _RefusedError:
    return _RefusedError(403, f"Policy does not allow {rule} to be performed.")


def _keyed(asking: _Asking) -> str | None:
    """Return the uuid that a job has by its client's key, None without a key: one of a user, a project and a key."""
    key = flask.request.headers.get(_KEY)
    if key is None:
        return None
    if not re.fullmatch(r"[!-~]{1,255}", key):
        raise InvalidValueError(
            _KEY, key, "1 to 255 printed characters of ASCII, none of them blank"
        )
    return str(uuids.uuid5(_KEYS, f"{asking.project} {asking.user} {key}"))


def _asking() -> _Asking:
    """Return who asks, of keystonemiddleware's headers."""
    context = _context()
    if not context.user_id:
        raise _RefusedError(401, "A token of Keystone is needed.")
    return _Asking(context.user_id, context.project_id or "", context)


def _context() -> RequestContext:
    """Return what keystonemiddleware and oslo.middleware say of the request, with one id as long as it lasts."""
    if "context" not in flask.g:
        flask.g.context = RequestContext.from_environ(flask.request.environ)
    context: RequestContext = flask.g.context
    return context


def _flag(name: str) -> bool:
    given = flask.request.args.get(name, "false").lower()
    if given not in ("true", "false"):
        raise InvalidValueError(f"query {name}", given, "true or false")
    return given == "true"


def _number(name: str, default: int, least: int, most: int) -> int:
    given = flask.request.args.get(name)
    if given is None:
        return default
    if not (
        given.isascii() and given.isdecimal() and len(given) < 20 and least <= int(given) <= most
    ):
        raise InvalidValueError(f"query {name}", given, f"a whole number from {least} to {most}")
    return int(given)


def _seconds(name: str) -> float | None:
    given = flask.request.args.get(name)
    try:
        found = None if given is None else float(given)
    except ValueError:
        found = math.nan
    if found is not None and not math.isfinite(found):
        raise InvalidValueError(f"query {name}", given, "a number of seconds")
    return found


def _states(known: type[_State]) -> tuple[_State, ...]:
    given = flask.request.args.getlist("state")
    unknown = [each for each in given if each not in list(known)]
    if unknown:
        raise InvalidValueError("query state", unknown[0], ", ".join(known))
    return tuple(map(known, given)) or tuple(known)


def _check_version() -> None:
    try:
        asked = microversion_parse.get_version(flask.request.headers, SERVICE_TYPE) or VERSION
        known = asked == "latest" or microversion_parse.parse_version_string(asked) == (1, 0)
    except (TypeError, ValueError):
        raise _RefusedError(
            400, f"{_HEADER} is malformed; allowed: {SERVICE_TYPE} {VERSION}"
        ) from None
    if not known:
        raise _RefusedError(
            406, f"Version {asked} is not supported; supported: {VERSION} to {VERSION}."
        )


def _name_version(response: flask.Response) -> flask.Response:
    response.headers[_HEADER] = f"{SERVICE_TYPE} {VERSION}"
    response.vary.add(_HEADER)
    return response


def _error(error: NumaExtError) -> Any:
    match error:
        case _RefusedError():
            return _answer(error.status, error.sentence)
        case ServiceUnavailableError():
            _LOG.error("request %s: %s", _context().request_id, error)
            return _answer(503, f"{_silent(error)} does not answer now: try again later.")
        case intake.OverQuotaError():
            return _answer(403, str(error))
        case InvalidValueError() | InvalidRequestError():
            return _answer(400, str(error))
    return _answer(409, str(error))


def _conditional(response: flask.Response) -> Any:
    """Answer a client that has the newest version without sending it again."""
    if flask.request.method != "GET" or response.status_code != 200:
        return response
    response.add_etag()
    response.cache_control.private = True
    response.cache_control.no_cache = True
    return response.make_conditional(flask.request)


def _silent(error: ServiceUnavailableError) -> str:
    """Return who does not answer; what else there is to say is for operators."""
    match error:
        case DatabaseError():
            return "The job service's database"
        case SilentError():
            return error.service
    return "A service that jobs need"


def _http_error(error: HTTPException) -> Any:
    return _answer(error.code or 500, error.description or error.name)


def _answer(status: int, sentence: str) -> Any:
    error = {"status": status, "detail": sentence, "request_id": _context().request_id}
    return {"errors": [error]}, status
