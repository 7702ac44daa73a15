# SPDX-License-Identifier: Apache-2.0
"""The seam over oslo.privsep: the agent runs without rights, a small helper process keeps four capabilities.

The helper is started on the first call (``sudo privsep-helper``, or ``[numa_ext_privileged]helper_command``), reads the
same configuration files for the host's paths, and answers until the agent ends. Named tuples travel as plain ones.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from oslo_config import cfg
from oslo_privsep import priv_context

from host_agent.conf import agent as agent_conf
from host_agent.machine.privileged import api
from host_agent.machine.privileged.operations import HostOperations
from host_agent.model.process import (
    CountReport,
    GroupLevel,
    MoveLimits,
    MoveReport,
    PartitionPlace,
    PartitionReport,
    PartitionWish,
    Pin,
    PinFailure,
    Process,
    QuotaReport,
    RamRange,
    Target,
    Thread,
    ThreadCount,
)

context: Final = priv_context.PrivContext(
    "host_agent.machine.privileged",
    cfg_section="numa_ext_privileged",
    pypath=f"{__name__}.context",
    capabilities=list(api.NEEDED),
)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _entrypoint(function: _Function) -> _Function:
    """Mark a function that the helper may run for us; oslo.privsep's own decorator has no types."""
    marked: _Function = context.entrypoint(function)
    return marked


@cache
def _operations() -> HostOperations:
    """Build the operations inside the helper, from its own reading of the configuration."""
    agent_conf.register(cfg.CONF)
    return HostOperations(agent_conf.paths(cfg.CONF))


@_entrypoint
def _process(uuid: str) -> Any:
    return _operations().process(uuid)


@_entrypoint
def _guest_ram(uuid: str) -> Any:
    return _operations().guest_ram(uuid)


@_entrypoint
def _sample(uuid: str, ranges: Sequence[tuple[int, int]], pages: int) -> Any:
    return _operations().sample(uuid, ranges, pages)


@_entrypoint
def _pin(uuid: str, pins: Sequence[Sequence[Any]]) -> Any:
    return _operations().pin(uuid, [Pin(*pin) for pin in pins])


@_entrypoint
def _move_memory(uuid: str, targets: Sequence[Sequence[Any]], limits: Sequence[Any]) -> Any:
    return _operations().move_memory(
        uuid, [Target(*target) for target in targets], MoveLimits(*limits)
    )


@_entrypoint
def _count(threads: Sequence[Sequence[Any]]) -> Any:
    return _operations().count([(uuid, tids) for uuid, tids in threads])


@_entrypoint
def _partition(
    wishes: Sequence[Sequence[Any]], shrink_root: bool, shared_ways_min: int, write: bool
) -> Any:
    wanted = [PartitionWish(*wish) for wish in wishes]
    return _operations().partition(wanted, shrink_root, shared_ways_min, write)


@_entrypoint
def _throttle(levels: Sequence[Sequence[Any]]) -> Any:
    return _operations().throttle([GroupLevel(*level) for level in levels])


@_entrypoint
def _limit_cpu_time(levels: Sequence[Sequence[Any]], write: bool) -> Any:
    return _operations().limit_cpu_time([(uuid, percent) for uuid, percent in levels], write)


@_entrypoint
def _release_throttles(write: bool) -> Any:
    return _operations().release_throttles(write)


@_entrypoint
def _alive(after_s: float) -> None:
    _operations().alive(after_s)


@_entrypoint
def _leave() -> None:
    _operations().leave()


@_entrypoint
def _reset_partitions(write: bool) -> Any:
    return _operations().reset_partitions(write)


class Separated:
    """The agent's end: calls the helper and gives the answers their names back.

    :param conf: the loaded configuration; oslo.privsep hands its files to the helper
    """

    def __init__(self, conf: Any) -> None:
        # oslo.privsep knows only the global configuration object.
        if conf is not cfg.CONF:
            cfg.CONF([], project="numa-host-agent", default_config_files=conf.config_file or [])
        priv_context.init()

    def process(self, uuid: str) -> Process:
        """Ask the helper."""
        pid, started, mems, threads = _process(uuid)
        return Process(pid, started, mems, tuple(Thread(*thread) for thread in threads))

    def guest_ram(self, uuid: str) -> tuple[RamRange, ...]:
        """Ask the helper."""
        return tuple(RamRange(*found) for found in _guest_ram(uuid))

    def sample(
        self, uuid: str, ranges: Sequence[tuple[int, int]], pages: int
    ) -> tuple[tuple[int, int], ...]:
        """Ask the helper."""
        return tuple((node, count) for node, count in _sample(uuid, list(ranges), pages))

    def pin(self, uuid: str, pins: Sequence[Pin]) -> tuple[PinFailure, ...]:
        """Ask the helper."""
        return tuple(PinFailure(*failure) for failure in _pin(uuid, list(pins)))

    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        """Ask the helper."""
        return MoveReport(*_move_memory(uuid, list(targets), limits))

    def count(self, threads: Sequence[tuple[str, Sequence[int]]]) -> CountReport:
        """Ask the helper."""
        counts, problem = _count(list(threads))
        return CountReport(tuple(ThreadCount(*count) for count in counts), problem)

    def partition(
        self, wishes: Sequence[PartitionWish], shrink_root: bool, shared_ways_min: int, write: bool
    ) -> PartitionReport:
        """Ask the helper."""
        writes, places, problem = _partition(list(wishes), shrink_root, shared_ways_min, write)
        return PartitionReport(writes, tuple(PartitionPlace(*place) for place in places), problem)

    def throttle(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        """Ask the helper."""
        return tuple(_throttle(list(levels)))

    def limit_cpu_time(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        """Ask the helper."""
        writes, problems = _limit_cpu_time(list(levels), write)
        return QuotaReport(writes, tuple((uuid, text) for uuid, text in problems))

    def release_throttles(self, write: bool) -> tuple[str, ...]:
        """Ask the helper."""
        return tuple(_release_throttles(write))

    def alive(self, after_s: float) -> None:
        """Tell the helper."""
        _alive(after_s)

    def leave(self) -> None:
        """Tell the helper."""
        _leave()

    def reset_partitions(self, write: bool) -> tuple[str, ...]:
        """Ask the helper."""
        return tuple(_reset_partitions(write))
