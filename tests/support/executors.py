# SPDX-License-Identifier: Apache-2.0
"""An executor over a fake host, put together as the agent's is."""

import time
from collections.abc import Callable

from host_agent.apply.executor import Executor, RoundHooks
from host_agent.apply.report import ActionReport, Count
from host_agent.apply.resource_control import LevelWriter, ResourceControl
from host_agent.conf.options import Options
from host_agent.machine.privileged.api import Privileged
from host_agent.model.journal import ActionJournal, Result
from host_agent.model.process import RamRange
from tests.support.fake_host import FakeHost


def _no_count(_action: str, _result: Result) -> None:
    """Count nothing."""


def make_executor(
    host: FakeHost,
    journal: ActionJournal,
    options: Options,
    moved: Callable[[str, tuple[RamRange, ...]], None],
    *,
    seam: Privileged | None = None,
    levels: LevelWriter | None = None,
    count: Count = _no_count,
    progress: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Executor:
    """Return an executor; the host itself partitions.

    :param seam: the way to the privileged operations; None: the host itself
    """
    privileged = seam or host
    report = ActionReport(journal, count)
    control = ResourceControl(host, privileged, report, options.rdt, levels, clock=clock)
    hooks = RoundHooks(host.migrating, moved, progress, clock)
    return Executor(privileged, control, report, options, hooks)
