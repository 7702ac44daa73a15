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

from nova_numa_ext.policy.gpu_job import GpuJob, JobGraph, Profile, ProfileStore
from placement_traits.errors import InvalidValueError

NETWORKS: Final = ("alexnet", "cafferef", "googlenet")
BATCHES: Final = ("tiny", "small", "medium", "large")
TRACE_COLUMNS: Final = ("arrival_s", "type", "gpus", "comm", "solo_s")


@dataclass(frozen=True, slots=True)
class Submission:
    """One job of a workload.

    :param number: position in order of arrival
    :param arrival_s: time of submission, seconds
    :param job: what it wants; equal jobs are one object
    :param solo_s: run time in the best surroundings, seconds
    :param slo_slowdown: run time over ``solo_s`` that its owner accepts
    """

    number: int
    arrival_s: float
    job: GpuJob
    solo_s: float
    slo_slowdown: float = math.inf


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
        """Return what a job of one of the model's types wants."""
        comm = self.document["batches"][type_name.partition("-")[2]]["comm"]
        return self.wish(type_name, gpus, comm)

    def wish(self, type_name: str, gpus: int, comm: int) -> GpuJob:
        """Return a data-parallel job with the minimum utility of table 7 for its number of GPUs."""
        least = self.document["jobs"]["min_utility"]
        return GpuJob((JobGraph.complete(gpus, comm),), type_name, least[min(gpus, max(least))])

    @property
    def slo_slowdown(self) -> float:
        """Slowdown that every job accepts."""
        return float(self.document["jobs"]["slo_slowdown"])


def load_model() -> Model:
    """Read the frozen parameters that come with the package."""
    text = resources.files("nova_numa_ext.simulator").joinpath("model.yaml").read_text()
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
    wishes: dict[tuple[str, int], GpuJob] = {}
    submissions = []
    clock = 0.0
    for number in range(jobs):
        clock += draw.expovariate(rate_per_min / 60.0)
        batch = BATCHES[_binomial(draw, len(BATCHES) - 1, parameters["batch_p"])]
        network = NETWORKS[_binomial(draw, len(NETWORKS) - 1, parameters["network_p"])]
        key = (f"{network}-{batch}", draw.choice(parameters["gpus"]))
        noise = draw.uniform(1 - parameters["solo_noise"], 1 + parameters["solo_noise"])
        job = wishes.setdefault(key, model.job(*key))
        submissions.append(
            Submission(number, clock, job, store.get(key[0]).solo_s * noise, model.slo_slowdown)
        )
    return tuple(submissions)


def _binomial(draw: random.Random, trials: int, p: float) -> int:
    return sum(draw.random() < p for _ in range(trials))


def read_trace(
    lines: Iterable[str], model: Model, store: ProfileStore, where: str = "trace"
) -> tuple[Submission, ...]:
    """Read a workload from CSV with the columns of :data:`TRACE_COLUMNS`.

    :param store: profiles of the types that the trace may name; an empty ``solo_s`` means the profile's
    :raises InvalidValueError: naming the line and column that is wrong
    """
    reader = csv.DictReader(lines)
    missing = set(TRACE_COLUMNS) - set(reader.fieldnames or ())
    if missing:
        raise InvalidValueError(where, sorted(missing)[0], f"columns {', '.join(TRACE_COLUMNS)}")
    wishes: dict[tuple[str, int, int], GpuJob] = {}
    rows = []
    for line, row in enumerate(reader, start=2):
        at = f"{where} line {line}"
        if row["type"] not in store.profiles:
            raise InvalidValueError(f"{at}, type", row["type"], ", ".join(store.profiles))
        arrival_s = _number(row, "arrival_s", at, 0.0)
        key = (row["type"], int(_number(row, "gpus", at, 1)), int(_number(row, "comm", at, 0)))
        solo_s = _number(row, "solo_s", at, 0.001) if row["solo_s"] else store.get(key[0]).solo_s
        rows.append((arrival_s, wishes.setdefault(key, model.wish(*key)), solo_s))
    rows.sort(key=lambda row: row[0])
    return tuple(
        Submission(number, arrival_s, job, solo_s, model.slo_slowdown)
        for number, (arrival_s, job, solo_s) in enumerate(rows)
    )


def _number(row: Mapping[str, str], column: str, at: str, minimum: float) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = -math.inf
    if not minimum <= value < math.inf:
        raise InvalidValueError(f"{at}, {column}", row[column], f"a number >= {minimum:g}")
    return value


def write_trace(submissions: Sequence[Submission], file: TextIO) -> None:
    """Write a workload of data-parallel jobs as :func:`read_trace` reads it.

    A job of one GPU has nobody to talk to: its weight is written as 0.
    """
    writer = csv.writer(file)
    writer.writerow(TRACE_COLUMNS)
    for one in submissions:
        job = one.job
        comm = job.graph.edges[0][2] if job.graph.edges else 0
        writer.writerow(
            [f"{one.arrival_s:.3f}", job.profile, job.gpus, f"{comm:g}", f"{one.solo_s:.3f}"]
        )
