# SPDX-License-Identifier: Apache-2.0
"""Jobs, parts and events as the API shows them; times in seconds since 1970."""

import math
from collections.abc import Sequence
from typing import Any

from nova_numa_ext.orchestrator.store.jobs import Event, NewJob, StoredJob, StoredPart
from nova_numa_ext.policy.jobs.terms import sentence
from placement_traits.reason import Reason


def job(found: StoredJob) -> dict[str, Any]:
    """Return a job; which trust it has is not shown."""
    return {
        "id": found.uuid,
        "name": found.name,
        "project_id": found.project,
        "user_id": found.user,
        "state": found.state,
        "reasons": reasons(found.reasons),
        "held": found.held,
        "cancelled": found.cancelled,
        "priority": found.priority,
        "walltime_s": found.walltime_s,
        "deadline_at": found.deadline_at,
        "max_wait_s": found.max_wait_s,
        "preemptible": found.preemptible,
        "postponed": found.postponed,
        "submitted_at": found.submitted_at,
        "started_at": found.started_at,
        "ended_at": found.ended_at,
        "parts": [_part(each) for each in found.parts],
    }


def new_job(new: NewJob) -> dict[str, Any]:
    """Return what would be stored."""
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


def event(found: Event) -> dict[str, Any]:
    """Return an event."""
    return {
        "id": found.number,
        "at": found.at,
        "actor": found.actor,
        "what": found.what,
        "state": found.state,
        "reasons": reasons(found.reasons),
    }


def reasons(found: Sequence[Reason]) -> list[dict[str, Any]]:
    """Return reasons as data, each with its sentence."""
    return [
        {
            "term": each.term,
            "value": each.value,
            "against": each.against,
            "where": each.where,
            "sentence": sentence(each),
        }
        for each in found
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
