# SPDX-License-Identifier: Apache-2.0
"""Nova's aggregates as plans: those that operators mark, and those that Neutron makes for segments."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nova_numa_ext.cli.fabric_sources.building import LEVELS, of_hosts
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric, FabricKind, FabricNode

LEAF: Final = "numa_ext:leaf"
POD: Final = "numa_ext:pod"
_SEGMENT: Final = "Neutron segment id "


@dataclass(frozen=True, slots=True)
class NovaAggregate:
    """One aggregate.

    :param name: of it
    :param hosts: in it
    :param metadata: of it
    """

    name: str
    hosts: Sequence[str]
    metadata: Mapping[str, str] = field(default_factory=dict)


def read(found: Iterable[NovaAggregate], name: str, kind: FabricKind) -> Fabric:
    """Return the fabric of aggregates with :data:`LEAF`; the pod of a leaf is its own :data:`POD`, or its hosts'.

    :raises InvalidValueError: no aggregate is marked, or hosts of one leaf are in several pods
    """
    all_of_them = list(found)
    leafs = [each for each in all_of_them if LEAF in each.metadata]
    if not leafs:
        raise InvalidValueError("nova's aggregates", "none", f"aggregates with {LEAF}")
    pod_of_host = of_hosts(
        ((each.metadata[POD], each.hosts) for each in all_of_them if POD in each.metadata),
        "nova's aggregates",
    )
    nodes: dict[str, FabricNode] = {}
    has_pods = bool(pod_of_host)
    for each in leafs:
        leaf = each.metadata[LEAF]
        pods = sorted({pod_of_host.get(host, "") for host in each.hosts})
        if has_pods and (len(pods) != 1 or not pods[0]):
            shown = ", ".join(pod or "no pod" for pod in pods)
            raise InvalidValueError(
                f"aggregate {each.name}, leaf {leaf}", shown, "hosts of one pod"
            )
        pod = pods[0] if has_pods else None
        if pod is not None:
            nodes.setdefault(pod, FabricNode(pod, LEVELS[1]))
        nodes[leaf] = FabricNode(leaf, LEVELS[0], pod)
    hosts = of_hosts(((each.metadata[LEAF], each.hosts) for each in leafs), "nova's aggregates")
    return Fabric(name, kind, LEVELS[: 2 if has_pods else 1], nodes, hosts)


def read_segments(found: Iterable[NovaAggregate], name: str) -> Fabric:
    """Return the fabric of Neutron's segments of routed networks: each segment is a leaf, there are no pods.

    :raises InvalidValueError: there is none, or a host is in two
    """
    segments = [
        (each.name.removeprefix(_SEGMENT), each.hosts)
        for each in found
        if each.name.startswith(_SEGMENT) and each.hosts
    ]
    if not segments:
        raise InvalidValueError(
            "nova's aggregates", "none", f"aggregates named '{_SEGMENT}…' with hosts"
        )
    return Fabric(
        name,
        FabricKind.ETHERNET,
        LEVELS[:1],
        {segment: FabricNode(segment, LEVELS[0]) for segment, _ in segments},
        of_hosts(segments, "nova's aggregates"),
    )
