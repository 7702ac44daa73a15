# SPDX-License-Identifier: Apache-2.0
"""Prometheus' own tool, and whether an expression names metrics and labels that our components declare."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Final

import pytest

from placement_traits.metrics import MetricSpec
from tools.dashboards import declared

TARGET: Final = frozenset({"instance", "job"})
"""Labels that Prometheus adds to every series."""

_SELECTOR: Final = re.compile(r"\b(numa_ext_\w+|up)\b(?:\{([^}]*)\})?")
_GROUPING: Final = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run it; skips where it is not installed."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: prometheus; make test installs it)")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def metrics_of(expression: str) -> list[MetricSpec]:
    """The metrics of ours that an expression names.

    :raises KeyError: one that no component declares
    """
    found = (name for name, _ in _SELECTOR.findall(expression))
    return [declared(name) for name in found if name != "up"]


def undeclared(expression: str) -> Iterator[str]:
    """Yield what an expression names that no component declares: metrics, and labels that its metrics do not have."""
    union = set(TARGET)
    for name, matchers in _SELECTOR.findall(expression):
        try:
            labels = set() if name == "up" else set(declared(name).labels)
        except KeyError:
            yield name
            continue
        labels |= TARGET | ({"le"} if name.endswith("_bucket") else set())
        union |= labels
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
            if label not in labels:
                yield f"{name}{{{label}}}"
    for listed in _GROUPING.findall(expression):
        for label in filter(None, re.split(r",\s*", listed.strip())):
            if label not in union:
                yield f"by ({label})"
