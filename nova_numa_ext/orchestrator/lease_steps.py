# SPDX-License-Identifier: Apache-2.0
"""Which step a lease takes that Placement holds, by what hosts report::

    RESERVED   its GPU's host reports              -> STARTING, which that host acknowledges: READY
    READY      its server runs on a host           -> ATTACHED to that host
    ATTACHED   its server runs on another host     -> STARTING, at a new epoch
               its host reports, without it        -> DETACHED
    DETACHED   its server runs on a host           -> STARTING, at a new epoch
    each       its GPU's host is silent            -> LOST
    LOST       its GPU's host reports again        -> STARTING, at a new epoch

Where a server runs two have to say: the host that reports it, and Placement, by which nova has put it there. So no host
gets a lease of a server that it does not have. Of one that was evacuated Placement names two hosts until the one that
was down is back; the lease goes to the one that reports it, and stays where it is while both do.

A lease without a server stays READY. While no host at all reports, the service itself is in trouble: none is taken
for silent then. Nor is one by what was before an engine led: that engine gives nothing to a host which had not reported
then while others had, and takes nothing from it, until it reports or is silent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHost
from nova_numa_ext.orchestrator.store.leases import Step
from nova_numa_ext.orchestrator.store.stored_lease import StoredLease
from nova_numa_ext.policy.remote_gpu import leases
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.reason import Reason

LOST_S: Final = 60.0
"""Seconds without a report, while others report, after which a GPU's host is silent."""

_MOST_AT_ONCE_S: Final = 15.0

Placed = Callable[[str], frozenset[str]]
"""Server -> names of the hosts that Placement has it on: two of one that was evacuated."""


class Silence:
    """How long hosts have been silent while others have reported; for one thread at a time."""

    def __init__(self) -> None:
        self._hosts: Mapping[str, LeaseHost] = {}
        self._silent_s: dict[str, float] = {}
        self._unheard: frozenset[str] = frozenset()

    def look(self, hosts: Mapping[str, LeaseHost]) -> None:
        """Take note of the hosts' last reports.

        Where the newest of all is long after the newest before, none could report in between: only a part counts.
        """
        newest, before = (_newest(each) for each in (hosts, self._hosts))
        passed_s = min(newest - before, _MOST_AT_ONCE_S) if self._hosts else 0.0
        same = {
            name
            for name, each in hosts.items()
            if name in self._hosts and each.seen_at == self._hosts[name].seen_at
        }
        self._silent_s = {
            name: self._silent_s[name] + passed_s if name in same else 0.0 for name in hosts
        }
        old = (name for name, each in hosts.items() if newest - each.seen_at >= LOST_S)
        self._unheard = self._unheard & same if self._hosts else frozenset(old)
        self._hosts = dict(hosts)

    def answers(self, host: str) -> bool:
        """Return whether a host reports."""
        return not self.is_silent(host) and host not in self._unheard

    def is_lost(self, host: str) -> bool:
        """Return whether a host that once reported does so no more."""
        return self._silent_s.get(host, 0.0) >= LOST_S

    def may_be_lost(self, host: str) -> bool:
        """Return whether a host that once reported may do so no more."""
        return self.is_lost(host) or host in self._unheard

    def can_carry(self, host: str) -> bool:
        """Return whether a host reports that leases come and go with all that their processes have."""
        return self.answers(host) and self._hosts[host].can_move

    def is_silent(self, host: str) -> bool:
        """Return whether a host does not report: one that is lost, or never did."""
        return self._silent_s.get(host, LOST_S) >= LOST_S

    def running(self, server: str) -> frozenset[str]:
        """Return the hosts that report a server."""
        return frozenset(
            name
            for name, each in self._hosts.items()
            if server in each.servers and self.answers(name)
        )


def _newest(hosts: Mapping[str, LeaseHost]) -> float:
    return max((each.seen_at for each in hosts.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class NextStep:
    """A step of a lease, and why."""

    step: Step
    reason: Reason


def next_step(stored: StoredLease, hosts: Silence, placed: Placed) -> NextStep | None:
    """Return what follows for a lease that Placement holds, None where nothing does.

    :raises ServiceUnavailableError: Placement does not answer
    """
    lease = stored.lease
    if lease.state in _MAY_BE_LOST and hosts.is_lost(lease.gpu_host):
        return NextStep(leases.lose, Reason(LeaseTerm.HOST_SILENT, LOST_S))
    starting, found = Reason(LeaseTerm.STARTING, ""), None
    match lease.state:
        case LeaseState.RESERVED if hosts.answers(lease.gpu_host):
            found = NextStep(leases.start, starting)
        case LeaseState.LOST if hosts.answers(lease.gpu_host):
            found = NextStep(leases.restart, starting)
        case LeaseState.READY if host := _where(stored, hosts, placed):
            step = partial(leases.attach, client_host=host)
            found = NextStep(step, Reason(LeaseTerm.ATTACHED, ""))
        case LeaseState.DETACHED if _where(stored, hosts, placed):
            found = NextStep(leases.restart, starting)
        case LeaseState.ATTACHED if stored.server:
            found = _of_attached(stored, hosts, placed)
    return found


_MAY_BE_LOST: Final = frozenset(
    {LeaseState.STARTING, LeaseState.READY, LeaseState.ATTACHED, LeaseState.DETACHED}
)


def _of_attached(stored: StoredLease, hosts: Silence, placed: Placed) -> NextStep | None:
    client = stored.lease.client_host
    running = hosts.running(stored.server)
    if running == {client}:
        return None
    host = _where(stored, hosts, placed)
    if host is not None and host != client:
        return NextStep(leases.restart, Reason(LeaseTerm.STARTING, ""))
    if hosts.answers(client) and client not in running:
        return NextStep(leases.detach, Reason(LeaseTerm.STOPPED, ""))
    return None


def _where(stored: StoredLease, hosts: Silence, placed: Placed) -> str | None:
    """Return the host that has a lease's server and reports that it runs there."""
    running = hosts.running(stored.server) if stored.server else frozenset[str]()
    there = running & placed(stored.server) if running else running
    return only(there)


def only(hosts: frozenset[str]) -> str | None:
    """Return the one host of a server, None where there is none, or more than one says that it runs there."""
    return next(iter(hosts)) if len(hosts) == 1 else None
