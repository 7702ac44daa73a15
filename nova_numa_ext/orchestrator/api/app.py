# SPDX-License-Identifier: Apache-2.0
"""The routes. Requests come with the headers that keystonemiddleware sets; it is not part of this application.

====================================  =========================================================
``GET /``                             versions; needs no token
``POST /v1/jobs``                     submit; ``?dry_run=true`` checks and stores nothing
``GET /v1/jobs``                      list; ``state``, ``limit``, ``marker``, ``all_projects``
``GET /v1/jobs/{job}``                show
``GET /v1/jobs/{job}/events``         what happened; ``after``
``POST /v1/jobs/{job}/cancel``        end it, whatever it does
``POST /v1/jobs/{job}/hold``          do not start it until it is released
``POST /v1/jobs/{job}/release``       the engine may start it
====================================  =========================================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import flask
import microversion_parse
from oslo_context.context import RequestContext
from oslo_policy import policy
from werkzeug.exceptions import HTTPException

from nova_numa_ext.orchestrator.api import intake, policies, views
from nova_numa_ext.orchestrator.api.schemas import check_create
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.jobs import Actor, Jobs, StoredJob
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.errors import InvalidValueError, NumaExtError, ServiceUnavailableError
from placement_traits.reason import Reason
from placement_traits.request import InvalidRequestError

SERVICE_TYPE: Final = "numa-ext"
VERSION: Final = "1.0"
_HEADER: Final = "OpenStack-API-Version"
_MOST_BYTES: Final = 1024 * 1024
_MOST_ROWS: Final = 1000
_TRIES: Final = 10


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


def make(
    jobs: Jobs, enforcer: policy.Enforcer, cloud: Callable[[Mapping[str, Any]], intake.UserCloud]
) -> flask.Flask:
    """Return the WSGI application.

    :param enforcer: has :data:`.policies.RULES` registered
    :param cloud: WSGI environment of a request -> the cloud, asked with the token of its user
    """
    app = flask.Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = _MOST_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]
    routes = _Routes(jobs, enforcer, cloud)
    for method, path, view in (
        ("GET", "/", routes.versions),
        ("POST", "/v1/jobs", routes.create),
        ("GET", "/v1/jobs", routes.find),
        ("GET", "/v1/jobs/<uuid>", routes.show),
        ("GET", "/v1/jobs/<uuid>/events", routes.events),
        ("POST", "/v1/jobs/<uuid>/cancel", routes.cancel),
        ("POST", "/v1/jobs/<uuid>/hold", routes.hold),
        ("POST", "/v1/jobs/<uuid>/release", routes.release),
    ):
        app.add_url_rule(path, f"{method} {path}", view, methods=[method])
    app.before_request(_check_version)
    app.after_request(_name_version)
    app.register_error_handler(NumaExtError, _error)
    app.register_error_handler(HTTPException, _http_error)
    return app


class _Routes:
    def __init__(
        self,
        jobs: Jobs,
        enforcer: policy.Enforcer,
        cloud: Callable[[Mapping[str, Any]], intake.UserCloud],
    ) -> None:
        self._jobs = jobs
        self._enforcer = enforcer
        self._cloud = cloud

    def versions(self) -> Any:
        version = {"id": "v1.0", "status": "CURRENT", "min_version": VERSION, "version": VERSION}
        link = {"rel": "self", "href": flask.request.url_root + "v1"}
        return {"versions": [{**version, "links": [link]}]}

    def create(self) -> Any:
        asking = _asking()
        self._allow(asking, policies.CREATE)
        asked = check_create(_body())
        if asked.get("priority", 0) > 0:
            self._allow(asking, policies.PRIORITY)
        cloud = self._cloud(flask.request.environ)
        new = intake.job_of(asked, asking.project, asking.user, cloud)
        if _flag("dry_run"):
            return {"job": views.new_job(new)}
        job = self._jobs.create(intake.trusted(new, cloud))
        return {"job": views.job(job)}, 201

    def find(self) -> Any:
        asking = _asking()
        everywhere = _flag("all_projects")
        self._allow(asking, policies.LIST_ALL if everywhere else policies.LIST)
        found = self._jobs.find(
            project=None if everywhere else asking.project,
            states=_states(),
            after=flask.request.args.get("marker"),
            limit=_number("limit", _MOST_ROWS, 1, _MOST_ROWS),
        )
        return {"jobs": [views.job(job) for job in found]}

    def show(self, uuid: str) -> Any:
        return {"job": views.job(self._job(uuid, policies.SHOW))}

    def events(self, uuid: str) -> Any:
        job = self._job(uuid, policies.SHOW)
        after = _number("after", 0, 0, 2**62)
        return {"events": [views.event(each) for each in self._jobs.events(job, after)]}

    def cancel(self, uuid: str) -> Any:
        return self._change(uuid, policies.CANCEL, JobTerm.CANCELLED, cancelled=True)

    def hold(self, uuid: str) -> Any:
        return self._change(uuid, policies.HOLD, JobTerm.HELD, held=True)

    def release(self, uuid: str) -> Any:
        return self._change(uuid, policies.RELEASE, JobTerm.RELEASED, held=False)

    def _change(self, uuid: str, rule: str, term: JobTerm, **change: bool) -> Any:
        asking = _asking()
        for _ in range(_TRIES):
            job = self._job(uuid, rule)
            (name, value) = next(iter(change.items()))
            if getattr(job, name) == value:
                return {"job": views.job(job)}, 202
            if job.state.final or (name == "held" and job.state is not JobState.QUEUED):
                raise _RefusedError(
                    409, f"Job {uuid} is {job.state}: it cannot be {term} any more."
                )
            try:
                reasons = (Reason(term, asking.user),)
                job = self._jobs.set(job, Actor(asking.user), reasons, **change)
            except LostRaceError:
                continue
            return {"job": views.job(job)}, 202
        raise _RefusedError(409, f"Job {uuid} changes all the time: try again.")

    def _job(self, uuid: str, rule: str) -> StoredJob:
        """Return a job; one of a project that the user has no rights in is not there."""
        asking = _asking()
        job = self._jobs.read(uuid)
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
        try:
            return bool(self._enforcer.authorize(rule, {"project_id": project}, asking.context))
        except policy.InvalidScope:
            return False


def _forbidden(rule: str) -> _RefusedError:
    return _RefusedError(403, f"Policy does not allow {rule} to be performed.")


def _asking() -> _Asking:
    """Return who asks, of keystonemiddleware's headers."""
    context = RequestContext.from_environ(flask.request.environ)
    if not context.user_id:
        raise _RefusedError(401, "A token of Keystone is needed.")
    return _Asking(context.user_id, context.project_id or "", context)


def _body() -> Any:
    try:
        found = flask.request.get_json(force=True, silent=True)
    except RecursionError:  # of a body that is nested a thousand deep
        found = None
    if found is None:
        raise InvalidValueError("body", flask.request.get_data(as_text=True), "JSON")
    return found


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


def _states() -> tuple[JobState, ...]:
    given = flask.request.args.getlist("state")
    unknown = [each for each in given if each not in list(JobState)]
    if unknown:
        raise InvalidValueError("query state", unknown[0], ", ".join(JobState))
    return tuple(map(JobState, given)) or tuple(JobState)


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
            return _answer(503, str(error))
        case intake.OverQuotaError():
            return _answer(403, str(error))
        case InvalidValueError() | InvalidRequestError():
            return _answer(400, str(error))
    return _answer(409, str(error))


def _http_error(error: HTTPException) -> Any:
    return _answer(error.code or 500, error.description or error.name)


def _answer(status: int, sentence: str) -> Any:
    return {"errors": [{"status": status, "detail": sentence}]}, status
