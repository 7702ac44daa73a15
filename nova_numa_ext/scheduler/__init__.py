# SPDX-License-Identifier: Apache-2.0
"""Nova scheduler plug-ins.

In nova-scheduler's configuration (the order matters, see the classes)::

    [filter_scheduler]
    available_filters = nova.scheduler.filters.all_filters
    available_filters = nova_numa_ext.scheduler.NumaExtFilter
    enabled_filters = …,NumaExtFilter,NUMATopologyFilter,PciPassthroughFilter
    weight_classes = nova.scheduler.weights.all_weighers,nova_numa_ext.scheduler.NumaExtWeigher
"""

from nova_numa_ext.scheduler.plugins import NumaExtFilter, NumaExtWeigher

__all__ = ["NumaExtFilter", "NumaExtWeigher"]
