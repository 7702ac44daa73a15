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
from host_agent.report.costs import Costs, _caused_by
from host_agent.report.costs_store import Cost
from nova_numa_ext.policy.modes import Mode
from placement_traits.names import Tier

SERVERS = {name: Server(name, BE_SPECS) for name in "ab"}
LC = Server("lc", LC_SPECS, cpus=(1,))
OTHER = Server("other", LC_SPECS, cpus=(3,), node=1)


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.causes: dict[str, frozenset[str]] = {}
        self.costs = Costs(clock=lambda: self.now, causes=lambda: self.causes)

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
            Guest(parse(s.xml, Activity.RUNNING))
            for s in (*(SERVERS[name] for name in levels), LC, OTHER)
        )
        decided = [
            Assignment(uuid, partition=PartitionRequest(uuid, Tier.BE, (0, 1), {}, {0: level}))
            for name, level in levels.items()
            if (uuid := SERVERS[name].uuid)
        ]
        for lc, domain in ((LC, 0), (OTHER, 1)):
            request = PartitionRequest(lc.uuid, Tier.LC, (domain,))
            decided.append(Assignment(lc.uuid, partition=request))
        decision = Decision() if paused else Decision(tuple(decided))
        observation = Observation(four_nodes(), guests)
        self.costs.on_round(Round(observation, decision, modes=Modes.all(mode), paused=paused))

    def paid(self) -> dict[tuple[str, str], float]:
        return {
            (labels[1], name.removeprefix("numa_ext_server_").removesuffix("_seconds")): value
            for name, labels, value in self.costs.samples()
            if labels[1] in SERVERS
        }

    def withholds(self) -> dict[str, float]:
        return {
            labels[1]: value
            for name, labels, value in self.costs.samples()
            if name == "numa_ext_server_withholds_seconds"
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
    assert bench.costs.paid[:2] == (40.0, 6.0)


def test_an_agent_that_observes_withholds_nothing() -> None:
    bench = Bench()
    for at in (0.0, 10.0):
        bench.round(at, {"a": 40}, mode=Mode.OBSERVE)
    assert bench.paid() == {}
    assert bench.costs.paid == (0.0, 0.0, {})


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
    assert bench.costs.paid[:2] == (10.0, 6.0)


def test_the_console_reads_what_was_paid(tmp_path: Path) -> None:
    bench = Bench()
    bench.costs = Costs(tmp_path / "costs.json", clock=lambda: bench.now)
    for at in (0.0, 30.0, 60.0):
        bench.round(at, {"a": 40})
    kept = costs_store.store(tmp_path / "costs.json").load()
    assert kept == {SERVERS["a"].uuid: Cost("a", 60.0, 60.0, 36.0)}
    assert kept[SERVERS["a"].uuid].withheld_percent == 60.0


def test_those_for_whose_sake_a_server_is_throttled_answer_for_equal_parts() -> None:
    """BALM says for whom; without it the one in the L3 domain where the level is answers, and nobody elsewhere."""
    bench = Bench()
    bench.round(0.0, {"a": 40})
    bench.causes = {SERVERS["a"].uuid: frozenset({LC.uuid, OTHER.uuid, "gone"})}
    bench.round(10.0, {"a": 40})
    assert bench.withholds() == {"lc": 6.0, "other": 0.0}
    assert bench.costs.paid.for_server_s == {LC.uuid: 6.0}
    bench.round(30.0, {"a": 40})
    assert bench.withholds() == {"lc": 12.0, "other": 6.0}
    assert bench.costs.paid.for_server_s == {LC.uuid: 12.0, OTHER.uuid: 6.0}


def test_a_throttle_that_nobody_answers_for_is_in_the_sum_only() -> None:
    """Its latency-critical server has gone, and the level is still there: it is released in the next rounds."""
    request = PartitionRequest("a", Tier.BE, (2,), {}, {2: 40})
    done = Round(Observation(four_nodes(), ()), Decision((Assignment("a", partition=request),)))
    assert _caused_by(done, {"a": frozenset({"gone"})}) == {"a": frozenset()}
