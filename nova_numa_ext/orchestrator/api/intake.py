# SPDX-License-Identifier: Apache-2.0
"""From a request's body to a job that can be stored: what its user asks of the cloud, with the user's own token."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nova_numa_ext.orchestrator.store.jobs import NewJob, Sizes, StoredPart
from nova_numa_ext.policy.jobs.job import ANYWHERE, BuildFailure, Part, Scope, ScopeWait
from placement_traits.errors import InvalidValueError, NumaExtError
from placement_traits.request import parse


class OverQuotaError(NumaExtError):
    """The job needs more than a quota of the project would ever give it."""


@dataclass(frozen=True, slots=True)
class UserFlavor:
    """A flavor as the user sees it."""

    uuid: str
    sizes: Sizes
    extra_specs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProjectQuota:
    """Limits of the project in nova, whatever is used of them now; None is no limit.

    :param members: servers of a server group
    """

    instances: int | None = None
    cores: int | None = None
    memory_mb: int | None = None
    groups: int | None = None
    members: int | None = None


class UserCloud(Protocol):
    """What is asked with the user's token.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when a service does not answer.
    """

    def flavor(self, reference: str) -> UserFlavor | None:
        """Return a flavor by name or id, None when the user may not use one of that name."""

    def quota(self) -> ProjectQuota:
        """Return the project's limits."""

    def trust(self) -> str:
        """Have Keystone let the service act for the user; return the trust's id.

        :raises NumaExtError: the token is one that cannot make trusts: says which ones can
        """


def job_of(asked: Mapping[str, Any], project: str, user: str, cloud: UserCloud) -> NewJob:
    """Return what a checked body asks for; the trust is not made yet.

    :raises InvalidValueError: a flavor that is not there, numbers or parts that contradict each other
    :raises InvalidRequestError: extra specs that have no meaning
    :raises OverQuotaError: see there
    """
    parts = tuple(_part(number, each, cloud) for number, each in enumerate(asked["parts"]))
    names = [part.name for part in parts]
    if len({*names}) < len(names):
        raise InvalidValueError("$.job.parts", names, "parts with names of their own")
    _check_quota(parts, cloud.quota())
    return NewJob(
        project,
        user,
        trust="",
        name=asked["name"],
        parts=parts,
        priority=asked.get("priority", 0),
        walltime_s=asked.get("walltime_s"),
        deadline_at=asked.get("deadline_at"),
        max_wait_s=asked.get("max_wait_s"),
        held=asked.get("held", False),
        preemptible=asked.get("preemptible", False),
    )


def trusted(job: NewJob, cloud: UserCloud) -> NewJob:
    """Return a job by which the service can act for its user."""
    return replace(job, trust=cloud.trust())


def _part(number: int, asked: Mapping[str, Any], cloud: UserCloud) -> StoredPart:
    flavor = cloud.flavor(asked["flavor"])
    if flavor is None:
        raise InvalidValueError(
            f"$.job.parts[{number}].flavor",
            asked["flavor"],
            "name or id of a flavor that the project may use",
        )
    part = StoredPart(
        name=asked["name"],
        count=asked.get("count", 1),
        flavor=flavor.uuid,
        sizes=flavor.sizes,
        extra_specs={**flavor.extra_specs, **asked.get("extra_specs", {})},
        image=asked.get("image", ""),
        networks=tuple(asked.get("networks", ())),
        wait_for=_wait_for(asked),
        apart=asked.get("apart", False),
        on_failure=BuildFailure(asked.get("on_failure", BuildFailure.FAIL)),
    )
    planned(part)
    return part


def planned(part: StoredPart) -> Part:
    """Return a stored part as planners see it.

    :raises InvalidRequestError: its extra specs have no meaning
    :raises InvalidValueError: its scopes contradict each other
    """
    request = parse(part.extra_specs, vcpus=part.sizes.vcpus, memory_mb=part.sizes.memory_mb)
    return Part(
        part.name,
        part.count,
        part.flavor,
        request,
        part.image,
        part.networks,
        part.sizes.disk_gb,
        part.wait_for,
        part.apart,
        part.on_failure,
    )


def _wait_for(asked: Mapping[str, Any]) -> tuple[ScopeWait, ...]:
    given = asked.get("wait_for")
    if given is None:
        return ANYWHERE
    return tuple(ScopeWait(Scope(each["scope"]), each.get("wait_s", math.inf)) for each in given)


def _check_quota(parts: Sequence[StoredPart], quota: ProjectQuota) -> None:
    grouped = [part for part in parts if part.apart or part.wait_for[0].scope is Scope.HOST]
    for what, needed, limit in (
        ("instances", sum(part.count for part in parts), quota.instances),
        ("cores", sum(part.count * part.sizes.vcpus for part in parts), quota.cores),
        (
            "MiB of memory",
            sum(part.count * part.sizes.memory_mb for part in parts),
            quota.memory_mb,
        ),
        ("server groups", len(grouped), quota.groups),
        (
            "members of a server group",
            max((part.count for part in grouped), default=0),
            quota.members,
        ),
    ):
        if limit is not None and needed > limit:
            raise OverQuotaError(
                f"The job needs {needed} {what}, and the project's quota in nova is {limit}: it would wait for ever."
            )
