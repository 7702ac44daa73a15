# SPDX-License-Identifier: Apache-2.0
"""A service that runs as described is left alone; a changed one is started again."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from numa_lab.process import Process
from numa_lab.service import Service
from numa_lab.terminal import Progress


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    conf = tmp_path / "thing.conf"
    conf.write_text("one")
    code = tmp_path / "code"
    code.mkdir()
    (code / "module.py").write_text("x = 1")
    process = Process("thing", tmp_path / "run" / "thing.pid", tmp_path / "thing.log", 5)
    yield Service(process, ("sleep", "1000"), {"PATH": "/usr/bin:/bin"}, (conf, code))
    process.stop()


def pid(service: Service) -> int:
    identity = service.process.identity()
    assert identity is not None
    return identity.pid


def test_a_second_ensure_changes_and_says_nothing(service: Service) -> None:
    service.ensure(Progress(io.StringIO()))
    first = pid(service)
    stream = io.StringIO()

    service.ensure(Progress(stream))

    assert pid(service) == first
    assert stream.getvalue() == ""


@pytest.mark.parametrize("file", ["thing.conf", "code/module.py", "code/new.py"])
def test_changed_configuration_or_code_starts_it_again(
    service: Service, tmp_path: Path, file: str
) -> None:
    service.ensure(Progress(io.StringIO()))
    first = pid(service)
    (tmp_path / file).write_text("two = 2")
    stream = io.StringIO()

    service.ensure(Progress(stream))

    assert pid(service) != first
    assert "restarting thing" in stream.getvalue()


def test_another_command_or_environment_starts_it_again(service: Service) -> None:
    service.ensure(Progress(io.StringIO()))
    first = pid(service)

    replace(service, environment={"PATH": "/bin"}).ensure(Progress(io.StringIO()))

    assert pid(service) != first


def test_one_that_runs_and_does_not_serve_yet_is_waited_for_not_restarted(
    service: Service,
) -> None:
    service.ensure(Progress(io.StringIO()))
    first = pid(service)
    answers = iter([False, False, True])
    stream = io.StringIO()

    replace(service, ready=lambda: next(answers)).ensure(Progress(stream))

    assert pid(service) == first
    assert "waiting for thing" in stream.getvalue()
