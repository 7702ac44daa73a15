# SPDX-License-Identifier: Apache-2.0
"""What Placement counts on all hosts, as arrays: what the planner of hosts plans with, and what jobs take of it.

A host's amounts are summed over its providers: CPUs and memory of nova's root, classes of service, the amounts of all
L3 domains, devices by resource class. A sum says less than its parts: what must come from one L3 domain or one device
is counted by part where jobs have taken nothing of it yet (:mod:`.host_aspects`). That is coarse, and it may be: nova's
scheduler decides.

Shapes: ``H`` hosts, ``R`` resource classes.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Self, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from nova_numa_ext.policy.jobs.group_places import GroupTakes, NumberedLeafs
from nova_numa_ext.policy.jobs.job import Job, Part
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.network.leafs import Leafs
from nova_numa_ext.policy.numa.whatif import own_amounts
from placement_traits import names
from placement_traits.devices import By
from placement_traits.fleet import Amount
from placement_traits.fleet_arrays import UNKNOWN, FleetArrays
from placement_traits.workload_request import WorkloadRequest

Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Made = TypeVar("Made")

L3_CLASSES: Final[Mapping[str, str]] = {
    "ways": names.LLC_WAY,
    "bandwidth_mbps": names.MEMORY_BANDWIDTH_MBPS,
    "neighbourhood": names.LLC_NEIGHBOURHOOD,
}


@dataclass(frozen=True, slots=True)
class Need:
    """An amount that one server takes.

    :param columns: resource classes that have it, by their numbers; empty where no host has any
    :param amount: how much, of all of them together
    """

    columns: tuple[int, ...]
    amount: int


@dataclass(frozen=True, slots=True, eq=False)
class ViewFabric:
    """A fabric, and what groups hold there.

    :param leafs: without free hosts, which depend on the server
    :param leaf_of_trait: leafs by the trait of their hosts
    """

    leafs: Leafs
    leaf_of_trait: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class HostsView:
    """All hosts at one moment; nothing in it ever changes.

    :param arrays: what our agents publish
    :param roots: root providers of the hosts
    :param rows: place of each host in ``arrays``, :data:`UNKNOWN` for one without an agent, H
    :param classes: number of each resource class
    :param capacity: R x H
    :param used: R x H; of servers and of what else Placement counts
    :param closed: hosts that take no servers now, because their nova-compute is disabled, H
    :param aliases: resource classes of PCI aliases
    :param fabrics: on which hosts hang
    :param vacated: nothing is on the hosts: it is asked what would ever fit, whatever keeps hosts from taking servers
        today
    """

    arrays: FleetArrays
    roots: tuple[str, ...]
    rows: Integers
    classes: Mapping[str, int]
    capacity: Integers
    used: Integers
    closed: Mask
    aliases: Mapping[str, frozenset[str]] = field(default_factory=dict)
    fabrics: tuple[ViewFabric, ...] = ()
    vacated: bool = False
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        arrays: FleetArrays,
        amounts: Mapping[str, Mapping[str, Amount]],
        closed: Collection[str] = (),
        aliases: Mapping[str, frozenset[str]] = MappingProxyType({}),
        fabrics: Sequence[ViewFabric] = (),
    ) -> Self:
        """Return the view of hosts.

        :param amounts: of nova's root provider of each host, by resource class
        :param closed: root providers of hosts whose nova-compute is disabled
        """
        roots = tuple(amounts)
        rows = np.array([arrays.rows.get(root, UNKNOWN) for root in roots], np.int64)
        counts = [*_of_roots(list(amounts.values())), *_of_children(arrays, rows)]
        classes = {name: number for number, name in enumerate(sorted({each[0] for each in counts}))}
        capacity = np.zeros((len(classes), len(roots)), np.int64)
        used = np.zeros_like(capacity)
        for name, at, of_capacity, of_used in counts:
            np.add.at(capacity[classes[name]], at, of_capacity)
            np.add.at(used[classes[name]], at, of_used)
        off = np.array([root in closed for root in roots], bool)
        return cls(arrays, roots, rows, classes, capacity, used, off, aliases, tuple(fabrics))

    @cached_property
    def row(self) -> Mapping[str, int]:
        """Number of each host by its root provider."""
        return {root: number for number, root in enumerate(self.roots)}

    @cached_property
    def free(self) -> Integers:
        """What is left, negative where more is taken than there is, R x H."""
        return self.capacity - self.used

    @cached_property
    def _leaf_of_kind(self) -> list[str]:
        """Trait of the leaf of hosts with the same traits, '' where they hang on none."""
        return [
            ""
            if names.MISCABLED in traits
            else min(filter(names.is_leaf_trait, traits), default="")
            for traits in self.arrays.trait_sets
        ]

    @cached_property
    def _leaf_numbers(self) -> Mapping[str, int]:
        """Number of each leaf by the trait of its hosts."""
        known = {trait for each in self.fabrics for trait in each.leaf_of_trait}
        found = known | {*self._leaf_of_kind} - {""}
        return {trait: at for at, trait in enumerate(sorted(found))}

    @cached_property
    def leaf_hosts(self) -> tuple[NumberedLeafs, ...]:
        """The fabrics, their leafs numbered as in :attr:`leaf`."""
        found = []
        for each in self.fabrics:
            number = {leaf: self._leaf_numbers[trait] for trait, leaf in each.leaf_of_trait.items()}
            # Who may write traits can take a leaf's: no host hangs on such a one.
            numbers = [number.get(leaf.name, UNKNOWN) for leaf in each.leafs.leafs]
            found.append(NumberedLeafs(each.leafs, numbers))
        return tuple(each.empty for each in found) if self.vacated else tuple(found)

    @cached_property
    def pod(self) -> Integers:
        """Number of the node right above each host's leaf; :data:`UNKNOWN` where that is not known, H."""
        of_leaf = np.full(len(self._leaf_numbers) + 1, UNKNOWN, np.int64)  # the last one is no leaf
        pods: dict[tuple[int, str], int] = {}
        for fabric, each in enumerate(self.leaf_hosts):
            for leaf, number in zip(each.leafs.leafs, each.number, strict=True):
                if leaf.pod and number != UNKNOWN:
                    of_leaf[number] = pods.setdefault((fabric, leaf.pod), len(pods))
        return of_leaf[self.leaf]

    @cached_property
    def leaf(self) -> Integers:
        """Number of the fabric's leaf on which each host hangs; :data:`UNKNOWN` where that is not known, H."""
        numbers = self._leaf_numbers
        kinds = np.array([numbers.get(each, UNKNOWN) for each in self._leaf_of_kind], np.int64)
        found = np.full(len(self.roots), UNKNOWN, np.int64)
        known = self.rows != UNKNOWN
        found[known] = kinds[self.arrays.hosts["kind"][self.rows[known]]]
        return found

    @cached_property
    def row_of_arrays(self) -> Integers:
        """Number of each host of ``arrays``; :data:`UNKNOWN` for one that is not among ours."""
        return _numbers(self.arrays, self.rows)

    @cached_property
    def row_of_provider(self) -> Mapping[str, int]:
        """Number of the host of each provider of ours by its uuid, of hosts that are among ours."""
        domains = (self.arrays.l3["uuid"], self.row_of_arrays[self.arrays.l3["host"]])
        hosts = (self.arrays.hosts["rdt_uuid"], self.row_of_arrays)
        return {
            provider.decode(): row
            for providers, rows in (domains, hosts)
            for provider, row in zip(providers.tolist(), rows.tolist(), strict=True)
            if row != UNKNOWN
        }

    @cached_property
    def empty(self) -> "HostsView":
        """The same hosts with nothing on them."""
        tables = {name: getattr(self.arrays, name).copy() for name in ("hosts", "l3", "devices")}
        tables["hosts"]["clos_used"] = tables["devices"]["used"] = 0
        for name in L3_CLASSES:
            tables["l3"][f"{name}_used"] = 0
        return replace(
            self,
            arrays=replace(self.arrays, **tables),
            used=np.zeros_like(self.used),
            vacated=True,
            _made={},
        )

    def remembered(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what was made of this view for a key before, or make it."""
        if key not in self._made:
            self._made[key] = make()
        return cast(Made, self._made[key])

    def host_name(self, row: int) -> str:
        """Return the name of a host, its root provider where no agent has published one."""
        at = int(self.rows[row])
        if at == UNKNOWN:
            return self.roots[row]
        return self.arrays.text(int(self.arrays.hosts["name"][at]))

    def needs(self, part: Part) -> tuple[Need, ...]:
        """Return what one server of a part takes."""
        # Its hash is of all that it asks for. Kept here, no other request gets its id.
        request, disk_gb = part.request, part.disk_gb
        key = ("needs", id(request), disk_gb)
        made: tuple[WorkloadRequest, tuple[Need, ...]]
        made = self.remembered(key, lambda: (request, tuple(self._needs(request, disk_gb))))
        return made[1]

    def _needs(self, request: WorkloadRequest, disk_gb: int) -> list[Need]:
        amounts = {resource: amount for _, resource, amount in own_amounts(request)}
        if names.DISK_GB in self.classes:  # else a provider that hosts share counts it
            amounts[names.DISK_GB] = disk_gb
        amounts[names.RDT_CLOS] = request.clos
        for name, resource in L3_CLASSES.items():
            amounts[resource] = sum(getattr(group, name) for group in request.l3)
        found = [Need(self._columns({name}), amount) for name, amount in amounts.items() if amount]
        return found + [
            Need(self._columns(classes), sum(parts)) for classes, parts in self.devices(request)
        ]

    def devices(
        self, request: WorkloadRequest
    ) -> tuple[tuple[frozenset[str], tuple[int, ...]], ...]:
        """Return the resource classes and parts of devices that a request asks for, as far as Placement counts them."""
        found = []
        for each in request.devices:
            if each.by is By.RESOURCE_CLASS:
                found.append((frozenset({each.name}), each.parts))
            elif each.by is By.ALIAS and each.name in self.aliases:
                found.append((self.aliases[each.name], each.parts))
        return tuple(found)

    def _columns(self, classes: Collection[str]) -> tuple[int, ...]:
        return tuple(sorted(self.classes[name] for name in classes if name in self.classes))


def _of_roots(
    amounts: Sequence[Mapping[str, Amount]],
) -> list[tuple[str, Integers, Integers, Integers]]:
    found = []
    for name in {name for of_host in amounts for name in of_host}:
        at = [row for row, of_host in enumerate(amounts) if name in of_host]
        counts = [(amounts[row][name].capacity, amounts[row][name].used) for row in at]
        capacity, used = np.array(counts, np.int64).T
        found.append((name, np.array(at, np.int64), capacity, used))
    return found


def _of_children(
    arrays: FleetArrays, rows: Integers
) -> list[tuple[str, Integers, Integers, Integers]]:
    """Amounts of our own providers and of devices: class, host, capacity, used of each."""
    row_of = _numbers(arrays, rows)
    found = [_counted(names.RDT_CLOS, arrays.hosts, "clos_", row_of, arrays.hosts["clos_known"])]
    for name, resource in L3_CLASSES.items():
        of_host = row_of[arrays.l3["host"]]
        known_here = arrays.l3[f"{name}_known"]
        found.append(_counted(resource, arrays.l3, f"{name}_", of_host, known_here))
    devices = arrays.devices
    for number in np.unique(devices["resource_class"]).tolist():
        name = arrays.text(number)
        if name:
            here = devices["resource_class"] == number
            found.append(_counted(name, devices, "", row_of[devices["host"]], here))
    return found


def _numbers(arrays: FleetArrays, rows: Integers) -> Integers:
    found = np.full(len(arrays.hosts), UNKNOWN)
    known = np.flatnonzero(rows != UNKNOWN)
    found[rows[known]] = known
    return found


def _counted(
    name: str, records: npt.NDArray[Any], prefix: str, rows: Integers, known: Mask
) -> tuple[str, Integers, Integers, Integers]:
    at = np.flatnonzero(known & (rows != UNKNOWN))
    return name, rows[at], records[f"{prefix}capacity"][at], records[f"{prefix}used"][at]


class HostClaims:
    """What jobs take of the hosts of a view beyond what it shows; negative where they give back what it shows.

    :ivar groups: what groups take of leafs
    :param view: the hosts
    :param taken: R x H
    """

    def __init__(
        self, view: HostsView, taken: Integers | None = None, groups: GroupTakes | None = None
    ) -> None:
        self._view = view
        self.taken = np.zeros_like(view.used) if taken is None else taken
        self.groups = groups or GroupTakes()

    def take(self, job: Job, plan: Plan[HostPlace]) -> None:
        """Put a job on its places; hosts that have gone are left out."""
        self._add(job, plan, 1)

    def give(self, job: Job, plan: Plan[HostPlace]) -> None:
        """Take a job off its places."""
        self._add(job, plan, -1)

    def put(self, part: Part, row: int, count: int) -> None:
        """Put servers of a part on a host."""
        for need in self._view.needs(part):
            if need.columns:
                self.taken[need.columns[0], row] += count * need.amount

    def release(self, held: Iterable[ProviderAmount]) -> None:
        """Take off what the view shows as used and a consumer of ours holds for a job that waits."""
        for each in held:
            column = self._view.classes.get(each.resource_class)
            row = self._view.row_of_provider.get(each.provider)
            if column is not None and row is not None:
                self.taken[column, row] -= each.amount

    def copy(self) -> "HostClaims":
        """Return claims of their own."""
        return HostClaims(self._view, self.taken.copy(), self.groups.copy())

    def either(self, other: "HostClaims") -> "HostClaims":
        """Return the claims that leave free what is free in both."""
        taken = np.maximum(self.taken, other.taken)
        return HostClaims(self._view, taken, self.groups.either(other.groups))

    def _add(self, job: Job, plan: Plan[HostPlace], sign: int) -> None:
        for place in plan.places:
            row = self._view.row.get(place.host)
            if row is not None:
                self.put(job.part(place.part), row, sign * place.count)
        for part in job.parts:
            if part.network is not None:
                hosts = (place.host for place in plan.places if place.part == part.name)
                self.put_group(
                    part,
                    [row for host in hosts if (row := self._view.row.get(host)) is not None],
                    sign,
                )

    def put_group(self, part: Part, rows: Iterable[int], sign: int = 1) -> None:
        """Put the servers of a group on the leafs of their hosts, or take them off.

        :param sign: 1 or -1
        """
        if part.network is not None:
            leafs = {int(self._view.leaf[row]) for row in rows} - {UNKNOWN}
            self.groups.add(part.network, sorted(leafs), sign)
