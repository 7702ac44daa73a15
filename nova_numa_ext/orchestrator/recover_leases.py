# SPDX-License-Identifier: Apache-2.0
"""What an old database does not know of leases of remote GPUs, and what becomes of it (``numa-ext-manage recover``).

While the database recovers, hosts learn nothing of the API, go on as they are, and report what they serve and what they
were last asked. With what Placement holds this is all there is to know:

====================================================  ==============================================================
what is there                                         what becomes of it
====================================================  ==============================================================
leases that live, by the database                     kept, at an epoch above the database's and the hosts': who used
                                                      one is cut, and connects again; its process runs on. What it
                                                      holds is what Placement says
leases that live by the database, whose claim is      ended: they had been released
gone, and which their GPU's host does not serve
claims of no lease, which a host serves or is to      adopted with what Placement and hosts say
end, or whose GPU's host has not reported
claims of no lease otherwise                          released
claims that keep what a lease has left by a move      left: it goes on where its claim is, and an engine releases them
                                                      when the host that it left has reported
leases that cannot be read                            left, with their claims
====================================================  ==============================================================

A host that has not reported since the database recovers may serve epochs that are known nowhere else: its leases begin
far above what can have been counted. What is ended and released was found by both looks. The job of a lease goes with
it, in the same transaction; a lease that was not known has none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nova_numa_ext.orchestrator.job_survey import Action, TableLine
from nova_numa_ext.orchestrator.recover import ACTOR
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHost, LeaseHosts
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseSpec, StoredLease
from nova_numa_ext.policy.remote_gpu import leases
from nova_numa_ext.policy.remote_gpu.leases import Lease, LeaseState
from placement_traits import pools
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import Amounts, Claim, emptied
from placement_traits.names import (
    LEASE_CONSUMER,
    REMOTE_GPU_MEMORY_MB,
    REMOTE_GPU_NETWORK_MBPS,
    REMOTE_GPU_SHARE,
    SERVICE_LEVEL_SHARES,
    RemoteGpuApi,
    ServiceLevel,
)
from placement_traits.pools import Pool, PoolGpu

# An epoch rises once a round at most: of rounds of two seconds these are three weeks without a pause.
_UNHEARD: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LeaseAdoption:
    """A lease that goes on.

    :param stored: as the database has it; None: it is not known
    :param lease: as it is from now on
    :param seen: the highest epoch that hosts have reported, 0: none
    :param claim: what Placement holds for it; None: nothing
    :param spec: what it is, where it is not known
    :param server: that it is for, where it is not known; '' for none
    :param gpu: its provider
    :param amounts: that it holds, or is to hold
    """

    stored: StoredLease | None
    lease: Lease
    seen: int
    claim: Claim | None
    spec: LeaseSpec
    server: str
    gpu: str
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class LeaseSurvey:
    """What was found in one look.

    :param ended: leases of which nothing is there any more
    :param released: claims of no lease
    :param unread: lease -> why it cannot be read
    :param silent: hosts of GPUs that have not reported since the database recovers
    """

    adopted: tuple[LeaseAdoption, ...] = ()
    ended: tuple[StoredLease, ...] = ()
    released: tuple[Claim, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    def lines(self) -> Iterator[TableLine]:
        """Yield the lines of the table."""
        for each in self.adopted:
            stored = each.stored
            known = f"is {stored.state}, epoch {stored.lease.epoch}" if stored else "is not known"
            hosts = f"hosts know epoch {each.seen}" if each.seen else "no host has reported it"
            why = f"{known}; {hosts}: goes on {each.lease.state}, epoch {each.lease.epoch}"
            yield TableLine(Action.ADOPT, "lease", each.lease.uuid, why)
        for stored in self.ended:
            why = f"is {stored.state}, but nothing holds or serves it any more"
            yield TableLine(Action.END, "lease", stored.uuid, why)
        for claim in self.released:
            yield TableLine(Action.RELEASE, "claim", claim.consumer, "of no lease")
        for uuid, why in self.unread.items():
            yield TableLine(Action.LEAVE, "lease", uuid, why)
        for host in self.silent:
            why = "has leases and has not reported since the database recovers"
            yield TableLine(Action.LEAVE, "host", host, why)


class LeaseRecoverer:
    """Looks for leases that a database does not know, and makes them known.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database or Placement does not
    answer.

    :param lent: reads what hosts lend now
    """

    def __init__(
        self,
        stored: Leases,
        hosts: LeaseHosts,
        claims: ClaimStore,
        lent: Callable[[], Sequence[Pool]],
    ) -> None:
        self._leases = stored
        self._hosts = hosts
        self._claims = claims
        self._lent = lent

    def survey(self, since: float) -> LeaseSurvey:
        """Look; change nothing.

        :param since: when the database began to recover, by its clock
        """
        # The claims first: a lease's row is there before its claim.
        lent = self._lent()
        there = self._claims.of_providers(sorted(pools.taken(lent)))
        claims = [each for each in there if each.type == LEASE_CONSUMER]
        unread: dict[str, str] = {}
        stored = self._leases.living(lambda uuid, error: unread.update({uuid: str(error)}))
        reports = {name: each for name, each in self._hosts.all().items() if each.seen_at >= since}
        return leases_surveyed(stored, claims, reports, lent, unread)

    def commit(self, before: LeaseSurvey, now: LeaseSurvey) -> None:
        """Adopt what the last look has found, then end and release what both have.

        Done a second time, after it broke off, it does what is left.

        :raises LostRaceError: a user has released a lease meanwhile
        """
        for each in now.adopted:
            self._adopt(each)
        ended = {each.uuid for each in before.ended}
        for stored in now.ended:
            if stored.uuid in ended:
                gone = leases.end(_served_by_none(stored.lease))
                self._leases.recover(stored, gone, ACTOR, stored.gpu, stored.amounts, claimed=False)
        for claim in now.released:
            if claim in before.released:
                self._claims.write(emptied(claim))

    def _adopt(self, found: LeaseAdoption) -> None:
        if found.stored is not None:
            claimed = found.stored.claimed or found.claim is not None
            self._leases.recover(
                found.stored, found.lease, ACTOR, found.gpu, found.amounts, claimed=claimed
            )
        elif found.claim is not None:
            self._leases.adopt(found.lease, found.claim, found.spec, found.server, found.gpu)


def leases_surveyed(
    stored: Sequence[StoredLease],
    claims: Sequence[Claim],
    reports: Mapping[str, LeaseHost],
    lent: Sequence[Pool],
    unread: Mapping[str, str],
) -> LeaseSurvey:
    """Return what becomes of leases.

    :param stored: those that live, by the database
    :param claims: of leases, all that Placement has
    :param reports: of hosts since the database recovers, by name
    :param lent: all pools
    :param unread: as of :class:`LeaseSurvey`
    """
    held = {each.consumer: each for each in claims if each.consumer not in unread}
    look = _Look(reports, lent)
    for each in stored:
        look.known(each, held.pop(each.uuid, None))
    for claim in held.values():
        look.unknown(claim)
    return LeaseSurvey(
        tuple(look.adopted),
        tuple(look.ended),
        tuple(look.released),
        dict(unread),
        tuple(sorted(look.silent)),
    )


class _Look:
    """What becomes of leases, one after the other.

    :param reports: of hosts since the database recovers, by name
    :param lent: all pools
    """

    def __init__(self, reports: Mapping[str, LeaseHost], lent: Sequence[Pool]) -> None:
        self.adopted: list[LeaseAdoption] = []
        self.ended: list[StoredLease] = []
        self.released: list[Claim] = []
        self.silent: set[str] = set()
        self._reports = reports
        self._reported = _reported(reports)
        self._gpus = {gpu.uuid: (pool.host, gpu) for pool in lent for gpu in pool.gpus}

    def known(self, each: StoredLease, claim: Claim | None) -> None:
        """Decide on a lease that the database knows."""
        on_hosts = self._reported.get(each.uuid, _OnHosts())
        host = _gpu_host(claim, on_hosts, self._gpus) or each.lease.gpu_host
        unheard = bool(host) and host not in self._reports
        self.silent |= {host} if unheard else set()
        if claim is None and not (on_hosts.is_known or (each.claimed and unheard)):
            self.ended += [each] if each.claimed else []
        elif each.state is not LeaseState.RELEASING or not each.lease.fenced:
            known = on_hosts.is_known or unheard or each.state is not LeaseState.RESERVED
            lease = leases.recovered(
                each.lease, _above(each.lease.epoch, on_hosts, unheard), host, known=known
            )
            gpu, amounts = (_gpu(claim), claim.amounts) if claim else (each.gpu, each.amounts)
            self.adopted.append(
                LeaseAdoption(
                    each, lease, on_hosts.epoch, claim, each.asked, each.server, gpu, amounts
                )
            )

    def unknown(self, claim: Claim) -> None:
        """Decide on a claim of which the database knows no lease."""
        on_hosts = self._reported.get(claim.consumer, _OnHosts())
        gpu, host = _gpu(claim), _gpu_host(claim, on_hosts, self._gpus)
        unheard = bool(host) and host not in self._reports
        if not gpu or not (unheard or on_hosts.is_known):
            self.released.append(claim)
            return
        self.silent |= {host} if unheard else set()
        state = LeaseState.RELEASING if on_hosts.ends else LeaseState.RESERVED
        lease = leases.recovered(
            Lease(claim.consumer, host, state=state), _above(1, on_hosts, unheard), host, known=True
        )
        lent = self._gpus[gpu][1] if gpu in self._gpus else None
        spec = _spec(claim, gpu, on_hosts.api, lent)
        self.adopted.append(
            LeaseAdoption(
                None, lease, on_hosts.epoch, claim, spec, on_hosts.server, gpu, claim.amounts
            )
        )


@dataclass(frozen=True, slots=True)
class _OnHosts:
    """What hosts have reported of a lease.

    :param epoch: the highest one
    :param gpu_host: that serves it, or is to serve or end it
    :param api: by which its GPU is used; None: not reported
    :param server: that uses it
    :param ends: it is to end, and its host has not said that it has
    """

    epoch: int = 0
    gpu_host: str = ""
    api: RemoteGpuApi | None = None
    server: str = ""
    ends: bool = False

    @property
    def is_known(self) -> bool:
        """A host serves it, is to, or is to end it."""
        return bool(self.gpu_host)


def _reported(reports: Mapping[str, LeaseHost]) -> dict[str, _OnHosts]:
    """Return what hosts have reported, by lease; of two hosts that serve one, Placement says which it is on."""
    found: dict[str, dict[str, Any]] = {}

    def of_lease(each: Mapping[str, Any]) -> dict[str, Any]:
        known = found.setdefault(each["id"], {"epoch": 0})
        known["epoch"] = max(known["epoch"], each["epoch"])
        return known

    for host, report in reports.items():
        kept = report.kept or {"serves": (), "ended": ()}
        asked = kept.get("asked", {"serves": (), "ends": (), "attaches": ()})
        done = {each["id"] for each in kept["ended"]}
        for each in kept["serves"]:
            of_lease(each)["gpu_host"] = host
        for each in asked["serves"]:
            of_lease(each).update(gpu_host=host, api=RemoteGpuApi(each["api"]))
        for each in asked["attaches"]:
            of_lease(each).update(server=each["server_id"], api=RemoteGpuApi(each["api"]))
        for each in asked["ends"]:
            known = of_lease(each)
            if each["id"] not in done:
                known.update(gpu_host=host, ends=True)
    return {lease: _OnHosts(**known) for lease, known in found.items()}


def _above(epoch: int, on_hosts: _OnHosts, unheard: bool) -> int:
    """Return the highest epoch of a lease that may have been counted."""
    return max(epoch, on_hosts.epoch) + (_UNHEARD if unheard else 0)


def _gpu(claim: Claim) -> str:
    """Return the provider of a claim's GPU, '' where it has none."""
    of_gpus = (each for each, amounts in claim.amounts.items() if REMOTE_GPU_MEMORY_MB in amounts)
    return next(of_gpus, "")


def _gpu_host(
    claim: Claim | None, on_hosts: _OnHosts, gpus: Mapping[str, tuple[str, PoolGpu]]
) -> str:
    """Return the host of a lease's GPU, by Placement, else by itself; '' where neither says."""
    lent = gpus.get(_gpu(claim)) if claim else None
    return lent[0] if lent else on_hosts.gpu_host


def _spec(claim: Claim, gpu: str, api: RemoteGpuApi | None, lent: PoolGpu | None) -> LeaseSpec:
    """Return what a claim holds, as it was asked for; where no host says which interface, the first of its GPU."""
    amounts = claim.amounts[gpu]
    shares = {SERVICE_LEVEL_SHARES[level]: level for level in ServiceLevel}
    network = max(each.get(REMOTE_GPU_NETWORK_MBPS, 0) for each in claim.amounts.values())
    offered = (each for each in RemoteGpuApi if lent is None or each.trait in lent.traits)
    return LeaseSpec(
        amounts[REMOTE_GPU_MEMORY_MB],
        shares.get(amounts.get(REMOTE_GPU_SHARE, 0), ServiceLevel.BRONZE),
        api or next(offered, RemoteGpuApi.OPENCL),
        network,
    )


def _served_by_none(lease: Lease) -> Lease:
    """Return a lease that ends and that no host serves."""
    ending = lease if lease.state is LeaseState.RELEASING else leases.release(lease)
    return leases.acknowledge(ending, ending.gpu_host, ending.epoch)
