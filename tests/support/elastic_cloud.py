# SPDX-License-Identifier: Apache-2.0
"""An elastic group as a Rally task sees it: a job service that follows the load at once, and its faults."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

GROUP = "11111111-2222-3333-4444-555555555555"
CAPACITY_PER_S = 100.0


@dataclass
class FollowedGroup:
    """Stands for the job service's client, the task's command and the server group::

    three servers of the user      u0 u1 u2
    what the service adds          a0 a1 …, one for each 100 operations per second beyond them

    :ivar asked: what the group was set to; None: it is not set
    :ivar moves: the group follows its load
    :ivar beyond: servers that are added over what the load needs, and not counted as members
    :ivar step: change that the decision log has
    """

    asked: dict[str, Any] | None = None
    moves: bool = True
    beyond: int = 0
    gone: frozenset[str] = frozenset()
    step: int = 2
    added: list[str] = field(default_factory=list)
    loads: list[dict[str, str]] = field(default_factory=list)
    users: frozenset[str] = frozenset({"u0", "u1", "u2"})

    def servers(self) -> frozenset[str]:
        """UUIDs that nova has in the group."""
        beyond = {f"x{number}" for number in range(self.beyond)}
        return frozenset({*self.users, *self.added, *beyond}) - self.gone

    def ask(self, command: str, timeout_s: float, **values: str) -> Any:
        """The task's command: a load, which the service follows at once."""
        self.loads.append(values)
        if self.asked is not None and self.moves:
            needed = -(-float(values["operations"]) // CAPACITY_PER_S) - len(self.users)
            self.added = [f"a{number}" for number in range(int(needed))]
        return json.loads("{}")

    def set_scaling(self, group: str, asked: dict[str, Any]) -> None:
        self.asked = asked

    def delete_scaling(self, group: str) -> None:
        assert self.asked is not None
        self.asked = None

    def scaling(self, group: str) -> Mapping[str, Any]:
        members = [{"server_id": one, "step": "joined"} for one in self.added]
        return {"members": members, "trouble": "", "last_decision": {"why": "it is paused"}}

    def scaling_decisions(self, group: str) -> Iterator[Mapping[str, Any]]:
        yield {"change": self.step}
