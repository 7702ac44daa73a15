# SPDX-License-Identifier: Apache-2.0
"""What the agent did and why: its journal."""

from collections.abc import Mapping
from typing import Any, Final

from host_agent.conf.configuration import Configuration
from host_agent.console.text import cell
from placement_traits.errors import CapabilityMissingError
from placement_traits.journal import read

# Of an :class:`host_agent.model.journal.Entry`, those that are not empty.
_FIELDS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("time", "action", "result", "server", "title", "problem"), str),
    "what": dict,
    "reasons": list,
}


def entries(conf: Configuration, server: str | None = None) -> list[dict[str, Any]]:
    """Return the journal, oldest first; of one server (UUID or name) where one is named.

    What the agent does not write is passed over, as lines that hold no entry are.

    :raises CapabilityMissingError: it cannot be read, or is no file
    """
    journal = conf.paths.journal
    try:
        found = [entry for entry in read(journal, follow_links=False) if _is_entry(entry)]
    except OSError as error:
        where = error.filename or journal
        raise CapabilityMissingError(f"{where} cannot be read: {error.strerror}") from error
    if server is None:
        return found
    return [entry for entry in found if server in (entry.get("server"), entry.get("title"))]


def _is_entry(found: Mapping[str, Any]) -> bool:
    return all(isinstance(found.get(name, kind()), kind) for name, kind in _FIELDS.items())


def last_decisions(conf: Configuration) -> dict[str, tuple[str, ...]]:
    """Return the reasons of the newest decision about each server."""
    return {
        entry["server"]: tuple(entry.get("reasons", ()))
        for entry in entries(conf)
        if entry.get("action") == "decide" and "server" in entry
    }


def line(entry: Mapping[str, Any]) -> str:
    """Return a journal entry in one line."""
    what = " ".join(f"{key}={cell(value)}" for key, value in entry.get("what", {}).items())
    words = [
        entry.get("time", ""),
        entry.get("title") or entry.get("server") or "host",
        entry.get("action", ""),
        entry.get("result", ""),
        what,
        entry.get("problem", ""),
    ]
    return " ".join(filter(None, words))
