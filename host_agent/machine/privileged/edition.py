# SPDX-License-Identifier: Apache-2.0
"""Which release and options a process runs with: the agent says it to the helper on each connection, before all else.

The helper outlives the agent, so it may have been started before an upgrade or a change of its options. One that
hears of another edition than its own reads its files again. Where they have changed it ends, and what holds its socket
starts the next one. Where they have not, it is the other process that is old: another release is refused, because
shapes on the wire differ, and options that only that process does not know yet are not.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from host_agent.conf.options import Options
from placement_traits.errors import ConflictError, NumaExtError

LOG = logging.getLogger(__name__)

_DISTRIBUTION: Final = "nova-numa-ext"


@dataclass(frozen=True, slots=True)
class Edition:
    """What both ends have to have in common.

    :param release: of this software, and so the version of the wire
    :param options: digest of those that the helper uses
    """

    release: str
    options: str


def of(options: Options) -> Edition:
    """Return the edition that is installed now, with these options."""
    used = (options.paths, options.release_after_s, options.helper.agent_user)
    digest = hashlib.sha256(repr(used).encode()).hexdigest()
    return Edition(metadata.version(_DISTRIBUTION), digest)


class Succession:
    """Tells when a helper has to make room for the next one.

    :param own: what it was started with
    :param installed: returns what the next one would have; None: nothing starts a next one

    :ivar over: it has to
    """

    def __init__(self, own: Edition, installed: Callable[[], Edition] | None = None) -> None:
        self._own, self._installed = own, installed
        self._warned_of: Edition | None = None
        self.over = False

    def meet(self, other: Edition) -> bool:
        """Compare with the edition of a process that has connected.

        :returns: it is served; else it is to connect again, to the next helper
        :raises ConflictError: it is of another release than helper and installation
        """
        if other == self._own:
            return True
        if self._next() != self._own:
            LOG.info("release or options have changed: this helper ends, the next one has them")
            self.over = True
            return False
        if other.release != self._own.release:
            raise ConflictError(
                f"the helper is of release {self._own.release}, and does not understand release {other.release}: "
                "restart numa-host-agent, then numa-host-agent-helper"
            )
        if other != self._warned_of:
            LOG.warning(
                "a process has other options than the helper: restart the one that is older"
            )
            self._warned_of = other
        return True

    def _next(self) -> Edition:
        if self._installed is None:
            return self._own
        try:
            return self._installed()
        except NumaExtError as error:
            LOG.warning("options cannot be read again, those from before stay: %s", error)
            return self._own
