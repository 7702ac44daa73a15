# SPDX-License-Identifier: Apache-2.0
"""Commands of ``numa-host-agent-ctl`` that only show or delegate."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from host_agent.cmd import ctl
from host_agent.control.assembly import observer
from placement_traits.topology import HostTopology


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A configuration file of a host with the lab's topology."""
    monkeypatch.setattr(observer, "topology_reader", lambda *_: four_nodes)
    file = tmp_path / "agent.conf"
    file.write_text("[host]\nname = h1\n")
    return f"--config-file={file}"


def test_the_topology_is_drawn_and_saved_complete(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main([config, "topology"]) == 0
    assert capsys.readouterr().out.startswith("h1: 1 chassis, 2 sockets, 4 NUMA nodes")
    assert ctl.main([config, "topology", "-f", "json"]) == 0
    assert HostTopology.from_json(capsys.readouterr().out) == four_nodes()
    assert ctl.main([config, "topology", "--svg", str(tmp_path / "h1.svg")]) == 0
    assert (tmp_path / "h1.svg").read_text().startswith("<svg")


def test_device_spec_lines_can_be_pasted_or_parsed(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main([config, "device-spec", "--resource-class", "CUSTOM_A100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    spec = json.loads(lines[0].removeprefix("device_spec = "))
    assert (spec["resource_class"], spec["address"]) == ("CUSTOM_A100", "0000:05:00.0")
    assert ctl.main([config, "device-spec", "--resource-class", "CUSTOM_A100", "-f", "json"]) == 0
    assert [row["device_spec"] for row in json.loads(capsys.readouterr().out)] == lines


def test_a_drawing_that_cannot_be_written_is_told_in_a_sentence(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main([config, "topology", "--svg", f"{tmp_path}/none/h1.svg"]) == 1
    output = capsys.readouterr().err
    assert output.endswith("a file to write (No such file or directory)\n")
    assert output.count("\n") == 1


@pytest.mark.parametrize("words", [("journal",), ("explain", "web"), ("pause",)])
def test_what_needs_no_host_starts_without_what_looks_at_one(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """On a busy emulated host each module costs a tenth of a second and more."""
    file = tmp_path / "agent.conf"
    file.write_text(f"[agent]\nstate_dir = {tmp_path}\n")
    decided = {"action": "decide", "title": "web", "server": "u", "time": "now"}
    (tmp_path / "journal.jsonl").write_text(json.dumps(decided) + "\n")
    code = (
        "import sys; from host_agent.cmd.ctl import main; main(sys.argv[1:]); print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, f"--config-file={file}", *words]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    loaded = set(output.splitlines()[-1].split())
    assert "oslo_config.cfg" in loaded
    heavy = {"keystoneauth1", "libvirt", "numpy", "requests", "ssl", "xml.etree.ElementTree"}
    assert not loaded & (
        heavy | {"host_agent.control.assembly.agent", "host_agent.control.assembly.observer"}
    )
