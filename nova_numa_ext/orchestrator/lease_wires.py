# SPDX-License-Identifier: Apache-2.0
"""The NICs between a lease's GPU and its server: claimed where the server is now, in place of where it was.

A lease that is promised bandwidth holds it at both ends, of its GPU's host and of its server's, and of neither where
these are one host. Nova moves servers as it likes; one write in Placement swaps what the lease holds then, and GPU and
core stay. Where Placement refuses, because the NIC there has no room left, the lease keeps its GPU and holds what it
held: its server is there already. It is tried again each minute, and logged once. Where an engine died between
Placement and the row, the next look finds that the claim is of other NICs than the row, and both are made as they
should be.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import StoredLease
from nova_numa_ext.policy.remote_gpu import lease_claims
from placement_traits.claim_store import ClaimStore, NoRoomError
from placement_traits.claims import Amounts
from placement_traits.pools import ClientNic, Pool, PoolNic

_LOG: Final = logging.getLogger(__name__)


class LeaseWires:
    """Keeps them claimed; for one thread at a time.

    :param stored: the leases
    :param claims: what they hold
    :param nic: by which servers of a host reach pools, by the host's name; None: it is not counted
    """

    def __init__(
        self, stored: Leases, claims: ClaimStore, nic: Callable[[str], ClientNic | None]
    ) -> None:
        self._leases, self._claims, self._nic = stored, claims, nic
        self._followed: dict[str, tuple[str, str]] = {}
        self._refused: dict[str, tuple[str, str]] = {}
        self._astray: Collection[str] = ()

    def forget(self, astray: Collection[str] = ()) -> None:
        """Look at all leases again, those that were refused, too.

        :param astray: those whose claims are of other NICs than their rows
        """
        self._astray = astray
        self._refused = {
            uuid: place
            for uuid, place in self._refused.items()
            if self._followed.get(uuid) == place
        }
        self._followed = {}

    def follow(
        self,
        stored: StoredLease,
        client: str,
        lent: Callable[[], Sequence[Pool]],
        actor: Actor,
        may: Callable[[], None],
    ) -> StoredLease:
        """Let a lease that holds bandwidth hold it on the NICs to where its server is; return it as it is then.

        :param client: name of that host; '' where it is not known
        :param lent: returns the pools whose hosts answer
        :param may: called right before each write to Placement
        :raises LostRaceError: it has changed since it was read
        """
        place = (client, stored.gpu)
        if not client or self._followed.get(stored.uuid) == place:
            return stored
        pool = next(
            (each for each in lent() if any(gpu.uuid == stored.gpu for gpu in each.gpus)), None
        )
        self._followed[stored.uuid] = place
        if pool is None:  # its host is silent, or lends the GPU no more
            return stored
        nics = self._nics(stored, pool, client)
        desired = lease_claims.rewired(stored.amounts, nics, stored.asked.network_mbps)
        if desired == stored.amounts and stored.uuid not in self._astray:
            return stored
        swapped = self._swapped(stored, desired, place, actor, may)
        if swapped is not stored:
            self._refused.pop(stored.uuid, None)
        return swapped

    def _nics(self, stored: StoredLease, pool: Pool, client: str) -> list[str]:
        """Return the providers of the NICs of both ends."""
        if pool.host == client:
            return []

        def worse(nic: PoolNic) -> tuple[bool, bool]:
            return nic.uuid not in stored.amounts, nic.mbps.free < stored.asked.network_mbps

        nic = self._nic(client)
        ends = [min(pool.nics, key=worse).uuid] if pool.nics else []
        return ends if nic is None else [*ends, nic.uuid]

    def _swapped(
        self,
        stored: StoredLease,
        desired: Amounts,
        place: tuple[str, str],
        actor: Actor,
        may: Callable[[], None],
    ) -> StoredLease:
        held = self._claims.read(stored.uuid)
        if held is None:
            return stored  # by an operator's hand: it is claimed again first
        if held.amounts != desired:
            try:
                self._claims.write(replace(held, amounts=desired), may=may)
            except NoRoomError as error:
                again = self._refused.get(stored.uuid) == place
                self._refused[stored.uuid] = place
                _LOG.log(
                    logging.DEBUG if again else logging.WARNING,
                    "lease %s is promised %s MB/s, which the NICs between its GPU and its server do not have: %s",
                    stored.uuid,
                    stored.asked.network_mbps,
                    error,
                )
                return stored
        return self._leases.rewire(stored, desired, actor)
