# SPDX-License-Identifier: Apache-2.0
"""Why a job waits, moves on or ends: the terms of its reasons, each with the sentence that explains it to people.

Tenants see less of them than operators, as in nova: no hosts, no jobs of other projects, and no words that Placement,
Keystone or the database has said to the service. Which terms tell such things is written here, and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy import terms as of_places
from nova_numa_ext.policy.network import terms as of_groups
from placement_traits import reason as reasons
from placement_traits.reason import Reason


class JobTerm(StrEnum):
    """Reasons of transitions and of waiting."""

    # Why it waits.
    SUBMITTED = "submitted"
    HELD = "held"
    RELEASED = "released"
    ADOPTED = "adopted"
    BACK_OFF = "back_off"
    PROJECT_QUOTA = "project_quota"
    PROJECT_JOBS = "project_jobs"
    PROJECT_SERVERS = "project_servers"
    PROJECT_LEASES = "project_leases"
    PROJECT_GPU_MEMORY = "project_gpu_memory_mb"
    BEHIND = "behind"
    RESERVED = "reserved"
    NO_ROOM = "no_room"
    HOSTS_EXCLUDED = "hosts_excluded"
    NARROWER = "narrower"
    NO_FABRIC = "no_fabric"
    QUIET_LEAFS = "quiet_leafs"
    POSTPONED = "postponed"
    PREEMPTS = "preempts"
    UNREADABLE = "unreadable"
    OTHER_FORM = "other_form"
    # Why it goes back to the queue.
    NO_VALID_HOST = "no_valid_host"
    QUOTA = "quota"
    CLAIM_CONFLICT = "claim_conflict"
    CLAIM_REFUSED = "claim_refused"
    PREEMPTED = "preempted"
    # Why it moves on.
    PLACED = "placed"
    CLAIMED = "claimed"
    BUILDING = "building"
    BUILT = "built"
    PARTLY_BUILT = "partly_built"
    # Why it ends.
    TOO_LARGE = "too_large"
    MAX_WAIT = "max_wait"
    DEADLINE = "deadline"
    DEADLINE_REACHED = "deadline_reached"
    WALLTIME = "walltime"
    CANCELLED = "cancelled"
    SERVERS_GONE = "servers_gone"
    SERVER_FAILED = "server_failed"
    NOT_BUILT = "not_built"
    TRUST = "trust"
    REFUSED = "refused"
    STILL_THERE = "still_there"
    ENDED_SINCE = "ended_since"


SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **of_places.SENTENCES,
        **of_groups.SENTENCES,
        JobTerm.SUBMITTED: "submitted by {value}",
        JobTerm.HELD: "held by {value} until it is released",
        JobTerm.RELEASED: "released by {value}",
        JobTerm.ADOPTED: "an old database was restored; servers of it that were there: {value}",
        JobTerm.BACK_OFF: "tried again in {value} s",
        JobTerm.PROJECT_QUOTA: (
            "a quota of the project is used up, one of its jobs is tried again in {value} s"
        ),
        JobTerm.PROJECT_JOBS: "jobs of the project at a time: {value}, limit: {against}",
        JobTerm.PROJECT_SERVERS: "servers of the project's jobs at a time: {value}, limit: {against}",
        JobTerm.PROJECT_LEASES: "leases of the project at a time: {value}, limit: {against}",
        JobTerm.PROJECT_GPU_MEMORY: (
            "GPU memory of the project's leases: {value} MiB, limit: {against} MiB"
        ),
        JobTerm.BEHIND: "behind job {value}, which finds no place",
        JobTerm.RESERVED: "places are kept free for job {value}, which starts {against}",
        JobTerm.NO_ROOM: "part {where}: servers that find a place: {value}, requested: {against}",
        JobTerm.HOSTS_EXCLUDED: "hosts left out, because nova refused them: {value}",
        JobTerm.NARROWER: "part {where} waits for a place within one {value}, {against} s more",
        JobTerm.NO_FABRIC: "part {where} is a group on the fabric, and the cloud has described none",
        JobTerm.QUIET_LEAFS: "part {where}: hosts on leafs that a group has alone, left out: {value}",
        JobTerm.POSTPONED: (
            "part {where}: a better place is waited for, postponed {value} times of {against}"
        ),
        JobTerm.PREEMPTS: "starts when other jobs have ended: {value}",
        JobTerm.UNREADABLE: "what is stored of it cannot be read, cancel it and submit it again: {value}",
        JobTerm.OTHER_FORM: "stored in a form that this release cannot read, and left as it is: {value}",
        JobTerm.NO_VALID_HOST: "nova found no valid host for part {where}: {value}",
        JobTerm.QUOTA: "a quota of the project is used up: {value}",
        JobTerm.CLAIM_CONFLICT: "Placement gave what was planned to another consumer: {value}",
        JobTerm.CLAIM_REFUSED: "Placement refused what was planned: {value}",
        JobTerm.PREEMPTED: "stopped in favour of the latency-critical job {value}",
        JobTerm.PLACED: "planned on hosts: {value}",
        JobTerm.CLAIMED: "Placement holds what the plan needs",
        JobTerm.BUILDING: "servers asked of nova: {value}",
        JobTerm.BUILT: "all servers are active: {value}",
        JobTerm.PARTLY_BUILT: "servers of part {where} that are active: {value} of {against}; kept",
        JobTerm.TOO_LARGE: (
            "part {where}: servers that would find a place if all hosts were empty: {value}, "
            "requested: {against}"
        ),
        JobTerm.MAX_WAIT: "waited {value} s, max_wait is {against} s",
        JobTerm.DEADLINE: "would end {value} s after its deadline",
        JobTerm.DEADLINE_REACHED: "ran until its deadline",
        JobTerm.WALLTIME: "ran for its walltime of {value} s",
        JobTerm.CANCELLED: "cancelled by {value}",
        JobTerm.SERVERS_GONE: "all of its servers were deleted",
        JobTerm.SERVER_FAILED: "server {value} of part {where} failed to build: {against}",
        JobTerm.NOT_BUILT: "servers of part {where} that nova did not make within {against} s: {value}",
        JobTerm.TRUST: "cannot act for its user any more: {value}",
        JobTerm.REFUSED: "{against} refused it: {value}",
        JobTerm.ENDED_SINCE: (
            "an old database was restored, and the job's trust is gone: the job has ended since, or its trust has"
        ),
        JobTerm.STILL_THERE: "ends since {value} s, and this is left: {against}",
    }
)

OPEN: Final = frozenset(
    {
        of_places.Term.GPU_BELOW_MINIMUM,
        *of_groups.GroupTerm,
        JobTerm.SUBMITTED,
        JobTerm.HELD,
        JobTerm.RELEASED,
        JobTerm.ADOPTED,
        JobTerm.BACK_OFF,
        JobTerm.PROJECT_QUOTA,
        JobTerm.PROJECT_JOBS,
        JobTerm.PROJECT_SERVERS,
        JobTerm.PROJECT_LEASES,
        JobTerm.PROJECT_GPU_MEMORY,
        JobTerm.NO_ROOM,
        JobTerm.NARROWER,
        JobTerm.NO_FABRIC,
        JobTerm.POSTPONED,
        JobTerm.NO_VALID_HOST,
        JobTerm.QUOTA,
        JobTerm.CLAIMED,
        JobTerm.BUILDING,
        JobTerm.BUILT,
        JobTerm.PARTLY_BUILT,
        JobTerm.TOO_LARGE,
        JobTerm.MAX_WAIT,
        JobTerm.DEADLINE,
        JobTerm.DEADLINE_REACHED,
        JobTerm.WALLTIME,
        JobTerm.CANCELLED,
        JobTerm.SERVERS_GONE,
        JobTerm.SERVER_FAILED,
        JobTerm.NOT_BUILT,
        JobTerm.REFUSED,
        JobTerm.STILL_THERE,
        JobTerm.ENDED_SINCE,
    }
)
"""Terms that tell tenants what is theirs: their job, their project's limits, nova's words to their own user."""

TENANTS_SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        JobTerm.QUIET_LEAFS: "hosts on leafs that a group has alone are left out",
        JobTerm.BEHIND: "behind another job, which finds no place",
        JobTerm.RESERVED: "places are kept free for another job",
        JobTerm.HOSTS_EXCLUDED: "hosts left out, because nova refused them: {against}",
        JobTerm.PREEMPTS: "starts when other jobs have ended: {against}",
        JobTerm.UNREADABLE: "what is stored of it cannot be read, cancel it and submit it again",
        JobTerm.OTHER_FORM: "stored in a form that this release cannot read: its operator has to look at it",
        JobTerm.CLAIM_CONFLICT: "Placement gave what was planned to another consumer",
        JobTerm.CLAIM_REFUSED: "Placement refused what was planned",
        JobTerm.PREEMPTED: "stopped in favour of a latency-critical job",
        JobTerm.PLACED: "planned on hosts: {against}",
        JobTerm.TRUST: (
            "cannot act for its user any more: the user is disabled or has lost a role, or the trust was deleted"
        ),
    }
)
"""All other terms, with what tenants read instead; ``{against}`` is a number where it is named."""


def sentence(reason: Reason) -> str:
    """Return what a reason means, for people; terms without a sentence show their figures."""
    return reasons.sentence(reason, SENTENCES)


def for_tenants(reason: Reason) -> tuple[Reason, str]:
    """Return what tenants may know of a reason, with its sentence; of a term that is not known here, its name."""
    if reason.term in OPEN:
        return reason, sentence(reason)
    words = TENANTS_SENTENCES.get(reason.term)
    if words is None:
        return Reason(reason.term, ""), str(reason.term)
    kept = replace(reason, value="", against=reason.against if "{against}" in words else "")
    return kept, reasons.sentence(kept, TENANTS_SENTENCES)
