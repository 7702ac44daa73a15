# SPDX-License-Identifier: Apache-2.0
"""The model behind the agent's own view of a host."""

from dataclasses import replace

from emulation.physics.machines import grid
from emulation.physics.sensor import ModelSensor, Partition
from host_agent.model.assignment import Guest, Observation
from host_agent.model.process import Process, RamRange, Role, Thread
from host_agent.model.workload import Activity, Domain, Workload

TOPOLOGY = grid(1, 4, 4, memory_mb_per_node=16384)


def seen(name: str, cpus: str, node: int, vcpus: int = 2) -> Guest:
    threads = tuple(Thread(100 + v, Role.VCPU, v, "CPU", cpus) for v in range(vcpus))
    ram = RamRange(0x1000, 0x2000, (), 4, 0, ((node, 4096),))
    domain = Domain(name, name, vcpus, 4)
    return Guest(Workload(domain), Process(100, 1, "0-3", threads), (ram,))


def test_remote_pages_and_throttling_show_in_the_figures() -> None:
    sensor = ModelSensor(TOPOLOGY, noise_share=0.0, programs={"a": "stream", "b": "stream"})
    near = sensor.read(Observation(TOPOLOGY, (seen("a", "0-3", 0),)))["a"]
    far = sensor.read(Observation(TOPOLOGY, (seen("a", "0-3", 3),)))["a"]
    assert near.local_mbps == near.total_mbps
    assert far.local_mbps == 0
    assert far.stall_rate > near.stall_rate
    throttled = {"a": Partition(mba={0: 10})}
    slow = sensor.read(Observation(TOPOLOGY, (seen("a", "0-3", 0),)), throttled)["a"]
    assert slow.total_mbps < near.total_mbps / 2


def test_threads_with_several_cpus_are_spread_like_a_fair_scheduler_does() -> None:
    sensor = ModelSensor(TOPOLOGY, noise_share=0.0)
    both = (seen("a", "0-3", 0), seen("b", "0-3", 0))
    crowded = (seen("a", "0-1", 0), seen("b", "0-1", 0))
    spread = sensor.read(Observation(TOPOLOGY, both))
    shared = sensor.read(Observation(TOPOLOGY, crowded))
    assert shared["a"].progress < 0.6 * spread["a"].progress


def test_only_running_guests_with_known_pages_have_figures() -> None:
    paused = seen("p", "0-3", 0)
    paused = replace(paused, workload=replace(paused.workload, activity=Activity.PAUSED))
    unknown = replace(seen("u", "0-3", 0), ram=())
    starting = replace(seen("s", "0-3", 0), process=None)
    found = ModelSensor(TOPOLOGY).read(
        Observation(TOPOLOGY, (paused, unknown, starting, seen("r", "0", 0, 1)))
    )
    assert set(found) == {"r"}


def test_the_same_seed_gives_the_same_noise() -> None:
    observation = Observation(TOPOLOGY, (seen("a", "0-3", 0),))
    one, two, other = (ModelSensor(TOPOLOGY, seed=s, noise_share=0.1) for s in (1, 1, 2))
    assert one.read(observation) == two.read(observation)
    assert one.read(observation) != other.read(observation)
