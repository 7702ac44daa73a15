# SPDX-License-Identifier: Apache-2.0
"""What ``lab up`` waits for last."""

import io

import pytest
from numa_lab import controlplane
from numa_lab.cloud_api import CloudApi, SchedulerView
from numa_lab.controlplane import ControlPlane
from numa_lab.emulated import EmulatedHost
from numa_lab.lab import Lab
from numa_lab.process import Process
from numa_lab.service import Service
from numa_lab.settings import Settings
from numa_lab.terminal import Progress

from nova_numa_ext.orchestrator import manage

JOBS = {"numa-ext-jobs-api", "numa-ext-engine-0", "numa-ext-engine-1"}


def service(settings: Settings, name: str) -> Service:
    services = ControlPlane(settings, Progress(io.StringIO())).services()
    return next(each for each in services if each.name == name)


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


def test_the_job_service_starts_when_it_has_its_tables_and_its_user(lab: Lab) -> None:
    tasks = lab._tasks([])
    for name in JOBS:
        assert set(tasks[name].after) == {"numa-ext schema", "identities"}
    assert set(tasks["numa-ext schema"].after) == {"databases", "service files"}


def test_tables_are_made_by_a_command_that_there_is(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, until the code of the tables changes."""
    calls: list[list[str]] = []
    monkeypatch.setattr(
        controlplane, "run_logged", lambda _what, argv, _log, **_: calls.append(argv)
    )
    for _ in range(2):
        ControlPlane(settings, Progress(io.StringIO()))._job_schema()
    [(program, *words)] = calls
    assert program == f"{settings.venv}/bin/numa-ext-manage"
    parsed = manage._parser().parse_args(words)
    assert parsed.config_file == [str(settings.etc / "numa-ext-jobs" / "numa-ext-jobs.conf")]


def test_a_plain_cloud_has_no_job_service(settings: Settings) -> None:
    ours, plain = (
        {service.name for service in ControlPlane(each, Progress(io.StringIO())).services()}
        for each in (settings, settings.become_plain())
    )
    assert ours - plain == JOBS
    tasks = Lab(settings.become_plain(), Progress(io.StringIO()))._tasks([])
    assert not any("numa-ext" in name for name in tasks)


def test_engines_and_api_begin_anew_when_what_they_read_changes(settings: Settings) -> None:
    """But not when what only one of them reads does."""
    before = {name: service(settings, name).fingerprint() for name in JOBS}
    folder = settings.etc / "numa-ext-jobs"
    folder.mkdir()
    (folder / "numa-ext-engine-1.conf").write_text("[numa_ext_jobs]\n")
    assert service(settings, "numa-ext-engine-0").fingerprint() == before["numa-ext-engine-0"]
    assert service(settings, "numa-ext-engine-1").fingerprint() != before["numa-ext-engine-1"]
    (folder / "numa-ext-jobs.conf").write_text("[database]\n")
    assert not {service(settings, name).fingerprint() for name in JOBS} & {*before.values()}


def test_the_api_is_told_its_configuration_by_its_environment(settings: Settings) -> None:
    """Below a WSGI server there is no command line of its own."""
    environment = service(settings, "numa-ext-jobs-api").environment
    file = settings.etc / "numa-ext-jobs" / "numa-ext-jobs.conf"
    assert environment["NUMA_EXT_JOBS_CONFIG"] == str(file)
    assert environment["GUNICORN_CMD_ARGS"] == f"-c {settings.etc}/gunicorn/numa-ext-jobs-api.py"


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
