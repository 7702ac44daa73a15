# SPDX-License-Identifier: Apache-2.0
"""From ``numa_ext:memory_policy`` to the share of memory that each NUMA node should hold, and where that is forbidden.

=================  ==========================================================
policy             wanted shares
=================  ==========================================================
local              on the nodes of the vCPUs, in proportion to the vCPUs there
first_touch        no wish: pages stay where the kernel put them
uniform_workers    equal on the nodes of the vCPUs
uniform_all        equal on all nodes
bwap_uniform       uniform_all at DWP 0, then BWAP's search
bwap               canonical weights at DWP 0, then BWAP's search
=================  ==========================================================

Only a *floating* guest (without a nova NUMA topology) may be spread: the others are strict in the cells that nova
accounted for them. Nova counts a floating guest's memory per host, not per cell, so a wish is clipped to what a node
can hold beside what nova promised to strict guests there (:func:`fit`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from host_agent.controllers.weights import Shares, dwp_weights, uniform
from nova_numa_ext.policy.reason import Reason
from nova_numa_ext.request import SPREADING_POLICIES
from placement_traits.errors import CapabilityMissingError
from placement_traits.names import MemoryPolicy


class GuestState(StrEnum):
    """Whether the guest's memory may be touched at all now."""

    RUNNING = "running"
    PAUSED = "paused"
    MIGRATING = "migrating"


@dataclass(frozen=True, slots=True)
class GuestMemory:
    """What decides whether the pages of a guest may move.

    :param floating: nova gave the guest no NUMA topology, its cpuset holds all nodes
    :param allowed_nodes: nodes in the guest's ``cpuset.mems``
    :param device_pinned: VFIO, vDPA or SEV: the kernel holds the pages in place
    :param hugetlb: backed by the huge-page pool, which nova promised to others on the target
    :param state: running, paused or migrating
    """

    floating: bool
    allowed_nodes: frozenset[int]
    device_pinned: bool = False
    hugetlb: bool = False
    state: GuestState = GuestState.RUNNING


def not_applicable(policy: MemoryPolicy, guest: GuestMemory) -> Reason | None:
    """Return why ``policy`` cannot be enforced on the guest now, None when it can."""
    checks = (
        (guest.state is not GuestState.RUNNING, "guest_state", guest.state.value),
        (guest.device_pinned, "pages_pinned_by_device", "true"),
        (guest.hugetlb, "hugetlb_pool_promised_to_others", "true"),
        (
            policy in SPREADING_POLICIES and not guest.floating,
            "guest_has_numa_topology",
            "strict in its cells",
        ),
    )
    for wrong, term, value in checks:
        if wrong:
            return Reason(term, value, policy.value)
    return None


def wanted_shares(
    policy: MemoryPolicy,
    *,
    vcpus_per_node: Mapping[int, int],
    nodes: Collection[int],
    canonical: Shares | None = None,
    dwp: float = 0.0,
) -> dict[int, float] | None:
    """Return the shares that a policy wants, None where it has no wish.

    :param vcpus_per_node: nodes the vCPUs run on (the workers) and how many run there
    :param nodes: all nodes of the host that may hold the guest's memory
    :param canonical: canonical weights of this worker set, needed by ``bwap``
    :param dwp: where BWAP's search stands, 0.0 to 1.0
    :raises CapabilityMissingError: ``bwap`` without canonical weights
    """
    workers = tuple(node for node, count in sorted(vcpus_per_node.items()) if count > 0)
    match policy:
        case MemoryPolicy.FIRST_TOUCH:
            return None
        case MemoryPolicy.LOCAL:
            total = sum(vcpus_per_node.values())
            return {node: vcpus_per_node[node] / total for node in workers}
        case MemoryPolicy.UNIFORM_WORKERS:
            return uniform(workers)
        case MemoryPolicy.UNIFORM_ALL:
            return uniform(sorted(nodes))
        case MemoryPolicy.BWAP_UNIFORM:
            return dwp_weights(uniform(sorted(nodes)), workers, dwp)
        case MemoryPolicy.BWAP:
            if canonical is None:
                raise CapabilityMissingError(
                    f"memory policy bwap on nodes {list(workers)} needs measured bandwidths; "
                    "run `numa-host-agent-ctl calibrate` or use bwap_uniform."
                )
            return dwp_weights(canonical, workers, dwp)


def fit(
    shares: Shares, memory_mb: float, room_mb: Mapping[int, float], near: Collection[int] = ()
) -> tuple[dict[int, float], tuple[Reason, ...]]:
    """Clip shares to the room on each node and give the rest to the other wanted nodes, then to any node.

    :param shares: wanted shares
    :param memory_mb: resident memory of the guest, MiB
    :param room_mb: node -> MiB that this guest may hold there: what is free beside the promises to strict guests and
        the margin, plus what it holds there already
    :param near: nodes in order of preference for what the wanted nodes cannot take
    :returns: shares that sum to 1 and fit, and one reason per node that was clipped
    :raises CapabilityMissingError: the room on all nodes together is smaller than the guest
    """
    if memory_mb <= 0:
        return dict(shares), ()
    limit = {node: max(0.0, room) / memory_mb for node, room in room_mb.items()}
    if sum(limit.values()) < 1.0 - 1e-9:
        raise CapabilityMissingError(
            f"{memory_mb:.0f} MiB of guest memory do not fit into the {sum(room_mb.values()):.0f} MiB that may be used "
            "on this host's nodes; nothing is moved."
        )
    result = dict.fromkeys({**room_mb, **shares}, 0.0)
    open_nodes = {node for node, share in shares.items() if share > 0 and limit.get(node, 0.0) > 0}
    rest = 1.0
    while rest > 1e-12 and open_nodes:
        total = sum(shares[node] for node in open_nodes)
        full = set()
        handed = 0.0
        for node in sorted(open_nodes):
            grant = min(rest * shares[node] / total, limit[node] - result[node])
            result[node] += grant
            handed += grant
            if limit[node] - result[node] <= 1e-12:
                full.add(node)
        rest -= handed
        open_nodes -= full
        if not full:
            break
    for node in (*near, *sorted(room_mb)):
        grant = max(0.0, min(rest, limit.get(node, 0.0) - result[node]))
        result[node] += grant
        rest -= grant
    clipped = tuple(
        Reason("room_on_node", f"node {node}: {result[node]:.3f}", f"wanted {share:.3f}")
        for node, share in sorted(shares.items())
        if share - result[node] > 1e-9
    )
    return result, clipped
