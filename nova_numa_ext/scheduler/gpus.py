# SPDX-License-Identifier: Apache-2.0
"""GPUs of nova's hosts for :mod:`nova_numa_ext.policy.gpu_sets`: which request asks for devices, which are free."""

import logging
from collections.abc import Sequence
from typing import Any, Final

from oslo_config import cfg

from nova_numa_ext.gpu_options import rules
from nova_numa_ext.policy.candidates import Candidate
from nova_numa_ext.policy.gpu_sets import (
    DEFAULT_RULES,
    GpuMap,
    GpuOffer,
    GpuRules,
    GpuWish,
    gpu_map,
    occupied,
)
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.scheduler import facts
from placement_traits import names
from placement_traits.errors import InvalidValueError
from placement_traits.fleet import GpuView, HostView

LOG = logging.getLogger(__name__)

_NO_DEVICES: Final = frozenset(
    {"VCPU", "PCPU", "MEMORY_MB", "DISK_GB", "MEM_ENCRYPTION_CONTEXT", *names.RESOURCE_CLASSES}
)
_MOST_HOSTS_REMEMBERED: Final = 50_000


def asked(spec: Any) -> bool:
    """Tell whether a RequestSpec asks for any device: by PCI alias, port or resource class."""
    extra_specs = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
    return bool(facts.pci_requests(spec)) or any(
        key.startswith("resources") and key.rpartition(":")[2] not in _NO_DEVICES
        for key in extra_specs
    )


class GpuPlanner:
    """Judges the GPUs that hosts offer; remembers each host's map as long as the view has not read its tree again.

    :param rules: the operator's choices
    """

    def __init__(self, rules: GpuRules = DEFAULT_RULES) -> None:
        self._rules = rules
        self._maps: dict[str, tuple[tuple[GpuView, ...], GpuMap]] = {}

    def offer(
        self,
        wanted: GpuWish,
        view: HostView,
        host_state: Any,
        candidates: Sequence[Candidate],
        recent: Sequence[Pick],
    ) -> GpuOffer:
        """Judge the GPUs of one host.

        :param view: the host; it has GPUs
        :param recent: this scheduler's recent picks on it
        """
        gpus = self._map(view)
        picked = gpus.mask(uuid for pick in recent for uuid in pick.gpus)
        offered = gpus.mask(uuid for candidate in candidates for uuid in candidate.providers)
        # Placement may show fewer candidates than there are, or only those with a trait that the flavor requires.
        free = offered | gpus.mask(facts.free_pci_providers(host_state)) & ~picked
        return GpuOffer(
            wanted,
            self._rules,
            gpus,
            occupied(gpus, view, free, recent),
            [candidate.providers for candidate in candidates],
        )

    def wish(self, request: Any, spec: Any) -> GpuWish:
        """Read what a RequestSpec asks of its GPUs."""
        return GpuWish.of(request, spec.flavor.name, self._rules)

    def _map(self, view: HostView) -> GpuMap:
        known = self._maps.get(view.root_uuid)
        if known is not None and known[0] is view.gpus:
            return known[1]
        if len(self._maps) >= _MOST_HOSTS_REMEMBERED:
            self._maps.clear()
        found = gpu_map(view)
        self._maps[view.root_uuid] = (view.gpus, found)
        return found


def planner(conf: cfg.ConfigOpts) -> GpuPlanner:
    """Return the planner; a mistake in the options is logged and the defaults are used: scheduling goes on."""
    try:
        return GpuPlanner(rules(conf))
    except InvalidValueError as error:
        LOG.error("GPUs are chosen with default weights and profiles: %s", error)
        return GpuPlanner()
