# SPDX-License-Identifier: Apache-2.0
"""Transports of this distribution are entry points, as those of others are, and the same as the registry has."""

import json
import subprocess
import sys
from pathlib import Path

from host_agent.transports import registry
from host_agent.transports.registry import Transports
from tests.support.entry_points import environment

_LOADED = f"""
import json
from importlib.metadata import entry_points
found = {{}}
for point in entry_points(group={registry.GROUP!r}):
    made = point.load()()
    methods = ("capabilities", "findings", "paths", "server_command", "guest_environment")
    found[point.name] = [made.name, type(made).__qualname__, all(hasattr(made, each) for each in methods)]
print(json.dumps(found))
"""


def test_each_transport_of_the_registry_is_an_entry_point_that_makes_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _LOADED]
    ran = subprocess.run(
        words, env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    transports = Transports(tmp_path / "nothing")
    expected = {
        name: [name, type(transports.named(name)).__qualname__, True] for name in transports._known
    }
    assert json.loads(ran.stdout) == expected
    assert set(expected) == {"fake", "pocl"}
