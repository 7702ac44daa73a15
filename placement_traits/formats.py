# SPDX-License-Identifier: Apache-2.0
"""Formats: in which words a host is published, so that releases that differ know it of each other.

The agent puts ``CUSTOM_NUMA_EXT_FORMAT_2`` on nova's root; a host without such a trait speaks the first format. An
agent of the first format takes the trait away, as all of our traits that it does not know: a downgrade needs nothing.

The number rises when a reader of the format before would decide wrongly, not when something is added that it can do
without. So a reader understands every number up to its own, and what a later one says may mean something else: the
controllers are upgraded before agents that speak it (``numa-ext-status upgrade check``).

====== ===============================================================================================================
format what is published
====== ===============================================================================================================
1      ways, classes of service, bandwidth, shape, tiers, neighbours as traits
2      also ``CUSTOM_LLC_NEIGHBOURHOOD``, which strict servers claim, the probe, CPUs of shared nodes, what is observed
====== ===============================================================================================================
"""

from collections.abc import Iterable
from typing import Final

from placement_traits import names

CURRENT: Final = 2
"""What this release publishes, and the last one that it reads."""

FIRST: Final = 1

TRAIT: Final = names.numbered("FORMAT", CURRENT)


def of(root_traits: Iterable[str]) -> int:
    """Return the format in which a host is published.

    :param root_traits: of nova's root provider; of several formats, which a crash may leave, the last one counts
    """
    found = (names.parse_numbered(trait) for trait in root_traits)
    return max((number for kind, number in filter(None, found) if kind == "FORMAT"), default=FIRST)
