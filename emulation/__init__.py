# SPDX-License-Identifier: Apache-2.0
"""Emulated hardware for the lab, the tests and the benchmarks; nothing of it runs on a compute host.

* :mod:`emulation.physics` - what counters, memory and latencies of a NUMA host would show (*modelled*)
* :mod:`emulation.kernel` - the kernel's resctrl, in process or as a tree of files
* :mod:`emulation.hosts` - the lab's host as discovery reads it
* :mod:`emulation.servers` - servers as nova defines them in libvirt
* :mod:`emulation.gpu_machines` - random GPU hosts and jobs
* :mod:`emulation.placement_service` - the real Placement in process
"""
