# SPDX-License-Identifier: Apache-2.0
"""What is known of this host's CPUs while some of them are offline, kept over restarts of the agent."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from host_agent.observe.topology.offline import all_online, with_offline
from placement_traits.best_effort import BestEffortWriter, ignore_loss
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value
from placement_traits.topology import HostTopology

_VERSION: Final = 1


def store(path: Path) -> JsonStore[HostTopology]:
    """Return the file."""
    return JsonStore(path, _VERSION, _decode, _encode)


def _encode(known: HostTopology) -> Mapping[str, Any]:
    return {"topology": known.to_dict()}


def _decode(found: Value) -> HostTopology:
    topology = found.member("topology")
    return HostTopology.from_dict(topology.raw, topology.where)


class KnownTopology:
    """Completes what sysfs shows by what it has shown before.

    :param path: state file
    :param keep: write the file; commands and a dry run only read it
    :param lost: called with the file's name for each write that failed
    """

    def __init__(
        self, path: Path, *, keep: bool = False, lost: Callable[[str], None] = ignore_loss
    ) -> None:
        self._store = store(path)
        self._keep = keep
        self._writer = BestEffortWriter("topology", lost)
        self._known: HostTopology | None = None
        self._kept: HostTopology | None = None

    def complete(self, seen: HostTopology) -> HostTopology:
        """Return the host with its offline CPUs, as far as they were ever seen online."""
        if self._known is None:
            self._known = self._kept = self._store.load()
        whole = with_offline(seen, self._known) if self._known else seen
        known = self._known = all_online(whole)
        if (
            self._keep
            and known != self._kept
            and self._writer.attempt(lambda: self._store.save(known))
        ):
            self._kept = known
        return whole
