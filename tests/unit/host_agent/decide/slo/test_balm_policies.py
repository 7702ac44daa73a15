# SPDX-License-Identifier: Apache-2.0
"""BALM against the other policies on the modelled hosts of its source: one program each of ``make bench-balm``.

The plant has more in it than the source gives, so these show the order of the policies, not the source's numbers.
"""

import pytest

from benchmarks.bench_balm import BalmExperiment, Doing, Run, scenario_a, scenario_b
from emulation.physics import parameters, slo_plant

SEED = 5
POLL_S = 0.1


def runs(bench: BalmExperiment, *policies: str) -> dict[str, Run]:
    return {policy: bench.run(policy) for policy in policies}


@pytest.fixture(scope="module")
def scenario_a_oc() -> dict[str, Run]:
    """Memcached at full load beside Ocean_cp on the other socket."""
    scenario = scenario_a("oc", 1.0)
    bench = BalmExperiment(scenario, slo_plant.frozen(), parameters.frozen(), SEED, POLL_S)
    return runs(bench, "mba", "pgm", "unshared", "balm")


def test_f_004_39_violates_hardly_longer_than_mba(scenario_a_oc: dict[str, Run]) -> None:
    """F-004-39: violation time <= 1.17 x mba (+ 0.5 s per 100 s, the resolution of the plant)."""
    mba, ours = scenario_a_oc["mba"], scenario_a_oc["balm"]
    assert ours.violation_per_100s <= 1.17 * mba.violation_per_100s + 0.5


def test_f_004_39_gives_nearly_the_throughput_of_page_moves(scenario_a_oc: dict[str, Run]) -> None:
    """F-004-39: throughput >= 0.94 x pgm, and above mba and unshared."""
    ours = scenario_a_oc["balm"].throughput
    assert ours >= 0.94 * scenario_a_oc["pgm"].throughput
    assert ours > scenario_a_oc["mba"].throughput
    assert ours > scenario_a_oc["unshared"].throughput


def test_violations_are_booked_on_what_was_done_last(scenario_a_oc: dict[str, Run]) -> None:
    """Both notice and heal alike: what differs comes after that."""
    mba, ours = scenario_a_oc["mba"], scenario_a_oc["balm"]
    for run in (mba, ours):
        assert sum(run.violated.values()) == pytest.approx(run.violation_s)
    for doing in (Doing.NOTICING, Doing.HEALING):
        assert ours.violated[doing] == pytest.approx(mba.violated[doing])
    assert set(+scenario_a_oc["unshared"].violated) <= {Doing.NOTICING}, "it does nothing"
    trials, pages = Run(), Run()
    trials.violated.update({Doing.NOTICING: 0.2, Doing.TRIAL: 0.3, Doing.UNDOING: 0.3})
    pages.violated.update({Doing.NOTICING: 0.2, Doing.PAGES: 0.5})
    assert trials.longer_by(Run()) is Doing.TRIAL
    assert trials.longer_by(pages) is Doing.TRIAL
    assert pages.longer_by(trials) is Doing.PAGES


@pytest.mark.parametrize(
    "heavy",
    [
        pytest.param("oc", marks=pytest.mark.long),
        "mg",
        "sp",
        pytest.param("ua", marks=pytest.mark.long),
    ],
)
def test_f_004_40_gives_more_throughput_than_mba_and_heals_what_pages_cannot(heavy: str) -> None:
    """F-004-40, scenario B; the band of violation time is met by SP and UA only, see the reference."""
    bench = BalmExperiment(scenario_b(heavy), slo_plant.frozen(), parameters.frozen(), SEED, POLL_S)
    found = runs(bench, "mba", "pgm", "balm")
    assert found["balm"].throughput > found["mba"].throughput
    assert found["balm"].violation_per_100s < found["pgm"].violation_per_100s
    if heavy in {"sp", "ua"}:
        limit = 1.17 * found["mba"].violation_per_100s + 0.5
        assert found["balm"].violation_per_100s <= limit
