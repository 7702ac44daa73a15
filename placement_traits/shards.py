# SPDX-License-Identifier: Apache-2.0
"""Shards of the fleet: how one question about all hosts becomes several, each with few enough answers. Pure.

``[placement]max_allocation_candidates`` limits how many hosts one query of candidates shows. So each host says by two
traits, beside the probe, which sixteenth of the fleet it belongs to, and which sixteenth of that; both follow from its
name. From the names alone the view knows how many hosts a query over some shards shows, and asks for no more than the
limit.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final, NamedTuple

from placement_traits import names

SHARDS: Final = 16


class Shard(NamedTuple):
    """A sixteenth of the fleet, and a sixteenth of that."""

    number: int
    sub: int

    @property
    def traits(self) -> tuple[str, str]:
        """The traits that a host of this shard publishes."""
        return names.numbered("SHARD", self.number), names.numbered("SUBSHARD", self.sub)


def shard_of(host: str) -> Shard:
    """Return the shard of a host.

    :param host: name of nova's root provider
    """
    (octet,) = hashlib.blake2b(host.encode(), digest_size=1).digest()
    return Shard(*divmod(octet, SHARDS))


def all_traits() -> tuple[str, ...]:
    """Return the traits of all shards."""
    return tuple(names.numbered(k, n) for k in ("SHARD", "SUBSHARD") for n in range(SHARDS))


@dataclass(frozen=True, slots=True)
class ShardSet:
    """Several shards that one query asks for: each of some sixteenths with each of some sixteenths of them.

    :param numbers: ascending
    :param subs: ascending
    """

    numbers: tuple[int, ...]
    subs: tuple[int, ...]

    def __contains__(self, shard: Shard) -> bool:
        return shard.number in self.numbers and shard.sub in self.subs

    @property
    def query(self) -> str:
        """Parameters of a query of candidates."""
        kinds = (("SHARD", self.numbers), ("SUBSHARD", self.subs))
        return "".join(
            f"&required=in:{','.join(names.numbered(kind, number) for number in numbers)}"
            for kind, numbers in kinds
        )


def parts(shards: Iterable[Shard], limit: int) -> tuple[ShardSet, ...]:
    """Divide hosts into as few queries as there need be.

    The sub-shards are divided into 1 to 16 equal ranges; within each range the shards are packed, the largest first,
    each where it still fits. The division with the fewest queries is taken.

    :param shards: of all hosts; only these shards are asked for
    :param limit: most hosts of one query, >= 1; a shard that is larger alone is a query of its own
    """
    counts = Counter(shards)
    divisions = [_divided(counts, ranges, limit) for ranges in range(1, SHARDS + 1)]
    fitting = [
        division for division in divisions if all(_size(counts, part) <= limit for part in division)
    ]
    return min(fitting or divisions[-1:], key=len)


def _divided(counts: Counter[Shard], ranges: int, limit: int) -> tuple[ShardSet, ...]:
    bounds = [SHARDS * edge // ranges for edge in range(ranges + 1)]
    found = []
    for start, end in pairwise(bounds):
        used = tuple(sub for sub in range(start, end) if any(each.sub == sub for each in counts))
        sizes = {
            number: size
            for number in range(SHARDS)
            if (size := sum(counts[Shard(number, sub)] for sub in used))
        }
        found += [ShardSet(numbers, used) for numbers in _packed(sizes, limit)]
    return tuple(found)


def _packed(sizes: dict[int, int], limit: int) -> list[tuple[int, ...]]:
    """First fit, decreasing."""
    bins: list[tuple[int, list[int]]] = []
    for number, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        for at, (taken, numbers) in enumerate(bins):
            if taken + size <= limit:
                bins[at] = taken + size, [*numbers, number]
                break
        else:
            bins.append((size, [number]))
    return [tuple(sorted(numbers)) for _taken, numbers in bins]


def _size(counts: Counter[Shard], part: ShardSet) -> int:
    return sum(counts[Shard(number, sub)] for number, sub in product(part.numbers, part.subs))
