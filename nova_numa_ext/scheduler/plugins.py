# SPDX-License-Identifier: Apache-2.0
"""The two classes that nova-scheduler loads; everything they do is in :mod:`nova_numa_ext.scheduler.session`.

Both read the configuration when nova-scheduler makes them, and it does not start with a mistake in it.
"""

from collections.abc import Sequence
from typing import Any

from nova.scheduler import filters, weights

from nova_numa_ext.scheduler import aggregates, decision, process


class NumaExtFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Refuses hosts that cannot serve the flavor's tier, class and NUMA shape, and puts the best candidate first.

    One look at the view serves all hosts of a request.
    """

    RUN_ON_REBUILD = False

    def __init__(self) -> None:
        process.configuration()

    def filter_all(self, filter_obj_list: Sequence[Any], spec_obj: Any) -> Sequence[Any]:
        """Return the HostStates that pass."""
        engine = process.engine()
        if engine is not None:
            return engine.filter(filter_obj_list, spec_obj)
        if not decision.asks_us(spec_obj):
            return filter_obj_list
        return aggregates.unjudged(filter_obj_list, process.options())

    def host_passes(self, host_state: Any, filter_properties: Any) -> bool:
        """Answer for one host, for callers that do not use :meth:`filter_all`."""
        return bool(self.filter_all([host_state], filter_properties))


class NumaExtWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Scores the hosts that passed in [0, 1], see :mod:`nova_numa_ext.policy.numa.score`.

    The bounds are fixed: without them nova would stretch the smallest gap to [0, 1].
    """

    minval = 0.0
    maxval = 1.0

    def __init__(self) -> None:
        process.configuration()

    def weight_multiplier(self, host_state: Any) -> float:
        """Return ``[numa_ext]weight_multiplier`` or the value of the host's aggregate."""
        engine = process.engine()
        return engine.weight_multiplier(host_state) if engine is not None else 0.0

    def weigh_objects(self, weighed_obj_list: Sequence[Any], weight_properties: Any) -> list[float]:
        """Return one score per WeighedHost."""
        engine = process.engine()
        if engine is None:
            return [0.0] * len(weighed_obj_list)
        return engine.weigh(weighed_obj_list, weight_properties)

    def _weigh_object(self, obj: Any, weight_properties: Any) -> float:
        """Nova's abstract method; the list is weighed at once, since unknown terms take the mean of the others."""
        raise NotImplementedError
