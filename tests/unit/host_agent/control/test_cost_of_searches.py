# SPDX-License-Identifier: Apache-2.0
"""What searches for the best spread of memory cost, as counts that no load of the machine changes; and that what is
decided is the same as where nothing is spared.
"""

from collections import Counter
from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.model.process import RamRange
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

    :ivar walks: of page tables, by server
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        super().__init__(folder, four_nodes(), programs=PROGRAMS, weights=WEIGHTS)
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
