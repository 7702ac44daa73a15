# SPDX-License-Identifier: Apache-2.0
"""A simulated queue of DRMaestro: what it gains where cores strand GPUs, and what not (F-000-30, 36 to 38)."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from nova_numa_ext.flow.solvers import with_highs
from nova_numa_ext.policy.remote_gpu.completion import Goal
from nova_numa_ext.policy.remote_gpu.fleet import FleetHost, GpuWork, PlacedServer
from nova_numa_ext.policy.remote_gpu.network import FlowNetwork, Integers
from nova_numa_ext.policy.remote_gpu.rounds import RoundSettings
from nova_numa_ext.policy.remote_gpu.slices import GpuRoom, GpuSlice
from nova_numa_ext.simulator.remote_gpu import drmaestro
from nova_numa_ext.simulator.remote_gpu.cluster import (
    CpuWork,
    RemoteCluster,
    RemoteRun,
    RemoteSubmission,
    StarvedError,
)

TWO_PHASES, ONE_PHASE = RoundSettings(), RoundSettings(disaggregated=False)


def experiment(cores: int, how: RoundSettings) -> RemoteRun:
    draw = random.Random(0)
    work = drmaestro.jobs(32, cores, 130.0, 4.0, draw)
    held = drmaestro.cpu_work(4, cores, draw)
    return RemoteCluster(drmaestro.machines(4), work, held, with_highs, how, 10.0).run()


def test_stranded_gpus_are_used_where_cores_are_left_elsewhere() -> None:
    alone, remote = experiment(2, ONE_PHASE), experiment(2, TWO_PHASES)
    assert len(alone.records) == len(remote.records) == 32
    assert sum(record.remote for record in alone.records) == 0
    assert sum(record.remote for record in remote.records) > 0
    assert alone.makespan_s / remote.makespan_s > 1.3
    assert all(record.slowdown == pytest.approx(1.0) for record in alone.records)


def test_remote_gpus_give_nothing_where_cores_are_short() -> None:
    alone, remote = experiment(4, ONE_PHASE), experiment(4, TWO_PHASES)
    assert alone.makespan_s == pytest.approx(remote.makespan_s)


def host(name: str, cores: int, gpus: int, load: float = 0.0) -> FleetHost:
    rooms = tuple(GpuRoom(f"{name}g{n}", 1000) for n in range(gpus))
    more = {"network_mbps": 100, "lease_cores": 4, "fabrics": frozenset({"f"})}
    return FleetHost(name, cores, gpus=rooms, load=load, **more)


def submission(
    name: str, run_s: float = 10.0, share: float = 0.0, **more: object
) -> RemoteSubmission:
    given = {"goal": Goal(20), "alone_s": 10.0, "network_factor": 1.0, "rounds": 5, **more}
    return RemoteSubmission(0.0, GpuWork(name, 1, 0, 1, GpuSlice(1000), **given), run_s, share)


def test_jobs_slow_each_other_down_on_the_network_while_they_run() -> None:
    """Both send half of what the GPU host's interface carries: the run of each is 1.5 times as long, until one ends."""
    hosts = [host("cpu", 2, 0), host("gpu", 0, 2)]
    jobs = [submission("a", 10.0, 0.5), submission("b", 20.0, 0.5)]
    run = RemoteCluster(hosts, jobs, [], with_highs, TWO_PHASES).run()
    ends = {r.submission.work.uuid: r.end_s - r.start_s for r in run.records}
    assert ends["a"] == pytest.approx(15.0)
    assert ends["b"] == pytest.approx(15.0 + 10.0)


def test_f_000_30_what_a_job_took_is_free_again_and_never_taken_twice() -> None:
    hosts = [host("cpu", 2, 0), host("gpu", 0, 1)]
    jobs = [submission(f"j{n}", network_mbps=60) for n in range(3)]
    cluster = RemoteCluster(hosts, jobs, [], with_highs, TWO_PHASES)
    run = cluster.run()
    starts = sorted(record.start_s for record in run.records)
    assert all(later - earlier >= 10 for earlier, later in pairwise(starts))
    assert list(cluster.free.values()) == hosts


def test_f_000_30_later_rounds_leave_what_runs_where_it_is() -> None:
    """Each round is asked for waiting jobs alone, and jobs are on the same GPUs in all rounds while they run."""
    draw = random.Random(3)
    work = drmaestro.jobs(32, 2, 130.0, 4.0, draw)
    held = drmaestro.cpu_work(4, 2, draw)
    places: dict[str, list[tuple[PlacedServer, ...]]] = {}

    def watched(network: FlowNetwork) -> Integers:
        for each in cluster.active:
            places.setdefault(each.submission.work.uuid, []).append(each.servers)
        return with_highs(network)

    cluster = RemoteCluster(drmaestro.machines(4), work, held, watched, TWO_PHASES, 10.0)
    cluster.run()
    assert max(map(len, places.values())) > 2, "rounds are held while jobs run"
    assert all(len({*seen}) == 1 for seen in places.values())


def test_cpu_work_strands_a_gpu_until_it_ends() -> None:
    hosts = [host("both", 4, 1)]
    held = [CpuWork("both", 4, 100.0)]
    run = RemoteCluster(hosts, [submission("j")], held, with_highs, TWO_PHASES).run()
    assert run.records[0].start_s == 100.0


def test_a_network_aware_queue_avoids_busy_interfaces() -> None:
    hosts = [host("cpu", 1, 0), host("busy", 0, 1, load=1.0), host("idle", 0, 1)]
    aware = replace(TWO_PHASES, network_aware=True)
    assert RemoteCluster(hosts, [submission("j")], [], with_highs, aware).run().mean_slowdown == 1.0
    (busy,) = (
        RemoteCluster([hosts[0], hosts[1]], [submission("j")], [], with_highs, TWO_PHASES)
        .run()
        .records
    )
    assert busy.slowdown == pytest.approx(2.0)


def test_jobs_that_use_the_network_always_are_slowed_beside_their_own_gpu_too() -> None:
    """And a network-aware queue puts them where it is idle, remote GPUs or not."""
    hosts = [host("busy", 1, 1, load=1.0), host("idle", 1, 1)]
    for settings in (ONE_PHASE, TWO_PHASES):
        (local,) = RemoteCluster(hosts, [submission("j")], [], with_highs, settings).run().records
        assert (local.remote, local.slowdown) == (0, pytest.approx(1.0))
        always = [submission("j", network_always=True), submission("k", network_always=True)]
        found = RemoteCluster(hosts, always, [], with_highs, settings).run()
        assert sorted(each.slowdown for each in found.records) == pytest.approx([1.0, 2.0])
        aware = replace(settings, network_aware=True)
        (first,) = RemoteCluster(hosts, always[:1], [], with_highs, aware).run().records
        assert (first.remote, first.slowdown) == (0, pytest.approx(1.0))


def test_a_job_that_no_cluster_places_ends_the_simulation_with_its_name() -> None:
    with pytest.raises(StarvedError, match="large"):
        RemoteCluster(
            [host("both", 1, 1)], [submission("large", servers=2)], [], with_highs, TWO_PHASES
        ).run()


def test_network_factors_are_those_of_figure_14() -> None:
    assert drmaestro.network_factor("nw") == pytest.approx(0.627, abs=1e-3)
    assert drmaestro.network_factor("lavaMD") == pytest.approx(0.010, abs=1e-3)
