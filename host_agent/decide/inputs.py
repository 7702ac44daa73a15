# SPDX-License-Identifier: Apache-2.0
"""What goes into NUMA balancing: settings and inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from host_agent.conf import bwap, mapping
from host_agent.decide.pages.weights import Shares
from host_agent.model.assignment import Observation
from host_agent.model.counters import ServerCounters


@dataclass(frozen=True, slots=True)
class BalancingSettings:
    """The operator's choices.

    :param map_cores: give each vCPU a core of its own; false: home nodes are all there is, memory is balanced only
    :param mapper: of the mapping
    :param search: of BWAP's search
    :param be_mba_percent: bandwidth level of best-effort servers beside a latency-critical one
    :param margin_mb: MiB that stay free on every node
    :param dead_band: share of the memory that may be elsewhere when pages count as placed
    """

    map_cores: bool = True
    mapper: mapping.Settings = field(default_factory=mapping.Settings)
    search: bwap.Settings = field(default_factory=bwap.Settings)
    be_mba_percent: int = 50
    margin_mb: int = 256
    dead_band: float = 0.02


@dataclass(frozen=True, slots=True)
class BalancingInputs:
    """What is known now.

    :param now_s: monotonic time, seconds
    :param observation: the host
    :param counters: UUID -> counters of this sample, for the searches; None: no sample was taken, searches hold
    :param performance: UUID -> counters of the mapping's longer sample; None: not due
    :param canonical: worker set -> canonical weights, from the calibration; empty when never calibrated
    :param spreading_refused: why no memory may be spread on this host now, "" when it may
    """

    now_s: float
    observation: Observation
    counters: Mapping[str, ServerCounters] | None = None
    performance: Mapping[str, ServerCounters] | None = None
    canonical: Mapping[frozenset[int], Shares] = field(default_factory=dict)
    spreading_refused: str = ""
