# SPDX-License-Identifier: Apache-2.0
"""Our page mover against migratepages(8) on the same mappings of an emulated host with four NUMA nodes

On h1 of the lab where it runs, whose servers are not touched; else on a host that is booted for it. Emulation hides
what system calls cost beside copying: absolute speeds mean nothing, ratios of speeds little. What counts are bytes
moved per byte needed, the shares that are reached, calls, and pages that were left.
"""

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.guest_memory import KINDS
from devstack.lab.numa_lab import packages
from devstack.lab.numa_lab.emulated import EmulatedHost
from devstack.lab.numa_lab.emulated_machine import Shape
from devstack.lab.numa_lab.lab import Lab
from devstack.lab.numa_lab.settings import Settings
from devstack.lab.numa_lab.terminal import Progress

CHECKOUT = Path(__file__).resolve().parents[1]
GOALS = {"bytes_over_minimum": 1.02, "weighted_error_pp": 1.0, "failed_pages": 0}

_OWN_INDEX = 7  # h8: far from the lab's own
_OWN_SHAPE = Shape(cpus_per_node=1, node_memory_mb=512, gpu_nodes=())
_TIMEOUT_S = 1200.0


@contextmanager
def emulated_host(settings: Settings) -> Iterator[EmulatedHost]:
    """The lab's first emulated host that runs, or one that lives as long as the block."""
    progress = Progress()
    packages.ensure(settings, progress, ("numactl",))
    for host in Lab(settings, progress).emulated_hosts():
        if host.answers():
            yield host
            return
    own = EmulatedHost(settings, _OWN_INDEX, _OWN_SHAPE)
    try:
        own.start(progress)
        yield own
    finally:
        own.stop()


def measure(host: EmulatedHost, python: Path, kind: str, mib: int, touched: int) -> dict[str, Any]:
    """Run :mod:`benchmarks.page_moves` inside and return its figures."""
    words = [str(python), "-m", "benchmarks.page_moves", kind, str(mib), str(touched)]
    script = f"cd {CHECKOUT} && exec {' '.join(words)} /tmp/bench-pages-{uuid.uuid4().hex[:8]}"
    printed = host.run(script, _TIMEOUT_S).stdout
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def figures_of(kind: str, found: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of one kind of memory by name; of bytes, errors and failures the worse of idle and touched."""
    one, idle, touched = found["all_to_one"], found["weighted"], found["touched"]
    moves = (idle, touched["move"])
    during, before, after = (touched[phase] for phase in ("during", "before", "after"))
    figures = {
        "all_to_one_ratio": one["ours_pages_per_s"] / one["theirs_pages_per_s"],
        "bytes_over_minimum": max(move["bytes_over_minimum"] for move in moves),
        "weighted_error_pp": max(move["error_pp"] for move in moves),
        "calls_per_gb": idle["calls"] * 1e9 / idle["moved_bytes"],
        "failed_pages": max(move["failed_pages"] for move in moves),
        "progress_during": during["ops_per_s"] / before["ops_per_s"],
        "progress_after": after["ops_per_s"] / before["ops_per_s"],
        "longest_ms_before": before["longest_ms"],
        "longest_ms_during": during["longest_ms"],
        "longest_ms_after": after["longest_ms"],
    }
    return {f"{name}_{kind}": round(value, 4) for name, value in figures.items()}


def missed(figures: Mapping[str, float]) -> list[str]:
    """Name the figures that are beyond their goals."""
    return [
        name
        for name, value in figures.items()
        for goal, limit in GOALS.items()
        if name.startswith(goal) and value > limit
    ]


def main() -> None:
    """Measure each kind and print the result."""
    options = report.parser(__doc__)
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options.add_argument("--mib", type=int, default=128, help="memory that is moved while idle")
    options.add_argument("--touched-mib", type=int, default=64, help="the same while it is in use")
    given = options.parse_args()
    settings = Settings.from_environment(CHECKOUT, os.environ)
    figures: dict[str, float] = {}
    with emulated_host(settings) as host:
        report.progress(f"on {host.name}; absolute speeds mean nothing there")
        for kind in given.kinds:
            found = measure(host, settings.python, kind, given.mib, given.touched_mib)
            report.progress(f"{kind}: {json.dumps(found)}")
            figures |= figures_of(kind, found)
    report.table(("figure", "value"), figures.items())
    beyond = missed(figures)
    report.progress(f"goals missed: {', '.join(beyond)}" if beyond else "all goals are met")
    source = {
        "host": "emulated (TCG), four NUMA nodes",
        "mib": given.mib,
        "touched_mib": given.touched_mib,
        "goals": GOALS,
    }
    report.finish("pages", "measured", figures, source, given.json)


if __name__ == "__main__":
    main()
