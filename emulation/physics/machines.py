# SPDX-License-Identifier: Apache-2.0
"""Machines for simulations: regular ones by number, and one of the sources that is no preset."""

from dataclasses import replace

from placement_traits.topology import Core, HostTopology, L3Domain, Matrix, NumaNode, Socket


def grid(
    chassis: int,
    nodes_per_chassis: int,
    cores_per_node: int,
    *,
    memory_mb_per_node: int,
    nodes_per_socket: int = 1,
    threads_per_core: int = 1,
    l3_kb: int = 6144,
    bandwidth_mbps: int | None = None,
    read_bandwidth_mbps: Matrix | None = None,
) -> HostTopology:
    """Return a regular machine with one L3 domain per node.

    Distances are 10 local, 16 on the same socket, 22 in the same chassis, 160 to another one.

    :param chassis: number of server nodes
    :param nodes_per_chassis: NUMA nodes per server node
    :param cores_per_node: cores per NUMA node
    :param read_bandwidth_mbps: measured bandwidths, row = node of the CPU
    """
    sockets_per_chassis = -(-nodes_per_chassis // nodes_per_socket)
    places = [
        (machine, machine * sockets_per_chassis + node // nodes_per_socket)
        for machine in range(chassis)
        for node in range(nodes_per_chassis)
    ]

    def distance(a: int, b: int) -> int:
        if a == b:
            return 10
        if places[a] == places[b]:
            return 16
        if places[a][0] == places[b][0]:
            return 22
        return 160

    rows = range(len(places))
    cores = tuple(
        Core(
            id=node * cores_per_node + core,
            node=node,
            socket=socket,
            l3=node,
            cpus=tuple(
                (node * cores_per_node + core) * threads_per_core + thread
                for thread in range(threads_per_core)
            ),
        )
        for node, (_, socket) in enumerate(places)
        for core in range(cores_per_node)
    )
    return HostTopology(
        sockets=tuple(
            Socket(number, number // sockets_per_chassis)
            for number in range(chassis * sockets_per_chassis)
        ),
        nodes=tuple(
            NumaNode(node, socket, memory_mb=memory_mb_per_node, bandwidth_mbps=bandwidth_mbps)
            for node, (_, socket) in enumerate(places)
        ),
        l3_domains=tuple(
            L3Domain(node, socket, (node,), l3_kb) for node, (_, socket) in enumerate(places)
        ),
        cores=cores,
        distances=tuple(tuple(distance(a, b) for b in rows) for a in rows),
        read_bandwidth_mbps=read_bandwidth_mbps,
    )


def xeon_silver_4114() -> HostTopology:
    """Return machine A of BALM's evaluation: 2 sockets x 10 cores.

    Bandwidths are derived: Ocean_cp draws 32 GB/s from its full local node (table 5.1) and runs best with 0.6:0.4 local
    to remote (section 5.5), so the remote node gives it two thirds of that.
    """
    local, remote = 33000, 22000
    return replace(
        grid(
            1,
            2,
            10,
            memory_mb_per_node=65536,
            l3_kb=14080,
            bandwidth_mbps=local,
            read_bandwidth_mbps=((local, remote), (remote, local)),
        ),
        distances=((10, 21), (21, 10)),
    )
