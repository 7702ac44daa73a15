# SPDX-License-Identifier: Apache-2.0
"""What a consumer of our own holds in Placement, as a value: nothing is read or written here.

:class:`placement_traits.claim_store.ClaimStore` reads and writes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

Amounts = Mapping[str, Mapping[str, int]]
"""Provider's uuid -> resource class -> amount."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one consumer of ours holds, or should hold.

    :param consumer: its uuid
    :param type: its type; ours begin with :data:`placement_traits.names.CONSUMER_TYPE_PREFIX`
    :param project: for whom: Placement counts usage by it
    :param user: for whom
    :param amounts: {}: it holds nothing
    :param generation: under which it was read, None: it held nothing
    """

    consumer: str
    type: str
    project: str
    user: str
    amounts: Amounts
    generation: int | None = None


def emptied(claim: Claim) -> Claim:
    """Return a claim that holds nothing any more."""
    return replace(claim, amounts={})
