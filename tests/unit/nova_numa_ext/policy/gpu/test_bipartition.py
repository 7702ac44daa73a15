# SPDX-License-Identifier: Apache-2.0
"""Dual recursive bipartitioning against the graphs it must cut and the optimum it should find."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.gpu_machines import random_graph, random_scene
from nova_numa_ext.policy.gpu.bipartition import bipartition, drb, mean_distance, refine
from nova_numa_ext.policy.gpu.graph import GpuGraph, mask_of, members
from nova_numa_ext.policy.gpu.job import COMM_PROFILES, JobGraph, comm_profile
from nova_numa_ext.policy.gpu.placement import nearest
from nova_numa_ext.policy.gpu.utility import THIRDS, HostGpus, Scene
from nova_numa_ext.simulator.gpu.machines import graph

MINSKY, DGX1 = graph("minsky"), graph("dgx1")


def test_f_000_12_minsky_is_cut_between_sockets_and_dgx1_between_quads() -> None:
    assert bipartition(MINSKY, 0b1111) == (0b0011, 0b1100)
    assert bipartition(DGX1, 0b11111111) == (0b00001111, 0b11110000)


def test_f_000_12_a_lone_gpu_is_cut_off_from_a_linked_quad() -> None:
    assert bipartition(DGX1, 0b00011111) == (0b00001111, 0b00010000)
    assert bipartition(MINSKY, 0b1101) == (0b0001, 0b1100)


def brute_force_ratio_cut(graph: GpuGraph, mask: int) -> float:
    """Smallest cut / (size * size) over all cuts in two."""
    gpus = list(members(mask))
    ratios = []
    for size in range(1, len(gpus) // 2 + 1):
        for side in itertools.combinations(gpus, size):
            rest = [gpu for gpu in gpus if gpu not in side]
            ratios.append(ratio_cut(graph, side, rest))
    return min(ratios)


def ratio_cut(graph: GpuGraph, one, other) -> float:
    cut = sum(1 / graph.distances[a][b] for a in one for b in other)
    return cut / (len(one) * len(other))


def test_f_000_12_cuts_are_near_the_smallest_ratio_cut() -> None:
    draw = random.Random(12)
    excess = []
    for _ in range(300):
        found = random_graph(draw)
        one, other = bipartition(found, found.all)
        assert one | other == found.all and not one & other and one & 1 and other
        ratio = ratio_cut(found, list(members(one)), list(members(other)))
        excess.append(ratio / brute_force_ratio_cut(found, found.all))
    assert sum(excess) / len(excess) < 1.02
    assert sum(value < 1 + 1e-9 for value in excess) > 0.85 * len(excess)


def scene(graph: GpuGraph, part: JobGraph, free: int) -> Scene:
    return Scene(part, comm_profile(4), HostGpus(graph, free), COMM_PROFILES, THIRDS)


def test_f_000_13_two_talkative_tasks_go_to_one_socket_when_one_is_free() -> None:
    for free in (0b1111, 0b1110, 0b1101, 0b1011, 0b0111):
        gpus = drb(scene(MINSKY, JobGraph.complete(2, 4), free))
        assert MINSKY.touched(mask_of(gpus)).bit_count() == 1


def test_f_000_13_a_quad_of_tasks_fills_a_quad_of_gpus() -> None:
    assert sorted(drb(scene(DGX1, JobGraph.complete(4, 4), DGX1.all))) == [0, 1, 2, 3]
    assert sorted(drb(scene(DGX1, JobGraph.complete(4, 4), 0b11111110))) == [4, 5, 6, 7]


def test_f_000_13_pairs_that_talk_stay_together_when_the_job_is_split() -> None:
    part = JobGraph(4, ((0, 2, 4.0), (1, 3, 4.0)))
    gpus = drb(scene(MINSKY, part, 0b1111))
    assert MINSKY.sockets[gpus[0]] == MINSKY.sockets[gpus[2]]
    assert MINSKY.sockets[gpus[1]] == MINSKY.sockets[gpus[3]]


@given(seed=st.integers(0, 10**6))
def test_f_000_13_the_mapping_is_one_to_one_and_onto_free_gpus(seed: int) -> None:
    found = random_scene(random.Random(seed))
    for gpus in (drb(found), refine(found, drb(found))):
        assert len(gpus) == len(set(gpus)) == found.part.tasks
        assert not mask_of(gpus) & ~found.host.free


@given(seed=st.integers(0, 10**6))
def test_f_000_13_refinement_never_loses(seed: int) -> None:
    found = random_scene(random.Random(seed))
    start = drb(found)
    assert found.terms(refine(found, start)).utility >= found.terms(start).utility


def ratios(count: int, seed: int) -> list[float]:
    """Utility of bipartitioning over that of exact search; every fourth world is a DGX-1 with random busy GPUs."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        world = random_scene(draw, None if number % 4 else DGX1)
        best = max(
            world.terms(gpus).utility
            for gpus in nearest(world.graph, world.host.free, world.part).values()
        )
        utility = world.terms(refine(world, drb(world))).utility
        assert utility <= best + 1e-9
        found.append(utility / best if best > 1e-9 else 1.0)
    return found


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_f_000_13_bipartitioning_comes_within_one_per_cent_of_the_optimum(count: int) -> None:
    """On average."""
    found = ratios(count, seed=14)
    assert sum(found) / len(found) >= 0.99


def test_mean_distance_of_sets() -> None:
    assert mean_distance(MINSKY, 0b0001, 0b0001) == 0
    assert mean_distance(MINSKY, 0b0011, 0b0011) == 1
    assert mean_distance(MINSKY, 0b0011, 0b1100) == 42
