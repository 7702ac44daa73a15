# SPDX-License-Identifier: Apache-2.0
"""GPUs of nova's hosts for :mod:`nova_numa_ext.policy.gpu.candidate_sets`.

Which request asks for devices, and which are free.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nova_numa_ext.policy.gpu.candidate_sets import (
    DEFAULT_RULES,
    GpuMap,
    GpuOccupancy,
    GpuOffer,
    GpuRequest,
    GpuRules,
    gpu_map,
    lacking,
    occupancy,
    published,
)
from nova_numa_ext.policy.numa.candidates import Candidate
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.scheduler import nova_objects
from placement_traits import devices
from placement_traits.fleet import HostView

_MOST_HOSTS_REMEMBERED: Final = 50_000


def asked(spec: Any) -> bool:
    """Return whether a RequestSpec requests any device: by PCI alias, port or resource class."""
    extra_specs = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
    return bool(nova_objects.pci_requests(spec) or devices.requested(extra_specs))


class GpuPlanner:
    """Judges the GPUs that hosts offer; remembers each host's map as long as the view has not read its tree again.

    :param rules: the operator's choices
    """

    def __init__(self, rules: GpuRules = DEFAULT_RULES) -> None:
        self._rules = rules
        self._maps: dict[str, _Known] = {}

    def offer(
        self,
        gpu_request: GpuRequest,
        view: HostView,
        free_devices: Iterable[str],
        candidates: Sequence[Candidate],
        *,
        recent: Sequence[Pick],
        left: Mapping[str, int],
    ) -> GpuOffer:
        """Judge the GPUs of one host.

        :param view: the host; it has GPUs
        :param free_devices: Placement's providers of its free devices, as nova-compute reports them
        :param recent: this scheduler's recent picks on it
        :param left: free parts of the devices from which earlier servers of the request have taken some; candidates
            may still ask for more
        """
        known = self._known(view)
        gpus = known.gpus
        offered = gpus.mask(
            uuid
            for candidate in candidates
            for uuid in candidate.parts.keys() - lacking(left, candidate.parts)
        )
        return GpuOffer(
            gpu_request,
            self._rules,
            gpus,
            known.occupancy(offered, gpus.mask(free_devices), recent).host(),
            [candidate.providers for candidate in candidates],
        )

    def gpu_request(self, request: Any, spec: Any) -> GpuRequest:
        """Read what a RequestSpec asks of its GPUs."""
        return GpuRequest.of(request, spec.flavor.name, self._rules)

    def request_and_rules(self, request: Any, spec: Any) -> tuple[GpuRequest, GpuRules]:
        """Return what a RequestSpec asks of its GPUs, and by which rules they are judged."""
        return self.gpu_request(request, spec), self._rules

    def _known(self, view: HostView) -> "_Known":
        known = self._maps.get(view.root_uuid)
        if known is not None and known.view_gpus is view.gpus and known.view_l3 is view.l3:
            return known
        if len(self._maps) >= _MOST_HOSTS_REMEMBERED:
            self._maps.clear()
        same = known is not None and known.view_gpus is view.gpus
        gpus = known.gpus if known and same else gpu_map(view, self._rules.measured)
        self._maps[view.root_uuid] = found = _Known(view, gpus)
        return found


class _Known:
    """What is remembered of one host.

    :param view: what its tree in Placement shows
    :param gpus: its GPUs
    """

    def __init__(self, view: HostView, gpus: GpuMap) -> None:
        self.view_gpus = view.gpus
        self.view_l3 = view.l3
        self.gpus = gpus
        self._published = published(gpus, view)

    def occupancy(self, offered: int, reported: int, recent: Sequence[Pick]) -> GpuOccupancy:
        """Return the host's GPUs as they are now.

        Placement may show fewer candidates than there are, or only those with a trait that the flavor requires.

        :param offered: mask of the GPUs of all candidates that are not used up
        :param reported: mask of those that nova-compute reports as free
        :param recent: this scheduler's recent picks on the host
        """
        picked = self.gpus.mask([uuid for pick in recent for uuid in pick.gpus]) if recent else 0
        return occupancy(self.gpus, self._published, offered | reported & ~picked, recent)
