# SPDX-License-Identifier: Apache-2.0
"""Pid files name one process for ever, and only that one is ever signalled."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from numa_lab import process
from numa_lab.errors import LabError
from numa_lab.process import Identity, Process, identify, run_logged, session_members, stop_all

SLEEP = ["sleep", "1000"]


def eventually(check: object, seconds: float = 10.0) -> bool:
    assert callable(check)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    made = Process("sleeper", tmp_path / "run" / "sleeper.pid", tmp_path / "log" / "sleeper.log", 5)
    yield made
    made.stop()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours and must live through each test."""
    child = subprocess.Popen(SLEEP, start_new_session=True)
    yield child
    assert child.poll() is None, "a stranger was ended"
    child.kill()
    child.wait()


def test_a_started_process_is_known_to_another_program(sleeper: Process, tmp_path: Path) -> None:
    identity = sleeper.start(SLEEP)

    elsewhere = Process("sleeper", sleeper.pid_file, tmp_path / "other.log")
    assert elsewhere.identity() == identity
    assert os.getsid(identity.pid) == identity.pid
    assert sleeper.start(SLEEP) == identity, "a second start must be no start"


def test_stop_ends_it_forgets_it_and_is_harmless_when_repeated(sleeper: Process) -> None:
    pid = sleeper.start(SLEEP).pid

    assert sleeper.stop() is True
    assert identify(pid) is None
    assert not sleeper.pid_file.exists()
    assert sleeper.stop() is False


def test_a_process_that_ended_by_itself_is_not_alive_even_as_a_zombie(sleeper: Process) -> None:
    identity = sleeper.start(SLEEP)
    os.kill(identity.pid, signal.SIGKILL)

    assert eventually(lambda: not sleeper.alive())
    with pytest.raises(LabError, match="sleeper has ended unexpectedly"):
        sleeper.require_alive()


def test_a_recycled_pid_is_neither_taken_for_ours_nor_signalled(
    sleeper: Process, stranger: subprocess.Popen[bytes]
) -> None:
    theirs = identify(stranger.pid)
    assert theirs is not None
    sleeper.pid_file.parent.mkdir()
    earlier = Identity(theirs.pid, theirs.start_ticks - 1, theirs.boot)
    sleeper.pid_file.write_text(str(earlier))

    assert not sleeper.alive()
    assert sleeper.stop() is False
    assert not sleeper.pid_file.exists(), "a file that names nobody is taken away"


def test_a_pid_file_of_an_earlier_boot_names_nobody(
    sleeper: Process, stranger: subprocess.Popen[bytes]
) -> None:
    theirs = identify(stranger.pid)
    assert theirs is not None
    sleeper.pid_file.parent.mkdir()
    sleeper.pid_file.write_text(f"{theirs.pid} {theirs.start_ticks} another-boot\n")

    assert sleeper.stop() is False


@pytest.mark.parametrize("text", ["", "12", "1 2 3 4", "one two three", "{pid}\n"])
def test_a_torn_or_foreign_pid_file_names_nobody(sleeper: Process, text: str) -> None:
    sleeper.pid_file.parent.mkdir()
    sleeper.pid_file.write_text(text.format(pid=os.getpid()))

    assert not sleeper.alive()
    assert sleeper.stop() is False


def test_who_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    stubborn = Process("stubborn", tmp_path / "s.pid", tmp_path / "s.log", grace_s=0.2)
    ready = tmp_path / "ready"
    stubborn.start(["sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 1; done"])
    assert eventually(ready.exists)

    assert stubborn.stop() is True
    assert not stubborn.alive()


def test_children_left_behind_by_the_leader_end_with_it(tmp_path: Path) -> None:
    leader = Process("leader", tmp_path / "l.pid", tmp_path / "l.log", grace_s=5)
    session = leader.start(["sh", "-c", "sleep 1000 & sleep 1000 & wait"]).pid
    assert eventually(lambda: len(session_members(session)) == 3)

    leader.stop()

    assert eventually(lambda: session_members(session) == [])


def test_several_are_ended_side_by_side_and_only_those_that_ran_are_named(tmp_path: Path) -> None:
    one, two, never = (
        Process(name, tmp_path / f"{name}.pid", tmp_path / f"{name}.log")
        for name in ("one", "two", "never")
    )
    one.start(SLEEP)
    two.start(SLEEP)

    assert stop_all([one, never, two]) == ["one", "two"]


def test_a_command_that_cannot_be_executed_is_named_with_its_log(sleeper: Process) -> None:
    with pytest.raises(LabError, match="sleeper cannot be started") as caught:
        sleeper.start(["/nowhere/program"])
    assert caught.value.log == sleeper.log


def test_waiting_stops_at_once_when_the_watched_process_has_ended(tmp_path: Path) -> None:
    short = Process("short", tmp_path / "short.pid", tmp_path / "short.log")
    short.start(["sh", "-c", "sleep 0.2; echo last words"])

    with pytest.raises(LabError, match="short has ended unexpectedly") as caught:
        process.wait_for("it serves", lambda: False, 60, short)
    assert caught.value.log is not None
    assert "last words" in caught.value.log.read_text()


def test_waiting_in_vain_says_for_what_and_how_long(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"after 0 s: the moon is blue"):
        process.wait_for("the moon is blue", lambda: False, 0.05, log=tmp_path / "moon.log")


def test_a_failing_command_leaves_its_output_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log" / "tool.log"
    words = [sys.executable, "-c", "import sys; print(sys.stdin.read()); sys.exit(3)"]

    with pytest.raises(LabError, match="the tool failed with status 3"):
        run_logged("the tool", words, log, standard_input="what it was told")
    assert "what it was told" in log.read_text()
