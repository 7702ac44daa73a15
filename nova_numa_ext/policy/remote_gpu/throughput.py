# SPDX-License-Identifier: Apache-2.0
"""Throughput of many jobs that share GPUs and cores (Prades 2021, chapter 5: GROMACS).

A *couple* is a client host without a GPU and a GPU server. Jobs that share the GPU fill the client first, then the
server, which needs one more core for each job it serves: beyond that budget of cores the threads of a job wait for each
other at every step. CPU-only jobs take the cores that are left. The equations add up what was measured of one host or
couple; they predict no mix that was not.
"""

from dataclasses import dataclass
from typing import Final

# The smallest CPU-only job of chapter 5, in threads.
FILLER_THREADS: Final = 3


@dataclass(frozen=True, slots=True)
class Couple:
    """GPU jobs on a client and a GPU server of as many cores.

    :param cores: cores of each of the two hosts
    :param on_client: jobs whose threads run on the client
    :param on_server: those that run beside the GPU
    :param threads: threads of each job
    """

    cores: int
    on_client: int
    on_server: int
    threads: int

    @property
    def free_on_client(self) -> int:
        """Cores that the jobs leave on the client."""
        return self.cores - self.on_client * self.threads

    @property
    def free_on_server(self) -> int:
        """Cores that they leave on the server, which serves all of them; negative beyond the budget."""
        served = self.on_client + self.on_server
        return self.cores - self.on_server * self.threads - served

    @property
    def within_budget(self) -> bool:
        """No core of either host is taken twice."""
        return self.free_on_client >= 0 and self.free_on_server >= 0

    @property
    def fillers(self) -> int:
        """CPU-only jobs that find cores."""
        return max(0, self.free_on_client) // FILLER_THREADS + max(0, self.free_on_server) // (
            FILLER_THREADS
        )


def fill_client_first(jobs: int, threads: int, cores: int) -> Couple:
    """Return where so many jobs run: on the client while it has cores, then on the server."""
    on_client = min(jobs, cores // threads)
    return Couple(cores, on_client, jobs - on_client, threads)


def most_jobs(threads: int, cores: int) -> int:
    """Return how many GPU jobs a couple runs within its budget of cores."""
    jobs = 0
    while fill_client_first(jobs + 1, threads, cores).within_budget:
        jobs += 1
    return jobs


def most_jobs_alone(threads: int, cores: int) -> int:
    """Return how many GPU jobs a host with a GPU runs by itself: each has a thread of its server beside it."""
    return cores // (threads + 1)


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured throughput, in any unit of work per time (table 5.1: ns of simulated time per day).

    :param cpu_host: A, a host without a GPU
    :param filler: B, one CPU-only job of :data:`FILLER_THREADS`
    :param gpu_job: C, the best single job on a host with its own GPU
    :param couple: D, all jobs that share the GPU of a couple
    :param shared_host: E, all jobs that share the GPU of one host
    """

    cpu_host: float
    filler: float
    gpu_job: float
    couple: float
    shared_host: float

    def hybrid(self, hosts: int, fillers: int) -> float:
        """Return the throughput of hosts of which half have a GPU, one job on each GPU (section 5.6).

        :param fillers: CPU-only jobs beside a GPU job
        """
        return (self.cpu_host + fillers * self.filler + self.gpu_job) * hosts / 2

    def hybrid_shared(self, hosts: int, fillers: int) -> float:
        """Return the same where the jobs of each couple share its GPU.

        :param fillers: CPU-only jobs in a couple
        """
        return (fillers * self.filler + self.couple) * hosts / 2

    def homogeneous(self, hosts: int, fillers: int) -> float:
        """Return the throughput of hosts that all have a GPU, one job on each."""
        return (fillers * self.filler + self.gpu_job) * hosts

    def homogeneous_shared(self, hosts: int) -> float:
        """Return the same where the jobs of each host share its GPU."""
        return self.shared_host * hosts
