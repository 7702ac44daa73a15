# SPDX-License-Identifier: Apache-2.0
"""Makes the runs of a plan, in drawn order, and keeps those that ran as planned."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nova_numa_ext.characterisation.plan import Experiment
from nova_numa_ext.policy.gpu.job import MIN_RUNS
from placement_traits.errors import InvalidValueError, NumaExtError


class NotAsPlannedError(NumaExtError):
    """An experiment did not run as planned, however often it was tried."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run, as the host shows it.

    :param seconds: run time
    :param gpus: GPUs that it had, read back on the host; () when they were on another host
    :param other_gpus: GPUs of the workload beside it, which ran from its beginning to its end; () without
    """

    seconds: float
    gpus: tuple[int, ...] = ()
    other_gpus: tuple[int, ...] = ()


class Runner(Protocol):
    """Where runs are made."""

    def run(self, experiment: Experiment) -> MeasuredRun:
        """Run a workload once, on a host that is otherwise empty."""


def measure(
    host: Runner,
    experiments: Sequence[Experiment],
    *,
    as_planned: Callable[[Experiment, MeasuredRun], bool],
    runs: int = MIN_RUNS,
    seed: int = 0,
    tries: int = 3,
) -> dict[Experiment, tuple[float, ...]]:
    """Return the run times of each experiment, seconds.

    The order of all runs is drawn: what changes slowly (temperature, other tenants) hits all experiments alike.

    :param as_planned: whether a run counts, see :func:`same_gpus` and :func:`same_sockets`
    :param runs: of each experiment, at least five: profiles hold the 95th percentile
    :param seed: of the order
    :param tries: of a run that does not count
    :raises NotAsPlannedError: naming the experiment
    """
    if runs < MIN_RUNS:
        raise InvalidValueError("runs", runs, f"a number >= {MIN_RUNS}")
    order = [experiment for experiment in experiments for _ in range(runs)]
    random.Random(seed).shuffle(order)
    found: dict[Experiment, list[float]] = {experiment: [] for experiment in experiments}
    for experiment in order:
        found[experiment].append(_one(host, experiment, as_planned, tries))
    return {experiment: tuple(seconds) for experiment, seconds in found.items()}


def _one(
    host: Runner,
    experiment: Experiment,
    as_planned: Callable[[Experiment, MeasuredRun], bool],
    tries: int,
) -> float:
    for _ in range(tries):
        run = host.run(experiment)
        if as_planned(experiment, run) and run.seconds > 0:
            return run.seconds
    beside = f" beside {experiment.other}" if experiment.other else ""
    raise NotAsPlannedError(
        f"{experiment.workload} ({experiment.surroundings}{beside}) did not run as planned in {tries} tries; "
        f"the last had GPUs {run.gpus} beside {run.other_gpus}: is the host otherwise empty?"
    )


def same_gpus(experiment: Experiment, run: MeasuredRun) -> bool:
    """The run had exactly the GPUs of the plan: for hosts on which they can be chosen."""
    return (run.gpus, run.other_gpus) == (experiment.gpus, experiment.other_gpus)


def same_sockets(sockets: Sequence[int]) -> Callable[[Experiment, MeasuredRun], bool]:
    """The run had as many GPUs on as many sockets, and shared a socket where the plan does: for clouds.

    :param sockets: socket of each GPU
    """

    def shape(gpus: Sequence[int], other: Sequence[int]) -> tuple[object, ...]:
        own, others = {sockets[gpu] for gpu in gpus}, {sockets[gpu] for gpu in other}
        return len(gpus), len(own), len(other), len(others), len(own & others)

    def as_planned(experiment: Experiment, run: MeasuredRun) -> bool:
        return shape(run.gpus, run.other_gpus) == shape(experiment.gpus, experiment.other_gpus)

    return as_planned


Measured = Mapping[Experiment, Sequence[float]]
