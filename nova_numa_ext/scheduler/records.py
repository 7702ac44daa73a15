# SPDX-License-Identifier: Apache-2.0
"""Decisions as journal entries: plain JSON types, bounded in size whatever the size of the cloud.

One decision makes an entry of kind ``filter`` and, when nova weighs, one of kind ``weigh``; a fault of ours makes
one of kind ``fault``. They are joined by request id and server (:mod:`nova_numa_ext.cli.explain`).
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from nova_numa_ext.policy.gpu.candidate_sets import GpuSet
from nova_numa_ext.policy.numa.candidates import Ranked
from nova_numa_ext.policy.numa.score import Floats, Score, Scores
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.policy.terms import sentence
from nova_numa_ext.scheduler.decision import Judged
from nova_numa_ext.scheduler.judge import DecisionContext, HostVerdict
from placement_traits.fleet import L3View
from placement_traits.reason import Reason
from placement_traits.request import concerns_us


class Decided(Protocol):
    """What is reported of a decision of the filter."""

    @property
    def judged(self) -> Judged:
        """What was decided about the hosts."""

    @property
    def context(self) -> DecisionContext:
        """What the decision knew."""

    @property
    def settled(self) -> bool:
        """Nova has placed the server already and asks for alternates."""


_MOST_KINDS = 3  # of one host's candidates, those that are alike counted once
_MOST_NAMES = 20


def filter_entry(
    request_id: str | None, spec: Any, found: "Decided", *, offered: int, limit: int
) -> dict[str, Any]:
    """Describe what the filter decided.

    :param offered: hosts among which nova looks; those that a job's plan leaves out are not judged
    :param limit: hosts described one by one, refused and passed apart
    """
    judged, context = found.judged, found.context
    age_s = context.snapshot.age_s
    return {
        **_head("filter", request_id, spec),
        "alternates": found.settled,
        "problems": list(judged.parsed.problems),
        "view": {
            "state": context.snapshot.state.value,
            "age_s": round(age_s, 1) if math.isfinite(age_s) else None,
            "hosts": len(context.snapshot.hosts),
        },
        **_planned(judged, offered),
        **_group(judged),
        "hosts": judged.hosts,
        "judged": len(judged.verdicts),
        "passed": len(judged.passed),
        "refused": _grouped(judged.refused),
        **_modes(context, judged),
        "picks": [
            {
                "server": pick.server,
                "host": pick.host,
                "node": _node(judged, pick.host),
                "l3": sorted(domain.l3_id for domain in _domains(context, pick)),
            }
            for pick in context.request_picks
        ],
        "details": [
            *map(_passed, judged.passed[:limit]),
            *map(_described, judged.refused[:limit]),
        ],
    }


def _modes(context: DecisionContext, judged: Judged) -> dict[str, Any]:
    """Describe what enforcing would have done on hosts of other modes; nothing where there are none."""
    if not context.modes:
        return {}
    return {
        "modes": Counter(sorted(context.modes.values())),
        "would_refuse": _grouped(judged.spared),
        "would_reorder": len(judged.left_as_they_came),
    }


def _planned(judged: Judged, offered: int) -> dict[str, Any]:
    """Describe what the plan of a job says; nothing for servers of no job."""
    plan = judged.parsed.planned
    if plan is None or plan.problem:
        return {}
    return {
        "job": {
            "id": plan.job,
            "part": plan.part,
            "extra_specs": dict(plan.extra_specs),
            "any_utility": plan.any_utility,
            "planned": None if plan.hosts is None else len(plan.hosts),
            "spare": len(plan.spare),
            "absent": plan.absent,
            "left_out": offered - judged.hosts,
        }
    }


def _group(judged: Judged) -> dict[str, Any]:
    """Describe where the servers of a group go that have no host yet; nothing for servers of no group."""
    plan = judged.group
    if plan is None:
        return {}
    return {
        "group": {
            "id": plan.group.uuid,
            "leafs": Counter(plan.leafs[root] for root in plan.places),
            "spares": len(plan.spares),
            "claimed": plan.claimed,
            "reasons": list(plan.reasons),
        }
    }


def would_choose(host_states: Sequence[Any], best: int, enforced: int) -> dict[str, Any]:
    """Describe which host would be first if none were only observed; nothing where it is the same.

    :param best: position of the host with the highest total
    :param enforced: position of the one that would have it
    """
    return {} if best == enforced else {"would_choose": host_states[enforced].nodename}


def _node(judged: Judged, root_uuid: str) -> str | None:
    found = judged.verdicts.get(root_uuid)
    return None if found is None else found.node


def _domains(context: DecisionContext, pick: Pick) -> list[L3View]:
    host = context.snapshot.host(pick.host)
    used = {uuid for uuid, _ in pick.l3}
    return [domain for domain in host.l3 if domain.uuid in used] if host is not None else []


def weigh_entry(
    request_id: str | None,
    spec: Any,
    weighed: Sequence[Any],
    scores: Scores,
    *,
    judged: Judged,
    totals: Floats,
    limit: int,
) -> dict[str, Any]:
    """Describe what the weigher decided: the ``limit`` best hosts by total weight.

    :param judged: what the filter decided; of the best hosts those are described that its own entry left out
    :param totals: weights of the hosts so far, ours included
    """
    best = heapq.nsmallest(
        limit,
        _highest(totals, limit),
        key=lambda at: (-totals[at], weighed[at].obj.host, weighed[at].obj.nodename),
    )
    known = {each.uuid for each in judged.passed[:limit]}
    found = (judged.verdicts.get(weighed[at].obj.uuid) for at in best)
    left_out = [each for each in found if each and not each.reasons and each.uuid not in known]
    return {
        **_head("weigh", request_id, spec),
        "hosts": len(weighed),
        "details": [*map(_passed, left_out)],
        "scores": [_scored(weighed[at], scores.of(at), float(totals[at])) for at in best],
    }


def _highest(totals: Floats, count: int) -> list[int]:
    """Return the positions of the ``count`` highest numbers and of those that are equal to the last of them."""
    if not 0 < count < len(totals):
        return [*range(len(totals))]
    found: list[int] = np.flatnonzero(totals >= np.partition(totals, -count)[-count]).tolist()
    return found


def _scored(weighed: Any, score: Score, total: float) -> dict[str, Any]:
    return {
        "host": weighed.obj.host,
        "node": weighed.obj.nodename,
        "uuid": weighed.obj.uuid,
        "score": round(score.value, 4),
        "before": round(weighed.weight, 4),
        "total": round(total, 4),
        "terms": {
            term.value: None if value is None else round(value, 4)
            for term, value in score.terms.items()
        },
    }


def fault_entry(request_id: str | None, spec: Any, where: str, error: Exception) -> dict[str, Any]:
    """Describe a fault of ours."""
    return {
        **_head("fault", request_id, spec),
        "where": where,
        "error": f"{type(error).__name__}: {error}",
    }


def _head(kind: str, request_id: str | None, spec: Any) -> dict[str, Any]:
    flavor = spec.flavor
    extra_specs = flavor.extra_specs if "extra_specs" in flavor else {}
    return {
        "kind": kind,
        "time": round(time.time(), 3),
        "request": request_id,
        "server": spec.instance_uuid,
        "flavor": flavor.name,
        "asked": {key: value for key, value in extra_specs.items() if concerns_us({key: value})},
    }


def _grouped(verdicts: Iterable[HostVerdict]) -> list[dict[str, Any]]:
    """Hosts grouped by their first reason, most hosts first."""
    groups: dict[Reason, list[str]] = {}
    for each in verdicts:
        groups.setdefault(each.reasons[0], []).append(each.node)
    return [
        {"reason": text, "count": len(nodes), "hosts": heapq.nsmallest(_MOST_NAMES, nodes)}
        for text, nodes in sorted(
            [(sentence(reason), nodes) for reason, nodes in groups.items()],
            key=lambda item: (-len(item[1]), item[0]),
        )
    ]


def _described(verdict: HostVerdict) -> dict[str, Any]:
    return {
        "host": verdict.host,
        "node": verdict.node,
        "mode": verdict.mode,
        "reasons": [_reason(reason) for reason in verdict.reasons],
    }


def _passed(verdict: HostVerdict) -> dict[str, Any]:
    nodes = verdict.offer.home.nodes if verdict.offer and verdict.offer.home is not None else None
    return {
        **_described(verdict),
        "nodes": None if nodes is None else list(nodes),
        "candidates": _kinds(verdict.candidates),
        "candidates_judged": len(verdict.candidates),
        "candidates_left": 1 if verdict.best_only else len(verdict.candidates),
    }


def _kinds(candidates: Sequence[Ranked]) -> list[dict[str, Any]]:
    """Describe the first candidate with its providers, and the best kinds of the others, each with its number."""
    if not candidates:
        return []
    best = candidates[0].rank
    kinds: dict[tuple[Any, ...], dict[str, Any]] = {}
    for ranked in candidates:
        loses = None if ranked.rank == best else str(ranked.rank.loses_to(best))
        addresses = ranked.gpus.addresses if ranked.gpus else None
        key = ranked.rank.l3_ids, addresses, loses
        if key in kinds:
            kinds[key]["count"] += 1
        elif len(kinds) < _MOST_KINDS:
            kinds[key] = {
                "l3": list(ranked.rank.l3_ids),
                "gpus": _gpus(ranked.gpus) if ranked.gpus else None,
                "loses": loses,
                "count": 1,
            }
    described = list(kinds.values())
    described[0]["providers"] = list(candidates[0].candidate.providers)
    return described


def _gpus(chosen: GpuSet) -> dict[str, Any]:
    terms = chosen.terms
    return {
        "addresses": list(chosen.addresses),
        "nodes": list(chosen.nodes),
        "utility": round(terms.utility, 4),
        "communication": round(terms.communication, 4),
        "interference": round(terms.interference, 4),
        "fragmentation": round(terms.fragmentation, 4),
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "term": str(reason.term),
        "value": reason.value,
        "against": reason.against,
        **({"where": reason.where} if reason.where else {}),
        "text": sentence(reason),
    }
