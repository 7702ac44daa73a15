# SPDX-License-Identifier: Apache-2.0
"""Rally plug-ins: does a cloud keep what the NUMA extension promises?

Rally loads all modules of this package (entry point ``rally_plugins``). What needs Rally is in :mod:`.scenarios`,
:mod:`.contexts` and :mod:`.sla`; what decides is beside them, pure, and needs no Rally:

* :mod:`.agreement` - do the decision, Placement and the host tell the same of a server?
* :mod:`.samples` - how a scenario hands figures to an SLA
* :mod:`.limits` - when an SLA is kept
* :mod:`.checked_flavors` - flavors of a task, as ``openstack numa flavor check`` sees them
* :mod:`.elastic_checks` - does an elastic group come to its size, and keep its limits?
* :mod:`.asking` - commands that read back a host or explain a decision

There are three sources for each server: the decision (``numa-ext-explain``), the allocation (Placement) and what kernel
and libvirt of its host show. *Where* a server is, all three must tell alike: the SLA ``numa_ext_placement``. *How* the
host keeps what was allocated there is ``numa_ext_read_back``; that no two latency-critical servers share L3 ways,
``numa_ext_overlap``; that nothing is left of servers that are gone, ``numa_ext_orphans``. That an elastic group follows
its load is ``numa_ext_scaled``, that it keeps its limits ``numa_ext_scaling_limits``. An SLA that saw no sample fails.
"""
