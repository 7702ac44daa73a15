# SPDX-License-Identifier: Apache-2.0
"""How busy GPUs are, and how much more work they do when they are shared: users who wait between two jobs.

Each server runs jobs of ``job_s`` one after another, with a gap in between (Prades 2021, section 3.4). Sharing makes
jobs longer, the gaps stay; so the emptier the GPUs, the more of the additional servers comes through.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Servers that run one job after another.

    :param job_s: mean run time of a job alone on its GPU, seconds
    :param utilisation: of the GPU while a job runs, in [0, 1]
    """

    job_s: float
    utilisation: float

    def gpu_utilisation(self, gap_s: float) -> float:
        """Return the mean utilisation of a GPU that one server has, with so many seconds between two jobs."""
        return self.utilisation * self.job_s / (self.job_s + gap_s)

    def throughput(self, tenants: int, slowdown: float, gap_s: float) -> float:
        """Return the jobs of a GPU with so many tenants over those with one that has it alone.

        :param slowdown: run time of a job beside the others over that alone
        :param gap_s: seconds between two jobs of a tenant
        """
        return tenants * (self.job_s + gap_s) / (self.job_s * slowdown + gap_s)
