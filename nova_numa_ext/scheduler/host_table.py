# SPDX-License-Identifier: Apache-2.0
"""Nova's HostStates and candidates as the arrays that :mod:`nova_numa_ext.policy.numa.batch` decides on."""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from nova_numa_ext.policy.numa import arrays
from nova_numa_ext.policy.numa.arrays import CELL, DOMAIN, HostArrays, Integers, Mask, Records
from nova_numa_ext.policy.numa.batch import Offered
from nova_numa_ext.policy.numa.batch_devices import CandidateDevices
from nova_numa_ext.scheduler.nova_objects import HostFacts, KnownHosts
from placement_traits import names
from placement_traits.fleet import HostView

_MOST_HOSTS: Final = 50_000
_WAY: Final = names.LLC_WAY
_BANDWIDTH: Final = names.MEMORY_BANDWIDTH_MBPS


class HostTable:
    """One row of records per host, written again only where nova's cells or our view of the host are other objects.

    Safe to use from several threads: what :meth:`read` returns is a copy.

    :param known: facts of nova's HostStates
    """

    def __init__(self, known: KnownHosts) -> None:
        self.known = known
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._row: dict[str, int] = {}
        self._facts: list[HostFacts | None] = []
        self._views: list[HostView | None] = []
        self._columns: list[dict[str, int]] = []
        self._plain = np.zeros((0, 2), bool)  # its cells, its view
        self._cells = np.zeros((0, 0), CELL)
        self._domains = np.zeros((0, 0), DOMAIN)
        self._ratios = np.ones((0, 2))
        self._kind = np.zeros(0, np.int64)
        self._kinds: dict[frozenset[str] | None, int] = {}
        self._examples: list[HostView | None] = []

    def read(
        self, host_states: Sequence[Any], views: Sequence[HostView | None]
    ) -> tuple[HostArrays, list[dict[str, int]], Mask]:
        """Return the hosts of one decision.

        :param host_states: nova's HostStates
        :param views: our view of each, with recent picks already in it
        :returns: the arrays; for each host the columns of its L3 domains by provider; which hosts have a row that
            shows all of them (the others must be decided one by one)
        """
        with self._lock:
            if len(self._row) + len(host_states) > _MOST_HOSTS and any(
                state.uuid not in self._row for state in host_states
            ):
                self._forget()
            rows = self._refresh(host_states, views)
            taken = np.array(rows, np.int64)
            ratios = self._ratios[taken]
            hosts = HostArrays(
                self._cells[taken],
                self._domains[taken],
                ratios[:, 0],
                ratios[:, 1],
                self._kind[taken],
                tuple(self._examples),
            )
            columns = self._columns
            complete: Mask = np.all(self._plain[taken], axis=1)
            return hosts, [columns[row] for row in rows], complete

    def _refresh(self, host_states: Sequence[Any], views: Sequence[HostView | None]) -> list[int]:
        """Write the rows that have changed; returns the row of each host."""
        rows, new_cells, new_views = [], [], []
        row_of, known, seen = self._row, self._facts, self._views
        everything = zip(host_states, self.known.all(host_states), views, strict=True)
        for state, facts, view in everything:
            uuid = state.uuid
            row = row_of.get(uuid)
            if row is None:
                row = row_of[uuid] = len(known)
                known.append(None)
                seen.append(None)
                self._columns.append({})
            rows.append(row)
            if known[row] is not facts:
                new_cells.append(row)
                known[row] = facts
            if seen[row] is not view or row >= len(self._kind):
                new_views.append(row)
                seen[row] = view
        self._grow(len(known))
        self._write_cells(new_cells)
        self._write_views(new_views)
        return rows

    def _grow(self, height: int) -> None:
        more = height - len(self._kind)
        if more > 0:
            width = self._cells.shape[1], self._domains.shape[1]
            self._cells = np.concatenate([self._cells, np.zeros((more, width[0]), CELL)])
            self._domains = np.concatenate([self._domains, np.zeros((more, width[1]), DOMAIN)])
            self._ratios = np.concatenate([self._ratios, np.ones((more, 2))])
            self._kind = np.concatenate([self._kind, np.zeros(more, np.int64)])
            self._plain = np.concatenate([self._plain, np.zeros((more, 2), bool)])

    def _write_cells(self, rows: Sequence[int]) -> None:
        changed = [facts for row in rows if (facts := self._facts[row]) is not None]
        plain = [arrays.representable(facts.cells, None) for facts in changed]
        self._cells = _written(
            self._cells,
            rows,
            [
                arrays.cell_records(facts.cells, facts.pci_free) if fits else []
                for facts, fits in zip(changed, plain, strict=True)
            ],
        )
        if rows:
            limits = [(facts.limits.cpu_ratio, facts.limits.ram_ratio) for facts in changed]
            self._plain[list(rows), 0], self._ratios[list(rows)] = plain, limits

    def _write_views(self, rows: Sequence[int]) -> None:
        views = [self._views[row] for row in rows]
        plain = [arrays.representable((), view) for view in views]
        self._domains = _written(
            self._domains,
            rows,
            [
                arrays.domain_records(view) if fits else []
                for view, fits in zip(views, plain, strict=True)
            ],
        )
        if rows:
            self._plain[list(rows), 1] = plain
        before = len(self._examples)
        for row, view, fits in zip(rows, views, plain, strict=True):
            # A host that is decided alone has no records: its columns would lie outside the table.
            domains = view.l3 if view is not None and fits else ()
            self._columns[row] = {domain.uuid: column for column, domain in enumerate(domains)}
            traits = view.traits if view is not None else None
            kind = self._kinds.setdefault(traits, len(self._examples))
            if kind == len(self._examples):
                self._examples.append(view)
            self._kind[row] = kind
        if len(self._examples) > before:
            self._drop_kinds()

    def _drop_kinds(self) -> None:
        """Number the kinds again when most of them have no host any more: each decision walks over all."""
        used, kind = np.unique(self._kind, return_inverse=True)
        if 2 * len(used) >= len(self._examples):
            return
        self._examples = [self._examples[number] for number in used]
        self._kinds = {
            view.traits if view is not None else None: number
            for number, view in enumerate(self._examples)
        }
        self._kind = kind


def _written(
    table: Records, rows: Sequence[int], hosts: Sequence[Sequence[tuple[Any, ...]]]
) -> Records:
    """Return the table with these rows replaced; it becomes wider where a host asks for it."""
    if not rows:
        return table
    new = arrays.rows(table.dtype, hosts)
    table = arrays.wider(table, new.shape[1])
    table[list(rows)] = arrays.wider(new, table.shape[1])
    return table


def offered(
    host_states: Sequence[Any],
    columns: Sequence[Mapping[str, int]],
    *,
    dedicated: bool,
    taken: Collection[str] = (),
    devices: CandidateDevices | None = None,
) -> Offered:
    """Read the allocation candidates of all hosts, as :func:`.nova_objects.candidate` does one by one.

    Nova makes new dictionaries for each request, several for each candidate: they are walked once.

    :param columns: for each host the columns of its L3 domains by provider
    :param dedicated: the guest asks for dedicated CPUs only
    :param taken: L3 providers from which earlier servers of this request have taken something
    :param devices: what the candidates hold of devices
    """
    counts: list[int] = []
    number = 0
    fallback: list[int] = []
    used: list[str] = []
    entries: list[int] = []  # four numbers for each use of an L3 domain
    for state, known in zip(host_states, columns, strict=True):
        root, candidates = state.uuid, state.allocation_candidates
        counts.append(len(candidates))
        for raw in candidates:
            allocations = raw["allocations"]
            for uuid in allocations:
                if uuid in known:
                    amounts = allocations[uuid]["resources"]
                    used.append(uuid)
                    entries += number, known[uuid], amounts.get(_WAY, 0), amounts.get(_BANDWIDTH, 0)
            if (
                dedicated
                and not (root in allocations and names.PCPU in allocations[root]["resources"])
                and not any(names.PCPU in each["resources"] for each in allocations.values())
            ):
                fallback.append(number)
            number += 1
    return _offered(
        counts,
        fallback,
        np.array(entries, np.int64).reshape(-1, 4),
        used=used,
        taken=taken,
        devices=devices,
    )


def _offered(
    counts: Sequence[int],
    fallback: Sequence[int],
    uses: Integers,
    *,
    used: Sequence[str],
    taken: Collection[str],
    devices: CandidateDevices | None,
) -> Offered:
    """Put the candidates' uses of L3 domains side by side.

    :param counts: candidates of each host
    :param fallback: candidates that allocate VCPU for a guest that asks for dedicated CPUs
    :param uses: rows of candidate, column of the domain, ways, bandwidth
    :param used: the providers of these domains
    """
    host = np.repeat(np.arange(len(counts)), counts)
    candidate = uses[:, 0]
    slot = _slots(candidate, used)
    shape = len(host), int(slot.max(initial=-1)) + 1
    values = np.zeros((3, *shape), np.int64)
    values[:2, candidate, slot] = uses[:, 2:].T
    values[2, candidate, slot] = [uuid in taken for uuid in used] if taken else 0
    domain = np.full(shape, -1)
    domain[candidate, slot] = uses[:, 1]
    late = np.zeros(len(host), bool)
    late[list(fallback)] = True
    return Offered(
        host=host,
        index=np.arange(len(host)) - np.searchsorted(host, host),
        fallback=late,
        domain=domain,
        ways=values[0],
        bandwidth=values[1],
        taken=values[2].astype(bool),
        devices=devices,
    )


def _slots(candidate: Integers, providers: Sequence[str]) -> Integers:
    """Number the uses of each candidate in the order of their providers.

    :param candidate: ascending
    """
    number = np.arange(len(candidate))
    first = np.searchsorted(candidate, candidate)
    if (number > first).any():
        order = np.lexsort((np.array(providers), candidate))
        number[order] = np.arange(len(candidate))
    return number - first
