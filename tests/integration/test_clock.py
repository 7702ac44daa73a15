# SPDX-License-Identifier: Apache-2.0
"""Emulated hosts keep time: nova and every time-out inside them count on it."""

import time

from tests.integration.cloud import LabCloud

TOLERANCE_S = 30  # the way there on a busy machine; a clock of the wrong speed is minutes off soon after it has booted


def test_the_clock_of_each_host_runs_as_ours(running_cloud: LabCloud) -> None:
    ahead_s = {
        name: float(host.run("date +%s.%N")) - time.time()
        for name, host in running_cloud.hosts.items()
    }
    assert all(abs(seconds) < TOLERANCE_S for seconds in ahead_s.values()), ahead_s
