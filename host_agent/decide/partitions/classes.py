# SPDX-License-Identifier: Apache-2.0
"""Which best-effort servers share a class of service, when there are fewer classes than servers. Pure.

Every server has a class of its own while there are any. Then the two classes are merged that lose least bandwidth by
it: in each L3 domain a class has the lowest level of its members that run there, so that an LC is never hurt by a
merge. When classes become free again, the server that wins most gets one of its own. Servers that share a class go on
sharing it otherwise.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain, combinations, count, islice
from typing import Final

from host_agent.model.partition import PartitionRequest
from host_agent.model.rdt import GROUP_PREFIX

BE_PREFIX: Final = f"{GROUP_PREFIX}be-"


@dataclass(frozen=True, slots=True)
class BeClass:
    """BE servers that share a control group; ``name`` is "" until one is given."""

    name: str
    members: tuple[PartitionRequest, ...]

    def levels(self) -> dict[int, int]:
        """L3 domain -> percent: the lowest level of the members that run there."""
        found: dict[int, int] = {}
        for member in self.members:
            for domain, level in member.levels.items():
                found[domain] = min(found.get(domain, level), level)
        return found

    def loss(self) -> int:
        """Percent points of bandwidth that the members lose by sharing one level per domain."""
        lowest = self.levels()
        return sum(
            level - lowest[domain]
            for member in self.members
            for domain, level in member.levels.items()
        )

    def joined(self, other: "BeClass") -> "BeClass":
        names = sorted(filter(None, (self.name, other.name)))
        members = sorted((*self.members, *other.members), key=lambda one: one.uuid)
        return BeClass(names[0] if names else "", tuple(members))


def distribute(
    members: Sequence[PartitionRequest],
    group_of: Mapping[str, str],
    there: Collection[str],
    budget: int,
) -> list[BeClass]:
    """Distribute servers over at most ``budget`` classes, starting from the classes they are in.

    :param members: by uuid, any order
    :param group_of: uuid -> name of the class that the server is in, as far as known
    :param there: names of the classes there are
    :param budget: > 0
    :returns: classes with names, by name
    """
    together: dict[str, list[PartitionRequest]] = {}
    for member in sorted(members, key=lambda member: member.uuid):
        group = group_of.get(member.uuid, "")
        together.setdefault(group if group in there else member.uuid, []).append(member)
    classes = [
        BeClass(key if key in there else "", tuple(those))
        for key, those in sorted(together.items())
    ]
    while len(classes) < min(budget, len(members)):
        classes = _split_one(classes)
    return _named(_merged(classes, budget), there)


def _named(classes: list[BeClass], there: Collection[str]) -> list[BeClass]:
    """Give names to classes without: those of idle groups first (no CLOSID changes hands), then new ones."""
    claimed = {be_class.name for be_class in classes}
    idle = sorted((name for name in there if name not in claimed), key=_number)
    fresh = (name for n in count() if (name := f"{BE_PREFIX}{n}") not in there)
    nameless = sorted((c for c in classes if not c.name), key=lambda c: c.members[0].uuid)
    names = sorted(islice(chain(idle, fresh), len(nameless)), key=_number)
    named = [BeClass(name, c.members) for name, c in zip(names, nameless, strict=True)]
    return sorted((*(c for c in classes if c.name), *named), key=lambda c: _number(c.name))


def _number(name: str) -> tuple[int, str]:
    """Sort key of a class name: ``be-9`` before ``be-10``."""
    tail = name.removeprefix(BE_PREFIX)
    return (int(tail) if tail.isdecimal() else 0, name)


def _split_one(classes: list[BeClass]) -> list[BeClass]:
    """Give the member that wins most by it a class of its own."""
    found = []
    for index, be_class in enumerate(classes):
        for member in be_class.members if len(be_class.members) > 1 else ():
            rest = BeClass(be_class.name, tuple(m for m in be_class.members if m is not member))
            found.append((rest.loss() - be_class.loss(), index, member.uuid, rest, member))
    _, index, _, rest, member = min(found, key=lambda entry: entry[:3])
    return [*classes[:index], rest, *classes[index + 1 :], BeClass("", (member,))]


def _merged(classes: list[BeClass], budget: int) -> list[BeClass]:
    """Join the two classes that lose least bandwidth by it, existing ones and smaller ones first, until few are left.

    What a pair would lose is computed once and waits in a heap; a pair of which one has been joined since is passed
    over.
    """
    alive = dict(enumerate(classes))
    losses = {number: be_class.loss() for number, be_class in alive.items()}

    def cost(a: int, b: int) -> tuple[int, int, list[str], int, int]:
        joined = alive[a].joined(alive[b])
        uuids = [member.uuid for member in joined.members]
        return joined.loss() - losses[a] - losses[b], len(uuids), uuids, a, b

    heap = [cost(a, b) for a, b in combinations(alive, 2)]
    heapify(heap)
    for number in range(len(classes), 2 * len(classes) - budget):
        while True:
            *_, a, b = heappop(heap)
            if a in alive and b in alive:
                break
        others = alive.keys() - {a, b}
        alive[number] = alive[a].joined(alive[b])
        losses[number] = alive[number].loss()
        del alive[a], alive[b]
        for other in others:
            heappush(heap, cost(other, number))
    return list(alive.values())
