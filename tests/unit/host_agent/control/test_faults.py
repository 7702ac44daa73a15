# SPDX-License-Identifier: Apache-2.0
"""``kill -9`` at each single write of the agent and its helper – to groups, threads, pages, quotas and state files –, a
disk that is full, a clock that jumps.

Servers that had what they were promised keep it; whatever the agent was doing is done by the next one in two rounds.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from emulation.kernel.shape import Shape
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf.agent import AgentOptions
from host_agent.conf.options import Options
from host_agent.conf.rdt import RdtOptions
from host_agent.control import journal
from tests.support.counted_host import CountedHost, Victim

SHARED = "0,2,4,6"
SHAPE = {
    "domains": (0, 1, 2, 3),
    "cbm_len": 16,
    "shareable": 0xC000,
    "cpus": frozenset(range(8)),
}
WITH_LEVELS = Shape(**SHAPE)  # type: ignore[arg-type]
WITHOUT_LEVELS = Shape(**SHAPE, mba=False)  # type: ignore[arg-type]


def lc(title: str, cpu: int) -> Server:
    return Server(title, LC_SPECS, cpus=(cpu,), node=cpu // 2, uuid=uuid_of(title))


def be(title: str) -> Server:
    specs = {**BE_SPECS, "numa_ext:memory_policy": "local"}
    return Server(title, specs, shared=SHARED, uuid=uuid_of(title))


def uuid_of(title: str) -> str:
    return f"{title.encode().hex():0>8}-0000-4000-8000-000000000000"


def before(host: CountedHost) -> Server:
    """Servers that run and have all that they were promised; return the one that nothing may disturb."""
    kept = host.boot(lc("lc1", 1))
    host.boot(be("be1"), {1: 48, 3: 16})
    host.boot(be("gone"))
    host.rounds(3)
    return kept


def after(host: CountedHost) -> None:
    """What the agent has to do: servers have come and gone, and a latency-critical one is in every domain."""
    host.delete(next(f.server for f in host.running.values() if f.server.title == "gone"))
    for number, cpu in ((2, 3), (3, 5), (4, 7)):
        host.boot(lc(f"lc{number}", cpu), {0: 64})
    host.boot(be("be2"), {0: 32, 2: 32})


def throttling(host: CountedHost) -> Server:
    """Best-effort servers beside latency-critical ones in every domain; return one of these."""
    kept = before(host)
    after(host)
    host.rounds(2)
    return kept


Make = Callable[[str], AbstractContextManager[CountedHost]]


@pytest.fixture(
    params=[(WITH_LEVELS, False), (WITHOUT_LEVELS, True)], ids=["bandwidth", "CPU time"]
)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    shape, cpu_time = request.param
    options = Options(
        agent=AgentOptions(takeover_interval_s=0.0),
        rdt=RdtOptions(cpu_time_fallback=cpu_time, verify_s=0.0),
    )

    @contextmanager
    def make(name: str) -> Iterator[CountedHost]:
        with pytest.MonkeyPatch.context() as patch:
            yield CountedHost(tmp_path / name, shape, options, patch)

    return make


@dataclass(frozen=True)
class Undisturbed:
    """How it ends when nothing goes wrong, and how many writes it takes."""

    picture: dict[str, tuple[object, ...]]
    without_quotas: dict[str, object]
    writes: int


def without_quotas(host: CountedHost) -> dict[str, object]:
    return {title: found[:-1] for title, found in host.picture().items()}


@pytest.fixture
def undisturbed(make: Make) -> Undisturbed:
    with make("undisturbed") as host:
        before(host)
        after(host)
        with host.writing.kill_after(math.inf):
            host.rounds(2)
        found = Undisturbed(host.picture(), without_quotas(host), host.writing.done)
        host.rounds(2)
        assert host.picture() == found.picture, "two rounds were enough"
        return found


@pytest.mark.parametrize("victim", Victim, ids=lambda victim: victim.value)
@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.long), 8], ids=["each write", "each eighth write"]
)
def test_the_next_one_ends_where_the_killed_one_would_have(
    make: Make, undisturbed: Undisturbed, every: int, victim: Victim
) -> None:
    assert undisturbed.writes > 50
    for last in range(0, undisturbed.writes, every):
        with make(f"killed at {last}") as host:
            kept = before(host)
            promised = host.guarantee(kept)
            after(host)
            host.writes.clear()
            with host.writing.kill_after(last, victim):
                host.rounds(2)
            assert host.writing.done == last or victim is not Victim.BOTH
            assert (host.guarantee(kept), host.intruders(kept)) == (promised, []), last
            if victim is not Victim.HELPER:  # its socket has started the next one
                host.start(victim)
            host.rounds(2)
            assert host.picture() == undisturbed.picture, last
            assert (host.guarantee(kept), host.intruders(kept)) == (promised, []), last
            assert kept.uuid not in str(host.writes), last


def test_the_next_helper_releases_what_the_killed_one_had_not(make: Make) -> None:
    """At each write of the dead-man switch: no best-effort server stays throttled behind a dead agent."""
    with make("released") as host:
        kept = throttling(host)
        promised, throttled = host.guarantee(kept), host.throttled()
        assert throttled == {"be1", "be2"}
        with host.writing.kill_after(math.inf):
            host.wait_for_the_dead()
        assert host.throttled() == set()
        writes = host.writing.done
    assert writes > 3
    for last in range(writes):
        with make(f"released until {last}") as host:
            throttling(host)
            with host.writing.kill_after(last):
                host.wait_for_the_dead()
            assert host.writing.done == last
            host.start(Victim.HELPER)
            host.wait_for_the_dead()
            assert host.throttled() == set(), last
            assert not host.switch.held
            assert (host.guarantee(kept), host.intruders(kept)) == (promised, []), last
            host.start(Victim.AGENT)
            host.rounds(2)
            assert host.throttled() == throttled, last


def test_a_disk_that_is_full_releases_throttles_all_the_same(make: Make) -> None:
    for room in range(8):
        with make(f"full at {room}") as host:
            throttling(host)
            with host.writing.full_after(room):
                host.wait_for_the_dead()
                assert host.throttled() == set(), room
            host.start()
            host.wait_for_the_dead()
            assert host.throttled() == set(), room


def test_a_disk_that_is_full_from_any_write_on_keeps_no_server_from_what_it_is_promised(
    make: Make, undisturbed: Undisturbed
) -> None:
    """The host is as if there were room; files follow when there is.

    A vCPU's quota alone waits for room: nobody would remember it if helper and agent died together.
    """
    for room in range(0, 40, 9):
        with make(f"full at {room}") as host:
            kept = before(host)
            promised = host.guarantee(kept)
            after(host)
            with host.writing.full_after(room):
                host.rounds(2)
                assert without_quotas(host) == undisturbed.without_quotas, room
                assert (host.guarantee(kept), host.intruders(kept)) == (promised, []), room
            host.rounds(2)
            assert host.picture() == undisturbed.picture, room
            host.writes.clear()
            host.start()
            host.rounds(2)
            assert host.picture() == undisturbed.picture, room
            assert host.writes == [], "the next agent knows all that this one did"


@pytest.mark.parametrize("jump_s", [-(10**9), 10**9])
def test_a_wall_clock_that_jumps_changes_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    """It only stamps the journal: what is decided, awaited or remembered is not measured by it."""
    with make("jumps") as host:
        before(host)
        after(host)
        host.rounds(2)
        picture = host.picture()
        host.writes.clear()
        now, today = time.time, journal.utc_now
        monkeypatch.setattr(time, "time", lambda: now() + jump_s)
        monkeypatch.setattr(journal, "utc_now", lambda: today() + timedelta(seconds=jump_s))
        host.rounds(2)
        host.start()
        host.rounds(2)
        assert host.writes == []
        assert host.picture() == picture
