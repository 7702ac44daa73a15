# SPDX-License-Identifier: Apache-2.0
"""Leases as a Rally task sees them: a job service that goes a step further at each look, and its faults."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MOVES = ("moving", "starting", "ready", "attached")
LOOK_S = 0.5


@dataclass
class LeasedServers:
    """Stands for the job service's client. Each look takes :data:`LOOK_S` of its own clock::

        reserved → starting → ready → attached        a lease of a server that runs
        attached (asked to move) → moving → starting → ready → attached, on GPU ``b``, then ``a``, …
        releasing → gone                              of a server that is deleted

    :ivar running: uuids of servers that have a lease, and run
    :ivar stuck: a state in which leases stay
    :ivar full: no other GPU has room
    :ivar carries: a move takes along what is in memory
    """

    running: dict[str, None] = field(default_factory=dict)
    stuck: str = ""
    full: bool = False
    carries: bool = False
    now_s: float = 0.0
    asked: list[str] = field(default_factory=list)
    _leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    _ways: dict[str, list[str]] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def leases(self, *, all_projects: bool) -> Iterator[dict[str, Any]]:
        assert all_projects, "they are of the task's own project"
        for server in self.running.keys() - self._leases.keys():
            self._leases[server] = self._asked_for(server)
            self._ways[server] = ["starting", "ready", "attached"]
        for server in list(self._leases):
            if server not in self.running and self._leases[server]["state"] == "attached":
                self._ways[server] = ["releasing", "gone"]
            self._step(server)
        return iter([dict(each) for each in self._leases.values()])

    def lease(self, uuid: str) -> dict[str, Any]:
        server = uuid.removeprefix("lease of ")
        self._step(server)
        return dict(self._leases[server])

    def move_lease(self, uuid: str, pool: str) -> dict[str, Any]:
        server = uuid.removeprefix("lease of ")
        lease = self._leases[server]
        self.asked.append(pool)
        lease["move"] = {"carried": False, "sent_mb": 0, "of_mb": 0}
        self._ways[server] = ["attached", "stays"] if self.full else ["attached", *MOVES]
        return dict(lease)

    def _asked_for(self, server: str) -> dict[str, Any]:
        return {
            "id": f"lease of {server}",
            "server_id": server,
            "state": "reserved",
            "host": "h2",
            "gpu": "a",
            "move": None,
            "reasons": [],
        }

    def _step(self, server: str) -> None:
        self.now_s += LOOK_S
        lease, way = self._leases[server], self._ways[server]
        if not way or lease["state"] == self.stuck:
            return
        state = way.pop(0)
        if state == "stays":
            lease |= {"move": None, "reasons": [{"sentence": "it does not move"}]}
            return
        lease["state"] = state
        if state == "moving":
            lease["move"] = {"carried": self.carries, "sent_mb": 0, "of_mb": 0}
            lease |= {"gpu": "b" if lease["gpu"] == "a" else "a"}
        elif state == "starting":
            lease["move"] = None
