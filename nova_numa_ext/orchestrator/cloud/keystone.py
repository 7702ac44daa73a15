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

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from keystoneauth1 import adapter, session
from keystoneauth1 import exceptions as keystone_errors
from keystoneauth1.identity import v3
from keystoneauth1.plugin import AUTH_INTERFACE

from nova_numa_ext.orchestrator.cloud.asking import answered, strange
from nova_numa_ext.orchestrator.cloud.servers import UserServers
from nova_numa_ext.orchestrator.cloud.stacks import ENDPOINT, UserStacks
from nova_numa_ext.orchestrator.cloud.trusts import GivenTrust, TrustError, TrustGoneError
from placement_traits.client import HttpAdapter
from placement_traits.errors import ServiceUnavailableError, cut

# Less than a term of the leader lasts, so that no late request meets a successor.
REQUEST_TIMEOUT_S: Final = 10.0

SERVICE: Final = "Keystone"

_CHECK_S: Final = 300.0
_OK: Final = 200

_REFUSED: Final = (keystone_errors.Unauthorized, keystone_errors.Forbidden)


@dataclass(frozen=True, slots=True)
class _Acting:
    """A token by a trust.

    :param plugin: has it
    :param checked_s: when Keystone gave it
    """

    plugin: v3.Password
    checked_s: float


class KeystoneTrusts:
    """Acts for users by their trusts, see :class:`.trusts.Trusts`; any thread may use it.

    A trust's token is kept as long as the trust need not be checked again.

    :param credentials: of the service's user: ``auth_url``, ``username`` or ``user_id``, ``password``,
        ``user_domain_id`` or ``user_domain_name``; without a scope
    :param transport: verifies certificates; its timeout is :data:`REQUEST_TIMEOUT_S` or less
    :param check_s: seconds after which Keystone is asked again whether a trust gives rights
    :param clock: monotonic seconds; injected by tests
    :param endpoint: of nova and Keystone in the catalogue: ``interface``, ``region_name``
    """

    def __init__(
        self,
        credentials: Mapping[str, str],
        transport: session.Session,
        *,
        check_s: float = _CHECK_S,
        clock: Callable[[], float] = time.monotonic,
        **endpoint: Any,
    ) -> None:
        self._credentials = dict(credentials)
        self._transport = transport
        self._check_s = check_s
        self._clock = clock
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._by_trust: dict[str, _Acting] = {}

    def servers(self, trust: str) -> UserServers:
        """Return nova with the rights that a trust gives, or gave when it was checked.

        :raises TrustError: it gives none any more
        :raises ServiceUnavailableError: Keystone does not answer, or refuses the service itself
        """
        return UserServers(self._adapter(self._acting(trust), service_type="compute"))

    def stacks(self, trust: str) -> UserStacks:
        """Return Heat with the rights that a trust gives; errors as of :meth:`servers`."""
        return UserStacks(self._adapter(self._acting(trust), service_type=ENDPOINT))

    def check(self, trust: str) -> None:
        """Ask Keystone whether a trust gives rights now; no token is kept: thousands of jobs may wait.

        :raises TrustError: it gives none any more
        :raises ServiceUnavailableError: Keystone does not answer, or refuses the service itself
        """
        self._ask(trust, v3.Password(**self._credentials, trust_id=trust))

    def delete(self, trust: str) -> None:
        """Give a trust back; one that is not there any more is given back.

        Keystone lets only the trustor delete it: the service does so by the trust itself.

        :raises TrustError: its user is disabled, or has lost a role: so it cannot be deleted, and would do again
        :raises ServiceUnavailableError: Keystone does not answer, or refuses the service itself
        """
        try:
            acting = self._acting(trust)
        except TrustGoneError:
            return
        identity = self._adapter(acting, service_type="identity", version="3")
        delete_trust(identity, trust)
        self._forget(trust)

    def given(self) -> list[GivenTrust]:
        """Return all trusts that users have given to the service, and that have not ended.

        :raises ServiceUnavailableError: Keystone does not answer, or refuses the service itself
        """
        path = f"/OS-TRUST/trusts?trustee_user_id={self.user_id()}"
        own = v3.Password(**self._credentials, unscoped=True)
        # A token without a scope has no catalogue: Keystone is where it was got.
        identity = adapter.Adapter(
            self._transport,
            auth=own,
            interface=AUTH_INTERFACE,
            service_type="identity",
            version="3",
        )
        answer = answered(identity, SERVICE, "GET", path)
        if answer.status_code != _OK:
            raise strange(answer, SERVICE, f"GET {path}")
        try:
            return [
                GivenTrust(each["id"], each["trustor_user_id"], each["project_id"])
                for each in answer.json()["trusts"]
                if each["project_id"]
            ]
        except (ValueError, TypeError, KeyError) as error:
            raise strange(answer, SERVICE, f"GET {path}") from error

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
        acting = self._known(trust) or _Acting(
            v3.Password(**self._credentials, trust_id=trust), self._clock()
        )
        self._ask(trust, acting.plugin)
        with self._lock:
            self._by_trust[trust] = acting
        return acting.plugin

    def _ask(self, trust: str, plugin: v3.Password) -> None:
        """Let Keystone give a token by a trust, where there is no good one yet."""
        try:
            plugin.get_access(self._transport)
        except _REFUSED as error:
            self._forget(trust)
            self.user_id()
            gone = isinstance(error, keystone_errors.Unauthorized)
            raise (TrustGoneError if gone else TrustError)(cut(str(error))) from error
        except keystone_errors.ClientException as error:
            raise ServiceUnavailableError(f"Keystone does not answer: {cut(str(error))}") from error

    def _known(self, trust: str) -> _Acting | None:
        """Return a trust that need not be checked; those that have to be are forgotten."""
        now_s = self._clock()
        with self._lock:
            found = self._by_trust.get(trust)
            if found and now_s - found.checked_s < self._check_s:
                return found
            self._by_trust = {
                key: each
                for key, each in self._by_trust.items()
                if now_s - each.checked_s < self._check_s
            }
        return None

    def _forget(self, trust: str) -> None:
        with self._lock:
            self._by_trust.pop(trust, None)

    def _adapter(self, auth: Any, **options: Any) -> adapter.Adapter:
        return adapter.Adapter(self._transport, auth=auth, **self._endpoint, **options)


def delete_trust(identity: HttpAdapter, trust: str) -> None:
    """Delete a trust with its trustor's rights; one that is not there is deleted.

    :param identity: Keystone's API v3
    :raises ServiceUnavailableError: Keystone does not answer
    """
    path = f"/OS-TRUST/trusts/{trust}"
    answer = answered(identity, SERVICE, "DELETE", path)
    if answer.status_code not in (204, 404):
        raise strange(answer, SERVICE, f"DELETE {path}")
