# SPDX-License-Identifier: Apache-2.0
"""The memory half of NUMA balancing: from a server's cores and memory policy to the shares of each node. Pure.

Every server gets room from what the ones before it left (:class:`~host_agent.decide.pages.policy.Room`), so that
one decision never promises the same megabyte twice. Free memory changes all the time; shares that would change by less
than the dead band stay what they were, or every round would be a new decision.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from host_agent.conf.options import Options
from host_agent.decide.pages import bwap
from host_agent.decide.pages.policy import Room, desired_shares, fit
from host_agent.decide.pages.weights import uniform
from host_agent.model.assignment import Guest
from host_agent.model.balancing import BalancingInputs
from host_agent.model.pages import Shares, huge_page_share, share_error
from host_agent.model.terms import Term
from placement_traits.errors import CapabilityMissingError
from placement_traits.names import MemoryPolicy
from placement_traits.reason import Reason
from placement_traits.workload_request import SPREADING_POLICIES

_INDIVISIBLE: Final = 2
"""Huge pages that a spread may be wrong by: one that is too many on a node is missing on another."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Where the vCPUs of a server are.

    :param vcpus: node -> vCPUs there
    :param local: shares that keep its memory near: on those nodes, as far as they have room
    """

    vcpus: Mapping[int, int]
    local: Shares


@dataclass(frozen=True, slots=True)
class Memory:
    """What was decided about one server's pages; also what is remembered of it.

    :param desired: shares that the policy wants, room not considered; None: leave the pages where they are
    :param shares: shares that fit
    :param search: BWAP's search
    :param search_reasons: why the search stands where it does
    :param clipped: why the shares are not the desired ones
    :param held: the search pauses: its pages must stay where they are, or are too few to be divided by its steps
    :param fitted_to: what the shares were fitted to: while that is the same, so are they
    """

    desired: Shares | None = None
    shares: dict[int, float] | None = None
    search: bwap.BwapSearch | None = None
    search_reasons: tuple[Reason, ...] = ()
    clipped: tuple[Reason, ...] = ()
    held: bool = False
    fitted_to: tuple[Guest, Cores, Room] | None = field(default=None, compare=False, repr=False)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All of it."""
        return (*self.search_reasons, *self.clipped)

    @property
    def moving(self) -> bool:
        """The search waits for pages to arrive, and they were sent."""
        sent = self.shares is not None and self.searching
        return sent and self.search is not None and self.search.phase is bwap.BwapPhase.PLACING

    @property
    def begun(self) -> bool:
        """The search places or measures."""
        return self.searching and self.search is not None and self.search.begun

    @property
    def searching(self) -> bool:
        """The search has not ended, and may go on."""
        ended = self.search is None or self.search.phase is bwap.BwapPhase.FOUND
        return not ended and not self.held


@dataclass(frozen=True, slots=True)
class Before:
    """What was before.

    :param room: left by the servers before this one
    :param known: what was decided the last time, ``Memory()`` at first
    :param may_begin: it is this server's turn to search, see :mod:`host_agent.decide.pages.turns`
    """

    room: Room
    known: Memory
    may_begin: bool = True


def memory(
    guest: Guest, cores: Cores, inputs: BalancingInputs, before: Before, options: Options
) -> Memory:
    """Decide about a server's pages."""
    known = before.known
    request = guest.workload.request
    assert request is not None, "only managed servers are balanced"
    policy, nodes = request.memory_policy, inputs.observation.topology.node_ids
    if guest.pages_stay:
        why = (Reason(Term.MEMORY_STAYS, guest.pages_stay),)
        return Memory(search=known.search, search_reasons=why, held=True)
    if inputs.spreading_refused and policy in SPREADING_POLICIES:
        why = (Reason(Term.MEMORY_STAYS, inputs.spreading_refused),)
        return Memory(search=known.search, search_reasons=why, held=True)
    if policy in (MemoryPolicy.BWAP, MemoryPolicy.BWAP_UNIFORM) and len(nodes) > 1:
        return _searched(guest, cores, inputs, before, options)
    if policy is MemoryPolicy.AUTONUMA and not inputs.kernel_balances:
        used = MemoryPolicy.FIRST_TOUCH, "kernel.numa_balancing is off"
        return Memory(search_reasons=(Reason(Term.MEMORY_POLICY_USED, *used),))
    desired: Shares | None = cores.local
    if policy is not MemoryPolicy.LOCAL and len(nodes) > 1:
        desired = desired_shares(policy, vcpus_per_node=cores.vcpus, nodes=nodes)
    why = (Reason(Term.MEMORY_POLICY, policy),)
    return _fitted(Memory(desired, search_reasons=why), guest, cores, before, options)


def _searched(
    guest: Guest, cores: Cores, inputs: BalancingInputs, before: Before, options: Options
) -> Memory:
    """Go on with a search where a sample was taken; it measures when the pages are where they *can* be.

    A guest that has just started has hardly any pages: no step of a search shows in them, so it begins later. One that
    has begun, of a guest that has started again since, pauses until then.
    """
    search, why = _search(guest, cores, inputs, before.known)
    desired = search.desired
    fitted = _fitted(Memory(desired), guest, cores, before, options)
    indivisible = _INDIVISIBLE * huge_page_share(guest.resident_mb)
    counters = inputs.counters_of(guest.uuid)
    held = indivisible >= options.bwap.step
    if held:
        search = replace(search, queued_s=math.inf) if search.queued else search
    elif counters is not None:
        now = fitted.shares
        left = share_error(guest.memory_shares, now) if now is not None else math.inf
        seen = bwap.SearchSample(
            inputs.now_s,
            left <= max(options.memory.arrived, indivisible),
            counters.stall_rate,
            counters.mpi,
            inputs.critical_stall_rate,
            left,
            before.may_begin,
        )
        stood = search.started, search.dwp
        search, new = bwap.decide(seen, search, options.bwap)
        why = (why[0], *new) if new else why
        if (search.started, search.dwp) != stood:
            fitted = _fitted(Memory(search.desired), guest, cores, before, options)
    if not search.queued:
        why = tuple(each for each in why if each.term != Term.SEARCH_QUEUED)
    if _knows_nothing(why[0], search, options):
        used = Reason(
            Term.MEMORY_POLICY_USED, MemoryPolicy.LOCAL, "neither calibration nor counters"
        )
        why, fitted = (used,), _fitted(Memory(cores.local), guest, cores, before, options)
    return replace(fitted, search=search, search_reasons=why, held=held)


def _knows_nothing(used: Reason, search: bwap.BwapSearch, options: Options) -> bool:
    """Tell whether spreading would be a guess: uncalibrated, never measured and blind."""
    uncalibrated = used.term == Term.MEMORY_POLICY_USED
    never_measured = search.phase is bwap.BwapPhase.WAITING and search.phase_mapi is None
    return uncalibrated and never_measured and search.blind >= options.bwap.blind_samples


def _search(
    guest: Guest, cores: Cores, inputs: BalancingInputs, known: Memory
) -> tuple[bwap.BwapSearch, tuple[Reason, ...]]:
    """Return the known search, or a new one: other cores, calibration or neighbours begin a new search."""
    request = guest.workload.request
    assert request is not None, "only managed servers are balanced"
    workers = frozenset(cores.vcpus)
    measured = inputs.canonical.get(workers) if request.memory_policy is MemoryPolicy.BWAP else None
    canonical = measured or uniform(inputs.observation.topology.node_ids)
    used = Reason(Term.MEMORY_POLICY, request.memory_policy)
    if request.memory_policy is MemoryPolicy.BWAP and measured is None:
        against = f"no calibration for nodes {sorted(workers)}"
        used = Reason(Term.MEMORY_POLICY_USED, MemoryPolicy.BWAP_UNIFORM, against)
    beside_lc = bool(inputs.critical)
    was = known.search
    same = was is not None and (was.workers, was.co_scheduled) == (workers, beside_lc)
    if was and same and (was.canonical is canonical or dict(was.canonical) == dict(canonical)):
        return was, (used, *known.search_reasons[1:])
    return bwap.BwapSearch(canonical, workers, co_scheduled=beside_lc), (used,)


def _fitted(
    decided: Memory, guest: Guest, cores: Cores, before: Before, options: Options
) -> Memory:
    """Clip desired shares to the room there is; what was clipped before stays so within the dead band."""
    desired, resident, known = decided.desired, guest.resident_mb, before.known
    if desired is None or not resident:
        return replace(decided, shares=dict(desired) if desired else None)
    if known.desired == desired and _same(known.fitted_to, guest, cores, before.room):
        return replace(
            decided, shares=known.shares, clipped=known.clipped, fitted_to=known.fitted_to
        )
    decided = replace(decided, fitted_to=(guest, cores, before.room))
    try:
        limits = before.room.limits_mb(resident)
        shares, clipped = fit(
            desired, sum(resident.values()), limits, sorted(cores.vcpus), resident
        )
    except CapabilityMissingError as error:
        return replace(decided, clipped=(Reason(Term.MEMORY_STAYS, str(error)),))
    same = known.desired is not None and share_error(known.desired, desired) < 1e-9
    if (
        same
        and known.shares is not None
        and share_error(known.shares, shares) < options.memory.arrived
    ):
        return replace(decided, shares=known.shares, clipped=known.clipped)
    return replace(decided, shares=shares, clipped=clipped)


def _same(
    fitted_to: tuple[Guest, Cores, Room] | None, guest: Guest, cores: Cores, room: Room
) -> bool:
    return fitted_to is not None and fitted_to[0] is guest and fitted_to[1:] == (cores, room)
