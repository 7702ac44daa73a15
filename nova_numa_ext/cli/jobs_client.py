# SPDX-License-Identifier: Apache-2.0
"""The job service's API, as ``openstack numa job …`` asks it."""

import uuid as uuids
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from keystoneauth1 import exceptions as keystone_errors

from placement_traits.client import HttpAdapter
from placement_traits.errors import (
    CapabilityMissingError,
    InvalidValueError,
    NumaExtError,
    ServiceUnavailableError,
    cut,
)

SERVICE_TYPE: Final = "numa-ext"
_VERSION: Final = "1.0"
_PAGE: Final = 1000
_AGAIN: Final = {
    "connect_retries": 2,
    "status_code_retries": 2,
    "retriable_status_codes": [502, 503, 504],
}
_MOST_SHOWN: Final = 5

Job = Mapping[str, Any]
"""A job as the API shows it."""

Lease = Mapping[str, Any]
"""A lease as the API shows it."""

Scaling = Mapping[str, Any]
"""An elastic group as the API shows it."""

Topology = Mapping[str, Any]
"""Where servers of a group hang, as the API shows it."""


class JobRefusedError(NumaExtError):
    """The job service refuses what was asked, in its own words."""


class JobsClient:
    """Jobs, as the user of the command line may see them.

    All methods raise :class:`JobRefusedError`, and :class:`placement_traits.errors.ServiceUnavailableError` when the
    service does not answer.

    :param adapter: of the service's endpoint
    """

    def __init__(self, adapter: HttpAdapter) -> None:
        self._adapter = adapter

    def create(self, job: Job, *, dry_run: bool = False) -> Job:
        """Submit a job; return it as it is stored, or would be.

        A request whose answer gets lost is sent again and stores no second job.
        """
        key = {"Idempotency-Key": str(uuids.uuid4())}
        path = f"/v1/jobs{'?dry_run=true' if dry_run else ''}"
        return self._job("POST", path, json={"job": job}, headers=key)

    def jobs(
        self,
        states: Sequence[str] = (),
        *,
        kind: str | None = None,
        all_projects: bool = False,
        marker: str | None = None,
        most: int | None = None,
    ) -> Iterator[Job]:
        """Yield jobs, oldest first.

        :param states: only these; (): all
        :param kind: only this one; None: all
        :param marker: uuid of a job: only later ones
        :param most: so many; None: all
        """
        query = [("state", state) for state in states]
        if kind is not None:
            query.append(("kind", kind))
        if all_projects:
            query.append(("all_projects", "true"))
        left = most
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = [("limit", str(size)), *([("marker", marker)] if marker else [])]
            found = self._asked("GET", "/v1/jobs", params=[*query, *page])["jobs"]
            yield from found
            if len(found) < size:
                return
            marker = found[-1]["id"]
            left = None if left is None else left - len(found)

    def find(self, reference: str, *, all_projects: bool = False) -> Job:
        """Return a job by id or name.

        :raises InvalidValueError: no job has this name, or several have
        """
        if _is_uuid(reference):
            return self._job("GET", f"/v1/jobs/{reference}")
        found = [job for job in self.jobs(all_projects=all_projects) if job["name"] == reference]
        if len(found) == 1:
            return found[0]
        if not found:
            raise InvalidValueError("<job>", reference, "id or name of a job that you may see")
        ids = [f"{job['id']} ({job['state']})" for job in reversed(found)]
        more = f" and {len(ids) - _MOST_SHOWN} more" if len(ids) > _MOST_SHOWN else ""
        raise InvalidValueError("<job>", reference, f"one of {', '.join(ids[:_MOST_SHOWN])}{more}")

    def change(self, job: Job, action: str) -> Job:
        """Return a job after ``cancel``, ``hold`` or ``release``."""
        return self._job("POST", f"/v1/jobs/{job['id']}/{action}")

    def events(self, job: Job, after: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yield what happened to a job, oldest first.

        :param after: only events with a larger id
        """
        path = f"/v1/jobs/{job['id']}/events"
        while True:
            page = [("limit", str(_PAGE)), ("marker", str(after))]
            found = self._asked("GET", path, params=page)["events"]
            yield from found
            if len(found) < _PAGE:
                return
            after = found[-1]["id"]

    def limits(self) -> Sequence[Mapping[str, Any]]:
        """Return the limits of the project, and what its jobs use of them."""
        found: Sequence[Mapping[str, Any]] = self._asked("GET", "/v1/limits")["limits"]
        return found

    def create_lease(self, lease: Lease) -> Lease:
        """Ask for a lease; return it as it is stored."""
        found: Lease = self._asked("POST", "/v1/leases", json={"lease": lease})["lease"]
        return found

    def leases(self, states: Sequence[str] = (), *, all_projects: bool = False) -> Iterator[Lease]:
        """Yield leases, oldest first.

        :param states: only these; (): all
        """
        query = [("limit", str(_PAGE)), *(("state", state) for state in states)]
        query += [("all_projects", "true")] if all_projects else []
        marker: list[tuple[str, str]] = []
        while True:
            found = self._asked("GET", "/v1/leases", params=[*query, *marker])["leases"]
            yield from found
            if len(found) < _PAGE:
                return
            marker = [("marker", found[-1]["id"])]

    def lease(self, uuid: str) -> Lease:
        """Return a lease."""
        found: Lease = self._asked("GET", f"/v1/leases/{quote(uuid, safe='')}")["lease"]
        return found

    def attach_lease(self, uuid: str, server: str) -> Lease:
        """Say which server a lease is for; return the lease."""
        path = f"/v1/leases/{quote(uuid, safe='')}/attach"
        found: Lease = self._asked("POST", path, json={"attach": {"server_id": server}})["lease"]
        return found

    def release_lease(self, uuid: str) -> Lease:
        """Return a lease that ends."""
        path = f"/v1/leases/{quote(uuid, safe='')}/release"
        found: Lease = self._asked("POST", path)["lease"]
        return found

    def move_lease(self, uuid: str, pool: str) -> Lease:
        """Move a lease to another GPU; return it.

        :param pool: host of that; '': any
        """
        path = f"/v1/leases/{quote(uuid, safe='')}/move"
        found: Lease = self._asked("POST", path, json={"move": {"pool": pool}})["lease"]
        return found

    def requeue_lease(self, uuid: str) -> Lease:
        """Release a lease that is lost and ask for the same; return the new one."""
        path = f"/v1/leases/{quote(uuid, safe='')}/requeue"
        found: Lease = self._asked("POST", path)["lease"]
        return found

    def host_off(self, host: str) -> list[Lease]:
        """Say that a host is off; return the leases that ended."""
        path = f"/v1/hosts/{quote(host, safe='')}/off"
        found: list[Lease] = self._asked("POST", path)["leases"]
        return found

    def set_scaling(self, group: str, scaling: Scaling) -> Scaling:
        """Say what a server group is sized by; return it as it is stored.

        :param group: uuid of the server group
        """
        return self._scaling("PUT", group, json={"scaling": scaling})

    def scaling_groups(self, *, all_projects: bool = False) -> Iterator[Scaling]:
        """Yield elastic groups, in the order in which they were set first."""
        query = [("limit", str(_PAGE))] + ([("all_projects", "true")] if all_projects else [])
        marker: list[tuple[str, str]] = []
        while True:
            found = self._asked("GET", "/v1/scaling", params=[*query, *marker])["scaling"]
            yield from found
            if len(found) < _PAGE:
                return
            marker = [("marker", found[-1]["id"])]

    def delete_scaling(self, group: str) -> None:
        """Have an elastic group and the decisions on it deleted."""
        self._sent("DELETE", f"/v1/scaling/{quote(group, safe='')}")

    def scaling(self, group: str) -> Scaling:
        """Return an elastic group."""
        return self._scaling("GET", group)

    def pause_scaling(self, group: str, *, paused: bool) -> Scaling:
        """Return an elastic group on which nothing is decided any more, or again."""
        return self._scaling("POST", group, f"/{'pause' if paused else 'resume'}")

    def scaling_decisions(self, group: str) -> Iterator[Mapping[str, Any]]:
        """Yield lines of the decision log of an elastic group, oldest first."""
        path = f"/v1/scaling/{quote(group, safe='')}/decisions"
        marker: list[tuple[str, str]] = []
        while True:
            page = [("limit", str(_PAGE)), *marker]
            found = self._asked("GET", path, params=page)["decisions"]
            yield from found
            if len(found) < _PAGE:
                return
            marker = [("marker", repr(found[-1]["at_s"]))]

    def topology(self, group: str, form: str) -> Topology:
        """Return where the servers of a server group hang, by hashes.

        :param group: uuid of the server group
        :param form: of its file
        """
        path = f"/v1/groups/{quote(group, safe='')}/topology"
        found: Topology = self._asked("GET", path, params=[("format", form)])["topology"]
        return found

    def _scaling(self, method: str, group: str, action: str = "", **options: Any) -> Scaling:
        path = f"/v1/scaling/{quote(group, safe='')}{action}"
        found: Scaling = self._asked(method, path, **options)["scaling"]
        return found

    def _job(self, method: str, path: str, **options: Any) -> Job:
        found: Job = self._asked(method, path, **options)["job"]
        return found

    def _asked(self, method: str, path: str, **options: Any) -> Any:
        return self._sent(method, path, **options).json()

    def _sent(self, method: str, path: str, **options: Any) -> Any:
        """Return the answer to a request, which is one of success."""
        try:
            answer = self._adapter.request(
                path, method, microversion=_VERSION, raise_exc=False, **_AGAIN, **options
            )
        except keystone_errors.EndpointNotFound as error:
            raise CapabilityMissingError(
                f"The catalogue has no endpoint of service type {SERVICE_TYPE} for you: the cloud has no job service, "
                "or not in this region"
            ) from error
        except keystone_errors.ClientException as error:
            raise ServiceUnavailableError(f"The job service: {cut(str(error))}") from error
        if answer.status_code >= 400:
            raise _error(answer)
        return answer


def _error(answer: Any) -> NumaExtError:
    try:
        sentence = str(answer.json()["errors"][0]["detail"])
    except (ValueError, LookupError, TypeError):
        sentence = f"{answer.status_code}: {cut(answer.text)}"
    if answer.status_code >= 500:
        return ServiceUnavailableError(f"The job service: {sentence}")
    return JobRefusedError(sentence)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuids.UUID(text)) == text.lower()
    except ValueError:
        return False
