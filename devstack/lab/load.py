#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Put a load on an elastic group of the lab: no guest there can carry one, so its monitoring is what is written.

Appends a period to a trace (``[numa_ext_jobs]scaling_traces``): each member has the same part of the load, and its
latency is the objective where that part is its capacity. Prints, as JSON, what each member has.
"""

import argparse
import json
import sys
import time
from pathlib import Path

HEAD = "time_s,member,reads_per_s,latencies_ms\n"


def main() -> int:
    """Append a period."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("members", help="uuids with commas between")
    parser.add_argument("operations", type=float, help="per second, of all members")
    parser.add_argument("objective_ms", type=float)
    parser.add_argument("--capacity", type=float, default=100.0, help="operations per second")
    given = parser.parse_args()
    members = given.members.split(",")
    part = given.operations / len(members)
    latency_ms = given.objective_ms * part / given.capacity
    at_s = time.time()
    given.trace.parent.mkdir(exist_ok=True)
    head = "" if given.trace.exists() else HEAD
    rows = [f"{at_s!r},{one},{part!r},{latency_ms!r}\n" for one in members]
    with given.trace.open("a") as file:
        file.write(head + "".join(rows))
    json.dump({"reads_per_s": part, "latency_ms": latency_ms}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
