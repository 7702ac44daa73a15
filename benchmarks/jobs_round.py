# SPDX-License-Identifier: Apache-2.0
"""One round of the queue of jobs on a large cloud: jobs that wait, jobs that run, and a fleet that is nearly full.

Every second host has GPUs, four of them or eight, linked in pairs. Running jobs hold hosts whole or in part, those with
a walltime end one after the other. Waiting jobs are of many kinds, every third one with GPUs, some of two parts, so
that answers about one kind seldom serve another. Every fifth one is latency-critical: its CPUs are free and its memory
is not. Every second running job may be stopped in its favour, where the queue allows it.
"""

import random
import uuid
from dataclasses import dataclass, replace
from typing import Final

from nova_numa_ext.orchestrator import queued
from nova_numa_ext.orchestrator.store.stored_job import NewJob, Sizes, StoredPart
from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.host_planner import HostPlanner
from nova_numa_ext.policy.jobs.host_view import HostClaims, HostsView
from nova_numa_ext.policy.jobs.job import ActiveJob, Job
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan
from nova_numa_ext.policy.jobs.queue import Fleet, decide
from nova_numa_ext.policy.jobs.queue_order import in_order
from nova_numa_ext.policy.jobs.queue_round import QueueRound
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from placement_traits import names
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView, L3View, RdtView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import GpuLink, RdtTrait, TierTrait

GPU_CLASS: Final = "CUSTOM_GPU"
VCPUS, MEMORY_MB = 64, 262_144
_CRITICAL: Final = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "resources:CUSTOM_RDT_CLOS": "1",
}
_TRAITS: Final = frozenset({TierTrait.LC, TierTrait.BE, RdtTrait.L3_CAT})


@dataclass(frozen=True)
class Running:
    """A job that has places.

    :param job: as it is submitted
    :param plan: its places
    """

    job: NewJob
    plan: Plan[HostPlace]


@dataclass(frozen=True)
class Waiting:
    """What a round is given.

    :param view: the hosts
    :param jobs: those that wait, in order
    :param active: those that have places
    :param submitted: the same that wait, as they are submitted
    :param running: the same that have places
    """

    view: HostsView
    jobs: list[Job]
    active: list[ActiveJob[Plan[HostPlace]]]
    submitted: list[NewJob]
    running: list[Running]


def drawn(hosts: int, waiting: int, seed: int, free: float = 0.03) -> Waiting:
    """Draw a cloud and its jobs.

    :param hosts: number of hosts
    :param waiting: number of waiting jobs
    :param free: share of hosts that are not full
    """
    draw = random.Random(seed)
    views, amounts, running = [], {}, []
    for number in range(hosts):
        root = str(uuid.UUID(int=draw.getrandbits(128)))
        full = draw.random() >= free
        gpus = 0 if number % 2 else draw.choice((4, 8))
        busy = gpus if full else draw.randrange(gpus + 1)
        views.append(_host(root, f"host{number}", gpus, busy, draw))
        used = VCPUS if full else draw.randrange(VCPUS)
        amounts[root] = {
            names.VCPU: Amount(VCPUS, used),
            names.PCPU: Amount(VCPUS, 0),
            names.MEMORY_MB: Amount(MEMORY_MB, used * 4096),
        }
        if full and draw.random() < 0.5:
            running.append(_running(root, number, gpus, draw))
    aliases = {"gpu": frozenset({GPU_CLASS})}
    view = HostsView.of(FleetArrays.of(views), amounts, aliases=aliases)
    drawn_jobs = [_waiting(number, draw) for number in range(waiting)]
    jobs = [_as_queued(*each) for each in drawn_jobs]
    return Waiting(
        view,
        in_order(jobs, 0.0, QueueSettings()),
        [ActiveJob(_as_queued(each.job, -1.0), each.plan, -1.0) for each in running],
        [new for new, _ in drawn_jobs],
        running,
    )


def submitted(jobs: int, draw: random.Random) -> list[NewJob]:
    """Draw jobs as they are submitted."""
    return [_waiting(number, draw)[0] for number in range(jobs)]


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


def _part(vcpus: int, gpus: int, draw: random.Random, *, critical: bool = False) -> StoredPart:
    specs = dict(_CRITICAL) if critical else {"numa_ext:tier": "BE"}
    if gpus:
        specs |= {
            "pci_passthrough:alias": f"gpu:{gpus}",
            "numa_ext:gpu_policy": draw.choice(("topo", "topo_p")),
            "numa_ext:gpu_comm": str(draw.randrange(5)),
            "numa_ext:min_utility": draw.choice(("0.0", "0.5")),
        }
    sizes = Sizes(vcpus, vcpus * draw.choice((1024, 2048, 4096)), 0)
    return StoredPart("first", 1, "flavor", sizes, specs)


def _running(root: str, number: int, gpus: int, draw: random.Random) -> Running:
    parts = (_part(VCPUS // 2, gpus // 2, draw),)
    walltime_s = draw.choice((None, draw.uniform(60, 86_400)))
    new = NewJob(
        "project",
        "user",
        "trust",
        f"running {number}",
        parts,
        walltime_s=walltime_s,
        preemptible=number % 2 > 0,
    )
    return Running(new, Plan((HostPlace("first", root, 1),)))


def _waiting(number: int, draw: random.Random) -> tuple[NewJob, float]:
    """Return a job, and since when it waits."""
    gpus = draw.choice((1, 2, 4, 8)) if number % 3 == 0 else 0
    first = _part(draw.randrange(1, VCPUS + 1), gpus, draw, critical=number % 5 == 0)
    parts = [replace(first, count=draw.choice((1, 1, 1, 4, 32)))]
    if number % 10 == 0:
        parts.append(replace(_part(draw.randrange(1, 9), 0, draw), name="second", count=2))
    walltime_s = draw.choice((None, draw.uniform(60, 86_400)))
    submitted_at = -draw.uniform(0, 86_400)
    new = NewJob(
        f"project {number % 20}",
        "user",
        "trust",
        f"{number}",
        tuple(parts),
        priority=draw.randrange(3),
        walltime_s=walltime_s,
    )
    return new, submitted_at


def _as_queued(new: NewJob, submitted_at: float) -> Job:
    return Job(
        new.name,
        new.project,
        tuple(map(queued.part, new.parts)),
        submitted_at,
        priority=new.priority,
        walltime_s=new.walltime_s,
        preemptible=new.preemptible,
    )
