# SPDX-License-Identifier: Apache-2.0
"""For all tests: no test fails because the machine is slow or another test logs; long ones run when asked for."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    """Commands that a test runs set the root logger's level and add handlers.

    Others' debug lines would be in later tests' logs, and a handler writes to a stream that ends with its test.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [added for added in root.handlers if added not in handlers]:
        root.removeHandler(handler)


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
