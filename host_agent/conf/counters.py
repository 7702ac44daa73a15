# SPDX-License-Identifier: Apache-2.0
"""Options of the performance counters of servers: section ``[counters]``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class CounterOptions(Section):
    """``[counters]``."""

    section: ClassVar = "counters"
    title: ClassVar = "Performance counters of servers"

    source: str = option(
        "auto",
        "Where instructions, misses and stalls of servers come from: perf counts the vCPU threads itself, libvirt "
        "takes what nova's [libvirt]enabled_perf_events counts, auto takes perf and falls back to libvirt. model "
        "is for machines without counters, such as an emulated host of the lab: figures of a model that knows "
        "where threads and pages are, labelled as modelled, never for production. none: arrival and classes alone "
        "decide. Other distributions may provide more (entry points of group numa_ext.counter_sources).",
        change="CAP_PERFMON cannot be given (libvirt), or there are no counters at all and you try things out (model)",
        leave="perf works: libvirt's counters miss threads and times",
    )
    sample_s: float = option(
        1.0,
        "Seconds between two readings of a server. While memory searches run ([bwap]at_once), their servers and "
        "latency-critical ones are read every [bwap]interval_s. Above 15 latencies cannot be guessed at by "
        "instructions per cycle ([slo]ipc_tolerance_percent).",
        minimum=0.05,
        change="the agent uses too much CPU time (raise)",
        leave="phases of servers are short",
    )
    model_noise_percent: float = option(
        2.0,
        "Standard deviation of each modelled figure.",
        minimum=0.0,
        maximum=50.0,
        change="source is model and you try how much noise the controllers stand",
        leave="source is anything else: then it does nothing",
    )
    model_seed: int = option(
        0,
        "Seed of the model's noise.",
        change="source is model and you try how much noise the controllers stand",
        leave="source is anything else: then it does nothing",
    )
    model_programs: Mapping[str, str] = option(
        {},
        "What the model takes to run in a server, by the server's name, such as big-1:sc; the others behave like "
        "their interference class.",
        change="source is model and you try how much noise the controllers stand",
        leave="source is anything else: then it does nothing",
    )

    @property
    def model_noise(self) -> float:
        """Standard deviation of each modelled figure, as a share."""
        return self.model_noise_percent / 100
