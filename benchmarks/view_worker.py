# SPDX-License-Identifier: Apache-2.0
"""A worker of nova-scheduler as far as the view goes: ``python -m benchmarks.view_worker FILE``.

It maps the snapshot file and looks at all of it as decisions do, and prints how many MB of memory of its own that took.
Pages of the mapped file are not its own: they are clean, and all workers have the same ones.
"""

import sys
from pathlib import Path

import numpy as np

from placement_traits.fleet_arrays import LAYOUT
from placement_traits.snapshot_file import MappedSnapshot


def private_mb() -> float:
    """Memory that only this process has."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError("Private_Dirty")


def main() -> None:
    """Map, look, report."""
    before = private_mb()
    mapped = MappedSnapshot(Path(sys.argv[1]))
    arrays = mapped.arrays
    known = [len(arrays.rows), len(arrays.trait_sets)]
    known += [int(np.count_nonzero(getattr(arrays, name).view(np.uint8))) for name in LAYOUT]
    print(round(private_mb() - before, 3), len(known))


if __name__ == "__main__":
    main()
