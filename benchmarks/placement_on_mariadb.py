# SPDX-License-Identifier: Apache-2.0
"""The real Placement over MariaDB, serving HTTP on loopback from a process of its own.

``python -m benchmarks.placement_on_mariadb URL`` prints its port and serves; each line that it reads from standard
input is a JSON object: ``{"group": {"option": value}}`` changes its configuration, ``{"fill": [KIND, HOSTS]}`` fills
the database. It answers each key with one line.
"""

import json
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from wsgiref.simple_server import make_server

from benchmarks.placement_server import NOVA, Quiet, Rows, Server, names_and_ids
from emulation.hosts import four_nodes
from placement_traits import names
from placement_traits.known_providers import child_uuid
from placement_traits.names import GpuLink, PackingTrait
from placement_traits.offers import TreeSettings
from placement_traits.topology import Core, Gpu, GpuEdge, HostTopology, L3Domain
from placement_traits.tree import Inventory, ProviderTree, desired_tree

NODES = 4
GPU_CLASS = "CUSTOM_PCI_10DE_20B0"


@dataclass(frozen=True)
class Kind:
    """Hosts that are all alike.

    :param domains: L3 domains of a host, on four NUMA nodes
    :param gpus: of a host; the first half is linked, and so is the second
    """

    domains: int
    gpus: int = 0

    @cached_property
    def topology(self) -> HostTopology:
        """What the agent finds on a host."""
        l3 = tuple(
            L3Domain(d, self.node(d) // 2, (self.node(d),), 16_384) for d in range(self.domains)
        )
        cores = tuple(
            Core(c, self.node(c // 2), self.node(c // 2) // 2, c // 2, (c,))
            for c in range(2 * self.domains)
        )
        addresses = [f"0000:{gpu + 1:02x}:00.0" for gpu in range(self.gpus)]
        half = self.gpus // 2
        links = tuple(
            GpuEdge(addresses[a], addresses[b], GpuLink.NV2)
            for a in range(self.gpus)
            for b in range(a + 1, self.gpus)
            if a // half == b // half
        )
        rdt = four_nodes().rdt
        assert rdt is not None
        return four_nodes(
            l3_domains=l3,
            cores=cores,
            gpus=tuple(Gpu(one, self.gpu_node(gpu)) for gpu, one in enumerate(addresses)),
            gpu_links=links,
            rdt=replace(rdt, l3_ids=tuple(range(self.domains))),
        )

    def node(self, domain: int) -> int:
        """NUMA node of an L3 domain."""
        return domain * NODES // self.domains

    def gpu_node(self, gpu: int) -> int:
        """NUMA node of a GPU."""
        return gpu * NODES // self.gpus

    @cached_property
    def tree(self) -> ProviderTree:
        """What the agent publishes, of a host without a name."""
        return desired_tree("", self.topology, TreeSettings(PackingTrait.PACK))

    def domain_uuid(self, host: int, domain: int) -> str:
        """Provider of an L3 domain."""
        return child_uuid(root_uuid(host), f"{_name(host)}:l3_{domain}")

    def gpu_uuid(self, host: int, gpu: int) -> str:
        """Nova's provider of a GPU."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{_name(host)}-gpu{gpu}"))


KINDS = {
    "4 L3 domains": Kind(4, 1),
    "8 L3 domains": Kind(8),
    "24 L3 domains": Kind(24),
    "8 GPUs": Kind(4, 8),
}


def root_uuid(host: int) -> str:
    """Nova's root provider."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, _name(host)))


def _name(host: int) -> str:
    return f"host{host}"


def _add(rows: Rows, kind: Kind, host: int) -> None:
    name, its_uuid = _name(host), root_uuid(host)
    traits = {*kind.tree.root_traits, "HW_CPU_X86_AVX2", "COMPUTE_NODE"}
    root = rows.add(name, its_uuid, traits, NOVA)
    for child in kind.tree.children:
        own = f"{name}{child.name}"
        rows.add(own, child_uuid(its_uuid, own), child.traits, child.inventories, root)
    for gpu in range(kind.gpus):
        device = (names.MANAGED_PCI_DEVICE,)
        rows.add(f"{name}_{gpu}", kind.gpu_uuid(host, gpu), device, {GPU_CLASS: Inventory(1)}, root)


def _fill(adapter: Any, kind: Kind, hosts: int) -> int:
    from placement.db.sqlalchemy import models
    from placement.db_api import get_placement_engine

    from placement_traits.client import PlacementClient

    client = PlacementClient(adapter)
    for trait in {*kind.tree.root_traits, *(t for c in kind.tree.children for t in c.traits)}:
        client.put(f"/traits/{trait}")
    for resource_class in (*names.PUBLISHED_CLASSES, GPU_CLASS):
        client.put(f"/resource_classes/{resource_class}")
    with get_placement_engine().begin() as connection:
        rows = Rows(
            dict(connection.execute(names_and_ids(models.Trait)).all()),
            dict(connection.execute(names_and_ids(models.ResourceClass)).all()),
        )
        for host in range(hosts):
            _add(rows, kind, host)
        for model, values in (
            (models.ResourceProvider, rows.providers),
            (models.Inventory, rows.inventories),
            (models.ResourceProviderTrait, rows.provider_traits),
        ):
            connection.execute(model.__table__.insert(), values)
    return len(rows.providers)


def serve(url: str, commands: Iterator[str]) -> Iterator[str]:
    """Serve until there are no more commands; yields the answer to each."""
    import requests
    from keystoneauth1 import adapter, session, token_endpoint
    from oslo_config import cfg
    from placement import conf, db_api, deploy

    from emulation.placement_service import URL, WsgiTransport

    config = cfg.ConfigOpts()
    conf.register_opts(config)
    config.set_override("connection", url, "placement_database")
    config.set_override("sync_on_startup", True, "placement_database")
    config.set_override("auth_strategy", "noauth2", "api")
    config([], default_config_files=[])
    db_api.configure(config)
    application = deploy.loadapp(config)
    http = requests.Session()
    http.mount(URL, WsgiTransport(application))
    inside = adapter.Adapter(
        session.Session(token_endpoint.Token(URL, "admin"), session=http), service_type="placement"
    )
    server = make_server("127.0.0.1", 0, application, Server, Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield str(server.server_port)
    for command in commands:
        for group, options in json.loads(command).items():
            if group == "fill":
                kind, hosts = options
                yield str(_fill(inside, KINDS[kind], hosts))
            else:
                for option, value in options.items():
                    config.set_override(option, value, group)
                yield "set"


def main(arguments: Sequence[str]) -> int:
    """Serve the database that the first argument names."""
    for line in serve(arguments[0], iter(sys.stdin)):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
