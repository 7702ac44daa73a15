# SPDX-License-Identifier: Apache-2.0
"""A lab in a folder of its own, for the tests of its parts."""

from pathlib import Path

import pytest
from numa_lab.settings import Settings

CHECKOUT = Path(__file__).resolve().parents[3]


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
