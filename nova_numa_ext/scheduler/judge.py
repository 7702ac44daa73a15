# SPDX-License-Identifier: Apache-2.0
"""One host judged for one server, its candidates ranked; the reference for what is decided about many at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nova_numa_ext.policy.gpu.candidate_sets import GpuOffer, parts_left
from nova_numa_ext.policy.numa import candidates, cells, requirements
from nova_numa_ext.policy.numa.batch import Question, decidable
from nova_numa_ext.policy.numa.batch_devices import CandidateDevices
from nova_numa_ext.policy.numa.candidates import Candidate, Ordering, Ranked
from nova_numa_ext.policy.numa.cells import GuestCell
from nova_numa_ext.policy.numa.score import HostOffer
from nova_numa_ext.policy.picks import Pick, with_amounts, with_neighbours, without_class
from nova_numa_ext.policy.terms import Term
from nova_numa_ext.scheduler import compat, gpus, nova_objects
from placement_traits.fleet import FleetSnapshot, HostView, ViewState
from placement_traits.names import PackingTrait
from placement_traits.reason import Reason
from placement_traits.request import WorkloadRequest


@dataclass(frozen=True, slots=True)
class HostVerdict:
    """What was decided about one host.

    :param host_state: nova's HostState
    :param reasons: why it is refused; empty when it passes
    :param ordering: its allocation candidates
    :param offer: what the weigher scores; None when refused
    """

    host_state: Any
    reasons: tuple[Reason, ...]
    ordering: Ordering = field(default_factory=lambda: Ordering((), ()))
    offer: HostOffer | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a decision knows besides nova's own objects.

    :param snapshot: the fleet
    :param recent: this scheduler's recent picks by host
    :param request_picks: those of them that belong to the same request
    :param refuse_stale: ``[numa_ext]on_stale`` is ``refuse``
    :param pack: packing strategy where a host does not publish its own
    :param planner: judges GPUs
    """

    snapshot: FleetSnapshot
    recent: Mapping[str, Sequence[Pick]] = field(default_factory=dict)
    request_picks: tuple[Pick, ...] = ()
    refuse_stale: bool = False
    pack: bool = False
    planner: gpus.GpuPlanner = field(default_factory=gpus.GpuPlanner)


def _no_gpus(_: Candidate) -> None:
    """Most requests ask for no device."""


class Judge:
    """Judges hosts for one request.

    :param request: the flavor
    :param guest: the guest's cells
    :param spec: nova's RequestSpec
    :param around: what the decision knows besides
    :param known: facts of the hosts
    """

    def __init__(
        self,
        request: WorkloadRequest,
        guest: tuple[GuestCell, ...],
        spec: Any,
        around: Surroundings,
        known: nova_objects.KnownHosts,
    ) -> None:
        self.question = Question(
            request,
            guest,
            nova_objects.isolated_emulator(spec),
            around.snapshot.state is ViewState.FRESH,
            around.pack,
            compat.device_order(requested=bool(nova_objects.pci_requests(spec))),
        )
        self.taken = frozenset(uuid for pick in around.request_picks for uuid, _ in pick.l3)
        self._request = request
        self._guest = guest
        self._around = around
        self._known = known
        self._wants_pci = bool(nova_objects.pci_requests(spec))
        self._wants_networks = bool(nova_objects.networks(spec))
        self._last_word = nova_objects.LastWord(spec, known)
        self._server = spec.instance_uuid
        self._hosts = around.snapshot.hosts
        self._gpus = around.planner.gpu_request(request, spec) if gpus.asked(spec) else None
        self._mine: dict[str, list[Pick]] = {}
        for pick in around.request_picks:
            self._mine.setdefault(pick.host, []).append(pick)

    @property
    def many_at_once(self) -> bool:
        """True when hosts may be decided over arrays: nova's own objects have no last word on the guest's cells."""
        return not self._wants_networks and decidable(
            self._guest, self.question.isolated_emulator, devices=self._gpus is not None
        )

    def devices_of(
        self, host_states: Sequence[Any], views: Sequence[HostView | None]
    ) -> CandidateDevices | None:
        """Return the devices of the candidates of many hosts; None when the request asks for none.

        :param views: our view of each
        """
        if self._gpus is None:
            return None
        known = self._known.all(host_states)
        near: list[int] = []
        for state, host in zip(host_states, known, strict=True):
            near += self._last_word.nodes_near(state, host)
        return self._around.planner.offers(
            self._gpus,
            host_states,
            views,
            known,
            near=near,
            recent=self._around.recent,
            earlier=self._mine,
        )

    def verdict(self, host_state: Any) -> HostVerdict:
        """Judge one host and order its candidates."""
        (view,) = self.views([host_state])
        known = self._known.of(host_state)
        own_cells = known.cells
        reasons = requirements.local_memory(self._request, own_cells)
        if self.question.fresh:
            reasons = (*requirements.capabilities(self._request, view), *reasons)
            reasons += requirements.neighbours(self._request, view) if view else ()
        if reasons:
            return HostVerdict(host_state, reasons)
        nodes = _Nodes(self, host_state, view, known)
        domains = frozenset(domain.uuid for domain in view.l3) if view is not None else frozenset()
        offered = [
            nova_objects.candidate(index, raw, domains, self._request.dedicated)
            for index, raw in enumerate(host_state.allocation_candidates)
        ]
        left = parts_left(view, self._mine.get(view.root_uuid, ())) if view else {}
        devices = self._devices(view, known, offered, left)
        ordering = candidates.order(
            self._request,
            view or HostView(host_state.uuid, "", frozenset(), None, ()),
            offered,
            nodes.of,
            taken=self.taken,
            left=left,
            gpus=_no_gpus if devices is None else lambda one: devices.of(one.providers),
        )
        first = ordering.kept[0] if ordering.kept else None
        best, chosen = (first.candidate, first.gpus) if first else (None, None)
        reasons = self._lacking(host_state, ordering, nodes, own_cells)
        reasons = reasons or self._poor_gpus(devices, first)
        if reasons:
            return HostVerdict(host_state, reasons, ordering)
        offer = HostOffer(
            view,
            own_cells,
            nodes.of(best) if best else None,
            best,
            self._guest,
            chosen.utility if chosen else None,
        )
        return HostVerdict(host_state, (), ordering, offer)

    def _devices(
        self,
        view: HostView | None,
        known: nova_objects.HostFacts,
        offered: Sequence[Candidate],
        left: Mapping[str, int],
    ) -> GpuOffer | None:
        """GPUs that the host's candidates offer; None when the request asks for no device, or the host has none.

        :param left: free parts of the devices from which earlier servers of the request have taken some
        """
        if self._gpus is None or view is None or not view.gpus:
            return None
        recent = self._around.recent.get(view.root_uuid, ())
        return self._around.planner.offer(
            self._gpus, view, known.free_devices, offered, recent=recent, left=left
        )

    def _poor_gpus(self, devices: GpuOffer | None, best: Ranked | None) -> tuple[Reason, ...]:
        """Return why the best candidate's GPUs are not good enough, or cannot be judged though they must be."""
        if self._gpus is None or best is None:
            return ()
        if devices is not None and best.gpus is not None:
            return devices.refusal(best.gpus)
        return self._gpus.unknown if self.question.fresh else ()

    def views(self, host_states: Sequence[Any]) -> list[HostView | None]:
        """Return our view of hosts, with what this scheduler has just placed in it."""
        hosts, server = self._hosts, self._server
        special = self._around.recent.keys() | self._mine.keys()
        return [
            self._changed(state, hosts.get(state.uuid))
            if state.uuid in special or server in state.instances
            else hosts.get(state.uuid)
            for state in host_states
        ]

    def _changed(self, host_state: Any, view: HostView | None) -> HostView | None:
        if view is None:
            return None
        if self._server in host_state.instances:
            view = without_class(view, self.question.request.interference_class)
        view = with_neighbours(view, self._around.recent.get(host_state.uuid, ()))
        return with_amounts(view, self._mine.get(host_state.uuid, ()))

    def _lacking(
        self,
        host_state: Any,
        ordering: Ordering,
        nodes: "_Nodes",
        own_cells: tuple[cells.HostCell, ...],
    ) -> tuple[Reason, ...]:
        if ordering.removed and not ordering.kept:
            return (*dict.fromkeys(reason for _, reason in ordering.removed),)
        placeable = not self._guest or not own_cells or not host_state.allocation_candidates
        if placeable or any(nodes.of(ranked.candidate) for ranked in ordering.kept):
            return ()
        return (Reason(Term.NUMA_CELLS, 0, len(self._guest)),)

    def predict(
        self,
        host_state: Any,
        view: HostView | None,
        known: nova_objects.HostFacts,
        raw: Mapping[str, Any],
    ) -> tuple[int, ...] | None:
        """Host cells that nova-compute will pick for the guest, None when there are none."""
        return cells.predict(
            known.cells,
            self._guest,
            known.limits,
            pack=self._packs(view),
            isolated_emulator=self.question.isolated_emulator,
            pci_free=compat.devices_in_claim(known.pci_free, requested=self._wants_pci),
            wants_pci=self._wants_pci,
            accepts=self._last_word.on(host_state, known, raw),
        )

    def _packs(self, view: HostView | None) -> bool:
        if view is not None and PackingTrait.PACK in view.traits:
            return True
        if view is not None and PackingTrait.SPREAD in view.traits:
            return False
        return self._around.pack

    @property
    def guest(self) -> tuple[GuestCell, ...]:
        """The guest's cells."""
        return self._guest

    def devices(self, raw: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """All that the prediction depends on in an allocation candidate."""
        return self._last_word.providers(raw)


class _Nodes:
    """Predicted NUMA nodes of one host's candidates, each worked out once."""

    def __init__(
        self,
        judge: Judge,
        host_state: Any,
        view: HostView | None,
        known: nova_objects.HostFacts,
    ) -> None:
        self._judge = judge
        self._host_state = host_state
        self._view = view
        self._facts = known
        self._known: dict[tuple[tuple[str, ...], ...], tuple[int, ...] | None] = {}

    def of(self, candidate: Candidate) -> tuple[int, ...] | None:
        """Return the nodes for one candidate; None for a floating guest or where it fits nowhere."""
        if not self._judge.guest or not self._facts.cells:
            return None
        raw = self._host_state.allocation_candidates[candidate.index]
        key = self._judge.devices(raw)
        if key not in self._known:
            self._known[key] = self._judge.predict(self._host_state, self._view, self._facts, raw)
        return self._known[key]
