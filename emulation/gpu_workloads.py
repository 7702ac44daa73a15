# SPDX-License-Identifier: Apache-2.0
"""A host on which GPU workloads run as the simulator's model says, for blind characterisation.

Workloads are asked for under names that say nothing; which job type of ``nova_numa_ext/simulator/gpu/model.yaml`` (or
which program of Rodinia, for remote GPUs) stands behind each is the host's secret. All is *modelled*.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nova_numa_ext.characterisation.campaign import MeasuredRun
from nova_numa_ext.characterisation.plan import Experiment, Surroundings
from nova_numa_ext.policy.gpu.graph import GpuGraph, mask_of
from nova_numa_ext.policy.gpu.job import JobGraph
from nova_numa_ext.policy.gpu.placement import spread_stretch
from nova_numa_ext.policy.gpu.utility import Neighbour, slowdowns
from nova_numa_ext.simulator.gpu.workload import Model


@dataclass(frozen=True, slots=True)
class NetworkShare:
    """Part of the run time that a program with a remote GPU spends on the network.

    :param alone: on a network that is otherwise idle
    :param loaded: while Iperf loads it
    """

    alone: float
    loaded: float

    @property
    def slowdown(self) -> float:
        """Run time under load over that without, with processor and GPU as quick as before."""
        return (1.0 - self.alone) / (1.0 - self.loaded)


# Amaral 2019, section 3.3.2. Hotspot's shares are lost with its figure.
RODINIA: Final[Mapping[str, NetworkShare]] = {
    "b+tree": NetworkShare(0.002, 0.01),
    "backprop": NetworkShare(0.05, 0.06),
    "gaussian": NetworkShare(0.01, 0.09),
    "lavaMD": NetworkShare(0.02, 0.03),
    "NW": NetworkShare(0.17, 0.49),
    "pathfinder": NetworkShare(0.02, 0.11),
    "srad": NetworkShare(0.03, 0.08),
}


class ModelledGpuHost:
    """Run times of workloads on the GPUs of one host.

    :param graph: its GPUs
    :param model: how job types run
    :param behind: job type behind each workload's name
    :param shares: network share of each workload that can use a remote GPU
    :param noise_share: standard deviation of a run time, as a share of it
    """

    def __init__(
        self,
        graph: GpuGraph,
        model: Model,
        behind: Mapping[str, str],
        shares: Mapping[str, NetworkShare] | None = None,
        *,
        noise_share: float = 0.01,
        seed: int = 0,
    ) -> None:
        self._graph = graph
        self._model = model
        self._store = model.store()
        self._behind = dict(behind)
        self._shares = dict(shares or {})
        self._noise_share = noise_share
        self._noise = random.Random(seed)

    def run(self, experiment: Experiment) -> MeasuredRun:
        """Run a workload once."""
        noise = max(0.5, self._noise.gauss(1.0, self._noise_share))
        return MeasuredRun(
            self._seconds(experiment) * noise, experiment.gpus, experiment.other_gpus
        )

    def _seconds(self, experiment: Experiment) -> float:
        kind = self._behind[experiment.workload]
        solo_s = self._store.get(kind).solo_s
        match experiment.surroundings:
            case Surroundings.REMOTE:
                return solo_s / (1.0 - self._shares[experiment.workload].alone)
            case Surroundings.LOADED:
                return solo_s / (1.0 - self._shares[experiment.workload].loaded)
        stretch = spread_stretch(
            self._graph, self._part(experiment), experiment.gpus, self._store.get(kind).spread
        )
        return solo_s * stretch * self._slowdown(experiment)

    def _part(self, experiment: Experiment) -> JobGraph:
        return self._model.job(self._behind[experiment.workload], len(experiment.gpus)).graph

    def _slowdown(self, experiment: Experiment) -> float:
        if not experiment.other:
            return 1.0
        both = (
            Neighbour(self._behind[experiment.workload], mask_of(experiment.gpus)),
            Neighbour(self._behind[experiment.other], mask_of(experiment.other_gpus)),
        )
        return slowdowns(self._graph, both, self._store)[0]
