# SPDX-License-Identifier: Apache-2.0
"""What best-effort servers pay: seconds, weighted by what was withheld."""

from pathlib import Path

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.model.assignment import Assignment, Decision, Guest, Observation
from host_agent.model.modes import Modes
from host_agent.model.partition import PartitionRequest
from host_agent.model.round import Round
from host_agent.model.workload import Activity, parse
from host_agent.report import costs_store
from host_agent.report.costs import Costs
from host_agent.report.costs_store import Cost
from nova_numa_ext.policy.modes import Mode
from placement_traits.names import Tier

SERVERS = {name: Server(name, BE_SPECS) for name in "ab"}
LC = Server("lc", LC_SPECS, cpus=(1,))


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.costs = Costs(clock=lambda: self.now)

    def round(
        self,
        at: float,
        levels: dict[str, int],
        *,
        mode: Mode = Mode.ENFORCE,
        paused: bool = False,
    ) -> None:
        self.now = at
        guests = tuple(
            Guest(parse(s.xml, Activity.RUNNING)) for s in (*(SERVERS[name] for name in levels), LC)
        )
        decided = [
            Assignment(uuid, partition=PartitionRequest(uuid, Tier.BE, (0, 1), {}, {0: level}))
            for name, level in levels.items()
            if (uuid := SERVERS[name].uuid)
        ]
        decided.append(Assignment(LC.uuid, partition=PartitionRequest(LC.uuid, Tier.LC, (0,))))
        decision = Decision() if paused else Decision(tuple(decided))
        observation = Observation(four_nodes(), guests)
        self.costs.on_round(Round(observation, decision, modes=Modes.all(mode), paused=paused))

    def paid(self) -> dict[tuple[str, str], float]:
        return {
            (labels[1], name.removeprefix("numa_ext_server_").removesuffix("_seconds")): value
            for name, labels, value in self.costs.samples()
        }


def test_time_counts_at_the_level_that_was_written_before_it() -> None:
    bench = Bench()
    bench.round(0.0, {"a": 40, "b": 100})
    bench.round(10.0, {"a": 100, "b": 100})
    bench.round(20.0, {"a": 100, "b": 100})
    assert bench.paid() == {
        ("a", "throttled"): 10.0,
        ("a", "withheld"): 6.0,
        ("b", "throttled"): 0.0,
        ("b", "withheld"): 0.0,
    }
    assert bench.costs.total == (40.0, 6.0)


def test_an_agent_that_observes_withholds_nothing() -> None:
    bench = Bench()
    for at in (0.0, 10.0):
        bench.round(at, {"a": 40}, mode=Mode.OBSERVE)
    assert bench.paid() == {}
    assert bench.costs.total == (0.0, 0.0)


def test_levels_stand_while_an_operator_has_paused_the_agent_but_not_beyond_a_long_silence() -> (
    None
):
    bench = Bench()
    bench.round(0.0, {"a": 50})
    bench.round(10.0, {"a": 50}, paused=True)
    bench.round(20.0, {"a": 50}, paused=True)
    assert bench.paid()["a", "throttled"] == 20.0
    bench.round(3620.0, {"a": 50})
    assert bench.paid()["a", "throttled"] == 80.0


def test_what_a_server_that_is_gone_has_paid_stays_in_the_hosts_sum_only() -> None:
    bench = Bench()
    bench.round(0.0, {"a": 40})
    bench.round(10.0, {})
    assert bench.paid() == {}
    assert bench.costs.total == (10.0, 6.0)


def test_the_console_reads_what_was_paid(tmp_path: Path) -> None:
    bench = Bench()
    bench.costs = Costs(tmp_path / "costs.json", clock=lambda: bench.now)
    for at in (0.0, 30.0, 60.0):
        bench.round(at, {"a": 40})
    kept = costs_store.store(tmp_path / "costs.json").load()
    assert kept == {SERVERS["a"].uuid: Cost("a", 60.0, 60.0, 36.0)}
    assert kept[SERVERS["a"].uuid].withheld_percent == 60.0
