# SPDX-License-Identifier: Apache-2.0
"""A host of GPUs: has each lease served at the epoch that counts, and ends all else.

What it acknowledges is true: an epoch is reported when the process has cut the clients of older ones, the end of a
lease when no process serves it. Epochs are on disk before a process learns of them, so that a restart of this host's
processes brings no old one back.
"""

import logging
from collections.abc import Mapping
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


class GpuHost:
    """The leases of this host's GPUs.

    :param processes: that serve them
    :param kept: file of the epochs
    """

    def __init__(self, processes: LeaseProcesses, kept: Path) -> None:
        self._processes = processes
        self._store = JsonStore(kept, _VERSION, _decoded, _encoded)
        self._gateways: dict[str, Gateway] = self._store.load() or {}

    def obey(self, answer: LeaseAnswer) -> tuple[dict[str, tuple[int, str]], dict[str, int]]:
        """Do what the service says; return which leases are served, at which epoch and where, and which have ended.

        A lease whose process gives trouble is in neither, and holds up no other one.
        """
        self._learn(answer)
        serves: dict[str, tuple[int, str]] = {}
        for each in answer.serves:
            try:
                serves[each.id] = self._processes.serve(each, self._gateways[each.id].epoch)
            except (ServiceUnavailableError, OSError) as error:
                _LOG.warning("lease %s is not served for now: %s", each.id, error)
        for lease in self._processes.running() - self._gateways.keys():
            try:
                self._processes.end(lease)
            except (ServiceUnavailableError, OSError) as error:
                _LOG.warning("lease %s has not ended yet: %s", lease, error)
        runs = self._processes.running()
        return serves, {each.id: each.epoch for each in answer.ends if each.id not in runs}

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
