# SPDX-License-Identifier: Apache-2.0
"""The daemon's start: what may be missing, and what must be reported."""

import faulthandler
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from host_agent.cmd import agent
from host_agent.conf.paths import HostPaths
from host_agent.control.assembly import agent as assembly
from host_agent.control.journal import FileJournal
from host_agent.report.metrics import Metrics
from host_agent.util.single_instance import single_instance
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError
from placement_traits.json_store import JsonStore


def test_a_metrics_port_that_is_taken_does_not_stop_the_agent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent._expose(Metrics(), "127.0.0.1", port)
    (record,) = caplog.records
    assert f"no metrics on 127.0.0.1:{port}" in record.message


def test_a_state_folder_that_cannot_be_written_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    config = tmp_path / "agent.conf"
    config.write_text(f"[agent]\nstate_dir = {tmp_path}/file/state\n")
    assert agent.main([f"--config-file={config}"]) == 1
    assert "give [agent]state_dir a folder" in capsys.readouterr().err


def test_a_slip_in_the_deny_list_ends_the_start_for_good_and_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started all the same, the agent would touch a server that must be left alone."""
    (tmp_path / "deny").write_text("web1\n")
    config = tmp_path / "agent.conf"
    config.write_text(f"[agent]\nstate_dir = {tmp_path}\ndeny_servers = {tmp_path}/deny\n")
    assert agent.main([f"--config-file={config}"]) == os.EX_CONFIG
    assert f"{tmp_path}/deny, line 1: 'web1' is not allowed" in capsys.readouterr().err


def test_the_journal_is_closed_whatever_ends_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits to be written is written then."""
    closed: list[str] = []
    parts = SimpleNamespace(journal=SimpleNamespace(close=lambda: closed.append("journal")))
    config = tmp_path / "agent.conf"
    config.write_text(f"[agent]\nstate_dir = {tmp_path}\n")

    def fail(_conf: object, _parts: object) -> int:
        assert closed == []
        raise CapabilityMissingError("no round")

    monkeypatch.setattr(assembly, "build", lambda *_arguments, **_named: parts)
    monkeypatch.setattr(agent, "_turn", fail)
    assert agent.main([f"--config-file={config}", "--dry-run"]) == 1
    assert closed == ["journal"]


def test_what_a_single_round_throttles_is_left_to_the_dead_man_switch() -> None:
    """L7: no agent comes after it, as one does after an upgrade."""
    left: list[str] = []
    parts = SimpleNamespace(
        agent=SimpleNamespace(round=lambda **_how: SimpleNamespace(unfinished=False)),
        privileged=SimpleNamespace(graceful_shutdown=lambda: left.append("throttles")),
        publisher=None,
    )
    assert agent._turn(SimpleNamespace(once=True), parts) == 0  # type: ignore[arg-type]
    assert left == []


@pytest.mark.parametrize(
    "error", [ServiceUnavailableError("the helper does not answer"), OSError(5, "I/O error")]
)
def test_a_helper_that_has_ended_first_makes_no_failure_of_the_end(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the host goes down: the unit would be failed, and the supervisor would start the agent again."""

    def gone() -> None:
        raise error

    nothing = SimpleNamespace(run=lambda _stop: None, stopping=lambda: None)
    parts = SimpleNamespace(
        **dict.fromkeys(("publisher", "slo", "source")),
        agent=nothing,
        service_manager=nothing,
        privileged=SimpleNamespace(graceful_shutdown=gone),
    )
    conf = SimpleNamespace(once=False, dry_run=True, agent=SimpleNamespace(metrics_port=0))
    monkeypatch.setattr(signal, "signal", lambda *_arguments: None)
    monkeypatch.setattr(faulthandler, "enable", lambda: None)
    assert agent._turn(conf, parts) == 0  # type: ignore[arg-type]
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "throttles will be released: the helper does not learn" in record.message


def test_a_second_agent_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One writer per outside thing."""
    config = tmp_path / "agent.conf"
    config.write_text(f"[agent]\nstate_dir = {tmp_path}\n")
    with single_instance(tmp_path / "agent.lock", "test"):
        assert agent.main([f"--config-file={config}"]) == 1
    assert "controls this host already" in capsys.readouterr().err


def test_only_the_one_agent_of_a_host_removes_drafts_of_killed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tmp_path / "slo.json.999999999.new"
    draft.write_text("")
    parts = SimpleNamespace(
        paths=HostPaths(state=tmp_path),
        journal=SimpleNamespace(close=lambda: None),
        privileged=SimpleNamespace(in_control=lambda: 0),
    )
    config = tmp_path / "agent.conf"
    config.write_text(f"[agent]\nstate_dir = {tmp_path}\n")
    monkeypatch.setattr(assembly, "build", lambda *_arguments, **_options: parts)
    monkeypatch.setattr(agent, "_turn", lambda *_arguments: 0)
    with single_instance(tmp_path / "agent.lock", "test"):
        assert agent.main([f"--config-file={config}"]) == 1
    assert agent.main(["--dry-run", f"--config-file={config}"]) == 0
    assert draft.exists()
    assert agent.main([f"--config-file={config}"]) == 0
    assert not draft.exists()


def test_root_follows_no_link_in_the_folder_of_an_agent_without_rights(tmp_path: Path) -> None:
    """M10: lock, journal and state files have names that whoever took over the agent knows."""
    kept, state = tmp_path / "kept", tmp_path / "state"
    kept.write_text("as it was")
    state.mkdir()
    store = JsonStore(state / "slo.json", 1, lambda found: found.raw, lambda found: found)
    draft = f"slo.json.{threading.get_native_id()}.new"
    for name in ("agent.lock", "journal.jsonl", draft):
        (state / name).symlink_to(kept)
    with (
        pytest.raises(CapabilityMissingError, match=r"agent\.lock cannot be opened"),
        single_instance(state / "agent.lock", "test"),
    ):
        pass
    with pytest.raises(CapabilityMissingError, match=r"journal\.jsonl cannot be written"):
        FileJournal(state / "journal.jsonl")
    with pytest.raises(OSError):
        store.save({"levels": 1})
    assert kept.read_text() == "as it was"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("[agent]\ninterval_s = soon", "[agent]interval_s = soon"),
        ("[counters]\nsource = nothing", "[counters]source = nothing: no installed distribution"),
        ("[slo]\nnotify_url = rabbit", "[slo]notify_url cannot be used: "),
        ("[slo]\nnotify_url = hare://", "[slo]notify_url cannot be used: "),
        (
            "[placement]\nauth_type = passwort",
            "[placement] holds no usable credentials: The plugin passwort could not be found",
        ),
        ("agent", "No ':' or '=' found in assignment: 'agent'"),
    ],
)
def test_a_configuration_that_cannot_be_used_ends_it_with_78_and_a_sentence(
    lines: str, sentence: str, tmp_path: Path
) -> None:
    """``RestartPreventExitStatus=78``: the next start would find the same."""
    config = tmp_path / "agent.conf"
    config.write_text(f"[agent]\nstate_dir = {tmp_path}/state\n{lines}\n")
    command = [sys.executable, "-m", "host_agent.cmd.agent", f"--config-file={config}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
