# SPDX-License-Identifier: Apache-2.0
"""Requests about jobs.

A request to submit a job may carry an ``Idempotency-Key`` that its client has chosen: sent again, because the answer
got lost, it is answered with the job that the first one has stored.
"""

import logging
import time
import uuid as uuids
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import flask

from nova_numa_ext.orchestrator.api import bodies, intake, policies, request, views
from nova_numa_ext.orchestrator.api.handlers.limits import ProjectLimits
from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError, forbidden
from nova_numa_ext.orchestrator.api.request import IDEMPOTENCY_KEY
from nova_numa_ext.orchestrator.api.rights import Rights
from nova_numa_ext.orchestrator.api.routes import MOST_ROWS, ROWS
from nova_numa_ext.orchestrator.api.schemas import check_create
from nova_numa_ext.orchestrator.cloud.user import CloudOf, UserCloud
from nova_numa_ext.orchestrator.conf import ApiOptions
from nova_numa_ext.orchestrator.notify import Tell
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.jobs import ExistsError
from nova_numa_ext.orchestrator.store.stored_job import NewJob, StoredJob
from nova_numa_ext.orchestrator.store.stores import Stores
from nova_numa_ext.policy.jobs import queue_order
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.errors import NumaExtError, ServiceUnavailableError
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)

_ACTIONS: Final = {
    JobTerm.CANCELLED: "cancel",
    JobTerm.HELD: "hold",
    JobTerm.RELEASED: "release",
}


class JobHandlers:
    """Answers them.

    :param queue: as the engines have it
    :param tell: called with each job that is submitted, held, released or cancelled
    """

    def __init__(
        self,
        stores: Stores,
        rights: Rights,
        cloud: CloudOf,
        limits: ProjectLimits,
        *,
        options: ApiOptions,
        queue: QueueSettings,
        tell: Tell,
    ) -> None:
        self._stores = stores
        self._rights = rights
        self._cloud = cloud
        self._limits = limits
        self._options = options
        self._queue = queue
        self._tell = tell

    def create(self) -> Any:
        asking = request.asking()
        self._rights.allow(asking, policies.CREATE)
        asked = check_create(bodies.parsed(flask.request.get_data()))
        if asked.get("priority", 0) > 0:
            self._rights.allow(asking, policies.PRIORITY)
        dry_run = request.flag("dry_run")
        fingerprint, keyed = (
            intake.fingerprint(asked),
            None if dry_run else request.keyed_uuid(asking),
        )
        if keyed and (there := self._stores.jobs.read(keyed, incomplete=True)):
            return self._again(there, fingerprint)
        cloud = self._cloud(flask.request.environ)
        now = time.time()
        new = intake.job_of(asked, asking.project, asking.user, cloud, now)
        self._limits.check_job(new)
        cloud.check_trust()
        if dry_run:
            return {"job": views.new_job(new)}
        trust = cloud.trust(intake.trust_until(new, now, self._options.trust_lasts_s))
        new = replace(new, trust=trust, fingerprint=fingerprint)
        uuid = keyed or str(uuids.uuid4())
        try:
            job = self._stored(new, uuid, cloud)
        except ExistsError:  # another request of the same key was faster
            if there := self._stores.jobs.read(uuid, incomplete=True):
                return self._again(there, fingerprint)
            raise
        self._tell(job, job.reasons)
        return self._shown(job), 201

    def _stored(self, new: NewJob, uuid: str, cloud: UserCloud) -> StoredJob:
        """Store a job; where that fails, its trust is given back."""
        stored = None
        try:
            stored = self._stores.jobs.create(new, uuid)
        finally:
            if stored is None:
                self._give_back(uuid, new.trust, cloud)
        return stored

    def _give_back(self, uuid: str, trust: str, cloud: UserCloud) -> None:
        """Have a trust deleted, unless a job was stored with it, or may have been."""
        try:
            there = self._stores.jobs.read(uuid, incomplete=True)
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
            self._stores.ended_trusts.add(trust)

    def find(self) -> Any:
        asking = request.asking()
        everywhere = request.flag("all_projects")
        self._rights.allow(asking, policies.LIST_ALL if everywhere else policies.LIST)
        found = self._stores.jobs.find(
            project=None if everywhere else asking.project,
            states=request.states(JobState),
            kind=request.kind(JobKind),
            after=flask.request.args.get("marker"),
            limit=request.number("limit", ROWS, 1, MOST_ROWS),
            incomplete=True,
        )
        known = {each: self._knows(each) for each in {job.project for job in found}}
        places, leases = self._places(found), self._leases(found)
        return {
            "jobs": [
                views.job(
                    job,
                    internals=known[job.project],
                    place=places.get(job.uuid),
                    leases=leases.get(job.uuid, ()),
                )
                for job in found
            ]
        }

    def show(self, uuid: str) -> Any:
        return self._shown(self._job(uuid, policies.SHOW))

    def events(self, uuid: str) -> Any:
        job = self._job(uuid, policies.SHOW)
        after = request.number("marker", 0, 0, 2**62)
        found = self._stores.jobs.events(job, after, request.number("limit", ROWS, 1, MOST_ROWS))
        internals = self._knows(job.project)
        return {"events": [views.event(each, job, internals=internals) for each in found]}

    def cancel(self, uuid: str) -> Any:
        return self._change(uuid, policies.CANCEL, JobTerm.CANCELLED, cancelled=True)

    def hold(self, uuid: str) -> Any:
        return self._change(uuid, policies.HOLD, JobTerm.HELD, held=True)

    def release(self, uuid: str) -> Any:
        return self._change(uuid, policies.RELEASE, JobTerm.RELEASED, held=False)

    def _change(self, uuid: str, rule: str, term: JobTerm, **change: bool) -> Any:
        actor = Actor(request.asking().user)
        reasons = (Reason(term, actor.name),)

        def attempt() -> tuple[StoredJob, bool]:
            """Return the job, and whether it was changed."""
            job = self._job(uuid, rule)
            if not job.whole:
                internals = self._knows(job.project)
                (why,) = views.job_reasons(job.reasons, job, internals=internals)
                raise RefusedRequestError(409, f"Job {uuid} is {why['sentence']}.")
            (name, value) = next(iter(change.items()))
            if getattr(job, name) == value:
                return job, False
            if job.state.final or (name == "held" and job.state is not JobState.QUEUED):
                raise RefusedRequestError(
                    409, f"Job {uuid} is {job.state}: it cannot be {term} any more."
                )
            return self._stores.jobs.set(job, actor, reasons, **change), True

        job, is_changed = request.changed(f"Job {uuid}", attempt)
        if is_changed:
            self._tell(job, reasons, _ACTIONS[term])
        return self._shown(job), 202

    def _again(self, there: StoredJob, fingerprint: str) -> Any:
        """Answer a request to submit a job that is there already."""
        if there.fingerprint != fingerprint:
            raise RefusedRequestError(
                422,
                f"{IDEMPOTENCY_KEY} has been used for job {there.uuid}, which is another one: choose a new key.",
            )
        return self._shown(there), 201

    def _shown(self, job: StoredJob) -> dict[str, Any]:
        place = self._places([job]).get(job.uuid)
        leases = self._leases([job]).get(job.uuid, ())
        internals = self._knows(job.project)
        return {"job": views.job(job, internals=internals, place=place, leases=leases)}

    def _leases(self, found: Sequence[StoredJob]) -> dict[str, list[str]]:
        """Return the leases of jobs that ask for remote GPUs, by the uuid of the job."""
        asking = [job.uuid for job in found if job.kind is JobKind.ATTACH]
        return self._stores.leases.of_jobs(asking) if asking else {}

    def _places(self, found: Sequence[StoredJob]) -> dict[str, tuple[int, int]]:
        """Return which place of how many jobs have in the queue, in the order in which engines ask them, by uuid."""
        if all(job.state is not JobState.QUEUED for job in found):
            return {}
        waiting, now = self._stores.jobs.in_queue()
        in_order = queue_order.in_order(waiting, now, self._queue)
        return {each.uuid: (place, len(in_order)) for place, each in enumerate(in_order, 1)}

    def _knows(self, project: str) -> bool:
        """Return whether who asks may know more of a project's jobs than nova would tell its users."""
        return self._rights.may(request.asking(), policies.INTERNALS, project)

    def _job(self, uuid: str, rule: str) -> StoredJob:
        """Return a job; one of a project that the user has no rights in is not there."""
        asking = request.asking()
        job = self._stores.jobs.read(uuid, incomplete=True)
        if job is None or not self._rights.may(asking, policies.SHOW, job.project):
            self._rights.allow(asking, rule)
            raise RefusedRequestError(404, f"There is no job {uuid}.")
        if not self._rights.may(asking, rule, job.project):
            raise forbidden(rule)
        return job
