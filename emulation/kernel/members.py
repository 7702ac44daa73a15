# SPDX-License-Identifier: Apache-2.0
"""Which threads are in which group of the resctrl model, and what the groups' counters have counted of them."""

import errno
from collections.abc import Mapping

from emulation.kernel.groups import CommandStatus, ControlGroup
from emulation.kernel.shape import Shape
from emulation.kernel.threads import Demand, Threads, Traffic, no_demand


class Members:
    """Threads of groups; one that is in none is in root.

    :param shape: hardware
    :param groups: by name, as they are at any time
    :param status: takes the kernel's sentences
    :param threads: the host's threads
    :param demand: memory traffic of threads
    """

    def __init__(
        self,
        shape: Shape,
        groups: Mapping[str, ControlGroup],
        status: CommandStatus,
        threads: Threads,
        demand: Demand,
    ) -> None:
        self._shape = shape
        self._groups = groups
        self._status = status
        self._threads = threads
        self._demand = demand
        self._member: dict[int, tuple[str, str]] = {}  # thread -> (control, monitor), absent: root
        self._moved_at: dict[int, float] = {}
        self._known: set[int] = set()  # threads seen at the last look, while any is outside root
        self._charged: dict[int, tuple[Traffic, ...]] = {}
        for tid in threads.all():  # counting starts at the mount
            self._meter(tid)

    def move(self, control: str, monitor: str, tid: int) -> None:
        """Move a thread, as the kernel does when its id is written into ``tasks``."""
        if not tid or not self._threads.exists(tid):
            raise self._status.refuse(errno.ESRCH, f"No task {tid}")
        self.settle()
        if tid not in self._member:
            self._charge(tid)
        if monitor and self._member.get(tid, ("", ""))[0] != control:
            raise self._status.refuse(errno.EINVAL, "Can't move task to different control group")
        self.assign(tid, control, monitor)

    def assign(self, tid: int, control: str, monitor: str) -> None:
        """Note where a thread is from now on."""
        self._moved_at[tid] = self._threads.now()
        if control or monitor:
            if not self._member:
                self._known = set(self._threads.all())
            self._member[tid] = (control, monitor)
        else:
            self._member.pop(tid, None)

    def of(self, control: str, monitor: str | None = None) -> list[int]:
        """Return the threads that were moved into a group and have not left it."""
        return [
            tid
            for tid, place in self._member.items()
            if place[0] == control and monitor in (None, place[1])
        ]

    def living(self, control: str, monitor: str) -> list[int]:
        """Return the threads of a group that live."""
        self._inherit()
        if control == "" and not monitor:
            return [tid for tid in self._threads.all() if self._member.get(tid, ("", ""))[0] == ""]
        inside = self.of(control, monitor or None)
        return [tid for tid in inside if self._threads.exists(tid)]

    def settle(self) -> None:
        """Charge what threads outside root have moved since the last look, at the levels that were effective."""
        self._inherit()
        for tid in self._member:
            self._charge(tid)

    def counter(self, control: ControlGroup, monitor: str, domain: int, event: str) -> str:
        """Return the text of a counter."""
        self.settle()
        if control.name == "":
            for tid in self._threads.all():
                if tid not in self._member:
                    self._charge(tid)
        everybody = [control.own, *control.monitors.values()]
        monitors = [control.monitors[monitor]] if monitor else everybody
        good = [one for one in monitors if not one.fault]
        if not good:
            return f"{monitors[-1].fault}\n"
        kinds = {
            "llc_occupancy": "occupancy",
            "mbm_total_bytes": "total",
            "mbm_local_bytes": "local",
        }
        values: list[dict[int, float]] = [getattr(one, kinds[event]) for one in good]
        return f"{int(sum(value.get(domain, 0.0) for value in values))}\n"

    def _inherit(self) -> None:
        """Give threads born since the last look the place of the thread they were cloned from."""
        if not self._member:
            return
        now = set(self._threads.all())
        births = []
        for tid in now - self._known:
            origin = self._threads.origin(tid)
            if origin:
                births.append((origin[1], tid, origin[0]))
        for born, tid, parent in sorted(births):
            if (
                parent in self._member
                and tid not in self._member
                and born >= self._moved_at.get(parent, 0)
            ):
                self._member[tid] = self._member[parent]
                self._moved_at[tid] = born
        for tid in self._member.keys() - now:
            del self._member[tid]
            self._charged.pop(tid, None)
        self._known = now

    def _meter(self, tid: int) -> tuple[Traffic, ...]:
        """Return the traffic of a thread since the last look, by domain."""
        now = tuple(self._demand(tid, domain) for domain in self._shape.domains)
        before = self._charged.get(tid) or (Traffic(),) * len(now)
        self._charged[tid] = now
        return tuple(new.since(old) for new, old in zip(now, before, strict=True))

    def _charge(self, tid: int) -> None:
        if self._demand is no_demand:  # with hundreds of threads, adding zeros takes seconds
            return
        shape = self._shape
        name, monitor_name = self._member.get(tid, ("", ""))
        control = self._groups[name]
        monitor = control.monitors[monitor_name] if monitor_name else control.own
        for domain, traffic in zip(shape.domains, self._meter(tid), strict=True):
            throttled = shape.mba and not shape.mba_mbps
            level = control.schemata["MB"][domain] / shape.mba_max if throttled else 1.0
            total = traffic.total_bytes * level
            local = traffic.local_bytes * level
            monitor.total[domain] = monitor.total.get(domain, 0.0) + total
            monitor.local[domain] = monitor.local.get(domain, 0.0) + local
            ways = control.schemata[shape.caches[0]][domain] if shape.caches else shape.full
            room = shape.l3_bytes * ways.bit_count() / shape.cbm_len
            filled = monitor.occupancy.get(domain, 0.0) + total
            monitor.occupancy[domain] = min(filled, room)
