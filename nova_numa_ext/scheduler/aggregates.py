# SPDX-License-Identifier: Apache-2.0
"""What host aggregates say, looked up once for all hosts that are in the same ones."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from nova.scheduler import utils as scheduler_utils

from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.policy import modes
from nova_numa_ext.policy.modes import AGGREGATE_KEY, Mode
from nova_numa_ext.policy.numa.multipliers import aggregate_key
from nova_numa_ext.policy.numa.score import Floats

LOG = logging.getLogger(__name__)

_MOST_LOGGED: Final = 100
_logged: set[str] = set()


def for_each(host_states: Sequence[Any], ask: Callable[[Any], Sequence[float]]) -> Floats:
    """Return one row of numbers for each HostState.

    :param ask: the row of one host; it depends on nothing but the host's aggregates
    """
    rows: list[Sequence[float]] = []
    row_of: dict[tuple[int, ...], int] = {}
    chosen = []
    for state in host_states:
        key = tuple(map(id, state.aggregates))
        row = row_of.get(key)
        if row is None:
            row = row_of[key] = len(rows)
            rows.append(ask(state))
        chosen.append(row)
    return np.array(rows, float)[chosen] if rows else np.zeros((0, 0))


def gentle(host_states: Sequence[Any], option: Mode) -> dict[str, Mode]:
    """Return the modes of the HostStates that are not to be refused, by their root provider.

    :param option: ``[numa_ext]mode``
    """
    found: dict[str, Mode] = {}
    mode_of: dict[tuple[int, ...], Mode] = {(): option}
    for state in host_states:
        key = tuple(map(id, state.aggregates))
        if key not in mode_of:
            mode_of[key] = mode(state, option)
        if not mode_of[key].refuses:
            found[state.uuid] = mode_of[key]
    return found


def unjudged(host_states: Sequence[Any], options: SchedulerOptions) -> Sequence[Any]:
    """Return the hosts that pass where none could be judged by a fault of ours, as ``[numa_ext]on_error`` says."""
    if options.on_error != "refuse":
        return host_states
    try:
        modes = gentle(host_states, options.mode)
    except Exception:
        LOG.exception("The modes of hosts cannot be read; that of the configuration counts.")
        return [] if options.mode.refuses else host_states
    return [state for state in host_states if state.uuid in modes]


def mode(host_state: Any, option: Mode) -> Mode:
    """Return the mode of one HostState; a value that is no mode is logged once and does not count.

    :param option: ``[numa_ext]mode``
    """
    values = [
        each.metadata[AGGREGATE_KEY]
        for each in host_state.aggregates
        if AGGREGATE_KEY in each.metadata
    ]
    for value in values:
        if not modes.known(value) and value not in _logged and len(_logged) < _MOST_LOGGED:
            _logged.add(value)
            LOG.warning(
                "An aggregate of host %s has %s=%s, which is none of %s, and does not count.",
                host_state.host,
                AGGREGATE_KEY,
                value,
                ", ".join(Mode),
            )
    return modes.of_host(option, values)


def multiplier(host_state: Any, name: str, option: float) -> float:
    """Return ``option``, or what the host's aggregates set instead."""
    if not host_state.aggregates:
        return option
    value: float = scheduler_utils.get_weight_multiplier(host_state, aggregate_key(name), option)
    return value if name == "weight" else max(0.0, value)
