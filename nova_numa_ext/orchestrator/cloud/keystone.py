# SPDX-License-Identifier: Apache-2.0
"""Trusts of Keystone: a user's own token makes one, the service's user acts by it and gives it back.

No secret of a user is kept: a trust is of use only to who has the service's password, for one project and the roles
that the user had then. What Keystone answers (30.0):

====================================================  ==========================
the user is disabled, or lost a role of the trust     403
the trust was deleted                                 401
the service's own password is wrong                   401, too: asked apart
====================================================  ==========================
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from keystoneauth1 import adapter, session
from keystoneauth1 import exceptions as keystone_errors
from keystoneauth1.identity import v3

from nova_numa_ext.orchestrator.cloud.servers import UserServers
from nova_numa_ext.orchestrator.cloud.trusts import TrustError
from placement_traits.errors import (
    CapabilityMissingError,
    ServiceUnavailableError,
    cut,
)

# Less than a term of the leader lasts, so that no late request meets a successor.
REQUEST_TIMEOUT_S: Final = 10.0

_REFUSED: Final = (keystone_errors.Unauthorized, keystone_errors.Forbidden)


class KeystoneTrusts:
    """Acts for users by their trusts, see :class:`.trusts.Trusts`.

    :param credentials: of the service's user: ``auth_url``, ``username`` or ``user_id``, ``password``,
        ``user_domain_id`` or ``user_domain_name``; without a scope
    :param transport: verifies certificates; its timeout is :data:`REQUEST_TIMEOUT_S` or less
    :param endpoint: of nova and Keystone in the catalogue: ``interface``, ``region_name``
    """

    def __init__(
        self, credentials: Mapping[str, str], transport: session.Session, **endpoint: Any
    ) -> None:
        self._credentials = dict(credentials)
        self._transport = transport
        self._endpoint = endpoint

    def servers(self, trust: str) -> UserServers:
        """Return nova with the rights that a trust gives; Keystone is asked each time.

        :raises TrustError: it gives none any more
        :raises ServiceUnavailableError: Keystone does not answer, or refuses the service itself
        """
        return UserServers(self._adapter(self._acting(trust), service_type="compute"))

    def delete(self, trust: str) -> None:
        """Give a trust back; one that gives no rights any more is given back.

        Keystone lets only the trustor delete it: the service does so by the trust itself.

        :raises ServiceUnavailableError: Keystone does not answer, or refuses the service itself
        """
        try:
            acting = self._acting(trust)
        except TrustError:
            return
        identity = self._adapter(acting, service_type="identity", version="3")
        request = f"/OS-TRUST/trusts/{trust}"
        answer = _answered(identity, request, "DELETE")
        if answer.status_code not in (204, 404):
            raise _strange(answer, f"DELETE {request}")

    def user_id(self) -> str:
        """Return the id of the service's user: the trustee.

        :raises ServiceUnavailableError: Keystone does not answer, or refuses the service itself
        """
        own = v3.Password(**self._credentials, unscoped=True)
        try:
            return str(own.get_access(self._transport).user_id)
        except keystone_errors.ClientException as error:
            raise ServiceUnavailableError(
                f"Keystone does not let the job service in: {cut(str(error))}"
            ) from error

    def _acting(self, trust: str) -> v3.Password:
        acting = v3.Password(**self._credentials, trust_id=trust)
        try:
            acting.get_access(self._transport)
        except _REFUSED as error:
            self.user_id()
            raise TrustError(cut(str(error))) from error
        except keystone_errors.ClientException as error:
            raise ServiceUnavailableError(f"Keystone does not answer: {cut(str(error))}") from error
        return acting

    def _adapter(self, auth: Any, **options: Any) -> adapter.Adapter:
        return adapter.Adapter(self._transport, auth=auth, **self._endpoint, **options)


def make_trust(
    identity: adapter.Adapter, user: str, project: str, roles: Sequence[str], trustee: str
) -> str:
    """Have a user let the service act for it in a project; return the trust's id.

    :param identity: Keystone's API v3, with the user's own token
    :param roles: names of the user's roles in the project
    :param trustee: id of the service's user
    :raises CapabilityMissingError: the token cannot make trusts
    :raises ServiceUnavailableError: Keystone does not answer
    """
    trust = {
        "trustor_user_id": user,
        "trustee_user_id": trustee,
        "project_id": project,
        "impersonation": True,
        "allow_redelegation": False,
        "roles": [{"name": role} for role in roles],
    }
    answer = _answered(identity, "/OS-TRUST/trusts", "POST", json={"trust": trust})
    if answer.status_code in (403, 404):
        raise CapabilityMissingError(
            "A job needs a trust, and Keystone makes none of this token: application credentials cannot give one, nor "
            "can roles that come from a federated group. Use a password's token, and roles of the user's own. "
            f"Keystone says: {cut(answer.text)}"
        )
    if answer.status_code != 201:
        raise _strange(answer, "POST /OS-TRUST/trusts")
    return str(answer.json()["trust"]["id"])


def _answered(identity: adapter.Adapter, path: str, method: str, **options: Any) -> Any:
    try:
        return identity.request(path, method, raise_exc=False, **options)
    except keystone_errors.ClientException as error:
        raise ServiceUnavailableError(f"Keystone does not answer: {cut(str(error))}") from error


def _strange(answer: Any, request: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        f"Keystone answered {request} with {answer.status_code}: {cut(answer.text)}"
    )
