# SPDX-License-Identifier: Apache-2.0
"""The host in time, and what BALM comes to on it (modelled)."""

import pytest

from benchmarks.bench_balm import POLICIES, BalmExperiment, Run, scenario_a, scenario_b
from emulation.physics import parameters, slo_plant
from emulation.physics.slo_plant import SloPlant
from host_agent.observe.latency.window import LatencyWindow

TRAITS = slo_plant.frozen()


@pytest.fixture(scope="module")
def bench() -> BalmExperiment:
    """Memcached at full load beside Ocean_cp on the other socket."""
    return BalmExperiment(scenario_a("oc", 1.0, 30.0), TRAITS, parameters.frozen(), 1, 0.1)


@pytest.fixture(scope="module")
def runs(bench: BalmExperiment) -> dict[str, Run]:
    """All policies on it."""
    return {policy: bench.run(policy) for policy in POLICIES}


def _plant(bench: BalmExperiment) -> SloPlant:
    return bench.plant(bench.start)


def test_an_undisturbed_server_meets_its_objective_at_full_load(bench: BalmExperiment) -> None:
    plant, loads = _plant(bench), {"lc": 1.0}
    alone = plant.measure(loads, {"heavy": 100}, {"heavy": {1: 1.0}}, demand=0.01)
    assert 0.6 < plant.ratio("lc", 1.0, alone) < 0.95


def test_pages_on_its_node_disturb_it_and_a_throttle_takes_effect_after_a_delay(
    bench: BalmExperiment,
) -> None:
    plant, loads = _plant(bench), {"lc": 1.0}
    for _ in range(20):
        disturbed = plant.step(0.1, loads, bench.start)["lc"]
    assert disturbed > 1.0
    plant.throttle("heavy", 10)
    assert plant.level("heavy") == 10
    at_once = plant.step(0.01, loads, bench.start)["lc"]
    assert at_once == pytest.approx(disturbed, rel=0.01)
    for _ in range(20):
        healed = plant.step(0.1, loads, bench.start)["lc"]
    assert healed < 1.0


def test_pages_move_at_the_rate_of_the_mover(bench: BalmExperiment) -> None:
    plant = _plant(bench)
    before = plant.shares("heavy")
    plant.step(1.0, {"lc": 0.3}, {"heavy": {1: 1.0}})
    moved = plant.shares("heavy")[1] - before[1]
    assert moved == pytest.approx(TRAITS.mover_mbps / 1024 / TRAITS.memory_gb)
    for _ in range(10):
        plant.step(1.0, {"lc": 0.3}, {"heavy": {1: 1.0}})
    assert plant.shares("heavy")[1] == pytest.approx(1.0)


def test_requests_have_the_percentile_of_the_plant(bench: BalmExperiment) -> None:
    plant, window = _plant(bench), LatencyWindow(1000.0)
    for tenth in range(30):
        report = plant.requests({"lc": 0.8}, 0.1, {"lc": 1.0})
        window.add(report["lc"], tenth / 10)
    assert window.read(2.9).p99_us == pytest.approx(800.0, rel=0.05)


def test_plants_follow_from_the_seed_and_differ() -> None:
    first, again = list(slo_plant.draws(20, 7)), list(slo_plant.draws(40, 7))[:20]
    assert first == again
    assert len({plant.curve for plant in first}) > 1
    none = next(plant for plant in slo_plant.draws(200, 7) if plant.curve == "none")
    assert none.effective(10) == 100


def test_f_004_39_scenario_a_orders_the_policies_as_the_source(runs: dict[str, Run]) -> None:
    """Violations close to those of mba, throughput close to that of pgm (bands of the source's table)."""
    balm, mba, pgm = runs["balm"], runs["mba"], runs["pgm"]
    assert balm.violation_s <= 1.17 * mba.violation_s + 0.5
    assert balm.throughput >= 0.94 * pgm.throughput
    assert balm.throughput > 1.2 * mba.throughput
    assert balm.throughput > runs["unshared"].throughput
    assert runs["unmanaged"].violation_s > 0.9 * runs["unmanaged"].seconds


def test_f_004_40_scenario_b_gives_more_than_mba_and_violates_less_than_pgm() -> None:
    bench = BalmExperiment(scenario_b("oc", 5.0), TRAITS, parameters.frozen(), 1, 0.1)
    runs = {policy: bench.run(policy) for policy in ("unmanaged", "mba", "pgm", "balm")}
    assert runs["balm"].throughput > runs["mba"].throughput
    assert runs["balm"].violation_s < runs["pgm"].violation_s < runs["unmanaged"].violation_s


def test_a_controller_that_is_told_the_wrong_nodes_loses_the_gain(
    bench: BalmExperiment, runs: dict[str, Run]
) -> None:
    wrong = bench.run("balm", swap_nodes=True)
    assert wrong.violation_s > runs["balm"].violation_s or (
        wrong.throughput < 0.94 * runs["balm"].throughput
    )
