# SPDX-License-Identifier: Apache-2.0
"""One round of the queue of jobs on a large cloud: jobs that wait, jobs that run, and a fleet that is nearly full.

Every second host has GPUs, four of them or eight, linked in pairs. Running jobs hold hosts whole or in part, those with
a walltime end one after the other. Waiting jobs are of many kinds, every third one with GPUs, some of two parts, so
that answers about one kind seldom serve another.
"""

import random
import uuid
from dataclasses import dataclass, replace
from typing import Final

from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.host_planner import HostPlanner
from nova_numa_ext.policy.jobs.host_view import HostClaims, HostsView
from nova_numa_ext.policy.jobs.job import ActiveJob, Job, Part
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan
from nova_numa_ext.policy.jobs.queue import Fleet, QueueRound, QueueSettings, decide, in_order
from placement_traits import names
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView, L3View, RdtView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import GpuLink, RdtTrait, TierTrait
from placement_traits.request import WorkloadRequest, parse

GPU_CLASS: Final = "CUSTOM_GPU"
VCPUS, MEMORY_MB = 64, 262_144
_TRAITS: Final = frozenset({TierTrait.LC, TierTrait.BE, RdtTrait.L3_CAT})


@dataclass(frozen=True)
class Waiting:
    """What a round is given.

    :param view: the hosts
    :param jobs: those that wait, in order
    :param active: those that have places
    """

    view: HostsView
    jobs: list[Job]
    active: list[ActiveJob[Plan[HostPlace]]]


def drawn(hosts: int, waiting: int, seed: int, free: float = 0.03) -> Waiting:
    """Draw a cloud and its jobs.

    :param hosts: number of hosts
    :param waiting: number of waiting jobs
    :param free: share of hosts that are not full
    """
    draw = random.Random(seed)
    views, amounts, active = [], {}, []
    for number in range(hosts):
        root = str(uuid.UUID(int=draw.getrandbits(128)))
        full = draw.random() >= free
        gpus = 0 if number % 2 else draw.choice((4, 8))
        busy = gpus if full else draw.randrange(gpus + 1)
        views.append(_host(root, f"host{number}", gpus, busy, draw))
        used = VCPUS if full else draw.randrange(VCPUS)
        amounts[root] = {
            names.VCPU: Amount(VCPUS, used),
            names.PCPU: Amount(0, 0),
            names.MEMORY_MB: Amount(MEMORY_MB, used * 4096),
        }
        if full and draw.random() < 0.5:
            active.append(_running(root, number, gpus, draw))
    aliases = {"gpu": frozenset({GPU_CLASS})}
    view = HostsView.of(FleetArrays.of(views), amounts, aliases=aliases)
    jobs = [_waiting(number, draw) for number in range(waiting)]
    return Waiting(view, in_order(jobs, 0.0, QueueSettings()), active)


def one_round(given: Waiting, settings: QueueSettings) -> QueueRound[HostPlace]:
    """Decide who starts."""
    view = replace(given.view, _made={})  # nothing is remembered of an earlier round
    fleet = Fleet(view, HostClaims(view), HostPlanner(), PlannerSettings())
    return decide(given.jobs, given.active, fleet, 0.0, settings)


def _host(root: str, name: str, gpus: int, busy: int, draw: random.Random) -> HostView:
    def child() -> str:
        return str(uuid.UUID(int=draw.getrandbits(128)))

    addresses = [f"0000:{number:02x}:00.0" for number in range(gpus)]
    return HostView(
        root,
        name,
        _TRAITS,
        RdtView(child(), Amount(12, 0)),
        tuple(
            L3View(
                child(),
                socket,
                (socket,),
                socket,
                0,
                Amount(13, 0),
                Amount(100_000, 0),
                frozenset(),
                Amount(1_000, 0),
            )
            for socket in range(2)
        ),
        tuple(
            GpuView(
                child(),
                address,
                number * 2 // gpus,
                None,
                {addresses[number ^ 1]: GpuLink.NV2},
            )
            for number, address in enumerate(addresses)
        ),
        tuple(
            DeviceView(child(), address, Amount(1, int(number < busy)), GPU_CLASS)
            for number, address in enumerate(addresses)
        ),
    )


def _request(vcpus: int, gpus: int, draw: random.Random) -> WorkloadRequest:
    specs = {"numa_ext:tier": "BE"}
    if gpus:
        specs |= {
            "pci_passthrough:alias": f"gpu:{gpus}",
            "numa_ext:gpu_policy": draw.choice(("topo", "topo_p")),
            "numa_ext:gpu_comm": str(draw.randrange(5)),
            "numa_ext:min_utility": draw.choice(("0.0", "0.5")),
        }
    return parse(specs, vcpus=vcpus, memory_mb=vcpus * draw.choice((1024, 2048, 4096)))


def _running(root: str, number: int, gpus: int, draw: random.Random) -> ActiveJob[Plan[HostPlace]]:
    part = Part("p", 1, "flavor", _request(VCPUS // 2, gpus // 2, draw))
    walltime_s = draw.choice((None, draw.uniform(60, 86_400)))
    job = Job(f"running {number}", "project", (part,), -1.0, walltime_s=walltime_s)
    return ActiveJob(job, Plan((HostPlace("p", root, 1),)), -1.0)


def _waiting(number: int, draw: random.Random) -> Job:
    gpus = draw.choice((1, 2, 4, 8)) if number % 3 == 0 else 0
    request = _request(draw.randrange(1, VCPUS + 1), gpus, draw)
    parts = [Part("first", draw.choice((1, 1, 1, 4, 32)), "flavor", request)]
    if number % 10 == 0:
        parts.append(Part("second", 2, "flavor", _request(draw.randrange(1, 9), 0, draw)))
    walltime_s = draw.choice((None, draw.uniform(60, 86_400)))
    return Job(
        f"{number}",
        f"project {number % 20}",
        tuple(parts),
        -draw.uniform(0, 86_400),
        priority=draw.randrange(3),
        walltime_s=walltime_s,
    )
