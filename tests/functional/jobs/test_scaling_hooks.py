# SPDX-License-Identifier: Apache-2.0
"""Hooks of elastic groups: real programs, what they are told, and what becomes of those that hang."""

import json
import os
import signal
import time

import pytest

from nova_numa_ext.orchestrator.scaling_hooks import HookError, HookEvent, ScalingHooks
from tests.support.polling import until


@pytest.fixture
def call(tmp_path):
    """Write a program of a shell's lines, and call it."""

    def called(*lines, timeout_s=10.0, name="hook"):
        program = tmp_path / "hook"
        program.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        program.chmod(0o755)
        return ScalingHooks(tmp_path, timeout_s).call(
            name, HookEvent.ADD, "server-1", {"group": "g", "project": "p", "name": "web-1"}
        )

    return called


def test_a_hook_is_told_what_for_and_ends_with_0_when_it_is_done(call, tmp_path, monkeypatch):
    monkeypatch.setenv("OS_PASSWORD", "secret")
    out = tmp_path / "out"
    assert call(f'echo "$1 $2 $OS_PASSWORD" > {out}', f"cat >> {out}")
    first, second = out.read_text().splitlines()
    assert first == "add server-1 "
    told = json.loads(second)
    assert told == {
        "event": "add",
        "server": "server-1",
        "group": "g",
        "project": "p",
        "name": "web-1",
    }


def test_a_hook_that_is_not_done_ends_with_75(call):
    assert not call("exit 75")


def test_a_hook_that_reads_nothing_is_done(call):
    assert call("exec 0<&-", "exit 0")


def test_without_a_hook_all_is_done(call):
    assert call("exit 1", name="")


def test_a_hook_that_fails_says_why(call):
    with pytest.raises(HookError, match="hook add of server server-1 ended with 3: no quorum"):
        call("echo warning >&2", "echo no quorum >&2", "exit 3")


def test_a_hook_that_is_not_there_is_said(call):
    with pytest.raises(HookError, match="none cannot be called: No such file"):
        call("exit 0", name="none")


def test_a_hook_that_hangs_is_killed_with_what_it_has_started(call, tmp_path):
    alive = tmp_path / "alive"
    began = time.monotonic()
    with pytest.raises(HookError, match=r"was not done after 0\.5 s"):
        call(f"(sleep 2; touch {alive}) &", "wait", timeout_s=0.5)
    assert time.monotonic() - began < 2.0
    time.sleep(2.0)
    assert not alive.exists()


def test_a_hook_that_cannot_be_killed_holds_up_no_other_call(tmp_path, monkeypatch):
    """Such as one that runs as another user by then: it is left behind, and not called again while it runs."""
    kept = []

    def refuses(pid, _signal):
        kept.append(pid)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuses)
    for name, line in (("hangs", "sleep 60"), ("well", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/{name}.log\n{line}\n")
        (tmp_path / name).chmod(0o755)
    hooks = ScalingHooks(tmp_path, 0.5)
    began = time.monotonic()
    with pytest.raises(HookError, match=r"not done after 0\.5 s, and its process \d+ cannot be"):
        hooks.call("hangs", HookEvent.ADD, "server-1", {})
    with pytest.raises(HookError, match="still runs as process"):
        hooks.call("hangs", HookEvent.ADD, "server-1", {})
    assert hooks.call("well", HookEvent.ADD, "server-1", {})
    assert time.monotonic() - began < 10.0
    assert len((tmp_path / "hangs.log").read_text().split()) == 1
    monkeypatch.undo()
    for pid in kept:
        os.killpg(pid, signal.SIGKILL)

    def is_called_again():
        with pytest.raises(HookError) as caught:
            hooks.call("hangs", HookEvent.ADD, "server-1", {})
        return str(caught.value).endswith("was not done after 0.5 s")

    until(is_called_again)
