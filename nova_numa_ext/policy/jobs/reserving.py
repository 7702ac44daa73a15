# SPDX-License-Identifier: Apache-2.0
"""What Placement holds for a job that waits until others have freed its places.

Servers that users make beside the queue take what is free. A consumer of ours holds amounts of our own classes on the
job's hosts: classes of service, and ways, bandwidth and neighbourhood of L3 domains, as far as they are free now. CPUs,
memory and devices are nova's to claim and are never held: for these the queue's promise holds only on hosts that no
other servers may use, an aggregate of the queue's own.

Places that others free for a job are the job's alone from then on. A reservation under EASY is of a later time, and
jobs that end before then are to use it: on a host where a job of the queue is about to get servers nothing is held,
until the view shows them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from nova_numa_ext.policy.jobs.host_view import L3_CLASSES, HostsView
from nova_numa_ext.policy.jobs.job import Job, Part
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from placement_traits import names
from placement_traits.fleet import HostView, L3View
from placement_traits.fleet_arrays import UNKNOWN
from placement_traits.workload_request import L3Amount


def amounts(
    job: Job, plan: Plan[HostPlace], view: HostsView, held: Iterable[ProviderAmount] = ()
) -> tuple[ProviderAmount, ...]:
    """Return what is to be held for a job; nothing of servers whose domains are in use.

    :param plan: places that are kept for it
    :param held: what is held for it already: it counts as free, and is kept rather than exchanged
    """
    hosts: dict[str, _Host] = {}
    before = {(each.provider, each.resource_class): each.amount for each in held}
    for place in plan.places:
        row = view.row.get(place.host)
        at = UNKNOWN if row is None else int(view.rows[row])
        if at == UNKNOWN:
            continue
        host = hosts.setdefault(place.host, _Host(view.arrays.view(at), before))
        request = job.part(place.part).request
        for _ in range(place.count):
            host.hold(request.l3, request.clos)
    found = Counter[tuple[str, str]]()
    for host in hosts.values():
        found.update(host.taken)
    return tuple(ProviderAmount(*key, amount) for key, amount in sorted(found.items()))


def takes(part: Part) -> bool:
    """Return whether servers of a part take amounts that may be held."""
    return bool(part.request.l3 or part.request.clos)


def beside(
    held: Iterable[ProviderAmount], hosts: Collection[str], view: HostsView
) -> tuple[ProviderAmount, ...]:
    """Return what is held elsewhere than on some hosts.

    :param hosts: their root providers
    """
    rows = {view.row[host] for host in hosts if host in view.row}
    return tuple(each for each in held if view.row_of_provider.get(each.provider) not in rows)


class _Host:
    """What a host has of our classes, and what is taken of it here.

    :param before: held already, by provider and class
    """

    def __init__(self, view: HostView, before: Mapping[tuple[str, str], int]) -> None:
        self._view = view
        self._before = before
        self.taken: Counter[tuple[str, str]] = Counter()

    def hold(self, groups: Sequence[L3Amount], clos: int) -> None:
        """Hold what one server asks for: each of its groups in an L3 domain of its own."""
        rdt = self._view.rdt
        if clos and rdt is not None and rdt.clos is not None:
            key = (rdt.uuid, names.RDT_CLOS)
            if self._free(key, rdt.clos.free) >= clos:
                self.taken[key] += clos
        others: set[str] = set()
        for group in groups:
            needs = {name: getattr(group, name) for name in L3_CLASSES if getattr(group, name)}
            domains = [
                domain
                for domain in self._view.l3
                if domain.uuid not in others and self._fits(domain, needs)
            ]
            if domains:
                domain = min(domains, key=lambda each: (not self._has(each), each.l3_id))
                others.add(domain.uuid)
                for name, amount in needs.items():
                    self.taken[domain.uuid, L3_CLASSES[name]] += amount

    def _fits(self, domain: L3View, needs: Mapping[str, int]) -> bool:
        for name, amount in needs.items():
            has = getattr(domain, name)
            if has is None or self._free((domain.uuid, L3_CLASSES[name]), has.free) < amount:
                return False
        return True

    def _free(self, key: tuple[str, str], free: int) -> int:
        return free + self._before.get(key, 0) - self.taken[key]

    def _has(self, domain: L3View) -> bool:
        return any(provider == domain.uuid for provider, _ in self._before)
