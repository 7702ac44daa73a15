# SPDX-License-Identifier: Apache-2.0
"""Each request of the API: declared once, for the application and for the reference."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nova_numa_ext.group_topology import FORMATS
from nova_numa_ext.orchestrator.api import answers, scaling_schema, schemas
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.remote_gpu.leases import LeaseState

ROWS: Final = 100
MOST_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter in the query.

    :param allowed: what may be given, for people
    """

    name: str
    what: str
    allowed: str


@dataclass(frozen=True, slots=True)
class Route:
    """A request.

    :param path: ``{job}``, ``{lease}`` and ``{group}`` stand for uuids, ``{host}`` for a name
    :param view: what answers it: a noun of :mod:`.handlers`, and a method there
    :param what: it does, as a sentence
    :param answers: status of success -> schema of its body
    :param errors: further statuses -> when
    :param body: schema of what has to be sent, None for nothing
    """

    method: str
    path: str
    view: str
    what: str
    answers: Mapping[int, answers.Schema]
    errors: Mapping[int, str] = field(default_factory=dict)
    queries: tuple[Query, ...] = ()
    body: Mapping[str, Any] | None = None


ERRORS: Final[Mapping[int, str]] = {
    400: "it has no meaning",
    401: "it has no token that Keystone confirms",
    403: "a rule of policy does not allow it",
    404: "there is no such path",
    405: "the path has another method",
    406: "it asks for a version that is not supported",
    413: "its body is longer than 1 MiB",
    503: "a service that is needed does not answer now",
}
"""Statuses that any request may be answered with -> when."""

_NO_JOB: Final = {404: "there is no such job, or it is another project's"}
_NO_LEASE: Final = {404: "there is no such lease, or it is another project's"}
_NO_SCALING: Final = {
    404: "there is no such elastic group, or it is another project's",
    409: "the group is stored in a form of another release",
}
_RECOVERS: Final = {503: "the database was restored and is not yet committed"}
_ENDED: Final = {409: "the job has ended"}
_LIMIT: Final = Query("limit", "rows at most", f"1 to {MOST_ROWS}; {ROWS} if not given")

ROUTES: Final = (
    Route("GET", "/", "versions.show", "List versions; needs no token.", {200: answers.VERSIONS}),
    Route(
        "POST",
        "/v1/jobs",
        "jobs.create",
        "Submit a job. Flavors, images and networks are looked up with the token, and a trust is made by which the "
        "service acts for the user until the job has ended.",
        {
            200: answers.NEW_JOB,
            201: answers.JOB,
        },
        {
            403: "the job needs more than a quota in nova or a limit of the project",
            409: "the token can make no trust, or may not ask a service what is needed",
            422: "the ``Idempotency-Key`` has been used for another job",
        },
        (Query("dry_run", "check all, and store nothing", "``true`` or ``false``"),),
        schemas.CREATE,
    ),
    Route(
        "GET",
        "/v1/jobs",
        "jobs.find",
        "List the project's jobs.",
        {200: answers.JOBS},
        queries=(
            Query("state", "only jobs in this state; may be repeated", ", ".join(JobState)),
            Query("kind", "only jobs of this kind", ", ".join(JobKind)),
            _LIMIT,
            Query("marker", "only jobs after this one", "uuid of the last job of the page before"),
            Query("all_projects", "jobs of all projects", "``true`` or ``false``"),
        ),
    ),
    Route("GET", "/v1/jobs/{job}", "jobs.show", "Show a job.", {200: answers.JOB}, _NO_JOB),
    Route(
        "GET",
        "/v1/jobs/{job}/events",
        "jobs.events",
        "List what happened to a job.",
        {200: answers.EVENTS},
        _NO_JOB,
        (
            _LIMIT,
            Query(
                "marker",
                "only events after this one",
                "``id`` of the last event of the page before",
            ),
        ),
    ),
    Route(
        "POST",
        "/v1/jobs/{job}/cancel",
        "jobs.cancel",
        "End a job, whatever it does; its servers are deleted.",
        {202: answers.JOB},
        _NO_JOB | _ENDED,
    ),
    Route(
        "POST",
        "/v1/jobs/{job}/hold",
        "jobs.hold",
        "Do not start a job until it is released.",
        {202: answers.JOB},
        _NO_JOB | {409: "the job does not wait"},
    ),
    Route(
        "POST",
        "/v1/jobs/{job}/release",
        "jobs.release",
        "Let a job that is held start.",
        {202: answers.JOB},
        _NO_JOB | {409: "the job does not wait"},
    ),
    Route(
        "POST",
        "/v1/leases",
        "leases.create",
        "Ask for a lease of a GPU that another host lends. The engine chooses the GPU and claims it; where none has "
        "room, the lease waits and holds nothing, or ends.",
        {202: answers.LEASE},
        {403: "the lease exceeds a limit of the project"},
        body=schemas.LEASE,
    ),
    Route(
        "GET",
        "/v1/leases",
        "leases.find",
        "List the project's leases.",
        {200: answers.LEASES},
        queries=(
            Query("state", "only leases in this state; may be repeated", ", ".join(LeaseState)),
            _LIMIT,
            Query(
                "marker", "only leases after this one", "uuid of the last lease of the page before"
            ),
            Query("all_projects", "leases of all projects", "``true`` or ``false``"),
        ),
    ),
    Route(
        "GET",
        "/v1/leases/{lease}",
        "leases.show",
        "Show a lease.",
        {200: answers.LEASE},
        _NO_LEASE | {409: "the lease is stored in a form of another release"},
    ),
    Route(
        "POST",
        "/v1/leases/{lease}/attach",
        "leases.attach",
        "Say which server a lease is for that was asked for without one: such as the one that was made with the hint "
        "``numa_ext_lease``. It is attached where that runs.",
        {202: answers.LEASE},
        _NO_LEASE
        | {
            409: "the lease is for another server, has ended, or is stored in a form of another release"
        },
        body=schemas.ATTACH,
    ),
    Route(
        "POST",
        "/v1/leases/{lease}/release",
        "leases.release",
        "End a lease. What it holds is free when the host of its GPU serves it no more.",
        {202: answers.LEASE},
        _NO_LEASE | {409: "the lease has ended, or is stored in a form of another release"},
    ),
    Route(
        "POST",
        "/v1/leases/{lease}/move",
        "leases.move",
        "Move a lease that is attached to another GPU. What it holds in Placement goes there in one write, or stays. "
        "Where both hosts report that they can carry leases, its process goes along with all that it has; else another "
        "one begins with empty memory. Its server's host is cut off until it runs there.",
        {202: answers.LEASE},
        _NO_LEASE
        | {
            409: "the lease is not attached, moves already, was asked for of another host only, or is stored in a form "
            "of another release"
        },
        body=schemas.MOVE,
    ),
    Route(
        "POST",
        "/v1/leases/{lease}/requeue",
        "leases.requeue",
        "Release a lease that is LOST, for its GPU's host is silent, and ask for the same of any other host; the "
        "answer is the new lease, the same one each time. It is not checked against limits of the project again. What "
        "the old one holds is free when its host reports that it serves it no more.",
        {202: answers.LEASE},
        _NO_LEASE
        | {
            409: "the lease is not lost, was asked for of that host only, or is stored in a form of another release"
        },
    ),
    Route(
        "GET",
        "/v1/hosts/{host}/leases",
        "hosts.leases",
        "Show what a host is to do for leases: an agent asks its own.",
        {200: answers.HOST_LEASES},
        _RECOVERS,
    ),
    Route(
        "POST",
        "/v1/hosts/{host}/leases",
        "hosts.report",
        "Report what a host does for leases; the answer is what it is to do. An epoch that a GPU's host reports is "
        "acknowledged: it serves no client of an older one any more.",
        {200: answers.HOST_LEASES},
        _RECOVERS,
        body=schemas.HOST_REPORT,
    ),
    Route(
        "POST",
        "/v1/hosts/{host}/off",
        "hosts.off",
        "Say that a host of GPUs which does not report is off: its leases end, what they hold is free at once, and the "
        "same is asked for of other hosts, as of a lease that is requeued. The answer is the leases that ended. A host "
        "that only does not reach the service, and is not off, still serves them.",
        {200: answers.LEASES},
        {
            404: "no such host has ever reported",
            409: "the host has reported in the last minute, or one of its leases changes all the time",
        }
        | _RECOVERS,
    ),
    Route(
        "PUT",
        "/v1/scaling/{group}",
        "scaling.set",
        "Have a server group observed: what it would need is decided for each period of its source, and nothing is "
        "carried out. With ``enforce`` it is carried out, by a trust of who asks. What was decided by other settings "
        "is deleted.",
        {200: answers.SCALING},
        {
            404: "nova shows no such server group with the token",
            409: "the token can make no trust, may not ask a service what is needed, or the cloud has no Heat",
        },
        body=scaling_schema.SCALING,
    ),
    Route(
        "GET",
        "/v1/scaling",
        "scaling.find",
        "List the project's elastic groups.",
        {200: answers.SCALING_GROUPS},
        queries=(
            _LIMIT,
            Query(
                "marker", "only groups after this one", "uuid of the last group of the page before"
            ),
            Query("all_projects", "groups of all projects", "``true`` or ``false``"),
        ),
    ),
    Route(
        "DELETE",
        "/v1/scaling/{group}",
        "scaling.delete",
        "Observe a server group no more; what was decided on it is deleted. The servers stay as they are.",
        {204: {}},
        {404: _NO_SCALING[404]},
    ),
    Route(
        "GET",
        "/v1/scaling/{group}",
        "scaling.show",
        "Show an elastic group.",
        {200: answers.SCALING},
        _NO_SCALING,
    ),
    Route(
        "GET",
        "/v1/scaling/{group}/decisions",
        "scaling.decisions",
        "List what was decided on an elastic group.",
        {200: answers.SCALING_DECISIONS},
        _NO_SCALING,
        (
            _LIMIT,
            Query("marker", "only later periods", "``at_s`` of the last line of the page before"),
        ),
    ),
    Route(
        "POST",
        "/v1/scaling/{group}/pause",
        "scaling.pause",
        "Decide nothing on an elastic group until it is resumed.",
        {200: answers.SCALING},
        _NO_SCALING,
    ),
    Route(
        "POST",
        "/v1/scaling/{group}/resume",
        "scaling.resume",
        "Decide on an elastic group again, on the periods that were missed, too.",
        {200: answers.SCALING},
        _NO_SCALING,
    ),
    Route(
        "GET",
        "/v1/groups/{group}/topology",
        "topology.show",
        "Show which servers of a server group share a leaf, a pod or the fabric: what is so at this moment. Nodes have "
        "hashes of their names, the same in all groups of a project, and others in each project. Of several fabrics it "
        "is the first one, by its name, that has a server of the group.",
        {200: answers.TOPOLOGY},
        {
            404: "there is no such server group, or it is another project's",
            409: "no server of the group is on a host of a fabric, the operator has set no key for hashes, or nova "
            "does not let the token list servers",
        },
        (
            Query(
                "format",
                "``slurm``: a ``topology.yaml`` in ``file``; ``slurm-conf``: a ``topology.conf``; ``kueue``: nodes of "
                "Kubernetes with labels",
                f"{', '.join(FORMATS)}; json if not given",
            ),
        ),
    ),
    Route(
        "GET",
        "/v1/limits",
        "limits.show",
        "Show what the project's jobs and leases use of its limits.",
        {200: answers.LIMITS},
    ),
)
