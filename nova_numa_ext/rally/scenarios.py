# SPDX-License-Identifier: Apache-2.0
"""Scenarios. Each deletes its servers; what it finds goes to the SLAs as samples, and in words into the report."""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from rally.task import atomic, scenario, types, validation
from rally_openstack.common import consts

from nova_numa_ext.characterisation import profiles
from nova_numa_ext.characterisation.campaign import MeasuredRun, measure, same_sockets
from nova_numa_ext.characterisation.plan import Experiment, Surroundings, experiments
from nova_numa_ext.cli.fleet import what_if
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.gpu.graph import GpuGraph
from nova_numa_ext.policy.network.pairs import PlacedGroup
from nova_numa_ext.rally import agreement, group_checks, lease_checks, samples
from nova_numa_ext.rally.agreement import Facts, HeldAmounts
from nova_numa_ext.rally.asking import ask
from nova_numa_ext.rally.cloud_checks import COMMAND_S, CloudChecks
from nova_numa_ext.rally.elastic_checks import ElasticChecks, networks, of_group
from nova_numa_ext.rally.figures import WHAT_IF
from nova_numa_ext.rally.group_checks import SharingFindings
from nova_numa_ext.rally.lease_checks import LeaseChecks, WatchedMove
from nova_numa_ext.rally.load_sequence import sessions as drawn_sessions
from nova_numa_ext.rally.samples import Topic
from nova_numa_ext.rally.servers import NumaScenario
from placement_traits.request import parse

_SETTLE_S: Final = 420.0
_CLEANUP: Final = {"cleanup@openstack": ["nova"]}

_Plugin = TypeVar("_Plugin", bound=type[NumaScenario])


def _of_servers(*, name: str) -> Callable[[_Plugin], _Plugin]:
    """Make a class a scenario that needs nova, administrator and users, and whose servers Rally deletes in the end."""
    decorators: tuple[Callable[[_Plugin], _Plugin], ...] = (
        scenario.configure(name=name, platform="openstack", context=_CLEANUP),
        validation.add("required_platform", platform="openstack", admin=True, users=True),
        validation.add("required_services", services=[consts.Service.NOVA]),
        types.convert(image={"type": "glance_image"}),
    )

    def made(plugin: _Plugin) -> _Plugin:
        for decorate in decorators:
            plugin = decorate(plugin)
        return plugin

    return made


@_of_servers(name="NumaExt.boot_and_check_placement")
class BootAndCheckPlacement(NumaScenario):
    """Boot a mix of servers; decision, allocation and host must tell the same of each."""

    def run(
        self,
        image: Any,
        flavors: list[str],
        read_back: str,
        explain: str,
        settle_s: float = _SETTLE_S,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Boot a server of each flavor, examine all of them together, delete them.

        :param image: image of the servers
        :param flavors: names, one for each server; the same may stand there several times
        :param read_back: command that prints what a {host} shows
        :param explain: command that prints the decisions about a {server}
        :param settle_s: how long hosts may take
        :param server: more arguments of each server's creation, such as nics
        """
        cloud = self._cloud(read_back, explain)
        with self._servers(server):
            servers = [self.boot(image, flavor) for flavor in flavors]
            held, facts = self._examine(cloud, servers, settle_s)
            self._gone(cloud, servers, held, facts, settle_s)


@_of_servers(name="NumaExt.churn")
class Churn(NumaScenario):
    """Boot and delete servers of a mix in drawn order; nothing overlaps, nothing is left."""

    def run(
        self,
        image: Any,
        flavors: list[str],
        steps: int,
        most: int,
        look_every: int,
        read_back: str,
        explain: str,
        seed: int = 0,
        settle_s: float = _SETTLE_S,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Boot or delete a server at each step, examine those that are there now and then, in the end delete them.

        :param image: image of the servers
        :param flavors: names from which is drawn
        :param steps: boots and deletions
        :param most: servers at once
        :param look_every: steps between two looks
        :param read_back: command that prints what a {host} shows
        :param explain: command that prints the decisions about a {server}
        :param seed: of the drawn order
        :param settle_s: how long hosts may take
        :param server: more arguments of each server's creation, such as nics
        """
        draw, cloud = random.Random(seed), self._cloud(read_back, explain)
        servers: list[Any] = []
        gone: list[HeldAmounts] = []
        with self._servers(server):
            for step in range(1, steps + 1):
                if servers and (len(servers) >= most or draw.random() < 0.4):
                    one = servers.pop(draw.randrange(len(servers)))
                    gone += self._held(cloud, [one])
                    self.delete(one)
                else:
                    servers.append(self.boot(image, draw.choice(list(flavors))))
                if step % look_every == 0 or step == steps:
                    held, facts = self._examine(cloud, servers, settle_s)
            self._gone(cloud, servers, held, facts, settle_s, earlier=gone)


@_of_servers(name="NumaExt.lc_under_be_noise")
class LatencyCriticalUnderNoise(NumaScenario):
    """A latency-critical server beside the noise of the context ``numa_ext_noise`` keeps its objective."""

    def run(
        self,
        image: Any,
        flavor: str,
        latencies: str,
        readings: int = 30,
        interval_s: float = 2.0,
        settle_s: float = _SETTLE_S,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Boot the server and read its 99th percentile a number of times, from the first on that the agent knows.

        :param image: image with a latency port whose guest reports
        :param flavor: name of a flavor with numa_ext:slo_p99_us
        :param latencies: command that prints, on a {host}, what numa-host-agent-ctl status -f json prints
        :param readings: how many
        :param interval_s: between two
        :param settle_s: how long the first may take
        :param server: more arguments of the server's creation, such as nics
        """
        above = seen = 0
        with self._servers(server):
            booted = self.boot(image, flavor)
            host, deadline = self._host_of(booted), time.monotonic() + settle_s
            while seen < readings and (seen or time.monotonic() < deadline):
                found = agreement.latency(ask(latencies, COMMAND_S, host=host), booted.id)
                if found is not None:
                    seen, above = seen + 1, above + (found[0] > found[1])
                elif seen:  # it has reported and does so no more
                    seen, above = seen + 1, above + 1
                time.sleep(interval_s)
        self.add_output(additive=samples.chart(Topic.OBJECTIVE, seen, above))


@_of_servers(name="NumaExt.schedule")
class Schedule(NumaScenario):
    """Time from a request for N servers until all N have their allocations."""

    def run(
        self,
        image: Any,
        flavor: str,
        count: int = 1,
        within_s: float = 120.0,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Request servers, wait until Placement counts something for each, delete them.

        :param image: image of the servers
        :param flavor: name of their flavor
        :param count: how many with one request
        :param within_s: how long scheduling may take
        :param server: more arguments of their creation, such as nics
        """
        with self._servers(server):
            self.schedule(image, flavor, count, within_s)


@_of_servers(name="NumaExt.explain_beside_scheduling")
class ExplainBesideScheduling(NumaScenario):
    """Time of a what-if over the fleet, beside that of nova's scheduling in the same run."""

    def run(
        self,
        image: Any,
        flavor: str,
        within_s: float = 120.0,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Ask every host what it lacks for a flavor, then have nova schedule one server of it.

        :param image: image of the server
        :param flavor: name of its flavor
        :param within_s: how long scheduling may take
        :param server: more arguments of its creation, such as nics
        """
        with self._servers(server):
            size = self._flavor(flavor)
            request = parse(size.get_keys(), vcpus=size.vcpus, memory_mb=size.ram)
            placement = self._adapter("placement")
            with atomic.ActionTimer(self, WHAT_IF):
                what_if(placement, request, flavor, options=SchedulerOptions(), aggregates={})
            self.schedule(image, flavor, 1, within_s)


@_of_servers(name="NumaExt.live_migrate_and_check")
class LiveMigrateAndCheck(NumaScenario):
    """Live-migrate a latency-critical server: its ways are those of the new host, its old group is gone."""

    def run(
        self,
        image: Any,
        flavor: str,
        read_back: str,
        explain: str,
        settle_s: float = _SETTLE_S,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Boot, let nova choose another host, examine both.

        :param image: image of the server
        :param flavor: name of its flavor
        :param read_back: command that prints what a {host} shows
        :param explain: command that prints the decisions about a {server}
        :param settle_s: how long hosts may take
        :param server: more arguments of the server's creation, such as nics
        """
        cloud = self._cloud(read_back, explain)
        with self._servers(server):
            booted = self.boot(image, flavor)
            (old,) = self._held(cloud, [booted])
            before = cloud.settled([old], settle_s)
            self._migrate(booted, settle_s)
            self._examine(cloud, [booted], settle_s)
            left = cloud.left_behind(old, before[old.host], settle_s)
            self.add_output(additive=samples.chart(Topic.ORPHANS, 1, len(left)))
            self._add_text("What is left on the old host", left)


@_of_servers(name="NumaExt.boot_and_delete")
class BootAndDelete(NumaScenario):
    """Boot a server and delete it: with a runner of growing concurrency, the sweep of F-000-40."""

    def run(self, image: Any, flavor: str, server: dict[str, Any] | None = None) -> None:
        """Boot, delete.

        :param image: image of the server
        :param flavor: name of its flavor
        :param server: more arguments of its creation, such as nics
        """
        with self._servers(server):
            self.boot(image, flavor)


@_of_servers(name="NumaExt.poisson_arrivals")
class PoissonArrivals(NumaScenario):
    """Servers of a mix arrive by a Poisson process and stay for a while (F-000-44)."""

    def run(
        self,
        image: Any,
        flavors: list[str],
        rate_per_min: float,
        arrivals: int,
        stay_s: float,
        seed: int = 0,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Boot servers when they arrive, delete each after its stay.

        An arrival waits while the one before is booting: then it is late, which the report shows.

        :param image: image of the servers
        :param flavors: names from which is drawn, such as table 7's mix of one and two GPUs
        :param rate_per_min: mean arrivals per minute
        :param arrivals: how many
        :param stay_s: how long each server stays
        :param seed: of arrivals and flavors
        :param server: more arguments of each server's creation, such as nics
        """
        draw, late_s, arrives_s = random.Random(seed), 0.0, 0.0
        there: list[tuple[float, Any]] = []
        with self._servers(server):
            began = time.monotonic()
            for _ in range(arrivals):
                arrives_s += draw.expovariate(rate_per_min / 60.0)
                gone = [each for each in there if each[0] <= time.monotonic() - began]
                self.delete(*(one for _, one in gone))
                there = [each for each in there if each not in gone]
                time.sleep(max(0.0, arrives_s - (time.monotonic() - began)))
                late_s = max(late_s, time.monotonic() - began - arrives_s)
                booted = self.boot(image, draw.choice(list(flavors)))
                there.append((time.monotonic() - began + stay_s, booted))
        self._add_text(
            "Arrivals", [f"{arrivals} servers arrived; the latest was {late_s:.1f} s late"]
        )


@_of_servers(name="NumaExt.follow_load")
class FollowLoad(NumaScenario):
    """An elastic group comes to the size that each load needs, and never leaves its limits (F-004-47)."""

    def run(
        self,
        image: Any,
        flavor: str,
        load: str,
        source: dict[str, Any],
        settings: dict[str, Any],
        training: list[float],
        loads: list[list[float]],
        within_s: float = 900.0,
        hook: str = "",
        server: dict[str, Any] | None = None,
    ) -> None:
        """Boot the least of servers, have the group enforced after its training, put loads on it, delete all.

        The group is the administrator's: who sets a group gives the service a trust for its project.

        :param image: image of the servers, the added ones, too
        :param flavor: name of their flavor
        :param load: command that puts {operations} per second on the {members} of a {group}
        :param source: as of the API; {group} in it stands for the group's uuid
        :param settings: as of the API
        :param training: loads that the first servers carry, a period each, before the group is set
        :param loads: pairs: operations per second, and the servers that they need
        :param within_s: how long the group may take to come to its size
        :param hook: of the group, "" without
        :param server: more arguments of the first servers' creation, such as nics; added ones take the nics
        """
        sized = ScalingSettings(**{key: settings[key] for key in settings if key != "granularity"})
        jobs = self._jobs()
        with self._servers(server, as_admin=True), self._server_group() as group:
            users = frozenset(self.boot(image, flavor).id for _ in range(sized.least))
            there = partial(self._in_group, group)
            checks = ElasticChecks(jobs, group, there, users=users, settings=sized, load=load)
            checks.teach(training)
            enforce = {"flavor": flavor, "image": image, "networks": networks(server), "hook": hook}
            asked = {"settings": settings, "source": of_group(source, group), "enforce": enforce}
            jobs.set_scaling(group, asked)
            try:
                for operations, members in loads:
                    with atomic.ActionTimer(self, "numa_ext.follow_load"):
                        checks.follow(operations, int(members), within_s)
                checks.judge_steps()
                strays = checks.strays(within_s)
            finally:
                jobs.delete_scaling(group)
        for chart in checks.found.charts():
            self.add_output(additive=chart)
        self.add_output(additive=samples.chart(Topic.ORPHANS, len(loads), len(strays)))
        self._add_text("What is wrong", checks.found.sentences())
        self._add_text("Servers in the group that are not its user's nor the service's", strays)


@_of_servers(name="NumaExt.place_groups")
class PlaceGroups(NumaScenario):
    """Groups are on a fabric at the same time: who shares uplinks with whom (F-003-40)."""

    def run(
        self,
        image: Any,
        flavor: str,
        groups: list[int],
        topology: str,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Place groups one after the other, look where they are when all are there, delete them.

        :param image: image of the servers
        :param flavor: name of their flavor, which has a key for groups
        :param groups: how many servers each has
        :param topology: command that prints the nodes above the servers of a {group}, the leaf first
        :param server: more arguments of each server's creation, such as nics
        """
        there: list[PlacedGroup] = []
        with self._servers(server), ExitStack() as stack:
            for number, size in enumerate(groups):
                group = stack.enter_context(self._server_group("anti-affinity"))
                asked = time.monotonic()
                with atomic.ActionTimer(self, "numa_ext.place_group"):
                    self.boot_together(image, flavor, size)
                whole = time.monotonic()
                rows = ask(topology, COMMAND_S, group=group)
                there.append(group_checks.placed(f"group {number}", rows, asked, whole))
            found = SharingFindings.of(there)
        self.add_output(additive=found.chart())
        self._add_table("Groups on the fabric", group_checks.COLUMNS, found.rows())
        self._add_text("Sharing", [found.sentence()])


@_of_servers(name="NumaExt.use_remote_gpu")
class UseRemoteGpu(NumaScenario):
    """Servers use remote GPUs one after another, with gaps between them: a load that a seed repeats (F-002-91, 93)."""

    def run(
        self,
        image: Any,
        flavors: list[str],
        sessions: int = 1,
        gaps_s: list[float] | None = None,
        seed: int = 0,
        ended: str = "",
        within_s: float = 600.0,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Boot a server, wait for its leases and the end of its work, delete it, and wait before the next.

        :param image: image of the servers
        :param flavors: names of flavors with numa_ext:remote_gpu_memory_mb, in random order
        :param sessions: how many servers
        :param gaps_s: seconds from the end of one to the start of the next, in random order; [0] where left out
        :param seed: of both orders
        :param ended: regular expression of what a server's console has at the end of its work; "": it does none
        :param within_s: how long leases, and that work, may take
        :param server: more arguments of each server's creation, such as nics
        """
        checks = LeaseChecks(self._jobs())
        order = drawn_sessions(flavors, gaps_s or [0.0], sessions, seed)
        left: list[str] = []
        with self._servers(server):
            for each in order:
                booted = self.boot(image, each.flavor)
                self._attached(checks, booted, each.flavor, within_s)
                if ended:
                    with atomic.ActionTimer(self, "numa_ext.use_remote_gpu"):
                        self.printed(booted, ended, within_s)
                self.delete(booted)
                with atomic.ActionTimer(self, "numa_ext.end_leases"):
                    left += checks.left(booted.id, within_s)
                time.sleep(each.gap_s)
        self.add_output(additive=samples.chart(Topic.ORPHANS, sessions, len(left)))
        self._add_text("Leases that are left of deleted servers", left)
        rows = [[each.flavor, each.gap_s] for each in order]
        self._add_table("Sessions in their order", ["flavor", "gap after it, s"], rows)


@_of_servers(name="NumaExt.move_leases")
class MoveLeases(NumaScenario):
    """The lease of a server moves to another GPU: how long it is out of use (F-002-94)."""

    def run(
        self,
        image: Any,
        flavor: str,
        moves: int = 1,
        pool: str = "",
        pause: str = "",
        within_s: float = 600.0,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Boot a server, wait until it can use its lease, move that a number of times, delete the server.

        :param image: image of the server
        :param flavor: name of a flavor with numa_ext:remote_gpu_memory_mb, of one GPU
        :param moves: how many
        :param pool: host of the other GPU; "": any
        :param pause: regular expression of what a program in the server prints after the last move, with one group: the
            longest time that it has waited, seconds; "": there is none
        :param within_s: how long the lease, each move, and that program may take
        :param server: more arguments of the server's creation, such as nics
        """
        checks, moved, noticed = LeaseChecks(self._jobs()), list[WatchedMove](), []
        with self._servers(server):
            booted = self.boot(image, flavor)
            for _ in range(moves):
                (lease,) = self._attached(checks, booted, flavor, within_s)
                with atomic.ActionTimer(self, "numa_ext.move_lease"):
                    moved.append(checks.move(lease, pool, within_s))
            if pause:
                found = self.printed(booted, pause, within_s)
                noticed.append(f"The longest pause in the server was {float(found[1]):g} s")
            self.delete(booted)
            left = checks.left(booted.id, within_s)
        self.add_output(additive=lease_checks.chart(moved))
        self.add_output(additive=samples.chart(Topic.ORPHANS, 1, len(left)))
        self._add_table("Moves", lease_checks.COLUMNS, lease_checks.rows(moved))
        self._add_text("What its program noticed", noticed)
        self._add_text("Leases that are left of deleted servers", left)


@_of_servers(name="NumaExt.measure_guests")
class MeasureGuests(NumaScenario):
    """A figure that guests print on their consoles, over the same figure of the host (F-000-41, F-000-42)."""

    def run(
        self,
        image: Any,
        flavor: str,
        pattern: str,
        count: int = 1,
        baseline: str = "",
        within_s: float = 600.0,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Boot servers side by side, read the figure of each, report them.

        :param image: image that runs a benchmark and prints its result
        :param flavor: name of the flavor
        :param pattern: regular expression of the result, with one group: the number
        :param count: servers at once
        :param baseline: command that prints the same figure of a {host} as a JSON number; "" without
        :param within_s: how long the benchmark may take
        :param server: more arguments of each server's creation, such as nics
        """
        with self._servers(server):
            servers = [self.boot(image, flavor) for _ in range(count)]
            figures = [float(self.printed(one, pattern, within_s)[1]) for one in servers]
            rows = [[f"guest {number}", value] for number, value in enumerate(figures, start=1)]
            if baseline:
                of_host = float(ask(baseline, COMMAND_S, host=self._host_of(servers[0])))
                rows.append(["host", of_host])
                rows.append(["guests' mean over the host", sum(figures) / len(figures) / of_host])
        self._add_table("Figures of guests", ["what", "figure"], rows)


@_of_servers(name="NumaExt.characterise_gpus")
class CharacteriseGpus(NumaScenario):
    """Measure run times of GPU workloads packed, spread and beside each other, and write a profile file (F-000-43)."""

    def run(
        self,
        workloads: dict[str, dict[str, str]],
        flavors: dict[str, str],
        gpus: int,
        host: str,
        ended: str,
        read_back: str,
        file: str,
        within_s: float = 3600.0,
        void: bool = False,
        server: dict[str, Any] | None = None,
    ) -> None:
        """Make all runs of a plan on one host, which must be otherwise empty, and write the file.

        A run begins when nova calls the server ACTIVE, unless its image tells how long it took. It counts only when the
        devices that the host shows are packed, spread or beside each other as planned.

        :param workloads: image (and, where it is another one, endless image of the workload beside) by name
        :param flavors: names of the flavors with numa_ext:gpu_policy pack and spread
        :param gpus: GPUs of each flavor
        :param host: the compute host
        :param ended: regular expression of what a workload prints at its end; a group in it is its run time, seconds
        :param read_back: command that prints what a {host} shows
        :param file: where the profiles go
        :param within_s: how long a run may take
        :param void: the hardware is emulated: the file says that its figures mean nothing
        :param server: more arguments of each server's creation, such as nics
        """
        cloud = self._cloud(read_back)
        graph = cloud.gpus(host)
        with self._servers({**(server or {}), "host": host}):
            runs = _ServersAsRuns(self, cloud, graph, workloads, flavors, host, ended, within_s)
            plan = experiments(graph, list(workloads), gpus)
            found = measure(runs, plan, as_planned=same_sockets(graph.sockets))
        Path(file).write_text(profiles.text(found, f"Rally, host {host}", void=void))
        rows = [
            [one.workload, f"{one.surroundings} {one.other}".strip(), *map(str, seconds)]
            for one, seconds in found.items()
        ]
        columns = [
            "workload",
            "surroundings",
            *(f"run {n + 1}, s" for n in range(len(rows[0]) - 2)),
        ]
        title = "Run times (void: emulated hardware)" if void else "Run times"
        self._add_table(title, columns, rows)


@dataclass(frozen=True, slots=True)
class _ServersAsRuns:
    """Runs of a plan as servers of a cloud; all but the first three are arguments of the scenario.

    :param graph: GPUs of the host
    """

    owner: CharacteriseGpus
    cloud: CloudChecks
    graph: GpuGraph
    workloads: Mapping[str, Mapping[str, str]]
    flavors: Mapping[str, str]
    host: str
    ended: str
    within_s: float

    def run(self, experiment: Experiment) -> MeasuredRun:
        """Boot the workload beside, where there is one, then the measured one; wait for its end, delete both."""
        spread = experiment.surroundings is Surroundings.SPREAD
        beside = [self._boot(experiment.other, "pack", endless=True)] if experiment.other else []
        booted = self._boot(experiment.workload, "spread" if spread else "pack")
        began = time.monotonic()
        printed = self.owner.printed(booted, self.ended, self.within_s)
        took_s = float(printed[1]) if printed.re.groups else time.monotonic() - began
        facts = self.cloud.read_back(self.host)
        run = MeasuredRun(took_s, self._numbers(facts, booted), self._numbers(facts, *beside))
        self.owner.delete(booted, *beside)
        return run

    def _boot(self, workload: str, policy: str, *, endless: bool = False) -> Any:
        images = self.workloads[workload]
        name = images.get("endless", images["image"]) if endless else images["image"]
        return self.owner.boot(self.owner.image(name), self.flavors[policy])

    def _numbers(self, facts: Facts, *servers: Any) -> tuple[int, ...]:
        """GPUs that servers have on the host, by their numbers in the graph."""
        uuids = {server.id for server in servers}
        devices = [
            address
            for domain in facts["domains"]
            if domain["uuid"] in uuids
            for address in domain["hostdevs"]
        ]
        return tuple(sorted(self.graph.gpus.index(address) for address in devices))
