# SPDX-License-Identifier: Apache-2.0
"""Withdrawing tiers: how long, of which host, and what ends it."""

from pathlib import Path

import pytest

from host_agent.conf import configuration
from host_agent.console.withdraw import withdraw
from host_agent.report import published_host
from placement_traits.errors import NumaExtError, ServiceUnavailableError
from placement_traits.known_providers import RootMissingError
from placement_traits.reporter import SyncReport, TreeChange

DONE = SyncReport("uuid", (TreeChange("h1", "traits", "-CUSTOM_NUMA_EXT_TIER_LC"),), (), 4, 2)
NOTHING = SyncReport("uuid", (), (), 2, 0)
REFUSED = SyncReport("uuid", (), ("Provider h1 could not be written.",), 3, 1)


class Placement:
    """Answers one by one; each is a report or an error."""

    def __init__(self, *answers: SyncReport | NumaExtError) -> None:
        self.answers = list(answers)
        self.hosts: list[str] = []
        self.pauses: list[float] = []

    def withdraw_tiers(self, host: str) -> SyncReport:
        self.hosts.append(host)
        answer = self.answers.pop(0)
        if isinstance(answer, NumaExtError):
            raise answer
        return answer


def run(folder: Path, placement: Placement, name: str = "h1") -> list[dict[str, str]]:
    file = folder / "agent.conf"
    file.write_text(f"[agent]\nstate_dir = {folder}\n[host]\nname = {name}\n")
    return withdraw(
        configuration.load([f"--config-file={file}"]),
        make_reporter=lambda: placement,  # type: ignore[arg-type, return-value]
        sleep=placement.pauses.append,
        jitter=lambda: 1.0,
    )


def test_what_was_removed_is_reported(tmp_path: Path) -> None:
    detail = "-CUSTOM_NUMA_EXT_TIER_LC"
    assert run(tmp_path, Placement(DONE)) == [{"host": "h1", "result": "done", "detail": detail}]
    ((row),) = run(tmp_path, Placement(NOTHING))
    assert row["result"] == "nothing to do"


def test_it_is_attempted_with_growing_pauses_until_placement_has_done_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    down = ServiceUnavailableError("Placement is down")
    placement = Placement(*[down] * 8, REFUSED, DONE)
    ((row),) = run(tmp_path, placement)
    assert row["result"] == "done"
    assert placement.pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [record.message for record in caplog.records] == [
        "Placement is down; trying again",
        "Provider h1 could not be written.; trying again",
    ]


def test_a_host_that_nova_no_longer_has_is_done(tmp_path: Path) -> None:
    ((row),) = run(tmp_path, Placement(RootMissingError("Placement has no provider h1")))
    assert row["result"] == "nothing to do"


def test_the_name_that_was_published_counts(tmp_path: Path) -> None:
    """The configuration may have changed since, or be what is wrong."""
    published_host.store(tmp_path / "published.json").save("h7")
    placement = Placement(DONE)
    run(tmp_path, placement)
    assert placement.hosts == ["h7"]
