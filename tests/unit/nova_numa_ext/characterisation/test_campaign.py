# SPDX-License-Identifier: Apache-2.0
"""Which runs are planned on which host, which of them count, and what the file says."""

from dataclasses import replace

import pytest

from nova_numa_ext.characterisation import profiles
from nova_numa_ext.characterisation.campaign import (
    MeasuredRun,
    NotAsPlannedError,
    measure,
    same_gpus,
    same_sockets,
)
from nova_numa_ext.characterisation.plan import Experiment, Surroundings, experiments
from nova_numa_ext.policy.gpu.job import parse_profiles
from nova_numa_ext.simulator.gpu.machines import graph
from placement_traits.errors import CapabilityMissingError, InvalidValueError


class Scripted:
    """A host that takes 10 s, 12 s beside another workload, and tells of GPUs what it is told to."""

    def __init__(self, **changes: object) -> None:
        self.changes = changes
        self.order: list[Experiment] = []

    def run(self, experiment: Experiment) -> MeasuredRun:
        self.order.append(experiment)
        took_s = 12.0 if experiment.other else 10.0
        return replace(MeasuredRun(took_s, experiment.gpus, experiment.other_gpus), **self.changes)


def test_the_plan_on_a_dgx1() -> None:
    one, spread, beside = experiments(graph("dgx1"), ["a"], 2)
    sockets = graph("dgx1").sockets
    assert (one.surroundings, spread.surroundings) == (Surroundings.PACK, Surroundings.SPREAD)
    assert len({sockets[gpu] for gpu in one.gpus}) == 1
    assert len({sockets[gpu] for gpu in spread.gpus}) == 2
    assert beside.gpus == one.gpus
    assert not set(beside.gpus) & set(beside.other_gpus)
    assert len({sockets[gpu] for gpu in beside.gpus + beside.other_gpus}) == 1


def test_a_minsky_holds_no_two_pairs_on_one_socket() -> None:
    with pytest.raises(
        CapabilityMissingError, match=r"a socket needs 4 GPUs; the largest .* has 2"
    ):
        experiments(graph("minsky"), ["a"], 2)


def test_one_gpu_has_no_distance_to_measure() -> None:
    found = experiments(graph("minsky"), ["a", "b"], 1, ["b"])
    assert Surroundings.SPREAD not in {one.surroundings for one in found}
    assert [one.workload for one in found if one.surroundings is Surroundings.REMOTE] == ["b"]
    assert {(one.workload, one.other) for one in found if one.other} == {
        ("a", "a"),
        ("a", "b"),
        ("b", "a"),
        ("b", "b"),
    }


@pytest.mark.parametrize(
    ("workloads", "gpus", "remote", "sentence"),
    [
        (["a", "a"], 1, [], "each once"),
        ([], 1, [], "at least one name"),
        (["a"], 0, [], "a number >= 1"),
        (["a"], 1, ["b"], "remote: 'b' is not allowed; allowed: a"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(
    workloads: list[str], gpus: int, remote: list[str], sentence: str
) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        experiments(graph("dgx1"), workloads, gpus, remote)


def test_all_runs_are_made_in_drawn_order() -> None:
    host, plan = Scripted(), experiments(graph("dgx1"), ["a", "b"], 2)
    found = measure(host, plan, as_planned=same_gpus)
    assert {len(seconds) for seconds in found.values()} == {5}
    assert len(host.order) == 5 * len(plan)
    assert host.order != [one for one in plan for _ in range(5)]
    with pytest.raises(InvalidValueError, match="a number >= 5"):
        measure(host, plan, as_planned=same_gpus, runs=4)


@pytest.mark.parametrize("changes", [{"gpus": (7,)}, {"seconds": 0.0}])
def test_a_run_on_other_gpus_or_without_an_end_does_not_count(changes: dict[str, object]) -> None:
    with pytest.raises(NotAsPlannedError, match=r"a \(pack\) did not run as planned in 3 tries"):
        measure(Scripted(**changes), experiments(graph("dgx1"), ["a"], 2)[:1], as_planned=same_gpus)


def test_in_a_cloud_other_gpus_of_the_same_shape_count() -> None:
    as_planned = same_sockets(graph("dgx1").sockets)
    pack, spread, beside = experiments(graph("dgx1"), ["a"], 2)
    assert as_planned(pack, MeasuredRun(1.0, (4, 5)))
    assert not as_planned(pack, MeasuredRun(1.0, (0, 4)))
    assert as_planned(spread, MeasuredRun(1.0, (1, 7)))
    assert as_planned(beside, MeasuredRun(1.0, (4, 5), (6, 7)))
    assert not as_planned(beside, MeasuredRun(1.0, (0, 1), (4, 5)))
    assert not as_planned(beside, MeasuredRun(1.0, (0, 1)))


def test_the_file_says_where_it_is_from_and_that_emulated_figures_are_void() -> None:
    found = measure(Scripted(), experiments(graph("dgx1"), ["a"], 2, ["a"]), as_planned=same_gpus)
    shown = profiles.text(found, "lab,\nhost h2", void=True)
    assert "# Source: lab, host h2\n" in shown
    assert "# VOID: emulated hardware." in shown
    assert "VOID" not in profiles.text(found, "lab")
    store = parse_profiles(profiles.document(found))
    assert store.slowdown("a", "a") == pytest.approx(1.2)
    assert store.get("a").spread == 1.0
