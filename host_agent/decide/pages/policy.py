# SPDX-License-Identifier: Apache-2.0
"""From ``numa_ext:memory_policy`` to the share of memory that each NUMA node should hold.

=================  ==========================================================
policy             desired shares
=================  ==========================================================
local              on the nodes of the vCPUs, in proportion to the vCPUs there
first_touch        pages stay where the kernel put them
autonuma           pages go where the kernel's automatic NUMA balancing moves them
uniform_workers    equal on the nodes of the vCPUs
uniform_all        equal on all nodes
bwap_uniform       uniform_all at DWP 0, then BWAP's search
bwap               canonical weights at DWP 0, then BWAP's search
=================  ==========================================================

Only a *floating* guest (without a nova NUMA topology) may be spread: the others are strict in the cells that nova
accounted for them. Nova counts a floating guest's memory per host, not per cell, so shares are clipped (:func:`fit`) to
what a node can hold beside what nova promised to strict guests there (:class:`Room`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from host_agent.decide.pages.weights import dwp_weights, uniform
from host_agent.model.pages import Shares
from host_agent.model.terms import Term
from placement_traits.errors import CapabilityMissingError
from placement_traits.names import MemoryPolicy
from placement_traits.reason import Reason


def desired_shares(
    policy: MemoryPolicy,
    *,
    vcpus_per_node: Mapping[int, int],
    nodes: Collection[int],
    canonical: Shares | None = None,
    dwp: float = 0.0,
) -> dict[int, float] | None:
    """Return the shares that a policy wants, None where pages stay.

    :param vcpus_per_node: nodes the vCPUs run on (the workers) and how many run there
    :param nodes: all nodes of the host that may hold the guest's memory
    :param canonical: canonical weights of this worker set, needed by ``bwap``
    :param dwp: where BWAP's search stands, 0.0 to 1.0
    :raises CapabilityMissingError: ``bwap`` without canonical weights
    """
    workers = tuple(node for node, count in sorted(vcpus_per_node.items()) if count > 0)
    match policy:
        case MemoryPolicy.FIRST_TOUCH | MemoryPolicy.AUTONUMA:
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


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that floating guests may have on each node, granted guest by guest within one decision.

    Two marks keep pages from going to and fro: a page is let in only where the margin stays free behind it; pages leave
    only where the promises to strict guests are not covered any more, and then until the margin is free again.

    :param free_mb: node -> MiB free, less promises that are not resident yet; negative where those are not covered
    :param margin_mb: MiB that stay free behind every page that is moved to a node
    """

    free_mb: Mapping[int, float]
    margin_mb: float = 0.0

    def limits_mb(self, resident_mb: Mapping[int, float]) -> dict[int, float]:
        """Return node -> MiB that a guest may hold there, who holds ``resident_mb`` now."""
        return {
            node: max(0.0, resident_mb.get(node, 0.0) + self._more(free))
            for node, free in self.free_mb.items()
        }

    def covers(
        self, memory_mb: float, resident_mb: Mapping[int, float], nodes: Collection[int], home: bool
    ) -> bool:
        """Tell whether a guest fits on the nodes; one that lives there may use up the margin before it has to go."""
        limits = self.limits_mb(resident_mb)
        return memory_mb <= sum(
            max(0.0, resident_mb.get(node, 0.0) + self.free_mb.get(node, 0.0))
            if home
            else limits.get(node, 0.0)
            for node in nodes
        )

    def after(self, resident_mb: Mapping[int, float], granted_mb: Mapping[int, float]) -> "Room":
        """Return what is left for the next guest: what this one gives up covers promises, but is not free yet."""
        free = dict(self.free_mb)
        for node, before in self.free_mb.items():
            more = granted_mb.get(node, 0.0) - resident_mb.get(node, 0.0)
            if more > 0:
                free[node] = before - more
            elif before < 0:
                free[node] = min(self.margin_mb, before - more)
        return Room(free, self.margin_mb)

    def _more(self, free: float) -> float:
        return 0.0 if 0 <= free <= self.margin_mb else free - self.margin_mb


def fit(
    shares: Shares,
    memory_mb: float,
    room_mb: Mapping[int, float],
    near: Collection[int] = (),
    resident_mb: Mapping[int, float] | None = None,
) -> tuple[dict[int, float], tuple[Reason, ...]]:
    """Clip shares to the room on each node; the rest goes to other desired nodes, stays where it is, or goes anywhere.

    :param shares: desired shares
    :param memory_mb: resident memory of the guest, MiB
    :param room_mb: node -> MiB that this guest may hold there (:meth:`Room.limits_mb`)
    :param near: nodes in order of preference for what the desired nodes cannot take
    :param resident_mb: node -> MiB that it holds there now: what has no better place is not moved
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
    given = {node: share for node, share in shares.items() if share > 0}
    whole = sum(given.values())
    if given and all(share <= whole * limit.get(node, 0.0) for node, share in given.items()):
        return result | {node: share / whole for node, share in given.items()}, ()
    rest = _distribute(given, limit, result)
    stays = {node: mb / memory_mb for node, mb in sorted((resident_mb or {}).items())}
    anywhere = dict.fromkeys((*near, *sorted(room_mb)), 1.0)
    for node, most in (*stays.items(), *anywhere.items()):
        grant = max(0.0, min(rest, min(limit.get(node, 0.0), most) - result.get(node, 0.0)))
        result[node] = result.get(node, 0.0) + grant
        rest -= grant
    clipped = tuple(
        Reason(Term.ROOM_ON_NODE, round(result[node], 3), round(share, 3), f"node {node}")
        for node, share in sorted(shares.items())
        if share - result[node] > 1e-9
    )
    return result, clipped


def _distribute(given: Shares, limit: Mapping[int, float], result: dict[int, float]) -> float:
    """Give nodes what they are to have in the proportion of their shares, until all are full; return what is left."""
    open_nodes = {node for node in given if limit.get(node, 0.0) > 0}
    rest = 1.0
    while rest > 1e-12 and open_nodes:
        total = sum(given[node] for node in open_nodes)
        full = set()
        handed = 0.0
        for node in sorted(open_nodes):
            grant = min(rest * given[node] / total, limit[node] - result[node])
            result[node] += grant
            handed += grant
            if limit[node] - result[node] <= 1e-12:
                full.add(node)
        rest -= handed
        open_nodes -= full
        if not full:
            break
    return rest
