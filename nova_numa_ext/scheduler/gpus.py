# SPDX-License-Identifier: Apache-2.0
"""GPUs of nova's hosts for :mod:`nova_numa_ext.policy.gpu_sets`: which request asks for devices, which are free."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml
from oslo_config import cfg

from nova_numa_ext.conf import GROUP
from nova_numa_ext.policy.candidates import Candidate
from nova_numa_ext.policy.gpu_job import COMM_PROFILES, ProfileStore, parse_profiles
from nova_numa_ext.policy.gpu_sets import (
    GpuMap,
    GpuOffer,
    GpuRules,
    GpuWish,
    gpu_map,
    occupied,
)
from nova_numa_ext.policy.gpu_utility import UtilityOptions
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

    def __init__(self, rules: GpuRules) -> None:
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


def rules(conf: cfg.ConfigOpts) -> GpuRules:
    """Read the operator's choices from ``[numa_ext]``.

    :raises InvalidValueError: no weight is above 0, or the profiles cannot be read
    """
    options = conf[GROUP]
    weights = (
        options.gpu_communication_weight,
        options.gpu_interference_weight,
        options.gpu_fragmentation_weight,
    )
    total = sum(weights)
    if not total > 0:
        raise InvalidValueError(
            f"[{GROUP}]gpu_…_weight", weights, "three numbers >= 0, one of them > 0"
        )
    communication, interference, fragmentation = (weight / total for weight in weights)
    return GpuRules(
        UtilityOptions(communication, interference, fragmentation),
        _store(options.gpu_profiles) if options.gpu_profiles else COMM_PROFILES,
    )


def planner(conf: cfg.ConfigOpts) -> GpuPlanner:
    """Return the planner; a mistake in the options is logged and the defaults are used: scheduling goes on."""
    try:
        return GpuPlanner(rules(conf))
    except InvalidValueError as error:
        LOG.error("GPUs are chosen with default weights and profiles: %s", error)
        return GpuPlanner(GpuRules())


def _store(path: str) -> ProfileStore:
    """Return the built-in profiles with those of a file over them."""
    where = f"[{GROUP}]gpu_profiles {path}"
    try:
        document = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise InvalidValueError(where, path, f"a readable YAML or JSON file ({error})") from error
    if not isinstance(document, Mapping):
        raise InvalidValueError(where, type(document).__name__, "a mapping of profiles by name")
    measured = parse_profiles(document, where).profiles
    return ProfileStore(MappingProxyType({**COMM_PROFILES.profiles, **measured}))
