# SPDX-License-Identifier: Apache-2.0
"""Placement for a publisher under test: whatever a test has made."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GivenPlacement:
    """A :class:`host_agent.report.publisher.PlacementSide`.

    :param tree_writer: gets trees
    :param host: name of nova's root provider
    :param claimed: what reads claims
    :param beating: what beats
    """

    tree_writer: Any
    host: str = "compute1"
    claimed: Any = None
    beating: Any = None

    def root(self) -> str:
        return self.host

    def writer(self) -> Any:
        return self.tree_writer

    def claims(self, _root: str) -> Any:
        return self.claimed

    def beat(self, _root: str) -> Any:
        return self.beating
