# SPDX-License-Identifier: Apache-2.0
"""Places for jobs on hosts, from what Placement counts: coarse, and for ten thousand hosts at once.

Each part is placed alone, the one that fewest hosts can take first. On the hosts that the aspects leave
(:mod:`.host_aspects`), the order is

1. a better utility of GPUs, where the part asks for them;
2. fewer servers of the part that would fit: the tightest host, so that wide places stay whole.

All servers of a part go to the first host that holds all of them, where there is one; else to the hosts that hold most,
where the scope allows it. All parts find places, or none does.

What the view does not know, it does not refuse: NUMA cells, links of GPUs that are taken, policies of server groups.
Nova decides; a host that it refuses is left out of the next round (:attr:`.job.Job.excluded`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.host_aspects import MANY, Amounts, Aspect, Gpus, PlannerSettings
from nova_numa_ext.policy.jobs.host_view import HostClaims, HostsView, Integers
from nova_numa_ext.policy.jobs.job import Job, Part, Scope
from nova_numa_ext.policy.jobs.plan import HostPlace, Never, Outcome, Plan, Wait
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.policy.numa.score import Floats
from nova_numa_ext.policy.terms import Term
from placement_traits.names import GpuPolicy
from placement_traits.reason import Reason

_SHOWN: Final = 8  # hosts in a reason
_DECIMALS: Final = 3


@dataclass(frozen=True, slots=True)
class _Offered:
    """What all aspects together say of all hosts: as :class:`.host_aspects.Offer`."""

    counts: Integers
    utility: Floats | None


class HostPlanner:
    """Plans jobs on hosts.

    :param aspects: what is looked at, the one that matters most first
    """

    def __init__(self, aspects: Sequence[Aspect] = (Amounts(), Gpus())) -> None:
        self._aspects = tuple(aspects)

    def kind(self, job: Job, now: float) -> Hashable:
        """Return what the answer about a job depends on."""
        waited_s = now - job.submitted_at
        scopes = tuple(part.scope(waited_s).scope for part in job.parts)
        postponed = job.postponed if any(map(_postpones, job.parts)) else 0
        return job.parts, job.apart, scopes, postponed, job.excluded

    def plan(
        self,
        job: Job,
        view: HostsView,
        claims: HostClaims,
        now: float,
        settings: PlannerSettings,
    ) -> Outcome[HostPlace]:
        """Return hosts for all servers of a job, a reason to wait, or that it can never run here."""
        waited_s = now - job.submitted_at
        own = claims if len(job.parts) == 1 else claims.copy()
        barred = {view.row[host] for host in job.excluded if host in view.row}
        offers = {part.name: self._offered(part, view, own, settings) for part in job.parts}
        order = sorted(job.parts, key=lambda part: int((offers[part.name].counts > 0).sum()))
        places: list[HostPlace] = []
        utility = 1.0
        for part in order:
            offered = offers[part.name]
            if part is not order[0]:
                offered = self._offered(part, view, own, settings)
            scope = part.scope(waited_s)
            chosen, found = _arranged(part, scope.scope, offered, barred)
            if not chosen:
                never = self._never(job, view, settings)
                return never or self._wait(job, part, view, found, now)
            of_part = _utility(chosen, offered)
            below = self._below(job, part, of_part, settings)
            if below is not None:
                return below
            utility = min(utility, of_part)
            places += [HostPlace(part.name, view.roots[row], count) for row, count in chosen]
            for row, count in chosen if own is not claims else ():
                own.put(part, row, count)
            if job.apart:
                barred |= {row for row, _ in chosen}
        return Plan(tuple(places), utility, reasons=(_placed(view, places),))

    def _offered(
        self, part: Part, view: HostsView, claims: HostClaims, settings: PlannerSettings
    ) -> _Offered:
        counts = np.full(len(view.roots), MANY)
        utility = None
        for aspect in self._aspects:
            offer = aspect.offer(part, view, claims, settings)
            counts = np.minimum(counts, offer.counts)
            utility = offer.utility if utility is None else utility
        return _Offered(counts, utility)

    def _below(
        self, job: Job, part: Part, utility: float, settings: PlannerSettings
    ) -> Wait | None:
        """The best GPUs are not good enough."""
        minimum = part.request.min_utility
        if utility >= minimum:
            return None
        below = Reason(Term.GPU_BELOW_MINIMUM, round(utility, _DECIMALS), minimum, part.name)
        most = settings.most_postponements
        if not _postpones(part):
            return Wait((below,))
        if postponing.postpones(job, utility, minimum, most):
            against = "any number" if most is None else most
            postponed = Reason(JobTerm.POSTPONED, job.postponed, against, part.name)
            return Wait((postponed, below), postponed=True)
        return None

    def _wait(self, job: Job, part: Part, view: HostsView, found: int, now: float) -> Wait:
        scope = part.scope(now - job.submitted_at)
        reasons = [Reason(JobTerm.NO_ROOM, found, part.count, part.name)]
        until = None
        if scope != part.wait_for[-1]:
            until = job.submitted_at + scope.wait_s
            left_s = round(until - now)
            reasons.append(Reason(JobTerm.NARROWER, scope.scope, left_s, part.name))
        if job.excluded:
            names = sorted(view.host_name(view.row[h]) for h in job.excluded if h in view.row)
            reasons.append(Reason(JobTerm.HOSTS_EXCLUDED, ", ".join(names[:_SHOWN])))
        return Wait(tuple(reasons), until)

    def _never(self, job: Job, view: HostsView, settings: PlannerSettings) -> Never | None:
        """A part that does not fit even if all hosts were empty; an empty view says nothing."""
        if not view.roots:
            return None
        reasons = [
            Reason(JobTerm.TOO_LARGE, found, part.count, part.name)
            for part in job.parts
            if (found := self._most(part, view, settings)) < part.count
        ]
        return Never(tuple(reasons)) if reasons else None

    def _most(self, part: Part, view: HostsView, settings: PlannerSettings) -> int:
        """Servers of a part that find a place in empty hosts, as far as its widest scope and its count ask."""

        def make() -> int:
            empty = view.empty
            counts = np.full(len(view.roots), MANY)
            for aspect in self._aspects:
                if not isinstance(aspect, Gpus):
                    offer = aspect.offer(part, empty, HostClaims(empty), settings)
                    counts = np.minimum(counts, offer.counts)
            return _arranged(part, part.wait_for[-1].scope, _Offered(counts, None), set())[1]

        return view.remembered(("most", part), make)


def _postpones(part: Part) -> bool:
    return part.request.gpu_policy is GpuPolicy.TOPO_P and part.request.min_utility > 0


def _placed(view: HostsView, places: Sequence[HostPlace]) -> Reason:
    names = [view.host_name(view.row[place.host]) for place in places]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return Reason(JobTerm.PLACED, ", ".join(names[:_SHOWN]) + more)


def _utility(chosen: Sequence[tuple[int, int]], offered: _Offered) -> float:
    if offered.utility is None:
        return 1.0
    return float(min(offered.utility[row] for row, _ in chosen))


def _arranged(
    part: Part, scope: Scope, offered: _Offered, barred: set[int]
) -> tuple[list[tuple[int, int]], int]:
    """Spread the servers of a part over hosts.

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
    found = min(int(counts.sum()), part.count)
    if found < part.count:
        return [], found
    rows = np.flatnonzero(counts)
    keys: list[Floats | Integers] = [offered.counts[rows], -counts[rows]]
    if offered.utility is not None:
        keys.append(-offered.utility[rows])
    ordered = rows[np.lexsort(keys)]
    upto = np.cumsum(counts[ordered])
    last = int(np.searchsorted(upto, part.count))
    chosen = [(int(row), int(counts[row])) for row in ordered[: last + 1]]
    chosen[-1] = (chosen[-1][0], chosen[-1][1] - int(upto[last] - part.count))
    return chosen, part.count


def _first(offered: _Offered, rows: Integers) -> int:
    """Place of the preferred host among some: best utility, then tightest, then the first."""
    if offered.utility is not None:
        of_rows = offered.utility[rows]
        best = np.flatnonzero(of_rows == of_rows.max())
        return int(best[offered.counts[rows[best]].argmin()])
    return int(offered.counts[rows].argmin())
