# SPDX-License-Identifier: Apache-2.0
"""The controls of the GPU benchmark say what they should where something is wrong."""

from dataclasses import replace

import pytest

from benchmarks import gpu_controls
from nova_numa_ext.policy.gpu.bipartition import drb
from nova_numa_ext.policy.gpu.utility import THIRDS, Scene
from nova_numa_ext.simulator.gpu.machines import fleet
from nova_numa_ext.simulator.gpu.simulation import Simulation, StrategyView
from nova_numa_ext.simulator.gpu.workload import Model, load_model, poisson

MODEL = load_model()


def test_exchanged_profiles_make_the_sensitive_look_robust() -> None:
    right, wrong = MODEL.store(), gpu_controls.exchanged(MODEL)
    assert wrong.slowdown("alexnet-tiny", "alexnet-tiny") == right.slowdown(
        "alexnet-large", "alexnet-large"
    )
    assert wrong.get("alexnet-large").spread == right.get("alexnet-tiny").spread


def test_jobs_run_by_the_right_profiles_whatever_the_strategy_believes() -> None:
    """A strategy that does not look at profiles gives the same run with wrong ones."""
    jobs = poisson(MODEL, 20, 10, seed=1)
    runs = [
        Simulation(
            fleet("minsky:1"), jobs, "fcfs", MODEL.store(), StrategyView(profiles=seen)
        ).run()
        for seen in (None, gpu_controls.exchanged(MODEL))
    ]
    assert [r.end_s for r in runs[0].records] == [r.end_s for r in runs[1].records]


def test_violations_grow_as_owners_accept_less(capsys: pytest.CaptureFixture[str]) -> None:
    figures = gpu_controls.objectives(MODEL, 2)
    for name in ("bf", "topo_p"):
        by_objective = [
            figures[f"violations_{name}_objective_{limit}"] for limit in (120, 125, 128)
        ]
        assert by_objective == sorted(by_objective, reverse=True)
        assert by_objective[0] > 0, "an objective that nothing misses shows nothing"
    assert "topo_p, wrong profiles" in capsys.readouterr().out


@pytest.mark.parametrize(("limit", "asked"), [(THIRDS.exact_limit, False), (0, True)])
def test_bipartitioning_really_answers_where_exact_search_is_off(
    limit: int, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(scene: Scene) -> tuple[int, ...]:
        calls.append(scene)
        return drb(scene)

    monkeypatch.setattr("nova_numa_ext.policy.gpu.placement.drb", counted)
    document = {**MODEL.document, "jobs": {**MODEL.document["jobs"], "gpus": [4, 8]}}
    wide = Model(document, MODEL.digest)
    options = replace(THIRDS, exact_limit=limit)
    jobs = poisson(wide, 12, 10, seed=1)
    Simulation(fleet("cube16:1"), jobs, "topo", wide.store(), StrategyView(options=options)).run()
    assert bool(calls) is asked
