# SPDX-License-Identifier: Apache-2.0
"""Parts of a total for the members of a group (Gureya 2021, sections 3.4.2 and 3.4.3)."""

from collections.abc import Mapping, Sequence

from nova_numa_ext.policy.elastic.load import MemberLoad


def predicted(
    loads: Mapping[str, MemberLoad], reads_per_s: float, writes_per_s: float
) -> dict[str, MemberLoad]:
    """Return what each member will get of predicted totals, when it gets the same part as now.

    A total that is 0 now has no parts: then all members get the same of it.

    :param loads: what each member gets now
    """
    reads = _parts([load.reads_per_s for load in loads.values()], reads_per_s)
    writes = _parts([load.writes_per_s for load in loads.values()], writes_per_s)
    return {
        name: MemberLoad(reads[at], writes[at], load.size_kb)
        for at, (name, load) in enumerate(loads.items())
    }


def _parts(now: Sequence[float], total: float) -> list[float]:
    whole = sum(now)
    return [total * one / whole if whole > 0.0 else total / len(now) for one in now]


def suggested(ratios: Mapping[str, float], loads: Mapping[str, MemberLoad]) -> dict[str, float]:
    """Return the share of the work that each member should get: in proportion to its capacity.

    It is a suggestion for the balancer of the load; nothing here enforces it.

    :param ratios: load over capacity of each member, for the load in ``loads``
    :returns: shares with sum 1; members that do nothing now, of which no capacity is known, have none
    """
    capacities = {
        name: (loads[name].reads_per_s + loads[name].writes_per_s) / ratio
        for name, ratio in ratios.items()
        if ratio > 0.0
    }
    whole = sum(capacities.values())
    return {name: capacity / whole for name, capacity in capacities.items()}
