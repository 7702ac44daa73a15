# SPDX-License-Identifier: Apache-2.0
"""The leafs of hosts as a server of no group finds them: how well each host suits, by its leaf.

Where no host has the trait of a leaf, nothing is asked. Else the fabrics are read as often as the view of hosts is, so
no decision waits for another one that reads. What could not be read for a while ranks, and refuses nothing.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from nova_numa_ext.fabrics import FabricState
from nova_numa_ext.policy.network import singles
from placement_traits import names
from placement_traits.errors import NumaExtError
from placement_traits.fleet_arrays import FleetArrays

LOG = logging.getLogger(__name__)

_NOTHING: Mapping[str, float] = MappingProxyType({})


class ReadFabrics(Protocol):
    """Fabrics in Placement."""

    def read(self) -> Sequence[FabricState]:
        """Return the fabrics as they are now."""


class SingleLeafs:
    """Values of hosts for servers of no group; any thread may ask.

    :param fabrics: returns those in Placement; called when the first host has a leaf
    :param interval_s: seconds between two readings, at least
    :param clock_s: monotonic clock
    :param believed_s: seconds for which what was read may refuse hosts
    """

    def __init__(
        self,
        fabrics: Callable[[], ReadFabrics],
        interval_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        believed_s: float = float("inf"),
    ) -> None:
        self._fabrics = fabrics
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._believed_s = believed_s
        self._lock = threading.Lock()
        self._source: ReadFabrics | None = None
        self._states: Sequence[FabricState] = ()
        self._due_s = self._read_s = -float("inf")

    def of(self, host_states: Sequence[Any], arrays: FleetArrays) -> Mapping[str, float]:
        """Return the value of each host that hangs on a leaf, by root provider.

        :param host_states: nova's HostStates
        :param arrays: hosts with their traits
        """
        kinds = [_leaf_trait(traits) for traits in arrays.trait_sets]
        if not any(kinds):
            return _NOTHING
        kind_of, rows = arrays.hosts["kind"].tolist(), arrays.rows
        trait_of = {
            state.uuid: trait
            for state in host_states
            if (row := rows.get(state.uuid)) is not None and (trait := kinds[kind_of[row]])
        }
        used: dict[str, int] = {}
        for state in host_states:
            if state.uuid in trait_of and state.num_instances:
                used[trait_of[state.uuid]] = used.get(trait_of[state.uuid], 0) + 1
        value_of: dict[str, float] = {}
        for fabric in self._read():
            trait_of_leaf = {leaf: trait for trait, leaf in fabric.leaf_of_trait.items()}
            # Who may write traits can take a leaf's: no host hangs on such a one.
            traits = [trait_of_leaf.get(leaf.name, "") for leaf in fabric.leafs.leafs]
            found = singles.values(fabric.leafs, [used.get(trait, 0) for trait in traits])
            value_of |= dict(zip(traits, found, strict=True))
        return {root: value_of[trait] for root, trait in trait_of.items() if trait in value_of}

    def closed(self, value_of: Mapping[str, float]) -> frozenset[str]:
        """Return the hosts whose uplinks a group has alone, as far as that is known of late.

        :param value_of: as of :meth:`of`
        """
        if self._clock_s() - self._read_s > self._believed_s:
            return frozenset()
        return frozenset(root for root, value in value_of.items() if value == singles.CLOSED)

    def _read(self) -> Sequence[FabricState]:
        if self._clock_s() >= self._due_s and self._lock.acquire(blocking=False):
            try:
                self._due_s = self._clock_s() + self._interval_s
                self._source = self._source or self._fabrics()
                began_s = self._clock_s()
                self._states = self._source.read()
                self._read_s = began_s
            except NumaExtError as error:
                LOG.warning("Single servers are placed by older knowledge of leafs: %s", error)
            finally:
                self._lock.release()
        return self._states


def _leaf_trait(traits: frozenset[str]) -> str:
    return "" if names.MISCABLED in traits else min(filter(names.is_leaf_trait, traits), default="")


def column(
    value_of: Mapping[str, float], roots: Sequence[str]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the values of hosts as one column, NaN where one has none."""
    return np.array([value_of.get(root, np.nan) for root in roots], np.float64)
