# SPDX-License-Identifier: Apache-2.0
"""A model of a NUMA host with shared caches, memory bandwidth and Intel RDT.

From the true state of a host (where vCPUs run, where pages are, which cache ways and bandwidth levels are set, what
each guest demands) it computes what sensors would show: IPC, misses per instruction, stall rate, bandwidth local and
total, cache occupancy, and the tail latency of latency-critical servers. It serves the simulators, and the agent on
machines without performance counters. Every figure that comes from it is *modelled*.

* :mod:`~emulation.physics.parameters` - constants with sources, frozen in a data file, and random draws
* :mod:`~emulation.physics.programs` - the programs of the sources as the model sees them
* :mod:`~emulation.physics.model` - the contention model
* :mod:`~emulation.physics.latency` - tail latency against load and slow-down
* :mod:`~emulation.physics.slo_plant` - the model in time: throttles take effect, pages move, guests report
* :mod:`~emulation.physics.time_model` - the closed form of BWAP (equations 4.1 and 4.4)
* :mod:`~emulation.physics.machines` - the machines of the sources
* :mod:`~emulation.physics.published` - tables of the sources
"""
