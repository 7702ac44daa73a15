# SPDX-License-Identifier: Apache-2.0
"""A model of a NUMA host with shared caches, memory bandwidth and Intel RDT.

From the true state of a host (where vCPUs run, where pages are, which cache ways and bandwidth levels are set, what
each guest demands) it computes what sensors would show: IPC, misses per instruction, stall rate, bandwidth local and
total, cache occupancy, and the tail latency of latency-critical servers. It serves the simulators, and the agent on
machines without performance counters. Every figure that comes from it is *modelled*.

* :mod:`~host_agent.hostmodel.parameters` - constants with sources, frozen in a data file, and random draws
* :mod:`~host_agent.hostmodel.workloads` - the programs of the sources as the model sees them
* :mod:`~host_agent.hostmodel.model` - the contention model
* :mod:`~host_agent.hostmodel.latency` - tail latency against load and slow-down
* :mod:`~host_agent.hostmodel.slo_plant` - the model in time: throttles take effect, pages move, guests report
* :mod:`~host_agent.hostmodel.time_model` - the closed form of BWAP (equations 4.1 and 4.4)
* :mod:`~host_agent.hostmodel.machines` - the machines of the sources
* :mod:`~host_agent.hostmodel.published` - tables of the sources
"""
