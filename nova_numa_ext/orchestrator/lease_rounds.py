# SPDX-License-Identifier: Apache-2.0
"""What the engine does for leases of remote GPUs: the row first, then the claim in Placement; back in reverse order.

::

    RESERVED, nothing chosen    GPUs of hosts that are not silent are chosen for all of these together
                                (:mod:`nova_numa_ext.policy.remote_gpu.lease_plan`) and stored; where none has room, a
                                lease waits, or ends
    RESERVED, not claimed       what is stored is claimed, however far a process came that died; then it is *held*;
                                where there is no room for it any more, another GPU is chosen
    held                        what hosts report leads on: :mod:`.lease_steps`; where its server has come to another
                                host, the NICs between that and the GPU are claimed in place of those before
    RELEASING                   when its GPU's host serves it no more: the claim is released, then it is GONE

A lease that cannot take its step, or whose row cannot be read, is reported and holds up no other one. Pools are read
once a round, when the first lease needs them; what the round itself claims and releases is counted on that reading.

Leases wait by jobs of kind ``attach``, in the order of the queue of jobs: by priority, which grows with the time that
these have waited, then by the time of submission. Those of a job that is held are left out, those of one that is
cancelled are released, whatever their state, and those of one that has waited too long. Leases of one gang, as those
that the flavor of a server asks for, are of different GPUs, chosen in one transaction and claimed in one request.

Where that is asked for, leases that run go to other GPUs: to make room for one that waits (:mod:`.lease_rebalance`),
or, while none waits, by how busy their GPUs are (:mod:`.lease_use`).

Beside it, each claim of a lease on a pool is compared with the rows. One of which no lease that lives knows in two
looks is released, under the generation that was read: an answer came late. A held lease whose claim is gone, by an
operator's hand, is claimed again where there still is room. A lease whose server has no host in Placement in two looks,
because it was deleted or shelved, is released, whatever its state; one that no server has used yet is given
:data:`COMES_S` from its creation, as nova may still be placing the server. One whose server is stopped keeps its GPU
for as long as the operator says. A claim that keeps what a lease
has left by a move is of that lease: one that no row names is released, too.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from nova_numa_ext.orchestrator.lease_moves import LeaseMoves
from nova_numa_ext.orchestrator.lease_rebalance import LeaseRebalance, RoomRound
from nova_numa_ext.orchestrator.lease_steps import Silence, next_step, only
from nova_numa_ext.orchestrator.lease_use import UseRebalance
from nova_numa_ext.orchestrator.lease_wires import LeaseWires
from nova_numa_ext.orchestrator.server_requests import NO_SERVERS, LeaseRules, ServerRequests
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.leader import NotLeaderError
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHost
from nova_numa_ext.orchestrator.store.leases import LIVING, Leases
from nova_numa_ext.orchestrator.store.stored_job import AttachJob
from nova_numa_ext.orchestrator.store.stored_lease import NOTHING, LeaseChoice, StoredLease
from nova_numa_ext.orchestrator.store.unreadable import Unreadable
from nova_numa_ext.policy.jobs.queue_order import Queued, rank
from nova_numa_ext.policy.remote_gpu import lease_claims, leases
from nova_numa_ext.policy.remote_gpu.choosing import Unmet
from nova_numa_ext.policy.remote_gpu.lease_plan import LeaseGang, LeasePlan, plan
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.making_room import Rebalancing
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits import pools
from placement_traits.claim_store import ClaimStore, ForeignConsumerError, NoRoomError
from placement_traits.claims import Amounts, Claim, emptied
from placement_traits.client import GenerationConflictError, PlacementError
from placement_traits.errors import ConflictError, NumaExtError, ServiceUnavailableError
from placement_traits.names import LEASE_CONSUMER, MOVE_CONSUMER, ServiceLevel
from placement_traits.pools import ClientNic, Pool
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)

COMES_S: Final = 600.0
"""Seconds within which the server of a new lease has to be on a host."""

_USED: Final = (LeaseState.ATTACHED, LeaseState.DETACHED)
_WAIT_FOR_SERVER: Final = (LeaseState.READY, LeaseState.DETACHED)
_MAY_LACK_SERVER: Final = tuple(each for each in LIVING if each is not LeaseState.RELEASING)

HostsNow = Callable[[], Mapping[str, LeaseHost]]
"""Reads the hosts that report leases."""

PoolsNow = Callable[[], Sequence[Pool]]
"""Reads all pools."""


class LeaseRounds:
    """Carries leases on, and compares them with their claims; each for one thread at a time.

    :param lent: reads what hosts lend now
    :param hosts: reads what hosts have reported
    :param servers: where they are, and by what they get what their flavors ask for
    """

    def __init__(
        self,
        stored: Leases,
        claims: ClaimStore,
        lent: PoolsNow,
        hosts: HostsNow = dict,
        servers: LeaseRules = NO_SERVERS,
    ) -> None:
        self._leases = stored
        self._claims = claims
        self._pools = lent
        self._hosts = hosts
        self._rules = servers
        self._placed = servers.placed
        self._requests = ServerRequests(stored, servers)
        self._silence = Silence()
        self._moves = LeaseMoves(stored, claims, self._asked_of, self._nic_of, self._silence)
        self._rebalance = LeaseRebalance(servers.rebalance, stored, self._asked_of)
        self._by_use = UseRebalance(servers.rebalance, stored, self._asked_of, servers.clock)
        self._wires = LeaseWires(stored, claims, self._nic)
        self._suspects: dict[str, _Suspect] = {}
        self._without_host: frozenset[str] = frozenset()
        self._clients: Mapping[str, tuple[frozenset[str], str]] = {}
        self._gpus: Mapping[str, frozenset[str]] = {}
        self._jobs: Mapping[str, AttachJob] = {}
        self._nics: dict[str, ClientNic | None] = {}
        self._living: Sequence[StoredLease] = ()

    def round(self, actor: Actor, may: Callable[[], None], trouble: Unreadable) -> int:
        """Let each lease that has something to do take a step or two; return how many changed.

        :param may: called right before each write to Placement; raises where this process may not write any more
        :param trouble: called with each lease that cannot be read or cannot take its step, and why
        :raises NotLeaderError: the term is over
        :raises ServiceUnavailableError: Placement or the database does not answer
        """
        hosts = self._hosts()
        self._silence.look(hosts)
        busy = {name: each.busy for name, each in hosts.items() if self._silence.answers(name)}
        changed = self._requests.round(hosts, self._silence, actor, trouble)
        lent = _Lent(self._answering)
        waiting = []
        self._jobs = self._leases.jobs()
        self._living = living = self._leases.find(states=LIVING, unreadable=trouble)
        self._gpus = _gpus(living)
        servers = {each.server for each in living}
        self._clients = {key: each for key, each in self._clients.items() if key in servers}
        self._nics = {}
        now_s = self._leases.now()
        for each in living:
            why = _given_up(each, self._jobs.get(each.job), now_s) or self._unused(each, now_s)
            if why is None and each.state is LeaseState.RESERVED and not each.claimed:
                if not self._is_held(each):
                    waiting.append(each)
                continue
            with self._apart(each.uuid, trouble):
                if why is not None:
                    self._leases.change(each, leases.release, actor, (why,))
                    changed += 1
                    continue
                now = self._carried(each, actor, may, lent)
                changed += now.version != each.version
        if not waiting:
            with self._apart("to be moved", trouble):
                changed += self._by_use.round(living, busy, lent.now, actor)
        return changed + self._given(waiting, actor, may, lent, trouble)

    @contextmanager
    def _apart(self, uuid: str, trouble: Unreadable) -> Iterator[None]:
        """Keep what one lease cannot do from the others."""
        try:
            yield
        except (LostRaceError, ConflictError) as error:
            _LOG.info("lease %s: %s", uuid, error)
        except (NotLeaderError, ServiceUnavailableError):
            raise
        except NumaExtError as error:
            trouble(uuid, error)

    def _unused(self, stored: StoredLease, now_s: float) -> Reason | None:
        """Return why a lease is to be released whose server has not run for long, None where it is not."""
        hold_s, stopped_s = self._rules.hold_s, now_s - stored.changed_at
        waits = stored.state in _WAIT_FOR_SERVER and stored.server
        if hold_s is None or not waits or stopped_s <= hold_s:
            return None
        if self._silence.running(stored.server):
            return None
        return Reason(LeaseTerm.STOPPED_LONG, round(stopped_s), round(hold_s))

    def _is_held(self, stored: StoredLease) -> bool:
        """Return whether the user of a lease has its job held; what is chosen already goes on."""
        job = self._jobs.get(stored.job)
        return job is not None and job.held and not stored.amounts

    def _queued(self, stored: StoredLease) -> Queued:
        """Return by what a lease has its place in the queue: by its job, or by itself."""
        return self._jobs.get(stored.job) or _Queued(stored)

    def _answering(self) -> Sequence[Pool]:
        """Read the pools of hosts that are not silent: on another one no lease would be served."""
        return [each for each in self._pools() if not self._silence.may_be_lost(each.host)]

    def look(self, may: Callable[[], None], trouble: Unreadable) -> int:
        """Compare claims with leases; return how many claims were released or written again.

        What a move has left, and no row knows of, as where an older database was restored, is released when the host
        that it left has reported in between: that ends what it is not asked to serve. Others do not wait for a host.

        :param may: as of :meth:`round`
        :param trouble: called with each lease that cannot be read: its claim stays as it is
        :raises NotLeaderError: the term is over
        :raises ServiceUnavailableError: Placement or the database does not answer
        """
        self._clients = {server: each for server, each in self._clients.items() if each[0]}
        # The claims first: a lease's row is there before its claim.
        lent = self._pools()
        there = {each.consumer: each for each in self._held(lent)}
        unread: set[str] = set()

        def unreadable(uuid: str, error: Exception) -> None:
            unread.add(uuid)
            trouble(uuid, error)

        living = {each.uuid: each for each in self._leases.living(unreadable)}
        self._wires.forget(
            {key for key, each in living.items() if _is_astray(each, there.get(key))}
        )
        before = self._suspects
        seconds = {each.move.second for each in living.values() if each.move is not None}
        known = living.keys() | unread | seconds
        heard = _heard(lent, self._hosts())
        # The second consumer of a lease that cannot be read is not known: all of them stay then.
        found = {
            key: _Suspect(each, _heard_of(each, heard))
            for key, each in there.items()
            if key not in known and not (unread and each.type == MOVE_CONSUMER)
        }
        lost = [each.claim for key, each in found.items() if each.follows(before.get(key))]
        self._suspects = {key: each.since(before.get(key)) for key, each in found.items()}
        written = sum(self._released(each, may) for each in lost)
        for key, stored in living.items():
            moves = stored.move is not None and stored.move.second
            ends = stored.state is LeaseState.RELEASING
            if stored.claimed and not ends and not moves and key not in there:
                written += self._claimed_again(stored, may)
        return written

    def _carried(
        self, stored: StoredLease, actor: Actor, may: Callable[[], None], lent: "_Lent"
    ) -> StoredLease:
        if stored.state is LeaseState.RELEASING:
            return self._ended(stored, actor, may, lent)
        moved = self._moves.step(stored, lent.now, actor, may)
        if moved is not stored:
            lent.forget()
            if gang := moved.asked.gang:
                taken = self._gpus.get(gang, frozenset()) | _gpus_of(moved)
                self._gpus = {**self._gpus, gang: taken}
            return moved
        if stored.claimed and stored.move is None and stored.asked.network_mbps:
            client = self._client(stored.server)
            rewired = self._wires.follow(stored, client, lent.now, actor, may)
            if rewired is not stored:
                lent.forget()
                return rewired
        return self._led_on(stored, actor)

    def _given(
        self,
        waiting: Sequence[StoredLease],
        actor: Actor,
        may: Callable[[], None],
        lent: "_Lent",
        trouble: Unreadable,
    ) -> int:
        """Choose and claim GPUs for leases of which Placement holds nothing; return how many of them changed."""
        gangs: dict[str, list[StoredLease]] = {}
        for each in waiting:
            gangs.setdefault(each.asked.gang or each.uuid, []).append(each)
        before = {each.uuid: each.version for each in waiting}
        now: dict[str, list[StoredLease]] = {}
        for uuid, members in gangs.items():
            with self._apart(uuid, trouble):
                now[uuid] = self._begun(members, actor, may, lent)
        chosen = self._planned(
            {uuid: each for uuid, each in now.items() if not each[0].amounts}, lent, trouble
        )
        made = RoomRound()
        with self._apart("to be moved", trouble):
            made = self._rebalance.round(
                _of_those_that_wait(chosen.plan, now),
                chosen.asked,
                now,
                self._living,
                lent.now,
                actor=actor,
            )
        now |= made.changed
        for uuid in chosen.order:
            with self._apart(uuid, trouble):
                members = self._chosen(now[uuid], uuid, chosen.plan, actor, made.said.get(uuid))
                now[uuid] = self._reserved(members, actor, may, lent, just_chosen=True)
        return sum(
            each.version != before[each.uuid] for members in now.values() for each in members
        )

    def _begun(
        self,
        members: list[StoredLease],
        actor: Actor,
        may: Callable[[], None],
        lent: "_Lent",
    ) -> list[StoredLease]:
        """Claim what was chosen before, by a process that died perhaps; what is not whole is chosen again."""
        if not any(each.amounts for each in members):
            return members
        nic = self._nic_of(members[0])
        if all(each.amounts and lent.have(each.amounts, nic) for each in members):
            return self._reserved(members, actor, may, lent)
        return self._leases.choose(members, [NOTHING] * len(members), actor)

    def _planned(
        self, gangs: Mapping[str, Sequence[StoredLease]], lent: "_Lent", trouble: Unreadable
    ) -> "_Planned":
        """Decide which gangs get which GPUs; where the solver fails, nothing is rearranged."""
        if not gangs:
            return _Planned((), LeasePlan({}, {}))
        at = self._leases.now()
        settings = self._rules.queue
        asked: list[LeaseGang] = []
        # Who gives its GPU to higher levels waits behind them, too, or would have it back before they are given it.
        behind = {
            uuid: self._rules.rebalance.scavenging is Rebalancing.ENFORCE
            and members[0].asked.level is ServiceLevel.SCAVENGER
            for uuid, members in gangs.items()
        }
        for uuid in sorted(
            gangs, key=lambda uuid: (behind[uuid], rank(self._queued(gangs[uuid][0]), at, settings))
        ):
            with self._apart(uuid, trouble):
                asked.append(self._gang(uuid, gangs[uuid]))
        rooms = {
            uuid: [each.room for each in members]
            for uuid, members in gangs.items()
            if any(each.room for each in members)
        }
        try:
            found = plan(asked, lent.now(), self._rules.solve, rooms)
        except NumaExtError as error:
            _LOG.warning("leases that wait are not rearranged: %s", error)
            found = plan(asked, lent.now(), None, rooms)
        return _Planned(tuple(asked), found)

    def _gang(self, uuid: str, members: Sequence[StoredLease]) -> LeaseGang:
        first = members[0]
        asked = first.asked
        client = self._client(first.server)
        return LeaseGang(
            uuid,
            len(members),
            GpuSlice(asked.memory_mb, asked.level),
            asked.api,
            asked.network_mbps,
            asked.pool,
            asked.migratable,
            client,
            self._rules.fabrics(client) if client else None,
            self._gpus.get(asked.gang, frozenset()),
            self._nic(client) if asked.network_mbps else None,
            asked.priority,
        )

    def _asked_of(self, stored: StoredLease) -> LeaseGang:
        """Return what a lease that has a GPU asks of another one."""
        gang = self._gang(stored.uuid, [stored])
        return replace(gang, taken=gang.taken | {stored.gpu})

    def _nic(self, client: str) -> ClientNic | None:
        """Return the NIC of a client, read once a round; None where there is none, or no client."""
        if client and client not in self._nics:
            self._nics[client] = self._rules.nic(client)
        return self._nics.get(client)

    def _nic_of(self, stored: StoredLease) -> str:
        """Return the provider of the NIC of a lease's client, '' where nothing is counted there."""
        if not stored.asked.network_mbps:
            return ""
        nic = self._nic(self._client(stored.server))
        return "" if nic is None else nic.uuid

    def _client(self, server: str) -> str:
        """Return the host that Placement has a server on, and that reports it if one does; '' where there is none.

        By the word of a host alone, that could draw leases of any server to its GPUs, or out of reach. Placement is
        asked again when other hosts report the server, and after a look where none does, not in each round in which its
        lease waits.
        """
        if not server:
            return ""
        reported = self._silence.running(server)
        known, host = self._clients.get(server, (None, ""))
        if reported != known:
            placed = self._placed(server)
            host = only(reported & placed if reported else placed) or ""
            if host or not reported:
                self._clients = {**self._clients, server: (reported, host)}
        return host

    def _led_on(self, stored: StoredLease, actor: Actor) -> StoredLease:
        found = next_step(stored, self._silence, self._placed)
        if found is None:
            return stored
        return self._leases.change(stored, found.step, actor, (found.reason,))

    def _chosen(
        self,
        members: list[StoredLease],
        uuid: str,
        found: LeasePlan,
        actor: Actor,
        said: Reason | None,
    ) -> list[StoredLease]:
        """Store the GPUs of a gang, or let it wait or end where none has room.

        :param said: of room that others make for it; None: nothing
        """
        if uuid in found.chosen:
            asked = members[0].asked
            part = GpuSlice(asked.memory_mb, asked.level)
            choices = [
                LeaseChoice(
                    gpu.host,
                    gpu.route.gpu,
                    lease_claims.amounts(part, gpu.route, asked.network_mbps),
                )
                for gpu in found.chosen[uuid]
            ]
            return self._leases.choose(members, choices, actor)
        why = (found.waits[uuid], *(() if said is None else (said,)))
        if members[0].asked.unmet is Unmet.STOP:
            return self._leases.stop(members, why, actor)
        job = self._jobs.get(members[0].job)
        return [self._leases.wait(each, why, actor, job) for each in members]

    def _reserved(
        self,
        members: list[StoredLease],
        actor: Actor,
        may: Callable[[], None],
        lent: "_Lent",
        *,
        just_chosen: bool = False,
    ) -> list[StoredLease]:
        """Claim what is stored, all in one write; where it is full, GPUs are to be chosen again.

        :param just_chosen: in this round, so that there is hardly a claim yet, and none is looked for before it is made
        """
        if not members[0].amounts:
            return members
        held: list[Claim | None] = [None] * len(members)
        if not just_chosen:
            held = [self._claims.read(each.uuid) for each in members]
        try:
            try:
                self._claims.write(*map(_claim, members, held), may=may)
            except GenerationConflictError:
                if not just_chosen:
                    raise
                held = [self._claims.read(each.uuid) for each in members]
                self._claims.write(*map(_claim, members, held), may=may)
        except NoRoomError as error:
            _LOG.info("lease %s: %s", members[0].uuid, error)
            return self._leases.choose(members, [NOTHING] * len(members), actor)
        for each, there in zip(members, held, strict=True):
            if there is None:
                lent.take(each.amounts)
        return [self._leases.hold(each, actor) for each in members]

    def _ended(
        self, stored: StoredLease, actor: Actor, may: Callable[[], None], lent: "_Lent"
    ) -> StoredLease:
        """Release its claim as soon as no host serves it any more."""
        if not stored.lease.fenced:
            return stored
        self._moves.release(stored, may)
        held = self._claims.read(stored.uuid)
        if held is not None:
            self._claims.write(emptied(held), may=may)
            lent.give_back(held.amounts)
        return self._leases.change(stored, leases.end, actor)

    def _held(self, lent: Iterable[Pool]) -> Iterator[Claim]:
        """Yield each claim of a lease once; only providers of which something is taken are asked."""
        for claim in self._claims.of_providers(sorted(pools.taken(lent))):
            if claim.type in (LEASE_CONSUMER, MOVE_CONSUMER):
                yield claim

    def end_without_server(self, actor: Actor, trouble: Unreadable) -> int:
        """Release leases whose servers two looks in a row found on no host; return how many.

        :param trouble: called with each lease that cannot be read
        :raises NotLeaderError: the term is over
        :raises ServiceUnavailableError: Placement or the database does not answer
        """
        old = self._leases.now() - COMES_S
        looked_at = self._leases.find(states=_MAY_LACK_SERVER, unreadable=trouble)
        found = {
            each.uuid: each
            for each in looked_at
            if each.server
            and (each.state in _USED or each.created_at < old)
            and not self._silence.running(each.server)
            and not self._placed(each.server)
        }
        before, self._without_host = self._without_host, frozenset(found)
        reasons = (Reason(LeaseTerm.SERVER_GONE, ""),)
        for uuid in found.keys() & before:
            try:
                self._leases.change(found[uuid], leases.release, actor, reasons)
            except LostRaceError as error:
                _LOG.info("lease %s: %s", uuid, error)
        return len(found.keys() & before)

    def _released(self, claim: Claim, may: Callable[[], None]) -> bool:
        _LOG.warning("no lease knows of claim %s: released", claim.consumer)
        try:
            self._claims.write(emptied(claim), may=may)
        except ConflictError as error:
            _LOG.warning("claim %s stays for now: %s", claim.consumer, error)
            return False
        return True

    def _claimed_again(self, stored: StoredLease, may: Callable[[], None]) -> bool:
        try:
            if self._claims.read(stored.uuid) is not None:
                return False  # made since claims were read
            self._claims.write(_claim(stored, None), may=may)
        except (ConflictError, PlacementError, ForeignConsumerError) as error:
            _LOG.warning("the claim of lease %s is gone and stays so: %s", stored.uuid, error)
            return False
        _LOG.warning("the claim of lease %s was gone, and is there again", stored.uuid)
        return True


def _is_astray(stored: StoredLease, claim: Claim | None) -> bool:
    """Return whether a lease that stays where it is holds other NICs than it should; it may have changed since."""
    if claim is None or not stored.claimed or stored.move is not None:
        return False
    return {*lease_claims.wires(claim.amounts)} != {*lease_claims.wires(stored.amounts)}


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A claim of which no row knows.

    :param heard: when the host that a move left has last reported, by the database's clock; None: none is waited for
    """

    claim: Claim
    heard: float | None

    def follows(self, first: "_Suspect | None") -> bool:
        """Return whether it is lost: found before, and its host has reported since."""
        if first is None or first.claim != self.claim:
            return False
        return self.heard is None or first.heard is None or self.heard > first.heard

    def since(self, first: "_Suspect | None") -> "_Suspect":
        """Return it as it was first found."""
        return self if first is None or first.claim != self.claim else first


class _Lent:
    """The pools of one round: read when they are first needed, then counted on.

    :param read: reads all pools
    """

    def __init__(self, read: PoolsNow) -> None:
        self._read = read
        self._pools: tuple[Pool, ...] | None = None

    def now(self) -> tuple[Pool, ...]:
        """Return the pools with what this round has changed."""
        if self._pools is None:
            self._pools = tuple(self._read())
        return self._pools

    def have(self, amounts: Amounts, nic: str) -> bool:
        """Return whether all providers of a choice are there.

        :param nic: of its client; '' for none
        """
        return amounts.keys() <= {nic, *(uuid for pool in self.now() for uuid in pool.providers)}

    def take(self, amounts: Amounts) -> None:
        """Count what was claimed since pools were read."""
        if self._pools is not None:
            self._pools = pools.counted(self._pools, amounts)

    def forget(self) -> None:
        """Read them again when they are needed next: what was claimed is not counted on the reading."""
        self._pools = None

    def give_back(self, amounts: Amounts) -> None:
        """Count what was released since pools were read."""
        if self._pools is not None:
            self._pools = pools.counted(self._pools, amounts, released=True)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What was decided of the leases that wait.

    :param asked: gangs, in order
    """

    asked: tuple[LeaseGang, ...]
    plan: LeasePlan

    @property
    def order(self) -> tuple[str, ...]:
        """Uuids of the gangs."""
        return tuple(each.uuid for each in self.asked)


@dataclass(frozen=True, slots=True)
class _Queued:
    """A lease without a job, as the queue of jobs ranks it."""

    stored: StoredLease

    @property
    def priority(self) -> int:
        return self.stored.asked.priority

    @property
    def submitted_at(self) -> float:
        return self.stored.created_at

    def waiting_s(self, now: float) -> float:
        return now - self.stored.created_at


def _of_those_that_wait(
    found: LeasePlan, members: Mapping[str, Sequence[StoredLease]]
) -> LeasePlan:
    """Return a plan without the gangs that end where no GPU has room now: none moves for them."""
    waits = {
        uuid: why
        for uuid, why in found.waits.items()
        if members[uuid][0].asked.unmet is not Unmet.STOP
    }
    return replace(found, waits=waits)


def _given_up(stored: StoredLease, job: AttachJob | None, now: float) -> Reason | None:
    """Return why a lease is to be released for its job's sake, None where it is not."""
    if job is None or stored.state is LeaseState.RELEASING:
        return None
    if job.cancelled:
        return Reason(LeaseTerm.CANCELLED, "")
    waits = stored.state is LeaseState.RESERVED and not stored.claimed and not stored.amounts
    waited_s = job.waiting_s(now)
    if waits and job.max_wait_s is not None and waited_s > job.max_wait_s:
        return Reason(LeaseTerm.MAX_WAIT, round(waited_s), round(job.max_wait_s))
    return None


def _heard(lent: Iterable[Pool], hosts: Mapping[str, LeaseHost]) -> dict[str, float]:
    """Return when the host of each GPU has last reported, of those that ever have."""
    return {
        gpu.uuid: hosts[pool.host].seen_at
        for pool in lent
        if pool.host in hosts
        for gpu in pool.gpus
    }


def _heard_of(claim: Claim, heard: Mapping[str, float]) -> float | None:
    if claim.type != MOVE_CONSUMER:
        return None
    return max((heard[each] for each in claim.amounts if each in heard), default=None)


def _gpus(living: Iterable[StoredLease]) -> dict[str, frozenset[str]]:
    """Return the GPUs of each gang, by the leases of it that have one or are about to."""
    found: dict[str, frozenset[str]] = {}
    for each in living:
        gang = each.asked.gang
        if gang:
            found[gang] = found.get(gang, frozenset()) | _gpus_of(each)
    return found


def _gpus_of(stored: StoredLease) -> frozenset[str]:
    """Return the GPU of a lease, and the one that it is to move to."""
    return frozenset({stored.gpu, stored.move.gpu if stored.move else ""} - {""})


def _claim(stored: StoredLease, held: Claim | None) -> Claim:
    fresh = lease_claims.lease(stored.uuid, stored.project, stored.user, stored.amounts)
    return replace(fresh, generation=held.generation if held else None)
