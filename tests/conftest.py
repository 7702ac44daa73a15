# SPDX-License-Identifier: Apache-2.0
"""For all tests: no test fails because the machine is slow; long ones run when asked for."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long`` runs the full matrices, too."""
    parser.addoption(
        "--long", action="store_true", help="also run tests marked long (make test-long)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked long unless it is asked for."""
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: make test-long runs it"))
