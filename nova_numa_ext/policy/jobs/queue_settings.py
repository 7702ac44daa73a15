# SPDX-License-Identifier: Apache-2.0
"""What operators decide about the queue of jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.limits import SECTION, UNLIMITED, Limits
from placement_traits.options import Section, option, part


class Discipline(StrEnum):
    """What follows when a job finds no place."""

    FCFS = "fcfs"
    GREEDY = "greedy"
    EASY = "easy"


@dataclass(frozen=True, slots=True)
class QueueSettings(Section):
    """Who starts, and who waits: what the operator decides about the queue."""

    section: ClassVar = SECTION
    title: ClassVar = "The queue of the job service"

    discipline: Discipline = option(
        Discipline.EASY,
        "What follows when a job finds no place. Jobs are asked in the order of their priority, which grows with age, "
        "then of their submission.",
        choices={
            "fcfs": "all jobs behind it wait, too",
            "greedy": "jobs behind it may start; one that needs much may wait for ever",
            "easy": "the first one has places kept for the time at which, by the walltimes of others, it can start; "
            "jobs behind it start where they are not in its way",
        },
        change="places must not stay free for a job that needs much (greedy), or no job may pass another (fcfs)",
        leave="users give walltimes: what is kept free is used by jobs that end in time",
    )
    ageing_per_hour: float = option(
        1.0,
        "How much the priority of a job grows in an hour of waiting. With 0 a stream of jobs of high priority keeps "
        "others waiting for ever.",
        minimum=0.0,
        change="priorities, which go from -1000 to 1000, should yield to age sooner (raise) or later (lower)",
        leave="users hardly set priorities: all jobs age alike",
    )
    preempt: bool = option(
        False,
        "Stop best-effort jobs whose users allow it, and queue them again, in favour of latency-critical jobs that "
        "find no place.",
        change="latency-critical jobs must start soon, and users of best-effort jobs know that these may be stopped",
        leave="what a job has done when it is stopped is lost",
    )
    postponement_s: float = option(
        postponing.RETRY_S,
        "Seconds between two postponements that count: a job of ``numa_ext:gpu_policy=topo_p`` waits for GPUs of its "
        "``numa_ext:min_utility`` until it was postponed ``most_postponements`` times.",
        minimum=1.0,
        change="jobs run for hours: a better place is free later than ten minutes from now (raise)",
        leave="jobs end every few minutes",
    )
    default_limits: Limits = part(Limits, prefix="project_")
    jobs_of_projects: Mapping[str, int] = option(
        {},
        "``project_jobs`` of single projects, by their ids.",
        minimum=1,
        change="a project has paid for more than others, or for less",
        leave="all projects are alike",
    )
    servers_of_projects: Mapping[str, int] = option(
        {},
        "``project_servers`` of single projects, by their ids.",
        minimum=1,
        change="a project has paid for more than others, or for less",
        leave="all projects are alike",
    )
    leases_of_projects: Mapping[str, int] = option(
        {},
        "``project_leases`` of single projects, by their ids.",
        minimum=1,
        change="a project has paid for more than others, or for less",
        leave="all projects are alike",
    )
    gpu_memory_mb_of_projects: Mapping[str, int] = option(
        {},
        "``project_gpu_memory_mb`` of single projects, by their ids.",
        minimum=1,
        change="a project has paid for more than others, or for less",
        leave="all projects are alike",
    )
    unsatisfiable_s: float = option(
        3600.0,
        "Seconds after which a job is given up that would find no place even if all hosts were empty, or that exceeds "
        "a limit of its project by itself: all rounds in this time must have found so.",
        minimum=0.0,
        change="hosts are reinstalled for longer than an hour, and jobs should wait for them (raise)",
        leave="an hour without a single host that is large enough is no matter of a restart",
    )

    @property
    def limited(self) -> bool:
        """Some project has limits."""
        return self.default_limits != UNLIMITED or any(self._of_projects)

    def limits_of(self, project: str) -> Limits:
        """Return the limits of a project."""
        if not any(project in each for each in self._of_projects):
            return self.default_limits
        default = self.default_limits
        return Limits(
            jobs=self.jobs_of_projects.get(project, default.jobs),
            servers=self.servers_of_projects.get(project, default.servers),
            leases=self.leases_of_projects.get(project, default.leases),
            gpu_memory_mb=self.gpu_memory_mb_of_projects.get(project, default.gpu_memory_mb),
        )

    @property
    def _of_projects(self) -> tuple[Mapping[str, int], ...]:
        return (
            self.jobs_of_projects,
            self.servers_of_projects,
            self.leases_of_projects,
            self.gpu_memory_mb_of_projects,
        )
