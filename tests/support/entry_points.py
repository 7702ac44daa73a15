# SPDX-License-Identifier: Apache-2.0
"""The entry points of setup.cfg, for a process of its own: what is installed may be older than what is tested."""

import os
from configparser import ConfigParser
from pathlib import Path

from placement_traits.command_line import DISTRIBUTION, version

ROOT = Path(__file__).parents[2]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which Python finds this tree and its entry points.

    :param folder: takes what stands for the distribution
    """
    config = ConfigParser(delimiters=["="])
    config.optionxform = str  # type: ignore[assignment, method-assign]
    config.read(ROOT / "setup.cfg")
    info = folder / f"{DISTRIBUTION.replace('-', '_')}-{version()}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version()}\n"
    )
    groups = (f"[{group}]{lines}\n" for group, lines in config["entry_points"].items())
    (info / "entry_points.txt").write_text("".join(groups))
    return os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}
