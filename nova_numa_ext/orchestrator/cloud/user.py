# SPDX-License-Identifier: Apache-2.0
"""The cloud as a user's own token shows it, and the trust by which the service acts for the user later.

What a job names is looked up when it is submitted: hours later there is no one to answer to. References are ids
or names; they go into paths and queries quoted.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

from keystoneauth1 import adapter, session
from keystoneauth1.access import AccessInfoV3

from nova_numa_ext.orchestrator.cloud import keystone
from nova_numa_ext.orchestrator.cloud.asking import AbsentError, SilentError, answered, strange
from nova_numa_ext.orchestrator.cloud.servers import MICROVERSION
from nova_numa_ext.orchestrator.cloud.stacks import ENDPOINT, SERVICE, Stack, stack_of
from placement_traits.client import HttpAdapter
from placement_traits.errors import CapabilityMissingError, cut

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MIB_PER_GIB: Final = 1024
_UNLIMITED: Final = -1
_PAGE: Final = "1000"  # nova gives fewer where it allows fewer
# What would make another request of a flavor's.
_NO_FLAVOR_IDS: Final = (".", "..", "detail")

T = TypeVar("T")


class _Service(NamedTuple):
    name: str
    adapter: HttpAdapter


@dataclass(frozen=True, slots=True)
class UserFlavor:
    """A flavor as the user sees it; ``memory_mb`` in MiB.

    :param uuid: nova's id of it, any text
    :param disk_gb: what Placement counts: root, ephemeral and swap, GiB
    :param root_gb: root disk, GiB; 0: as large as the image
    """

    uuid: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    root_gb: int
    extra_specs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UserImage:
    """An image as the user sees it.

    :param status: Glance's; servers start of ``active`` ones
    :param least_disk_gb: smallest root disk that it starts on, GiB
    :param least_memory_mb: smallest memory that it starts with, MiB
    """

    uuid: str
    status: str
    least_disk_gb: int
    least_memory_mb: int


@dataclass(frozen=True, slots=True)
class UserNetwork:
    """A network as the user sees it."""

    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class UserGroup:
    """A server group as the user sees it.

    :param project: whose it is
    :param members: uuids of its servers
    """

    project: str
    members: tuple[str, ...]


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

    All methods raise :class:`.asking.SilentError` when a service does not answer, and
    :class:`placement_traits.errors.CapabilityMissingError` when it does not let this token ask.
    """

    def flavor(self, reference: str) -> UserFlavor | None:
        """Return a flavor by id or name, None when the user may not use one of that name."""

    def images(self, reference: str) -> Sequence[UserImage]:
        """Return the images of an id or a name: several may have the same name."""

    def networks(self, reference: str) -> Sequence[UserNetwork]:
        """Return the networks of an id or a name: several may have the same name."""

    def available_networks(self) -> Sequence[UserNetwork]:
        """Return the networks of which nova takes the only one for a server that names none."""

    def quota(self) -> ProjectQuota:
        """Return the project's limits."""

    def stack(self, reference: str) -> Stack | None:
        """Return a stack of Heat by id or name, None when the project has none."""

    def project_of(self, server: str) -> str | None:
        """Return the project of a server, by its uuid; None when the user can see none of that uuid."""

    def server_group(self, uuid: str) -> str | None:
        """Return the project of a server group, None when there is none that the user sees."""

    def user_group(self, uuid: str) -> UserGroup | None:
        """Return a server group, None when there is none that the user sees: nova refuses those of other projects."""

    def servers_of(self, project: str) -> Mapping[str, str]:
        """Return the names of a project's servers by their uuids.

        :param project: the token's own, or any for an administrator
        """

    def check_trust(self) -> None:
        """Look whether the token is of a kind that can make a trust.

        :raises CapabilityMissingError: it is not: says which ones are
        """

    def trust(self, expires_at: float | None) -> str:
        """Have Keystone let the service act for the user; return the trust's id.

        :param expires_at: until when, seconds since 1970; None: until it is given back
        :raises CapabilityMissingError: the token is one that cannot make trusts: says which ones can
        """

    def delete_trust(self, trust: str) -> None:
        """Take a trust back; one that is not there is taken back."""


CloudOf = Callable[[Mapping[str, Any]], UserCloud]
"""WSGI environment of a request -> the cloud, asked with the token of its user."""


class UserClouds:
    """Makes clouds of requests' tokens.

    :param transport: verifies certificates, times out
    :param trustee: returns the id of the service's user, which trusts are for; asked once
    :param roles: names of those that a trust passes on
    :param endpoint: of all services in the catalogue: ``interface``, ``region_name``
    """

    def __init__(
        self,
        transport: session.Session,
        trustee: Callable[[], str],
        roles: Sequence[str],
        **endpoint: Any,
    ) -> None:
        self._transport = transport
        self._ask_trustee = trustee
        self._trustee = ""
        self._lock = Lock()
        self._roles = tuple(roles)
        self._endpoint = endpoint

    def of(self, environ: Mapping[str, Any]) -> "TokenCloud":
        """Return the cloud of a request.

        :param environ: its WSGI environment, with what keystonemiddleware has found out of its token
        """
        token = environ["keystone.token_auth"]

        def service(kind: str, **options: Any) -> HttpAdapter:
            asked: HttpAdapter = adapter.Adapter(
                self._transport, auth=token, service_type=kind, **self._endpoint, **options
            )
            return asked

        return TokenCloud(
            token.user,
            compute=service("compute", default_microversion=MICROVERSION),
            image=service("image"),
            network=service("network"),
            orchestration=service(ENDPOINT),
            identity=service("identity", version="3"),
            trustee=self._once,
            roles=self._roles,
        )

    def _once(self) -> str:
        with self._lock:
            self._trustee = self._trustee or self._ask_trustee()
            return self._trustee


class TokenCloud:
    """See :class:`UserCloud`; for one request: what was found is not asked for again.

    :param token: the user's
    :param compute: a keystoneauth1 adapter with the token; likewise the others
    :param trustee: returns the id of the service's user
    :param roles: names of those that a trust passes on
    """

    def __init__(
        self,
        token: AccessInfoV3,
        *,
        compute: HttpAdapter,
        image: HttpAdapter,
        network: HttpAdapter,
        orchestration: HttpAdapter,
        identity: HttpAdapter,
        trustee: Callable[[], str],
        roles: Sequence[str],
    ) -> None:
        self._token = token
        self._compute = _Service("Nova", compute)
        self._image = _Service("Glance", image)
        self._network = _Service("Neutron", network)
        self._orchestration = _Service(SERVICE, orchestration)
        self._identity = identity
        self._trustee = trustee
        self._roles = roles
        self._found: dict[tuple[str, str], Any] = {}

    def flavor(self, reference: str) -> UserFlavor | None:
        """See :meth:`UserCloud.flavor`."""
        return self._once("flavor", reference, self._flavor)

    def images(self, reference: str) -> Sequence[UserImage]:
        """See :meth:`UserCloud.images`."""
        return self._once("images", reference, self._images)

    def networks(self, reference: str) -> Sequence[UserNetwork]:
        """See :meth:`UserCloud.networks`."""
        by = "id" if _UUID.fullmatch(reference) else "name"
        return self._once("networks", reference, lambda _: self._networks({by: reference}))

    def available_networks(self) -> Sequence[UserNetwork]:
        """See :meth:`UserCloud.available_networks`; the two requests are nova's own."""

        def found(project: str) -> Sequence[UserNetwork]:
            own = self._networks({"project_id": project, "shared": "False"})
            return (*own, *self._networks({"shared": "True"}))

        return self._once("available networks", str(self._token.project_id), found)

    def quota(self) -> ProjectQuota:
        """See :meth:`UserCloud.quota`."""
        return self._get(self._compute, "/limits", lambda body: _quota(body["limits"]["absolute"]))

    def stack(self, reference: str) -> Stack | None:
        """See :meth:`UserCloud.stack`."""
        by = "id" if _UUID.fullmatch(reference) else "name"
        try:
            rows = self._get(
                self._orchestration,
                f"/stacks?{urlencode({by: reference})}",
                lambda body: [
                    (str(each["stack_name"]), str(each["id"])) for each in body["stacks"]
                ],
            )
        except AbsentError as error:
            raise CapabilityMissingError(
                f"The cloud has no Heat: its catalogue has no endpoint of service type {ENDPOINT} for you."
            ) from error
        if len(rows) != 1:  # names are unique in a project
            return None
        path = "/".join(quote(each, safe="") for each in rows[0])
        return self._look(self._orchestration, f"/stacks/{path}", stack_of)

    def project_of(self, server: str) -> str | None:
        """See :meth:`UserCloud.project_of`."""
        path = f"/servers/{quote(server, safe='')}"
        return self._look(self._compute, path, lambda body: str(body["server"]["tenant_id"]))

    def server_group(self, uuid: str) -> str | None:
        """See :meth:`UserCloud.server_group`."""
        path = f"/os-server-groups/{quote(uuid, safe='')}"
        return self._look(self._compute, path, lambda body: str(body["server_group"]["project_id"]))

    def user_group(self, uuid: str) -> UserGroup | None:
        """See :meth:`UserCloud.user_group`."""
        path = f"/os-server-groups/{quote(uuid, safe='')}"
        return self._look(
            self._compute, path, lambda body: _user_group(body["server_group"]), hidden=(403,)
        )

    def servers_of(self, project: str) -> Mapping[str, str]:
        """See :meth:`UserCloud.servers_of`."""
        of_project: dict[str, str] = {}
        if project != self._token.project_id:
            of_project = {"all_tenants": "1", "project_id": project}
        found: dict[str, str] = {}
        marker: dict[str, str] = {}
        while rows := self._get(
            self._compute,
            f"/servers?{urlencode({**of_project, 'limit': _PAGE, **marker})}",
            lambda body: [(str(each["id"]), str(each["name"])) for each in body["servers"]],
        ):
            found.update(rows)
            marker = {"marker": rows[-1][0]}
        return found

    def check_trust(self) -> None:
        """See :meth:`UserCloud.check_trust`."""
        token = self._token
        for kind, found in (
            ("an application credential", token.application_credential_id),
            ("a trust", token.trust_scoped),
            ("an OAuth consumer", token.oauth_access_token_id),
        ):
            if found:
                raise CapabilityMissingError(
                    f"A job needs a trust, and a token of {kind} cannot give one: use a password's token."
                )
        has = {name.lower() for name in token.role_names}
        missing = [role for role in self._roles if role.lower() not in has]
        if missing:
            raise CapabilityMissingError(
                f"A job needs a trust with role {missing[0]}, which this token does not have in project "
                f"{token.project_id}; it has {', '.join(sorted(has)) or 'none'}."
            )

    def trust(self, expires_at: float | None) -> str:
        """See :meth:`UserCloud.trust`."""
        self.check_trust()
        trust = {
            "trustor_user_id": self._token.user_id,
            "trustee_user_id": self._trustee(),
            "project_id": self._token.project_id,
            "impersonation": True,
            "allow_redelegation": False,
            "expires_at": None if expires_at is None else _time(expires_at),
            "roles": [{"name": role} for role in self._roles],
        }
        path = "/OS-TRUST/trusts"
        answer = answered(self._identity, keystone.SERVICE, "POST", path, {"trust": trust})
        if answer.status_code in (403, 404):
            raise CapabilityMissingError(
                "A job needs a trust, and Keystone makes none of this token: application credentials cannot give one, "
                "nor can roles that come from a federated group. Use a password's token, and roles of the user's own. "
                f"Keystone says: {cut(answer.text)}"
            )
        if answer.status_code != 201:
            raise strange(answer, keystone.SERVICE, f"POST {path}")
        return str(answer.json()["trust"]["id"])

    def delete_trust(self, trust: str) -> None:
        """See :meth:`UserCloud.delete_trust`."""
        keystone.delete_trust(self._identity, trust)

    # One kind after the other ----------------------------------------------------------------------------------------

    def _flavor(self, reference: str) -> UserFlavor | None:
        if reference not in _NO_FLAVOR_IDS:
            path = f"/flavors/{quote(reference, safe='')}"
            shown = self._look(self._compute, path, lambda body: _flavor(body["flavor"]))
            if shown:
                return shown
        for each in self._flavors():
            if each["name"] == reference:
                return _flavor(each)
        return None

    def _flavors(self) -> Iterator[Mapping[str, Any]]:
        path = "/flavors/detail"
        while rows := self._get(self._compute, path, _rows):
            yield from rows
            path = f"/flavors/detail?{urlencode({'marker': rows[-1]['id']})}"

    def _images(self, reference: str) -> Sequence[UserImage]:
        if _UUID.fullmatch(reference):
            shown = self._look(self._image, f"/v2/images/{reference}", _image)
            return (shown,) if shown else ()
        # Glance reads "in:" and commas in a name unless it is quoted.
        name = reference if {*'"\\'} & {*reference} else f'in:"{reference}"'
        path = f"/v2/images?{urlencode({'name': name})}"
        named = self._look(self._image, path, lambda body: tuple(map(_image, body["images"])))
        return named or ()

    def _networks(self, query: Mapping[str, str]) -> Sequence[UserNetwork]:
        fields = [("fields", "id"), ("fields", "name")]
        path = f"/v2.0/networks?{urlencode([*query.items(), *fields])}"
        return self._get(
            self._network,
            path,
            lambda body: tuple(UserNetwork(each["id"], each["name"]) for each in body["networks"]),
        )

    def _once(self, kind: str, reference: str, ask: Callable[[str], T]) -> T:
        key = (kind, reference)
        if key not in self._found:
            self._found[key] = ask(reference)
        found: T = self._found[key]
        return found

    def _get(self, service: _Service, path: str, read: Callable[[Any], T]) -> T:
        """Return what is read of an answer's body."""
        found = self._look(service, path, read)
        if found is None:
            raise SilentError(service.name, f"nothing behind GET {path}")
        return found

    def _look(
        self,
        service: _Service,
        path: str,
        read: Callable[[Any], T],
        hidden: Sequence[int] = (),
    ) -> T | None:
        """The same; None of what is not there, or has a name that the service takes for none.

        :param hidden: statuses of what the user is not to know of
        """
        answer = answered(service.adapter, service.name, "GET", path)
        if answer.status_code in (400, 404, *hidden):
            return None
        if answer.status_code in (401, 403):
            asked = f"GET {path.partition('?')[0]}"
            raise CapabilityMissingError(
                f"{service.name} does not let this token {asked}: {cut(answer.text)}"
            )
        if answer.status_code != 200:
            raise strange(answer, service.name, f"GET {path}")
        try:
            return read(answer.json())
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise strange(answer, service.name, f"GET {path}") from error


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _user_group(shown: Mapping[str, Any]) -> UserGroup:
    return UserGroup(str(shown["project_id"]), tuple(map(str, shown["members"])))


def _rows(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = body["flavors"]
    return rows


def _flavor(shown: Mapping[str, Any]) -> UserFlavor:
    if "extra_specs" not in shown:
        raise CapabilityMissingError(
            f"Nova does not let this token see extra specs of flavor {shown['name']}, and jobs are planned by them: "
            "its policy os_compute_api:os-flavor-extra-specs:index has to allow it."
        )
    root_gb = int(shown["disk"])
    swap_gb = math.ceil(int(shown["swap"] or 0) / _MIB_PER_GIB)
    return UserFlavor(
        uuid=str(shown["id"]),
        vcpus=int(shown["vcpus"]),
        memory_mb=int(shown["ram"]),
        disk_gb=root_gb + int(shown["OS-FLV-EXT-DATA:ephemeral"]) + swap_gb,
        root_gb=root_gb,
        extra_specs=dict(shown["extra_specs"]),
    )


def _image(shown: Mapping[str, Any]) -> UserImage:
    return UserImage(
        str(shown["id"]),
        str(shown["status"]),
        int(shown.get("min_disk") or 0),
        int(shown.get("min_ram") or 0),
    )


def _quota(shown: Mapping[str, Any]) -> ProjectQuota:
    def limit(name: str) -> int | None:
        found = int(shown.get(name, _UNLIMITED))
        return None if found == _UNLIMITED else found

    return ProjectQuota(
        limit("maxTotalInstances"),
        limit("maxTotalCores"),
        limit("maxTotalRAMSize"),
        limit("maxServerGroups"),
        limit("maxServerGroupMembers"),
    )
