# SPDX-License-Identifier: Apache-2.0
"""Who may see and do what."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from oslo_policy import policy

from nova_numa_ext.orchestrator.api import request
from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError, forbidden
from nova_numa_ext.orchestrator.api.request import Asking
from nova_numa_ext.orchestrator.store.scaling import StoredScaling
from nova_numa_ext.orchestrator.store.stored_lease import StoredLease
from nova_numa_ext.orchestrator.store.unreadable import UnreadableError

_LOG: Final = logging.getLogger(__name__)

_Stored = TypeVar("_Stored", StoredLease, StoredScaling)


class Rights:
    """What policy allows.

    :param enforcer: has :data:`.policies.RULES` registered
    """

    def __init__(self, enforcer: policy.Enforcer) -> None:
        self._enforcer = enforcer

    def allow(self, asking: Asking, rule: str) -> None:
        """Refuse who may not do something in the project of its token.

        :raises RefusedRequestError: it is so
        """
        if not self.may(asking, rule, asking.project):
            raise forbidden(rule)

    def may(self, asking: Asking, rule: str, project: str) -> bool:
        """Return whether who asks may do something in a project."""
        return self._authorized(rule, {"project_id": project}, asking.context)

    def allow_host(self, asking: Asking, rule: str, host: str) -> None:
        """Refuse who may not speak for a host.

        :raises RefusedRequestError: it is so
        """
        target = {"project_id": asking.project, "host": host}
        credentials = {
            **asking.context.to_policy_values(),
            "user_name": asking.context.user_name or "",
            "project_name": asking.context.project_name or "",
        }
        if not self._authorized(rule, target, credentials):
            raise forbidden(rule)

    def readable(
        self,
        read: Callable[[str], _Stored | None],
        uuid: str,
        show: str,
        rule: str,
        missing: RefusedRequestError,
    ) -> _Stored:
        """Return what is stored; that of a project that the user has no rights in is not there.

        :param show: rule by which the user may see it
        :param rule: rule by which the user may do what is asked
        :raises RefusedRequestError: it is not there (``missing``), may not be had, or is of another release
        """
        asking = request.asking()
        found: _Stored | UnreadableError | None
        try:
            found = read(uuid)
        except UnreadableError as error:
            found = error
        if found is None or not self.may(asking, show, found.project):
            self.allow(asking, rule)
            raise missing
        if not self.may(asking, rule, found.project):
            raise forbidden(rule)
        if isinstance(found, UnreadableError):
            _LOG.error("request %s: %s", request.context().request_id, found)
            raise RefusedRequestError(
                409, f"{found.what} {uuid} is stored in a form of another release."
            )
        return found

    def _authorized(self, rule: str, target: Mapping[str, str], credentials: Any) -> bool:
        try:
            return bool(self._enforcer.authorize(rule, target, credentials))
        except policy.InvalidScope:
            return False
