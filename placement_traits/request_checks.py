# SPDX-License-Identifier: Apache-2.0
"""Which combinations of values, each of them allowed, have no meaning in one flavor."""

from collections.abc import Iterator, Mapping

from placement_traits import names
from placement_traits.amounts import amounts_by_group
from placement_traits.errors import LONGEST_TEXT, cut
from placement_traits.guest_topology import NUMA_NODES
from placement_traits.interference import NEIGHBOURHOOD_UNITS
from placement_traits.names import Key, MemoryPolicy, Tier
from placement_traits.workload_request import SPREADING_POLICIES, WorkloadRequest

_Check = tuple[bool, str]
"""Whether something is wrong, and the sentence about it."""


def combination_problems(
    request: WorkloadRequest, extra_specs: Mapping[str, str], image_tier: Tier | None
) -> tuple[str, ...]:
    """Return a sentence for each combination that has no meaning.

    :param image_tier: that the image requires
    """
    checks = (*_tier_checks(request, extra_specs, image_tier), *_group_checks(request, extra_specs))
    sentences = (sentence for wrong, sentence in checks if wrong)
    every = (*sentences, *_neighbourhood_problems(request))
    return tuple(
        cut(sentence, LONGEST_TEXT) for sentence in every
    )  # names of groups are the flavor's


def _tier_checks(
    request: WorkloadRequest, extra_specs: Mapping[str, str], image_tier: Tier | None
) -> tuple[_Check, ...]:
    lc = request.tier is Tier.LC
    clos_groups = sorted(amounts_by_group(extra_specs, names.RDT_CLOS).keys() - {""})
    return (
        (
            image_tier not in (None, request.tier),
            f"{Key.TIER}={request.tier} contradicts the image, which requires the tier {image_tier}.",
        ),
        (
            lc and not (request.dedicated and request.numa_nodes),
            f"{Key.TIER}=LC needs hw:cpu_policy=dedicated and hw:numa_nodes: without them nothing isolates the server.",
        ),
        (
            lc and request.clos != 1,
            f"{Key.TIER}=LC needs resources:{names.RDT_CLOS}=1, its own class of service.",
        ),
        (
            bool(clos_groups),
            f"{', '.join(f'resources{g}' for g in clos_groups)}: {names.RDT_CLOS} belongs to the whole server; "
            f"ask for it without a group, as resources:{names.RDT_CLOS}.",
        ),
        (
            lc and not request.managed,
            f"{Key.TIER}=LC and {Key.MANAGED}=false exclude each other: a server that is left alone has no guarantee.",
        ),
        (
            not lc and (request.clos > 0 or request.ways > 0),
            f"{names.RDT_CLOS} and {names.LLC_WAY} are for {Key.TIER}=LC only; best-effort servers share what is left.",
        ),
        (
            not lc and (Key.SLO_P99_US in extra_specs or Key.SLO_SOURCE in extra_specs),
            f"{Key.SLO_P99_US} and {Key.SLO_SOURCE} are for {Key.TIER}=LC only.",
        ),
    )


def _group_checks(request: WorkloadRequest, extra_specs: Mapping[str, str]) -> tuple[_Check, ...]:
    lc = request.tier is Tier.LC
    groups = {amount.group for amount in request.l3}
    way_groups = sum(amount.ways > 0 for amount in request.l3)
    one_node = request.numa_topology and request.numa_nodes <= 1
    return (
        (
            "" in groups,
            f"{names.LLC_WAY}, {names.MEMORY_BANDWIDTH_MBPS} and {names.LLC_NEIGHBOURHOOD} must be asked for in a "
            f"named group, such as resources_NODE:{names.LLC_WAY}, so that all come from the same L3 domain.",
        ),
        (
            len(groups) > 1 and extra_specs.get("group_policy") != "isolate",
            f"groups {', '.join(f'resources{g}' for g in sorted(groups))} need group_policy=isolate, so that each "
            "comes from an L3 domain of its own.",
        ),
        (
            lc and request.ways > 0 and way_groups != request.numa_nodes,
            f"{NUMA_NODES}={request.numa_nodes} with {names.LLC_WAY} in {way_groups} groups: each NUMA node of an LC "
            "server needs its ways in a group of its own, such as "
            f"resources_N0:{names.LLC_WAY} and resources_N1:{names.LLC_WAY}.",
        ),
        (
            one_node and request.memory_policy in SPREADING_POLICIES,
            f"{Key.MEMORY_POLICY}={request.memory_policy} spreads memory, but the flavor's NUMA topology has one node; "
            f"allowed there: {MemoryPolicy.LOCAL}, {MemoryPolicy.FIRST_TOUCH}, {MemoryPolicy.AUTONUMA}.",
        ),
    )


def _neighbourhood_problems(request: WorkloadRequest) -> Iterator[str]:
    """Yield the first thing that is wrong with a strict request: what comes after it would be wrong because of it."""
    if not request.strict:
        return
    kind, units = request.interference_class, NEIGHBOURHOOD_UNITS[request.interference_class]
    resource = names.LLC_NEIGHBOURHOOD
    asked = [amount for amount in request.l3 if amount.neighbourhood]
    if not units:
        yield (
            f"{resource} is for {Key.INTERFERENCE_CLASS}=rabbit and devil: a {kind} neither needs a quiet "
            "neighbourhood nor disturbs one."
        )
    elif any(amount.neighbourhood != units for amount in asked):
        yield f"{Key.INTERFERENCE_CLASS}={kind} needs {resource}={units} in each of its groups."
    elif units == names.WHOLE_NEIGHBOURHOOD and not request.managed:
        yield (
            f"{resource}={units} and {Key.MANAGED}=false exclude each other: floating servers are kept out of the "
            "neighbourhood of managed servers only."
        )
    elif not request.numa_nodes:
        yield (
            f"{resource} needs {NUMA_NODES}: it is counted in the L3 domain of each NUMA node of the server, and one "
            "that floats over the host has none."
        )
    elif len(asked) < len(request.l3):
        others = ", ".join(f"resources{a.group}" for a in request.l3 if not a.neighbourhood)
        yield (
            f"{others}: {resource} must stand in each group with {names.LLC_WAY} or {names.MEMORY_BANDWIDTH_MBPS}, so "
            "that they come from the same L3 domain."
        )
    elif len(asked) != request.numa_nodes:
        yield (
            f"{NUMA_NODES}={request.numa_nodes} with {resource} in {len(asked)} groups: each NUMA node needs it in a "
            f"group of its own, such as resources_N0:{resource} and resources_N1:{resource}."
        )
