# SPDX-License-Identifier: Apache-2.0
"""What only nova knows about a server: is something under way with it, and is it nova's opinion that it runs here?"""

from typing import Any, Final

from keystoneauth1 import exceptions as keystone

from placement_traits.client import HttpAdapter
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError

# nova.objects.MigrationList: statuses of migrations that need nothing more. "finished" is not one of them: such a
# resize waits for its confirmation.
_OVER: Final = frozenset(
    {"confirmed", "reverted", "error", "failed", "completed", "cancelled", "done"}
)


class NovaApi:
    """Nova, asked with the credentials of ``[placement]``.

    :param compute: a keystoneauth1 adapter for service type ``compute``
    """

    def __init__(self, compute: HttpAdapter) -> None:
        self._compute = compute

    def why_busy(self, server: str, host: str) -> str:
        """Return why nothing of a server's allocations may be touched now, "" when it may.

        :param server: UUID
        :param host: name of the compute node that should have it
        :raises ServiceUnavailableError: nova does not answer
        :raises CapabilityMissingError: nova does not answer these credentials
        """
        body = self._get(f"/servers/{server}")
        if body is None:
            return "nova does not know the server"
        known = body["server"]
        place, task = "OS-EXT-SRV-ATTR:hypervisor_hostname", "OS-EXT-STS:task_state"
        if place not in known:
            raise _refused("does not show the host of a server")
        if known[place] != host:
            return f"nova has it on {known[place] or 'no host'}"
        if known[task]:
            return f"task {known[task]}"
        if known["status"] != "ACTIVE":
            return f"status {known['status']}"
        return self._migrating(server)

    def check(self) -> None:
        """Ask something that only these rights allow; errors as of :meth:`why_busy`."""
        self._get("/os-migrations?limit=1")

    def _migrating(self, server: str) -> str:
        body = self._get(f"/os-migrations?instance_uuid={server}")
        if body is None:
            raise _refused("has no list of migrations")
        under_way = sorted({m["status"] for m in body["migrations"]} - _OVER)
        return f"migration {under_way[0]}" if under_way else ""

    def _get(self, path: str) -> Any:
        """Return the decoded body, None for 404."""
        try:
            answer = self._compute.request(path, "GET", raise_exc=False)
        except keystone.ClientException as error:
            raise ServiceUnavailableError(f"Nova does not answer GET {path}: {error}") from error
        if answer.status_code == 404:
            return None
        if answer.status_code in (401, 403):
            raise _refused(f"answers {answer.status_code}")
        if answer.status_code != 200:
            raise ServiceUnavailableError(f"Nova answered GET {path} with {answer.status_code}")
        return answer.json()


def _refused(what: str) -> CapabilityMissingError:
    return CapabilityMissingError(
        f"Nova {what}: the user of [placement] needs the admin role, or set [placement]rehome = false"
    )
