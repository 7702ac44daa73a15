# SPDX-License-Identifier: Apache-2.0
"""How much of a cloud the jobs of one project may have at a time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from nova_numa_ext.policy.jobs.job import Job
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.options import Section, option
from placement_traits.reason import Reason

SECTION: Final = "numa_ext_jobs"
"""Of the job service's configuration file: where the options of queue and planner stand."""


@dataclass(frozen=True, slots=True)
class Limits(Section):
    """Limits of one project; None is no limit. The options are those of a project that has none of its own."""

    section: ClassVar = SECTION
    title: ClassVar = "Limits of a project"

    jobs: int | None = option(
        None,
        "Most jobs of one project that have places at a time; not set: any number.",
        minimum=1,
        change="one project's jobs fill the cloud",
        leave="nova's quotas keep projects apart",
    )
    servers: int | None = option(
        None,
        "Most servers of one project's jobs at a time; not set: any number.",
        minimum=1,
        change="one project's jobs fill the cloud",
        leave="nova's quotas keep projects apart",
    )
    leases: int | None = option(
        None,
        "Most leases of remote GPUs that one project has at a time; not set: any number. One more is refused. Requests "
        "of one moment may exceed it by as many as there are of them.",
        minimum=1,
        change="policy lets users ask for leases, and one project takes all GPUs that are lent",
        leave="administrators alone ask for leases",
    )
    gpu_memory_mb: int | None = option(
        None,
        "Most memory of remote GPUs, MiB, that the leases of one project hold together; not set: any. As "
        "``project_leases``.",
        minimum=1,
        change="policy lets users ask for leases, and one project takes all GPUs that are lent",
        leave="administrators alone ask for leases",
    )


UNLIMITED: Final = Limits()


@dataclass(frozen=True, slots=True)
class Usage:
    """What jobs of one project have; fields as of :class:`Limits`."""

    jobs: int = 0
    servers: int = 0
    leases: int = 0
    gpu_memory_mb: int = 0

    def plus(self, job: Job) -> "Usage":
        """Return the usage with one job more."""
        return Usage(
            self.jobs + 1,
            self.servers + job.servers,
            self.leases + job.leases,
            self.gpu_memory_mb + job.gpu_memory_mb,
        )


NOTHING: Final = Usage()


def by_project(jobs: Iterable[Job]) -> dict[str, Usage]:
    """Return what each project has.

    :param jobs: those that have places
    """
    found: dict[str, Usage] = {}
    for job in jobs:
        found[job.project] = found.get(job.project, NOTHING).plus(job)
    return found


def exceeded(job: Job, usage: Mapping[str, Usage], limits: Limits) -> tuple[Reason, ...]:
    """Return which limits of its project a job would exceed if it started now.

    :param usage: of each project
    """
    return tuple(_exceeded(usage.get(job.project, NOTHING), job, limits))


def unsatisfiable(job: Job, limits: Limits) -> tuple[Reason, ...]:
    """Return which limits a job exceeds alone: it can never start under them."""
    return tuple(_exceeded(NOTHING, job, limits))


def _exceeded(usage: Usage, job: Job, limits: Limits) -> Iterator[Reason]:
    then = usage.plus(job)
    for term, used, limit in (
        (JobTerm.PROJECT_JOBS, then.jobs, limits.jobs),
        (JobTerm.PROJECT_SERVERS, then.servers, limits.servers),
        (JobTerm.PROJECT_LEASES, then.leases, limits.leases),
        (JobTerm.PROJECT_GPU_MEMORY, then.gpu_memory_mb, limits.gpu_memory_mb),
    ):
        if limit is not None and used > limit:
            yield Reason(term, used, limit)
