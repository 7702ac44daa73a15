# SPDX-License-Identifier: Apache-2.0
"""Whether any host has room for one more server of a flavor, by Placement: asked before nova is asked for the server.

Placement is asked for less than nova asks it for, so where it has no host, nova finds none either: CPUs, memory, and
the amounts that the flavor's extra specs name. Whether CPUs are shared, dedicated or both an image may say where the
flavor does not, so all three are tried; where no host has dedicated CPUs nova tries shared ones. Disks are left out,
for an image may bring a volume, and so are traits, aggregates, policies of server groups and all that filters know:
nova decides.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final
from urllib.parse import quote

from nova_numa_ext.orchestrator.cloud.servers import AnswerError, UserServers
from nova_numa_ext.policy.numa.nova_part import FlavorSizes
from placement_traits import names
from placement_traits.amounts import RESOURCE_KEY, parse_amount
from placement_traits.client import PlacementClient, PlacementError

_POLICY: Final = "group_policy"

Amounts = Mapping[str, int]
"""By resource class."""


class ServerRoom:
    """Asks Placement for room.

    :param client: with the role ``service`` or ``admin``; a decision waits for it
    """

    def __init__(self, client: PlacementClient) -> None:
        self._client = client

    def lacking(self, servers: UserServers, flavor: str) -> str:
        """Return what no host has for a server of a flavor; '' where one may have it, or Placement cannot be asked so.

        :param servers: nova, as who may use the flavor
        :param flavor: its id
        :raises ServiceUnavailableError: nova or Placement does not answer
        """
        try:
            sizes, specs = servers.flavor(flavor)
            asked = wants(sizes, specs)
            for each in asked:
                found = self._client.get(_path(each, specs.get(_POLICY, "none")))
                if found["allocation_requests"]:
                    return ""
        except (AnswerError, PlacementError):
            return ""  # what is wrong with the flavor nova says, when it is asked for the server
        return ", ".join(f"{amount} {name}" for name, amount in _all(asked[0]))


def wants(sizes: FlavorSizes, specs: Mapping[str, str]) -> tuple[Mapping[str, Amounts], ...]:
    """Return what a server may take of a host, by request group; the unnumbered group is ''. One of these has to fit.

    :param sizes: of its flavor; disks do not count
    :param specs: extra specs of it
    """
    named: dict[str, dict[str, int]] = {}
    for key, value in specs.items():
        match, amount = RESOURCE_KEY.match(key), parse_amount(value)
        if match is not None and amount is not None:
            named.setdefault(match["group"], {})[match["resource"]] = amount
    of_root, memory = named.pop("", {}), {names.MEMORY_MB: sizes.memory_mb}
    groups = {name: given for name, each in named.items() if (given := _given(each))}
    return tuple(
        {"": _given({**cpus, **memory, **of_root}), **groups}
        for cpus in _cpus(sizes.vcpus, specs.get("hw:cpu_policy", ""))
    )


def _cpus(count: int, policy: str) -> Sequence[Amounts]:
    """Return what may be asked of CPUs: of both kinds at least one each, for the image may say how many."""
    shared: Amounts = {names.VCPU: count}
    dedicated: Amounts = {names.PCPU: count}
    both: Sequence[Amounts] = [{names.VCPU: 1, names.PCPU: 1}] if count > 1 else []
    match policy:
        case "shared":
            return [shared]
        case "dedicated":
            return [dedicated, shared]
        case "mixed":
            return both or [shared]
        case _:
            return [shared, dedicated, *both]


def _given(amounts: Amounts) -> dict[str, int]:
    """Leave out what is 0: nova does not ask for it."""
    return {name: amount for name, amount in amounts.items() if amount}


def _all(groups: Mapping[str, Amounts]) -> Iterable[tuple[str, int]]:
    return chain.from_iterable(each.items() for each in groups.values())


def _path(groups: Mapping[str, Amounts], policy: str) -> str:
    words = ["limit=1"]
    for group, amounts in groups.items():
        text = ",".join(f"{name}:{amount}" for name, amount in amounts.items())
        words += [f"resources{group}={text}"] if text else []
    if len(groups) > 2:  # Placement wants to know it of more than one numbered group
        words.append(f"{_POLICY}={quote(policy, safe='')}")
    return f"/allocation_candidates?{'&'.join(words)}"
