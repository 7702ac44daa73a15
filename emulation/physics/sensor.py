# SPDX-License-Identifier: Apache-2.0
"""The model as a source of sensor figures for machines without performance counters.

It reads the true state of the host, as the agent's own observers found it (CPUs of threads, pages, classes of guests)
plus the cache masks and effective bandwidth levels, and returns what counters would show. So control loops run closed:
real actuators, modelled physics. What comes from here is labelled *modelled* wherever it is shown.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from emulation.physics.model import Guest, HostModel, Signals
from emulation.physics.parameters import Parameters, frozen
from emulation.physics.programs import WORKLOADS, Workload, representative
from host_agent.model.assignment import Guest as SeenGuest
from host_agent.model.assignment import Observation
from host_agent.model.workload import Activity
from placement_traits.names import InterferenceClass
from placement_traits.topology import HostTopology


@dataclass(frozen=True, slots=True)
class Partition:
    """Effective resource control of one guest.

    :param ways: L3 domain -> capacity bit mask
    :param mba: L3 domain -> bandwidth level, per cent
    """

    ways: Mapping[int, int] = field(default_factory=dict)
    mba: Mapping[int, int] = field(default_factory=dict)


class ModelSensor:
    """Modelled counters of one host.

    :param topology: the host
    :param seed: of the measurement noise
    :param noise_share: standard deviation of each figure, as a share of it
    :param programs: UUID or name of a server -> name of a program of the model; others behave like their declared
        class
    :param parameters: constants; the frozen ones when not given
    """

    def __init__(
        self,
        topology: HostTopology,
        seed: int = 0,
        noise_share: float = 0.02,
        programs: Mapping[str, str] | None = None,
        parameters: Parameters | None = None,
    ) -> None:
        self._model = HostModel(topology, parameters or frozen())
        self._noise = random.Random(seed)
        self._noise_share = noise_share
        self._programs = dict(programs or {})

    def read(
        self, observation: Observation, partitions: Mapping[str, Partition] | None = None
    ) -> dict[str, Signals]:
        """Return UUID -> signals of every running guest whose threads and pages are known.

        :param observation: the host as the agent's observers see it
        :param partitions: UUID -> effective resource control; missing guests are not limited
        """
        load: Counter[int] = Counter()
        guests = [
            guest
            for seen in observation.guests
            if (guest := self._guest(seen, load, (partitions or {}).get(seen.uuid))) is not None
        ]
        return self._model.measure(guests, self._noise, self._noise_share)

    def _guest(
        self, seen: SeenGuest, load: Counter[int], partition: Partition | None
    ) -> Guest | None:
        shares = seen.memory_shares
        threads = seen.vcpu_cpus
        if seen.workload.activity is not Activity.RUNNING or not shares or not threads:
            return None
        part = partition or Partition()
        return Guest(
            seen.uuid,
            self._program(seen),
            tuple(_scheduled(threads[vcpu], load) for vcpu in sorted(threads)),
            shares,
            ways=part.ways,
            mba=part.mba,
        )

    def _program(self, seen: SeenGuest) -> Workload:
        for who in (seen.uuid, seen.workload.title):
            if who in self._programs:
                return WORKLOADS[self._programs[who]]
        request = seen.workload.request
        return representative(request.interference_class if request else InterferenceClass.SHEEP)


def _scheduled(allowed: Iterable[int], load: Counter[int]) -> int:
    """Choose a CPU as a fair scheduler would: the idlest of those allowed, the lowest number among equals."""
    cpu = min(allowed, key=lambda candidate: (load[candidate], candidate))
    load[cpu] += 1
    return cpu
