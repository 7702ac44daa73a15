# SPDX-License-Identifier: Apache-2.0
"""What the engine is made of, by its options."""

from typing import Any

import pytest

from nova_numa_ext import endpoints
from nova_numa_ext.orchestrator import service, startup
from nova_numa_ext.orchestrator.conf import EngineOptions


def test_leafs_are_spoken_of_only_where_the_operator_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[object, float]] = []
    monkeypatch.setattr(endpoints, "placement", lambda _conf: "placement")
    monkeypatch.setattr(startup, "uplinks", lambda *given: made.append(given))
    conf: Any = object()
    assert service._uplinks(conf, EngineOptions()) is None
    assert made == [], "off by default"
    service._uplinks(conf, EngineOptions(leaf_uplinks=True, leaf_uplinks_kept=0.2))
    assert made == [("placement", 0.2)]
