# SPDX-License-Identifier: Apache-2.0
"""What ``lab up`` waits for last."""

import io

import pytest
from numa_lab.cloud_api import CloudApi, SchedulerView
from numa_lab.emulated import EmulatedHost
from numa_lab.lab import Lab
from numa_lab.process import Process
from numa_lab.settings import Settings
from numa_lab.terminal import Progress


@pytest.fixture
def lab(settings: Settings) -> Lab:
    return Lab(settings, Progress(io.StringIO()))


def test_the_view_is_waited_for_when_all_hosts_are_published(lab: Lab, settings: Settings) -> None:
    tasks = lab._tasks([EmulatedHost(settings, index) for index in range(2)])
    assert set(tasks["view"].after) == {"local published", "h1 published", "h2 published"}


def test_a_plain_cloud_waits_for_no_agent(settings: Settings) -> None:
    plain = settings.become_plain()
    tasks = Lab(plain, Progress(io.StringIO()))._tasks([EmulatedHost(plain, 0)])
    assert "h1 up" in tasks
    assert not any(name == "view" or "agent" in name or "published" in name for name in tasks)


def test_a_view_that_is_older_than_the_last_host_is_not_enough(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next reading may have begun before the host was published, the one after it has not."""
    shown = [
        SchedulerView(fresh=True, hosts=3, readings=4),
        SchedulerView(fresh=True, hosts=3, readings=5),
        SchedulerView(fresh=True, hosts=2, readings=6),
        SchedulerView(fresh=False, hosts=3, readings=7),
        SchedulerView(fresh=True, hosts=3, readings=8),
    ]
    left = iter(shown)
    monkeypatch.setattr(CloudApi, "scheduler_view", lambda _: next(left))
    monkeypatch.setattr(Process, "require_alive", lambda _: None)
    lab._view_read(3)
    assert list(left) == []
