# SPDX-License-Identifier: Apache-2.0
"""Plug the latency port into latency-critical servers: at their start, after a hard reboot, after they moved here.

Nova writes the domain's XML again at a hard reboot, and the port is gone; on a live migration it travels. So what is
there is read from the live XML in every round, and what lacks is plugged in. The virtio-serial *controller* cannot be
plugged: it has to be there from the start (image property ``hw_qemu_guest_agent=yes``).
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from host_agent.model.journal import ActionJournal, Entry, Result
from host_agent.model.latency import PORT, LcServer
from host_agent.util.background import BackgroundTasks
from placement_traits.errors import NumaExtError
from placement_traits.names import SloSource

LOG = logging.getLogger(__name__)

_RETRY_S: Final = 30.0
_NO_CONTROLLER: Final = (
    "it has no virtio-serial controller, so no port can be plugged in: give its image the property "
    "hw_qemu_guest_agent=yes and rebuild it, or use Prometheus"
)


class SloPorts:
    """Plugs ports, off the caller's thread.

    :param plug: plugs the port into a running domain, by its UUID
    :param journal: gets each port, and once each server that can have none
    :param tasks: runs what may take long
    :param plugged: called after a port was plugged in: the domain has to be read again
    """

    def __init__(
        self,
        plug: Callable[[str], None],
        journal: ActionJournal,
        tasks: BackgroundTasks,
        plugged: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plug_into = plug
        self._journal = journal
        self._tasks = tasks
        self._plugged = plugged
        self._clock = clock
        self._tried: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    def serve(self, lcs: Iterable[LcServer]) -> None:
        """See to it that these servers have a port where they want one; does not wait."""
        wanting = {lc.uuid: lc for lc in lcs if lc.reads(SloSource.CHANNEL)}
        self._tried = {uuid: at for uuid, at in self._tried.items() if uuid in wanting}
        self._reported = {uuid: text for uuid, text in self._reported.items() if uuid in wanting}
        for uuid, lc in wanting.items():
            if lc.socket:
                self._tried.pop(uuid, None)
            elif not lc.pluggable:
                self._report(lc, _NO_CONTROLLER)
            elif self._clock() >= self._tried.get(uuid, 0.0):
                self._tried[uuid] = self._clock() + _RETRY_S
                self._tasks.submit(self._plug, lc)

    def _plug(self, lc: LcServer) -> None:
        try:
            self._plug_into(lc.uuid)
        except NumaExtError as error:
            self._report(lc, str(error))
            return
        self._reported.pop(lc.uuid, None)
        self._journal.write(Entry("plug", Result.DONE, lc.uuid, lc.title, what={"port": PORT}))
        self._plugged()

    def _report(self, lc: LcServer, problem: str) -> None:
        if self._reported.get(lc.uuid) != problem:
            self._reported[lc.uuid] = problem
            LOG.warning("server %s has no latency port: %s", lc.uuid, problem)
            self._journal.write(Entry("plug", Result.FAILED, lc.uuid, lc.title, problem=problem))
