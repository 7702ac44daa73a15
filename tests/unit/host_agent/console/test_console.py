# SPDX-License-Identifier: Apache-2.0
"""What numa-host-agent-ctl shows of a host whose libvirt and privileged side are doubles."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, Server
from host_agent.cmd import ctl
from host_agent.conf.paths import HostPaths
from host_agent.console import status, undo
from host_agent.console.explanation import as_text
from host_agent.console.text import cell
from host_agent.control.assembly import observer
from host_agent.control.journal import FileJournal
from host_agent.control.slo_store import PAUSED, Kept, SloStore, load, of_server
from host_agent.model.journal import Entry, Result
from host_agent.model.process import Pin
from host_agent.model.rdt import Actual, GroupState
from host_agent.util.acting import acting
from host_agent.util.single_instance import single_instance
from tests.support.fake_host import FakeHost

Run = Callable[..., tuple[int, str]]

GPU = (
    "<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='0x61' slot='0' function='0'/>"
    "</source></hostdev>"
)


class Host(FakeHost):
    """A fake host that a connection can be closed to."""

    def close(self) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host with a GPU on node 2, and a configuration file that leads to it."""
    found = Host(four_nodes())
    device = tmp_path / "sys/bus/pci/devices/0000:61:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("2\n")
    (tmp_path / "agent.conf").write_text(
        f"[agent]\nstate_dir = {tmp_path}/state\n[host]\nsys = {tmp_path}/sys\nresctrl = {tmp_path}/none\n"
    )
    for command in (status, undo):
        monkeypatch.setattr(command, "LibvirtSource", lambda _uri, _timeout_s: found)
        monkeypatch.setattr(command, "open_seam", lambda *_, **__: found)
    monkeypatch.setattr(observer, "topology_reader", lambda *_: lambda: found.topology)
    return found


@pytest.fixture
def run(host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command; return its exit status and its output."""

    def command(*words: str) -> tuple[int, str]:
        code = ctl.main([f"--config-file={tmp_path}/agent.conf", *words])
        output = capsys.readouterr()
        return code, output.out + output.err

    return command


def test_status_shows_each_gpu_with_its_node(host: Host, run: Run) -> None:
    server = host.boot(Server("gpu", BE_SPECS, devices=GPU))
    (row,) = json.loads(run("status", "-f", "json")[1])
    assert row["gpus"] == [{"address": "0000:61:00.0", "node": 2}]
    assert (row["uuid"], row["managed"], row["rdt_group"]) == (server.uuid, True, None)
    assert row["nodes"] == [0]
    assert "0000:61:00.0@2" in run("status")[1]


@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("command", ["doctor", "status", "journal"])
def test_no_pipe_or_link_in_the_agents_folder_holds_a_command_of_root_up(
    tmp_path: Path, command: str, plant: Callable[[Path], None]
) -> None:
    """A host in strange hands is when one looks at it."""
    paths = HostPaths(state=tmp_path / "state")
    paths.state.mkdir()
    for file in set(paths.kept) - {paths.paused}:
        plant(file)
    (tmp_path / "agent.conf").write_text(
        f"[agent]\nstate_dir = {paths.state}\n[helper]\nsocket = {tmp_path}/none\nstate_dir = {tmp_path}\n"
        f"[libvirt_host]\nuri = qemu+unix:///system?socket={tmp_path}/none\n[placement]\nenabled = false\n"
    )
    config = f"--config-file={tmp_path}/agent.conf"
    ended = subprocess.run(
        [sys.executable, "-m", "host_agent.cmd.ctl", config, command],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert "Traceback" not in ended.stderr
    if command != "doctor":  # which finds other things, too
        assert (ended.returncode, ended.stdout) == (1, "")
    if command == "journal":
        assert f"{paths.journal} cannot be read" in ended.stderr


def test_explain_tells_why_a_server_is_left_alone(host: Host, run: Run) -> None:
    """The journal knows nothing of it, for nothing was decided: libvirt does."""
    server = host.boot(Server("quiet", {}))
    status, text = run("explain", server.uuid, "-f", "json")
    assert status == 0
    assert json.loads(text)["now"]["why"] == "its flavor has no numa_ext extra spec"
    assert "no numa_ext extra spec" in run("explain", "quiet")[1]


def test_status_is_brief_about_a_server_without_an_objective() -> None:
    quiet = {"slo_p99_us": None, "samples": 0, "problem": ""}
    watched = {**quiet, "slo_p99_us": 900}
    report = {"lcs": {"1": quiet, "2": watched}, "phase": "rest", "time": "now"}
    assert of_server(report, "1") == {}
    rows = [{"server": uuid, "why": "long", "slo": of_server(report, uuid)} for uuid in ("1", "2")]
    assert status.brief(rows) == [
        {"server": "1", "slo": {}},
        {
            "server": "2",
            "slo": {"slo_p99_us": 900, "samples": 0, "phase": "rest", "changed": "now"},
        },
    ]


def test_explain_keeps_silent_about_what_the_controller_does_not_know() -> None:
    slo = {"slo_p99_us": None, "samples": 0, "problem": "", "actions": [], "phase": "rest"}
    decision = {"title": "web", "server": "1", "time": "now"}
    text = as_text({"decision": decision, "actions": [], "slo": slo})
    assert "bandwidth, as last reported by the agent\n  samples: 0\n  phase: rest\nthen\n" in text


def test_explain_of_an_unknown_server_says_so(run: Run) -> None:
    assert run("explain", "nobody") == (
        1,
        "Neither the journal nor libvirt knows a server nobody.\n",
    )


def test_explain_needs_no_libvirt_where_the_journal_knows(
    host: Host, run: Run, tmp_path: Path
) -> None:
    journal = FileJournal(tmp_path / "state/journal.jsonl")
    journal.write(Entry("decide", Result.NOTED, "u", "web", reasons=("class_penalty=0",)))
    journal.close()
    host.libvirt_down = True
    assert "class_penalty=0" in run("explain", "web")[1]


@pytest.mark.parametrize(
    "odd",
    [{"what": ["x"]}, {"title": {"a": 1}}, {"reasons": 7}, {"server": ["u"]}, {"time": 7}],
    ids=str,
)
def test_what_is_no_entry_of_ours_is_passed_over(
    run: Run, tmp_path: Path, odd: dict[str, object]
) -> None:
    good = {"time": "now", "action": "decide", "server": "u", "reasons": ["class_penalty=0"]}
    path = tmp_path / "state/journal.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(each) + "\n" for each in ({**good, **odd}, good)))
    assert run("journal") == (0, "now u decide\n")
    assert "class_penalty=0" in run("explain", "u")[1]


def test_a_value_is_shown_in_a_line_as_deep_as_it_can_be_read() -> None:
    nested: object = "x"
    for _ in range(500):
        nested = {"a": [nested, 1]}
    assert cell({"b": nested, "c": {"address": "61:00.0", "node": None}}) == (
        "b:a:a:a:a:…,1,1,1 c:61:00.0@-"
    )


@pytest.mark.parametrize(("foreign", "exclusive"), [("f0", True), ("f8", False)])
def test_exclusive_is_what_the_masks_say(foreign: str, exclusive: bool) -> None:
    actual = Actual(
        (
            GroupState("", "shareable", {"L3": {0: 0xF0}}),
            GroupState("numa_ext-lc-1", "shareable", {"L3": {0: 0xF}}),
            GroupState("other", "shareable", {"L3": {0: int(foreign, 16)}}),
        )
    )
    assert status.exclusive(actual, "numa_ext-lc-1", [0]) is exclusive
    assert status.exclusive(None, "numa_ext-lc-1", [0]) is False


def test_reset_beside_a_running_agent_is_refused_unless_it_is_paused(
    host: Host, run: Run, tmp_path: Path
) -> None:
    host.boot(Server("be", BE_SPECS))
    lock = tmp_path / "state/agent.lock"
    lock.parent.mkdir()
    with single_instance(lock, "test"):
        status, text = run("reset")
        assert (status, host.writes) == (1, [])
        assert "numa-host-agent-ctl pause" in text
        assert str(os.getpid()) in text
        assert run("reset", "--dry-run")[0] == 0
        run("pause")
        assert run("reset")[0] == 0
    run("resume")
    assert run("reset")[0] == 0


@pytest.mark.parametrize(("devices", "threads"), [(GPU, 2), ("", 1)])
def test_reset_frees_the_emulator_of_a_server_with_a_gpu_too(
    host: Host, run: Run, devices: str, threads: int
) -> None:
    """L4: only there the agent had pinned it; elsewhere it is where nova or an operator put it."""
    server = host.boot(Server("be", BE_SPECS, shared="0-3", devices=devices))
    process = host.process(server.uuid)
    host.pin(server.uuid, [Pin(thread.tid, "5") for thread in process.threads])
    assert run("reset")[0] == 0
    free = [thread for thread in host.process(server.uuid).threads if thread.cpus != "5"]
    assert len(free) == threads
    assert {thread.cpus for thread in free} == {"0-3"}


@pytest.mark.parametrize("rests", [True, False])
def test_what_is_released_is_not_taken_again_by_an_agent_that_has_not_noticed_its_pause(
    host: Host,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rests: bool,
) -> None:
    """``pause; release-bandwidth`` in one breath: the agent is waited for, but not for ever."""
    with (tmp_path / "agent.conf").open("a") as config:
        config.write("[agent]\ninterval_s = 0.2\n")
    store = SloStore(tmp_path / "state/slo.json")
    store.save(lambda: Kept(report={"phase": "climb"}))
    phases: list[str] = []

    def release(_write: bool) -> tuple[str, ...]:
        phases.append(load(tmp_path / "state/slo.json").report["phase"])
        return ()

    def looked(_seconds: float) -> None:
        if rests:
            store.save(lambda: Kept(report={"phase": PAUSED}))

    monkeypatch.setattr(host, "release_throttles", release)
    monkeypatch.setattr(time, "sleep", looked)
    run("pause")
    with single_instance(tmp_path / "state/agent.lock", "test"):
        assert run("release-bandwidth")[0] == 0
    assert phases == [PAUSED if rests else "climb"]


@pytest.mark.parametrize("ends", [True, False])
def test_a_round_that_began_before_the_pause_is_waited_for(
    host: Host,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: bool,
) -> None:
    """Whatever features are on: it still pins, behind the reset; but one that hangs holds nothing up."""
    with (tmp_path / "agent.conf").open("a") as config:
        config.write("[agent]\ninterval_s = 0.2\n")
    order: list[str] = []

    def release(_write: bool) -> tuple[str, ...]:
        order.append("undone")
        return ()

    def looked(_seconds: float) -> None:
        if ends:
            order.append("round ended")
            begun.close()

    monkeypatch.setattr(host, "release_throttles", release)
    monkeypatch.setattr(time, "sleep", looked)
    run("pause")
    with ExitStack() as begun:
        assert begun.enter_context(acting(tmp_path / "state/acting.lock"))
        assert run("reset")[0] == 0
    assert order == (["round ended", "undone"] if ends else ["undone"])


def test_reset_keeps_the_journals_configured_size(host: Host, run: Run, tmp_path: Path) -> None:
    with (tmp_path / "agent.conf").open("a") as config:
        config.write("[agent]\njournal_mb = 1\n")
    journal = tmp_path / "state/journal.jsonl"
    journal.parent.mkdir()
    journal.write_text(" " * (1 << 20))
    run("reset")
    assert journal.with_name("journal.jsonl.1").exists()


def kept(folder: Path) -> set[str]:
    """Names of the files of a state folder."""
    return {file.name for file in folder.iterdir()}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder after some time, with a file of another's."""
    folder = tmp_path / "state"
    folder.mkdir()
    files = HostPaths(state=folder).kept
    for file in (
        *files,
        folder / "journal.jsonl.1",
        folder / "slo.json.7.new",
        folder / "notes-of-the-operator",
    ):
        file.write_text("{}")
    (folder / "paused").unlink()
    return folder


def test_reset_all_takes_back_pins_and_then_all_that_the_agent_has_kept(
    host: Host, run: Run, state: Path
) -> None:
    server = host.boot(Server("be", BE_SPECS, shared="0-3", devices=GPU))
    host.pin(server.uuid, [Pin(thread.tid, "5") for thread in host.process(server.uuid).threads])
    before = kept(state)
    code, text = run("reset", "--all", "--dry-run")
    assert (code, kept(state)) == (0, before)
    assert "would" in text
    assert run("reset", "--all")[0] == 0
    assert {thread.cpus for thread in host.process(server.uuid).threads} == {"0-3"}
    assert kept(state) == {"notes-of-the-operator"}
    assert run("reset", "--all")[0] == 0, "it may be called again"
    assert kept(state) == {"notes-of-the-operator"}


def test_reset_all_keeps_what_is_needed_to_undo_what_failed(
    host: Host, run: Run, state: Path
) -> None:
    host.libvirt_down = True
    before = kept(state)
    code, text = run("reset", "--all")
    assert (code, kept(state)) == (1, before | {"agent.lock"})
    assert "needed to undo what failed" in text


def test_reset_all_beside_any_agent_is_refused_in_a_sentence(
    host: Host, run: Run, state: Path
) -> None:
    run("pause")
    before = kept(state)
    with single_instance(state / "agent.lock", "test"):
        code, text = run("reset", "--all")
    assert (code, kept(state)) == (1, before)
    assert (text.count("\n"), "systemctl disable --now numa-host-agent" in text) == (1, True)


def test_every_file_of_the_state_folder_is_known_to_reset_all() -> None:
    paths = HostPaths()
    found = {name for name, made in vars(HostPaths).items() if isinstance(made, property)}
    not_the_agents = {"lane_door"}  # the unit of lanes makes and removes it, and may run meanwhile
    assert {getattr(paths, name) for name in found - {"kept"} - not_the_agents} == set(paths.kept)


def test_status_and_explain_show_how_an_objective_stands(
    host: Host, run: Run, tmp_path: Path
) -> None:
    server = host.boot(Server("lc", BE_SPECS))
    journal = FileJournal(tmp_path / "state/journal.jsonl")
    journal.write(Entry("decide", Result.NOTED, server.uuid, "lc"))
    journal.close()
    reading = {"name": "lc", "state": "violated", "p99_us": 1200.0, "slo_p99_us": 1000}
    action = {"time": "T", "server": server.uuid, "action": "violated", "what": {}}
    report = {"phase": "heal", "lcs": {server.uuid: reading}, "bes": {}, "actions": [action]}
    SloStore(tmp_path / "state/slo.json").save(lambda: Kept(report=report))
    (row,) = json.loads(run("status", "-f", "json")[1])
    assert (row["slo"]["state"], row["slo"]["phase"]) == ("violated", "heal")
    _, text = run("explain", "lc")
    assert "state: violated" in text
    assert "T violated" in text


def test_status_fits_a_terminal_and_long_shows_all(host: Host, run: Run) -> None:
    server = host.boot(Server("web", BE_SPECS))
    short, long = (run("status", *words)[1] for words in ((), ("--long",)))
    assert max(map(len, short.splitlines())) <= 160
    assert server.uuid not in short
    assert "problem" not in short.split(), "a column that is empty everywhere"
    assert server.uuid in long
    assert set(long.splitlines()[0].split()) == set(json.loads(run("status", "-f", "json")[1])[0])


def test_status_of_an_empty_host_says_so(host: Host, run: Run) -> None:
    assert run("status") == (0, "no server is here\n")
