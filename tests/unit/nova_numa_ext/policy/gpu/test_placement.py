# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a job gets: policies, constraints, minimum utility, several hosts."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.gpu_machines import random_scene
from nova_numa_ext.policy.gpu import placement as gpu_placement
from nova_numa_ext.policy.gpu.graph import GpuGraph, from_edges, members
from nova_numa_ext.policy.gpu.job import GpuJob, JobGraph, Profile, ProfileStore, flavor_job
from nova_numa_ext.policy.gpu.placement import (
    MOST_ENDINGS,
    assignments,
    choose,
    nearest,
    place_parts,
    rank,
    search,
    spread_stretch,
)
from nova_numa_ext.policy.gpu.utility import THIRDS, HostGpus, Neighbour
from nova_numa_ext.policy.terms import Term, sentence
from nova_numa_ext.simulator.gpu.machines import graph
from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuPolicy
from placement_traits.reason import Reason

MINSKY, DGX1 = graph("minsky"), graph("dgx1")
EQUAL = ProfileStore({"job": Profile("job", spread=1.3, beside={"*": 1.3})})


def wide_host(gpus: int, sockets: int) -> GpuGraph:
    """GPUs dealt to sockets in turn, no direct links."""
    names = [f"g{number}" for number in range(gpus)]
    of = [number % sockets for number in range(gpus)]
    edges = [("machine", ("socket", socket), 20.0) for socket in range(sockets)]
    edges += [(name, ("socket", socket), 1.0) for name, socket in zip(names, of, strict=True)]
    return from_edges(edges, names, of, "machine")


@given(seed=st.integers(0, 10**6))
def test_f_000_13_exact_search_is_the_brute_force_optimum(seed: int) -> None:
    draw = random.Random(seed)
    scene = random_scene(draw)
    free = list(members(scene.host.free))
    if assignments(JobGraph(scene.part.tasks), len(free)) > 100 or scene.part.tasks > 4:
        return
    best = max(scene.terms(gpus).utility for gpus in itertools.permutations(free, scene.part.tasks))
    assert max(placement.utility for placement in search(scene)) == pytest.approx(best)


def test_f_000_13_eight_free_gpus_are_searched_exactly_and_many_more_are_bipartitioned() -> None:
    for tasks in range(1, 9):
        assert assignments(JobGraph.complete(tasks, 4), 8) <= THIRDS.exact_limit
    host = HostGpus(wide_host(24, 4), (1 << 24) - 1)
    job = flavor_job(8, comm=4)
    assert assignments(job.graph, 24) > THIRDS.exact_limit
    choice = choose(job, host)
    assert len(choice.ranked) == 1
    assert len(set(choice.ranked[0].gpus)) == 8
    # 8 tasks on 4 sockets of 6: bipartitioning must not use more than two sockets.
    assert host.graph.touched(choice.ranked[0].mask).bit_count() == 2


def test_f_000_14_pack_picks_a_linked_pair_and_spread_two_sockets() -> None:
    host = HostGpus(MINSKY, 0b1110)
    assert choose(flavor_job(2, 4), host, GpuPolicy.PACK).ranked[0].gpus == (2, 3)
    assert choose(flavor_job(2, 4), host, GpuPolicy.SPREAD).ranked[0].gpus == (1, 2)


def test_f_000_14_of_equally_near_gpus_pack_takes_those_of_most_utility() -> None:
    """One GPU is near to itself everywhere; 0 is beside a job that disturbs."""
    host = HostGpus(MINSKY, 0b1101, (Neighbour("comm-4", 0b0010),))
    assert choose(flavor_job(1, 4), host, GpuPolicy.PACK).ranked[0].gpus == (2,)


def test_f_000_14_pack_wants_near_gpus_even_without_communication() -> None:
    assert choose(flavor_job(2, 0), HostGpus(MINSKY, 0b1110), GpuPolicy.PACK).ranked[0].gpus == (
        2,
        3,
    )


def test_f_000_14_spread_shares_evenly() -> None:
    chosen = choose(flavor_job(4, 0), HostGpus(DGX1, DGX1.all), GpuPolicy.SPREAD).ranked[0]
    assert [(mask & chosen.mask).bit_count() for mask in DGX1.socket_masks] == [2, 2]
    wide = HostGpus(wide_host(24, 4), (1 << 24) - 1)
    chosen = choose(flavor_job(8, 0), wide, GpuPolicy.SPREAD).ranked[0]
    assert [(mask & chosen.mask).bit_count() for mask in wide.graph.socket_masks] == [2, 2, 2, 2]


def test_f_000_14_spread_ranks_even_sets_before_uneven_ones() -> None:
    """F-000-14: both touch two sockets and are worth the same; the lower numbers alone would win."""
    sets = [(0, 1, 2, 4), (0, 1, 4, 5)]
    ranked = rank(flavor_job(4, 0), HostGpus(DGX1, DGX1.all), sets, GpuPolicy.SPREAD)
    assert ranked[0].utility == ranked[1].utility
    assert ranked[0].gpus == (0, 1, 4, 5)


def test_f_000_14_topo_leaves_a_noisy_socket_and_mends_a_broken_one() -> None:
    noisy = HostGpus(MINSKY, 0b1110, (Neighbour("job", 0b0001),))
    one = GpuJob((JobGraph.complete(1, 4),), "job")
    assert choose(one, noisy, store=EQUAL).ranked[0].gpus == (2,)
    quiet = HostGpus(MINSKY, 0b1110, (Neighbour("unknown", 0b0001),))
    silent = GpuJob((JobGraph.complete(1, 4),), "also unknown")
    assert choose(silent, quiet, store=EQUAL).ranked[0].gpus == (1,)


def test_f_000_09_too_few_gpus_and_too_little_bandwidth_are_refused_with_the_numbers() -> None:
    choice = choose(flavor_job(3, 4), HostGpus(MINSKY, 0b0011))
    assert not choice.satisfied and choice.best is None
    assert str(choice.reasons[0]) == "gpus_free=2 (against 3)"
    busy_memory = HostGpus(MINSKY, 0b0011, bandwidth_mbps=9_000)
    choice = choose(flavor_job(1, 4, bandwidth_mbps=10_000), busy_memory)
    assert choice.ranked == ()
    assert str(choice.reasons[1]) == "bandwidth_free_mbps=9000 (against 10000)"
    assert choose(flavor_job(1, 4, bandwidth_mbps=9_000), busy_memory).satisfied


def test_f_000_15_a_placement_below_the_minimum_says_what_would_be_needed() -> None:
    """J3 of table 7 at the end of J0: GPUs 0 and 3 are free, jobs on 1 and 2."""
    host = HostGpus(MINSKY, 0b1001, (Neighbour("job", 0b0010), Neighbour("job", 0b0100)))
    j3 = GpuJob((JobGraph.complete(2, 3),), "job", min_utility=0.5)
    choice = choose(j3, host, GpuPolicy.TOPO_P, store=EQUAL)
    assert choice.ranked[0].gpus == (0, 3)
    assert not choice.satisfied
    assert str(choice.reasons[0]) == "gpu_utility_below_minimum=0.1667 (against 0.5)"
    assert choice.reasons[-1] == Reason(
        Term.GPU_NEEDED, 0.659, "0000:02:00.0", "0000:01:00.0, 0000:02:00.0"
    )
    assert sentence(choice.reasons[-1]) == (
        "needed: GPUs 0000:01:00.0, 0000:02:00.0 with utility 0.659, when the jobs on 0000:02:00.0 end"
    )


def test_f_000_15_a_minimum_that_is_just_reached_is_reached() -> None:
    """Now, and by what a refusal names as needed."""
    later = HostGpus(MINSKY, 0b1011, (Neighbour("job", 0b0100),))
    best = choose(GpuJob((JobGraph.complete(2, 3),), "job"), later, store=EQUAL).best
    assert best is not None
    j3 = GpuJob((JobGraph.complete(2, 3),), "job", min_utility=best.utility)
    assert choose(j3, later, store=EQUAL).satisfied
    host = HostGpus(MINSKY, 0b1001, (Neighbour("job", 0b0010), Neighbour("job", 0b0100)))
    needed = choose(j3, host, store=EQUAL).reasons[-1]
    assert (needed.term, needed.against) == (Term.GPU_NEEDED, "0000:02:00.0")


def test_f_000_15_a_minimum_that_no_set_of_the_host_reaches_is_said_to_be_so() -> None:
    greedy = flavor_job(4, 4, min_utility=0.9)
    reason = choose(greedy, HostGpus(MINSKY, 0b1111)).reasons[-1]
    assert reason == Reason(Term.GPU_NEVER, 0.9)


def test_a_refusal_looks_at_few_endings_however_many_jobs_run(monkeypatch) -> None:
    """On 24 GPUs there are 8 million sets of jobs; the scheduler must not look at them while nova waits."""
    looks = []
    monkeypatch.setattr(
        gpu_placement, "search", lambda *args, **more: looks.append(1) or search(*args, **more)
    )
    busy = tuple(Neighbour("comm-4", 1 << number) for number in range(2, 24))
    host = HostGpus(wide_host(24, 4), 0b11, busy)
    reason = choose(flavor_job(2, 4, min_utility=0.99), host).reasons[-1]
    assert reason.term == Term.GPU_NEVER
    assert len(looks) == 1 + MOST_ENDINGS + 1
    reason = choose(flavor_job(2, 4, min_utility=0.8), host).reasons[-1]
    assert (reason.term, reason.against) == (Term.GPU_NEEDED, "g4")


def test_candidate_sets_of_somebody_else_are_ranked() -> None:
    host = HostGpus(MINSKY, 0b1111)
    sets = [(0, 2), (1, 3), (2, 3), (0, 1)]
    best_first = [placement.gpus for placement in rank(flavor_job(2, 4), host, sets)]
    assert best_first == [(0, 1), (2, 3), (0, 2), (1, 3)]
    spread = [placement.gpus for placement in rank(flavor_job(2, 4), host, sets, GpuPolicy.SPREAD)]
    assert spread == [(0, 2), (1, 3), (0, 1), (2, 3)]


def test_f_000_08_disconnected_graphs_go_to_different_hosts_or_nowhere() -> None:
    pair = JobGraph.complete(2, 4)
    job = GpuJob((pair, pair))
    hosts = {"a": HostGpus(MINSKY, 0b1111), "b": HostGpus(MINSKY, 0b1111)}
    placed = place_parts(job, hosts)
    assert placed is not None
    assert sorted(host for host, _ in placed.values()) == ["a", "b"]
    assert place_parts(job, {"a": HostGpus(MINSKY, 0b1111)}) is None


def test_f_000_08_the_largest_part_chooses_first() -> None:
    job = GpuJob((JobGraph.complete(1, 4), JobGraph.complete(4, 4)))
    hosts = {"small": HostGpus(MINSKY, 0b0001), "large": HostGpus(MINSKY, 0b1111)}
    placed = place_parts(job, hosts)
    assert placed is not None
    assert placed[1][0] == "large" and placed[0][0] == "small"


def test_choosing_for_one_host_needs_one_part() -> None:
    pair = JobGraph.complete(2, 4)
    with pytest.raises(InvalidValueError, match="one graph"):
        choose(GpuJob((pair, pair)), HostGpus(MINSKY, 0b1111))


def test_geometry_is_searched_once_per_free_set() -> None:
    part = JobGraph.complete(2, 4)
    first = nearest(DGX1, 0b1111, part)
    assert nearest(DGX1, 0b1111, JobGraph.complete(2, 4)) is first


def test_run_time_grows_with_distance_between_the_two_measured_ends() -> None:
    pair, four = JobGraph.complete(2, 4), JobGraph.complete(4, 4)
    assert spread_stretch(MINSKY, pair, (0, 1), 1.3) == pytest.approx(1.0)
    assert spread_stretch(MINSKY, pair, (0, 3), 1.3) == pytest.approx(1.3)
    assert spread_stretch(MINSKY, four, (0, 1, 2, 3), 1.3) == pytest.approx(1.2)
    assert spread_stretch(MINSKY, JobGraph.complete(1, 4), (0,), 1.3) == 1.0
