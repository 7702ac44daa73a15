# SPDX-License-Identifier: Apache-2.0
"""Decisions as journal entries: plain JSON types, bounded in size whatever the size of the cloud.

One decision makes an entry of kind ``filter`` and, when nova weighs, one of kind ``weigh``; a fault of ours makes
one of kind ``fault``. They are joined by request id and server (:mod:`nova_numa_ext.explain`).
"""

import math
import time
from collections.abc import Sequence
from typing import Any

from nova_numa_ext.policy.gpu_sets import GpuSet
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.policy.reason import Reason
from nova_numa_ext.policy.score import Score
from nova_numa_ext.policy.terms import sentence
from nova_numa_ext.request import concerns_us
from nova_numa_ext.scheduler.decision import Surroundings, Verdict, Wish
from placement_traits.fleet import L3View

_MOST_CANDIDATES = 16
_MOST_NAMES = 20


def filter_entry(
    request_id: str | None,
    spec: Any,
    wanted: Wish,
    around: Surroundings,
    verdicts: Sequence[Verdict],
    *,
    settled: bool,
    limit: int,
) -> dict[str, Any]:
    """Describe what the filter decided.

    :param settled: nova has placed the server already and asks for alternates
    :param limit: hosts described one by one, refused and passed apart
    """
    passed = [verdict for verdict in verdicts if not verdict.reasons]
    refused = [verdict for verdict in verdicts if verdict.reasons]
    entry = _head("filter", request_id, spec)
    if not wanted.concerned:
        return {**entry, "opinion": False, "hosts": len(verdicts)}
    age_s = around.snapshot.age_s
    names = {verdict.host_state.uuid: verdict.host_state.nodename for verdict in verdicts}
    return {
        **entry,
        "opinion": True,
        "alternates": settled,
        "problems": list(wanted.problems),
        "view": {
            "state": around.snapshot.state.value,
            "age_s": round(age_s, 1) if math.isfinite(age_s) else None,
            "hosts": len(around.snapshot.hosts),
        },
        "hosts": len(verdicts),
        "passed": len(passed),
        "refused": _refused(refused),
        "picks": [
            {
                "server": pick.server,
                "host": pick.host,
                "node": names.get(pick.host),
                "l3": sorted(domain.l3_id for domain in _domains(around, pick)),
            }
            for pick in around.request_picks
        ],
        "details": [_host(verdict) for verdict in (*passed[:limit], *refused[:limit])],
    }


def _domains(around: Surroundings, pick: Pick) -> list[L3View]:
    host = around.snapshot.host(pick.host)
    used = {uuid for uuid, _ in pick.l3}
    return [domain for domain in host.l3 if domain.uuid in used] if host is not None else []


def weigh_entry(
    request_id: str | None, spec: Any, weighed: Sequence[Any], result: Sequence[Score], limit: int
) -> dict[str, Any]:
    """Describe what the weigher decided: the ``limit`` best hosts."""
    best = sorted(
        zip(weighed, result, strict=True),
        key=lambda pair: (-pair[1].value, pair[0].obj.host, pair[0].obj.nodename),
    )
    return {
        **_head("weigh", request_id, spec),
        "hosts": len(weighed),
        "scores": [
            {
                "host": host.obj.host,
                "node": host.obj.nodename,
                "uuid": host.obj.uuid,
                "score": round(score.value, 4),
                "before": round(host.weight, 4),
                "terms": {
                    term.value: None if value is None else round(value, 4)
                    for term, value in score.terms.items()
                },
            }
            for host, score in best[:limit]
        ],
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


def _refused(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Refusals grouped by their first reason, most hosts first."""
    groups: dict[str, list[str]] = {}
    for verdict in verdicts:
        groups.setdefault(sentence(verdict.reasons[0]), []).append(verdict.host_state.nodename)
    return [
        {"reason": text, "count": len(hosts), "hosts": sorted(hosts)[:_MOST_NAMES]}
        for text, hosts in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def _host(verdict: Verdict) -> dict[str, Any]:
    state, ordering = verdict.host_state, verdict.ordering
    best = ordering.kept[0].rank if ordering.kept else None
    return {
        "host": state.host,
        "node": state.nodename,
        "uuid": state.uuid,
        "reasons": [_reason(reason) for reason in verdict.reasons],
        "nodes": list(verdict.offer.nodes)
        if verdict.offer and verdict.offer.nodes is not None
        else None,
        "candidates": [
            {
                "l3": list(ranked.rank.l3_ids),
                "providers": list(ranked.candidate.providers),
                "gpus": _gpus(ranked.gpus) if ranked.gpus else None,
                "loses": None
                if best is None or ranked.rank == best
                else str(ranked.rank.loses_to(best)),
            }
            for ranked in ordering.kept[:_MOST_CANDIDATES]
        ],
        "candidates_kept": len(ordering.kept),
        "candidates_removed": [
            {"providers": list(candidate.providers), "reason": sentence(reason)}
            for candidate, reason in ordering.removed[:_MOST_CANDIDATES]
        ],
    }


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
        "text": sentence(reason),
    }
