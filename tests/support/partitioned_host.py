# SPDX-License-Identifier: Apache-2.0
"""A host as it is read back, with its allocations and decisions: two latency-critical servers and a best-effort one.

Four NUMA nodes of four CPUs, each an L3 domain of 16 ways. The latency-critical servers have one vCPU and four ways
each, in L3 domains 0 and 1; the best-effort server floats.
"""

from typing import Any

from nova_numa_ext.rally.agreement import HeldAmounts

LC1, LC2, BE = (f"{digit}0000000-0000-4000-8000-000000000000" for digit in "123")
NAMES = {LC1: "numa_ext-lc-1", LC2: "numa_ext-lc-2", BE: "numa_ext-be"}
OPEN = {str(number): "fff0" for number in range(4)}

Facts = dict[str, Any]


def domain(uuid: str, cpus: str, node: str) -> Facts:
    """One running domain as ``readback.py`` shows it."""
    return {
        "uuid": uuid,
        "vcpus": [{"tid": 1, "comm": "CPU 0/KVM", "cpus": cpus}],
        "ram_kb": 131072,
        "pages_kb": {node: 131072},
        "groups": [NAMES[uuid]],
        "monitors": ["mon-3"] if uuid == BE else [],
        "hostdevs": [],
    }


def host() -> Facts:
    """The host with all three."""
    masks = {"": OPEN, NAMES[BE]: OPEN}
    masks[NAMES[LC1]] = {**OPEN, "0": "f"}
    masks[NAMES[LC2]] = {**OPEN, "0": "f0", "1": "f"}
    masks[NAMES[LC1]] |= {"1": "f0"}
    return {
        "domains": [domain(LC1, "1", "0"), domain(LC2, "5", "1"), domain(BE, "0,4,8,12", "2")],
        "resctrl": {
            group: {"schemata": {"L3": l3}, "monitors": ["mon-3"] if group == NAMES[BE] else []}
            for group, l3 in masks.items()
        },
        "node_cpus": {str(n): f"{4 * n}-{4 * n + 3}" for n in range(4)},
        "l3_cpus": {str(n): f"{4 * n}-{4 * n + 3}" for n in range(4)},
    }


def held(uuid: str, l3: int | None) -> HeldAmounts:
    """What Placement counts for a server."""
    amounts = {"h1": {"MEMORY_MB": 128}}
    if l3 is not None:
        amounts[f"h1:l3_{l3}"] = {"CUSTOM_LLC_WAY": 4}
    return HeldAmounts(uuid, "h1", amounts, frozenset(f"uuid of {name}" for name in amounts))


SERVERS = (held(LC1, 0), held(LC2, 1), held(BE, None))


def explained(server: HeldAmounts) -> list[Facts]:
    """The decision that put a server where it is."""
    nodes = sorted(server.l3_domains) or None
    details = {
        "host": "h1",
        "reasons": [],
        "nodes": nodes,
        "candidates": [{"l3": nodes or [], "providers": sorted(server.providers)}],
    }
    return [{"filter": {"alternates": False, "details": [details]}, "weigh": None}]


def empty() -> Facts:
    """The host after all servers are gone."""
    facts = host()
    facts["domains"] = []
    facts["resctrl"] = {"": {"schemata": {"L3": OPEN}, "monitors": []}}
    return facts


def paused(facts: Facts) -> None:
    """An agent that acts no more: a server was started since."""
    facts["domains"][0]["groups"] = [""]
