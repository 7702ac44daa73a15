# SPDX-License-Identifier: Apache-2.0
"""``kill -9`` at each single write, and a full disk, while an objective is fought for or a spread of memory searched.

Levels, pages, the helper's mark, the files of the SLO controller and of NUMA balancing are among the writes. The next
agent ends where the killed one would have, no server stays throttled, and the neighbour keeps what it was promised.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from emulation.kernel.shape import Shape
from host_agent.conf.agent import AgentOptions
from host_agent.conf.memory import MemoryOptions
from host_agent.conf.options import Options
from host_agent.conf.rdt import RdtOptions
from tests.support.controlled_host import ControlledHost, Controller
from tests.support.counted_host import Victim

WORKS_S = {Controller.SLO: 12.0, Controller.BALANCING: 60.0}
KILLS = 3
BROKEN_FILE = "is not used"

Make = Callable[[str], AbstractContextManager[ControlledHost]]
Scenario = tuple[Make, Controller]


@pytest.fixture(
    params=[
        (Controller.SLO, False),
        (Controller.SLO, True),
        (Controller.BALANCING, False),
    ],
    ids=["bandwidth for an objective", "CPU time for an objective", "search of a spread"],
)
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Scenario:
    controller, cpu_time = request.param
    shape = Shape(
        domains=(0, 1, 2, 3),
        cbm_len=16,
        shareable=0xC000,
        cpus=frozenset(range(8)),
        mba=not cpu_time,
    )
    options = Options(
        agent=AgentOptions(takeover_interval_s=0.0),
        memory=MemoryOptions(margin_mb=0),
        rdt=RdtOptions(cpu_time_fallback=cpu_time, verify_s=0.0),
    )

    @contextmanager
    def make(name: str) -> Iterator[ControlledHost]:
        with pytest.MonkeyPatch.context() as patch:
            yield ControlledHost(tmp_path / name, shape, options, patch, controller)

    return make, controller


def writes(scenario: Scenario) -> int:
    """How many there are until the controller has reached its end, when nothing goes wrong."""
    make, controller = scenario
    with make("undisturbed") as host:
        host.begin()
        host.disturb()
        with host.writing.kill_after(math.inf):
            host.run(WORKS_S[controller])
        assert host.settles()
        return host.writing.done


def killed(scenario: Scenario, last: int, victim: Victim) -> None:
    make, controller = scenario
    with make(f"{victim.value}, killed at {last}") as host:
        kept = host.begin()
        promised = host.guarantee(kept)
        host.disturb()
        with host.writing.kill_after(last, victim):
            host.run(WORKS_S[controller])
        assert host.writing.done == last or victim is not Victim.BOTH
        assert (host.guarantee(kept), host.intruders(kept)) == (promised, []), last
        if victim is not Victim.HELPER:  # its socket has started the next one
            host.start(victim)
        assert host.settles(), last
        assert (host.guarantee(kept), host.intruders(kept)) == (promised, []), last


def test_the_next_one_reaches_the_end_that_the_killed_one_had_before_it(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    every = writes(scenario)
    assert every > 50
    victims = list(Victim)
    for number in range(KILLS):
        killed(scenario, every * number // KILLS, victims[number % len(victims)])
    assert BROKEN_FILE not in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("victim", Victim, ids=lambda victim: victim.value)
def test_at_each_write(
    scenario: Scenario, victim: Victim, caplog: pytest.LogCaptureFixture
) -> None:
    for last in range(writes(scenario)):
        killed(scenario, last, victim)
    assert BROKEN_FILE not in caplog.text


def test_a_disk_that_is_full_stops_no_controller(scenario: Scenario) -> None:
    """The end is reached without room for files, too; what was learnt is kept when there is room again."""
    make, controller = scenario
    for room in (0, 11):
        with make(f"full at {room}") as host:
            kept = host.begin()
            promised = host.guarantee(kept)
            host.disturb()
            with host.writing.full_after(room):
                host.run(2 * WORKS_S[controller])
                at_end = host.guarantee(host.be)
                assert (host.guarantee(kept), host.intruders(kept)) == (promised, []), room
            assert host.settles(), room
            host.start()
            assert host.settles(), room
            assert (host.guarantee(kept), host.intruders(kept)) == (promised, []), room
            assert host.guarantee(host.be)[0] == at_end[0]
