# SPDX-License-Identifier: Apache-2.0
"""Record what discovery reads, so that a test or a bug report can play any machine.

``python -m host_agent.observe.topology.capture > machine.json`` on the machine; :func:`restore` lays the files out
again. The form is one JSON object: a folder is an object, a file is its text, a symbolic link is a list with its
target.
"""

import json
import os
import sys as python
from pathlib import Path
from typing import Any, Final

# Relative to /sys, the only files that discovery looks at.
PATTERNS: Final = (
    "devices/system/cpu/online",
    "devices/system/cpu/cpu[0-9]*/topology/physical_package_id",
    "devices/system/cpu/cpu[0-9]*/topology/core_cpus_list",
    "devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list",
    "devices/system/cpu/cpu[0-9]*/cache/index[0-9]*/level",
    "devices/system/cpu/cpu[0-9]*/cache/index[0-9]*/id",
    "devices/system/cpu/cpu[0-9]*/cache/index[0-9]*/size",
    "devices/system/cpu/cpu[0-9]*/cache/index[0-9]*/shared_cpu_list",
    "devices/system/node/node[0-9]*/cpulist",
    "devices/system/node/node[0-9]*/cpu[0-9]*",
    "devices/system/node/node[0-9]*/distance",
    "devices/system/node/node[0-9]*/meminfo",
    "devices/system/node/node[0-9]*/hugepages/hugepages-*/nr_hugepages",
    "bus/pci/devices/*",
    "bus/pci/devices/*/class",
    "bus/pci/devices/*/vendor",
    "bus/pci/devices/*/device",
    "bus/pci/devices/*/numa_node",
    "bus/pci/devices/*/physfn",
    "fs/resctrl/schemata",
    "fs/resctrl/info/*/*",
)


def capture(sys: Path = Path("/sys")) -> dict[str, Any]:
    """Return the recorded tree of one machine."""
    tree: dict[str, Any] = {}
    for pattern in PATTERNS:
        for path in sorted(sys.glob(pattern)):
            _record(tree, sys, path)
    return tree


def _record(tree: dict[str, Any], sys: Path, path: Path) -> None:
    """Put one path into the tree, where it really is: what lies behind a link is recorded where the link leads."""
    path = path.parent.resolve() / path.name
    folder = tree
    for part in path.relative_to(sys.resolve()).parts[:-1]:
        folder = folder.setdefault(part, {})
    if path.is_symlink():
        folder[path.name] = [os.readlink(path)]
    elif path.is_file():
        folder[path.name] = path.read_text()


def restore(tree: dict[str, Any], folder: Path) -> None:
    """Lay a recorded tree out below ``folder``, which becomes the root of sysfs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in tree.items():
        path = folder / name
        if isinstance(content, dict):
            restore(content, path)
        elif isinstance(content, list):
            path.symlink_to(content[0])
        else:
            path.write_text(content)


def main() -> int:
    """Print the recorded tree of this machine."""
    json.dump(capture(), python.stdout, separators=(",", ":"), sort_keys=True)
    return 0


if __name__ == "__main__":
    python.exit(main())
