# SPDX-License-Identifier: Apache-2.0
"""Rounds of DRMaestro: who starts, where, and what is given back (F-000-24, 27 to 31, 35)."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_numa_ext.flow.solvers import with_highs
from nova_numa_ext.policy.remote_gpu.completion import Goal
from nova_numa_ext.policy.remote_gpu.fleet import FleetHost, GpuWork, PlacedServer
from nova_numa_ext.policy.remote_gpu.rounds import (
    RoundResult,
    RoundSettings,
    WaitsFor,
    plan_round,
)
from nova_numa_ext.policy.remote_gpu.slices import GpuRoom, GpuSlice
from placement_traits.names import RemoteGpu, ServiceLevel

TWO_PHASES = RoundSettings()
ONE_PHASE = RoundSettings(disaggregated=False)
AWARE = RoundSettings(network_aware=True)
GOLD = GpuSlice(1000)
IB = frozenset({"ib"})


def host(name: str, cores: int = 0, gpus: int = 0, **more: object) -> FleetHost:
    """A host in the fabric `ib`, whose GPUs have 4000 MiB."""
    rooms = tuple(GpuRoom(f"{name}-gpu{n}", 4000) for n in range(gpus))
    given = {"memory_mb": 1 << 20, "network_mbps": 10_000, "lease_cores": 64, "fabrics": IB}
    return FleetHost(name, cores, gpus=rooms, **{**given, **more})


def job(name: str, cores: int = 1, gpus: int = 1, **more: object) -> GpuWork:
    return GpuWork(name, cores, 0, gpus, **{"part": GOLD, **more})


def run(
    queue: Sequence[GpuWork], hosts: Sequence[FleetHost], how: RoundSettings = TWO_PHASES
) -> RoundResult:
    return plan_round(queue, hosts, with_highs, how)


def stranded() -> list[FleetHost]:
    """Figure 3: one host has the GPUs, the other the cores."""
    return [host("sn0", cores=0, gpus=2), host("sn1", cores=4)]


def test_a_stranded_gpu_is_used_from_another_host() -> None:
    work = job("j", goal=Goal(100), alone_s=60, remote_slowdown=1.5, rounds=1)
    assert run([work], stranded(), ONE_PHASE).waiting == {"j": WaitsFor.HOST}
    (server,) = run([work], stranded()).placed["j"]
    assert (server.host, server.gpus[0].host, server.remote) == ("sn1", "sn0", 1)


def test_the_first_round_waits_for_a_gpu_of_the_same_host() -> None:
    work = job("j", goal=Goal(100), alone_s=60, remote_slowdown=1.5)
    assert run([work], stranded()).waiting == {"j": WaitsFor.GPU}
    near = [*stranded(), host("sn2", cores=1, gpus=1)]
    (server,) = run([work], near).placed["j"]
    assert (server.host, server.remote) == ("sn2", 0)


def test_a_job_that_must_stay_takes_no_remote_gpu() -> None:
    work = job("j", remote=RemoteGpu.NEVER, rounds=100)
    assert run([work], stranded()).waiting == {"j": WaitsFor.HOST}


def test_f_000_27_a_gang_starts_as_a_whole_and_what_it_lacks_goes_to_others() -> None:
    hosts = [host("cpu", cores=8), host("gpu", gpus=3)]
    gang, small = job("gang", gpus=2, servers=2, rounds=1), job("small", rounds=1)
    found = run([gang, small], hosts)
    assert found.waiting == {"gang": WaitsFor.TURN}
    assert found.placed.keys() == {"small"}
    found = run([gang, small], [hosts[0], host("gpu", gpus=4)])
    assert found.placed.keys() == {"gang"}
    assert [len(server.gpus) for server in found.placed["gang"]] == [2, 2]


def test_gangs_that_stand_in_each_others_way_do_not_keep_both_out() -> None:
    """Each gang prefers two hosts of four and needs three: the cheapest flow gives each its two, and neither all."""
    hosts = [*(host(f"h{n}", cores=1) for n in range(4)), host("gpu", gpus=6)]
    gangs = [
        job(name, servers=3, preferred=preferred, goal=Goal(100), alone_s=50, rounds=5)
        for name, preferred in (("a", ("h0", "h1")), ("b", ("h2", "h3")))
    ]
    assert run(gangs, hosts).placed.keys() == {"a"}


def test_f_000_27_what_a_refused_gang_had_set_aside_is_free_for_the_next_job() -> None:
    """Both servers prefer the GPU of their host, which has room for one of them and for three small slices."""
    gang = job("gang", servers=2, part=GpuSlice(3000, ServiceLevel.SCAVENGER), rounds=9)
    small = job("small", part=GpuSlice(1300, ServiceLevel.SCAVENGER), rounds=9)
    found = run([gang, small], [host("both", cores=3, gpus=1)])
    assert found.placed.keys() == {"small"}


def test_a_job_that_must_stay_waits_where_others_have_its_gpu() -> None:
    """The network has room on the host for all three, because one of them may take its GPU elsewhere."""
    stays = [
        job(f"s{n}", part=GpuSlice(1000 + n), remote=RemoteGpu.NEVER, rounds=9) for n in (0, 1)
    ]
    found = run(
        [*stays, job("any", rounds=9)], [host("both", cores=3, gpus=1), host("gpu", gpus=2)]
    )
    assert sum(each.uuid in found.placed for each in stays) <= 1
    assert all(not s.remote for each in stays for s in found.placed.get(each.uuid, ()))
    assert "any" in found.placed


def test_f_000_31_each_resource_is_counted_by_itself() -> None:
    """The network has room for one slice of the large kind and promises it to the small kinds, too."""
    parts = [GpuSlice(3000, ServiceLevel.BRONZE), GpuSlice(1000, ServiceLevel.BRONZE)]
    work = [job(f"j{n}", part=parts[n % 2], rounds=3) for n in range(4)]
    hosts = [host("cpu", cores=8), host("gpu", gpus=1)]
    found = run(work, hosts)
    assert_no_more_than_there_is(hosts, work, found.placed)
    assert {"j0", "j1"} <= found.placed.keys()
    assert len(found.placed) == 2


def test_bandwidth_of_both_ends_is_promised_once() -> None:
    work = [job(f"j{n}", network_mbps=600, rounds=3) for n in range(3)]
    gpus = host("gpu", gpus=4, network_mbps=2000)
    found = run(work, [host("cpu", cores=9, network_mbps=1300), gpus])
    assert len(found.placed) == 2
    found = run(work, [host("cpu", cores=9, network_mbps=9000), replace(gpus, network_mbps=700)])
    assert len(found.placed) == 1
    local = host("both", cores=9, gpus=3, network_mbps=0)
    assert len(run(work, [local]).placed) == 3


def test_interface_fabric_and_lease_cores_must_fit() -> None:
    cpu = host("cpu", cores=4)
    assert run([job("j", api="cuda", rounds=9)], [cpu, host("gpu", gpus=1)]).waiting
    far = host("gpu", gpus=1, fabrics=frozenset({"ethernet"}))
    assert run([job("j", rounds=9)], [cpu, far]).waiting == {"j": WaitsFor.GPU}
    work = [job(f"j{n}", rounds=9) for n in range(4)]
    assert len(run(work, [cpu, host("gpu", gpus=4, lease_cores=2)]).placed) == 2


def test_preferred_hosts_come_first() -> None:
    hosts = [host(f"h{n}", cores=2, gpus=1) for n in range(4)]
    found = run([job("j", preferred=("h2", "gone"))], hosts)
    assert found.placed["j"][0].host == "h2"


def test_no_job_waits_for_ever_for_a_place_that_is_there() -> None:
    """W grows by one a round, so a place of any cost is taken after as many rounds (Eq. 13)."""
    for importance, slower in ((1, 3.0), (5, 2.0), (10, 9.0)):
        work = job("j", goal=Goal(100, importance), alone_s=90, remote_slowdown=slower)
        rounds = 0
        while not run([replace(work, rounds=rounds)], stranded()).placed:
            rounds += 1
        cost = 2 * (1 - work.goal.utility(90 * slower))
        assert rounds == math.ceil(cost - 1 - 1e-9)


def test_a_busy_network_is_avoided_and_then_waited_for_ten_times() -> None:
    work = job("j", goal=Goal(100), alone_s=90, network_factor=0.6, rounds=3)
    cpu, busy, idle = host("cpu", cores=4), host("busy", gpus=1, load=0.9), host("idle", gpus=1)
    assert run([work], [cpu, busy, idle], AWARE).placed["j"][0].gpus[0].host == "idle"
    assert run([work], [cpu, busy], AWARE).waiting == {"j": WaitsFor.NETWORK}
    assert run([work], [cpu, busy]).placed
    assert run([replace(work, postponed=9)], [cpu, busy], AWARE).waiting
    assert run([replace(work, postponed=10)], [cpu, busy], AWARE).placed
    own = [host("own", cores=4, gpus=1, load=0.9)]
    assert run([work], own, AWARE).placed, "its own GPU is not on the network"
    assert run([replace(work, network_always=True)], own, AWARE).waiting == {"j": WaitsFor.NETWORK}


def test_a_gpu_of_the_same_host_needs_no_network() -> None:
    work = job("j", goal=Goal(100), alone_s=90, network_factor=0.6)
    busy = host("busy", cores=4, gpus=1, load=1.0)
    idle = [host("idle", cores=4), host("gpu", gpus=1)]
    for fleet in ([busy], [busy, *idle]):
        assert run([work], fleet, AWARE).placed["j"][0].gpus[0].host == "busy"


def test_only_so_many_jobs_are_looked_at() -> None:
    hosts = [host("both", cores=9, gpus=9)]
    work = [job(f"j{n}") for n in range(4)]
    found = run(work, hosts, RoundSettings(most_jobs=2))
    assert found.placed.keys() == {"j0", "j1"}
    assert found.waiting == {"j2": WaitsFor.TURN, "j3": WaitsFor.TURN}
    assert run([], hosts) == RoundResult({}, {})


def assert_no_more_than_there_is(
    hosts: Sequence[FleetHost],
    work: Iterable[GpuWork],
    placed: dict[str, tuple[PlacedServer, ...]],
) -> None:
    """No resource of any host is taken beyond what was free."""
    taken: Counter[tuple[str, str]] = Counter()
    asked = {each.uuid: each for each in work}
    for uuid, servers in placed.items():
        each = asked[uuid]
        assert len(servers) == each.servers
        for server in servers:
            taken[server.host, "cores"] += each.cores
            taken[server.host, "memory_mb"] += each.memory_mb
            assert len(server.gpus) == each.gpus
            for leased in server.gpus:
                taken[leased.gpu, "memory_mb"] += each.part.memory_mb
                taken[leased.gpu, "shares"] += each.part.shares
                taken[leased.host, "lease_cores"] += 1
                if leased.host != server.host:
                    taken[leased.host, "network_mbps"] += each.network_mbps
                    taken[server.host, "network_mbps"] += each.network_mbps
    rooms = {each.name: each for each in hosts}
    rooms |= {room.gpu: room for each in hosts for room in each.gpus}
    for (where, what), amount in taken.items():
        assert amount <= getattr(rooms[where], what), (where, what)


LEVELS = st.sampled_from(list(ServiceLevel))
SLICES = st.builds(GpuSlice, st.integers(500, 3000), LEVELS)
JOBS = st.builds(
    GpuWork,
    uuid=st.just(""),
    cores=st.integers(0, 4),
    memory_mb=st.integers(0, 100),
    gpus=st.integers(1, 3),
    part=SLICES,
    servers=st.integers(1, 3),
    network_mbps=st.sampled_from([0, 100, 400]),
    remote=st.sampled_from(list(RemoteGpu)),
    rounds=st.integers(0, 5),
)
HOSTS = st.builds(
    FleetHost,
    name=st.just(""),
    cores=st.integers(0, 6),
    memory_mb=st.integers(0, 300),
    network_mbps=st.integers(0, 1000),
    lease_cores=st.integers(0, 4),
    gpus=st.lists(
        st.builds(GpuRoom, st.just(""), st.integers(0, 4000), st.integers(0, 6)), max_size=3
    ).map(tuple),
    fabrics=st.sampled_from([IB, frozenset({"ethernet"}), IB | {"ethernet"}]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(JOBS, max_size=6), st.lists(HOSTS, min_size=1, max_size=5), st.booleans())
def test_f_000_24_a_round_never_takes_more_than_there_is(
    jobs: list[GpuWork], hosts: list[FleetHost], disaggregated: bool
) -> None:
    work = [replace(each, uuid=f"j{n}") for n, each in enumerate(jobs)]
    fleet = [
        replace(
            each,
            name=f"h{n}",
            gpus=tuple(replace(room, gpu=f"h{n}g{g}") for g, room in enumerate(each.gpus)),
        )
        for n, each in enumerate(hosts)
    ]
    found = run(work, fleet, RoundSettings(disaggregated=disaggregated))
    assert_no_more_than_there_is(fleet, work, dict(found.placed))
    assert found.placed.keys() | found.waiting.keys() == {each.uuid for each in work}
    assert not found.placed.keys() & found.waiting.keys()
    for each in work:
        if each.remote is RemoteGpu.NEVER or not disaggregated:
            assert all(not server.remote for server in found.placed.get(each.uuid, ()))
