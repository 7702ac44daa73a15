# SPDX-License-Identifier: Apache-2.0
"""Emulated hardware for the lab, the tests and the benchmarks; nothing of it runs on a compute host.

* :mod:`emulation.physics` - what counters, memory and latencies of a NUMA host would show (*modelled*)
* :mod:`emulation.kernel` - the kernel's resctrl, in process or as a tree of files
"""
