# SPDX-License-Identifier: Apache-2.0
"""Leases for servers whose flavors ask for GPUs of other hosts: made when a server runs, for it waits for none.

A host reports what the flavors of its servers ask for. Its word counts for servers that Placement has there, and whose
they are Placement says, too. Where nova is asked for the flavors as well, a server gets no more than these ask for.

A server gets its leases once. Those that end because it is on no host, as when it is shelved, or has been stopped for
long, it gets again when it runs; after a user has released one it gets no other.

Leases of a project count against its limits. A server whose leases would exceed one gets them when there is room: it
is looked at again after :data:`FIRST_S`, and after twice as long each time, :data:`LONGEST_S` at most. So is a server
of whose flavor nova shows no request, and so is nova asked where it does not answer; a server that asks for something
else is looked at at once.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Self

from nova_numa_ext.orchestrator.lease_steps import Placed, Silence
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHost
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseSpec
from nova_numa_ext.orchestrator.store.unreadable import Unreadable
from nova_numa_ext.policy.jobs.limits import UNLIMITED, Limits
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.remote_gpu.choosing import Unmet
from nova_numa_ext.policy.remote_gpu.making_room import RebalanceRules
from nova_numa_ext.policy.remote_gpu.network import Solver
from placement_traits.client import PlacementError
from placement_traits.errors import ServiceUnavailableError
from placement_traits.names import SERVICE_LEVEL_SHARES, RemoteGpuApi, ServiceLevel
from placement_traits.pools import ClientNic
from placement_traits.remote_gpu_request import RemoteGpuRequest

_LOG: Final = logging.getLogger(__name__)

FIRST_S: Final = 2.0
"""Seconds until what was refused is tried again for the first time."""

LONGEST_S: Final = 60.0
"""Seconds until it is at the latest."""

Owner = Callable[[str], tuple[str, str] | None]
"""Server -> its project and user, by Placement."""

FlavorOf = Callable[[str], RemoteGpuRequest | None]
"""Server -> the remote GPUs that its flavor asks for, by nova; None: none, as far as nova shows it."""


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """What is known of servers, and by what leases are made and GPUs chosen.

    :param placed: says on which hosts Placement has one
    :param owner: of servers; those whose owner is not known get no leases
    :param limits: of a project
    :param unmet: what becomes of leases for which no GPU has room
    :param queue: in which order leases wait
    :param fabrics: of a host, by its name; None: they are not known, and any pool is tried
    :param solve: of flow networks, None where none is installed
    :param flavor: of a server; None: the word of its host counts
    :param max_wait_s: seconds after which leases of servers are given up that wait; None: they wait for ever
    :param nic: by which servers of a host reach pools, by the host's name; None: it is not counted
    :param clock: monotonic seconds
    :param rebalance: whether leases that run make room for others
    :param hold_s: seconds for which a lease keeps its GPU while its server does not run; None: for ever
    """

    placed: Placed = lambda _server: frozenset()
    owner: Owner = lambda _server: None
    limits: Callable[[str], Limits] = lambda _project: UNLIMITED
    unmet: Unmet = Unmet.WAIT
    queue: QueueSettings = field(default_factory=QueueSettings)
    fabrics: Callable[[str], frozenset[str] | None] = lambda _host: None
    solve: Solver | None = None
    flavor: FlavorOf | None = None
    max_wait_s: float | None = None
    nic: Callable[[str], ClientNic | None] = lambda _host: None
    clock: Callable[[], float] = time.monotonic
    rebalance: RebalanceRules = field(default_factory=RebalanceRules)
    hold_s: float | None = None


NO_SERVERS: Final = LeaseRules()
"""No server is on any host."""


class _Refusal(StrEnum):
    """Why a server gets no leases now."""

    LIMIT = "a limit of its project is reached"
    NO_REQUEST = "by nova its flavor asks for none"


@dataclass(frozen=True, slots=True)
class _Rest:
    """Until when something that was refused is not tried again.

    :param why: it was refused
    :param asked: for which it was
    """

    why: object
    asked: object
    pause_s: float
    until_s: float

    @classmethod
    def after(cls, before: "_Rest | None", why: object, asked: object, now_s: float) -> Self:
        """Return the rest after a refusal: twice as long as the last one, where that was for the same."""
        pause_s = FIRST_S
        if before is not None and before.asked == asked:
            pause_s = min(2 * before.pause_s, LONGEST_S)
        return cls(why, asked, pause_s, now_s + pause_s)

    def holds(self, asked: object, now_s: float) -> bool:
        """Return whether it is too early to try again."""
        return self.asked == asked and now_s < self.until_s


class ServerRequests:
    """Makes leases for servers; for one thread at a time.

    :param stored: the leases
    """

    def __init__(self, stored: Leases, rules: LeaseRules) -> None:
        self._leases, self._rules = stored, rules
        self._refused: dict[str, _Rest] = {}
        self._nova: tuple[_Rest, str] | None = None

    def round(
        self, hosts: Mapping[str, LeaseHost], silence: Silence, actor: Actor, trouble: Unreadable
    ) -> int:
        """Make what servers ask for and have not got; return for how many servers.

        :param hosts: as they have reported
        :param silence: says which of them report no more
        :param trouble: called with each lease that cannot be read, and each server of which Placement refuses to say
            where it is, or nova does not say what its flavor asks for
        :raises NotLeaderError: the term is over
        :raises ServiceUnavailableError: Placement or the database does not answer
        """
        asking = dict(_asking(hosts, silence))
        answered = self._leases.answered(asking) if asking else frozenset()
        made, now_s = 0, self._rules.clock()
        left = asking.keys() - answered
        self._refused = {server: rest for server, rest in self._refused.items() if server in left}
        for server in sorted(left):
            host, said = asking[server]
            known = self._refused.get(server)
            if known is not None and known.holds(said, now_s):
                continue
            try:
                owner = self._rules.owner(server) if host in self._rules.placed(server) else None
            except PlacementError as error:
                trouble(server, error)
                continue
            if owner is None:
                continue
            try:
                request = self._allowed(server, said, now_s)
            except ServiceUnavailableError as error:
                trouble(server, error)
                continue
            if request is None:
                self._refuse(server, _Refusal.NO_REQUEST, said, now_s)
            elif self._exceeds(owner[0], request, trouble):
                self._refuse(server, _Refusal.LIMIT, said, now_s)
            else:
                self._leases.request(owner, self._spec(request), request.count, server, actor)
                made += 1
        return made

    def _refuse(self, server: str, why: _Refusal, said: RemoteGpuRequest, now_s: float) -> None:
        before = self._refused.get(server)
        if before is None or before.why is not why:
            _LOG.warning("server %s gets no leases: %s", server, why)
        self._refused[server] = _Rest.after(before, why, said, now_s)

    def _allowed(
        self, server: str, said: RemoteGpuRequest, now_s: float
    ) -> RemoteGpuRequest | None:
        """Return what a server gets of what its host says, None for nothing.

        :raises ServiceUnavailableError: nova does not answer, or did not lately: each question would wait as long
        """
        if self._rules.flavor is None:
            return said
        rest, silent = self._nova or (None, None)
        if rest is not None and silent is not None and rest.holds("", now_s):
            # Another one each time: one that is raised again keeps the frames of all the times before.
            raise ServiceUnavailableError(silent)
        try:
            flavor = self._rules.flavor(server)
        except ServiceUnavailableError as error:
            why = str(error)
            self._nova = _Rest.after(rest, why, "", now_s), why
            raise
        self._nova = None
        return None if flavor is None else lesser(said, flavor)

    def _exceeds(self, project: str, request: RemoteGpuRequest, trouble: Unreadable) -> bool:
        limits = self._rules.limits(project)
        if limits.leases is None and limits.gpu_memory_mb is None:
            return False
        count, memory_mb = self._leases.usage(project, trouble)
        more = request.count
        return any(
            limit is not None and used > limit
            for used, limit in (
                (count + more, limits.leases),
                (memory_mb + more * request.memory_mb, limits.gpu_memory_mb),
            )
        )

    def _spec(self, request: RemoteGpuRequest) -> LeaseSpec:
        return LeaseSpec(
            request.memory_mb,
            request.level,
            request.api,
            request.network_mbps,
            unmet=self._rules.unmet,
            priority=request.priority,
            migratable=request.migratable,
            max_wait_s=self._rules.max_wait_s,
        )


def lesser(said: RemoteGpuRequest, flavor: RemoteGpuRequest) -> RemoteGpuRequest:
    """Return what a host says that a server's flavor asks for, as far as the flavor does.

    :param flavor: by nova; its interface counts, and whether leases must be able to move
    """
    return replace(
        flavor,
        count=min(said.count, flavor.count),
        memory_mb=min(said.memory_mb, flavor.memory_mb),
        level=min(said.level, flavor.level, key=lambda each: SERVICE_LEVEL_SHARES[each]),
        network_mbps=min(said.network_mbps, flavor.network_mbps),
        priority=min(said.priority, flavor.priority),
    )


def _asking(
    hosts: Mapping[str, LeaseHost], silence: Silence
) -> Iterator[tuple[str, tuple[str, RemoteGpuRequest]]]:
    """Yield servers that ask, with their host and what they ask for."""
    for name, host in sorted(hosts.items()):
        if silence.answers(name):
            for each in host.requests:
                if each["server_id"] in host.servers:
                    yield each["server_id"], (name, _said(each))


def _said(report: Mapping[str, Any]) -> RemoteGpuRequest:
    return RemoteGpuRequest(
        count=report["count"],
        memory_mb=report["memory_mb"],
        level=ServiceLevel(report["service_level"]),
        api=RemoteGpuApi(report["api"]),
        network_mbps=report["network_mbps"],
        network_share=0.0,
        vgpus_per_gpu=1,
        priority=report["priority"],
        migratable=report["migratable"],
    )
