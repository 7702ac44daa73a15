# SPDX-License-Identifier: Apache-2.0
"""F-002-95: a year-loss table on devices of leases is that of a processor, in 1, 2 and 4 parts.

``numa-rgpu-bench -y`` compares each trial itself, with what it computes from other data structures; its sum is compared
here with a second table, of numpy.
"""

import json
import subprocess
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.built_pocl import built_pocl, cached_pocl
from tests.support.pocl_server import HANGS_S, client_environment, pocl_server

TRIALS = 1000
EVENTS, LISTS, MOST_OF_A_YEAR = 20_000, 8, 100


class Draw:
    """The program's random numbers."""

    def __init__(self):
        self.state = 2021

    def __call__(self, below):
        self.state = (self.state * 1664525 + 1013904223) % 2**32
        return (self.state >> 8) % below


def between(loss, retained, limit):
    return np.clip(loss - retained, 0, limit)


def year_losses(trials):
    """The loss of each trial, by what each event costs the layer after the terms of all lists."""
    draw = Draw()
    after_terms = np.zeros(EVENTS, dtype=np.int64)
    for number in range(LISTS):
        costs = np.array([draw(1_000_000) if draw(4) == 0 else 0 for _ in range(EVENTS)])
        after_terms += between(costs, 20_000 * (number + 1), 600_000) * (300 + 50 * number) // 1000
    sums = np.array(
        [sum(after_terms[draw(EVENTS)] for _ in range(50 + draw(51))) for _ in range(trials)]
    )
    return between(between(sums, 20_000_000, 10_000_000), 2_000_000, 6_000_000)


def computed(pocl, *ports):
    """What the program says on the devices at these ports, a line for each number of parts."""
    ran = subprocess.run(
        [pocl.bench, "-y", str(TRIALS)],
        env=client_environment(pocl, *ports),
        capture_output=True,
        text=True,
        timeout=2 * HANGS_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def is_right(pocl, folder, servers):
    """Devices are of as many leases; parts beyond these go to the same devices again."""
    expected = year_losses(TRIALS)
    assert {0, 6_000_000} < set(expected), "every term cuts something"
    with ExitStack() as open_:
        ports = []
        for number in range(servers):
            own = folder / str(number)
            own.mkdir()
            ports.append(open_.enter_context(pocl_server(pocl, own)).port)
        found = computed(pocl, *ports)
    assert [(each["parts"], each["devices"]) for each in found] == [
        (parts, min(parts, servers)) for parts in (1, 2, 4)
    ]
    assert [each["loss"] for each in found] == [int(expected.sum())] * 3


def test_a_year_loss_table_in_parts_on_one_lease_is_that_of_the_processor(tmp_path):
    is_right(cached_pocl(), tmp_path, 1)


@pytest.mark.long
@pytest.mark.parametrize("leases", [2, 4])
def test_a_year_loss_table_over_leases_is_that_of_the_processor(tmp_path, leases):
    is_right(built_pocl(), tmp_path, leases)
