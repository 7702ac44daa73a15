# SPDX-License-Identifier: Apache-2.0
"""How long a latency-critical server may have others throttled in vain.

Time in which best-effort servers are throttled while a server is violated or silent all the same is charged to that
server. The account refills over the hour. A server that has used it up is not listened to for a while; so neither a
lying guest nor a reporter that died in the middle of a search can hold others down for ever. Throttling that helps
costs nothing.
"""

from host_agent.decide.slo.shapes import BudgetExhausted
from host_agent.decide.slo.turn import Turn
from host_agent.model.levels import FULL
from host_agent.model.terms import Term


def charge(turn: Turn) -> None:
    """Charge the time since the last decision; stop listening to servers that have used up their budget."""
    state, budget = turn.state, turn.options.budget_s_per_hour
    passed = 0.0 if state.seen_s is None else max(0.0, turn.now_s - state.seen_s)
    throttled = any(target.level < FULL for target in state.targets.values())
    unwell = turn.verdict.violated | turn.verdict.unknown if throttled else frozenset()
    spent: dict[str, float] = {}
    ignored = dict(state.ignored)
    for lc in turn.view.objectives:
        used = state.spent_s.get(lc.uuid, 0.0) - passed * budget / 3600.0
        if lc.uuid in unwell:
            used += passed
        if used > 0.0:
            spent[lc.uuid] = used
        if used > budget and lc.uuid not in ignored:
            ignored[lc.uuid] = turn.now_s + turn.options.ignore_s
            turn.events.append(BudgetExhausted(lc.uuid, used))
            turn.reason(Term.THROTTLE_BUDGET_S, used, budget, lc.uuid)
    turn.keep(spent_s=spent, ignored=ignored, seen_s=turn.now_s)
