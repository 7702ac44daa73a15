# SPDX-License-Identifier: Apache-2.0
"""What a lease of a remote GPU holds in Placement; :class:`placement_traits.claim_store.ClaimStore` writes it.

A lease is a consumer of its own: not the server's, which nova writes, moves and deletes as it likes. It holds all that
it needs in one claim, over up to four providers of two trees (:mod:`placement_traits.pool_tree`)::

    GPU         its slice of the memory, the shares of its service level
    cpu         one core, for its server process
    pool's NIC  the bandwidth that it is promised    neither NIC where none is promised,
    client's    the same                             nor where the GPU is in the server's own host

Leases that are had together or not at all (a gang) are claims of one write. A move is one write, too: the lease takes
the destination, and a second consumer keeps what it leaves, until that is released or everything goes back.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits import names
from placement_traits.claims import Amounts, Claim, emptied
from placement_traits.names import LEASE_CONSUMER, MOVE_CONSUMER

CORES: Final = 1
"""Of the GPU's host for one lease: its server copies for one application (rCUDA's demand is about one core)."""


@dataclass(frozen=True, slots=True)
class LeaseRoute:
    """From where to where: uuids of providers.

    :param gpu: the GPU
    :param cpu: the cores of its host
    :param pool_nic: of its host; '' where nothing goes over a wire
    :param client_nic: of the server's host; '' where nothing goes over a wire
    """

    gpu: str
    cpu: str
    pool_nic: str = ""
    client_nic: str = ""


def amounts(part: GpuSlice, route: LeaseRoute, network_mbps: int = 0) -> Amounts:
    """Return what a lease holds.

    :param part: of the GPU
    :param network_mbps: that it is promised, megabytes a second; 0: what others leave
    """
    found: dict[str, dict[str, int]] = {
        route.gpu: {
            names.REMOTE_GPU_MEMORY_MB: part.memory_mb,
            names.REMOTE_GPU_SHARE: part.shares,
        },
        route.cpu: {names.REMOTE_GPU_CORE: CORES},
    }
    for nic in filter(None, (route.pool_nic, route.client_nic)):
        if network_mbps:
            found[nic] = {names.REMOTE_GPU_NETWORK_MBPS: network_mbps}
    return found


def rewired(held: Amounts, nics: Iterable[str], network_mbps: int) -> Amounts:
    """Return what a lease holds whose GPU stays while its server is reached by other NICs.

    :param nics: providers; none where nothing goes over a wire
    :param network_mbps: that it is promised, megabytes a second
    """
    bandwidth = {names.REMOTE_GPU_NETWORK_MBPS: network_mbps}
    rest = {each: amounts for each, amounts in held.items() if each not in set(wires(held))}
    return rest | (dict.fromkeys(nics, bandwidth) if network_mbps else {})


def wires(held: Amounts) -> Iterator[str]:
    """Yield the providers of the NICs of which a lease holds something."""
    for each, amounts in held.items():
        if amounts.keys() == {names.REMOTE_GPU_NETWORK_MBPS}:
            yield each


def lease(consumer: str, project: str, user: str, held: Amounts) -> Claim:
    """Return the claim of a new lease.

    :param consumer: uuid of the lease
    :param project: whose it is: Placement counts by it
    :param user: whose it is
    :param held: of :func:`amounts`
    """
    return Claim(consumer, LEASE_CONSUMER, project, user, held)


def moved(held: Claim, destination: Amounts, second: str) -> tuple[Claim, Claim]:
    """Return the claims of one write after which a lease holds its destination, and another consumer what it left.

    What both ends need, such as the same NIC of the client, is held once.

    :param held: the lease's, as it was read
    :param destination: of :func:`amounts`
    :param second: uuid of the second consumer, a new one for each move
    """
    kept = less(held.amounts, destination)
    keeps = Claim(second, MOVE_CONSUMER, held.project, held.user, kept)
    return replace(held, amounts=destination), keeps


def moved_back(held: Claim, keeps: Claim, source: Amounts) -> tuple[Claim, Claim]:
    """Return the claims of the one write that undoes :func:`moved`; both as they were read.

    :param source: what the lease held before
    """
    return replace(held, amounts=source), emptied(keeps)


def less(some: Amounts, others: Amounts) -> Amounts:
    """Return what some amounts have more than others."""
    found: dict[str, Mapping[str, int]] = {}
    for provider, of_classes in some.items():
        there = others.get(provider, {})
        more = {
            name: amount - there.get(name, 0)
            for name, amount in of_classes.items()
            if amount > there.get(name, 0)
        }
        if more:
            found[provider] = more
    return found
