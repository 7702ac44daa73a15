# SPDX-License-Identifier: Apache-2.0
"""What scenarios ask of a cloud: allocations in Placement, what a host shows, why a server is where it is.

Commands are the task's (:mod:`nova_numa_ext.rally.asking`), credentials Rally's.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nova_numa_ext.policy.gpu.graph import GpuGraph, from_topology
from nova_numa_ext.rally import agreement, samples
from nova_numa_ext.rally.agreement import Facts, HeldAmounts
from nova_numa_ext.rally.asking import ask
from nova_numa_ext.rally.samples import Topic
from placement_traits.client import PlacementClient
from placement_traits.errors import NumaExtError
from placement_traits.reader import read_tree
from placement_traits.request import concerns_us
from placement_traits.tree import from_tree

COMMAND_S: Final = 240.0
_PAUSE_S: Final = 2.0
_EMPTY: Final[Facts] = {"domains": []}


class NotInTimeError(NumaExtError):
    """What a scenario waits for did not happen in time."""


@dataclass(frozen=True, slots=True)
class Commands:
    """How a task asks what the cloud's APIs do not tell; ``{host}`` and ``{server}`` are filled in.

    :param read_back: prints what ``devstack/lab/readback.py`` prints on a host
    :param explain: prints what ``numa-ext-explain -f json`` prints of a server
    """

    read_back: str
    explain: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with some servers, as sentences, and how much was looked at."""

    servers: int
    placement: tuple[str, ...]
    read_back: tuple[str, ...]
    pairs: int
    shared_ways: int

    def charts(self) -> list[dict[str, Any]]:
        """Return the samples."""
        return [
            samples.chart(Topic.PLACEMENT, self.servers, _servers(self.placement)),
            samples.chart(Topic.READ_BACK, self.servers, _servers(self.read_back)),
            samples.chart(Topic.OVERLAP, self.pairs, self.shared_ways),
        ]

    def sentences(self) -> list[str]:
        """Return all that is wrong."""
        shared = [f"{self.shared_ways} L3 ways are shared"] if self.shared_ways else []
        return [*self.placement, *self.read_back, *shared]


def _servers(sentences: Iterable[str]) -> int:
    """Number of servers that sentences are about; each begins with the server."""
    return len({sentence.partition(":")[0] for sentence in sentences})


class CloudChecks:
    """Placement and the task's commands.

    :param placement: a keystoneauth adapter of Placement, the administrator's
    """

    def __init__(
        self,
        placement: Any,
        commands: Commands,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._placement = PlacementClient(placement)
        self._commands = commands
        self._clock = clock
        self._sleep = sleep

    def held(
        self, uuid: str, host: str, extra_specs: Mapping[str, str] | None = None
    ) -> HeldAmounts:
        """Return what Placement counts for a server.

        :param host: where nova says that it is
        :param extra_specs: of its flavor; None: nova does not show them, the flavor is taken for one of ours
        """
        allocations = self._placement.get(f"/allocations/{uuid}")["allocations"]
        amounts = {
            self._placement.get(f"/resource_providers/{provider}")["name"]: entry["resources"]
            for provider, entry in allocations.items()
        }
        decided = extra_specs is None or concerns_us(extra_specs)
        return HeldAmounts(uuid, host, amounts, frozenset(allocations), decided)

    def read_back(self, host: str) -> Facts:
        """Return what a host shows."""
        facts: Facts = ask(self._commands.read_back, COMMAND_S, host=host)
        return facts

    def explained(self, uuid: str) -> Sequence[Mapping[str, Any]]:
        """Return the decisions about a server; none where the command finds none."""
        found = ask(self._commands.explain, COMMAND_S, server=uuid)
        # A server without a decision is answered by a what-if: rows of hosts, or the flavor's problems.
        return [one for one in found if "filter" in one] if isinstance(found, list) else []

    def settled(self, servers: Sequence[HeldAmounts], within_s: float) -> dict[str, Facts]:
        """Read back the hosts of servers until all of them do what was allocated, or the time is over.

        :returns: what each host showed last
        """
        by_host: dict[str, list[HeldAmounts]] = defaultdict(list)
        for server in servers:
            by_host[server.host].append(server)
        deadline = self._clock() + within_s
        facts: dict[str, Facts] = {}
        while True:
            for host, here in by_host.items():
                if host not in facts or _wrong(here, facts[host]):
                    facts[host] = self.read_back(host)
            late = any(_wrong(here, facts[host]) for host, here in by_host.items())
            if not late or self._clock() >= deadline:
                return facts
            self._sleep(_PAUSE_S)

    def findings(self, servers: Sequence[HeldAmounts], facts: Mapping[str, Facts]) -> Findings:
        """Hold decision, allocation and host of some servers against each other.

        :param facts: what each of their hosts shows
        """
        placement: list[str] = []
        read_back: list[str] = []
        for server in servers:
            shown = facts[server.host]
            placement += agreement.placement_faults(server, self.explained(server.uuid), shown)
            read_back += agreement.read_back_faults(server, shown)
        shared = [
            agreement.shared_ways([one for one in servers if one.host == host], shown)
            for host, shown in facts.items()
        ]
        return Findings(
            len(servers),
            tuple(placement),
            tuple(read_back),
            sum(pairs for pairs, _ in shared),
            sum(ways for _, ways in shared),
        )

    def left(
        self, gone: Sequence[HeldAmounts], before: Mapping[str, Facts], within_s: float
    ) -> tuple[str, ...]:
        """Return what is left of deleted servers, once nothing is or the time is over.

        :param before: what their hosts showed while they ran, as far as that was looked at
        """

        def look() -> Iterator[str]:
            for host in sorted({server.host for server in gone}):
                here = [server for server in gone if server.host == host]
                allocated = {one.uuid: tuple(self.held(one.uuid, host).amounts) for one in here}
                shown = before.get(host, _EMPTY)
                yield from agreement.orphans(here, shown, self.read_back(host), allocated)

        return self._until_nothing(look, within_s)

    def left_behind(self, moved: HeldAmounts, before: Facts, within_s: float) -> tuple[str, ...]:
        """Return what is left on the old host of a server that has moved, once nothing is or the time is over.

        :param moved: as it was on the old host
        :param before: what that host showed
        """

        def look() -> Iterator[str]:
            yield from agreement.orphans([moved], before, self.read_back(moved.host), {})

        return self._until_nothing(look, within_s)

    def _until_nothing(self, look: Callable[[], Iterator[str]], within_s: float) -> tuple[str, ...]:
        deadline = self._clock() + within_s
        while True:
            sentences = tuple(look())
            if not sentences or self._clock() >= deadline:
                return sentences
            self._sleep(_PAUSE_S)

    def consumers(self, project: str) -> int:
        """Return how many servers of a project Placement counts something for."""
        usages = self._placement.get(f"/usages?project_id={project}")["usages"]
        return sum(int(of_type["consumer_count"]) for of_type in usages.values())

    def wait_for_consumers(self, project: str, count: int, within_s: float) -> None:
        """Wait until Placement counts something for so many servers of a project: they have been scheduled.

        :raises NotInTimeError: they are not
        """
        deadline = self._clock() + within_s
        while (found := self.consumers(project)) < count:
            if self._clock() >= deadline:
                raise NotInTimeError(
                    f"{found} of {count} servers were scheduled within {within_s:g} s"
                )
            self._sleep(0.01)

    def gpus(self, host: str) -> GpuGraph:
        """Return the GPUs of a host with their distances, as its agent has published them."""
        return from_topology(from_tree(read_tree(self._placement, host)).topology)


def _wrong(servers: Iterable[HeldAmounts], facts: Facts) -> bool:
    return any(agreement.read_back_faults(server, facts) for server in servers)
