# SPDX-License-Identifier: Apache-2.0
"""The two classes that nova-scheduler loads; everything they do is in :mod:`nova_numa_ext.scheduler.session`."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from nova.scheduler import filters, weights

from nova_numa_ext.scheduler import session

LOG = logging.getLogger(__name__)


class NumaExtFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Refuses hosts that cannot serve the flavor's tier, class and NUMA shape, and puts the best candidate first.

    One look at the view serves all hosts of a request. Name it after nova's NUMATopologyFilter and
    PciPassthroughFilter: what they drop needs no ranking.
    """

    RUN_ON_REBUILD = False

    def filter_all(self, filter_obj_list: Iterable[Any], spec_obj: Any) -> list[Any]:
        """Return the HostStates that pass."""
        host_states = list(filter_obj_list)
        try:
            current = session.engine()
        except Exception:
            LOG.exception("NumaExtFilter cannot start, every host passes.")
            return host_states
        return current.filter(host_states, spec_obj)

    def host_passes(self, host_state: Any, filter_properties: Any) -> bool:
        """Answer for one host, for callers that do not use :meth:`filter_all`."""
        return bool(self.filter_all([host_state], filter_properties))


class NumaExtWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Scores the hosts that passed in [0, 1], see :mod:`nova_numa_ext.policy.numa.score`.

    The bounds are fixed: without them nova would stretch the smallest gap to [0, 1].
    """

    minval = 0.0
    maxval = 1.0

    def weight_multiplier(self, host_state: Any) -> float:
        """Return ``[numa_ext]weight_multiplier`` or the value of the host's aggregate."""
        try:
            return session.engine().weight_multiplier(host_state)
        except Exception:
            LOG.exception("NumaExtWeigher has no opinion.")
            return 0.0

    def weigh_objects(self, weighed_obj_list: Sequence[Any], weight_properties: Any) -> list[float]:
        """Return one score per WeighedHost."""
        try:
            current = session.engine()
        except Exception:
            LOG.exception("NumaExtWeigher cannot start, it has no opinion.")
            return [0.0] * len(weighed_obj_list)
        return current.weigh(weighed_obj_list, weight_properties)

    def _weigh_object(self, obj: Any, weight_properties: Any) -> float:
        """Nova's abstract method; the list is weighed at once, since unknown terms take the mean of the others."""
        raise NotImplementedError
