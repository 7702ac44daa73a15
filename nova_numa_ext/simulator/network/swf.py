# SPDX-License-Identifier: Apache-2.0
"""Logs in the Standard Workload Format: a job a line, 18 numbers, -1 for what is not known; ``;`` begins a comment.

Of these 18 a replay reads the job's number (1), when it was submitted (2), how long it ran (4) and how many processors
it had (5) or asked for (8); it writes these and how long the job has waited (3). Feitelson, Tsafrir, Krakov: Experience
with using the Parallel Workloads Archive (2014).
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final

from nova_numa_ext.simulator.network.mixes import LoggedJob
from placement_traits.errors import InvalidValueError, cut

_FIELDS: Final = 18
_UNKNOWN: Final = "-1"
_MOST_DIGITS: Final = 18


def read(text: str, where: str, processors_per_host: int = 1) -> tuple[LoggedJob, ...]:
    """Return the jobs that ran, in the order of their submission; those without time or processors are left out.

    :param where: for errors
    :param processors_per_host: a job has whole hosts
    :raises InvalidValueError: a line is no job, a number comes twice, or no job is left
    """
    found: dict[int, LoggedJob] = {}
    for at, line in enumerate(text.splitlines(), start=1):
        words = line.partition(";")[0].split()
        if not words:
            continue
        if len(words) != _FIELDS:
            raise InvalidValueError(f"{where}, line {at}", f"{len(words)} fields", f"{_FIELDS}")
        number, submitted, _, ran, had, _, _, asked, *_ = (
            _number(each, f"{where}, line {at}") for each in words
        )
        processors = had if had > 0 else asked
        if ran <= 0 or processors <= 0:
            continue
        if int(number) in found:
            raise InvalidValueError(
                f"{where}, line {at}", int(number), "numbers of jobs, each once"
            )
        hosts = -(-int(processors) // processors_per_host)
        found[int(number)] = LoggedJob(int(number), submitted, ran, hosts)
    if not found:
        raise InvalidValueError(where, "no job that ran", "one or more")
    return tuple(sorted(found.values(), key=lambda job: (job.submitted_at, job.number)))


def written(jobs: Iterable[tuple[LoggedJob, float, float]], hosts: int) -> Iterator[str]:
    """Yield the lines of a log in the order of submission, without ends of lines.

    :param jobs: each with the times at which it has started and ended, s
    :param hosts: of the fabric
    """
    yield "; Version: 2.2"
    yield f"; MaxNodes: {hosts}"
    yield "; Note: modelled; a processor is a host"
    for job, started_at, ended_at in sorted(jobs, key=lambda each: _submission(each[0])):
        known = {
            1: job.number,
            2: round(job.submitted_at),
            3: round(started_at - job.submitted_at),
            4: max(1, round(ended_at - started_at)),
            5: job.hosts,
            8: job.hosts,
            11: 1,
        }
        yield " ".join(str(known.get(field, _UNKNOWN)) for field in range(1, _FIELDS + 1))


def _submission(job: LoggedJob) -> tuple[float, int]:
    return job.submitted_at, job.number


def _number(word: str, where: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and len(word) <= _MOST_DIGITS):
        raise InvalidValueError(where, cut(word), f"numbers of {_MOST_DIGITS} signs at most")
    return found
