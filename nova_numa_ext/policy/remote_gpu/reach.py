# SPDX-License-Identifier: Apache-2.0
"""May a server that uses GPUs of other hosts go to a host, and how near would they be?

A host is a *client* where its agent carries servers to pools. It reaches the pools of its fabrics, and its own.

* A new server with ``numa_ext:remote_gpu=required`` needs room for all its GPUs, for those of the servers of the same
  request that were placed before it, and on its host's NIC. What is free now may be gone when its leases are made: then
  it waits for them. Placement counts, this predicts.
* With ``allowed`` no host is refused: room only ranks.
* A server that moves keeps its leases: only client and fabric count.
* A server whose leases were made first (a job's) needs no room: it goes where it was planned, or to any host that
  reaches the pools of its leases.

How near, in [0, 1], is the mean over its GPUs: 1 for one of its own host, and for another

    ½ · (1 − load · share)

:math:`load`: what the pool's NIC that has most left lacks of the fastest NIC of all pools, as a part of that: it is
promised to others, or its fabric is slower; :math:`share`: part of the run time that goes to the network, 1
where it is not known (DRMaestro's network-aware cost, Amaral 2019, section 5.6.5; that run times follow the bandwidth,
Prades 2021, section 2.4). Where all NICs are as fast, it is the part that is promised.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nova_numa_ext.policy.remote_gpu.slices import GpuRoom, GpuSlice
from nova_numa_ext.policy.terms import Term
from placement_traits import names
from placement_traits.pools import Pool, PoolGpu
from placement_traits.reason import Reason
from placement_traits.remote_gpu_request import RemoteGpuRequest


@dataclass(frozen=True, slots=True)
class ClientHost:
    """A host where the server might go.

    :param root: its root provider
    :param name: of that
    :param traits: of that, ours alone; None where no agent has published the host
    """

    root: str
    name: str
    traits: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class HeldLeases:
    """The leases that a server has already.

    :param pools: roots of the pools that they are of
    :param planned: root providers of the hosts for which they were made
    """

    pools: frozenset[str]
    planned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a set of pools offers.

    :param leases: that find room
    :param most_mbps: that is left on a NIC of one with room
    """

    leases: int = 0
    most_mbps: int = 0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one host sees of the pools.

    :param roots: of those that it reaches
    :param kind: one of them has a GPU that the server can use
    :param own: what the host's own pool offers, over no wire
    :param others: what the other ones offer together
    """

    roots: frozenset[str]
    kind: bool
    own: _Offer
    others: _Offer


@dataclass(slots=True)
class Reach:
    """Answers for one server.

    :param request: what it asks for
    :param pools: all there are
    :param required: hosts without room are refused
    :param servers: how many need room: the server and those of its request that were placed before it
    :param moving: it has run elsewhere
    :param held: its leases, None where they are not made yet
    :param problem: why the scheduler hint with its leases does not count, '' where it does
    :param nics_with: root providers of hosts whose NIC has so many MB/s left, None where that is not known
    """

    request: RemoteGpuRequest
    pools: tuple[Pool, ...]
    required: bool
    servers: int = 1
    moving: bool = False
    held: HeldLeases | None = None
    problem: str = ""
    nics_with: Callable[[int], frozenset[str] | None] = lambda _mbps: None
    _lenders: frozenset[str] = field(init=False)
    _fastest_mbps: int = field(init=False)
    _by_kind: dict[tuple[frozenset[str] | None, str], _Seen] = field(
        init=False, default_factory=dict
    )
    _rooms: dict[int, frozenset[str] | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._lenders = frozenset(pool.host for pool in self.pools)
        nics = (nic for pool in self.pools for nic in pool.nics)
        self._fastest_mbps = max((nic.mbps.capacity for nic in nics), default=0)

    def reasons(self, host: ClientHost) -> tuple[Reason, ...]:
        """Return why a server may not go to a host; nothing where remote GPUs are only allowed."""
        if self.problem:
            return (Reason(Term.LEASE_HINT, self.problem),)
        return self.lacking(host) if self.required or self.held is not None else ()

    def lacking(self, host: ClientHost) -> tuple[Reason, ...]:
        """Return the first thing for which a host cannot have the server's GPUs."""
        reason = self._no_way(host)
        if reason is None and self.held is None and not self.moving:
            reason = self._no_room(host)
        return () if reason is None else (reason,)

    def _no_way(self, host: ClientHost) -> Reason | None:
        if host.traits is None:
            return Reason(Term.AGENT, "absent")
        if names.REMOTE_GPU_CLIENT not in host.traits:
            return Reason(Term.REMOTE_GPU_CLIENT, "absent", names.REMOTE_GPU_CLIENT)
        reached = self._seen(host).roots
        enough = reached >= self.held.pools if self.held is not None else bool(reached)
        fabrics = ", ".join(sorted(names.fabrics(host.traits))) or "none"
        return None if enough else Reason(Term.REMOTE_GPU_FABRIC, fabrics)

    def _no_room(self, host: ClientHost) -> Reason | None:
        seen = self._seen(host)
        if not seen.kind:
            return Reason(Term.REMOTE_GPU_KIND, self._asked())
        needed = self.servers * self.request.count
        local, remote = seen.own.leases, seen.others.leases
        if local + remote < needed:
            return Reason(Term.REMOTE_GPU_ROOM, local + remote, needed)
        mbps = max(0, needed - local) * self.request.network_mbps
        if mbps and not self._has_nic(host.root, mbps):
            return Reason(Term.REMOTE_GPU_NETWORK, mbps)
        return None

    def nearness(self, host: ClientHost) -> float:
        """Return how near the server's GPUs are on a host, in [0, 1]; 0 where it has none."""
        if self.lacking(host):
            return 0.0
        if self.moving:
            return 0.5
        if self.held is not None:
            return 1.0 if host.root in self.held.planned else 0.5
        seen = self._seen(host)
        near = min(self.request.count, seen.own.leases) / self.request.count
        left = seen.others.most_mbps / self._fastest_mbps if self._fastest_mbps > 0 else 0.0
        return near + (1.0 - near) * 0.5 * (
            1.0 - (1.0 - left) * (self.request.network_share or 1.0)
        )

    def _seen(self, host: ClientHost) -> _Seen:
        """Return what a host sees of the pools; hosts of the same traits that lend nothing share the answer."""
        key = host.traits, host.name if host.name in self._lenders else ""
        if key not in self._by_kind:
            fabrics = names.fabrics(host.traits or ())
            own = [pool for pool in self.pools if pool.host == host.name]
            others = [
                pool for pool in self.pools if pool.fabrics & fabrics and pool.host != host.name
            ]
            self._by_kind[key] = _Seen(
                frozenset(pool.root for pool in (*own, *others)),
                any(self._kind(gpu) for pool in (*own, *others) for gpu in pool.gpus),
                self._offer(own, wire=False),
                self._offer(others, wire=True),
            )
        return self._by_kind[key]

    def _offer(self, pools: Iterable[Pool], *, wire: bool) -> _Offer:
        found = [pool for pool in pools if not pool.drained]
        leases = {pool.root: self._leases(pool, wire=wire) for pool in found}
        left = [nic.mbps.free for pool in found if leases[pool.root] for nic in pool.nics]
        return _Offer(sum(leases.values()), max(0, *left) if left else 0)

    def _leases(self, pool: Pool, *, wire: bool) -> int:
        """Return how many leases find room in a pool; those of one server each on a GPU of its own."""
        part = GpuSlice(self.request.memory_mb, self.request.level)
        found = sum(
            min(self.servers, GpuRoom(gpu.uuid, gpu.memory_mb.free, gpu.share.free).count(part))
            for gpu in pool.gpus
            if self._kind(gpu) and gpu.memory_mb.free > 0
        )
        found = min(found, max(0, pool.cores.free))
        mbps = self.request.network_mbps
        if wire and mbps:
            found = min(found, sum(max(0, nic.mbps.free) // mbps for nic in pool.nics))
        return found

    def _kind(self, gpu: PoolGpu) -> bool:
        """Return whether a GPU is one that the server can use, taken or not."""
        needed = {self.request.api.trait, *([names.MIGRATABLE] * self.request.migratable)}
        return needed <= gpu.traits and gpu.memory_mb.capacity >= self.request.memory_mb

    def _asked(self) -> str:
        asked = f"{self.request.api} and {self.request.memory_mb} MiB"
        return f"{asked}, migratable" if self.request.migratable else asked

    def _has_nic(self, root: str, mbps: int) -> bool:
        if mbps not in self._rooms:
            self._rooms[mbps] = self.nics_with(mbps)
        roots = self._rooms[mbps]
        return roots is None or root in roots
