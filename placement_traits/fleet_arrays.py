# SPDX-License-Identifier: Apache-2.0
"""The fleet as a few arrays: what is known of ten thousand hosts in some megabytes that processes can share.

One record for each host, L3 domain, GPU, link and device. The records of one host stand side by side, in the order of
the hosts; a record says how many children it has and where they begin, a child which parent is its own::

    hosts    root_uuid, name, kind, CLOS …     l3_start, l3_count, gpus_start, gpus_count, devices_…
    l3       host, uuid, l3_id, amounts …      nodes_start, nodes_count, cpus_start, cpus_count
    nodes    number of a NUMA node
    cpus     first, last                       of a range
    gpus     host, uuid, address, node …       links_start, links_count
    links    gpu, address, link
    devices  host, uuid, address, amount
    kinds    traits_start, traits_count        sets of traits of nova's root; few hosts differ from all others
    traits   number of a text
    texts    octets in UTF-8; text_ends        names, addresses and traits, each once

No array holds Python objects, so all of them can be written to a file and mapped from there. What a record holds of a
host is all that :class:`~placement_traits.fleet.HostView` holds of it: :meth:`FleetArrays.of` and
:meth:`FleetArrays.view` are inverse to each other.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from placement_traits.errors import InvalidValueError
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView, L3View, RdtView
from placement_traits.names import GpuLink, NeighbourTrait

Records: TypeAlias = npt.NDArray[Any]

UUID_LENGTH: Final = 36
UNKNOWN: Final = -1  # in place of a number that is not known, and of a text that is not there
NODE_BITS: Final = 64
NEIGHBOURS: Final = tuple(NeighbourTrait)  # bit of each in ``l3["neighbours"]``
LINKS: Final = tuple(GpuLink)  # number of each in ``links["link"]``
L3_AMOUNTS: Final = ("ways", "bandwidth_mbps", "neighbourhood")  # each may have no inventory


def _amount(name: str) -> list[tuple[str, str]]:
    return [(f"{name}_known", "?"), (f"{name}_capacity", "i8"), (f"{name}_used", "i8")]


def _children(*names: str) -> list[tuple[str, str]]:
    return [(f"{name}_{what}", "i8") for name in names for what in ("start", "count")]


_UUID: Final = f"S{UUID_LENGTH}"

HOST: Final = np.dtype(
    [
        ("root_uuid", _UUID),
        ("name", "i8"),  # text
        ("kind", "i8"),
        ("changed", "i8"),  # version of the first snapshot in which the host is as it is now
        ("rdt_known", "?"),
        ("rdt_uuid", _UUID),
        *_amount("clos"),
        *_children("l3", "gpus", "devices"),
    ],
    align=True,
)
L3: Final = np.dtype(
    [
        ("host", "i8"),
        ("uuid", _UUID),
        ("l3_id", "i8"),
        ("socket", "i8"),
        ("chassis", "i8"),
        ("node_bits", "u8"),  # those of its nodes that have a bit
        ("bits_tell_all", "?"),  # no node is without a bit
        ("neighbours", "u4"),  # bits, in the order of NEIGHBOURS
        *[field for name in L3_AMOUNTS for field in _amount(name)],
        *_children("nodes", "cpus"),
    ],
    align=True,
)
CPUS: Final = np.dtype([("first", "i8"), ("last", "i8")], align=True)
GPU: Final = np.dtype(
    [
        ("host", "i8"),
        ("uuid", _UUID),
        ("address", "i8"),  # text
        ("node", "i8"),
        ("switch", "i8"),
        *_children("links"),
    ],
    align=True,
)
LINK: Final = np.dtype([("gpu", "i8"), ("address", "i8"), ("link", "u1")], align=True)
DEVICE: Final = np.dtype(
    [
        ("host", "i8"),
        ("uuid", _UUID),
        ("address", "i8"),  # text
        ("capacity", "i8"),
        ("used", "i8"),
        ("resource_class", "i8"),  # text
    ],
    align=True,
)
KIND: Final = np.dtype(_children("traits"), align=True)

LAYOUT: Final[Mapping[str, np.dtype[Any]]] = {
    "hosts": HOST,
    "l3": L3,
    "nodes": np.dtype("i8"),
    "cpus": CPUS,
    "gpus": GPU,
    "links": LINK,
    "devices": DEVICE,
    "kinds": KIND,
    "traits": np.dtype("i8"),
    "text_ends": np.dtype("i8"),
    "texts": np.dtype("u1"),
}

# Parent, child, and the child's field with the number of its parent.
_FAMILIES: Final = (
    ("hosts", "l3", "host"),
    ("hosts", "gpus", "host"),
    ("hosts", "devices", "host"),
    ("l3", "nodes", ""),
    ("l3", "cpus", ""),
    ("gpus", "links", "gpu"),
    ("kinds", "traits", ""),
)


@dataclass(frozen=True, eq=False)
class FleetArrays:
    """All hosts of the fleet; nothing in it ever changes.

    :param hosts: ``HOST`` records; a host's row is its place here
    :param l3: ``L3`` records, those of a host ascending by id
    :param nodes: NUMA nodes of all L3 domains
    :param cpus: ``CPUS`` records, the ranges of all L3 domains
    :param gpus: ``GPU`` records
    :param links: ``LINK`` records
    :param devices: ``DEVICE`` records
    :param kinds: ``KIND`` records
    :param traits: numbers of the texts that name the traits of all kinds
    :param text_ends: where each text ends among ``texts``
    :param texts: all texts, one after the other
    """

    hosts: Records
    l3: Records
    nodes: Records
    cpus: Records
    gpus: Records
    links: Records
    devices: Records
    kinds: Records
    traits: Records
    text_ends: Records
    texts: Records

    @classmethod
    def of(cls, views: Iterable[HostView], version: int = 0) -> "FleetArrays":
        """Return the arrays of these hosts, in their order.

        :param version: of the snapshot, for all of them
        :raises InvalidValueError: a provider's uuid is not one
        """
        writer = _Writer()
        for view in views:
            writer.add(view, version)
        return cls(**_numbered(writer.tables()))

    def with_changes(self, changed: Mapping[str, HostView | None], version: int) -> "FleetArrays":
        """Return the fleet with other views of some hosts; the rest keeps its order, new hosts come last.

        :param changed: by root provider; None where a host has gone
        :param version: of the snapshot, for the changed hosts
        """
        writer = _Writer(self.all_texts(), self.trait_sets)
        place = np.arange(len(self.hosts))
        new = []
        for root, view in changed.items():
            row = self.rows.get(root)
            if view is None:
                at = UNKNOWN
            else:
                at = len(self.hosts) + len(writer)
                writer.add(view, version)
            if row is not None:
                place[row] = at
            elif view is not None:
                new.append(at)
        order = np.concatenate([place[place != UNKNOWN], np.array(new, np.int64)])
        return FleetArrays(**_merged(self._tables(), writer.tables(), order))

    def _tables(self) -> dict[str, Records]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    # Reading --------------------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Row of each host by its root provider."""
        return {root.decode(): row for row, root in enumerate(self.hosts["root_uuid"].tolist())}

    @cached_property
    def views(self) -> Mapping[str, HostView]:
        """Hosts by root provider; each view is made again when it is asked for."""
        return _Views(self)

    @cached_property
    def trait_sets(self) -> tuple[frozenset[str], ...]:
        """Our traits of nova's root, for each kind of host."""
        return tuple(
            frozenset(self.text(number) for number in self._slice(kind, "traits").tolist())
            for kind in _dicts(self.kinds)
        )

    def text(self, number: int) -> str:
        """Return one text."""
        start = int(self.text_ends[number - 1]) if number else 0
        return self.texts[start : int(self.text_ends[number])].tobytes().decode()

    def all_texts(self) -> list[str]:
        """Return all texts by their numbers."""
        octets, ends = self.texts.tobytes(), self.text_ends.tolist()
        return [octets[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]

    def view(self, row: int) -> HostView:
        """Return one host."""
        (host,) = _dicts(self.hosts[row : row + 1])
        rdt = RdtView(host["rdt_uuid"].decode(), _read(host, "clos")) if host["rdt_known"] else None
        return HostView(
            host["root_uuid"].decode(),
            self.text(host["name"]),
            self.trait_sets[host["kind"]],
            rdt,
            tuple(self._l3(each) for each in _dicts(self._slice(host, "l3"))),
            tuple(self._gpu(each) for each in _dicts(self._slice(host, "gpus"))),
            tuple(self._device(each) for each in _dicts(self._slice(host, "devices"))),
        )

    def _slice(self, parent: Mapping[str, Any], children: str) -> Records:
        start, count = parent[f"{children}_start"], parent[f"{children}_count"]
        found: Records = getattr(self, children)[start : start + count]
        return found

    def _l3(self, record: Mapping[str, Any]) -> L3View:
        bits = record["neighbours"]
        return L3View(
            uuid=record["uuid"].decode(),
            l3_id=record["l3_id"],
            nodes=tuple(self._slice(record, "nodes").tolist()),
            socket=record["socket"],
            chassis=record["chassis"],
            neighbours=frozenset(trait for bit, trait in enumerate(NEIGHBOURS) if bits >> bit & 1),
            cpus=tuple(self._slice(record, "cpus").tolist()),
            **{name: _read(record, name) for name in L3_AMOUNTS},
        )

    def _gpu(self, record: Mapping[str, Any]) -> GpuView:
        return GpuView(
            record["uuid"].decode(),
            self.text(record["address"]),
            None if record["node"] == UNKNOWN else record["node"],
            None if record["switch"] == UNKNOWN else record["switch"],
            {
                self.text(link["address"]): LINKS[link["link"]]
                for link in _dicts(self._slice(record, "links"))
            },
        )

    def _device(self, record: Mapping[str, Any]) -> DeviceView:
        return DeviceView(
            record["uuid"].decode(),
            self.text(record["address"]),
            Amount(record["capacity"], record["used"]),
            self.text(record["resource_class"]),
        )


class _Views(Mapping[str, HostView]):
    """Makes the view of a host when it is asked for, and keeps none: all of them would fill the memory."""

    def __init__(self, arrays: FleetArrays) -> None:
        self._arrays = arrays

    def __getitem__(self, root: str) -> HostView:
        return self._arrays.view(self._arrays.rows[root])

    def __contains__(self, root: object) -> bool:
        return root in self._arrays.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays.rows)

    def __len__(self) -> int:
        return len(self._arrays.hosts)


class _Writer:
    """Collects the records of hosts.

    :param texts: texts that have numbers already
    :param kinds: sets of traits that have numbers already
    """

    def __init__(self, texts: Iterable[str] = (), kinds: Iterable[frozenset[str]] = ()) -> None:
        self._texts = {text: number for number, text in enumerate(texts)}
        self._kinds = {kind: number for number, kind in enumerate(kinds)}
        self._rows: dict[str, list[Any]] = {
            name: [] for name in ("hosts", "l3", "nodes", "cpus", "gpus", "links", "devices")
        }

    def __len__(self) -> int:
        return len(self._rows["hosts"])

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def add(self, view: HostView, version: int) -> None:
        """Add one host."""
        rows = self._rows
        rdt = view.rdt
        rows["hosts"].append(
            (
                _uuid(view.root_uuid),
                self._text(view.name),
                self._kinds.setdefault(view.traits, len(self._kinds)),
                version,
                rdt is not None,
                _uuid(rdt.uuid) if rdt is not None else b"",
                *_written(rdt.clos if rdt is not None else None),
                *(0, len(view.l3), 0, len(view.gpus), 0, len(view.devices)),
            )
        )
        rows["l3"] += map(self._l3, view.l3)
        rows["nodes"] += [node for domain in view.l3 for node in domain.nodes]
        rows["cpus"] += [cpus for domain in view.l3 for cpus in domain.cpus]
        rows["gpus"] += map(self._gpu, view.gpus)
        rows["links"] += [
            (0, self._text(address), LINKS.index(link))
            for gpu in view.gpus
            for address, link in gpu.links.items()
        ]
        rows["devices"] += [
            (
                0,
                _uuid(each.uuid),
                self._text(each.address),
                each.amount.capacity,
                each.amount.used,
                self._text(each.resource_class),
            )
            for each in view.devices
        ]

    def _l3(self, domain: L3View) -> tuple[Any, ...]:
        bits = [1 << node for node in domain.nodes if 0 <= node < NODE_BITS]
        return (
            0,
            _uuid(domain.uuid),
            domain.l3_id,
            domain.socket,
            domain.chassis,
            sum(set(bits)),
            len(bits) == len(domain.nodes),
            sum(1 << bit for bit, trait in enumerate(NEIGHBOURS) if trait in domain.neighbours),
            *[value for name in L3_AMOUNTS for value in _written(getattr(domain, name))],
            0,
            len(domain.nodes),
            0,
            len(domain.cpus),
        )

    def _gpu(self, gpu: GpuView) -> tuple[Any, ...]:
        return (
            0,
            _uuid(gpu.uuid),
            self._text(gpu.address),
            UNKNOWN if gpu.node is None else gpu.node,
            UNKNOWN if gpu.switch is None else gpu.switch,
            0,
            len(gpu.links),
        )

    def tables(self) -> dict[str, Records]:
        """Return the arrays; numbers of parents and beginnings of children are still missing."""
        kinds = [(0, len(kind)) for kind in self._kinds]
        traits = [self._text(trait) for kind in self._kinds for trait in sorted(kind)]
        octets = [text.encode() for text in self._texts]
        found = {name: np.array(rows, LAYOUT[name]) for name, rows in self._rows.items()}
        return found | {
            "kinds": np.array(kinds, KIND),
            "traits": np.array(traits, LAYOUT["traits"]),
            "text_ends": np.cumsum([len(each) for each in octets], dtype=np.int64),
            "texts": np.frombuffer(b"".join(octets), np.uint8),
        }


def _numbered(tables: dict[str, Records]) -> dict[str, Records]:
    """Write where the children of each record begin, and into each child the number of its parent."""
    for parent, child, field in _FAMILIES:
        counts = tables[parent][f"{child}_count"]
        tables[parent][f"{child}_start"] = np.cumsum(counts) - counts
        if field:
            tables[child][field] = np.repeat(np.arange(len(counts)), counts)
    for each in tables.values():
        each.setflags(write=False)
    return tables


def _merged(
    old: Mapping[str, Records], new: Mapping[str, Records], order: Records
) -> dict[str, Records]:
    """Put the records of both together.

    :param old: numbered
    :param new: not numbered yet; its texts and kinds begin with the old ones
    :param order: rows of the old hosts, and after them of the new, in the order of the result
    """
    tables = {name: new[name] for name in ("kinds", "traits", "text_ends", "texts")}
    tables["hosts"] = np.concatenate([old["hosts"], new["hosts"]])[order]
    place = {"hosts": order}
    for parent, child, _field in _FAMILIES:
        if child in tables:
            continue
        counts = np.concatenate([each[parent][f"{child}_count"] for each in (old, new)])
        place[child] = _ranges((np.cumsum(counts) - counts)[place[parent]], counts[place[parent]])
        tables[child] = np.concatenate([old[child], new[child]])[place[child]]
    return _numbered(tables)


def _ranges(starts: Records, counts: Records) -> Records:
    """Return the numbers from each start on, as many as it counts, one range after the other."""
    before = np.cumsum(counts) - counts
    found: Records = np.repeat(starts - before, counts) + np.arange(counts.sum())
    return found


def _dicts(records: Records) -> Iterator[dict[str, Any]]:
    names = records.dtype.names or ()
    for values in records.tolist():
        yield dict(zip(names, values, strict=True))


def _uuid(text: str) -> bytes:
    """Return a provider's uuid as a record holds it: Placement lets in no longer ones."""
    if not text or len(text) > UUID_LENGTH or not text.isascii() or "\0" in text:
        raise InvalidValueError("uuid", text, f"1 to {UUID_LENGTH} characters of ASCII")
    return text.encode()


def _written(amount: Amount | None) -> tuple[bool, int, int]:
    return (False, 0, 0) if amount is None else (True, amount.capacity, amount.used)


def _read(record: Mapping[str, Any], name: str) -> Amount | None:
    if not record[f"{name}_known"]:
        return None
    return Amount(record[f"{name}_capacity"], record[f"{name}_used"])
