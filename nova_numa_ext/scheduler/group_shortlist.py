# SPDX-License-Identifier: Apache-2.0
"""The first pass of a server group: nova gets the planned hosts and their spares, and no other (:mod:`.group_plan`)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nova_numa_ext.policy.terms import Term
from nova_numa_ext.scheduler.decision import Judged, reorder
from nova_numa_ext.scheduler.group_plan import GroupPlaces, GroupPlanner, NoPlan, Offered, Passing
from nova_numa_ext.scheduler.groups import ServerGroup
from nova_numa_ext.scheduler.judge import HostVerdict
from nova_numa_ext.scheduler.judge import verdict as verdict_on
from nova_numa_ext.scheduler.measures import Measures
from nova_numa_ext.scheduler.shortlist import ByScore, LaterFilters, Question
from placement_traits.reason import Reason
from placement_traits.workload_request import WorkloadRequest


class GroupShortlist:
    """Plans a group and judges its hosts.

    :param by_score: orders hosts
    :param later: nova's filters after ours
    :param planner: of groups
    :param measures: what is counted of them
    """

    def __init__(
        self, by_score: ByScore, later: LaterFilters, planner: GroupPlanner, measures: Measures
    ) -> None:
        self._by_score = by_score
        self._later = later
        self._planner = planner
        self._measures = measures

    def judge(
        self, question: Question, group: ServerGroup, verdict: Callable[[Any], HostVerdict]
    ) -> tuple[Judged, list[Any]] | None:
        """Plan a group for all servers of its request; None: it has no plan and needs none.

        :param verdict: judges one host
        :returns: what was decided, and the hosts for nova in its own order
        """
        request, states = question.parsed.request, question.host_states
        if request is None:
            return None
        verdicts: dict[str, HostVerdict] = {}

        def passing(positions: Sequence[int]) -> set[int]:
            at = {states[each].uuid: each for each in positions}
            able = []
            for state in (states[each] for each in positions):
                judged = verdicts[state.uuid] = verdict(state)
                if not judged.reasons:
                    reorder(state, judged)
                    able.append(state)
            ahead = self._later.passed(able, question.spec)
            return {at[state.uuid] for state in (*ahead.by_first, *ahead.by_another)}

        modes, began = question.context.modes, time.perf_counter()
        found = self._planned(question, group, request, passing)
        self._measures.planned(found, seconds=time.perf_counter() - began)
        if isinstance(found, GroupPlaces):
            kept = {*found.hosts}
            return (
                Judged(question.parsed, verdicts, len(states), exhausted=False, group=found),
                [state for state in states if state.uuid in kept],
            )
        if not group.request.binds or (group.moves and not group.request.within):
            return None  # a server that has to move is refused for no request but the level it must stay within
        reasons = tuple(Reason(Term.GROUP, each) for each in found.reasons)
        refused = {
            state.uuid: replace(verdict_on(state, reasons), mode=modes[state.uuid])
            if state.uuid in modes
            else verdict_on(state, reasons)
            for state in states
        }
        return (
            Judged(question.parsed, refused, len(states)),
            [state for state in states if not refused[state.uuid].refused],
        )

    def _planned(
        self, question: Question, group: ServerGroup, request: WorkloadRequest, passing: Passing
    ) -> GroupPlaces | NoPlan:
        """Plan a group; what it holds keeps others off, so it holds leafs by hosts only that may refuse.

        One that asks for leafs of its own and has a place among such hosts goes there. Where it has none, or all hosts
        are only ranked, its places are advice.
        """
        states, modes, lost = question.host_states, question.context.modes, 0
        arrays = question.context.snapshot.arrays
        ordered, possible, _ = self._by_score.ranked(question, request)
        roots = [state.uuid for state in states]
        refuses = np.array([root not in modes for root in roots], bool)
        if group.request.claims and refuses.any() and not refuses.all():
            binding = Offered(roots, ordered[refuses[ordered]], possible)
            found = self._planner.plan(group, binding, arrays, passing, claims=True)
            if isinstance(found, GroupPlaces):
                return found
            lost = found.lost
        every = Offered(roots, ordered, possible)
        found = self._planner.plan(group, every, arrays, passing, claims=bool(refuses.all()))
        return replace(found, lost=lost + found.lost)

    @staticmethod
    def next(
        plan: GroupPlaces, question: Question, last: Judged, decide: Callable[[Question], Judged]
    ) -> tuple[Judged, list[Any]]:
        """Return the hosts that are left of a plan for the next server of the request.

        Only hosts that have got a server of the request are judged again: nothing has changed on the others.

        :param plan: what is left of it
        :param last: what was decided for the server before
        :param decide: judges all hosts of a question
        """
        kept = {*plan.hosts}
        states = [state for state in question.host_states if state.uuid in kept]
        picked = {pick.host for pick in question.context.request_picks}
        again = [state for state in states if state.uuid in picked]
        verdicts = {state.uuid: last.verdicts[state.uuid] for state in states}
        if again:
            verdicts |= decide(replace(question, host_states=again)).verdicts
        for state in again:
            reorder(state, verdicts[state.uuid])
        left = [state for state in states if not verdicts[state.uuid].reasons]
        return Judged(question.parsed, verdicts, len(states), group=plan), left
