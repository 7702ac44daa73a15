# SPDX-License-Identifier: Apache-2.0
"""Jobs for the simulator: types with profiles, arrivals by a Poisson process or from a trace file.

The generator is the one of Amaral 2019, section 4.4: batch class binomial over four, network binomial over three,
arrivals Poisson. Its parameters stand in ``model.yaml`` with their sources.
"""

import csv
import hashlib
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, TextIO

import yaml

from nova_numa_ext.policy.gpu.job import GpuJob, JobGraph, Profile, ProfileStore
from nova_numa_ext.policy.gpu.utility import THIRDS
from nova_numa_ext.policy.trace_line import TraceLine
from placement_traits.errors import InvalidValueError

NETWORKS: Final = ("alexnet", "cafferef", "googlenet")
BATCHES: Final = ("tiny", "small", "medium", "large")
REQUIRED_COLUMNS: Final = ("arrival_s", "type", "gpus", "comm", "solo_s")
TRACE_COLUMNS: Final = (
    *REQUIRED_COLUMNS,
    "min_utility",
    "single_node",
    "bandwidth_mbps",
    "walltime_s",
)
MOST_COMM: Final = 4
_YES_NO: Final = {"yes": True, "no": False, "": True}


@dataclass(frozen=True, slots=True)
class Submission:
    """One job of a workload.

    :param number: position in order of arrival
    :param arrival_s: time of submission, seconds
    :param job: what it requests; equal jobs are one object
    :param solo_s: run time in the best surroundings, seconds
    :param slo_slowdown: run time over ``solo_s`` that its owner accepts
    :param walltime_s: run time that its owner promises not to exceed, for backfilling; None: no promise
    """

    number: int
    arrival_s: float
    job: GpuJob
    solo_s: float
    slo_slowdown: float = math.inf
    walltime_s: float | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """Parameters of ``model.yaml``.

    :param document: the decoded file
    :param digest: first 12 hexadecimal digits of the SHA-256 of its text
    """

    document: Mapping[str, Any]
    digest: str

    def store(self) -> ProfileStore:
        """Return the profiles of all job types."""
        networks, batches = self.document["networks"], self.document["batches"]
        profiles = {}
        for network in NETWORKS:
            for batch in BATCHES:
                name, own, scale = f"{network}-{batch}", batches[batch], networks[network]
                beside = {
                    f"{other}-{size}": 1.0 + scale * own["suffers"] * batches[size]["disturbs"]
                    for other in NETWORKS
                    for size in BATCHES
                }
                spread = 1.0 + scale * (own["spread"] - 1.0)
                profiles[name] = Profile(name, own["solo_s"], spread, beside)
        return ProfileStore(profiles)

    def job(self, type_name: str, gpus: int) -> GpuJob:
        """Return what a job of one of the model's types requests."""
        comm = self.document["batches"][type_name.partition("-")[2]]["comm"]
        return GpuJob((JobGraph.complete(gpus, comm),), type_name, self.min_utility(gpus))

    def min_utility(self, gpus: int) -> float:
        """Return the minimum utility of table 7 for a number of GPUs."""
        least = self.document["jobs"]["min_utility"]
        return float(least[min(gpus, max(least))])

    @property
    def slo_slowdown(self) -> float:
        """Slowdown that every job accepts."""
        return float(self.document["jobs"]["slo_slowdown"])


def load_model() -> Model:
    """Read the frozen parameters that come with the package."""
    text = resources.files("nova_numa_ext.simulator.gpu").joinpath("model.yaml").read_text()
    return Model(yaml.safe_load(text), hashlib.sha256(text.encode()).hexdigest()[:12])


def poisson(model: Model, jobs: int, rate_per_min: float, seed: int) -> tuple[Submission, ...]:
    """Draw a workload.

    :param jobs: number of jobs
    :param rate_per_min: mean arrivals per minute
    :param seed: equal seeds give equal workloads
    """
    draw = random.Random(seed)
    parameters = model.document["jobs"]
    store = model.store()
    known: dict[tuple[str, int], GpuJob] = {}
    submissions = []
    clock = 0.0
    for number in range(jobs):
        clock += draw.expovariate(rate_per_min / 60.0)
        batch = BATCHES[_binomial(draw, len(BATCHES) - 1, parameters["batch_p"])]
        network = NETWORKS[_binomial(draw, len(NETWORKS) - 1, parameters["network_p"])]
        key = (f"{network}-{batch}", draw.choice(parameters["gpus"]))
        noise = draw.uniform(1 - parameters["solo_noise"], 1 + parameters["solo_noise"])
        job = known.setdefault(key, model.job(*key))
        profile = store.get(key[0])
        solo_s = profile.solo_s * noise
        worst = profile.spread * THIRDS.worst_slowdown  # of all runs, so the promise holds
        submissions.append(
            Submission(number, clock, job, solo_s, model.slo_slowdown, solo_s * worst)
        )
    return tuple(submissions)


def _binomial(draw: random.Random, trials: int, p: float) -> int:
    return sum(draw.random() < p for _ in range(trials))


def read_trace(
    lines: Iterable[str], model: Model, store: ProfileStore, where: str = "trace"
) -> tuple[Submission, ...]:
    """Read a workload from CSV with the columns of :data:`TRACE_COLUMNS`; only :data:`REQUIRED_COLUMNS` must be there.

    ``gpus`` may be a sum: ``2+2`` is a job of two graphs, which run on different machines. A job with ``single_node``
    ``no`` may span machines. ``bandwidth_mbps`` is the memory bandwidth that each graph needs on its machine,
    ``walltime_s`` the run time that its owner promises not to exceed. What is empty or left out is table 7's minimum
    utility, yes, 0 and no promise.

    :param store: profiles of the types that the trace may name; an empty ``solo_s`` means the profile's
    :raises InvalidValueError: naming the line and column that is wrong
    """
    known: dict[GpuJob, GpuJob] = {}
    rows = []
    for row in _JobLine.of(lines, where, TRACE_COLUMNS, REQUIRED_COLUMNS):
        job = row.job(model, store)
        arrival_s = row.number("arrival_s", 0.0)
        solo_s = row.number("solo_s", 0.001, default=store.get(job.profile).solo_s)
        walltime_s = row.number("walltime_s", 0.001, default=math.inf)
        rows.append((arrival_s, known.setdefault(job, job), solo_s, walltime_s))
    if not rows:
        raise InvalidValueError(where, "no line", "at least one job")
    rows.sort(key=lambda row: row[0])
    return tuple(
        Submission(
            number,
            arrival_s,
            job,
            solo_s,
            model.slo_slowdown,
            walltime_s if walltime_s < math.inf else None,
        )
        for number, (arrival_s, job, solo_s, walltime_s) in enumerate(rows)
    )


class _JobLine(TraceLine):
    """One job."""

    __slots__ = ()

    def job(self, model: Model, store: ProfileStore) -> GpuJob:
        """Return what its job requests."""
        name = self.cells["type"]
        if name not in store.profiles:
            self.refuse("type", ", ".join(store.profiles))
        comm = self._whole("comm", self.cells["comm"], 0, MOST_COMM)
        tasks = [self._whole("gpus", text, 1) for text in self.cells["gpus"].split("+")]
        single_node = self.cells.get("single_node", "")
        if single_node not in _YES_NO:
            self.refuse("single_node", "yes, no")
        return GpuJob(
            tuple(JobGraph.complete(each, comm) for each in tasks),
            name,
            self.number("min_utility", 0.0, 1.0, default=model.min_utility(max(tasks))),
            _YES_NO[single_node],
            int(self.number("bandwidth_mbps", 0.0, default=0.0)),
        )

    def _whole(self, column: str, text: str, low: int, high: int | None = None) -> int:
        value = int(text) if text.strip().isdecimal() else -1
        if value < low or (high is not None and value > high):
            self.refuse(column, f"whole numbers >= {low}" + (f" and <= {high}" if high else ""))
        return value


def write_trace(submissions: Sequence[Submission], file: TextIO) -> None:
    """Write a workload of data-parallel jobs as :func:`read_trace` reads it.

    A job whose graphs have one GPU each has nothing to communicate: its weight is written as 0.
    """
    writer = csv.writer(file)
    writer.writerow(TRACE_COLUMNS)
    for one in submissions:
        job = one.job
        comm = max((weight for part in job.parts for *_, weight in part.edges), default=0)
        writer.writerow(
            [
                f"{one.arrival_s:.3f}",
                job.profile,
                "+".join(str(part.tasks) for part in job.parts),
                f"{comm:g}",
                f"{one.solo_s:.3f}",
                f"{job.min_utility:g}",
                "yes" if job.single_node else "no",
                job.bandwidth_mbps,
                "" if one.walltime_s is None else f"{one.walltime_s:.3f}",
            ]
        )
