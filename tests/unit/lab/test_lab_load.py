# SPDX-License-Identifier: Apache-2.0
"""The load of an elastic group in the lab is a trace that the service reads."""

import json
import subprocess
import sys
from pathlib import Path

from nova_numa_ext.policy.elastic.trace import read_trace

LOAD = Path(__file__).parents[3] / "devstack" / "lab" / "load.py"


def test_periods_are_appended_to_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "traces" / "rally.csv"
    for operations in ("150", "300"):
        words = [sys.executable, "-I", "-S", LOAD, trace, "b,a", operations, "35"]
        told = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    assert told == {"reads_per_s": 150.0, "latency_ms": 52.5}
    first, second = read_trace(trace.read_text().splitlines(), trace.name)
    assert {one.name: one.load.reads_per_s for one in first.members} == {"a": 75.0, "b": 75.0}
    assert [one.readings_ms for one in second.members] == [(52.5,), (52.5,)]
    assert second.at_s > first.at_s
