# SPDX-License-Identifier: Apache-2.0
"""The lab is a program beside the packages: its modules are found from the checkout."""

import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(CHECKOUT / "devstack" / "lab"))

from numa_lab.settings import Settings  # noqa: E402


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A lab in a folder of its own, with the real templates."""
    environment = {
        "NUMA_EXT_LAB": str(tmp_path / "lab"),
        "NUMA_EXT_CACHE": str(tmp_path / "cache"),
        "NUMA_EXT_PORT_BASE": "30000",
    }
    made = Settings.from_environment(CHECKOUT, environment)
    made.make_folders()
    return made
