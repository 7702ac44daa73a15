# SPDX-License-Identifier: Apache-2.0
"""For all tests: no test fails because the machine is slow or another test logs; long ones run when asked for."""

import gc
import logging
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import budget, long
from tests.support.order import in_order
from tests.support.times import Times

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    """Commands that a test runs set the root logger's level and add handlers.

    Others' debug lines would be in later tests' logs, and a handler writes to a stream that ends with its test.
    """
    root = logging.getLogger()
    level, handlers, hook = root.level, list(root.handlers), sys.excepthook
    yield
    sys.excepthook = hook
    root.setLevel(level)
    for handler in [added for added in root.handlers if added not in handlers]:
        root.removeHandler(handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long`` runs what is marked long, too."""
    parser.addoption(
        "--long", action="store_true", help="also run tests marked long (make test-long)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add up what tests take."""
    config.pluginmanager.register(Times())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while all is imported nor, later, in what was: it stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked long unless it is asked for; refuse a long test that is in no share of ``make test-long``.

    Processes that share the tests begin with the files that take long.
    """
    if hasattr(config, "workerinput"):
        items[:] = in_order(items, budget.load()["begun_first"])
    known = {one.test for one in long.load()}
    for item in items:
        if not item.get_closest_marker("long"):
            continue
        if item.nodeid not in known:
            sentence = f"tests/long.toml does not say how long it takes: {item.nodeid}"
            if hasattr(config, "workerinput"):
                sys.stderr.write(f"{sentence}\n")  # a worker's errors are not shown otherwise
            raise pytest.UsageError(sentence)
        if not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="long: make test-long runs it"))
