# SPDX-License-Identifier: Apache-2.0
"""Rally's plug-ins, found as Rally itself finds them: by the entry point."""

import pytest
from rally import plugins
from rally.common.plugin import discover


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """Load all packages with plug-ins, ours among them."""
    packages = discover.find_packages_by_entry_point()
    assert "nova_numa_ext.rally" in {package.get("plugins_path") for package in packages}
    plugins.load()
