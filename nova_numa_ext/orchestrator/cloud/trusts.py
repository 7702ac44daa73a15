# SPDX-License-Identifier: Apache-2.0
"""What the engine needs of Keystone to act for a job's user: a trust, of which only the id is stored."""

from dataclasses import dataclass
from typing import Protocol

from nova_numa_ext.orchestrator.cloud.servers import UserServers
from nova_numa_ext.orchestrator.cloud.stacks import UserStacks
from placement_traits.errors import NumaExtError


class TrustError(NumaExtError):
    """Keystone lets the service not act for a user any more: disabled, without the role, or the trust was deleted."""


class TrustGoneError(TrustError):
    """Keystone does not know the trust: it was deleted."""


@dataclass(frozen=True, slots=True)
class GivenTrust:
    """A trust that some user has given to the service.

    :param trust: its id
    :param user: who gave it
    :param project: for which project
    """

    trust: str
    user: str
    project: str


class Trusts(Protocol):
    """How the engine comes to a user's rights."""

    def servers(self, trust: str) -> UserServers:
        """Return nova with the rights that a trust gives.

        :raises TrustError: it gives none any more
        :raises ServiceUnavailableError: Keystone does not answer
        """

    def stacks(self, trust: str) -> UserStacks:
        """Return Heat with the rights that a trust gives.

        :raises TrustError: it gives none any more
        :raises ServiceUnavailableError: Keystone does not answer
        """

    def check(self, trust: str) -> None:
        """Ask Keystone whether a trust gives rights now; nothing is kept of the answer.

        :raises TrustError: it gives none any more
        :raises ServiceUnavailableError: Keystone does not answer
        """

    def given(self) -> list[GivenTrust]:
        """Return all trusts that users have given to the service, and that have not ended.

        :raises ServiceUnavailableError: Keystone does not answer
        """

    def delete(self, trust: str) -> None:
        """Give a trust back; one that is not there any more is given back.

        :raises TrustError: it gives no rights now, so it cannot be deleted; it is there, and may give some again
        :raises ServiceUnavailableError: Keystone does not answer
        """
