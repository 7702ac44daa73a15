# SPDX-License-Identifier: Apache-2.0
"""A host of GPUs: has each lease served at the epoch that counts, and ends all else.

What it acknowledges is true: an epoch is reported when the process has cut the clients of older ones, the end of a
lease when no process serves it. Epochs are on disk before a process learns of them, so that a restart of this host's
processes brings no old one back, and no second process serves one: of a lease whose process is gone the end is reported
too, and another process is started at the epoch that the service answers.

Each lease is in hand of a thread of its own: one whose process is slow or hangs delays neither others nor the report.
One that comes from another host, or goes there, is in hand of :mod:`.moves`.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Final

from host_agent.remote_gpu.answer import LeaseAnswer, LeaseMoveReport, ServedLease, lease_id
from host_agent.remote_gpu.moves import HostMoves
from host_agent.remote_gpu.processes import LeaseProcesses, LeaseProcessGoneError
from nova_numa_ext.policy.remote_gpu.gateway import Gateway
from placement_traits.errors import ServiceUnavailableError
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_LOG: Final = logging.getLogger(__name__)
_VERSION: Final = 1
_WAIT_S: Final = 5.0
_AT_ONCE: Final = 32


def epochs_in(file: Path) -> JsonStore[dict[str, Gateway]]:
    """Return the file of the epochs that this host has served, by lease."""
    return JsonStore(file, _VERSION, _decoded, _encoded)


class GpuHost:
    """The leases of this host's GPUs.

    :param processes: that serve them
    :param kept: file of the epochs
    :param moves: of leases; None: there are none
    :ivar moving: lease -> what was done for its move, when :meth:`obey` returned
    """

    def __init__(
        self, processes: LeaseProcesses, kept: Path, moves: HostMoves | None = None
    ) -> None:
        self._processes = processes
        self._moves = moves
        self._store = epochs_in(kept)
        self._gateways: dict[str, Gateway] = self._store.load() or {}
        self._writes = threading.Lock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, "lease")
        self._in_hand: dict[str, Future[tuple[int, str] | None]] = {}
        self.moving: Mapping[str, LeaseMoveReport] = {}

    @property
    def can_move(self) -> bool:
        """Leases come and go with all that their processes have."""
        return self._moves is not None and self._moves.possible

    def obey(self, answer: LeaseAnswer) -> tuple[dict[str, tuple[int, str]], dict[str, int]]:
        """Do what the service says; return which leases are served, at which epoch and where, and which have ended.

        Ended is also one that is to be served and whose process is gone, at the epoch that it served. A lease whose
        process gives trouble, or is still in hand after a while, is in neither; of what comes or goes, :attr:`moving`
        tells.
        """
        self._learn(answer)
        left: dict[str, int] = {}
        kept = {each.id for each in answer.sends} | {each.lease.id for each in answer.receives}
        if self._moves is not None:
            self.moving, left = self._moves.obey(
                answer.sends, answer.receives, self._gateways.keys()
            )
            kept |= self._moves.in_hand()
        for each in answer.serves:
            if each.id not in kept:
                self._hand(each.id, partial(self._served, each, self._gateways[each.id]))
        for lease in self._processes.running() - self._gateways.keys() - kept:
            self._hand(lease, partial(self._processes.end, lease))
        wait(self._in_hand.values(), _WAIT_S)
        found, gone = self._taken_back()
        serves = {each.id: found[each.id] for each in answer.serves if each.id in found}
        ended = {each.id: gone[each.id] for each in answer.serves if each.id in gone}
        runs = self._processes.running() | self._in_hand.keys()
        ended |= {each.id: each.epoch for each in answer.ends if each.id not in runs}
        return serves, ended | left

    def used(self) -> dict[str, float]:
        """Return the part of the time in which leases kept their GPUs busy, of those of which it is known."""
        return self._processes.used()

    def link_mbps(self) -> dict[str, float]:
        """Return what has gone over the link for leases, megabytes a second, of those of which it is known."""
        return self._processes.link_mbps()

    def memory_mb(self) -> dict[str, float]:
        """Return the memory that leases have in use of their GPUs, MiB, of those of which it is known."""
        return self._processes.memory_mb()

    def _served(self, asked: ServedLease, gateway: Gateway) -> tuple[int, str]:
        """Have a lease served at its epoch; return that and where.

        :raises LeaseProcessGoneError: the process that may have served it is gone
        """
        if not gateway.is_given:
            if self._moves is not None and self._moves.settle(asked.id, gateway.epoch):
                self._processes.end(asked.id)
            self._processes.start(asked)
            with self._writes:
                known = self._gateways.get(asked.id, gateway).give(gateway.epoch)
                self._keep({**self._gateways, asked.id: known})
            if self._moves is not None:
                self._moves.settled(asked.id)
        return self._processes.serve(asked.id, gateway.epoch, asked.client_host, asked.network_mbps)

    def _hand(self, lease: str, do: Callable[[], tuple[int, str] | None]) -> None:
        if lease not in self._in_hand:
            self._in_hand[lease] = self._threads.submit(do)

    def _taken_back(self) -> tuple[dict[str, tuple[int, str]], dict[str, int]]:
        """Return of leases in hand no more: at which epoch and where they are served; which epoch no process serves."""
        done = {lease: each for lease, each in self._in_hand.items() if each.done()}
        found, gone = {}, {}
        for lease, each in done.items():
            del self._in_hand[lease]
            try:
                served = each.result()
            except LeaseProcessGoneError as error:
                _LOG.warning("%s", error)
                gone[lease] = error.epoch
            except (ServiceUnavailableError, OSError) as error:
                _LOG.warning("lease %s is as it was for now: %s", lease, error)
            else:
                if served is not None:
                    found[lease] = served
        return found, gone

    def _learn(self, answer: LeaseAnswer) -> None:
        with self._writes:
            self._keep(
                {
                    each.id: self._gateways.get(each.id, Gateway()).learn(each.epoch)
                    for each in answer.serves
                }
            )

    def _keep(self, gateways: dict[str, Gateway]) -> None:
        if gateways != self._gateways:
            self._store.save(gateways)
            self._gateways = gateways


def _encoded(gateways: Mapping[str, Gateway]) -> Mapping[str, Any]:
    return {
        "epochs": {lease: each.epoch for lease, each in gateways.items()},
        "given": {lease: each.given for lease, each in gateways.items()},
    }


def _decoded(found: Value) -> dict[str, Gateway]:
    epochs = found.member("epochs").members()
    given = found.members().get("given")
    # A release before this one gave each epoch to a process, and took no note of it.
    known = epochs if given is None else given.members()
    return {
        lease_id(lease): Gateway(
            each.integer(1), serves=True, given=known.get(lease, each).integer()
        )
        for lease, each in epochs.items()
    }
