# SPDX-License-Identifier: Apache-2.0
"""Queue length, waiting and use over time, of jobs as the API shows them; drawn by matplotlib (extra ``sim``)."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from nova_numa_ext.cli.jobs_client import Job
from placement_traits.errors import CapabilityMissingError, InvalidValueError

_HOUR_S: Final = 3600.0


def queue_length(jobs: Iterable[Job], now: float) -> list[tuple[float, int]]:
    """Return how many jobs waited from each time on, (seconds since 1970, jobs).

    A job that went back to the queue counts as waiting until its last start: the API keeps no other.
    """
    spans = ((job["submitted_at"], _left(job), 1) for job in jobs)
    return _steps(spans, now)


def use(jobs: Iterable[Job], now: float) -> list[tuple[float, int]]:
    """Return how many servers ran from each time on, (seconds since 1970, servers)."""
    spans = (
        (job["started_at"], job["ended_at"], sum(part["count"] for part in job["parts"]))
        for job in jobs
        if job["started_at"] is not None
    )
    return _steps(spans, now)


def waiting(jobs: Iterable[Job], now: float) -> list[tuple[float, float]]:
    """Return (time of submission, seconds that the job has waited) of each job."""
    left = ((job["submitted_at"], _left(job)) for job in jobs)
    return [(begin, (now if end is None else end) - begin) for begin, end in left]


def draw(jobs: Sequence[Job], now: float, path: Path) -> None:
    """Draw the three, one below the other, into a file of the kind that its name says.

    :raises CapabilityMissingError: matplotlib is not installed
    :raises InvalidValueError: there is no job to draw, or the file cannot be written
    """
    if not jobs:
        raise InvalidValueError("--plot", str(path), "a list with at least one job")
    from nova_numa_ext.simulator import plots

    try:
        figure, axes = plots.figure(3, 1, 8, 8)
    except ImportError as error:
        raise CapabilityMissingError(
            "matplotlib is not installed: install nova-numa-ext[sim]"
        ) from error
    first = min(job["submitted_at"] for job in jobs)

    def hours(rows: Sequence[tuple[float, Any]]) -> tuple[list[float], list[Any]]:
        return [(at - first) / _HOUR_S for at, _ in rows], [value for _, value in rows]

    length, waits, servers = axes[:, 0]
    length.step(*hours(queue_length(jobs, now)), where="post")
    length.set_ylabel("jobs that wait")
    at, seconds = hours(waiting(jobs, now))
    waits.plot(at, [each / 60.0 for each in seconds], "o", markersize=3)
    waits.set_ylabel("waiting, minutes")
    servers.step(*hours(use(jobs, now)), where="post")
    servers.set_ylabel("servers of jobs that run")
    servers.set_xlabel("hours since the first job was submitted")
    for axis in axes[:, 0]:
        axis.grid(alpha=0.3)
        axis.set_xlim(0.0, max((now - first) / _HOUR_S, 1e-3))
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror})"
        raise InvalidValueError("--plot", str(path), allowed) from error
    except ValueError as error:
        raise InvalidValueError(
            "--plot", str(path), "a name that ends in .png, .svg or .pdf"
        ) from error


def _left(job: Job) -> float | None:
    """Return when a job left the queue: started or ended; None while it waits."""
    found = job["started_at"] if job["started_at"] is not None else job["ended_at"]
    return None if found is None else float(found)


def _steps(spans: Iterable[tuple[float, float | None, int]], now: float) -> list[tuple[float, int]]:
    """Return how much there is from each time on, up to now.

    :param spans: from, until, how much; None: it goes on
    """
    changes: dict[float, int] = {now: 0}
    for begin, end, amount in spans:
        changes[begin] = changes.get(begin, 0) + amount
        if end is not None:
            changes[end] = changes.get(end, 0) - amount
    level, steps = 0, []
    for at in sorted(changes):
        level += changes[at]
        steps.append((at, level))
    return steps
