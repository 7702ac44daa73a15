# SPDX-License-Identifier: Apache-2.0
"""What the engine needs of Keystone to act for a job's user: a trust, of which only the id is stored."""

from typing import Protocol

from nova_numa_ext.orchestrator.cloud.servers import UserServers
from placement_traits.errors import NumaExtError


class TrustError(NumaExtError):
    """Keystone lets the service not act for a user any more: disabled, without the role, or the trust was deleted."""


class Trusts(Protocol):
    """How the engine comes to a user's rights."""

    def servers(self, trust: str) -> UserServers:
        """Return nova with the rights that a trust gives.

        :raises TrustError: it gives none any more
        :raises ServiceUnavailableError: Keystone does not answer
        """

    def delete(self, trust: str) -> None:
        """Give a trust back; one that is not there any more is given back.

        :raises ServiceUnavailableError: Keystone does not answer
        """
