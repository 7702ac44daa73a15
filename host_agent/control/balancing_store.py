# SPDX-License-Identifier: Apache-2.0
"""What NUMA balancing keeps over restarts: what the mapping has learnt, and where BWAP's searches stand.

Slots and pages are read from the host itself. A search that had ended goes on watching for a new phase; one that had
not begins again from where the pages are. A lost or broken file costs nothing but learning again.
"""

import math
from pathlib import Path
from typing import Any, Final

from host_agent.control import mapping_store
from host_agent.decide.balancing import BalancingState
from host_agent.decide.pages import bwap
from host_agent.decide.pages.shares import Memory
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_VERSION: Final = 1


def store(path: Path) -> JsonStore[BalancingState]:
    """Return the file."""
    return JsonStore(path, _VERSION, _decode, to_plain)


def to_plain(state: BalancingState) -> dict[str, Any]:
    """Return what is kept, as plain JSON types."""
    return {
        "mapping": mapping_store.to_plain(state.mapper),
        "searches": {
            uuid: _plain(known.search)
            for uuid, known in sorted(state.memory.items())
            if known.search is not None and known.search.phase_mapi is not None
        },
    }


def _decode(found: Value) -> BalancingState:
    mapper = mapping_store.from_plain(found.member("mapping"))
    searches = {uuid: _search(kept) for uuid, kept in found.member("searches").members().items()}
    return BalancingState(
        mapper, {uuid: Memory(search=search) for uuid, search in searches.items()}
    )


def _plain(search: bwap.BwapSearch) -> dict[str, Any]:
    best = search.best
    return {
        "canonical": {str(node): share for node, share in sorted(search.canonical.items())},
        "workers": sorted(search.workers),
        "co_scheduled": search.co_scheduled,
        "found": search.phase is bwap.BwapPhase.FOUND,
        "dwp": search.dwp,
        "lower_bound": search.lower_bound,
        "best": [best.dwp, best.stall_rate, best.error] if best else None,
        "phase_mapi": search.phase_mapi,
    }


def _search(kept: Value) -> bwap.BwapSearch:
    found, best = kept.member("found").flag(), kept.member("best").optional()
    canonical = kept.member("canonical").shares()
    workers = kept.member("workers")
    nodes = frozenset(node.integer() for node in workers.items())
    if not any(canonical.get(node) for node in nodes):
        raise workers.refused("nodes of which some has a canonical share")
    return bwap.BwapSearch(
        canonical=canonical,
        workers=nodes,
        co_scheduled=kept.member("co_scheduled").flag(),
        started=True,
        phase=bwap.BwapPhase.FOUND if found else bwap.BwapPhase.WAITING,
        dwp=kept.member("dwp").number(0.0, 1.0),
        lower_bound=kept.member("lower_bound").number(0.0, 1.0),
        best=_measured(best) if found and best else None,
        phase_mapi=kept.member("phase_mapi").number(0.0) if found else None,
        sampled_s=-math.inf,
    )


def _measured(best: Value) -> bwap.StallMeasurement:
    figures = best.items()
    if len(figures) != 3:
        raise best.refused("DWP, stall rate and its error")
    dwp, stall_rate, error = figures
    return bwap.StallMeasurement(dwp.number(0.0, 1.0), stall_rate.number(0.0), error.number(0.0))
