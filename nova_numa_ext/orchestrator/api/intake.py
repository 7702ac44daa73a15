# SPDX-License-Identifier: Apache-2.0
"""From a request's body to a job that can be stored: what its user asks of the cloud, with the user's own token."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from nova_numa_ext.orchestrator import queued
from nova_numa_ext.orchestrator.cloud.servers import LONGEST_NAME, NO_NETWORK, server_name
from nova_numa_ext.orchestrator.cloud.user import ProjectQuota, UserCloud, UserFlavor
from nova_numa_ext.orchestrator.store.scaling import MemberTemplate, StackTemplate, Template
from nova_numa_ext.orchestrator.store.stored_job import NewJob, Sizes, StoredPart
from nova_numa_ext.policy.jobs.job import ANYWHERE, BuildFailure, Scope, ScopeWait
from nova_numa_ext.policy.jobs.part_specs import of_part
from placement_traits.errors import InvalidValueError, NumaExtError
from placement_traits.request import InvalidRequestError

_TO_END_S: Final = 86_400.0

T = TypeVar("T")


class OverQuotaError(NumaExtError):
    """The job needs more than a quota of the project would ever give it."""


def job_of(
    asked: Mapping[str, Any], project: str, user: str, cloud: UserCloud, now: float
) -> NewJob:
    """Return what a checked body asks for; the trust is not made yet.

    :param now: seconds since 1970
    :raises InvalidValueError: what is not there or has several meanings, numbers or parts that contradict each other
    :raises InvalidRequestError: extra specs that have no meaning
    :raises OverQuotaError: see there
    """
    _check_names(asked)
    _check_deadline(asked, now)
    parts = tuple(
        _part(f"$.job.parts[{number}]", each, cloud) for number, each in enumerate(asked["parts"])
    )
    _check_quota(parts, cloud.quota())
    return NewJob(
        project,
        user,
        trust="",
        name=asked["name"],
        parts=parts,
        priority=int(asked.get("priority", 0)),
        walltime_s=asked.get("walltime_s"),
        deadline_at=asked.get("deadline_at"),
        max_wait_s=asked.get("max_wait_s"),
        held=asked.get("held", False),
        preemptible=asked.get("preemptible", False),
    )


def template_of(asked: Mapping[str, Any], cloud: UserCloud) -> Template:
    """Return of what the members of an elastic group are made, or which stack has them, by what a body asks for.

    :param asked: a checked ``enforce``
    :raises InvalidValueError: what is not there or has several meanings
    """
    where = "$.scaling.enforce"
    if "heat" in asked:
        return _stack(f"{where}.heat", asked["heat"], cloud)
    flavor = _flavor(f"{where}.flavor", asked["flavor"], cloud)
    return MemberTemplate(
        name=asked.get("name", "member"),
        flavor=flavor.uuid,
        image=_image(f"{where}.image", asked["image"], flavor, cloud),
        networks=_networks(f"{where}.networks", asked.get("networks", ()), cloud),
        hook=asked.get("hook", ""),
    )


def trust_until(job: NewJob, now: float, longest_s: float) -> float:
    """Return how long the service has to act for a job's user at most, seconds since 1970.

    A job that has to stop by its deadline, or can neither wait nor run for ever, needs its trust no longer, and a day
    for its servers to go. Time in the queue of one that may be stopped and queued again has no such bound.

    :param longest_s: for jobs without a bound
    """
    ends = [now + longest_s]
    if job.walltime_s is not None and job.deadline_at is not None:
        ends.append(job.deadline_at + _TO_END_S)
    if job.walltime_s is not None and job.max_wait_s is not None and not job.preemptible:
        ends.append(now + job.max_wait_s + job.walltime_s + _TO_END_S)
    return min(ends)


def fingerprint(asked: Mapping[str, Any]) -> str:
    """Return what tells a request to submit a job from any other, whatever the order of its members."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _check_names(asked: Mapping[str, Any]) -> None:
    names = [part["name"] for part in asked["parts"]]
    if len({*names}) < len(names):
        raise InvalidValueError("$.job.parts", names, "parts with names of their own")
    if not asked["name"].isprintable():
        raise InvalidValueError("$.job.name", asked["name"], "characters that can be printed")
    for part in asked["parts"]:
        added = server_name("", part["name"], int(part.get("count", 1)))
        if len(asked["name"]) + len(added) > LONGEST_NAME:
            raise InvalidValueError(
                "$.job.name",
                asked["name"],
                f"{LONGEST_NAME - len(added)} characters: names of servers add {added}, and nova takes {LONGEST_NAME}",
            )


def _check_deadline(asked: Mapping[str, Any], now: float) -> None:
    earliest = now + asked.get("walltime_s", 0.0)
    if asked.get("deadline_at", earliest) < earliest:
        raise InvalidValueError(
            "$.job.deadline_at",
            asked["deadline_at"],
            f"{earliest:.0f} or later: now, with walltime_s",
        )


def _part(where: str, asked: Mapping[str, Any], cloud: UserCloud) -> StoredPart:
    flavor = _flavor(f"{where}.flavor", asked["flavor"], cloud)
    try:
        part = StoredPart(
            name=asked["name"],
            count=int(asked.get("count", 1)),
            flavor=flavor.uuid,
            sizes=Sizes(flavor.vcpus, flavor.memory_mb, flavor.disk_gb),
            extra_specs=of_part(flavor.extra_specs, asked.get("extra_specs", {})),
            image=_image(f"{where}.image", asked["image"], flavor, cloud),
            networks=_networks(f"{where}.networks", asked.get("networks", ()), cloud),
            wait_for=_wait_for(asked),
            apart=asked.get("apart", False),
            on_failure=BuildFailure(asked.get("on_failure", BuildFailure.FAIL)),
        )
        queued.part(part)
    except InvalidRequestError as error:
        problems = tuple(f"{where}.extra_specs: {each}" for each in error.problems)
        raise InvalidRequestError(problems) from error
    return part


def _stack(where: str, asked: Mapping[str, Any], cloud: UserCloud) -> StackTemplate:
    reference, parameter = asked["stack"], asked["parameter"]
    found = cloud.stack(reference)
    if found is None:
        raise InvalidValueError(f"{where}.stack", reference, "name or id of a stack of the project")
    if found.size(parameter) is None:
        has = ", ".join(sorted(name for name in found.parameters if found.size(name) is not None))
        allowed = f"a parameter of stack {found.name} that is a number of servers; such are: {has or 'none'}"
        raise InvalidValueError(f"{where}.parameter", parameter, allowed)
    return StackTemplate(found.uuid, found.name, parameter)


def _flavor(where: str, reference: str, cloud: UserCloud) -> UserFlavor:
    found = cloud.flavor(reference)
    if found is None:
        raise InvalidValueError(where, reference, "name or id of a flavor that the project may use")
    return found


def _image(where: str, reference: str, flavor: UserFlavor, cloud: UserCloud) -> str:
    found = _only(where, reference, cloud.images(reference), "image")
    if found.status != "active":
        raise InvalidValueError(where, reference, f"an active image; it is {found.status}")
    for what, has, needed in (
        ("GiB of root disk", flavor.root_gb or math.inf, found.least_disk_gb),
        ("MiB of memory", flavor.memory_mb, found.least_memory_mb),
    ):
        if needed > has:
            raise InvalidValueError(
                where, reference, f"an image that runs with {has} {what}; it needs {needed}"
            )
    return found.uuid


def _networks(where: str, asked: Sequence[str], cloud: UserCloud) -> tuple[str, ...]:
    if tuple(asked) == NO_NETWORK:
        return NO_NETWORK
    available = () if asked else cloud.available_networks()
    if len(available) > 1:
        names = ", ".join(sorted(each.name for each in available))
        raise InvalidValueError(where, [], f"at least one of those that the project has: {names}")
    return tuple(
        _only(f"{where}[{number}]", each, cloud.networks(each), "network").uuid
        for number, each in enumerate(asked)
    )


def _only(where: str, reference: str, found: Sequence[T], what: str) -> T:
    """Return what a reference names: one thing."""
    if len(found) == 1:
        return found[0]
    allowed = f"name or id of one {what} that the project may use"
    if found:
        allowed = f"the id of one {what}: {len(found)} have this name"
    raise InvalidValueError(where, reference, allowed)


def _wait_for(asked: Mapping[str, Any]) -> tuple[ScopeWait, ...]:
    given = asked.get("wait_for")
    if given is None:
        return ANYWHERE
    return tuple(ScopeWait(Scope(each["scope"]), each.get("wait_s", math.inf)) for each in given)


def _check_quota(parts: Sequence[StoredPart], quota: ProjectQuota) -> None:
    grouped = [
        part
        for part in parts
        if part.apart
        or queued.is_group(part)
        or (part.wait_for[0].scope is Scope.HOST and part.count > 1)
    ]
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
