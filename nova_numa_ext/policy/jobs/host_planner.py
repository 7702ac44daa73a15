# SPDX-License-Identifier: Apache-2.0
"""Places for jobs on hosts, from what Placement counts: coarse, and for ten thousand hosts at once.

Each part is placed alone, the one that fewest hosts can take first. On the hosts that the aspects leave
(:mod:`.host_aspects`), the order is

1. hosts whose agent the part would miss last: it is silent, and they may be down;
2. a better utility of GPUs, where the part asks for them;
3. fewer servers of the part that would fit: the tightest host, so that wide places stay whole.

All servers of a part go to the first host that holds all of them, where there is one; else to the hosts that hold most,
where the scope allows it: of one leaf of the fabric, of one pod, or of all. Of leafs that hold all servers, one is
taken whose agents report and whose GPUs are best, then the tightest. All parts find places, or none does.

Servers that are one group on the fabric (:attr:`.job.Part.network`) get leafs first (:mod:`.group_places`), and in each
the first hosts of the order.

What the view does not know, it does not refuse: NUMA cells, links of GPUs that are taken, policies of server groups.
Nova decides, among the planned hosts and a few spare ones that are next in the order; hosts that it refuses are left
out (:attr:`.job.Job.excluded`) until no others are left.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from nova_numa_ext.policy.jobs import group_places, postponing
from nova_numa_ext.policy.jobs.group_places import Candidates, GroupHosts, GroupPart
from nova_numa_ext.policy.jobs.host_aspects import (
    MANY,
    Amounts,
    Aspect,
    Gpus,
    PlannerSettings,
    missed,
)
from nova_numa_ext.policy.jobs.host_view import HostClaims, HostsView, Integers, Mask
from nova_numa_ext.policy.jobs.job import Job, Part, Scope
from nova_numa_ext.policy.jobs.plan import HostPlace, Never, Outcome, Plan, Wait
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.policy.network.singles import Singles
from nova_numa_ext.policy.numa.score import Floats
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet_arrays import UNKNOWN
from placement_traits.reason import Reason

_SPARE: Final = 4  # hosts of a part beside the planned ones
_SPARES_PER_SERVERS: Final = 8  # of a group, which nova places as a whole
_AREAS: Final = (Scope.LEAF, Scope.POD)
_SHOWN: Final = 8  # hosts in a reason
_DECIMALS: Final = 3


@dataclass(frozen=True, slots=True)
class _Offered:
    """What all aspects together say of all hosts: as :class:`.host_aspects.Offer`.

    :param missed: hosts that are behind all others, H
    """

    counts: Integers
    utility: Floats | None
    missed: Mask


@dataclass(frozen=True, slots=True)
class _Found:
    """Hosts of one part.

    :param chosen: (host, servers) for all of them, or nothing
    :param spare: the same of hosts that come after them
    :param servers: how many find a place, at most as many as there are
    :param reasons: why a group has no leafs
    """

    chosen: Sequence[tuple[int, int]]
    spare: Sequence[tuple[int, int]] = ()
    servers: int = 0
    reasons: tuple[Reason, ...] = ()


class _Fleet(NamedTuple):
    """All hosts, what jobs take of them, and what the operator decides."""

    view: HostsView
    claims: HostClaims
    settings: PlannerSettings


class HostPlanner:
    """Plans jobs on hosts.

    :param aspects: what is looked at, the one that matters most first
    """

    def __init__(self, aspects: Sequence[Aspect] = (Amounts(), Gpus())) -> None:
        self._aspects = tuple(aspects)

    def kind(self, job: Job, now: float) -> Hashable:
        """Return what the answer about a job depends on."""
        waited_s = job.waiting_s(now)
        scopes = tuple(part.scope(waited_s) for part in job.parts)
        widest = tuple(part.wait_for[-1] for part in job.parts)
        narrower_for_s = None if scopes == widest else waited_s
        better = any(postponing.waits_for_better(part.request) for part in job.parts)
        postponed = job.postponed if better else 0
        return job.parts, job.apart, scopes, narrower_for_s, postponed, job.excluded

    def plan(
        self,
        job: Job,
        view: HostsView,
        claims: HostClaims,
        now: float,
        settings: PlannerSettings,
    ) -> Outcome[HostPlace]:
        """Return hosts for all servers of a job, a reason to wait, or that it can never run here."""
        waited_s = job.waiting_s(now)
        own = claims if len(job.parts) == 1 else claims.copy()
        barred = {view.row[host] for host in job.excluded if host in view.row}
        offers = {part.name: self._offered(part, view, own, settings) for part in job.parts}
        order = sorted(job.parts, key=lambda part: int((offers[part.name].counts > 0).sum()))
        places: list[HostPlace] = []
        spare: list[HostPlace] = []
        utility = 1.0
        for part in order:
            offered = offers[part.name]
            if part is not order[0]:
                offered = self._offered(part, view, own, settings)
            fleet = _Fleet(view, own, settings)
            found = _found(part, part.scope(waited_s).scope, offered, barred, fleet)
            chosen = found.chosen
            if not chosen:
                never = self._never(job, view, settings)
                return never or self._wait(job, part, view, found, now)
            of_part = _utility(chosen, offered)
            below = self._below(job, part, of_part, view, settings)
            if below is not None:
                return below
            utility = min(utility, of_part)
            places += [HostPlace(part.name, view.roots[row], count) for row, count in chosen]
            others = () if job.apart else found.spare
            spare += [HostPlace(part.name, view.roots[row], count) for row, count in others]
            if own is not claims:
                own.put_group(part, [row for row, _ in chosen])
                for row, count in chosen:
                    own.put(part, row, count)
            if job.apart:
                barred |= {row for row, _ in chosen}
        return Plan(tuple(places), utility, reasons=(_placed(view, places),), spare=tuple(spare))

    def _offered(
        self, part: Part, view: HostsView, claims: HostClaims, settings: PlannerSettings
    ) -> _Offered:
        counts = np.full(len(view.roots), MANY)
        utility = None
        for aspect in self._aspects:
            offer = aspect.offer(part, view, claims, settings)
            counts = np.minimum(counts, offer.counts)
            utility = offer.utility if utility is None else utility
        return _Offered(counts, utility, missed(part.request, view))

    def _below(
        self, job: Job, part: Part, utility: float, view: HostsView, settings: PlannerSettings
    ) -> Wait | None:
        """The best GPUs are not good enough."""
        minimum = part.request.min_utility
        if utility >= minimum:
            return None
        below = Reason(Term.GPU_BELOW_MINIMUM, round(utility, _DECIMALS), minimum, part.name)
        most = settings.most_postponements
        left_out = _left_out(job, view)
        if not postponing.waits_for_better(part.request):
            return Wait((below, *left_out))
        if postponing.postpones(job, utility, minimum, most):
            against = "any number" if most is None else most
            postponed = Reason(JobTerm.POSTPONED, job.postponed, against, part.name)
            return Wait((postponed, below, *left_out), postponed=True)
        return None

    def _wait(self, job: Job, part: Part, view: HostsView, found: _Found, now: float) -> Wait:
        waited_s = job.waiting_s(now)
        scope = part.scope(waited_s)
        reasons = [Reason(JobTerm.NO_ROOM, found.servers, part.count, part.name), *found.reasons]
        until = None
        if scope != part.wait_for[-1]:
            left_s = scope.wait_s - waited_s
            until = now + left_s
            reasons.append(Reason(JobTerm.NARROWER, scope.scope, round(left_s), part.name))
        return Wait((*reasons, *_left_out(job, view)), until)

    def _never(self, job: Job, view: HostsView, settings: PlannerSettings) -> Never | None:
        """A part that does not fit even if all hosts were empty; an empty view says nothing."""
        if not view.roots:
            return None
        reasons = [
            reason
            for part in job.parts
            if (found := self._most(part, view, settings)).servers < part.count
            for reason in (
                Reason(JobTerm.TOO_LARGE, found.servers, part.count, part.name),
                *found.reasons,
            )
        ]
        return Never(tuple(reasons)) if reasons else None

    def _most(self, part: Part, view: HostsView, settings: PlannerSettings) -> _Found:
        """Servers of a part that find a place in empty hosts, as far as its widest scope and its count ask."""

        def make() -> _Found:
            empty = view.empty
            nothing = view.remembered("nothing taken", lambda: HostClaims(empty))
            counts = np.full(len(view.roots), MANY)
            for aspect in self._aspects:
                if not isinstance(aspect, Gpus):
                    offer = aspect.offer(part, empty, nothing, settings)
                    counts = np.minimum(counts, offer.counts)
            offered = _Offered(counts, None, missed(part.request, empty))
            scope = part.wait_for[-1].scope
            return _found(part, scope, offered, set(), _Fleet(empty, HostClaims(empty), settings))

        return view.remembered(("most", part), make)


def _left_out(job: Job, view: HostsView) -> tuple[Reason, ...]:
    """Name the hosts that nova refused: where others are not good enough, the queue tries these again."""
    if not job.excluded:
        return ()
    names = sorted(view.host_name(view.row[host]) for host in job.excluded if host in view.row)
    return (Reason(JobTerm.HOSTS_EXCLUDED, ", ".join(names[:_SHOWN]), len(names)),)


def _placed(view: HostsView, places: Sequence[HostPlace]) -> Reason:
    names = [view.host_name(view.row[place.host]) for place in places]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return Reason(JobTerm.PLACED, ", ".join(names[:_SHOWN]) + more, len({*names}))


def _utility(chosen: Sequence[tuple[int, int]], offered: _Offered) -> float:
    if offered.utility is None:
        return 1.0
    return float(min(offered.utility[row] for row, _ in chosen))


def _found(part: Part, scope: Scope, offered: _Offered, barred: set[int], fleet: _Fleet) -> _Found:
    """Look for hosts of a part; a group that only prefers hosts near each other takes any where there is no fabric."""
    reasons: tuple[Reason, ...] = ()
    if part.network is not None:
        asked = GroupPart(
            part.network, part.count, scope, max(_SPARE, part.count // _SPARES_PER_SERVERS)
        )
        of_group = _of_group(part, asked, offered, barred, fleet)
        if of_group.chosen or part.network.binds:
            return of_group
        reasons = of_group.reasons
    elif fleet.settings.singles is Singles.REFUSE:
        closed = _closed(offered, fleet)
        barred = barred | closed
        reasons = (Reason(JobTerm.QUIET_LEAFS, len(closed), where=part.name),) if closed else ()
    areas = fleet.view.pod if scope is Scope.POD else fleet.view.leaf
    chosen, servers = _arranged(part, scope, offered, barred, areas)
    spare = _spare(part, scope, offered, barred, chosen, areas=areas) if chosen else ()
    return _Found(chosen, spare, servers, () if chosen else reasons)


def _closed(offered: _Offered, fleet: _Fleet) -> set[int]:
    """Return the hosts that would take a server, on leafs whose uplinks a group has alone."""
    view = fleet.view
    leafs = fleet.claims.groups.closed(view.leaf_hosts) - {UNKNOWN}
    on_them = np.isin(view.leaf, [*leafs]) & (offered.counts > 0)
    return {*np.flatnonzero(on_them).tolist()} if leafs else set()


def _of_group(
    part: Part, asked: GroupPart, offered: _Offered, barred: set[int], fleet: _Fleet
) -> _Found:
    view = fleet.view
    if not view.leaf_hosts:
        return _Found((), reasons=(Reason(JobTerm.NO_FABRIC, "", where=part.name),))
    able = (offered.counts > 0) & (view.leaf != UNKNOWN)
    able[list(barred)] = False
    rows = np.flatnonzero(able)
    good = ~offered.missed
    if offered.utility is not None:
        good &= offered.utility >= part.request.min_utility
    order = rows[np.lexsort(_keys(rows, offered, offered.counts))]
    candidates = Candidates(order, good, view.leaf)
    found = group_places.places(
        asked, candidates, view.leaf_hosts, fleet.claims.groups, fleet.settings.leafs
    )
    if isinstance(found, GroupHosts):
        chosen, spare = ([(row, 1) for row in each] for each in (found.rows, found.spares))
        return _Found(chosen, spare, part.count)
    return _Found((), reasons=found)


def _arranged(
    part: Part, scope: Scope, offered: _Offered, barred: set[int], areas: Integers
) -> tuple[list[tuple[int, int]], int]:
    """Spread the servers of a part over hosts.

    :param areas: leaf or pod of the hosts, H
    :returns: (host, servers) for all of them, or nothing; and how many find a place, at most its count
    """
    counts = offered.counts
    if barred:
        counts = counts.copy()
        counts[list(barred)] = 0
    counts = np.minimum(counts, 1 if part.apart else part.count)
    whole = np.flatnonzero(counts >= part.count)
    if len(whole):
        row = whole[_first(offered, whole)]
        return [(int(row), part.count)], part.count
    if scope is Scope.HOST:
        return [], int(counts.max(initial=0))
    if scope in _AREAS:
        counts = _of_one_area(part.count, counts, offered, areas)
    found = min(int(counts.sum()), part.count)
    if found < part.count:
        return [], found
    rows = np.flatnonzero(counts)
    ordered = rows[np.lexsort(_keys(rows, offered, -counts, offered.counts))]
    upto = np.cumsum(counts[ordered])
    last = int(np.searchsorted(upto, part.count))
    chosen = [(int(row), int(counts[row])) for row in ordered[: last + 1]]
    chosen[-1] = (chosen[-1][0], chosen[-1][1] - int(upto[last] - part.count))
    return chosen, part.count


def _keys(rows: Integers, offered: _Offered, *last: Integers) -> list[Floats | Integers | Mask]:
    """Return the keys of some hosts, the one that matters most last, as :func:`numpy.lexsort` takes them.

    :param last: keys of all hosts, the one that matters most first, that come after agents and GPUs
    """
    keys: list[Floats | Integers | Mask] = [each[rows] for each in reversed(last)]
    if offered.utility is not None:
        keys.append(-offered.utility[rows])
    return [*keys, offered.missed[rows]]


def _of_one_area(count: int, counts: Integers, offered: _Offered, areas: Integers) -> Integers:
    """Return how many servers the hosts of one leaf take, H: of the best leaf for all of them, else of the largest.

    :param areas: leaf or pod of the hosts, H
    """
    hangs = areas != UNKNOWN
    utility = np.ones(len(counts)) if offered.utility is None else offered.utility
    for reporting in (~offered.missed, np.ones(len(counts), bool)):
        for least in np.unique(utility[hangs & reporting & (counts > 0)])[::-1]:
            suits = hangs & reporting & (utility >= least)
            sums = np.bincount(areas[suits], counts[suits])
            whole = np.flatnonzero(sums >= count)
            if len(whole):
                best = whole[sums[whole].argmin()]
                return np.where(suits & (areas == best), counts, 0)
    sums = np.bincount(areas[hangs], counts[hangs])
    largest = int(sums.argmax()) if len(sums) else UNKNOWN
    return np.where(hangs & (areas == largest), counts, 0)


def _spare(
    part: Part,
    scope: Scope,
    offered: _Offered,
    barred: set[int],
    chosen: list[tuple[int, int]],
    *,
    areas: Integers,
) -> list[tuple[int, int]]:
    """Return the hosts that come after those that were chosen, the preferred one first.

    Their GPUs are as good as the part requests, or as those of the worst chosen host where these are not.
    """
    counts = offered.counts.copy()
    counts[[*barred, *(row for row, _ in chosen)]] = 0
    suits = counts >= (part.count if scope is Scope.HOST else 1)
    if scope in _AREAS:
        suits &= (areas != UNKNOWN) & (areas == areas[chosen[0][0]])
    if offered.utility is not None:
        suits &= offered.utility >= min(part.request.min_utility, _utility(chosen, offered))
    rows = np.flatnonzero(suits)
    found: list[tuple[int, int]] = []
    while len(rows) and len(found) < _SPARE:
        at = _first(offered, rows)
        found.append((int(rows[at]), min(int(counts[rows[at]]), part.count)))
        rows = np.delete(rows, at)
    return found


def _first(offered: _Offered, rows: Integers) -> int:
    """Place of the preferred host among some: agent reporting, then best utility, then tightest, then the first."""
    silent = offered.missed[rows]
    best = np.flatnonzero(silent == silent.min())
    if offered.utility is not None:
        of_best = offered.utility[rows[best]]
        best = best[of_best == of_best.max()]
    return int(best[offered.counts[rows[best]].argmin()])
