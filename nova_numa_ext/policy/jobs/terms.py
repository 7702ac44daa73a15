# SPDX-License-Identifier: Apache-2.0
"""Why a job waits, moves on or ends: the terms of its reasons, each with the sentence that explains it to people."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy import terms as of_places
from placement_traits import reason as reasons
from placement_traits.reason import Reason


class JobTerm(StrEnum):
    """Reasons of transitions and of waiting."""

    # Why it waits.
    SUBMITTED = "submitted"
    HELD = "held"
    RELEASED = "released"
    BACK_OFF = "back_off"
    PROJECT_JOBS = "project_jobs"
    PROJECT_SERVERS = "project_servers"
    PROJECT_LEASES = "project_leases"
    PROJECT_GPU_MEMORY = "project_gpu_memory_mb"
    BEHIND = "behind"
    RESERVED = "reserved"
    NO_ROOM = "no_room"
    HOSTS_EXCLUDED = "hosts_excluded"
    NARROWER = "narrower"
    POSTPONED = "postponed"
    PREEMPTS = "preempts"
    # Why it goes back to the queue.
    NO_VALID_HOST = "no_valid_host"
    QUOTA = "quota"
    CLAIM_CONFLICT = "claim_conflict"
    PREEMPTED = "preempted"
    LEADER_CHANGED = "leader_changed"
    CLOUD_UNAVAILABLE = "cloud_unavailable"
    # Why it moves on.
    PLACED = "placed"
    CLAIMED = "claimed"
    BUILDING = "building"
    BUILT = "built"
    PARTLY_BUILT = "partly_built"
    REPLACED = "replaced"
    ADOPTED = "adopted"
    # Why it ends.
    TOO_LARGE = "too_large"
    NO_FLAVOR = "no_flavor"
    NO_IMAGE = "no_image"
    MAX_WAIT = "max_wait"
    DEADLINE = "deadline"
    WALLTIME = "walltime"
    CANCELLED = "cancelled"
    SERVERS_GONE = "servers_gone"
    SERVER_FAILED = "server_failed"
    TRUST = "trust"
    REFUSED = "refused"
    SERVERS_DELETED = "servers_deleted"


SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **of_places.SENTENCES,
        JobTerm.SUBMITTED: "submitted by {value}",
        JobTerm.HELD: "held by {value} until it is released",
        JobTerm.RELEASED: "released by {value}",
        JobTerm.BACK_OFF: "tried again in {value} s",
        JobTerm.PROJECT_JOBS: "jobs of the project at a time: {value}, limit: {against}",
        JobTerm.PROJECT_SERVERS: "servers of the project's jobs at a time: {value}, limit: {against}",
        JobTerm.PROJECT_LEASES: "leases of the project at a time: {value}, limit: {against}",
        JobTerm.PROJECT_GPU_MEMORY: (
            "GPU memory of the project's leases: {value} MiB, limit: {against} MiB"
        ),
        JobTerm.BEHIND: "behind job {value}, which finds no place",
        JobTerm.RESERVED: "places are kept free for job {value}, which starts {against}",
        JobTerm.NO_ROOM: "part {where}: servers that find a place: {value}, requested: {against}",
        JobTerm.HOSTS_EXCLUDED: "hosts left out of one round, because nova refused them: {value}",
        JobTerm.NARROWER: "part {where} waits for a place within one {value}, {against} s more",
        JobTerm.POSTPONED: (
            "part {where}: a better place is waited for, postponed {value} times of {against}"
        ),
        JobTerm.PREEMPTS: "starts when best-effort jobs have stopped: {value}",
        JobTerm.NO_VALID_HOST: "nova found no valid host for part {where}: {value}",
        JobTerm.QUOTA: "a quota of the project is used up: {value}",
        JobTerm.CLAIM_CONFLICT: "Placement gave what was planned to another consumer: {value}",
        JobTerm.PREEMPTED: "stopped in favour of the latency-critical job {value}",
        JobTerm.LEADER_CHANGED: "the engine that worked on it stopped: {value}",
        JobTerm.CLOUD_UNAVAILABLE: "{value} does not answer",
        JobTerm.PLACED: "planned on hosts: {value}",
        JobTerm.CLAIMED: "Placement holds what the plan needs",
        JobTerm.BUILDING: "servers asked of nova: {value}",
        JobTerm.BUILT: "all servers are active: {value}",
        JobTerm.PARTLY_BUILT: "servers of part {where} that are active: {value} of {against}; kept",
        JobTerm.REPLACED: "a server of part {where} that failed is made again: {value}",
        JobTerm.ADOPTED: "found running after the database was restored: {value}",
        JobTerm.TOO_LARGE: (
            "part {where}: servers that would find a place if all hosts were empty: {value}, "
            "requested: {against}"
        ),
        JobTerm.NO_FLAVOR: "part {where}: its flavor {value} does not exist, or the project may not use it",
        JobTerm.NO_IMAGE: "part {where}: its image {value} does not exist, or the project may not use it",
        JobTerm.MAX_WAIT: "waited {value} s, max_wait is {against} s",
        JobTerm.DEADLINE: "would end {value} s after its deadline",
        JobTerm.WALLTIME: "ran for its walltime of {value} s",
        JobTerm.CANCELLED: "cancelled by {value}",
        JobTerm.SERVERS_GONE: "all of its servers were deleted",
        JobTerm.SERVER_FAILED: "server {value} of part {where} failed to build: {against}",
        JobTerm.TRUST: "cannot act for its user any more: {value}",
        JobTerm.REFUSED: "{against} refused it: {value}",
        JobTerm.SERVERS_DELETED: "servers deleted: {value}",
    }
)


def sentence(reason: Reason) -> str:
    """Return what a reason means, for people; terms without a sentence show their figures."""
    return reasons.sentence(reason, SENTENCES)
