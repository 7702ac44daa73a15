# SPDX-License-Identifier: Apache-2.0
"""Why a lease of a remote GPU is where it is: the terms of its reasons, each with the sentence for people.

None of them names a host or another project: tenants may read them.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits import reason as reasons
from placement_traits.reason import Reason


class LeaseTerm(StrEnum):
    """Reasons of a lease's state."""

    ASKED = "asked"
    HELD = "held"
    NO_GPU = "no_gpu"
    RELEASED = "released"


LEASE_SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        LeaseTerm.ASKED: "asked for by {value}",
        LeaseTerm.HELD: "Placement holds what it needs",
        LeaseTerm.NO_GPU: "no GPU of a pool has {value} and {against} MiB left",
        LeaseTerm.RELEASED: "released by {value}",
    }
)


def lease_sentence(reason: Reason) -> str:
    """Return a reason as a sentence for people."""
    return reasons.sentence(reason, LEASE_SENTENCES)
