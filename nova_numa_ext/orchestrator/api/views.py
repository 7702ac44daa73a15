# SPDX-License-Identifier: Apache-2.0
"""Jobs, parts, events, leases and elastic groups as the API shows them; times in seconds since 1970.

What ``internals`` are, and what is shown without them, is written in :mod:`nova_numa_ext.policy.jobs.terms`, and of
leases in :mod:`nova_numa_ext.policy.remote_gpu.lease_terms`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from nova_numa_ext.orchestrator.api.scaling_schema import SCALING
from nova_numa_ext.orchestrator.conf import ApiOptions
from nova_numa_ext.orchestrator.store.lease_hosts import NO_USE, LeaseUse
from nova_numa_ext.orchestrator.store.scaling import (
    ListedScaling,
    StackTemplate,
    StoredScaling,
    Template,
)
from nova_numa_ext.orchestrator.store.scaling_members import StoredMember
from nova_numa_ext.orchestrator.store.stored_job import Event, NewJob, StoredJob, StoredPart
from nova_numa_ext.orchestrator.store.stored_lease import LeaseTransfer, StoredLease
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.limits import Limits
from nova_numa_ext.policy.jobs.terms import for_tenants, sentence
from nova_numa_ext.policy.remote_gpu.lease_terms import OF_LEASES, lease_for_tenants, lease_sentence
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.reason import Reason

_ENGINE: Final = "engine"


def job(
    found: StoredJob,
    *,
    internals: bool,
    place: tuple[int, int] | None = None,
    leases: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a job; which trust it has is not shown.

    :param internals: its reader may know the cloud's, too
    :param place: in the queue, and of how many; None: it does not wait, or is held
    :param leases: that it has asked for
    """
    return {
        "id": found.uuid,
        "kind": found.kind,
        "leases": list(leases),
        **new_job(found),
        "state": found.state,
        "reasons": job_reasons(found.reasons, found, internals=internals),
        "place": None if place is None else dict(zip(("place", "of"), place, strict=True)),
        "cancelled": found.cancelled,
        "postponed": found.postponed,
        "submitted_at": found.submitted_at,
        "started_at": found.started_at,
        "ended_at": found.ended_at,
    }


def new_job(new: NewJob | StoredJob) -> dict[str, Any]:
    """Return what was asked for."""
    return {
        "name": new.name,
        "project_id": new.project,
        "user_id": new.user,
        "held": new.held,
        "priority": new.priority,
        "walltime_s": new.walltime_s,
        "deadline_at": new.deadline_at,
        "max_wait_s": new.max_wait_s,
        "preemptible": new.preemptible,
        "parts": [_part(each) for each in new.parts],
    }


def job_reasons(
    found: Sequence[Reason], of_job: StoredJob, *, internals: bool
) -> list[dict[str, Any]]:
    """Return reasons of a job, which may be those of its leases, as data."""

    def of_leases(reason: Reason) -> bool:
        return of_job.kind is JobKind.ATTACH and reason.where == OF_LEASES

    def operators(reason: Reason) -> str:
        return lease_sentence(reason) if of_leases(reason) else sentence(reason)

    def tenants(reason: Reason) -> tuple[Reason, str]:
        if of_leases(reason):
            return lease_for_tenants(reason, of_job.user)
        return for_tenants(reason)

    return reasons(found, internals=internals, operators=operators, tenants=tenants)


def event(found: Event, of_job: StoredJob, *, internals: bool) -> dict[str, Any]:
    """Return an event of a job; engines, whose names are those of controllers, are all one without internals."""
    by_engine = found.term is not None
    return {
        "id": found.number,
        "at": found.at,
        "actor": _ENGINE if by_engine and not internals else found.actor,
        "what": found.what,
        "state": found.state,
        "reasons": job_reasons(found.reasons, of_job, internals=internals),
    }


def lease(found: StoredLease, *, internals: bool, use: LeaseUse = NO_USE) -> dict[str, Any]:
    """Return a lease.

    :param internals: its reader may know hosts, such as that which lends the GPU, and users of other projects
    :param use: by the word of its host
    """
    return {
        "id": found.uuid,
        "project_id": found.project,
        "user_id": found.user,
        "job_id": found.job or None,
        "server_id": found.server or None,
        "memory_mb": found.asked.memory_mb,
        "service_level": found.asked.level,
        "api": found.asked.api,
        "network_mbps": found.asked.network_mbps,
        "pool": found.asked.pool if internals else None,
        "unmet": found.asked.unmet,
        "priority": found.asked.priority,
        "max_wait_s": found.asked.max_wait_s,
        "state": found.state,
        "held": found.claimed,
        "busy": use.busy,
        "used_mb": use.used_mb,
        "link_mbps": use.link_mbps,
        "move": _progress(found.move),
        "reasons": reasons(
            found.reasons,
            internals=internals,
            operators=lease_sentence,
            tenants=partial(lease_for_tenants, user=found.user),
        ),
        "host": (found.lease.gpu_host or None) if internals else None,
        "gpu": (found.gpu or None) if internals else None,
        "client_host": (found.lease.client_host or None) if internals else None,
        "created_at": found.created_at,
        "ended_at": found.ended_at,
    }


def _progress(move: LeaseTransfer | None) -> dict[str, Any] | None:
    """Return how far a lease has gone to another GPU, None where it goes nowhere."""
    if move is None:
        return None
    return {"carried": move.carried, "sent_mb": move.sent_mb, "of_mb": move.of_mb}


def host_leases(found: Sequence[StoredLease], host: str) -> dict[str, Any]:
    """Return what a host is to do for leases.

    :param found: those whose GPU or client it has
    """
    served, ends, attached = list[Any](), list[Any](), list[Any]()
    sends, receives = list[Any](), list[Any]()
    for each in found:
        lease, move = each.lease, each.move
        carried = move is not None and move.carried and each.state is LeaseState.MOVING
        if lease.epoch_at(host) is not None:
            served.append(_served(each))
        elif carried and move is not None and host == move.host:
            # Until it is served there; else what has come would be of no lease for a moment.
            if lease.fenced or not move.trouble:
                receives.append(_served(each) | {"source": lease.gpu_host})
        elif carried and move is not None and not lease.fenced:
            sends.append(_sent(each, move))
        elif (ending := lease.ends_at(host)) is not None and not lease.fenced:
            ends.append({"id": each.uuid, "epoch": ending})
        epoch = lease.may_connect(host)
        if epoch is not None:
            attached.append(
                {
                    "id": each.uuid,
                    "epoch": epoch,
                    "server_id": each.server,
                    "api": each.asked.api,
                    "address": each.address,
                    "gpu_host": lease.gpu_host,
                    "network_mbps": each.asked.network_mbps,
                }
            )
    return {
        "serves": served,
        "ends": ends,
        "attaches": attached,
        "sends": sends,
        "receives": receives,
    }


def _sent(found: StoredLease, move: LeaseTransfer) -> dict[str, Any]:
    return {
        "id": found.uuid,
        "epoch": found.lease.epoch,
        "to": move.host,
        "address": move.address,
        "network_mbps": found.asked.network_mbps,
        "cancelled": bool(move.trouble),
    }


def _served(found: StoredLease) -> dict[str, Any]:
    return {
        "id": found.uuid,
        "epoch": found.lease.epoch,
        "gpu": found.gpu,
        "memory_mb": found.asked.memory_mb,
        "service_level": found.asked.level,
        "api": found.asked.api,
        "network_mbps": found.asked.network_mbps,
        "client_host": found.lease.client_host,
    }


def listed_scaling(found: ListedScaling) -> dict[str, Any]:
    """Return an elastic group in a list."""
    return {
        "id": found.uuid,
        "project_id": found.project,
        "mode": "enforce" if found.enforced else "observe",
        "paused": found.paused,
        "trouble": found.trouble,
        "changed_at": found.changed_at,
    }


def scaling(
    found: StoredScaling, last: Mapping[str, Any] | None, members: Iterable[StoredMember]
) -> dict[str, Any]:
    """Return an elastic group.

    :param last: the newest line of its decision log
    :param members: that the service has added
    """
    queries = found.source.prometheus
    settings = {
        name: getattr(found.settings, name)
        for name in SCALING["properties"]["scaling"]["properties"]["settings"]["properties"]
        if name != "granularity"
    }
    return {
        "id": found.uuid,
        "project_id": found.project,
        "user_id": found.user,
        "mode": "observe" if found.template is None else "enforce",
        "paused": found.paused,
        "settings": {**settings, "granularity": list(found.settings.grid.sides)},
        "source": {"csv": found.source.csv} if queries is None else {"prometheus": asdict(queries)},
        "enforce": found.template and _enforce(found.template),
        "members": [
            {"server_id": each.server, "step": each.step, "since": each.since} for each in members
        ],
        "trouble": found.trouble,
        "last_decision": last,
        "created_at": found.created_at,
        "changed_at": found.changed_at,
    }


def _enforce(template: Template) -> dict[str, Any]:
    if isinstance(template, StackTemplate):
        return {"heat": {"stack": template.stack, "parameter": template.parameter}}
    return {**asdict(template), "networks": list(template.networks)}


def waiting_limits(options: ApiOptions, jobs: int, servers: int) -> list[dict[str, Any]]:
    """Return what the waiting jobs of a project use of its limits."""
    return [
        {"name": "waiting_jobs", "limit": options.waiting_jobs, "used": jobs},
        {"name": "waiting_servers", "limit": options.waiting_servers, "used": servers},
    ]


def queue_limits(found: Limits, jobs: int, servers: int) -> list[dict[str, Any]]:
    """Return what the jobs of a project that have places use of what it may have at a time."""
    return [
        {"name": "project_jobs", "limit": found.jobs, "used": jobs},
        {"name": "project_servers", "limit": found.servers, "used": servers},
    ]


def lease_limits(found: Limits, leases: int, gpu_memory_mb: int) -> list[dict[str, Any]]:
    """Return what the leases of a project use of its limits."""
    return [
        {"name": "project_leases", "limit": found.leases, "used": leases},
        {"name": "project_gpu_memory_mb", "limit": found.gpu_memory_mb, "used": gpu_memory_mb},
    ]


def reasons(
    found: Sequence[Reason],
    *,
    internals: bool,
    operators: Callable[[Reason], str] = sentence,
    tenants: Callable[[Reason], tuple[Reason, str]] = for_tenants,
) -> list[dict[str, Any]]:
    """Return reasons as data, each with its sentence.

    :param operators: makes the sentence for who may see internals
    :param tenants: makes what others may know of a reason, and the sentence for them
    """
    shown = [(each, operators(each)) if internals else tenants(each) for each in found]
    return [
        {
            "term": each.term,
            "value": each.value,
            "against": each.against,
            "where": each.where,
            "sentence": words,
        }
        for each, words in shown
    ]


def _part(found: StoredPart) -> dict[str, Any]:
    return {
        "name": found.name,
        "count": found.count,
        "flavor": found.flavor,
        "image": found.image,
        "networks": list(found.networks),
        "extra_specs": dict(found.extra_specs),
        "wait_for": [
            {"scope": each.scope, "wait_s": None if math.isinf(each.wait_s) else each.wait_s}
            for each in found.wait_for
        ],
        "apart": found.apart,
        "on_failure": found.on_failure,
        "servers": [
            {"member": member, "id": uuid} for member, uuid in sorted(found.servers.items()) if uuid
        ],
    }
