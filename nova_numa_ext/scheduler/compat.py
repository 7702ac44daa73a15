# SPDX-License-Identifier: Apache-2.0
"""What differs between the releases of nova that we run with: 33 (2026.1) and 34 (2026.2).

The release is that of nova-scheduler. While computes are still of the older release (nova upgrades controllers first),
their choice of NUMA cells may differ from the prediction; then the host wins, and numa-ext-heal moves our part of the
allocation.

It is recognised by nova's service version, which is in nova's code. The version of the package is made of git tags: a
build without them is 0.0.1, and one of nova's master branch is 33.1 until 34 is tagged.
"""

from collections.abc import Mapping
from typing import Final

from nova.objects import service

_LAST_OF_33: Final = 72  # "Gazpacho" in nova.objects.service.SERVICE_VERSION_ALIASES


def release_of(service_version: int) -> int:
    """Return nova's major release number, 33 or 34, by the service version of its code."""
    return 33 if service_version <= _LAST_OF_33 else 34


RELEASE: Final = release_of(service.SERVICE_VERSION)
"""Nova's major release number."""

_CLAIM_AVOIDS_DEVICES: Final = 34


def devices_in_claim(
    free: Mapping[int | None, int] | None, *, requested: bool, release: int = RELEASE
) -> Mapping[int | None, int] | None:
    """Return the free PCI devices that nova-compute considers when it picks a guest's cells, None for not at all.

    Nova 33's claim looks at devices only for a guest that requests one; since nova 34 it also keeps the others away
    from them, as nova-scheduler always did (bug 2144660, ``nova/compute/claims.py``).

    :param free: free devices by NUMA node
    :param requested: the guest requests a device
    """
    return free if requested or release >= _CLAIM_AVOIDS_DEVICES else None


def device_order(*, requested: bool, release: int = RELEASE) -> int:
    """Return 1 where nova-compute tries NUMA cells with few free PCI devices first, -1 with many, 0 for neither.

    :param requested: the guest requests a device
    """
    if requested:
        return -1
    return int(devices_in_claim({}, requested=False, release=release) is not None)
