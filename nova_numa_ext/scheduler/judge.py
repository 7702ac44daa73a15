# SPDX-License-Identifier: Apache-2.0
"""One host judged for one server: may it go there, which NUMA cells would it get, which candidate is best, and why."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nova_numa_ext.policy.gpu.candidate_sets import GpuOffer, parts_left
from nova_numa_ext.policy.modes import Mode
from nova_numa_ext.policy.network.singles import Singles
from nova_numa_ext.policy.numa import candidates, cells, requirements
from nova_numa_ext.policy.numa.candidates import Candidate, Ranked
from nova_numa_ext.policy.numa.cells import CpuPolicy, GuestCell, Prediction
from nova_numa_ext.policy.numa.home import Home, home
from nova_numa_ext.policy.numa.score import HostOffer
from nova_numa_ext.policy.picks import Pick, with_amounts, with_neighbours, without_class
from nova_numa_ext.policy.remote_gpu.reach import ClientHost, Reach
from nova_numa_ext.policy.terms import Term
from nova_numa_ext.scheduler import compat, gpus, nova_objects
from placement_traits.fleet import HostView
from placement_traits.names import PackingTrait
from placement_traits.reason import Reason
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.workload_request import WorkloadRequest

Predictions: TypeAlias = Callable[[Candidate], Prediction | None]


@dataclass(frozen=True, slots=True)
class HostVerdict:
    """What was decided about one host.

    :param uuid: its root provider
    :param host: name of its compute service
    :param node: name of its compute node
    :param reasons: why it cannot serve the request; where there are any, it is refused, or its mode spares it
    :param candidates: its allocation candidates, best first
    :param offer: what the weigher scores; None where there are reasons
    :param mode: what comes of it
    :param best_only: nova sees the best of its candidates alone
    """

    uuid: str
    host: str
    node: str
    reasons: tuple[Reason, ...]
    candidates: tuple[Ranked, ...] = ()
    offer: HostOffer | None = None
    mode: Mode = Mode.ENFORCE
    best_only: bool = False

    @property
    def refused(self) -> bool:
        """The host does not pass."""
        return bool(self.reasons) and self.mode.refuses

    @property
    def spared(self) -> bool:
        """The host passes only because of its mode."""
        return bool(self.reasons) and not self.mode.refuses

    @property
    def claimed(self) -> Ranked | None:
        """The candidate that nova claims, None without candidates: of an observed host the first one as it came."""
        if self.mode.acts:
            return next(iter(self.candidates), None)
        return min(self.candidates, key=lambda ranked: ranked.candidate.index, default=None)


def verdict(
    host_state: Any,
    reasons: tuple[Reason, ...],
    ranked: tuple[Ranked, ...] = (),
    offer: HostOffer | None = None,
) -> HostVerdict:
    """Return a verdict on one of nova's HostStates."""
    return HostVerdict(
        host_state.uuid, host_state.host, host_state.nodename, reasons, ranked, offer
    )


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """What a decision knows besides nova's own objects.

    :param snapshot: the fleet
    :param recent: this scheduler's recent picks by host
    :param request_picks: those of them that belong to the same request
    :param refuse_stale: ``[numa_ext]on_stale`` is ``refuse``
    :param refuse_silent: ``[numa_ext]on_silent`` is ``refuse``
    :param pack: packing strategy where a host does not publish its own
    :param planner: judges GPUs
    :param modes: of the hosts that are not to be refused, by root provider
    :param reach: judges remote GPUs; None where none are asked for, or nothing is known of them
    :param net_block: how well hosts suit a server of no group by their leafs, by root provider
    :param closed: hosts that are refused to it by their leafs
    """

    snapshot: FleetSnapshot
    recent: Mapping[str, Sequence[Pick]] = field(default_factory=dict)
    request_picks: tuple[Pick, ...] = ()
    refuse_stale: bool = False
    refuse_silent: bool = False
    pack: bool = False
    planner: gpus.GpuPlanner = field(default_factory=gpus.GpuPlanner)
    modes: Mapping[str, Mode] = field(default_factory=dict)
    reach: Reach | None = None
    net_block: Mapping[str, float] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()


def _no_gpus(_: Candidate) -> None:
    """Most requests ask for no device."""


def _unknown(_: Candidate) -> None:
    """A floating guest has no cells, and of some hosts nova knows none."""


def _client(host_state: Any, view: HostView | None) -> ClientHost:
    traits = None if view is None else view.traits
    return ClientHost(host_state.uuid, host_state.nodename, traits)


def dedicated_alike(guest: Sequence[GuestCell]) -> int:
    """Dedicated CPUs of each cell of a guest whose cells have nothing but as many; 0 for any other guest.

    Of cells that differ, nova's search may mix up what it remembers, and take a host cell that is too small.
    """
    counts = {cell.pcpus if cell.policy is CpuPolicy.DEDICATED else 0 for cell in guest}
    return counts.pop() if len(counts) == 1 else 0


class Judge:
    """Judges hosts for one request.

    :param request: the flavor
    :param guest: the guest's cells
    :param spec: nova's RequestSpec
    :param context: what the decision knows besides
    """

    def __init__(
        self,
        request: WorkloadRequest,
        guest: tuple[GuestCell, ...],
        spec: Any,
        context: DecisionContext,
    ) -> None:
        self._fresh = context.snapshot.state is ViewState.FRESH
        self._isolated_emulator = nova_objects.isolated_emulator(spec)
        self._taken = frozenset(uuid for pick in context.request_picks for uuid, _ in pick.l3)
        self._request = request
        self._guest = guest
        self._pcpus = dedicated_alike(guest)
        self._context = context
        self._wants_pci = bool(nova_objects.pci_requests(spec))
        self._last_word = nova_objects.LastWord(spec)
        self._server = spec.instance_uuid
        self._gpus = context.planner.gpu_request(request, spec) if gpus.asked(spec) else None
        self._mine: dict[str, list[Pick]] = {}
        for pick in context.request_picks:
            self._mine.setdefault(pick.host, []).append(pick)

    def verdict(self, host_state: Any) -> HostVerdict:
        """Judge one host and order its candidates.

        What costs least comes first: in a cloud that is nearly sold out, most hosts have no room.
        """
        if reasons := self._full_or_closed(host_state):
            return verdict(host_state, reasons)
        view = self._view(host_state)
        known = nova_objects.host_facts(host_state)
        own_cells = known.cells
        reasons = requirements.local_memory(self._request, own_cells)
        if self._fresh:
            reasons = (*requirements.capabilities(self._request, view), *reasons)
            reasons = (*self._silent(view), *reasons, *self._unreached(host_state, view))
        if reasons:
            return verdict(host_state, reasons)
        predicted = self.predictions(host_state, view, known)
        home_of = self._home_of(predicted, view, own_cells)
        domains = frozenset(domain.uuid for domain in view.l3) if view is not None else frozenset()
        offered = [
            nova_objects.candidate(index, raw, domains, self._request.dedicated)
            for index, raw in enumerate(host_state.allocation_candidates)
        ]
        left = parts_left(view, self._mine.get(view.root_uuid, ())) if view else {}
        devices = self._devices(view, known, offered, left)
        ranked = candidates.order(
            self._request,
            view or HostView(host_state.uuid, "", frozenset(), None, ()),
            offered,
            home_of,
            taken=self._taken,
            left=left,
            gpus=_no_gpus if devices is None else lambda one: devices.of(one.providers),
        )
        first = ranked[0] if ranked else None
        best, chosen = (first.candidate, first.gpus) if first else (None, None)
        reasons = self._lacking(host_state, ranked, predicted, own_cells)
        reasons = reasons or self._poor_gpus(devices, first)
        if reasons:
            return verdict(host_state, reasons, ranked)
        offer = HostOffer(
            view,
            own_cells,
            home_of(best) if best else None,
            best,
            self._guest,
            chosen.utility if chosen else self._nearness(host_state, view),
            self._context.net_block.get(host_state.uuid),
        )
        return verdict(host_state, (), ranked, offer)

    def _full_or_closed(self, host_state: Any) -> tuple[Reason, ...]:
        """Return why a host is refused, where that is known without its view and cells."""
        if host_state.uuid in self._context.closed:
            return (Reason(Term.QUIET_LEAF, Singles.REFUSE.value),)
        if self._pcpus and not nova_objects.room(host_state, self._pcpus, len(self._guest)):
            return (Reason(Term.NUMA_CELLS, 0, len(self._guest)),)
        return ()

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
        recent = self._context.recent.get(view.root_uuid, ())
        return self._context.planner.offer(
            self._gpus, view, known.free_devices, offered, recent=recent, left=left
        )

    def _poor_gpus(self, devices: GpuOffer | None, best: Ranked | None) -> tuple[Reason, ...]:
        """Return why the best candidate's GPUs are not good enough, or cannot be judged though they must be."""
        if self._gpus is None or best is None:
            return ()
        if devices is not None and best.gpus is not None:
            return devices.refusal(best.gpus)
        return self._gpus.unknown if self._fresh else ()

    def _unreached(self, host_state: Any, view: HostView | None) -> tuple[Reason, ...]:
        """Return why the server cannot have its remote GPUs on the host."""
        reach = self._context.reach
        return () if reach is None else reach.reasons(_client(host_state, view))

    def _nearness(self, host_state: Any, view: HostView | None) -> float | None:
        """Return how near the server's remote GPUs are, as utility; None where it asks for none."""
        reach = self._context.reach
        return None if reach is None else reach.nearness(_client(host_state, view))

    def _silent(self, view: HostView | None) -> tuple[Reason, ...]:
        """Refuse a host whose agent is silent, where that is configured; elsewhere it only comes last."""
        missed = view is not None and requirements.is_missed(self._request, view.traits)
        return (Reason(Term.SILENT, "refuse"),) if missed and self._context.refuse_silent else ()

    def _view(self, host_state: Any) -> HostView | None:
        """Return our view of a host, with what this scheduler has just placed in it."""
        view = self._context.snapshot.host(host_state.uuid)
        if view is None:
            return None
        if self._server in host_state.instances:
            view = without_class(view, self._request.interference_class)
        view = with_neighbours(view, self._context.recent.get(host_state.uuid, ()))
        return with_amounts(view, self._mine.get(host_state.uuid, ()))

    def _lacking(
        self,
        host_state: Any,
        ranked: Sequence[Ranked],
        predicted: Predictions,
        own_cells: tuple[cells.HostCell, ...],
    ) -> tuple[Reason, ...]:
        placeable = not self._guest or not own_cells or not host_state.allocation_candidates
        if placeable or any(predicted(each.candidate) for each in ranked):
            return ()
        return (Reason(Term.NUMA_CELLS, 0, len(self._guest)),)

    def predictions(
        self, host_state: Any, view: HostView | None, known: nova_objects.HostFacts
    ) -> Predictions:
        """Return what nova-compute will give the guest with each candidate of a host, each worked out once.

        :param view: our view of the host
        :param known: facts of the host
        """
        if not self._guest or not known.cells:
            return _unknown
        last_word = self._last_word.on(host_state)
        found: dict[Hashable, Prediction | None] = {}

        def prediction(candidate: Candidate) -> Prediction | None:
            raw = host_state.allocation_candidates[candidate.index]
            key = self._last_word.providers(raw)
            if key not in found:
                found[key] = cells.predict(
                    known.cells,
                    self._guest,
                    known.limits,
                    pack=self._packs(view),
                    isolated_emulator=self._isolated_emulator,
                    pci_free=compat.devices_in_claim(known.pci_free, requested=self._wants_pci),
                    wants_pci=self._wants_pci,
                    accepts=last_word.about(raw) if last_word is not None else None,
                )
            return found[key]

        return prediction

    def _home_of(
        self,
        predicted: Predictions,
        view: HostView | None,
        own_cells: tuple[cells.HostCell, ...],
    ) -> Callable[[Candidate], Home | None]:
        """Return where the guest will run with each candidate of a host, worked out once for each prediction."""
        domains = view.l3 if view is not None else ()
        found: dict[int, Home] = {}

        def home_of(candidate: Candidate) -> Home | None:
            prediction = predicted(candidate)
            if prediction is None:
                return None
            if id(prediction) not in found:
                found[id(prediction)] = home(prediction, self._guest, own_cells, domains)
            return found[id(prediction)]

        return home_of

    def _packs(self, view: HostView | None) -> bool:
        if view is not None and PackingTrait.PACK in view.traits:
            return True
        if view is not None and PackingTrait.SPREAD in view.traits:
            return False
        return self._context.pack
