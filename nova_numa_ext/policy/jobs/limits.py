# SPDX-License-Identifier: Apache-2.0
"""How much of a cloud the jobs of one project may have at a time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nova_numa_ext.policy.jobs.job import Job
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.reason import Reason


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one project; None is no limit.

    :param jobs: jobs that have places
    :param servers: their servers
    :param leases: remote GPUs that they ask for
    :param gpu_memory_mb: memory of those, MiB
    """

    jobs: int | None = None
    servers: int | None = None
    leases: int | None = None
    gpu_memory_mb: int | None = None


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
