# SPDX-License-Identifier: Apache-2.0
"""What host aggregates say, looked up once for all hosts that are in the same ones."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nova_numa_ext.policy.numa.score import Floats


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
