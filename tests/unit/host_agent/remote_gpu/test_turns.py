# SPDX-License-Identifier: Apache-2.0
"""How long a host waits until it asks again: less while one of its servers, or a lease of its GPUs, waits for that."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from host_agent.remote_gpu.answer import (
    AttachedLease,
    LeaseAnswer,
    RunningServers,
    ServedLease,
    kept_answer,
)
from host_agent.remote_gpu.gpu_host import GpuHost
from host_agent.remote_gpu.turns import AWAITED_S, SOON_S, LeaseTurns, answer_in
from placement_traits.errors import ServiceUnavailableError
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.remote_gpu_request import RemoteGpuRequest

USUAL_S = 2.0
REQUEST = RemoteGpuRequest(
    1, 1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL, 0, 0.0, 1, 0, migratable=False
)


class Host:
    """A host whose service says nothing new."""

    def __init__(self, folder: Path, answer: LeaseAnswer) -> None:
        answer_in(folder / "answer.json").save(answer)
        self.now_s, self.asking = 0.0, frozenset[str]()
        nothing = SimpleNamespace(
            obey=lambda _answer: ({}, {}),
            **dict.fromkeys(("used", "link_mbps", "memory_mb"), dict),
            moving={},
            can_move=False,
        )
        self.turns = LeaseTurns(
            "h1",
            self.request,
            cast(GpuHost, nothing),
            lambda: RunningServers(self.asking, dict.fromkeys(self.asking, REQUEST)),
            folder / "answer.json",
            clock=lambda: self.now_s,
        )

    def request(self, method: str, _path: str, **_options: Any) -> Any:
        """The answer to a report is the one that was given."""
        body = json.loads(json.dumps(kept_answer(self.turns.answer)))
        return SimpleNamespace(
            status_code=304 if method == "GET" else 200, headers={}, text="", json=lambda: body
        )

    def pauses(self, at_s: Sequence[float]) -> list[bool]:
        """Whether each pause is a short one, after turns at some times."""
        found = []
        for self.now_s in at_s:
            self.turns.turn()
            found.append(self.turns.pause_s(USUAL_S) == SOON_S)
        return found


def test_a_host_whose_server_asks_for_a_lease_asks_often_for_a_while(tmp_path: Path) -> None:
    host = Host(tmp_path, LeaseAnswer())
    assert host.pauses([0.0]) == [False]
    host.asking = frozenset({"server-1"})
    assert host.pauses([1.0, 1.0 + AWAITED_S / 2, 1.0 + AWAITED_S]) == [True, True, False]
    host.asking = frozenset({"server-1", "server-2"})
    assert host.pauses([100.0]) == [True], "another one"


def test_a_server_that_has_its_lease_waits_for_nothing(tmp_path: Path) -> None:
    led = AttachedLease("lease-1", 1, "server-1", "opencl", "g1:7000")
    host = Host(tmp_path, LeaseAnswer(attaches=(led,)))
    host.asking = frozenset({"server-1"})
    assert host.pauses([0.0]) == [False]


@pytest.mark.parametrize(("client", "soon"), [("", True), ("c1", False)])
def test_a_host_that_serves_a_lease_asks_often_who_may_connect(
    tmp_path: Path, client: str, soon: bool
) -> None:
    served = ServedLease("lease-1", 1, "gpu", 500, "silver", "opencl", 0, client)
    host = Host(tmp_path, LeaseAnswer(serves=(served,)))
    assert host.pauses([0.0, AWAITED_S]) == [soon, False]


def test_a_service_that_is_long_away_is_a_line_and_not_one_for_each_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path, LeaseAnswer())

    def away(*_args: Any, **_options: Any) -> Any:
        raise ServiceUnavailableError("The job service", "no route")

    caplog.set_level("INFO", "host_agent.remote_gpu.turns")
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(host.turns, "_request", away)
            for _ in range(100):
                host.turns.turn()
        host.turns.turn()
    said = [text for text in caplog.messages if "not reported" not in text]
    assert [text.partition(":")[0] for text in said] == [
        "leases run on as they are",
        "the job service answers again",
    ] * 2
