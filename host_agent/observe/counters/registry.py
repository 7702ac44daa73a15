# SPDX-License-Identifier: Apache-2.0
"""Where performance counters come from: the one place that lists the sources.

A source is a function that takes a :class:`~host_agent.observe.counters.source.CounterHost` and returns a
:class:`~host_agent.observe.counters.source.CounterSource`. Other distributions provide theirs as entry points of group
``numa_ext.counter_sources``; so does the emulated hardware with ``model``, which a compute host never carries.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from host_agent.observe.counters.libvirt import LibvirtCounters
from host_agent.observe.counters.perf import PerfCounters
from host_agent.observe.counters.source import CounterHost, CounterSource
from host_agent.observe.counters.stacks import FirstOf, LoggedOnce, NoCounters
from placement_traits.oslo_options import ConfigurationError

GROUP: Final = "numa_ext.counter_sources"

Make = Callable[[CounterHost], CounterSource]


def _perf(host: CounterHost) -> CounterSource:
    return PerfCounters(host.privileged)


def _libvirt(host: CounterHost) -> CounterSource:
    return LibvirtCounters(host.libvirt_totals)


SOURCES: Final[Mapping[str, Make]] = {
    "auto": lambda host: LoggedOnce(FirstOf(_perf(host), _libvirt(host))),
    "perf": lambda host: LoggedOnce(_perf(host)),
    "libvirt": lambda host: LoggedOnce(_libvirt(host)),
    "none": lambda _host: NoCounters(),
}


def build(name: str, host: CounterHost) -> CounterSource:
    """Return the source that ``[counters]source`` names.

    :raises ConfigurationError: no installed distribution provides it
    """
    make = SOURCES.get(name)
    return make(host) if make else LoggedOnce(_plug_in(name)(host))


def _plug_in(name: str) -> Any:
    for found in entry_points(group=GROUP, name=name):
        return found.load()
    raise ConfigurationError(
        f"[counters]source = {name}: no installed distribution provides it (entry point group {GROUP}; model comes "
        f"with nova-numa-ext-emulation): install one, or choose one of {', '.join(SOURCES)}"
    )
