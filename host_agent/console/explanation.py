# SPDX-License-Identifier: Apache-2.0
"""One server explained: why it is where it is, and what was done for it."""

from collections.abc import Mapping
from typing import Any

from host_agent.conf.configuration import Configuration
from host_agent.console.history import entries, line
from host_agent.console.text import cell, known
from host_agent.control import slo_store


def explain(conf: Configuration, server: str) -> dict[str, Any]:
    """Return the newest decision about a server and what was done since.

    A server that the journal does not know is looked at instead: key ``now`` is its row of ``status``, whose ``why``
    and ``problem`` say why it is left alone.

    :param server: UUID or name
    """
    found = entries(conf, server)
    newest = max(
        (index for index, entry in enumerate(found) if entry.get("action") == "decide"),
        default=None,
    )
    if newest is None:
        now = None if found else _now(conf, server)
        return {"server": server, "decision": None, "actions": found, "now": now}
    report = slo_store.load(conf.paths.slo).report
    slo = slo_store.of_server(report, found[newest].get("server", ""))
    return {
        "server": server,
        "decision": found[newest],
        "actions": found[newest + 1 :],
        **({"slo": slo} if slo else {}),
    }


def _now(conf: Configuration, server: str) -> dict[str, Any] | None:
    """Return how libvirt and the kernel show it; None when they do not know it either."""
    from host_agent.console.status import status

    return next((row for row in status(conf) if server in (row["uuid"], row["server"])), None)


def as_text(found: Mapping[str, Any]) -> str:
    """Return what :func:`explain` found, for a reader."""
    lines = []
    decision = found["decision"]
    if decision:
        lines.append(f"{decision.get('title') or decision['server']}, decided {decision['time']}:")
        lines += [f"  {key}: {cell(value)}" for key, value in decision.get("what", {}).items()]
        lines.append("because")
        lines += [f"  {reason}" for reason in decision.get("reasons", ())]
        lines += [f"  {decision['problem']}"] if decision.get("problem") else []
    if found.get("slo"):
        lines.append("bandwidth, as last reported by the agent")
        lines += [f"  {key}: {cell(value)}" for key, value in known(found["slo"]).items()]
    now = found.get("now")
    if now:
        lines.append(f"{now['server']}, never decided about, as it is now:")
        lines += [f"  {key}: {cell(value)}" for key, value in now.items()]
    lines.append("then")
    lines += [f"  {line(entry)}" for entry in found["actions"]] or ["  nothing had to be done"]
    return "\n".join(lines) + "\n"
