# SPDX-License-Identifier: Apache-2.0
"""Groups that last as long as a measurement: limited ones and counted ones. What a killed one left is made again."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from host_agent.machine.rdt.reader import CounterReading
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.rdt import GROUP_PREFIX, ROOT_GROUP

_NAME: Final = f"{GROUP_PREFIX}calibrate"


class CalibrationGroups:
    """Groups of one tree for measurements.

    :param resctrl: the tree
    """

    def __init__(self, resctrl: Resctrl) -> None:
        self._resctrl = resctrl

    @contextmanager
    def limited(self, l3: int, level: int) -> Iterator[Callable[[Collection[int]], bool]]:
        """A control group with a limit in one L3 domain.

        What is yielded puts threads into it, and tells whether all of them still ran.

        :param level: in the tree's own unit
        :raises ResctrlError: the kernel refused
        """
        with self._resctrl.lock():
            if _NAME in self._resctrl.control_groups():
                self._resctrl.remove_group(_NAME)
            self._resctrl.create_group(_NAME)
        try:
            self._resctrl.write_schemata(_NAME, {"MB": {l3: level}})
            yield lambda threads: not self._resctrl.move_tasks(_NAME, "", lambda: threads).ended
        finally:
            with self._resctrl.lock():
                self._resctrl.remove_group(_NAME)

    @contextmanager
    def counted(
        self, threads: Collection[int]
    ) -> Iterator[Callable[[], tuple[CounterReading, ...]]]:
        """A monitoring group of the root group with these threads in it; what is yielded reads its counters.

        :raises ResctrlError: the kernel refused
        """
        with self._resctrl.lock():
            if _NAME in self._resctrl.actual().root.monitors:
                self._resctrl.remove_monitor(ROOT_GROUP, _NAME)
            self._resctrl.create_monitor(ROOT_GROUP, _NAME)
        try:
            self._resctrl.move_tasks(ROOT_GROUP, _NAME, lambda: threads)
            yield lambda: self._resctrl.counters(ROOT_GROUP, _NAME)
        finally:
            with self._resctrl.lock():
                self._resctrl.remove_monitor(ROOT_GROUP, _NAME)
