# SPDX-License-Identifier: Apache-2.0
"""The commands run where nova is not installed: on an operator's desk, and beside Rally."""

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_every_command_is_loaded_without_nova() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    commands = setup["entry_points"]["openstack.numa.v1"].split("\n")[1:]
    modules = sorted({line.partition("= ")[2].partition(":")[0] for line in commands})
    program = f"import sys; sys.modules['nova'] = None; import {', '.join(modules)}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
