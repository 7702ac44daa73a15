# SPDX-License-Identifier: Apache-2.0
"""The application. Requests come with the headers that keystonemiddleware sets; it is not part of this application.

Answers to GET carry an ETag: asked with ``If-None-Match``, what has not changed is a 304 without a body.
"""

import logging
from typing import Any, Final

import flask
from oslo_policy import policy
from werkzeug.exceptions import HTTPException

from nova_numa_ext.orchestrator.api import intake, request
from nova_numa_ext.orchestrator.api.handlers import versions
from nova_numa_ext.orchestrator.api.handlers.hosts import HostHandlers
from nova_numa_ext.orchestrator.api.handlers.jobs import JobHandlers
from nova_numa_ext.orchestrator.api.handlers.leases import LeaseHandlers
from nova_numa_ext.orchestrator.api.handlers.limits import ProjectLimits
from nova_numa_ext.orchestrator.api.handlers.scaling import ScalingHandlers
from nova_numa_ext.orchestrator.api.handlers.topology import TopologyHandlers
from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError
from nova_numa_ext.orchestrator.api.rights import Rights
from nova_numa_ext.orchestrator.api.routes import ROUTES
from nova_numa_ext.orchestrator.cloud.asking import SilentError
from nova_numa_ext.orchestrator.cloud.cabling import CablingOf
from nova_numa_ext.orchestrator.cloud.user import CloudOf
from nova_numa_ext.orchestrator.conf import ApiOptions
from nova_numa_ext.orchestrator.notify import Tell, no_receiver
from nova_numa_ext.orchestrator.store.database import DatabaseError
from nova_numa_ext.orchestrator.store.stores import Stores
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from placement_traits.errors import InvalidValueError, NumaExtError, ServiceUnavailableError
from placement_traits.request import InvalidRequestError

_LOG: Final = logging.getLogger(__name__)

_MOST_BYTES: Final = 1024 * 1024


def make(
    stores: Stores,
    enforcer: policy.Enforcer,
    cloud: CloudOf,
    cabling: CablingOf,
    options: ApiOptions | None = None,
    *,
    queue: QueueSettings | None = None,
    tell: Tell = no_receiver,
) -> flask.Flask:
    """Return the WSGI application.

    :param stores: of one database; hosts learn nothing of one that is an old one
    :param enforcer: has :data:`.policies.RULES` registered
    :param queue: as the engines have them; None: the defaults
    :param tell: called with each job that is submitted, held, released or cancelled
    """
    app = flask.Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = _MOST_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]
    rights, options, queue = Rights(enforcer), options or ApiOptions(), queue or QueueSettings()
    limits = ProjectLimits(stores, rights, options, queue)
    handlers = {
        "versions": versions.VersionHandlers(),
        "limits": limits,
        "jobs": JobHandlers(stores, rights, cloud, limits, options=options, queue=queue, tell=tell),
        "leases": LeaseHandlers(stores, rights, cloud, limits),
        "hosts": HostHandlers(stores, rights),
        "scaling": ScalingHandlers(stores, rights, cloud),
        "topology": TopologyHandlers(rights, cloud, cabling, options.topology_key.encode()),
    }
    for route in ROUTES:
        noun, verb = route.view.split(".")
        app.add_url_rule(
            _rule(route.path),
            f"{route.method} {route.path}",
            getattr(handlers[noun], verb),
            methods=[route.method],
        )
    app.before_request(versions.check)
    app.after_request(versions.name)
    app.after_request(_conditional)
    app.register_error_handler(NumaExtError, _error)
    app.register_error_handler(HTTPException, _http_error)
    return app


def _rule(path: str) -> str:
    named = path.replace("{job}", "<uuid>").replace("{lease}", "<uuid>")
    named = named.replace("{group}", "<uuid>")
    return named.replace("{host}", "<host>")


def _error(error: NumaExtError) -> Any:
    match error:
        case RefusedRequestError():
            return _answer(error.status, error.sentence)
        case ServiceUnavailableError():
            _LOG.error("request %s: %s", request.context().request_id, error)
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
    error = {"status": status, "detail": sentence, "request_id": request.context().request_id}
    return {"errors": [error]}, status
