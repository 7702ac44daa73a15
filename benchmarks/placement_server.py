# SPDX-License-Identifier: Apache-2.0
"""The real Placement on SQLite with a whole fleet in it, serving HTTP on loopback from a process of its own.

``python -m benchmarks.placement_server HOSTS [FREE]`` prints the port when it is ready and serves until its standard
input ends. One of FREE hosts has room and the others are full; without FREE nothing is on any host. Rows are written in
bulk: the same rows that our reporter and nova-compute would have made, one request each.
"""

import sys
import time
import uuid
from collections.abc import Iterator
from itertools import count
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from emulation.hosts import four_nodes
from placement_traits import beats, names, shards
from placement_traits.known_providers import child_uuid
from placement_traits.names import PackingTrait
from placement_traits.offers import TreeSettings
from placement_traits.topology import Gpu, GpuEdge, HostTopology
from placement_traits.tree import Inventory, ProviderTree, desired_tree

SETTINGS = TreeSettings(PackingTrait.PACK)
NOVA = {
    names.VCPU: Inventory(256),
    names.PCPU: Inventory(64),
    names.MEMORY_MB: Inventory(524_288),
}


def topology(number: int) -> HostTopology:
    """Host ``number``: 4 nodes, 4 L3 domains; a third of the hosts have 4 GPUs in two NVLink pairs."""
    if number % 3:
        return four_nodes(gpus=(), gpu_links=())
    addresses = [f"0000:{bus:02x}:00.0" for bus in (0x05, 0x06, 0x85, 0x86)]
    return four_nodes(
        gpus=tuple(Gpu(address, 2 * (i // 2)) for i, address in enumerate(addresses)),
        gpu_links=(
            GpuEdge(addresses[0], addresses[1], names.GpuLink.NV2),
            GpuEdge(addresses[2], addresses[3], names.GpuLink.NV2),
        ),
    )


def root_uuid(number: int) -> str:
    """Uuid of nova's root provider of host ``number``."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"host{number}"))


def tree(number: int) -> ProviderTree:
    """What the agent of host ``number`` publishes in Placement."""
    return desired_tree(f"host{number}", topology(number), SETTINGS)


class Rows:
    """Rows of Placement's tables, in the making."""

    def __init__(self, traits: dict[str, int], classes: dict[str, int]) -> None:
        self.traits, self.classes = traits, classes
        self.providers: list[dict[str, Any]] = []
        self.inventories: list[dict[str, Any]] = []
        self.provider_traits: list[dict[str, Any]] = []
        self.allocations: list[dict[str, Any]] = []
        self._ids = count(1)

    def add(self, name: str, its_uuid: str, traits: Any, inventories: Any, root: int = 0) -> int:
        """Add one provider; returns its row's number."""
        row = next(self._ids)
        self.providers.append(
            {
                "id": row,
                "uuid": its_uuid,
                "name": name,
                "generation": 1,
                "root_provider_id": root or row,
                "parent_provider_id": root or None,
            }
        )
        for trait in traits:
            self.provider_traits.append(
                {"resource_provider_id": row, "trait_id": self.traits[trait]}
            )
        for resource_class, inventory in inventories.items():
            self.inventories.append(
                {
                    "resource_provider_id": row,
                    "resource_class_id": self.classes[resource_class],
                    "total": inventory.total,
                    "reserved": inventory.reserved,
                    "min_unit": inventory.min_unit,
                    "max_unit": inventory.max_unit,
                    "step_size": inventory.step_size,
                    "allocation_ratio": inventory.allocation_ratio,
                }
            )
        return row

    def add_host(self, number: int, *, full: bool = False) -> None:
        """Add one host with nova's root, our children, and nova's PCI providers.

        :param full: one server has all of its shared CPUs, memory and GPUs
        """
        desired, its_uuid = tree(number), root_uuid(number)
        traits = {*desired.root_traits, "HW_CPU_X86_AVX2", "COMPUTE_NODE"}
        root = self.add(desired.root, its_uuid, traits, NOVA)
        for child in desired.children:
            self.add(
                child.name, child_uuid(its_uuid, child.name), child.traits, child.inventories, root
            )
        for gpu in topology(number).gpus:
            name = f"{desired.root}_{gpu.address}"
            novas = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
            gpu_row = self.add(
                name, novas, (names.MANAGED_PCI_DEVICE,), {names.PGPU: Inventory(1)}, root
            )
            if full:
                self._take(gpu_row, {names.PGPU: 1}, its_uuid)
        if full:
            whole = {name: NOVA[name].total for name in (names.VCPU, names.MEMORY_MB)}
            self._take(root, whole, its_uuid)

    def _take(self, row: int, amounts: dict[str, int], consumer: str) -> None:
        self.allocations += [
            {
                "resource_provider_id": row,
                "consumer_id": consumer,
                "resource_class_id": self.classes[name],
                "used": amount,
            }
            for name, amount in amounts.items()
        ]

    def add_beat(self, number: int) -> None:
        """Add the beat of one host's agent, some minutes old."""
        host = tree(number).root
        minute = int(time.time() // 60) - number % round(beats.EVERY_MINUTES)
        inventories = {names.BEAT_MINUTE: Inventory(minute)}
        self.add(beats.provider(host), beats.provider_uuid(host), (names.BEAT,), inventories)


def is_full(number: int, free: int) -> bool:
    """Return whether host ``number`` is full where one of so many has room; with 0 none is."""
    return bool(free) and number % free > 0


def fill(adapter: Any, hosts: int, free: int = 0) -> int:
    """Write the fleet into the database; returns the number of providers.

    :param free: as of :func:`is_full`
    """
    from placement.db.sqlalchemy import models
    from placement.db_api import get_placement_engine

    from placement_traits.client import PlacementClient

    client = PlacementClient(adapter)
    for trait in shards.all_traits():
        client.put(f"/traits/{trait}")
    for number in range(3):
        desired = tree(number)
        for trait in {*desired.root_traits, *(t for c in desired.children for t in c.traits)}:
            client.put(f"/traits/{trait}")
    client.put(f"/traits/{names.BEAT}")
    for resource_class in (*names.PUBLISHED_CLASSES, names.BEAT_MINUTE):
        client.put(f"/resource_classes/{resource_class}")
    with get_placement_engine().begin() as connection:
        rows = Rows(
            dict(connection.execute(names_and_ids(models.Trait)).all()),
            dict(connection.execute(names_and_ids(models.ResourceClass)).all()),
        )
        for number in range(hosts):
            rows.add_host(number, full=is_full(number, free))
            rows.add_beat(number)
        connection.execute(models.ResourceProvider.__table__.insert(), rows.providers)
        connection.execute(models.Inventory.__table__.insert(), rows.inventories)
        connection.execute(models.ResourceProviderTrait.__table__.insert(), rows.provider_traits)
        if rows.allocations:
            connection.execute(models.Allocation.__table__.insert(), rows.allocations)
    return len(rows.providers)


def names_and_ids(model: Any) -> Any:
    """Return the query for the numbers of traits or resource classes by name."""
    from sqlalchemy import select

    return select(model.name, model.id)


class Quiet(WSGIRequestHandler):
    """Serves HTTP/1.1 without a line per request."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""


class Server(ThreadingMixIn, WSGIServer):
    """Serves each request in a thread of its own."""

    daemon_threads = True


def serve(hosts: int, free: int) -> Iterator[str]:
    """Fill and serve; yields the line for the parent, then serves until standard input ends."""
    import threading

    from emulation.placement_service import PlacementInProcess

    with PlacementInProcess() as placement:
        providers = fill(placement.adapter, hosts, free)
        server = make_server("127.0.0.1", 0, placement.application, Server, Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{server.server_port} {providers}"
        sys.stdin.read()
        server.shutdown()


def main() -> int:
    """Serve as many hosts as the first argument names; the second is as of :func:`is_full`."""
    hosts, free = (*map(int, sys.argv[1:]), 0)[:2]
    for line in serve(hosts, free):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
