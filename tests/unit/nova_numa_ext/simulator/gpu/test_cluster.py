# SPDX-License-Identifier: Apache-2.0
"""Strategies on a cluster: the greedy baselines, the policies, and the ranking that spares them work."""

import random

import pytest

from nova_numa_ext.policy.gpu.graph import mask_of, members
from nova_numa_ext.policy.gpu.job import GpuJob, JobGraph
from nova_numa_ext.policy.gpu.utility import THIRDS
from nova_numa_ext.simulator.gpu.cluster import (
    STRATEGIES,
    BestFit,
    Cluster,
    FirstCome,
    Place,
    Strategy,
    Topo,
    strategy_class,
)
from nova_numa_ext.simulator.gpu.machines import fleet
from nova_numa_ext.simulator.gpu.workload import load_model, poisson
from placement_traits.errors import InvalidValueError

MODEL = load_model()
STORE = MODEL.store()
ONE, TWO, FOUR = (MODEL.job("alexnet-tiny", gpus) for gpus in (1, 2, 4))


def cluster_with(*busy: int) -> Cluster:
    """Minsky machines with jobs on the masks ``busy``."""
    cluster = Cluster(fleet(f"minsky:{len(busy)}"))
    for machine, mask in enumerate(busy):
        if mask:
            cluster.take(ONE, [Place(machine, 0, tuple(members(mask)))])
    return cluster


def offered(
    kind: type[Strategy], cluster: Cluster, job: GpuJob
) -> list[tuple[int, tuple[int, ...]]]:
    offer = kind(cluster, STORE, THIRDS).offer(job)
    return [] if offer is None else [(place.machine, place.gpus) for place in offer.places]


def test_f_000_18_fcfs_takes_the_first_gpus_of_the_first_machine() -> None:
    assert offered(FirstCome, cluster_with(0b1111, 0b0001, 0), TWO) == [(1, (1, 2))]
    assert offered(FirstCome, cluster_with(0b1111, 0b0111), TWO) == []


def test_f_000_18_best_fit_takes_the_tightest_machine_and_socket() -> None:
    assert offered(BestFit, cluster_with(0, 0b0001, 0b1111), ONE) == [(1, (1,))]
    assert offered(BestFit, cluster_with(0, 0b0001), TWO) == [(1, (2, 3))]
    assert offered(BestFit, cluster_with(0b1000), ONE) == [(0, (2,))]
    assert offered(BestFit, cluster_with(0b0101), TWO) == [(0, (1, 3))]


def test_f_000_18_fleets_of_different_machines_compare_by_share() -> None:
    cluster = Cluster(fleet("dgx1:1,minsky:1"))
    cluster.take(ONE, [Place(0, 0, (0, 1, 2, 3))])
    cluster.take(ONE, [Place(1, 0, (0,))])
    assert offered(BestFit, cluster, ONE) == [(0, (4,))]  # half free, against three quarters


def test_topo_takes_the_quiet_socket_of_all_machines() -> None:
    assert offered(Topo, cluster_with(0b0011, 0b0111), ONE) == [(0, (2,))]


def test_f_000_08_parts_go_to_different_machines() -> None:
    pair = JobGraph.complete(2, 4)
    apart = GpuJob((pair, pair), "alexnet-tiny")
    for kind in (FirstCome, BestFit, Topo):
        machines = [machine for machine, _ in offered(kind, cluster_with(0, 0), apart)]
        assert sorted(machines) == [0, 1]
        assert offered(kind, cluster_with(0b1111, 0), apart) == []


def test_f_000_08_a_single_node_job_waits_and_another_may_span_machines() -> None:
    cluster = cluster_with(0b0011, 0b0001)
    graph = JobGraph.complete(4, 4)
    assert offered(Topo, cluster, GpuJob((graph,), "alexnet-tiny")) == []
    spanning = offered(Topo, cluster, GpuJob((graph,), "alexnet-tiny", single_node=False))
    assert [machine for machine, _ in spanning] == [1, 0]  # most free GPUs first
    assert sum(len(gpus) for _, gpus in spanning) == 4
    assert all(len(gpus) >= 1 for _, gpus in spanning)


def test_f_000_09_memory_bandwidth_that_is_taken_is_not_given_twice() -> None:
    """F-000-09: t_bw <= p_bw, for every strategy, on one machine and over several."""
    hungry = GpuJob((JobGraph.complete(1, 4),), "alexnet-tiny", bandwidth_mbps=60_000)
    wide = GpuJob(
        (JobGraph.complete(6, 4),), "alexnet-tiny", single_node=False, bandwidth_mbps=60_000
    )
    for kind in STRATEGIES.values():
        cluster = Cluster(fleet("minsky:2"), bandwidth_mbps=100_000)
        cluster.take(hungry, [Place(0, 0, (0,))])
        assert [machine for machine, _ in offered(kind, cluster, hungry)] == [1]
        assert offered(kind, cluster, wide) == []
        cluster.take(hungry, [Place(1, 0, (0,))])
        assert offered(kind, cluster, hungry) == []
        assert offered(kind, cluster, ONE) != []
        cluster.give(hungry, [Place(0, 0, (0,))])
        assert [machine for machine, _ in offered(kind, cluster, hungry)] == [0]


def test_a_job_leaves_its_gpus_as_it_found_them() -> None:
    cluster = cluster_with(0b0001)
    before = cluster.hosts[0]
    place = Place(0, 0, (2, 3))
    cluster.take(ONE, [place])
    assert cluster.hosts[0].free == 0b0010
    cluster.give(ONE, [place])
    assert cluster.hosts[0] == before


@pytest.mark.parametrize("name", ["topo", "topo_p", "pack", "spread"])
def test_the_ranking_answers_as_a_look_at_every_machine_would(name: str) -> None:
    """400 random starts and ends on a mixed fleet; each answer against choosing afresh on all machines."""
    draw = random.Random(name)
    cluster = Cluster(fleet("minsky:6,dgx1:2"))
    strategy = strategy_class(name)(cluster, STORE, THIRDS)
    running: list[tuple[GpuJob, tuple[Place, ...]]] = []
    jobs = [submission.job for submission in poisson(MODEL, 400, 10, seed=5)]
    for job in jobs:
        if running and draw.random() < 0.4:
            cluster.give(*running.pop(draw.randrange(len(running))))
        offer = strategy.offer(job)
        fresh = strategy_class(name)(cluster, STORE, THIRDS).offer(job)
        assert offer == fresh
        if offer is not None:
            cluster.take(job, offer.places)
            running.append((job, offer.places))
    for machine, host in enumerate(cluster.hosts):
        used = [place.mask for _, places in running for place in places if place.machine == machine]
        assert sum(used) == host.graph.all & ~host.free  # never one GPU for two jobs
        assert mask_of(members(sum(used))) == sum(used)


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidValueError, match="topo_p"):
        strategy_class("oracle")
    assert set(STRATEGIES) >= {"fcfs", "bf", "pack", "spread", "topo", "topo_p"}
