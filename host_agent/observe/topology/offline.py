# SPDX-License-Identifier: Apache-2.0
"""Where CPUs that are offline now belong, by what was seen while they were online. Pure.

An offline CPU has no topology and no cache files, so that sysfs shows its NUMA node alone; a cache all of whose CPUs
are offline is not shown at all. But nothing has left the machine: nova takes idle dedicated CPUs offline
(``[libvirt]cpu_power_management``) and wakes them for the server that it puts there, which needs their L3 domain in
Placement to be put there at all.
"""

from collections.abc import Iterable
from dataclasses import replace

from placement_traits.topology import Core, HostTopology, L3Domain, NumaNode, Socket


def with_offline(seen: HostTopology, known: HostTopology) -> HostTopology:
    """Return the host with the cores, L3 domains and sockets of its offline CPUs.

    :param seen: as sysfs shows it
    :param known: what :func:`all_online` made of an earlier look; of another machine, or of this one set up in another
        way, it adds nothing
    """
    if not _same_machine(seen, known):
        return seen
    offline = {cpu for node in seen.nodes for cpu in node.offline_cpus}
    online = {*seen.cpus}
    asleep = {core: tuple(cpu for cpu in core.cpus if cpu in offline) for core in known.cores}
    siblings = {cpu: cpus for core, cpus in asleep.items() for cpu in core.cpus}
    cores = [replace(core, offline=siblings.get(core.cpus[0], ())) for core in seen.cores]
    cores += [
        replace(core, cpus=(), offline=cpus)
        for core, cpus in asleep.items()
        if cpus and not online & {*core.cpus}
    ]
    numbered = tuple(
        replace(core, id=number) for number, core in enumerate(sorted(cores, key=_first_cpu))
    )
    return replace(
        seen,
        sockets=_sockets(seen, numbered),
        nodes=tuple(_node(node, numbered) for node in seen.nodes),
        l3_domains=_domains(seen, known, numbered),
        cores=numbered,
    )


def all_online(whole: HostTopology) -> HostTopology:
    """Return what is worth knowing of a host for the time when CPUs are offline: who belongs where."""
    cores = tuple(
        replace(core, cpus=tuple(sorted((*core.cpus, *core.offline))), offline=())
        for core in whole.cores
    )
    nodes = tuple(NumaNode(node.id, node.socket) for node in whole.nodes)
    sockets = tuple(Socket(socket.id) for socket in whole.sockets)
    return HostTopology(sockets, nodes, whole.l3_domains, cores)


def _same_machine(seen: HostTopology, known: HostTopology) -> bool:
    """Tell whether all CPUs that are online now are where they were, and the nodes are the same."""
    places = {cpu: _place(core) for core in known.cores for cpu in core.cpus}
    return seen.node_ids == known.node_ids and all(
        places.get(cpu, _place(core)) == _place(core) for core in seen.cores for cpu in core.cpus
    )


def _place(core: Core) -> tuple[int, int, int | None]:
    return core.node, core.socket, core.l3


def _first_cpu(core: Core) -> int:
    return min((*core.cpus, *core.offline))


def _sockets(seen: HostTopology, cores: Iterable[Core]) -> tuple[Socket, ...]:
    shown = {socket.id: socket for socket in seen.sockets}
    ids = sorted({*shown, *(core.socket for core in cores)})
    return tuple(shown.get(socket, Socket(socket)) for socket in ids)


def _node(node: NumaNode, cores: Iterable[Core]) -> NumaNode:
    sockets = {core.socket for core in cores if core.node == node.id}
    return replace(node, socket=sockets.pop() if len(sockets) == 1 else None)


def _domains(
    seen: HostTopology, known: HostTopology, cores: Iterable[Core]
) -> tuple[L3Domain, ...]:
    nodes: dict[int, set[int]] = {}
    for core in cores:
        if core.l3 is not None:
            nodes.setdefault(core.l3, set()).add(core.node)
    domains = {domain.id: domain for domain in (*known.l3_domains, *seen.l3_domains)}
    return tuple(replace(domains[l3], nodes=tuple(sorted(nodes[l3]))) for l3 in sorted(nodes))
