# SPDX-License-Identifier: Apache-2.0
"""What searches for the best spread of memory cost, as counts that no load of the machine changes; and that what is
decided is the same as where nothing is spared.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.apply import executor
from host_agent.conf.bwap import BwapOptions
from host_agent.conf.options import Options
from host_agent.decide import balancing
from host_agent.decide.cores import mapping
from host_agent.decide.pages import bwap, shares
from host_agent.model.process import RamRange
from placement_traits.errors import NumaExtError
from tests.support.balanced import BalancedAgent

ALL = "0-7"
BWAP = {**BE_SPECS, "numa_ext:memory_policy": "bwap"}
WEIGHTS = {frozenset({n}): {m: 0.4 if m == n else 0.2 for m in range(4)} for n in range(4)}
PROGRAMS = {"a": "oc", "b": "sc", "c": "sor"}
BEFORE_RESYNC_S = 50.0


def uuid(number: int) -> str:
    """The same servers on both hosts."""
    return f"00000000-0000-4000-8000-{number:012}"


class Searching(BalancedAgent):
    """Three servers that search, beside a latency-critical one.

    :param at_once: searches at a time

    :ivar walks: of page tables, by server
    """

    def __init__(self, folder: Path, at_once: int = 16) -> None:
        folder.mkdir()
        options = Options(bwap=BwapOptions(at_once=at_once))
        super().__init__(folder, four_nodes(), programs=PROGRAMS, weights=WEIGHTS, options=options)
        self.walks: Counter[str] = Counter()
        self.host.boot(Server("lc", LC_SPECS, cpus=(6,), node=3, uuid=uuid(9)))
        self.servers = [
            self.host.boot(
                Server(title, BWAP, vcpus=1, memory_mb=512, shared=ALL, uuid=uuid(node)),
                {node: 300, 3: 212},
            )
            for node, title in enumerate(PROGRAMS)
        ]
        walk = self.host.guest_ram

        def counted(uuid: str) -> tuple[RamRange, ...]:
            self.walks[uuid] += 1
            return walk(uuid)

        self.host.guest_ram = counted  # type: ignore[method-assign]


@pytest.fixture
def both(tmp_path: Path) -> tuple[Searching, Searching]:
    """The same host twice: as the product is, and with a mover that tells nothing."""
    spared, walked = Searching(tmp_path / "spared"), Searching(tmp_path / "walked")
    walked.host.mover_tells = False
    return spared, walked


def test_page_tables_are_walked_once_and_not_after_each_step_of_a_search(
    both: tuple[Searching, Searching],
) -> None:
    spared, walked = both
    for bench in both:
        bench.run(BEFORE_RESYNC_S)
        assert len([entry for entry in bench.journal if entry.action == "move"]) > 10
    assert set(spared.walks.values()) == {1}
    assert all(walked.walks[server.uuid] > 3 for server in walked.servers)
    assert spared.journal == walked.journal


def test_the_movers_word_is_not_believed_against_the_sample(
    both: tuple[Searching, Searching],
) -> None:
    """Another mover takes the pages back before they are looked at."""
    spared, walked = both
    for bench in both:
        (server, *_) = bench.servers

        def take_back(bench: Searching = bench, server: Server = server) -> None:
            bench.host.running[server.uuid].memory_kb = {3: 500 * 1024}

        bench.each_wait = take_back
        bench.run(BEFORE_RESYNC_S)
    assert spared.journal == walked.journal
    assert spared.walks[spared.servers[0].uuid] > 10


class Calls:
    """How often functions were called.

    :param monkeypatch: replaces them where their callers look for them
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: Counter[str] = Counter()
        self._monkeypatch = monkeypatch

    def count(self, module: Any, name: str, what: str) -> None:
        """Count from now on.

        :param what: the name to count under
        """
        function: Callable[..., Any] = getattr(module, name)

        def counted(*arguments: Any, **more: Any) -> Any:
            self.made[what] += 1
            return function(*arguments, **more)

        self._monkeypatch.setattr(module, name, counted)


@pytest.fixture
def measuring(tmp_path: Path) -> Searching:
    """Between two rounds; all searches measure."""
    bench = Searching(tmp_path / "host")
    bench.run(2.5)
    searches = [known.search for known in bench.refiner._state.memory.values()]
    for _turn in range(20):
        if all(found and found.phase is bwap.BwapPhase.MEASURING for found in searches):
            break
        bench.now_s += 0.2
        if bench.refiner.turn(bench.now_s):
            bench.agent.reapply()
        searches = [known.search for known in bench.refiner._state.memory.values()]
    assert {found.phase for found in searches if found} == {bwap.BwapPhase.MEASURING}
    return bench


def test_a_turn_decides_only_what_its_sample_may_have_changed(
    measuring: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five turns, a second: before, each went over the mapping, fitted all shares and made all assignments anew."""
    calls = Calls(monkeypatch)
    calls.count(mapping, "decide", "mapped")
    calls.count(shares, "fit", "fitted")
    calls.count(bwap, "decide", "sampled")
    before = measuring.refiner._desired
    for _turn in range(5):
        measuring.now_s += 0.2
        assert not measuring.refiner.turn(measuring.now_s)
    assert calls.made["sampled"] == 5 * len(measuring.servers)
    assert calls.made["mapped"] <= 1, "the mean of a second"
    assert calls.made["fitted"] == 0
    after = measuring.refiner._desired
    assert all(a is b for a, b in zip(after.assignments, before.assignments, strict=True))


def begun(bench: Searching) -> set[str]:
    """UUIDs of servers whose search places or measures."""
    return {uuid for uuid, known in bench.refiner._state.memory.items() if known.begun}


def test_searches_at_a_time_are_bounded_and_all_get_their_turn(tmp_path: Path) -> None:
    bench = Searching(tmp_path / "host", at_once=1)
    ran: set[str] = set()

    def look() -> None:
        assert len(begun(bench)) <= 1
        ran.update(begun(bench))

    bench.each_wait = look
    bench.run(15.0)
    waiting = [server for server in bench.servers if server.uuid not in ran]
    assert len(waiting) == 2
    for server in waiting:
        decided = [entry.reasons for entry in bench.entries("decide", server)]
        assert sum("search_queued" in str(reasons) for reasons in decided) == 1, "it is logged once"
        assert bench.entries("move", server) == [], "its pages stay until it is its turn"
    bench.run(200.0)
    assert ran == {server.uuid for server in bench.servers}
    searches = [bench.refiner._state.memory[server.uuid].search for server in bench.servers]
    assert {found.phase for found in searches if found} == {bwap.BwapPhase.FOUND}


def test_one_that_cannot_be_seen_keeps_no_place_free(tmp_path: Path) -> None:
    bench = Searching(tmp_path / "host", at_once=1)
    bench.run(8.0)
    (lost,) = begun(bench)
    bench.host.broken[lost] = NumaExtError("its process cannot be read")
    bench.run(10.0)
    assert len(begun(bench) - {lost}) == 1
    assert bench.refiner._often == begun(bench) - {lost}
    search = bench.refiner._state.memory[lost].search
    assert search is not None
    assert search.begun, "it goes on where it stood"


def test_between_samples_of_all_only_searches_and_critical_servers_are_read_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each of five turns a second read and judged every server of the host."""
    bench = Searching(tmp_path / "host", at_once=1)
    bench.run(8.0)
    (searching,) = begun(bench)
    read: list[Any] = []
    inner = bench.refiner._counters

    class Heard:
        def read(self, observation: Any, now_s: float, only: Any = None) -> Any:
            read.append(only)
            return inner.read(observation, now_s, only)

    bench.refiner._counters = Heard()
    calls = Calls(monkeypatch)
    calls.count(balancing, "memory", "judged")
    bench.refiner._sampled_s = bench.now_s
    for _turn in range(4):
        bench.now_s += 0.2
        bench.refiner.turn(bench.now_s)
    assert read == [{searching, uuid(9)}] * 4
    assert calls.made["judged"] == 4
    shown = {labels[0] for name, labels, _ in bench.refiner.samples() if name.endswith("_ipc")}
    assert shown == {uuid(9), *(server.uuid for server in bench.servers)}, "as they were read last"
    bench.now_s += 0.3
    bench.refiner.turn(bench.now_s)
    assert read[-1] is None
    assert calls.made["judged"] == 4 + len(bench.servers)


def test_between_rounds_only_servers_that_were_touched_are_compared_again(
    measuring: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for is the same object, and nobody has looked at the server since."""
    measuring.agent.reapply()
    measuring.agent.reapply()
    calls = Calls(monkeypatch)
    calls.count(executor, "difference", "compared")
    measuring.agent.reapply()
    assert calls.made["compared"] == 0
    measuring.agent.round(full=False, relist=False)
    assert calls.made["compared"] == 1 + len(measuring.servers)


def forgetful(decision: Any, inputs: Any, state: balancing.BalancingState, *more: Any) -> Any:
    """The decision, with all forgotten that only spares work."""
    memory = {uuid: replace(known, fitted_to=None) for uuid, known in state.memory.items()}
    state = replace(state, settled=None, refined={}, basis=None, memory=memory)
    return REFINE(decision, inputs, state, *more)


REFINE = balancing.refine


class Story:
    """Three minutes of a host, drawn: servers come and go, other movers and other programs take memory.

    :param bench: the host
    :param seed: of what happens
    """

    def __init__(self, bench: Searching, seed: int) -> None:
        self._bench = bench
        self._chance = random.Random(seed)
        self._next = 100

    def run(self) -> None:
        """Let it happen."""
        for _event in range(15):
            self._bench.run(self._chance.uniform(0.3, 25.0))
            events = (self._come, self._go, self._take_back, self._fill, self._fill, self._touch)
            self._chance.choice(events)()

    def _come(self) -> None:
        if len(self._bench.servers) < 6:
            self._next += 1
            policy = self._chance.choice(("bwap", "bwap", "local", "uniform_all"))
            specs = {
                **BE_SPECS,
                "numa_ext:memory_policy": policy,
                "numa_ext:interference_class": self._chance.choice(("sheep", "rabbit", "devil")),
            }
            title = self._chance.choice(tuple(PROGRAMS))
            vcpus = self._chance.choice((1, 2))
            server = Server(
                title, specs, vcpus=vcpus, memory_mb=512, shared=ALL, uuid=uuid(self._next)
            )
            self._bench.servers.append(self._bench.host.boot(server, self._where()))

    def _go(self) -> None:
        if len(self._bench.servers) > 1:
            self._bench.host.delete(self._bench.servers.pop(self._chance.randrange(2)))

    def _take_back(self) -> None:
        server = self._chance.choice(self._bench.servers)
        held = {node: mb * 1024 for node, mb in self._where().items()}
        self._bench.host.running[server.uuid].memory_kb = held

    def _fill(self) -> None:
        node, free_kb = self._chance.randrange(4), self._chance.choice((0, 20, 60, 2000)) * 1024
        text = f"Node {node} MemFree: {free_kb} kB\n"
        (self._bench.folder / "nodes" / f"node{node}" / "meminfo").write_text(text)

    def _touch(self) -> None:
        """A guest uses more memory."""
        held = self._bench.host.running[self._chance.choice(self._bench.servers).uuid].memory_kb
        held[max(held, key=held.__getitem__)] += self._chance.choice((64, 4096, 65536))

    def _where(self) -> dict[int, int]:
        part = self._chance.randrange(512)
        first, second = self._chance.sample(range(4), 2)
        return {first: part, second: 512 - part}


@pytest.mark.parametrize(
    ("seed", "at_once"),
    [
        (0, 16),
        (0, 1),
        *[pytest.param(*one, marks=pytest.mark.long) for one in ((1, 16), (2, 16), (1, 2))],
    ],
)
def test_what_is_spared_changes_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, at_once: int
) -> None:
    """The whole journal of a drawn story: with what spares work, and with a mover that tells nothing and a mapping that
    goes over everything each time.
    """
    spared = Searching(tmp_path / "spared", at_once)
    Story(spared, seed).run()
    plain = Searching(tmp_path / "plain", at_once)
    plain.host.mover_tells = False
    monkeypatch.setattr(balancing, "refine", forgetful)
    Story(plain, seed).run()
    assert len(spared.journal) > 40, "something happened"
    assert spared.journal == plain.journal
    assert sum(spared.walks.values()) < sum(plain.walks.values())
