# SPDX-License-Identifier: Apache-2.0
"""A host of GPUs: has each lease served at the epoch that counts, and ends all else.

What it acknowledges is true: an epoch is reported when the process has cut the clients of older ones, the end of a
lease when no process serves it. Epochs are on disk before a process learns of them, so that a restart of this host's
processes brings no old one back.

Each lease is in hand of a thread of its own: one whose process is slow or hangs delays neither others nor the report.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Final

from host_agent.remote_gpu.answer import LeaseAnswer, lease_id
from host_agent.remote_gpu.processes import LeaseProcesses
from nova_numa_ext.policy.remote_gpu.gateway import Gateway
from placement_traits.errors import ServiceUnavailableError
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_LOG: Final = logging.getLogger(__name__)
_VERSION: Final = 1
_WAIT_S: Final = 5.0
_AT_ONCE: Final = 32


class GpuHost:
    """The leases of this host's GPUs.

    :param processes: that serve them
    :param kept: file of the epochs
    """

    def __init__(self, processes: LeaseProcesses, kept: Path) -> None:
        self._processes = processes
        self._store = JsonStore(kept, _VERSION, _decoded, _encoded)
        self._gateways: dict[str, Gateway] = self._store.load() or {}
        self._threads = ThreadPoolExecutor(_AT_ONCE, "lease")
        self._in_hand: dict[str, Future[tuple[int, str] | None]] = {}

    def obey(self, answer: LeaseAnswer) -> tuple[dict[str, tuple[int, str]], dict[str, int]]:
        """Do what the service says; return which leases are served, at which epoch and where, and which have ended.

        A lease whose process gives trouble, or is still in hand after a while, is in neither.
        """
        self._learn(answer)
        for each in answer.serves:
            epoch = self._gateways[each.id].epoch
            self._give(each.id, partial(self._processes.serve, each, epoch))
        for lease in self._processes.running() - self._gateways.keys():
            self._give(lease, partial(self._processes.end, lease))
        wait(self._in_hand.values(), _WAIT_S)
        found = self._taken_back()
        serves = {each.id: found[each.id] for each in answer.serves if each.id in found}
        runs = self._processes.running() | self._in_hand.keys()
        return serves, {each.id: each.epoch for each in answer.ends if each.id not in runs}

    def _give(self, lease: str, do: Callable[[], tuple[int, str] | None]) -> None:
        if lease not in self._in_hand:
            self._in_hand[lease] = self._threads.submit(do)

    def _taken_back(self) -> dict[str, tuple[int, str]]:
        """Return at which epoch and where leases are served that are in hand no more."""
        done = {lease: each for lease, each in self._in_hand.items() if each.done()}
        found = {}
        for lease, each in done.items():
            del self._in_hand[lease]
            try:
                served = each.result()
            except (ServiceUnavailableError, OSError) as error:
                _LOG.warning("lease %s is as it was for now: %s", lease, error)
            else:
                if served is not None:
                    found[lease] = served
        return found

    def _learn(self, answer: LeaseAnswer) -> None:
        found = {
            each.id: self._gateways.get(each.id, Gateway()).learn(each.epoch)
            for each in answer.serves
        }
        if found != self._gateways:
            self._store.save(found)
            self._gateways = found


def _encoded(gateways: Mapping[str, Gateway]) -> Mapping[str, Any]:
    return {"epochs": {lease: each.epoch for lease, each in gateways.items()}}


def _decoded(found: Value) -> dict[str, Gateway]:
    epochs = found.member("epochs").members()
    return {
        lease_id(lease): Gateway(each.integer(1), serves=True) for lease, each in epochs.items()
    }
