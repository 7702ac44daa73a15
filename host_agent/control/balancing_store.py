# SPDX-License-Identifier: Apache-2.0
"""What steering keeps over restarts: the mapping's memory, and where BWAP's searches stand.

Slots and pages are read from the host itself. A search that had ended goes on watching for a new phase; one that had
not begins again from where the pages are. A lost or broken file costs nothing but learning again.
"""

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from host_agent.control.home_nodes_store import write_json
from host_agent.decide.balancing import State
from host_agent.decide.cores import memory
from host_agent.decide.pages import bwap
from host_agent.decide.pages.shares import Memory
from placement_traits.errors import InvalidValueError

LOG = logging.getLogger(__name__)

_VERSION: Final = 1


def load(path: Path) -> State:
    """Return what was kept; a fresh state when there is no usable file."""
    try:
        content: Any = json.loads(path.read_text())
        if content["version"] != _VERSION:
            return State()
        mapper = memory.from_plain(content["mapping"], str(path))
        searches = {uuid: _search(kept) for uuid, kept in content["searches"].items()}
    except FileNotFoundError:
        return State()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidValueError) as error:
        LOG.warning("what was learnt is lost, beginning again: %s: %s", path, error)
        return State()
    return State(mapper, {uuid: Memory(search=search) for uuid, search in searches.items()})


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write the file.

    :raises OSError: it cannot be written
    """
    write_json(path, content)


def to_plain(state: State) -> dict[str, Any]:
    """Return what is kept, as plain JSON types."""
    return {
        "version": _VERSION,
        "mapping": memory.to_plain(state.mapper),
        "searches": {
            uuid: _plain(known.search)
            for uuid, known in sorted(state.memory.items())
            if known.search is not None and known.search.phase_mapi is not None
        },
    }


def _plain(search: bwap.State) -> dict[str, Any]:
    best = search.best
    return {
        "canonical": {str(node): share for node, share in sorted(search.canonical.items())},
        "workers": sorted(search.workers),
        "co_scheduled": search.co_scheduled,
        "found": search.phase is bwap.Phase.FOUND,
        "dwp": search.dwp,
        "lower_bound": search.lower_bound,
        "best": [best.dwp, best.stall_rate, best.error] if best else None,
        "phase_mapi": search.phase_mapi,
    }


def _search(kept: Mapping[str, Any]) -> bwap.State:
    found, best = kept["found"], kept["best"]
    return bwap.State(
        canonical={int(node): float(share) for node, share in kept["canonical"].items()},
        workers=frozenset(map(int, kept["workers"])),
        co_scheduled=bool(kept["co_scheduled"]),
        started=True,
        phase=bwap.Phase.FOUND if found else bwap.Phase.WAITING,
        dwp=min(1.0, max(0.0, float(kept["dwp"]))),
        lower_bound=float(kept["lower_bound"]),
        best=bwap.Measured(*map(float, best)) if found and best else None,
        phase_mapi=kept["phase_mapi"] if found else None,
        sampled_s=-math.inf,
    )
