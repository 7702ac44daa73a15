# SPDX-License-Identifier: Apache-2.0
"""Which writes take back what this project has done to resctrl: bandwidth levels alone, or all of it. Pure."""

from collections.abc import Sequence

from host_agent.model.partition import Write, WriteKind, schemata_write
from host_agent.model.rdt import (
    ROOT_GROUP,
    SHAREABLE_MODE,
    Actual,
    BandwidthUnit,
    CacheControl,
    Capabilities,
    GroupState,
    Schemata,
)


def release_writes(capabilities: Capabilities, actual: Actual) -> tuple[Write, ...]:
    """List what gives all our groups all memory bandwidth, and nothing that is already so."""
    bandwidth = capabilities.bandwidth
    if bandwidth is None or bandwidth.unit is BandwidthUnit.MBPS:  # then the levels are not ours
        return ()
    target = {"MB": dict.fromkeys(bandwidth.domains, bandwidth.max_bandwidth)}
    return tuple(
        write
        for group in actual.ours
        if (write := schemata_write(group.name, group.schemata, target))
    )


def reset_writes(
    capabilities: Capabilities, actual: Actual, found: Schemata | None
) -> tuple[Write, ...]:
    """List what removes our groups and gives root its ways back.

    :param found: root's masks where they were shrunk; None when that is not known: then root gets all ways that no
        foreign group holds exclusively
    """
    writes = [Write(WriteKind.REMOVE_GROUP, group.name) for group in actual.ours]
    writes += [
        Write(WriteKind.REMOVE_MONITOR, ROOT_GROUP, monitor) for monitor in actual.root.our_monitors
    ]
    if found is None:
        found = {
            cache.name: dict.fromkeys(cache.domains, cache.cbm_mask) for cache in capabilities.l3
        }
    target = {
        cache.name: {
            domain: _widest(cache, domain, mask, actual.foreign)
            for domain, mask in found.get(cache.name, {}).items()
        }
        for cache in capabilities.l3
    }
    masks = schemata_write(ROOT_GROUP, actual.root.schemata, target)
    return (*writes, masks) if masks else tuple(writes)


def _widest(cache: CacheControl, domain: int, mask: int, foreign: Sequence[GroupState]) -> int:
    """Return the longest run of ``mask``'s ways that no foreign group holds exclusively: all where there is none."""
    free = mask
    for group in foreign:
        if group.mode != SHAREABLE_MODE:
            free &= ~group.schemata.get(cache.name, {}).get(domain, 0)
    if free == mask:
        return mask  # the mask that was there, with holes if it had some
    runs = []
    while free:
        run = free & ~(free + (free & -free))
        runs.append(run)
        free &= ~run
    return max(runs, key=int.bit_count, default=mask)
