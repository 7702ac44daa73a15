# SPDX-License-Identifier: Apache-2.0
"""Servers of jobs in nova, asked and written with the rights of one user.

What belongs to a job carries tags, so that it is found again whatever the database knows::

    numa-ext:<part>              the part's name
    numa-ext-job:<uuid>          the job
    numa-ext-member:<number>     which of the part's servers, from 0

Nova may have done what it did not answer: before a server is asked for again, it is looked up by its tags.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from keystoneauth1 import exceptions as keystone_errors

from placement_traits.client import HttpAdapter
from placement_traits.errors import LONGEST_TEXT, NumaExtError, ServiceUnavailableError, cut

# Tags when a server is made (2.52), rules of server groups (2.64), flavor's extra specs in a server (2.47).
MICROVERSION: Final = "2.96"
TAG: Final = "numa-ext:"
JOB_TAG: Final = "numa-ext-job:"
MEMBER_TAG: Final = "numa-ext-member:"

# Nova's own limit of a tag is 60 characters.
LONGEST_PART_NAME: Final = 40


class QuotaError(NumaExtError):
    """Nova answers 403: a quota is used up, or the user may not do it."""


class RefusedError(NumaExtError):
    """Nova will never do what is asked: the flavor, image or network is not there, or does not fit."""


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A server to be made.

    :param job: uuid of its job
    :param part: name of its part
    :param member: which of the part's servers, from 0
    :param group: server group that it belongs to, '' without
    """

    job: str
    part: str
    member: int
    name: str
    flavor: str
    image: str
    networks: tuple[str, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class JobServer:
    """A server that carries the tags of a job.

    :param status: nova's: BUILD, ACTIVE, ERROR …
    :param fault: nova's words on an ERROR
    :param created_at: nova's time, to be compared as text
    """

    uuid: str
    part: str
    member: int
    status: str
    fault: str
    created_at: str

    @property
    def no_valid_host(self) -> bool:
        """The scheduler found no host for it."""
        return self.status == "ERROR" and "No valid host" in self.fault


class UserServers:
    """Nova with one user's rights.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when nova does not answer.

    :param compute: a keystoneauth1 adapter for service type ``compute``
    """

    def __init__(self, compute: HttpAdapter) -> None:
        self._compute = compute

    def of_job(self, job: str) -> list[JobServer]:
        """Return what carries a job's tag, the oldest first."""
        query = {"tags": f"{JOB_TAG}{job}"}
        found = [_server(shown) for shown in self._pages("/servers/detail", query)]
        return sorted(
            (each for each in found if each), key=lambda each: (each.created_at, each.uuid)
        )

    def create(self, request: ServerRequest) -> str:
        """Have a server made; return its uuid. It is not there yet: :meth:`of_job` tells how far it is.

        :raises QuotaError: see there
        :raises RefusedError: see there
        """
        body: dict[str, Any] = {
            "server": {
                "name": request.name,
                "flavorRef": request.flavor,
                "imageRef": request.image,
                "networks": [{"uuid": each} for each in request.networks] or "auto",
                "tags": [
                    f"{TAG}{request.part}",
                    f"{JOB_TAG}{request.job}",
                    f"{MEMBER_TAG}{request.member}",
                ],
            }
        }
        if request.group:
            body["os:scheduler_hints"] = {"group": request.group}
        return str(self._call("POST", "/servers", "server", body)["id"])

    def delete(self, uuid: str) -> None:
        """Have a server deleted; one that is not there is deleted."""
        self._call("DELETE", f"/servers/{uuid}")

    def group(self, name: str) -> str | None:
        """Return the uuid of the server group of a name, None without."""
        for each in self._call("GET", "/os-server-groups", "server_groups"):
            if each["name"] == name:
                return str(each["id"])
        return None

    def make_group(self, name: str, policy: str) -> str:
        """Make a server group; return its uuid.

        :param policy: ``affinity`` or ``anti-affinity``
        :raises QuotaError: see there
        """
        body = {"server_group": {"name": name, "policy": policy}}
        return str(self._call("POST", "/os-server-groups", "server_group", body)["id"])

    def delete_group(self, uuid: str) -> None:
        """Delete a server group; one that is not there is deleted."""
        self._call("DELETE", f"/os-server-groups/{uuid}")

    def _pages(self, path: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        marker: dict[str, str] = {}
        while rows := self._call("GET", f"{path}?{urlencode({**query, **marker})}", "servers"):
            yield from rows
            marker = {"marker": rows[-1]["id"]}

    def _call(
        self, method: str, path: str, what: str = "", body: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a request; return the member of the answer that is asked for, '' for none."""
        request = f"{method} {path.partition('?')[0]}"
        try:
            answer = self._compute.request(
                path, method, json=body, raise_exc=False, microversion=MICROVERSION
            )
        except keystone_errors.ClientException as error:
            raise ServiceUnavailableError(
                f"Nova does not answer {request}: {cut(str(error), LONGEST_TEXT)}"
            ) from error
        if answer.status_code < 400:
            return _member(request, answer, what) if what else None
        sentence = f"Nova answered {request} with {answer.status_code}: {cut(_words(answer))}"
        if method == "DELETE" and answer.status_code == 404:
            return None
        if answer.status_code in (403, 413, 429):
            raise QuotaError(sentence)
        if method == "POST" and answer.status_code in (400, 404, 409):
            raise RefusedError(sentence)
        raise ServiceUnavailableError(sentence)


def _member(request: str, answer: Any, what: str) -> Any:
    """Return a member of an answer; a proxy in between may answer with a page of its own."""
    try:
        return answer.json()[what]
    except (ValueError, TypeError, KeyError) as error:
        raise ServiceUnavailableError(
            f"The answer to {request} is not nova's: {cut(answer.text)}"
        ) from error


def _words(answer: Any) -> str:
    """Return nova's own sentence: the body is {"badRequest": {"message": …}}."""
    try:
        (found,) = answer.json().values()
        return str(found["message"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return str(answer.text)


def _server(shown: Mapping[str, Any]) -> JobServer | None:
    """Return a server; None for one whose tags were changed so that its member is not known any more."""
    tags = {tag.rpartition(":")[0] + ":": tag.rpartition(":")[2] for tag in shown.get("tags", ())}
    member = tags.get(MEMBER_TAG, "")
    if TAG not in tags or not member.isdecimal():
        return None
    fault = shown.get("fault") or {}
    return JobServer(
        shown["id"],
        tags[TAG],
        int(member),
        shown["status"],
        cut(str(fault.get("message", ""))),
        shown["created"],
    )
