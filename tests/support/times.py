# SPDX-License-Identifier: Apache-2.0
"""Adds up what tests take, by folder, and compares with ``tests/budget.toml`` and ``tests/long.toml``."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest

from tests import budget, long

FOLDER_DEPTH = 3
"""Folders below that one, counted with ``tests``, are counted with it."""
FAR_OFF = 3.0
"""A test that takes so many times less than its line in ``long.toml`` says is told; longer ones always are."""


class Times:
    """A pytest plug-in; with ``--durations`` (as all targets of the Makefile ask) it prints its tables at the end."""

    def __init__(self) -> None:
        self.by_test: defaultdict[str, float] = defaultdict(float)
        self._ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count set-up, call and tear-down, also of tests in xdist's processes."""
        self.by_test[report.nodeid] += report.duration
        if report.when == "call" and not report.skipped:
            self._ran.add(report.nodeid)

    def of_those_that_ran(self) -> dict[str, float]:
        """Seconds by node id, without tests that were skipped: their set-up says nothing about them."""
        return {test: self.by_test[test] for test in self._ran}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print before pytest's own last line."""
        if not terminalreporter.config.getoption("durations"):
            return
        allowed = budget.load()["folders"]
        terminalreporter.section("seconds by folder, all processes together")
        for line in rows(by_folder(self.by_test), allowed):
            terminalreporter.line(line)
        known = {one.test: one.seconds for one in long.load()}
        for line in far_off(self.of_those_that_ran(), known):
            terminalreporter.line(line)


def by_folder(by_test: Mapping[str, float]) -> dict[str, float]:
    """Seconds by folder, from seconds by node id."""
    found: Counter[str] = Counter()
    for test, seconds in by_test.items():
        folders = test.partition("::")[0].split("/")[:-1]
        found["/".join(folders[:FOLDER_DEPTH])] += seconds
    return dict(sorted(found.items()))


def rows(took: Mapping[str, float], allowed: Mapping[str, int]) -> list[str]:
    """A line for each folder: what it may take, what it took."""
    lines = [f"{'folder':<30} {'budget':>7} {'took':>7}"]
    for folder, seconds in took.items():
        limit = allowed.get(folder)
        over = "  over its budget" if limit is not None and seconds > limit else ""
        lines.append(f"{folder:<30} {'-' if limit is None else limit:>7} {seconds:>7.1f}{over}")
    return lines


def far_off(took: Mapping[str, float], known: Mapping[str, int]) -> list[str]:
    """A line for each long test whose line in ``long.toml`` is too small, or much too large."""
    return [
        f"tests/long.toml says {known[test]} s, took {seconds:.0f} s: {test}"
        for test, seconds in took.items()
        if test in known and not seconds <= known[test] <= FAR_OFF * seconds
    ]
