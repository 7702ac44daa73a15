# SPDX-License-Identifier: Apache-2.0
"""Options of cache and bandwidth partitions: section ``[rdt]``."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class RdtOptions(Section):
    """``[rdt]``."""

    section: ClassVar = "rdt"
    title: ClassVar = "Cache and memory-bandwidth partitions (Intel RDT, AMD QoS)"

    mode: Literal["observe", "enforce"] = option(
        "enforce",
        "What is done with partitions; see [agent]mode. Where it is observe the host takes no "
        "latency-critical servers, and [slo] observes, too.",
        choices={
            "observe": "groups are planned and compared with those there are, and stay as they are",
            "enforce": "groups, masks, levels and their members are written",
        },
        change="partitions are the last feature to be switched on",
        leave="[agent]mode is enough",
    )
    enabled: bool = option(
        True,
        "Partition cache and memory bandwidth.",
        change="another tool partitions the caches",
        leave="latency-critical flavors are sold: the host takes none when it is off",
    )
    backend: Literal["resctrl", "pqos"] = option(
        "resctrl",
        "What writes the kernel's resctrl files. To change it, run numa-host-agent-ctl reset before.",
        choices={
            "resctrl": "the agent itself",
            "pqos": "Intel's libpqos, for sites that allow nothing else. It takes every class of service of the host, "
            "so it works only where no other software, libvirt included, has groups; it needs the Python package pqos "
            "4.5.0 and libpqos 4",
        },
        change="your site allows libpqos and nothing else",
        leave="libvirt or other software has resctrl groups: libpqos takes them all",
    )
    be_mba_percent: int = option(
        50,
        "Memory bandwidth level of best-effort servers in the L3 domains where a latency-critical one runs; "
        "elsewhere they have all of it.",
        minimum=1,
        maximum=100,
        change="latency-critical servers still suffer (lower), or best-effort ones starve (raise)",
        leave="an objective is measured: the controller then finds the level itself",
    )
    full_bandwidth_mbps: int = option(
        0,
        "Memory bandwidth that the CPUs of one L3 domain draw together, MB/s. Levels of AMD CPUs are absolute, so "
        "a level in per cent is that share of this figure; of Intel's it is a share by itself. 0: not known, and "
        "on an AMD CPU nothing is throttled.",
        minimum=0,
        change="the CPU is AMD's: as `numa-host-agent-ctl calibrate levels` has measured it",
        leave="the CPU is Intel's: nothing reads it",
    )
    shrink_root: bool = option(
        True,
        "Take the ways of latency-critical servers from the default group, too. Without it host processes and "
        "unmanaged servers fill the same ways, and no server is shown as exclusive.",
        change="host processes need all cache ways more than LC servers need exclusive ones: false",
        leave="you sell exclusive ways",
    )
    shared_ways_min: int = option(
        1,
        "Ways of each L3 domain that are never given to a latency-critical server.",
        minimum=1,
        change="best-effort servers thrash in the ways that are left (raise)",
        leave="ways are scarce: each one more is one less to sell in every L3 domain",
    )
    release_after_s: float = option(
        60.0,
        "Seconds without a round of the agent (it was killed, or hangs) after which the helper gives best-effort "
        "servers all bandwidth and CPU time back; at least three times [agent]interval_s is taken. An agent that is "
        "stopped as it should leaves everything as it is.",
        minimum=1.0,
        change="rounds take longer than half of it (raise)",
        leave="best-effort servers must not stay throttled behind a dead agent",
    )
    cpu_time_fallback: bool = option(
        False,
        "Where the hardware cannot allocate memory bandwidth, throttle best-effort servers by the CPU time of "
        "their vCPUs instead, by the same levels. It needs no RDT, but costs them arithmetic, too, not only "
        "memory traffic: turn it on where latencies matter more.",
        change="the CPU has no MBA and best-effort servers are bound by memory",
        leave="best-effort servers compute: they would lose that, too",
    )
    verify_s: float = option(
        10.0,
        "Seconds after which the groups are compared with the plan though nothing has changed here: finds "
        "tampering by others.",
        minimum=0.1,
        change="other tools tamper with resctrl and it must be found sooner",
        leave="no other software writes there",
    )
