# SPDX-License-Identifier: Apache-2.0
"""The SLO controller in the agent, over fake libvirt and resctrl but real sockets, feeds and controller.

The host: two LC servers' worth of CPUs on four nodes with an L3 domain each; the LC runs on CPU 1 (node 0) and reports
through a UNIX socket as QEMU offers it; BE servers float over the even CPUs.
"""

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, PROJECT, Server
from host_agent.conf.latency import PrometheusOptions
from host_agent.conf.options import Options
from host_agent.conf.rdt import RdtOptions
from host_agent.conf.slo import BalmOptions, SloOptions
from host_agent.control.agent import Agent, AgentFiles, Listeners, Stages
from host_agent.control.pipeline import Refiners
from host_agent.control.slo import SloController
from host_agent.control.slo_host import SloHost
from host_agent.control.slo_report import SloReport
from host_agent.control.slo_store import PAUSED, Kept, SloStore, load, of_server
from host_agent.control.uplink_throttle import UplinkThrottle
from host_agent.decide.slo.shapes import BalmPhase, BalmState, BeTarget, SloView, Taken
from host_agent.decide.slo.uplink import Ceiling
from host_agent.machine.lane_door import LaneDoor, LaneDoorCaller
from host_agent.model.counters import ServerCounters
from host_agent.model.journal import Entry
from host_agent.model.lanes import LaneOrder, UplinkReport
from host_agent.model.network import TrafficBytes
from host_agent.model.partition import PartitionPlace
from host_agent.model.process import GroupLevel, QuotaReport
from host_agent.model.traffic import Traffic
from host_agent.observe.bandwidth import Bandwidth
from host_agent.observe.latency.channel import ChannelFeed, PortSockets
from host_agent.observe.latency.ipc_proxy import IpcProxy
from host_agent.observe.latency.ports import SloPorts
from host_agent.observe.latency.prometheus import PrometheusFeed
from host_agent.observe.latency.sources import REQUESTS_SILENCE_S, SILENCE_S, SloSources
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer
from host_agent.report.metrics import METRICS, Sample
from placement_traits.errors import CapabilityMissingError
from placement_traits.names import Tier
from placement_traits.rdt_capability import Mba, RdtCapability
from placement_traits.topology import HostTopology
from tests.support.executors import make_executor
from tests.support.fake_host import FakeHost
from tests.support.old_state import VERSIONS, written_by

SLO = {**LC_SPECS, "numa_ext:slo_p99_us": "1000"}
UNIFORM = {**BE_SPECS, "numa_ext:memory_policy": "uniform_all"}
LEVELS = tuple(range(10, 101, 10))
PORT = """
<controller type='virtio-serial' index='0'/>
<channel type='unix'><source mode='bind' path='{path}'/><target type='virtio' name='org.numa_ext.slo.0'/></channel>"""
TAP = "<interface type='bridge'><target dev='{tap}'/></interface>"
CONTROLLER = "<controller type='virtio-serial' index='0'/>"


class Inline:
    """Runs tasks at once."""

    def submit(self, function: object, *arguments: object) -> None:
        function(*arguments)  # type: ignore[operator]


class Guest:
    """The guest's end of its port: listens as QEMU does, and reports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._connection: socket.socket | None = None

    def send(self, data: bytes) -> None:
        if self._connection is None:
            self._connection, _ = self._listener.accept()
            self._connection.setblocking(False)
        self._connection.send(data)

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        self.hang_up()
        self._listener.close()


class Allowed:
    """What else a bench says about whether anything may be changed."""

    def __init__(self, bench: "Bench") -> None:
        self._bench = bench

    def paused(self) -> bool:
        return (self._bench.folder / "paused").exists()

    def lapsed(self) -> bool:
        return self._bench.lapsed

    def acts(self) -> bool:
        return self._bench.acts

    def balancers(self) -> str:
        return self._bench.balancers


class Uplink:
    """A throttle of uplinks that says what a test says."""

    def __init__(self) -> None:
        self.state = BalmState()
        self.at_work = False
        self.turns: list[tuple[bool, bool]] = []
        self.rested = self.released = self.followed = 0
        self.closed = False
        self.interfaces: Mapping[str, tuple[str, ...]] = {}

    def watch(self, interfaces: Mapping[str, tuple[str, ...]]) -> None:
        self.interfaces = interfaces

    def turn(
        self, seen: SloView, taken: Taken, now_s: float, *, may_begin: bool, acts: bool
    ) -> None:
        self.turns.append((may_begin, acts))
        assert seen.objectives, "latencies are read once, for both"

    def follow(self, now_s: float) -> None:
        self.followed += 1

    def rest(self) -> None:
        self.rested += 1

    def release(self) -> None:
        self.released += 1

    def close(self) -> None:
        self.closed = True

    def samples(self) -> Iterator[Sample]:
        yield "numa_ext_uplink_limit_mbps", ("eth0",), 70.0


class Bench:
    """Agent and controller on a clock that the test turns."""

    def __init__(self, folder: Path, **slo: object) -> None:
        self.folder = folder
        topology = four_nodes()
        rdt = replace(topology.rdt or RdtCapability(), mba=Mba(8, 10, 10, True))
        self.host = FakeHost(replace(topology, rdt=rdt))
        self.now = 1000.0
        self.journal: list[Entry] = []
        self.levels: list[tuple[GroupLevel, ...]] = []
        self.refused = ""
        self.lapsed = False
        self.wakes = 0
        self.proposals: list[tuple[str, ...]] = []
        self.guests: dict[str, Guest] = {}
        self.proxy = IpcProxy(0.25)
        self.ipc = 2.0
        self.options = SloOptions(**slo)  # type: ignore[arg-type]
        self.uplink: Uplink | UplinkThrottle | None = None
        self.acts = True
        self.balancers = ""
        nodes = folder / "node"
        for node in range(4):
            (nodes / f"node{node}").mkdir(parents=True, exist_ok=True)
            text = f"Node {node} MemFree: {2000 * 1024} kB\n"
            (nodes / f"node{node}/meminfo").write_text(text)
        self.restart()

    def restart(self) -> None:
        """A new agent process; host and files stay."""
        self.ports = SloPorts(self.host.plug_latency_port, self, Inline(), self.wake, self.clock)  # type: ignore[arg-type]
        self.controller = SloController(
            self.options,
            SloSources(ChannelFeed(self.options.feed, PortSockets(self.clock)), (self.proxy,)),
            SloHost(
                self,
                self,
                self,
                self,
                Allowed(self),
                self.ports,
            ),
            SloStore(self.folder / "slo.json"),
            SloReport(
                self.options,
                self,
                escalate=lambda event, _titles: self.proposals.append(event.leave),
                clock=self.clock,
            ),
            uplink=self.uplink,  # type: ignore[arg-type]
            clock=self.clock,
        )
        observer = Observer(
            self.host, self.host, MachineFiles(lambda: self.host.topology, self.folder / "node")
        )
        options = Options(rdt=RdtOptions(verify_s=1e9))
        executor = make_executor(self.host, self, options, observer.moved, levels=self.controller)
        self.agent = Agent(
            Stages(self.host, observer, executor, Refiners((self.controller,))),
            options,
            AgentFiles(self.folder / "state.json", self.folder / "paused"),
            Listeners((self.controller,)),
        )

    def clock(self) -> float:
        return self.now

    def write(self, entry: Entry) -> None:
        self.journal.append(entry)

    def throttle(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        self.levels.append(tuple(levels))
        return (self.refused,) * len(levels)

    def limit_cpu_time(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        return self.host.limit_cpu_time(levels, write)

    def of(self, _topology: HostTopology) -> tuple[int, ...]:
        return LEVELS

    def servers(self, places: object) -> dict[str, Bandwidth]:
        """What servers use, by the lowest level written last."""
        bes = [uuid for uuid, found in self.host.running.items() if "BE" in str(found.server.specs)]
        written = [
            level for one in self.levels[-1:] for group in one for _, level in group.mba_percent
        ]
        part = min(written, default=100) / 100
        return {uuid: Bandwidth({0: Traffic(5000.0 * part, 9000.0 * part)}) for uuid in bes}

    def wake(self) -> None:
        self.wakes += 1

    def lc(self, title: str = "lc", cpu: int = 1, **specs: str) -> Server:
        path = self.folder / f"{title}.port"
        self.guests[title] = Guest(path)
        devices = PORT.format(path=path)
        specs = {**SLO, **specs}
        return self.host.boot(Server(title, specs, cpus=(cpu,), node=cpu // 2, devices=devices))

    def be(self, title: str = "be", **specs: str) -> Server:
        server = Server(title, {**UNIFORM, **specs}, shared="0,2,4,6")
        return self.host.boot(server, {0: 16, 1: 16, 2: 16, 3: 16})

    def round(self) -> None:
        self.agent.round(full=True, relist=True)
        self.proxy.take(
            {uuid: ServerCounters(ipc=self.ipc) for uuid in self.host.running}, self.now
        )

    def report(self, p99_us: float, seconds: float, title: str = "lc") -> None:
        """Let a guest report at each tenth of a second; the controller polls five times as often."""
        for step in range(round(seconds / 0.02)):
            if step % 5 == 0:
                self.guests[title].send(f"h {p99_us / 2:.0f}:95 {p99_us:.0f}:10\n".encode())
            self.poll()

    def poll(self, seconds: float = 0.02) -> None:
        self.now += seconds
        self.controller.poll()

    def watch(self) -> tuple[Server, Server]:
        """Boot a latency-critical server that is well and a best-effort one; the controller knows both."""
        lc, be = self.lc(), self.be()
        self.round()
        self.controller.poll()  # connects
        self.report(700, 1.0)
        return lc, be

    def search(self) -> tuple[Server, Server]:
        """The same, and the objective is violated: the best-effort server is at the minimum."""
        servers = self.watch()
        self.report(1500, 0.6)
        return servers

    def level(self, server: Server) -> set[int]:
        """What the executor gets about a BE server."""
        request = next(w for w in self.host.requests if w.uuid == server.uuid)
        return set(request.mba_percent.values())

    def kept(self, server: Server) -> BeTarget | None:
        return load(self.folder / "slo.json").targets.get(server.uuid)

    def entries(self, action: str) -> list[Entry]:
        return [entry for entry in self.journal if entry.action == action]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for guest in made.guests.values():
        guest.close()
    made.controller.close()


def test_levels_are_written_before_journal_and_state(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8: a disk that stalls delays what is kept of a reaction, not the reaction."""
    bench.watch()
    before, kept = len(bench.levels), list[tuple[str, int]]()
    really = SloStore.save

    def save(store: SloStore, make: Callable[[], Kept]) -> None:
        kept.append(("state", len(bench.levels)))
        really(store, make)

    monkeypatch.setattr(SloStore, "save", save)
    monkeypatch.setattr(bench, "write", lambda e: kept.append((e.action, len(bench.levels))))
    bench.report(2500, 1.0)
    assert {name for name, _ in kept} >= {"balm", "state"}
    assert min(levels for _, levels in kept) > before


def test_a_violation_is_written_to_resctrl_before_any_round(bench: Bench) -> None:
    lc, be = bench.watch()
    bench.report(1500, 1.0)
    assert bench.levels, "nothing was written"
    (level,) = bench.levels[0]
    assert level.group == "numa_ext-BE"
    assert {percent for _, percent in level.mba_percent} == {10}
    assert [entry.server for entry in bench.entries("violated")] == [lc.uuid]
    done = next(entry for entry in bench.entries("balm") if entry.server == be.uuid)
    assert done.what["level"] == 10
    assert done.measured["ratios"][lc.uuid] > 1.0
    bench.round()
    assert bench.level(be) == {10}, "the executor would undo it"


def test_healed_levels_are_released_again_and_pages_move_when_levels_alone_do_not_do(
    bench: Bench,
) -> None:
    """While the server is throttled its neighbour is well; any more than the minimum violates, as in F2."""
    _, be = bench.watch()
    moved = 0
    for _ in range(120):
        level = bench.levels[-1][0].mba_percent[0][1] if bench.levels else 50
        local = bench.host.memory_mb(be).get(0, 0)
        p99 = 900 if level <= 10 or local <= 4 else 1500
        bench.report(p99, 0.5)
        if bench.controller.turn(bench.now):
            bench.agent.reapply()
            moved += 1
    assert moved, "no round was asked for"
    assert bench.host.memory_mb(be).get(0, 0) <= 4
    assert bench.wakes
    assert bench.kept(be) is not None
    assert bench.levels[-1][0].mba_percent[0][1] == 100, "the throttle was not released"


@pytest.fixture
def beside(bench: Bench) -> Uplink:
    """Of a bench whose uplinks are throttled, too."""
    bench.controller.close()
    bench.uplink = Uplink()
    bench.restart()
    return bench.uplink


def test_memory_waits_while_the_uplink_tries_something_and_not_longer(
    bench: Bench, beside: Uplink
) -> None:
    lc, be = bench.watch()
    assert set(beside.interfaces) == {lc.uuid, be.uuid}
    assert beside.turns[-1] == (True, True)
    beside.at_work = True
    bench.report(1500, 2.0)
    assert bench.levels == []
    assert [entry.server for entry in bench.entries("violated")] == [lc.uuid], "seen all the same"
    beside.at_work = False
    bench.report(1500, 1.0)
    assert {percent for _, percent in bench.levels[0][0].mba_percent} == {10}
    assert beside.turns[-1] == (False, True), "and the uplink waits for memory"


def test_a_violation_becomes_an_order_at_the_door_of_the_unit_and_no_throttle_of_memory(
    bench: Bench,
) -> None:
    """From a guest's report to the order, with all that is between: the unit is a test."""
    bench.controller.close()
    sent = dict.fromkeys(("tap1", "tap2", "eth0"), 0)
    caller = LaneDoorCaller(bench.folder / "lanes.sock")
    report = SloReport(bench.options, bench, clock=bench.clock)

    def counted(device: str) -> TrafficBytes:
        return TrafficBytes(sent[device], sent[device])

    bench.uplink = UplinkThrottle(bench.options.balm, Ceiling(0.3), caller, counted, report)
    bench.restart()
    path = bench.folder / "lc.port"
    bench.guests["lc"] = Guest(path)
    devices = PORT.format(path=path) + TAP.format(tap="tap1")
    bench.host.boot(Server("lc", SLO, cpus=(1,), node=0, devices=devices))
    bench.host.boot(
        Server("be", UNIFORM, shared="0,2,4,6", devices=TAP.format(tap="tap2")),
        {0: 16, 1: 16, 2: 16, 3: 16},
    )
    bench.round()
    bench.controller.poll()
    limits: dict[str, int] = {}

    def take(order: LaneOrder) -> UplinkReport:
        limits.clear()
        limits.update(order.limits)
        return UplinkReport({"eth0": 100}, {"tap1": Tier.LC, "tap2": Tier.BE}, order)

    with LaneDoor(bench.folder / "lanes.sock") as door:
        for step in range(40):
            for device, mbps in (("tap1", 2), ("tap2", limits.get("eth0", 100)), ("eth0", 100)):
                sent[device] += mbps * 125_000 // 5
            bench.report(700 if step < 20 or limits else 1500, 0.2)
            door.serve(take)
        assert limits["eth0"] >= 70, "it has risen again meanwhile"
        first = bench.entries("uplink")[0].what["best_effort_mbps"]
        assert first in (70, 80), "what is best-effort servers' own, to the tenth above"
        assert bench.levels == []
        bench.controller.close()
        door.serve(take)
        assert limits == {}, "nothing is held by an agent that ends"


def test_what_one_of_both_takes_is_on_the_others_account(bench: Bench, beside: Uplink) -> None:
    lc, _ = bench.watch()
    beside.state = BalmState(taken=Taken(full_s={lc.uuid: bench.now + 1800.0}))
    bench.report(700, 0.5)
    gauge = ("numa_ext_server_account_spent_seconds", (lc.uuid, lc.title))
    shown = {(name, labels): value for name, labels, value in bench.controller.samples()}
    assert shown[gauge] == pytest.approx(150.0, abs=1.0)
    assert shown["numa_ext_uplink_limit_mbps", ("eth0",)] == 70.0


def test_an_action_of_the_uplink_is_not_judged_by_what_came_before_it(
    bench: Bench, beside: Uplink
) -> None:
    bench.watch()
    beside.state = BalmState(judge_from_s=bench.now + 60.0)
    bench.report(1500, 2.0)
    assert bench.levels == []


@pytest.mark.parametrize("why", ["paused", "lapsed", "observes", "silent"])
def test_uplinks_are_left_alone_where_nobody_watches(
    bench: Bench, beside: Uplink, why: str
) -> None:
    bench.watch()
    rested, released = beside.rested, beside.released
    if why == "paused":
        (bench.folder / "paused").touch()
    elif why == "lapsed":
        bench.lapsed = True
    elif why == "observes":
        bench.acts = False
    else:
        bench.guests["lc"].hang_up()
        bench.poll(SILENCE_S + 5.0)
    followed = beside.followed
    bench.poll()
    bench.poll()
    if why == "silent":  # others of the leaf may still wait for its best-effort servers
        assert beside.rested > rested and beside.released == released
        assert beside.followed > followed
    else:
        assert beside.released > released and beside.followed == followed
    bench.controller.close()
    assert beside.closed


def test_an_observer_of_uplinks_acts_on_none(bench: Bench, beside: Uplink) -> None:
    bench.acts = False
    bench.watch()
    bench.report(1500, 1.0)
    assert {acts for _, acts in beside.turns} == {False}


def test_pages_stay_while_others_move_them_back(bench: Bench) -> None:
    """kernel.numa_balancing is on: two writers of one thing; levels alone have to do."""
    bench.balancers = "kernel.numa_balancing is on"
    _, be = bench.watch()
    before = bench.host.memory_mb(be)
    bench.host.writes.clear()
    for _ in range(120):
        level = bench.levels[-1][0].mba_percent[0][1] if bench.levels else 50
        bench.report(900 if level <= 10 else 1500, 0.5)
        if bench.controller.turn(bench.now):
            bench.agent.reapply()
    assert bench.levels, "levels were written"
    assert bench.host.memory_mb(be) == before
    assert not [what for what, _ in bench.host.writes if what == "move"]


def test_an_objective_that_nothing_watches_is_shown(bench: Bench) -> None:
    """numa_ext:slo_source=auto without a feed: the objective is there, and nobody sees whether it is kept."""
    server = bench.lc()
    bench.round()
    for _ in range(100):
        bench.poll()
    bench.round()
    gauge = ("numa_ext_server_slo_unwatched", (server.uuid, server.title))
    values = {(name, labels): value for name, labels, value in bench.controller.samples()}
    assert values[gauge] == 1.0
    assert load(bench.folder / "slo.json").report["lcs"][server.uuid]["state"] == "unwatched"
    bench.report(700, 1.0)
    values = {(name, labels): value for name, labels, value in bench.controller.samples()}
    assert values[gauge] == 0.0


def test_without_a_known_latency_the_fixed_level_holds(bench: Bench) -> None:
    bench.lc()
    be = bench.be()
    bench.round()
    bench.controller.poll()
    for _ in range(100):
        bench.poll()
    bench.round()
    assert 50 in bench.level(be) or bench.level(be) == {100}
    assert bench.levels == []
    assert bench.kept(be) is None


def test_a_second_lc_without_a_feed_keeps_its_fixed_protection(bench: Bench) -> None:
    """The BE server shares L3 domains with both: where the silent one lives the lower of both levels counts."""
    bench.lc("lc", cpu=1)
    silent = bench.host.boot(Server("silent", SLO, cpus=(3,), node=1))
    be = bench.host.boot(Server("be", BE_SPECS, vcpus=4, shared="0,2,4,6"), {0: 32, 1: 32})
    bench.round()
    bench.controller.poll()
    bench.report(500, 12.0)  # ample slack for long: levels are given back
    bench.round()
    request = dict(next(w for w in bench.host.requests if w.uuid == be.uuid).mba_percent)
    domains = {w.uuid: w.domains for w in bench.host.requests}
    for domain in domains[silent.uuid]:
        assert request.get(domain, 0) <= 50
    assert max(request.values()) > 50


def test_a_level_that_could_not_be_written_was_not_taken(bench: Bench) -> None:
    _, be = bench.watch()
    mean = "numa_ext_server_hour_level_percent"

    bench.refused = "the kernel says no"
    bench.report(1500, 5.0)
    assert (found := bench.kept(be)) is not None
    assert found.level == 10
    shown = {labels[0]: value for name, labels, value in bench.controller.samples() if name == mean}
    assert shown[be.uuid] == 100.0


def test_a_server_that_tells_nothing_is_guessed_at_by_ipc_beside_its_fixed_protection(
    bench: Bench,
) -> None:
    silent = bench.host.boot(Server("silent", SLO, cpus=(1,)))
    be = bench.host.boot(Server("be", BE_SPECS, vcpus=4, shared="0,2,4,6"), {0: 32, 1: 32})
    for _ in range(30):
        bench.round()
        bench.poll(2.0)
    assert max(bench.level(be)) > 50
    assert min(bench.level(be)) == 50, "the fixed protection was given up for a guess"
    bench.ipc = 1.0
    for _ in range(3):
        bench.round()
        bench.poll(2.0)
    assert {level for _, level in bench.levels[-1][0].mba_percent} == {10}
    shown = load(bench.folder / "slo.json").report["lcs"][silent.uuid]
    assert (shown["p99_us"], shown["source"]) == (None, "ipc"), "a guess is shown as a latency"
    assert shown["ratio"] > 1.0
    samples = {(name, *labels): value for name, labels, value in bench.controller.samples()}
    assert samples["numa_ext_server_slo_ratio", silent.uuid, "silent", "ipc"] > 1.0
    assert not any(name == "numa_ext_server_slo_p99_us" for name, *_ in samples)
    assert bench.entries("violated")[0].measured["p99_us"] is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_restarted_agent_goes_on_where_the_killed_one_was(bench: Bench, version: int) -> None:
    _, be = bench.search()
    assert bench.kept(be) == BeTarget(10)
    bench.guests["lc"].hang_up()
    assert written_by(version, bench.folder) == ["state.json", "slo.json"]
    bench.restart()  # no close: it was killed
    bench.round()
    assert bench.level(be) == {10}, "the level was lost"
    bench.now += SILENCE_S + 1.0
    bench.poll()
    bench.round()
    assert bench.level(be) != {10}, "a level that nobody asks for any more is stuck"
    assert bench.entries("rest")


def test_an_agent_that_stops_in_a_search_leaves_the_last_good_level(bench: Bench) -> None:
    _, be = bench.watch()
    bench.report(1500, 0.3)
    for _ in range(200):  # heal, then climb
        bench.report(900, 0.1)
        if (
            bench.controller._state.phase is BalmPhase.CLIMB
            and bench.levels[-1][0].mba_percent[0][1] > 20
        ):
            break
    search = bench.controller._state.search
    assert search is not None
    good = search.valid[be.uuid]
    bench.controller.close()
    assert bench.kept(be) == good
    assert bench.levels[-1][0].mba_percent[0][1] == good.level


def test_an_agent_that_stops_before_it_knows_better_leaves_the_level_before_the_search(
    bench: Bench,
) -> None:
    _, be = bench.watch()
    before = bench.controller._state.targets[be.uuid].level
    bench.report(1500, 0.6)
    assert {level for _, level in bench.levels[-1][0].mba_percent} == {10}
    bench.controller.close()
    assert {level for _, level in bench.levels[-1][0].mba_percent} == {before}
    assert bench.kept(be) == BeTarget(before)


def test_levels_that_are_cpu_time_are_written_at_the_end_too(tmp_path: Path) -> None:
    """No round comes any more, and the watchdog is asked to keep what stands."""
    bench = Bench(tmp_path)
    bench.host.topology = replace(bench.host.topology, rdt=RdtCapability())
    _, be = bench.watch()
    before = bench.controller._state.targets[be.uuid].level
    bench.report(1500, 1.0)
    assert bench.controller.turn(bench.now)
    bench.agent.reapply()
    bench.host.cpu_levels = {be.uuid: 10}
    for guest in bench.guests.values():
        guest.close()
    bench.controller.close()
    assert bench.host.cpu_levels == {uuid: before for uuid in (be.uuid,) if before < 100}


def test_a_pause_in_the_middle_of_a_search_is_noticed_at_once_and_leaves_nobody_at_the_minimum(
    bench: Bench,
) -> None:
    """Not only by the next round: meanwhile ``release-bandwidth`` would be undone, for the whole pause."""
    _, be = bench.watch()
    before = bench.controller._state.targets[be.uuid].level
    bench.report(1500, 0.6)
    (bench.folder / "paused").touch()
    bench.poll()
    assert {level for _, level in bench.levels[-1][0].mba_percent} == {before}
    written = len(bench.levels)
    report = json.loads((bench.folder / "slo.json").read_text())["report"]
    assert report["phase"] != PAUSED, "a round may still be under way"
    bench.round()
    report = json.loads((bench.folder / "slo.json").read_text())["report"]
    assert report["phase"] == PAUSED
    bench.report(1500, 1.0)
    assert len(bench.levels) == written
    (bench.folder / "paused").unlink()
    bench.report(1500, 1.0)
    assert {level for _, level in bench.levels[-1][0].mba_percent} == {10}, "it does not go on"


def test_what_the_dead_mans_switch_has_released_is_not_believed_to_be_in_effect(
    bench: Bench,
) -> None:
    """H5: rounds hang, this thread lives; what it throttled now would stay throttled until they go on."""
    bench.search()
    throttled, written = bench.levels[-1], len(bench.levels)
    bench.lapsed = True
    bench.report(1500, 2.0)
    assert len(bench.levels) == written
    assert bench.controller._effective == {}
    (entry,) = bench.entries("throttle")
    assert entry.problem == "no round ends: the dead-man switch takes all throttles off"
    bench.lapsed = False
    bench.poll()
    assert bench.levels[written:] == [throttled], "all of it is written again, not what differs"
    assert bench.controller.suspect(), "the executor looks at once, too"


def test_an_agent_that_ends_while_its_rounds_hang_throttles_nobody(bench: Bench) -> None:
    bench.search()
    bench.lapsed = True
    bench.poll()
    written = len(bench.levels)
    bench.controller.close()
    assert len(bench.levels) == written


def test_a_level_that_overtook_the_executor_is_written_again(bench: Bench) -> None:
    """The executor carries out what it got before the controller changed its mind."""
    _, be = bench.watch()
    before = bench.controller._refined
    bench.report(1500, 0.6)
    written = len(bench.levels)
    place = PartitionPlace(be.uuid, "numa_ext-BE", "", False, (), 0, "")
    assert before[be.uuid] != {0: 10}
    bench.controller.placed({be.uuid: place})
    assert len(bench.levels) == written + 1
    assert {level for _, level in bench.levels[-1][0].mba_percent} == {10}


def test_a_refused_level_is_told_once_tried_again_and_wakes_a_round(bench: Bench) -> None:
    bench.watch()
    bench.refused = "resctrl: the group is gone"
    wakes = bench.wakes
    bench.report(1500, 3.0)
    assert [entry.problem for entry in bench.entries("throttle")] == [bench.refused]
    assert 2 <= len(bench.levels) <= 5, "it is not tried again, or all the time"
    assert bench.wakes > wakes
    bench.refused = ""
    bench.report(1500, 1.5)
    assert bench.controller._effective["numa_ext-BE"] == bench.levels[-1][0].mba_percent


def test_a_group_that_is_gone_makes_the_executor_look_now(bench: Bench) -> None:
    """Not only when it is time to: the round that the failure wakes is to make the group anew."""
    bench.watch()
    assert not bench.controller.suspect()
    bench.refused = "resctrl: the group is gone"
    bench.report(1500, 0.6)
    assert bench.controller.suspect()
    assert not bench.controller.suspect(), "once is enough"


def test_a_level_that_could_not_be_written_is_forgotten_with_its_group(bench: Bench) -> None:
    _, be = bench.watch()
    bench.refused = "resctrl: the group is gone"
    bench.report(1500, 0.6)
    bench.refused = ""
    bench.host.delete(be)
    bench.round()
    bench.poll(2.0)
    assert bench.controller._problem == ""
    written = len(bench.levels)
    bench.report(1500, 0.5)
    assert len(bench.levels) == written


def test_levels_that_could_not_be_read_are_read_in_the_next_round(bench: Bench) -> None:
    """Else nobody could be throttled until the topology is read anew."""
    bench.lc()
    bench.be()
    asked: list[object] = []

    class Busy:
        def of(self, topology: object) -> tuple[int, ...]:
            asked.append(topology)
            if len(asked) == 1:
                raise OSError("resctrl is busy")
            return LEVELS

    bench.controller._host = replace(bench.controller._host, legal=Busy())
    bench.round()
    bench.round()
    bench.controller.poll()
    bench.report(700, 1.0)
    bench.report(1500, 1.0)
    assert {level for _, level in bench.levels[-1][0].mba_percent} == {10}


def test_the_levels_that_the_short_way_has_written_are_known_as_ours(bench: Bench) -> None:
    bench.watch()
    assert bench.controller.superseded() == frozenset()
    bench.report(1500, 0.6)
    assert bench.controller.superseded() == {"numa_ext-BE"}
    bench.round()
    assert bench.controller.superseded() == frozenset()


def test_a_paused_agent_listens_and_does_nothing(bench: Bench) -> None:
    bench.watch()
    (bench.folder / "paused").touch()
    bench.round()
    bench.report(1500, 2.0)
    assert bench.levels == []


def test_what_cannot_be_fixed_is_proposed_and_released(bench: Bench) -> None:
    """F-004-38 in the agent: journal, status and the way to a higher layer.

    First comes the server that cannot leave the node with its pages.
    """
    near = bench.host.boot(Server("near", BE_SPECS, cpus=(0,), node=0))
    lc, _ = bench.watch()
    for _ in range(300):
        bench.report(2000, 0.5)
        if bench.controller.turn(bench.now):
            bench.agent.reapply()
        if bench.proposals and bench.controller._state.phase is BalmPhase.WATCH:
            break
    assert (bench.proposals[0][0], bench.proposals[0][-1]) == (near.uuid, lc.uuid)
    assert bench.controller.unsatisfiable() == {lc.uuid}, "the publisher would tell nobody"
    gauge = ("numa_ext_server_slo_unsatisfiable", (lc.uuid, lc.title), 1.0)
    assert gauge in [*bench.controller.samples()]
    (entry,) = {e.server: e for e in bench.entries("cannot_fix")}.values()
    assert entry.server == lc.uuid
    assert near.uuid in entry.problem
    assert bench.entries("release"), "what had no effect stays in force"
    assert {level for _, level in bench.levels[-1][0].mba_percent} == {100}
    bench.report(500, 4.0)
    assert bench.controller.unsatisfiable() == frozenset()
    assert (*gauge[:2], 0.0) in [*bench.controller.samples()]
    assert isinstance(bench.controller.unsatisfiable(), frozenset), "another thread reads it"


def test_a_guest_that_floods_or_sends_malformed_lines_is_in_the_journal_once(bench: Bench) -> None:
    lc, _ = bench.watch()
    for _ in range(1500):
        bench.guests["lc"].send(b"x" * 4000 + b"\n")
        bench.poll()
    assert [entry.server for entry in bench.entries("listen")] == [lc.uuid] * len(
        bench.entries("listen")
    )
    assert 1 <= len(bench.entries("listen")) <= 2
    assert "malformed" in str(bench.entries("listen")[0].measured)
    assert bench.levels == []


def test_a_port_is_plugged_in_where_it_lacks_and_said_where_it_cannot_be(bench: Bench) -> None:
    with_controller = bench.host.boot(Server("a", SLO, cpus=(1,), devices=CONTROLLER))
    without = bench.host.boot(Server("b", SLO, cpus=(3,), node=1))
    bench.host.boot(
        Server("c", {**SLO, "numa_ext:slo_source": "none"}, cpus=(5,), node=2, devices=CONTROLLER)
    )
    bench.host.boot(Server("d", LC_SPECS, cpus=(7,), node=3, devices=CONTROLLER))
    bench.round()
    bench.round()
    assert [what for kind, what in bench.host.writes if kind == "plug"] == [with_controller.uuid]
    assert bench.wakes == 1, "the domain is not read again"
    reported = {entry.server: entry for entry in bench.entries("plug")}
    assert len(reported) == len(bench.entries("plug")), "the same is reported twice"
    assert {uuid: str(entry.result) for uuid, entry in reported.items()} == {
        with_controller.uuid: "done",
        without.uuid: "failed",
    }
    assert "hw_qemu_guest_agent" in reported[without.uuid].problem


def test_a_port_that_libvirt_refuses_is_tried_again_later(bench: Bench) -> None:
    refusals: list[str] = []

    def refuse(uuid: str) -> None:
        refusals.append(uuid)
        raise CapabilityMissingError("libvirt plugs nothing in: test")

    ports = SloPorts(refuse, bench, Inline(), bench.wake, bench.clock)  # type: ignore[arg-type]
    bench.controller._host = replace(bench.controller._host, ports=ports)
    bench.host.boot(Server("a", SLO, cpus=(1,), devices=CONTROLLER))
    for _ in range(3):
        bench.round()
    assert len(refusals) == 1
    bench.now += 60.0
    bench.round()
    assert len(refusals) == 2
    assert len(bench.entries("plug")) == 1, "the same is reported twice"


def test_prometheus_is_asked_while_a_plugged_port_is_silent(bench: Bench) -> None:
    """With source auto: the agent plugs the port by itself, and the guest may know nothing of it."""
    options = PrometheusOptions("http://p", ("any=$uuid",), window_s=1.0, interval_s=3600.0)
    prometheus = PrometheusFeed(options, 200, lambda _s, _q: 0.0007, bench.clock)
    bench.controller._sources._feeds = (prometheus,)
    lc = bench.lc()
    bench.be()
    bench.round()
    bench.controller.poll()
    prometheus.ask_all()
    bench.poll(0.3)
    bench.round()
    shown = load(bench.folder / "slo.json").report["lcs"][lc.uuid]
    assert (shown["p99_us"], shown["source"]) == (700.0, "prometheus")
    bench.report(900, 1.0)
    bench.round()
    bench.poll()
    assert prometheus._queries == {}, "the guest speaks, and is asked about all the same"
    bench.now += SILENCE_S + 1.0
    bench.round()
    bench.poll()
    assert set(prometheus._queries) == {lc.uuid}
    prometheus.close()


def test_a_hard_rebooted_guest_is_listened_to_on_its_new_socket(bench: Bench) -> None:
    lc, _ = bench.watch()
    bench.guests["lc"].close()
    bench.host.delete(lc)
    path = bench.folder / "again.port"
    bench.guests["lc"] = Guest(path)
    bench.host.boot(replace(lc, devices=PORT.format(path=path)))
    bench.round()
    bench.now += 1.5
    bench.controller.poll()
    bench.report(1500, 1.5)
    assert {level for _, level in bench.levels[0][0].mba_percent} == {10}


def test_status_names_state_window_phase_and_actions(bench: Bench) -> None:
    lc, be = bench.search()
    bench.round()
    report = json.loads((bench.folder / "slo.json").read_text())["report"]
    assert report["phase"] == "heal"
    assert report["lcs"][lc.uuid]["state"] in {"violated", "unknown"}
    assert report["lcs"][lc.uuid]["slo_p99_us"] == 1000
    assert report["lcs"][lc.uuid]["source"] == "channel"
    assert report["bes"][be.uuid]["level"] == 10
    assert [action["action"] for action in report["actions"]][:1] == ["violated"]
    shown = of_server(report, lc.uuid)
    assert (shown["phase"], shown["window_s"]) == ("heal", 3.0)
    assert shown["actions"][0].endswith("violated")
    assert of_server(report, "nobody") == {}
    names = {
        name
        for name, labels, _ in bench.controller.samples()
        if len(labels) == len(METRICS[name].labels)
    }
    assert {"numa_ext_balm_phase", "numa_ext_server_slo_state", "numa_ext_slo_feed"} <= names


def test_requests_of_a_server_are_counted_for_prometheus_while_it_reports(bench: Bench) -> None:
    lc, _ = bench.watch()
    before = {uuid: found[-1][1] for _, (uuid, *_), found, _ in bench.controller.histograms()}
    bench.report(900, 1.0)
    ((name, labels, buckets, _),) = bench.controller.histograms()
    assert len(labels) == len(METRICS[name].labels)
    assert labels == (lc.uuid, "lc", PROJECT)
    assert buckets[-1][1] == before[lc.uuid] + 10 * 105
    assert (0.001, buckets[-1][1]) in buckets, "the objective is the end of a bucket"
    bench.now += REQUESTS_SILENCE_S + 1.0
    assert list(bench.controller.histograms()) == []


def test_throttling_by_cpu_time_goes_the_executors_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.host.topology = replace(bench.host.topology, rdt=RdtCapability())
    _, be = bench.watch()
    bench.report(1500, 1.0)
    assert bench.levels == []
    assert bench.wakes
    assert bench.controller.turn(bench.now)
    bench.agent.reapply()
    assert bench.level(be) == {10}
    for guest in bench.guests.values():
        guest.close()
    bench.controller.close()


def test_the_operators_limits_reach_the_controller(tmp_path: Path) -> None:
    bench = Bench(tmp_path, balm=BalmOptions(budget_s_per_hour=1.0))
    lc, _ = bench.watch()
    bench.report(2000, 6.0)
    (spent,) = bench.entries("account_spent")
    assert spent.server == lc.uuid
    assert "raise CUSTOM_MEMORY_BANDWIDTH_MBPS of its flavor" in spent.problem
    for guest in bench.guests.values():
        guest.close()
    bench.controller.close()


def test_a_controller_that_observes_reports_violations_and_what_it_would_do_first(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.acts = False
    bench.restart()
    _, be = bench.watch()
    bench.host.boot(Server("silent", SLO, cpus=(3,), node=1, devices=CONTROLLER))
    bench.round()
    before, fixed = len(bench.journal), bench.level(be)
    bench.report(1500, 5.0)
    bench.round()
    assert bench.levels == []
    assert [name for name, _ in bench.host.writes if name in ("throttle", "attach")] == []
    assert bench.level(be) == fixed
    said = [(entry.action, entry.result.value) for entry in bench.journal[before:]]
    assert said == [("violated", "noted"), ("balm", "would")]
    assert bench.proposals == []
    assert bench.controller.unsatisfiable() == frozenset()


def test_a_controller_that_is_switched_to_observe_leaves_what_may_stand(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    _, be = bench.search()
    assert bench.levels[-1][0].mba_percent == ((1, 10),)
    bench.acts = False
    bench.poll()
    assert bench.levels[-1][0].mba_percent == ((1, 100),), "the level before the search"
    written = len(bench.levels)
    bench.report(1500, 3.0)
    bench.controller.close()
    assert len(bench.levels) == written
    assert bench.kept(be) is None


def test_a_controller_that_may_act_again_searches_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.acts = False
    bench.restart()
    bench.watch()
    bench.report(1500, 1.0)
    bench.acts = True
    bench.report(1500, 1.0)
    assert bench.levels[-1][0].mba_percent == ((1, 10),)


def test_seconds_of_violation_are_counted_and_those_on_hold_are_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.acts = False
    bench.restart()
    lc, _ = bench.watch()

    def violated() -> float:
        found = {(name, labels[0]): v for name, labels, v in bench.controller.samples()}
        return found["numa_ext_server_slo_violation_seconds", lc.uuid]

    assert violated() == 0.0
    bench.report(1500, 10.0)
    first = violated()
    assert 9.0 < first <= 10.0
    (tmp_path / "paused").touch()
    bench.poll(600.0)
    (tmp_path / "paused").unlink()
    bench.poll()
    assert violated() - first <= 5.1


def test_seconds_of_violation_of_a_server_that_has_left_are_not_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    lc, _ = bench.watch()
    bench.report(1500, 10.0)
    bench.host.delete(lc)
    bench.round()
    bench.poll()
    bench.host.boot(lc)
    bench.round()
    bench.poll()
    found = {(name, labels[0]): v for name, labels, v in bench.controller.samples()}
    assert found["numa_ext_server_slo_violation_seconds", lc.uuid] == 0.0


def test_traffic_of_a_server_that_has_left_is_not_shown(bench: Bench) -> None:
    """Once no objective is watched nothing is measured any more: what was measured last would stay for good."""

    def shown() -> set[str]:
        samples = bench.controller.samples()
        return {labels[0] for name, labels, _ in samples if name == "numa_ext_server_traffic_mbps"}

    lc, be = bench.watch()
    assert shown() == {be.uuid}
    bench.host.delete(be)
    bench.host.delete(lc)
    bench.round()
    bench.poll()
    assert shown() == set()
