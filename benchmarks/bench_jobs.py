# SPDX-License-Identifier: Apache-2.0
"""The job service's queue on a large cloud: how long a round takes

1,000 jobs wait beside 10,000 hosts that are nearly full; the planner of hosts and GPUs answers about them under each
discipline. Processor time of one thread; nothing is remembered of an earlier round.
"""

import time

from benchmarks import report
from benchmarks.jobs_round import drawn, one_round
from nova_numa_ext.policy.jobs.queue import Discipline, QueueSettings

HOSTS, WAITING, SEED = 10_000, 1_000, 1


def main() -> None:
    """Run the benchmark."""
    arguments = report.parser(__doc__).parse_args()
    report.progress(f"{WAITING} jobs and {HOSTS} hosts are drawn …")
    given = drawn(HOSTS, WAITING, SEED)
    took, rows = {}, []
    for discipline in Discipline:
        before = time.process_time()
        found = one_round(given, QueueSettings(discipline))
        took[discipline] = time.process_time() - before
        rows.append((discipline.value, took[discipline], len(found.starts), len(found.waits)))
    report.table(("discipline", "round s", "start", "wait"), rows)
    figures = {
        "round_s_1000_waiting_10000_hosts": max(took.values()),
        **{f"round_s_{discipline}": seconds for discipline, seconds in took.items()},
    }
    source = {
        "hosts": HOSTS,
        "waiting": WAITING,
        "running": len(given.active),
        "seed": SEED,
        "goals": {"round_s_1000_waiting_10000_hosts": 5.0},
    }
    report.finish("jobs", "measured", figures, source, arguments.json)


if __name__ == "__main__":
    main()
