# SPDX-License-Identifier: Apache-2.0
"""Utility of GPU sets: the hand-computed vectors of the reference and the properties that keep it honest."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.gpu_machines import random_scene
from nova_numa_ext.policy.gpu.job import JobGraph, Profile, ProfileStore
from nova_numa_ext.policy.gpu.utility import (
    THIRDS,
    HostGpus,
    Neighbour,
    Scene,
    UtilityOptions,
    communication,
    slowdowns,
)
from nova_numa_ext.simulator.gpu.machines import graph
from placement_traits.errors import InvalidValueError

MINSKY = graph("minsky")
# Everybody slows everybody by 30 %, as in the fitted replay of table 7.
EQUAL = ProfileStore({"job": Profile("job", spread=1.3, beside={"*": 1.3})})


def utility(gpus: tuple[int, ...], free: int, *busy: int, store: ProfileStore = EQUAL) -> float:
    """U of GPUs for a communicating job beside jobs on the masks ``busy``."""
    host = HostGpus(MINSKY, free, tuple(Neighbour("job", mask) for mask in busy))
    return Scene(JobGraph.complete(len(gpus), 4), "job", host, store, THIRDS).terms(gpus).utility


def test_f_000_10_communication_is_the_sum_of_shortest_paths() -> None:
    """Eq. 3 on Minsky: pair 1, across 42, three 85, four 170; here as a mean over the farthest pair."""
    for gpus, total in (((0, 1), 1), ((0, 3), 42), ((0, 1, 2), 85), ((0, 1, 2, 3), 170)):
        pairs = len(gpus) * (len(gpus) - 1) / 2
        found = communication(MINSKY, JobGraph.complete(len(gpus), 4), gpus)
        assert found == pytest.approx(total / pairs / 42)


def test_f_000_10_heavy_edges_count_more() -> None:
    part = JobGraph(3, ((0, 1, 4.0), (1, 2, 1.0)))
    assert communication(MINSKY, part, (0, 1, 2)) < communication(MINSKY, part, (0, 2, 3))


def test_f_000_10_one_gpu_and_a_full_socket_divide_by_nothing() -> None:
    assert communication(MINSKY, JobGraph.complete(1, 4), (0,)) == 0.0
    assert utility((3,), 0b1000, 0b0111) == pytest.approx(1 - (0 + 1 + 0.5) / 3)


def test_f_000_10_slowdowns_are_collocation_over_solo_time() -> None:
    """Eq. 4 turned the right way up: a new job 100 -> 130 s beside one that does not mind."""
    store = ProfileStore({"new": Profile("new", beside={"old": 1.3})})
    jobs = [Neighbour("new", 0b01), Neighbour("old", 0b10)]
    assert slowdowns(MINSKY, jobs, store) == [1.3, 1.0]
    assert slowdowns(MINSKY, [jobs[0], Neighbour("old", 0b100)], store) == [1.0, 1.0]


def test_f_000_10_the_story_of_table_7_in_numbers() -> None:
    """Section 8.1 of the reference: U of each decision of the replay."""
    assert utility((1,), 0b1110, 0b0001) == pytest.approx(0.500, abs=5e-4)  # J1 beside J0
    assert utility((2,), 0b1110, 0b0001) == pytest.approx(0.667, abs=5e-4)  # J1 on the other socket
    assert utility((1,), 0b1010, 0b0001, 0b0100) == pytest.approx(0.611, abs=5e-4)  # J2, a tie
    assert utility((3,), 0b1010, 0b0001, 0b0100) == pytest.approx(0.611, abs=5e-4)
    assert utility((0, 3), 0b1001, 0b0010, 0b0100) == pytest.approx(0.167, abs=5e-4)  # J3 waits
    assert utility((0, 3), 0b1001) == pytest.approx(0.500, abs=5e-4)  # the boundary case
    assert utility((0, 1), 0b1111) == pytest.approx(0.659, abs=5e-4)  # an empty socket


def test_f_000_10_j2_with_a_less_sensitive_j1() -> None:
    store = ProfileStore(
        {
            "job": Profile("job", beside={"*": 1.3}),
            "j1": Profile("j1", beside={"*": 1.225}),
        }
    )
    host = HostGpus(MINSKY, 0b1010, (Neighbour("job", 0b0001), Neighbour("j1", 0b0100)))
    scene = Scene(JobGraph.complete(1, 4), "job", host, store, THIRDS)
    assert scene.terms((3,)).utility == pytest.approx(0.639, abs=5e-4)


def test_f_000_10_terms_are_reasons() -> None:
    host = HostGpus(MINSKY, 0b1111)
    terms = Scene(JobGraph.complete(2, 4), "job", host, EQUAL, THIRDS).terms((0, 3))
    assert [str(reason) for reason in terms.reasons] == [
        "gpu_utility=0.3333 (against 1)",
        "gpu_communication=1 (against 0)",
        "gpu_interference=0 (against 0)",
        "gpu_fragmentation=1 (against 0)",
    ]


def test_f_000_10_what_others_do_to_each_other_is_not_held_against_a_job() -> None:
    noisy = HostGpus(MINSKY, 0b0011, (Neighbour("job", 0b0100), Neighbour("job", 0b1000)))
    terms = Scene(JobGraph.complete(2, 4), "job", noisy, EQUAL, THIRDS).terms((0, 1))
    assert terms.interference == 0.0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (UtilityOptions(1.0, 0.0, 0.0), 1 - 1.0),
        (UtilityOptions(0.0, 1.0, 0.0), 1 - 2 / 3),
        (UtilityOptions(0.0, 0.0, 1.0), 1 - 0.5),
        (UtilityOptions(0.2, 0.3, 0.5), 1 - (0.2 * 1.0 + 0.3 * 2 / 3 + 0.5 * 0.5)),
        (UtilityOptions(0.0, 1.0, 0.0, worst_slowdown=1.6), 1 - 2 / 3 / 2),
        (UtilityOptions(0.0, 1.0, 0.0, worst_slowdown=1.1), 1 - 2 / 3),
    ],
)
def test_f_000_10_each_weight_belongs_to_its_term(options: UtilityOptions, expected: float) -> None:
    """F-000-10: T = 1 across sockets, B = 2/3 beside one harmless and one disturbing job, F = 0.5."""
    store = ProfileStore({"job": Profile("job", beside={"job": 1.3})})
    host = HostGpus(MINSKY, 0b1001, (Neighbour("job", 0b0010), Neighbour("quiet", 0b0100)))
    terms = Scene(JobGraph.complete(2, 4), "job", host, store, options).terms((0, 3))
    assert terms.utility == pytest.approx(expected)


@pytest.mark.parametrize("weights", [(0.5, 0.5, 0.5), (1.5, -0.5, 0.0)])
def test_weights_that_do_not_sum_to_one_are_refused(weights: tuple[float, float, float]) -> None:
    with pytest.raises(InvalidValueError, match="sum 1"):
        UtilityOptions(*weights)


@given(seed=st.integers(0, 10**6))
def test_f_000_10_every_term_and_the_utility_lie_between_0_and_1(seed: int) -> None:
    scene = random_scene(random.Random(seed))
    free = [gpu for gpu in range(8) if scene.host.free >> gpu & 1]
    terms = scene.terms(tuple(free[: scene.part.tasks]))
    for value in (terms.communication, terms.interference, terms.fragmentation, terms.utility):
        assert -1e-9 <= value <= 1 + 1e-9


@given(low=st.floats(1.0, 1.3), more=st.floats(0.001, 0.3), busy=st.sampled_from([1, 2, 4, 8, 6]))
def test_f_000_11_more_interference_means_less_utility(low: float, more: float, busy: int) -> None:
    """Strictly while below the worst slowdown; the printed Eq. 2 does the opposite."""
    high = min(1.3, low + more)
    gpus = tuple(gpu for gpu in (0, 2) if not busy >> gpu & 1)

    def with_slowdown(slowdown: float) -> float:
        store = ProfileStore({"job": Profile("job", beside={"*": slowdown})})
        return utility(gpus, 15 & ~busy, busy, store=store)

    shares_a_socket = MINSKY.touched(busy) & MINSKY.touched(sum(1 << gpu for gpu in gpus))
    if shares_a_socket and high > low + 1e-6:
        assert with_slowdown(high) < with_slowdown(low)
    else:
        assert with_slowdown(high) <= with_slowdown(low)
