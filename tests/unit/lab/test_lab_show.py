# SPDX-License-Identifier: Apache-2.0
"""The show waits for its own servers, with patience for hosts that are slow."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from numa_lab.errors import LabError, LateError
from numa_lab.settings import Settings
from numa_lab.show import MADE_AGAIN, Show, build_failures, wait_enforced
from numa_lab.terminal import Progress

PLACED = {
    name: {"id": f"uuid-{name}", "OS-EXT-SRV-ATTR:host": host}
    for name, host in (("lc1", "h1"), ("lc2", "h2"), ("be1", "h2"))
}
ENOUGH_S = 30.0
Asked = list[tuple[str, tuple[str, ...]]]


def facts(group: str = "numa_ext-be-0") -> dict[str, Any]:
    return {
        "pages_kb": {"0": 128},
        "ram_kb": 128,
        "groups": [group],
        "on": {"resctrl": {group: {}}},
    }


def on(host: str) -> dict[str, Any]:
    return {n: facts() for n, server in PLACED.items() if server["OS-EXT-SRV-ATTR:host"] == host}


def answering(asked: Asked, *late: str) -> Callable[[str, Sequence[str]], dict[str, Any]]:
    """Hosts that answer; each name in ``late`` is one time that this host does not."""
    left = list(late)

    def read_back(host: str, uuids: Sequence[str]) -> dict[str, Any]:
        asked.append((host, tuple(uuids)))
        if host in left:
            left.remove(host)
            raise LateError(f"on {host} not done after 120 s")
        return on(host)

    return read_back


def test_a_host_that_was_slow_once_is_asked_again_and_one_that_is_done_is_not() -> None:
    asked: Asked = []

    found = wait_enforced(PLACED, answering(asked, "h2"), ENOUGH_S)

    assert set(found) == set(PLACED)
    h2 = ("h2", ("uuid-lc2", "uuid-be1"))
    assert asked == [("h1", ("uuid-lc1",)), h2, h2]


def test_a_host_that_never_answers_is_named_with_the_load() -> None:
    with pytest.raises(LateError) as caught:
        wait_enforced(PLACED, answering([], "h2"), 0.0)

    said = str(caught.value)
    assert said.startswith("h2 does not answer in time (load ")
    assert said.endswith("); run it again")


def test_a_server_that_is_not_enforced_is_named() -> None:
    def read_back(host: str, _uuids: Sequence[str]) -> dict[str, Any]:
        return {name: facts("" if name == "be1" else "numa_ext-lc") for name in on(host)}

    with pytest.raises(LateError, match=r"^h2 has not enforced be1 in time"):
        wait_enforced(PLACED, read_back, 0.0)


def test_a_host_that_fails_is_not_asked_again() -> None:
    def read_back(host: str, _uuids: Sequence[str]) -> dict[str, Any]:
        raise LabError(f"{host} does not run")

    with pytest.raises(LabError, match=r"^h1 does not run$"):
        wait_enforced(PLACED, read_back, ENOUGH_S)


def test_a_server_that_no_host_could_build_has_the_words_of_each_host(tmp_path: Path) -> None:
    said = "ERROR nova.scheduler.utils [req-1] [instance: {}] Error from last host: {} (node {}): ['{}\\n']"
    lines = [
        "INFO another line",
        said.format("u1", "h1", "h1", 'File "driver.py"' * 100 + "no PCI device"),
        said.format("u2", "h1", "h1", "of another server"),
        said.format("u1", "h2", "h2", "monitor is silent"),
    ]
    (tmp_path / "nova-conductor.log").write_text("\n".join(lines))

    first, second = build_failures(tmp_path, "u1")

    assert first.startswith("h1 (node h1)") and "no PCI device" in first and len(first) < 600
    assert second.startswith("h2 (node h2)") and "monitor is silent" in second
    assert build_failures(tmp_path / "nothing", "u1") == []


class Cloud:
    """Nova as the show asks it, and a fake ``openstack`` command that notes its words; gpu1's first builds fail."""

    def __init__(self, settings: Settings, failing: int) -> None:
        self._settings = settings
        self._words = settings.lab / "words"
        self._words.touch()
        self._failing = failing
        command = settings.lab / "openstack"
        command.write_text(f'#!/bin/sh\necho "$@" >> {self._words}\n')
        command.chmod(0o755)
        (settings.lab / "openrc").write_text(f"PATH={settings.lab}:$PATH\n")

    def calls(self) -> list[str]:
        return self._words.read_text().splitlines()

    def servers(self) -> list[dict[str, Any]]:
        alive: dict[str, dict[str, Any]] = {}
        for made, call in enumerate(self.calls()):
            words = call.split()
            if words[1] == "create":
                name = words[words.index("none") + 1]
                alive[f"{name}-{made}"] = {"id": f"{name}-{made}", "name": name, "status": "ACTIVE"}
            else:
                del alive[words[-1]]
        for server in [one for one in alive.values() if one["name"] == "gpu1"]:
            if sum("gpu1-" in call for call in self.calls()) < self._failing:
                server["status"] = "ERROR"
                server["fault"] = {"message": "Exhausted all hosts"}
                log = self._settings.log / "nova-conductor.log"
                log.write_text(f"[instance: {server['id']}] Error from last host: h1: no monitor")
        return list(alive.values())


def show_on(settings: Settings, failing: int) -> tuple[Show, Cloud, io.StringIO]:
    printed = io.StringIO()
    show, cloud = Show(settings, Progress(printed)), Cloud(settings, failing)
    show._api = cloud  # type: ignore[assignment]
    return show, cloud, printed


def test_a_server_that_could_not_be_built_is_made_once_more_and_that_is_said(
    settings: Settings,
) -> None:
    show, cloud, printed = show_on(settings, failing=1)
    show._create()

    placed = show._wait_active()

    assert {server["status"] for server in placed.values()} == {"ACTIVE"}
    assert [call.split()[1] for call in cloud.calls()] == ["create"] * 5 + ["delete", "create"]
    assert f"server gpu1 {MADE_AGAIN}: Exhausted all hosts; h1: no monitor" in printed.getvalue()


def test_a_server_that_fails_twice_ends_the_show_and_the_next_show_replaces_it(
    settings: Settings,
) -> None:
    show, _cloud, _ = show_on(settings, failing=2)
    show._create()

    with pytest.raises(LabError, match="gpu1 is in ERROR: Exhausted all hosts; h1: no monitor"):
        show._wait_active()

    show._create()
    assert show._wait_active()["gpu1"]["status"] == "ACTIVE"
