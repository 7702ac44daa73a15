# SPDX-License-Identifier: Apache-2.0
"""What is asked of nova for the servers of a job's part."""

from nova_numa_ext.orchestrator import queued
from nova_numa_ext.orchestrator.cloud.servers import ServerRequest, server_name
from nova_numa_ext.orchestrator.store.stored_job import StoredJob, StoredPart
from nova_numa_ext.policy.jobs.job import Scope
from nova_numa_ext.policy.jobs.part_specs import group_hints


def group_policy(job: StoredJob, part: StoredPart) -> str:
    """Return which rule nova keeps for the servers of a part, '' for none."""
    if part.apart or queued.is_group(part):
        return "anti-affinity"
    places = [place for place in job.plan.places if place.part == part.name] if job.plan else []
    if part.wait_for[0].scope is Scope.HOST and part.count > 1 and len(places) == 1:
        return "affinity"
    return ""


def is_made_together(part: StoredPart) -> bool:
    """Return whether one request makes all servers of a part, and nova numbers them from 1."""
    return part.count > 1 and queued.is_group(part)


def request(job: StoredJob, part: StoredPart, member: int, group: str, hint: str) -> ServerRequest:
    """Return what is asked of nova for a member.

    :param group: uuid of its server group, '' for none
    :param hint: what nova-scheduler has to know of it, '' for nothing
    """
    return ServerRequest(
        job=job.uuid,
        part=part.name,
        member=member,
        name=server_name(job.name, part.name, member + is_made_together(part)),
        flavor=part.flavor,
        image=part.image,
        networks=part.networks,
        group=group,
        job_hint=hint,
        group_hints=group_hints(part.extra_specs) if queued.is_group(part) else {},
    )
