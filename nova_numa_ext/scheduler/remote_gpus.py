# SPDX-License-Identifier: Apache-2.0
"""Remote GPUs for the filter and the weigher: pools and leases as Placement shows them, only where a request has a use.

Pools are read when a request asks for remote GPUs, at most once per interval of the view in each worker: three requests
of which nova's own scheduling makes as many. The answer is :class:`nova_numa_ext.policy.remote_gpu.reach.Reach`.

A server of a job may come with its leases made: ``numa_ext_lease``, a scheduler hint, names them. Anyone can write
hints, so it counts only for leases of the server's project. Nova keeps hints as long as the server lives: one whose
leases have gone is as none.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final

import numpy as np

from nova_numa_ext.policy.numa.shortlist import Size
from nova_numa_ext.policy.remote_gpu.reach import ClientHost, HeldLeases, Reach
from nova_numa_ext.scheduler import moves
from nova_numa_ext.scheduler.shortlist import HostOrder, ListMaker, Question
from placement_traits import pool_reader
from placement_traits.claim_store import ClaimStore, ForeignConsumerError
from placement_traits.claims import Claim
from placement_traits.client import HttpAdapter, PlacementClient, RetrySettings
from placement_traits.errors import NumaExtError, cut
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import LEASE_CONSUMER, RemoteGpu
from placement_traits.pools import Pool
from placement_traits.remote_gpu_request import LEASE_HINT as HINT
from placement_traits.workload_request import WorkloadRequest

LOG = logging.getLogger(__name__)

_MOST_LEASES: Final = 16


class _HintError(NumaExtError):
    """A hint that names no leases of the server's project."""


class RemoteGpuSource:
    """Pools and leases in Placement; safe to use from several threads.

    :param adapter: a keystoneauth1 adapter for service type ``placement``
    :param interval_s: for which pools that were read are good
    :param max_age_s: for which they are where Placement does not answer
    :param clock_s: monotonic clock
    """

    def __init__(
        self,
        adapter: HttpAdapter,
        interval_s: float,
        max_age_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = PlacementClient(adapter, RetrySettings(attempts=2))
        self._claims = ClaimStore(self._client)
        self._interval_s, self._max_age_s = interval_s, max_age_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._pools: tuple[Pool, ...] | None = None
        self._read_s = self._tried_s = -inf

    def pools(self) -> tuple[Pool, ...] | None:
        """Return all pools; None where they are not known."""
        with self._lock:
            now = self._clock_s()
            if now - self._tried_s >= self._interval_s:
                self._tried_s = now
                try:
                    self._pools, self._read_s = pool_reader.read(self._client), now
                except NumaExtError as error:
                    LOG.warning("Pools of remote GPUs cannot be read: %s", error)
            return self._pools if now - self._read_s <= self._max_age_s else None

    def nics_with(self, mbps: int) -> frozenset[str] | None:
        """Return the root providers of hosts whose NIC to pools has so many MB/s left; None where that is not known."""
        try:
            return pool_reader.clients_with(self._client, mbps)
        except NumaExtError as error:
            LOG.warning("The NICs to pools of remote GPUs cannot be read: %s", error)
            return None

    def lease(self, consumer: str) -> Claim | None:
        """Return what a lease holds, None where there is none.

        :raises ForeignConsumerError: it is something else
        :raises ServiceUnavailableError: Placement does not answer
        """
        found = self._claims.read(consumer)
        if found is not None and found.type != LEASE_CONSUMER:
            raise ForeignConsumerError(f"Consumer {consumer} is a {found.type}.")
        return found

    def roots_of(self, providers: frozenset[str]) -> frozenset[str]:
        """Return the roots of the trees that some providers are in."""
        found = (self._client.get(f"/resource_providers/{each}") for each in sorted(providers))
        return frozenset(each["root_provider_uuid"] for each in found)


def reach(
    source: RemoteGpuSource | None,
    spec: Any,
    request: WorkloadRequest | None,
    host_states: Sequence[Any],
    earlier: int,
) -> Reach | None:
    """Return what answers for a server, None where it asks for no remote GPU, or Placement does not tell.

    :param earlier: servers of its request that have been placed
    """
    if source is None or request is None or request.remote_gpus is None:
        return None
    known = source.pools()
    if known is None:
        return None
    found = Reach(
        request.remote_gpus,
        known,
        required=request.remote_gpu is RemoteGpu.REQUIRED,
        servers=1 + earlier,
        moving=moves.is_move(spec, host_states),
        nics_with=source.nics_with,
    )
    try:
        return replace(found, held=_held(source, spec, known))
    except (_HintError, ForeignConsumerError) as error:
        if not found.moving:
            return replace(found, problem=cut(str(_hints(spec)[HINT])))
        LOG.warning("The hint %s of server %s does not count: %s", HINT, spec.instance_uuid, error)
        return found
    except NumaExtError as error:
        LOG.warning("The leases of server %s cannot be read: %s", spec.instance_uuid, error)
        return None


def _held(source: RemoteGpuSource, spec: Any, known: tuple[Pool, ...]) -> HeldLeases | None:
    """Return what the leases of the hint hold; None without, and where one of them has gone."""
    claims = [source.lease(each) for each in _leases(spec)]
    held = [claim for claim in claims if claim is not None]
    if any(claim.project != spec.project_id for claim in held):
        raise _HintError("it is of another project")
    if not held or len(held) < len(claims):
        return None
    providers = frozenset(provider for claim in held for provider in claim.amounts)
    of_pools = {pool.root: pool.providers & providers for pool in known}
    others = providers.difference(*of_pools.values())
    return HeldLeases(
        frozenset(root for root, its in of_pools.items() if its), source.roots_of(others)
    )


def _leases(spec: Any) -> list[str]:
    given = _hints(spec).get(HINT, [])
    listed = [given] if isinstance(given, str) else list(given)
    found = [each for text in listed[: _MOST_LEASES + 1] for each in str(text).split(",")]
    if len(found) > _MOST_LEASES:
        raise _HintError("it names too many")
    try:
        return [str(uuid.UUID(each)) for each in found]
    except ValueError as error:
        raise _HintError("it is no uuid") from error


def _hints(spec: Any) -> Mapping[str, Any]:
    return (spec.scheduler_hints if "scheduler_hints" in spec else None) or {}


def client_host(host_state: Any, arrays: FleetArrays) -> ClientHost:
    """Return a HostState as :class:`Reach` sees it."""
    row = arrays.rows.get(host_state.uuid)
    traits = None if row is None else arrays.trait_sets[int(arrays.hosts["kind"][row])]
    return ClientHost(host_state.uuid, host_state.nodename, traits)


class ByNearness:
    """Orders hosts by how near remote GPUs are, and those where they are as near as others order them.

    :param others: orders hosts by all else
    """

    def __init__(self, others: ListMaker) -> None:
        self._others = others

    def __call__(self, question: Question, size: Size) -> HostOrder | None:
        """Return the order, None for a request that asks for no remote GPU."""
        reach, arrays = question.context.reach, question.context.snapshot.arrays
        found = self._others(question, size) if reach is not None else None
        if reach is None or found is None:
            return None
        hosts = [client_host(state, arrays) for state in question.host_states]
        near = np.array([-1.0 if reach.reasons(each) else reach.nearness(each) for each in hosts])
        every = np.concatenate([found.first, found.rest])
        every = every[np.argsort(-near[every], kind="stable")]
        return HostOrder(every[: len(found.first)], every[len(found.first) :])
