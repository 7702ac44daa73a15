# SPDX-License-Identifier: Apache-2.0
"""Which GPUs the leases get that wait, all in one decision, in the order of their queue.

Leases that are of use only together, such as those of one server, are a *gang*: all find a GPU, each another one, or
none does. Gangs are asked in order, and

* one that finds room gets it: GPUs of its server's own host first, else the least shared ones;
* one that finds none while others that were asked before it have just been given theirs, has these rearranged by the
  flow of least cost (:mod:`.rounds`): one that may go to two fabrics makes room for one that may not, and any other one
  leaves the GPUs of a server's own host to that where the NIC there has no room left. None that was placed loses its
  place, so the gangs that are placed are the first ones in order that can be, together;
* one that finds none at all waits, and of the GPUs that are kept for it (:mod:`.keeping`) no later one gets anything:
  as many as it needs, the ones nearest to what it needs. So a large one does not wait for ever behind small ones, and
  these go on by the other GPUs. One that waits for the NIC of its server's host alone keeps no GPU.

A gang for which others are being moved away (:mod:`.making_room`) has the room that these make to itself: it counts as
taken for all others, those before it in order included, until the gang has its GPUs or waits no more.

Leases that Placement holds already are not moved here. Where no solver is installed, nothing is rearranged.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy.remote_gpu import lease_claims
from nova_numa_ext.policy.remote_gpu.choosing import ChosenGpu, able, choose
from nova_numa_ext.policy.remote_gpu.fleet import FleetHost, GpuWork
from nova_numa_ext.policy.remote_gpu.keeping import NearestGpus
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.network import Solver
from nova_numa_ext.policy.remote_gpu.rounds import RoundSettings, plan_round
from nova_numa_ext.policy.remote_gpu.slices import GpuRoom, GpuSlice
from placement_traits import names, pools
from placement_traits.claims import Amounts
from placement_traits.names import REMOTE_GPU_MEMORY_MB, REMOTE_GPU_NETWORK_MBPS, RemoteGpuApi
from placement_traits.pools import ClientNic, Pool, PoolGpu
from placement_traits.reason import Reason

MOST_SOLVES: Final = 4
"""Times that one decision rearranges."""

# No host is called so: stands for any host that lends nothing.
_OF_NO_POOL: Final = ":"

# More than any place costs: a gang that is rearranged must not prefer the queue.
_ROUNDS_WAITED: Final = 10


@dataclass(frozen=True, slots=True)
class LeaseGang:
    """Leases, all alike, that are had together or not at all.

    :param uuid: its own; of a lease by itself that of the lease
    :param count: of leases
    :param part: of each GPU
    :param api: by which the GPUs are used
    :param network_mbps: promised for each, megabytes a second
    :param pool: the host whose GPUs they must be; '': any
    :param migratable: of GPUs that can move
    :param client: host of its server; '' where none is known
    :param fabrics: that the client is in; None: not known, any pool is tried
    :param taken: GPUs of its leases that have one already
    :param nic: by which its client reaches GPUs of other hosts; None: nothing is counted there
    :param priority: as was asked; its place in order is another thing
    """

    uuid: str
    count: int
    part: GpuSlice
    api: RemoteGpuApi
    network_mbps: int = 0
    pool: str = ""
    migratable: bool = False
    client: str = ""
    fabrics: frozenset[str] | None = None
    taken: frozenset[str] = frozenset()
    nic: ClientNic | None = None
    priority: int = 0

    def kind(self, lenders: Collection[str]) -> Hashable:
        """Return what the answer about it depends on: its client's name only where that lends GPUs.

        :param lenders: hosts that do
        """
        named = self.client in lenders or not self.client
        return replace(self, uuid="", priority=0, client=self.client if named else _OF_NO_POOL)

    def reaches(self, pool: Pool) -> bool:
        """Return whether its server can use the GPUs of a pool."""
        if not self.client or self.fabrics is None or pool.host == self.client:
            return True
        return not self.fabrics.isdisjoint(pool.fabrics)

    def held(self, gpu: ChosenGpu) -> Amounts:
        """Return what the claim of one of its leases holds."""
        return lease_claims.amounts(self.part, gpu.route, self.network_mbps)


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """What was decided; gangs by uuid.

    :param chosen: the GPUs of those that get theirs
    :param waits: why the others wait
    :param kept: GPUs that are kept for them
    """

    chosen: Mapping[str, tuple[ChosenGpu, ...]]
    waits: Mapping[str, Reason]
    kept: Mapping[str, frozenset[str]] = field(default_factory=dict)


def plan(
    gangs: Iterable[LeaseGang],
    found: Iterable[Pool],
    solve: Solver | None,
    rooms: Mapping[str, Sequence[Amounts]] = MappingProxyType({}),
) -> LeasePlan:
    """Decide which gangs get which GPUs.

    :param gangs: those that wait, in order, uuids unlike
    :param found: all pools, with what is free
    :param solve: of flow networks; None: there is none
    :param rooms: gang -> what its leases are to hold when those have gone that make room for it
    """
    planning = _Planning(tuple(found), solve, rooms=dict(rooms))
    for gang in gangs:
        planning.consider(gang)
    return LeasePlan(
        {uuid: gpus for uuid, (_, gpus) in planning.placed.items()},
        planning.waits,
        planning.kept_for,
    )


@dataclass(slots=True)
class _Planning:
    """A decision that goes on.

    :param given: the pools as they were
    :param left: with what is free beside the gangs that were placed
    :param kept: GPUs for which gangs wait
    :param kept_for: the same, by gang
    :param lenders: hosts that lend GPUs
    :param refused: kinds of gangs for which there is no room, and why
    :param able: of these kinds, the GPUs that each could get if they were free
    :param nearest: the order in which they are kept, and what was left when they were put in it
    :param promised: on NICs of clients, by provider, MB/s
    :param rooms: what is being made room for, by gang; of all pools it counts as taken
    :param awaited: of that, on NICs, by provider, MB/s
    """

    given: tuple[Pool, ...]
    solve: Solver | None
    placed: dict[str, tuple[LeaseGang, tuple[ChosenGpu, ...]]] = field(default_factory=dict)
    waits: dict[str, Reason] = field(default_factory=dict)
    left: tuple[Pool, ...] = field(init=False)
    lenders: frozenset[str] = field(init=False)
    kept: frozenset[str] = frozenset()
    kept_for: dict[str, frozenset[str]] = field(default_factory=dict)
    solves: int = MOST_SOLVES
    refused: dict[Hashable, Reason] = field(default_factory=dict)
    able: dict[Hashable, frozenset[str]] = field(default_factory=dict)
    nearest: dict[Hashable, tuple[tuple[Pool, ...], NearestGpus]] = field(default_factory=dict)
    promised: Counter[str] = field(default_factory=Counter)
    rooms: dict[str, Sequence[Amounts]] = field(default_factory=dict)
    awaited: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for room in self.rooms.values():
            self.given = _with(self.given, room)
            self.awaited += _on_wires(room)
        self.left = self.given
        self.lenders = frozenset(each.host for each in self.given)

    def consider(self, gang: LeaseGang) -> None:
        """Place the next gang, or let it wait."""
        if gang.uuid in self.rooms:
            self._consider_with_room(gang, self.rooms[gang.uuid])
            return
        kind = gang.kind(self.lenders)
        if kind not in self.refused:
            found = places(self.left, gang, self.kept, self._room(gang))
            if found is not None:
                self._place(gang, found)
                return
            lacking = self._lacking(gang)
            asked_as = gang if lacking is None else self._at_home(gang)
            if asked_as is not None and self._rearrange(gang, asked_as):
                return
            self.refused[kind] = lacking or self._why(gang)
            self.able[kind] = frozenset() if lacking else able_for(self.given, gang)
        self.waits[gang.uuid] = self.refused[kind]
        if self.able[kind]:
            self._keep(gang, kind)

    def _consider_with_room(self, gang: LeaseGang, room: Sequence[Amounts]) -> None:
        """Place a gang for which others make room, there or elsewhere, or let it wait for them."""
        before = self.given, self.left, self.awaited
        self.given = _with(self.given, room, released=True)
        self.left = _with(self.left, room, released=True)
        self.awaited = self.awaited - _on_wires(room)
        own = {uuid for each in room for uuid, held in each.items() if REMOTE_GPU_MEMORY_MB in held}
        found = places(self.left, gang, self.kept - own, self._room(gang))
        if found is not None:
            del self.rooms[gang.uuid]
            self._place(gang, found)
            return
        self.waits[gang.uuid] = self._lacking(gang) or self._why(gang)
        self.given, self.left, self.awaited = before

    def _room(self, gang: LeaseGang) -> int | None:
        """Return what the NIC of a gang's client has left, MB/s; None where nothing is counted there."""
        if gang.nic is None or not gang.network_mbps:
            return None
        return gang.nic.mbps.free - self.promised[gang.nic.uuid] - self.awaited[gang.nic.uuid]

    def _lacking(self, gang: LeaseGang) -> Reason | None:
        """Return why a gang waits for which there are GPUs, if only its client's NIC had room."""
        if self._room(gang) is None:
            return None
        found = places(self.left, gang, self.kept)
        if found is None:
            return None
        remote = sum(each.host != gang.client for each in found)
        return Reason(LeaseTerm.CLIENT_NETWORK, remote * gang.network_mbps)

    def _at_home(self, gang: LeaseGang) -> LeaseGang | None:
        """Return a gang that asks for GPUs of its server's own host, over no wire; None where that can have none."""
        if gang.client not in self.lenders or gang.pool:
            return None
        return replace(gang, pool=gang.client, network_mbps=0)

    def _keep(self, gang: LeaseGang, kind: Hashable) -> None:
        left, nearest = self.nearest.get(kind, ((), None))
        if nearest is None or left is not self.left:
            nearest = NearestGpus(
                self.left,
                self.able[kind],
                gang.part,
                network_mbps=gang.network_mbps,
                client=gang.client,
            )
            self.nearest[kind] = self.left, nearest
        found = nearest.take(gang.count, self.kept)
        if found:
            self.kept |= found
            self.kept_for[gang.uuid] = found

    def _place(self, gang: LeaseGang, gpus: tuple[ChosenGpu, ...]) -> None:
        self.placed[gang.uuid] = gang, gpus
        for gpu in gpus:
            self.left = pools.counted(self.left, gang.held(gpu))
            if gpu.route.client_nic:
                self.promised[gpu.route.client_nic] += gang.network_mbps

    def _why(self, gang: LeaseGang) -> Reason:
        free = self.left
        for uuid, room in self.rooms.items():
            free = free if uuid == gang.uuid else _with(free, room, released=True)
        full = not (self.kept or self.rooms) or places(free, gang, ()) is None
        none = Reason(LeaseTerm.NO_GPU, gang.api, gang.part.memory_mb)
        return none if full else Reason(LeaseTerm.IN_ORDER, "")

    def _rearrange(self, gang: LeaseGang, asked_as: LeaseGang) -> bool:
        """Let gangs that were placed make room for one more; return whether all have places then.

        :param asked_as: by what its GPUs are looked for: of its server's own host alone, perhaps
        """
        movable = [
            each
            for each, gpus in self.placed.values()
            if self.kept.isdisjoint(gpu.route.gpu for gpu in gpus)
        ]
        if self.solve is None or not self.solves or not movable:
            return False
        self.solves -= 1
        fixed = {uuid: self.placed[uuid] for uuid in self.placed.keys() - {m.uuid for m in movable}}
        trial = _Planning(self.given, None, kept=self.kept, awaited=self.awaited)
        for each, gpus in fixed.values():
            trial._place(each, gpus)
        asked = [*movable, gang]
        machines = _machines(trial.left, self.kept)
        clients = {each.client or "": _client(each, trial._room(each)) for each in asked}
        works = [_work(each) for each in (*movable, asked_as)]
        hosts = [*(machine for machine, _ in machines.values()), *clients.values()]
        where = plan_round(works, hosts, self.solve, RoundSettings()).placed
        for each in asked:
            servers = where.get(each.uuid, ())
            of = [machines[gpu.host][1] for server in servers for gpu in server.gpus]
            at = _places_of(trial.left, each, self.kept, of, trial._room(each))
            if at is None:
                return False
            trial._place(each, at)
        self.left, self.promised = trial.left, trial.promised
        self.placed = {uuid: trial.placed[uuid] for uuid in (*self.placed, gang.uuid)}
        return True


def _with(
    found: tuple[Pool, ...], room: Iterable[Amounts], *, released: bool = False
) -> tuple[Pool, ...]:
    """Return pools as they are when some leases hold what they are to hold, or do not any more."""
    for each in room:
        found = pools.counted(found, each, released=released)
    return found


def _on_wires(room: Iterable[Amounts]) -> Counter[str]:
    """Return what leases are to hold of NICs, by provider, MB/s."""
    found: Counter[str] = Counter()
    for each in room:
        for nic in lease_claims.wires(each):
            found[nic] += each[nic][REMOTE_GPU_NETWORK_MBPS]
    return found


def places(
    found: Sequence[Pool], gang: LeaseGang, kept: Collection[str], room: int | None = None
) -> tuple[ChosenGpu, ...] | None:
    """Return a GPU for each lease of a gang, of its server's own host first; None where one has none.

    :param found: pools, with what is free
    :param kept: GPUs that are for others
    :param room: left of the NIC of the gang's client, MB/s; None: it is not counted
    """
    return _places_of(found, gang, kept, [""] * gang.count, room)


def _places_of(
    found: Sequence[Pool],
    gang: LeaseGang,
    kept: Collection[str],
    hosts: Sequence[str],
    room: int | None = None,
) -> tuple[ChosenGpu, ...] | None:
    """Return a GPU of each host, '' for any host, each another one; None where one of them has none.

    :param room: left of the NIC of the gang's client, MB/s; None: it is not counted
    """
    if len(hosts) != gang.count:
        return None
    there: tuple[Pool, ...] = tuple(each for each in found if gang.reaches(each))
    chosen: list[ChosenGpu] = []
    for host in hosts:
        taken = {*kept, *gang.taken, *(gpu.route.gpu for gpu in chosen)}
        gpu = _local(there, gang, taken) if host in ("", gang.client) else None
        if gpu is None:
            gpu = _any(there, gang, taken, host)
            if gpu is not None and room is not None and gang.nic is not None:
                room -= gang.network_mbps
                gpu = replace(gpu, route=replace(gpu.route, client_nic=gang.nic.uuid))
        if gpu is None or (room is not None and room < 0):
            return None
        chosen.append(gpu)
        there = pools.counted(there, gang.held(gpu))
    return tuple(chosen)


def _local(found: Iterable[Pool], gang: LeaseGang, taken: Collection[str]) -> ChosenGpu | None:
    """Return a GPU of the server's own host, over no wire."""
    if not gang.client or gang.pool not in ("", gang.client):
        return None
    gpu = choose(found, gang.part, gang.api, 0, gang.client, kept=taken, migratable=gang.migratable)
    return None if gpu is None else replace(gpu, route=replace(gpu.route, pool_nic=""))


def _any(
    found: Iterable[Pool], gang: LeaseGang, taken: Collection[str], host: str
) -> ChosenGpu | None:
    if gang.pool and host not in ("", gang.pool):
        return None
    others = [each for each in found if each.host != gang.client or not gang.client]
    where = host or gang.pool
    return choose(
        others,
        gang.part,
        gang.api,
        gang.network_mbps,
        where,
        kept=taken,
        migratable=gang.migratable,
    )


def able_for(found: Iterable[Pool], gang: LeaseGang) -> frozenset[str]:
    """Return the GPUs that a gang could get if they were free; none where they are too few for it."""
    there = [each for each in found if gang.reaches(each)]
    gpus = able(
        there, gang.part, gang.api, gang.network_mbps, gang.pool, migratable=gang.migratable
    )
    gpus -= gang.taken
    return gpus if len(gpus) >= gang.count else frozenset()


def _machines(found: Iterable[Pool], kept: Collection[str]) -> dict[str, tuple[FleetHost, str]]:
    """Return each pool as hosts of the network, one for each kind of its GPUs, with the name of its host."""
    machines: dict[str, tuple[FleetHost, str]] = {}
    for pool in found:
        kinds: dict[frozenset[str], list[PoolGpu]] = {}
        for gpu in pool.gpus:
            if gpu.uuid not in kept and not pool.drained:
                kinds.setdefault(_words(pool, gpu), []).append(gpu)
        mbps = max((each.mbps.free for each in pool.nics), default=0)
        for number, (words, gpus) in enumerate(kinds.items()):
            name = f"{pool.root} {number}"
            host = FleetHost(
                name,
                network_mbps=max(mbps, 0),
                lease_cores=max(pool.cores.free, 0),
                gpus=tuple(
                    GpuRoom(each.uuid, max(each.memory_mb.free, 0), max(each.share.free, 0))
                    for each in gpus
                ),
                fabrics=pool.fabrics | {_own(pool.host), _EVERYWHERE},
                apis=words,
            )
            machines[name] = host, pool.host
    return machines


# Not names of fabrics, which have neither colon nor capital: which pools a server reaches that is in no fabric.
_EVERYWHERE: Final = ":any"


def _own(host: str) -> str:
    return f":{host}"


def _client(gang: LeaseGang, room: int | None) -> FleetHost:
    """Return the host of a gang's server, which has room for it; its NIC may have none, see :func:`_places_of`."""
    mbps = _MOST if room is None else max(room, 0)
    if not gang.client or gang.fabrics is None:
        return FleetHost(f":{gang.client}", fabrics=frozenset({_EVERYWHERE}), network_mbps=mbps)
    fabrics = gang.fabrics | {_own(gang.client)}
    return FleetHost(f":{gang.client}", fabrics=fabrics, network_mbps=mbps)


_MOST: Final = 2**31 - 1


def _words(pool: Pool, gpu: PoolGpu) -> frozenset[str]:
    """Return what gangs may ask of a GPU, each as one word."""
    apis = [api for api in RemoteGpuApi if api.trait in gpu.traits]
    moves = [False, True] if names.MIGRATABLE in gpu.traits else [False]
    return frozenset(
        _word(api, migratable, host)
        for api in apis
        for migratable in moves
        for host in ("", pool.host)
    )


def _word(api: RemoteGpuApi, migratable: bool, host: str) -> str:
    return f"{api} {migratable} {host}"


def _work(gang: LeaseGang) -> GpuWork:
    return GpuWork(
        gang.uuid,
        cores=0,
        memory_mb=0,
        gpus=gang.count,
        part=gang.part,
        api=_word(gang.api, gang.migratable, gang.pool),
        network_mbps=gang.network_mbps,
        rounds=_ROUNDS_WAITED,
        preferred=(f":{gang.client}",),
    )
