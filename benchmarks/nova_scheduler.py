# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler, from the candidates that Placement offered to the hosts that it selects, with a watch in its hands.

It is :class:`nova.scheduler.manager.SchedulerManager` with the filters and weighers that nova itself loads by name from
its configuration. It has no database and claims nothing: hosts come from a :class:`benchmarks.cloud.Cloud`.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from nova import context, exception, filters, weights
from nova.conf import CONF
from nova.scheduler import host_manager, manager

from benchmarks.cloud import Cloud, Flavor, Offered, request
from nova_numa_ext import conf as our_conf
from nova_numa_ext.scheduler import NumaExtFilter, NumaExtWeigher, fleet, process
from placement_traits.nova_conf import FILTER, WEIGHER

SLOW_FILTERS = ("NUMATopologyFilter", "PciPassthroughFilter")


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds on the clock and of the processor; the machine may be shared, so only the second are one's own."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: "Span") -> "Span":
        return Span(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: "Span") -> "Span":
        return Span(self.wall - other.wall, self.cpu - other.cpu)

    def __mul__(self, times: float) -> "Span":
        return Span(self.wall * times, self.cpu * times)


def now() -> Span:
    """Both clocks."""
    return Span(time.perf_counter(), time.thread_time())


@dataclass
class Times:
    """What one request took.

    :param servers: that were asked for
    :param copies: giving HostStates their candidates
    :param passes: filters and weighers, one entry per server and one for the alternates
    :param ours: of each pass, our filter and our weigher
    :param weighers: of ours, nova's own weighers, which our filter asks
    :param filters: of ours, nova's own filters, by which our filter looks ahead
    :param passed: hosts that our filter returned in the first pass
    :param totals: of each host that was weighed in the first pass, by name
    :param selected: names of the hosts that nova chose
    """

    servers: int
    copies: Span = Span()
    passes: list[Span] = field(default_factory=list)
    ours: list[Span] = field(default_factory=list)
    weighers: Span = Span()
    filters: Span = Span()
    passed: int | None = None
    totals: dict[str, float] = field(default_factory=dict)
    selected: list[str] = field(default_factory=list)

    @property
    def whole(self) -> Span:
        """All passes; those that were not made count as much as the last one that was."""
        return self._all(self.passes)

    @property
    def ours_whole(self) -> Span:
        """Ours of it."""
        return self._all(self.ours)

    @property
    def extrapolated(self) -> bool:
        """Whether passes are missing."""
        return bool(self._missing(self.passes))

    def _missing(self, each: list[Span]) -> int:
        return 0 if self.servers == 1 else max(0, self.servers + 1 - len(each))

    def _all(self, each: list[Span]) -> Span:
        return sum(each, Span()) + each[-1] * self._missing(each)


class _EnoughError(Exception):
    """The rest of the request is extrapolated."""


class _Hosts(host_manager.HostManager):  # type: ignore[misc]
    """Filters and weighers of the configuration, without a database."""

    def refresh_cells_caches(self) -> None:
        self.cells: dict[str, Any] = {}
        self.enabled_cells: list[Any] = []
        self.host_to_cell_uuid: dict[str, str] = {}

    def _init_aggregates(self) -> None:
        pass

    def _init_instance_info(self, computes_by_cell: Any = None) -> None:
        pass


class _NoPlacement:
    """Grants each claim."""

    def claim_resources(self, *_args: Any, **_kwargs: Any) -> bool:
        return True

    def delete_allocation_for_instance(self, *_args: Any, **_kwargs: Any) -> bool:
        return True


class Scheduler(manager.SchedulerManager):  # type: ignore[misc]
    """Schedules on a Cloud and notes how long it takes.

    :param ours: with our filter and weigher, in the documented order, as after a start of the process
    :param slow: with nova's slow filters
    :param shortlist: ``[numa_ext]shortlist``, None for its default
    :param enough_s: a request for several servers ends after its second pass when it has taken longer than this
    """

    placement_client = _NoPlacement()

    def __init__(
        self,
        cloud: Cloud,
        *,
        ours: bool,
        slow: bool = True,
        shortlist: int | None = None,
        enough_s: float = 1e9,
    ) -> None:
        self.cloud, self.enough_s = cloud, enough_s
        configure(ours=ours, slow=slow, shortlist=shortlist)
        self.host_manager = hosts = _Hosts()
        hosts.filter_handler.get_filtered_objects = self._filtering(
            hosts.filter_handler.get_filtered_objects
        )
        hosts.weight_handler.get_weighed_objects = self._weighing(
            hosts.weight_handler.get_weighed_objects
        )
        self.times = Times(1)
        fleet.from_nova = lambda *_: cloud
        process.use(None)
        began = now()
        self.engine = process.engine() if ours else None
        self.start = now() - began

    @property
    def faults(self) -> int:
        """Faults of our plug-ins."""
        return self.engine.faults.total() if self.engine is not None else 0

    def schedule(
        self, number: int, asked: Flavor, servers: int = 1, limit: int | None = None
    ) -> Times:
        """Ask for servers, as the conductor would."""
        with uncollected():
            spec = request(number, asked, servers)
            offered = self.cloud.offer(spec, asked)
            if limit is not None:
                offered = offered.limited(limit, random.Random(number))
        gc.collect()
        return self.select(spec, offered)

    def select(self, spec: Any, offered: Offered) -> Times:
        """Select hosts among those that Placement offered."""
        self.times = Times(spec.num_instances)
        process.use(self.engine)
        uuids = [spec.instance_uuid]
        uuids += [f"{spec.instance_uuid[:-4]}{n:04x}" for n in range(1, spec.num_instances)]
        with watched(self.times), suppress(exception.NoValidHost, _EnoughError):
            selections = self._schedule(
                context.get_admin_context(), spec, uuids, offered, offered, "1.39", True
            )
            self.times.selected = [selection[0].service_host for selection in selections]
        return self.times

    def _filtering(self, filtered_objects: Callable[..., Any]) -> Callable[..., Any]:
        def run(filters: Any, objs: Any, spec_obj: Any, index: int = 0) -> Any:
            times, began = self.times, now()
            if len(times.passes) >= 2 and sum(times.passes, Span()).wall > self.enough_s:
                raise _EnoughError
            hosts = list(objs)
            ready = now()
            times.copies += ready - began
            times.ours.append(Span())
            times.passes.append(Span())
            passed = filtered_objects(filters, hosts, spec_obj, index)
            times.passes[-1] = now() - ready
            return passed

        return run

    def _weighing(self, weighed_objects: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            began = now()
            weighed = weighed_objects(*args)
            self.times.passes[-1] += now() - began
            if len(self.times.passes) == 1:
                self.times.totals = {each.obj.host: each.weight for each in weighed}
            return weighed

        return run

    def _get_all_host_states(self, context: Any, spec_obj: Any, provider_summaries: Any) -> Any:
        del context, spec_obj
        return self.cloud.host_states(provider_summaries)


@contextmanager
def uncollected() -> Iterator[None]:
    """Make many objects that stay: the garbage collector would go over them again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def configure(*, ours: bool, slow: bool, shortlist: int | None) -> None:
    """Set nova's filters: its default, those for NUMA and PCI, and ours before them."""
    group = "filter_scheduler"
    CONF.clear_override("enabled_filters", group)
    default = list(CONF.filter_scheduler.enabled_filters)
    mine = [FILTER.rpartition(".")[2]] if ours else []
    enabled = [*default, *mine, *(SLOW_FILTERS if slow else ())]
    CONF.set_override("enabled_filters", enabled, group)
    everything = ["nova.scheduler.filters.all_filters", *([FILTER] if ours else [])]
    CONF.set_override("available_filters", everything, group)
    weighers = ["nova.scheduler.weights.all_weighers", *([WEIGHER] if ours else [])]
    CONF.set_override("weight_classes", weighers, group)
    CONF.clear_override("shortlist", our_conf.GROUP)
    if shortlist is not None:
        CONF.set_override("shortlist", shortlist, our_conf.GROUP)


@contextmanager
def watched(times: Times) -> Iterator[None]:
    """Note what our filter and our weigher take while nova schedules, and what of it nova's weighers and filters."""
    inside = False

    def ours(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal inside
            began, inside = now(), True
            try:
                return work(*args)
            finally:
                inside = False
                times.ours[-1] += now() - began

        return run

    def filtering(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            passed = work(*args)
            times.passed = len(passed) if times.passed is None else times.passed
            return passed

        return ours(run)

    def novas(name: str) -> Callable[..., Any]:
        def wrap(work: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                if not inside:
                    return work(*args)
                began = now()
                result = list(work(*args))
                setattr(times, name, getattr(times, name) + (now() - began))
                return result

            return run

        return wrap

    seams: list[tuple[Any, str, Callable[..., Any]]] = [
        (NumaExtFilter, "filter_all", filtering),
        (NumaExtWeigher, "weigh_objects", ours),
        (NumaExtWeigher, "weight_multiplier", ours),
        (weights.BaseWeigher, "weigh_objects", novas("weighers")),
        (filters.BaseFilter, "filter_all", novas("filters")),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in seams]
    for owner, name, wrap in seams:
        setattr(owner, name, wrap(getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, work in kept:
            setattr(owner, name, work)
