# SPDX-License-Identifier: Apache-2.0
"""Servers of jobs in nova, asked and written with the rights of one user.

What belongs to a job carries tags, so that it is found again whatever the database knows::

    numa-ext:<part>              the part's name
    numa-ext-job:<uuid>          the job
    numa-ext-member:<number>     which of the part's servers, from 0

Servers of a group on the fabric are made by one request, so that nova places them together. They have the same tags,
``numa-ext-member:numbered`` among them: nova numbers their names from 1.

Servers that are added to an elastic group carry two others::

    numa-ext-scaling:<uuid>      the server group
    numa-ext-token:<uuid>        the member, as the database has it

Nova may have done what it did not answer: before a server is asked for again, it is looked up by its tags. What is not
in a list may still be there: users change tags, and a list leaves out the cells that do not answer. Only 404 is gone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from keystoneauth1 import exceptions as keystone_errors

from nova_numa_ext.job_hint import HINT
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.policy.numa.nova_part import FlavorSizes
from placement_traits.client import HttpAdapter
from placement_traits.errors import LONGEST_TEXT, NumaExtError, ServiceUnavailableError, cut

# Tags when a server is made (2.52), rules of server groups (2.64), flavor's extra specs in a server (2.47).
MICROVERSION: Final = "2.96"
TAG: Final = "numa-ext:"
JOB_TAG: Final = "numa-ext-job:"
MEMBER_TAG: Final = "numa-ext-member:"
NUMBERED: Final = "numbered"  # in place of a number
SCALING_TAG: Final = "numa-ext-scaling:"
TOKEN_TAG: Final = "numa-ext-token:"

_UNKNOWN: Final = "UNKNOWN"  # status of a server whose cell does not answer

# Nova's own limit of a tag is 60 characters.
LONGEST_PART_NAME: Final = 40
LONGEST_NAME: Final = 255
NO_NETWORK: Final = ("none",)

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_NEVER: Final = (400, _NOT_FOUND, _CONFLICT)

# Nova shows of a fault what the exception says: NoValidHost, MaxRetriesExceeded, and TooManyInstances, of which the
# conductor's second check of the quota makes one after the server was accepted. With unified limits that one has the
# words of oslo.limit's ProjectOverLimit, or is nothing but its name.
_FAULTS: Final[Mapping[str, JobTerm]] = {
    "No valid host": JobTerm.NO_VALID_HOST,
    "Exceeded maximum number of retries": JobTerm.NO_VALID_HOST,
    "Quota exceeded": JobTerm.QUOTA,
    "is over a limit for": JobTerm.QUOTA,
    "ProjectOverLimit": JobTerm.QUOTA,
}


class QuotaError(NumaExtError):
    """Nova makes nothing now: a quota is used up, or the user may not do it."""


class RefusedError(NumaExtError):
    """Nova will never make what is asked: the flavor, image or network is not there, or does not fit."""


class AnswerError(ServiceUnavailableError):
    """Nova, or what stands before it, does not do what is asked, and says so.

    :param status: HTTP status
    :param sentence: the request and the answer
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status, sentence)
        self.status = status
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


def server_name(job: str, part: str, number: int) -> str:
    """Return the name of a server; nova takes :data:`LONGEST_NAME` characters, none of them blank at either end.

    :param job: name of its job
    :param number: of the server in its part
    """
    return f"{shared_name(job, part)}-{number}"


def shared_name(job: str, part: str) -> str:
    """Return the name of servers that are made together: nova numbers them, from 1.

    :param job: name of their job
    """
    return f"{job}-{part}"


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A server to be made.

    :param job: uuid of its job
    :param part: name of its part
    :param member: which of the part's servers, from 0
    :param networks: uuids; (): the only one of the project; :data:`NO_NETWORK`
    :param group: server group that it belongs to, '' without
    :param job_hint: what nova-scheduler has to know of it (:mod:`nova_numa_ext.job_hint`), '' for nothing
    :param group_hints: what else it has to know of a group on the fabric
    :param count: servers that are made together, the first members of the part; more than one: nova numbers the name
    """

    job: str
    part: str
    member: int
    name: str
    flavor: str
    image: str
    networks: tuple[str, ...]
    group: str = ""
    job_hint: str = ""
    group_hints: Mapping[str, str] = field(default_factory=dict)
    count: int = 1


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """A server to be added to an elastic group.

    :param group: uuid of the server group
    :param token: of the member
    :param networks: as of :class:`ServerRequest`
    """

    group: str
    token: str
    name: str
    flavor: str
    image: str
    networks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobServer:
    """A server of a job.

    :param part: by its tags, '' where they do not tell which member of what it is
    :param member: by its tags, by its name where it was made with others; -1 where they do not tell
    :param status: nova's: BUILD, ACTIVE, ERROR …
    :param fault: nova's words on an ERROR
    :param created_at: nova's time, to be compared as text; '' of a cell that does not answer
    :param host_id: changes when the server comes to another host; '' while it has none
    """

    uuid: str
    part: str
    member: int
    status: str
    fault: str
    created_at: str
    host_id: str

    @property
    def takes_no_place(self) -> bool:
        """It has no host: not yet, or not any more. Of a cell that does not answer that is not known."""
        return not self.host_id and self.status != _UNKNOWN

    @property
    def failure(self) -> JobTerm | None:
        """Why it was not built, as far as nova's words tell; None: it is not in ERROR."""
        if self.status != "ERROR":
            return None
        known = (term for words, term in _FAULTS.items() if words in self.fault)
        return next(known, JobTerm.SERVER_FAILED)


@dataclass(frozen=True, slots=True)
class OwnedServer:
    """A server that carries the tag of a job, as a user who may list it sees it.

    :param server: what there is of it; of a cell that does not answer its uuid alone
    :param job: uuid of its job, '' of a cell that does not answer
    :param flavor: its flavor's name: nova does not show the id
    :param memory_mb: in MiB
    :param disk_gb: in GiB
    :param image: '' where it boots from a volume
    """

    server: JobServer
    job: str = ""
    project: str = ""
    user: str = ""
    name: str = ""
    flavor: str = ""
    vcpus: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


@dataclass(frozen=True, slots=True)
class ElasticServer:
    """A server that carries the tag of an elastic group.

    :param server: what there is of it
    :param token: of the member, '' where it lacks that tag
    :param name: '' of a cell that does not answer
    """

    server: JobServer
    token: str
    name: str


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """A server group as nova lists it.

    :param members: uuids of its servers that are not deleted
    """

    uuid: str
    name: str
    members: tuple[str, ...]


class UserServers:
    """Nova with one user's rights.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when nova does not answer, and
    :class:`AnswerError` where it answers anything else than what a method lists.

    :param compute: a keystoneauth1 adapter for service type ``compute``
    """

    def __init__(self, compute: HttpAdapter) -> None:
        self._compute = compute

    def of_job(self, job: str) -> list[JobServer]:
        """Return what carries a job's tag, the oldest first."""
        query = {"tags": f"{JOB_TAG}{job}"}
        found = [_server(shown) for shown in self._pages("/servers/detail", query)]
        return sorted(found, key=lambda each: (each.created_at, each.uuid))

    def of_jobs(self) -> list[OwnedServer]:
        """Return all servers of the user's project that carry the tag of any job, the oldest first.

        Those of cells that do not answer are among them, whatever they are: without a filter nova names them.
        """
        found = [_owned(shown) for shown in self._pages("/servers/detail", {})]
        there = [each for each in found if each and each.server.status != "SOFT_DELETED"]
        return sorted(there, key=lambda each: (each.server.created_at, each.server.uuid))

    def of_elastic(self, group: str) -> list[ElasticServer]:
        """Return what carries the tag of an elastic group, the oldest first."""
        query = {"tags": f"{SCALING_TAG}{group}"}
        found = [_elastic(shown) for shown in self._pages("/servers/detail", query)]
        return sorted(found, key=lambda each: (each.server.created_at, each.server.uuid))

    def members(self, group: str) -> frozenset[str] | None:
        """Return the servers of a server group that are not deleted; None: there is no such group."""
        try:
            found = self._call("GET", f"/os-server-groups/{group}", "server_group")
        except AnswerError as error:
            if error.status != _NOT_FOUND:
                raise
            return None
        return frozenset(map(str, found["members"]))

    def flavor(self, uuid: str) -> tuple[FlavorSizes, Mapping[str, str]]:
        """Return what a flavor gives a server, disks left out, and its extra specs: none to who may not read them."""
        path = f"/flavors/{quote(uuid, safe='')}"
        shown = self._call("GET", path, "flavor")
        try:
            specs = {str(key): str(value) for key, value in shown.get("extra_specs", {}).items()}
            return FlavorSizes(int(shown["vcpus"]), int(shown["ram"])), specs
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ServiceUnavailableError(f"The answer to GET {path} is not nova's") from error

    def create_member(self, request: MemberRequest) -> str:
        """Have a server made for an elastic group; return its uuid. See :meth:`create`."""
        server = {
            "name": request.name,
            "flavorRef": request.flavor,
            "imageRef": request.image,
            "networks": _networks(request.networks),
            "tags": [f"{SCALING_TAG}{request.group}", f"{TOKEN_TAG}{request.token}"],
        }
        body = {"server": server, "os:scheduler_hints": {"group": request.group}}
        return self._made("/servers", "server", body)

    def get(self, uuid: str) -> JobServer | None:
        """Return a server, whatever its tags; None: it was deleted, even if nova keeps it to be restored."""
        try:
            found = _server(self._call("GET", f"/servers/{uuid}", "server"))
        except AnswerError as error:
            if error.status != _NOT_FOUND:
                raise
            return None
        return None if found.status == "SOFT_DELETED" else found

    def create(self, request: ServerRequest) -> str:
        """Have a server made; return its uuid. It is not there yet: :meth:`of_job` tells how far it is.

        :raises QuotaError: see there
        :raises RefusedError: see there
        """
        return self._made("/servers", "server", _body(request))

    def delete(self, uuids: Iterable[str]) -> None:
        """Have servers deleted; one that is not there is deleted, one that its user has locked is unlocked first.

        :raises AnswerError: of the first one that nova does not delete; the others were asked for all the same
        """
        refused = []
        for uuid in uuids:
            try:
                self._delete_server(f"/servers/{uuid}")
            except AnswerError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def groups(self, name: str) -> list[str]:
        """Return the uuids of the server groups of a name."""
        return [group.uuid for group in self.all_groups() if group.name == name]

    def all_groups(self) -> list[NamedGroup]:
        """Return the project's server groups."""
        found = self._call("GET", "/os-server-groups", "server_groups")
        return [
            NamedGroup(str(each["id"]), str(each["name"]), tuple(each.get("members", ())))
            for each in found
        ]

    def make_group(self, name: str, policy: str) -> str:
        """Make a server group; return its uuid.

        :param policy: ``affinity`` or ``anti-affinity``
        :raises QuotaError: see there
        """
        body = {"server_group": {"name": name, "policy": policy}}
        return self._made("/os-server-groups", "server_group", body)

    def delete_group(self, uuid: str) -> None:
        """Delete a server group; one that is not there is deleted."""
        self._delete(f"/os-server-groups/{uuid}")

    def _made(self, path: str, what: str, body: Mapping[str, Any]) -> str:
        """Have something made; return its uuid."""
        try:
            return str(self._call("POST", path, what, body)["id"])
        except AnswerError as error:
            if error.status == _FORBIDDEN:
                raise QuotaError(str(error)) from error
            if error.status in _NEVER:
                raise RefusedError(str(error)) from error
            raise

    def _delete_server(self, path: str) -> None:
        try:
            self._delete(path)
        except AnswerError as error:
            if error.status != _CONFLICT:
                raise
            self._call("POST", f"{path}/action", body={"unlock": None})
            self._delete(path)

    def _delete(self, path: str) -> None:
        try:
            self._call("DELETE", path)
        except AnswerError as error:
            if error.status != _NOT_FOUND:
                raise

    def _pages(self, path: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        marker: dict[str, str] = {}
        while rows := self._call("GET", _with(path, {**query, **marker}), "servers"):
            yield from rows
            there = [each["id"] for each in rows if each["status"] != _UNKNOWN]
            if not there:  # nova does not go on behind a server of a cell that does not answer
                return
            marker = {"marker": there[-1]}

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
        raise AnswerError(answer.status_code, sentence)


def _body(request: ServerRequest) -> dict[str, Any]:
    member = NUMBERED if request.count > 1 else str(request.member)
    body: dict[str, Any] = {
        "server": {
            "name": request.name,
            "flavorRef": request.flavor,
            "imageRef": request.image,
            "networks": _networks(request.networks),
            "tags": [f"{TAG}{request.part}", f"{JOB_TAG}{request.job}", f"{MEMBER_TAG}{member}"],
        }
    }
    if request.count > 1:
        body["server"] |= {"min_count": request.count, "max_count": request.count}
    hints = {"group": request.group, HINT: request.job_hint, **request.group_hints}
    if any(hints.values()):
        body["os:scheduler_hints"] = {name: value for name, value in hints.items() if value}
    return body


def _networks(chosen: tuple[str, ...]) -> str | list[dict[str, str]]:
    if chosen == NO_NETWORK:
        return "none"
    return [{"uuid": each} for each in chosen] or "auto"


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


def _with(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _owned(shown: Mapping[str, Any]) -> OwnedServer | None:
    """Return a server of a job, or of a cell that does not answer; None of any other one."""
    server = _server(shown)
    if server.status == _UNKNOWN and "flavor" not in shown:
        return OwnedServer(server)
    jobs = [tag for tag in shown.get("tags", ()) if tag.startswith(JOB_TAG)]
    if not jobs:
        return None
    flavor = shown["flavor"]
    image = shown.get("image") or {}
    return OwnedServer(
        server,
        job=jobs[0].removeprefix(JOB_TAG),
        project=shown["tenant_id"],
        user=shown["user_id"],
        name=shown["name"],
        flavor=flavor["original_name"],
        vcpus=flavor["vcpus"],
        memory_mb=flavor["ram"],
        disk_gb=flavor["disk"],
        extra_specs=flavor.get("extra_specs", {}),
        image=image.get("id", ""),
    )


def _elastic(shown: Mapping[str, Any]) -> ElasticServer:
    tokens = [tag for tag in shown.get("tags", ()) if tag.startswith(TOKEN_TAG)]
    token = tokens[0].removeprefix(TOKEN_TAG) if len(tokens) == 1 else ""
    return ElasticServer(_server(shown), token, str(shown.get("name", "")))


def _numbered(name: str) -> str:
    """Return which member a server is that nova has numbered, '' where its name does not tell."""
    number = name.rpartition("-")[2]
    return str(int(number) - 1) if number.isascii() and number.isdecimal() and int(number) else ""


def _server(shown: Mapping[str, Any]) -> JobServer:
    """Return a server; of a cell that does not answer nova shows its uuid and the status UNKNOWN."""
    tags = {tag.rpartition(":")[0] + ":": tag.rpartition(":")[2] for tag in shown.get("tags", ())}
    member = tags.get(MEMBER_TAG, "")
    if member == NUMBERED:
        member = _numbered(shown.get("name", ""))
    known = TAG in tags and member.isdecimal()
    fault = shown.get("fault") or {}
    return JobServer(
        shown["id"],
        tags[TAG] if known else "",
        int(member) if known else -1,
        shown["status"],
        cut(str(fault.get("message", ""))),
        shown.get("created", ""),
        shown.get("hostId", ""),
    )
