# SPDX-License-Identifier: Apache-2.0
"""What leaves the host in a support bundle: enough to help, and no secret, wherever it stands."""

import json
import stat
import tarfile
from pathlib import Path

import pytest

from host_agent.cmd import ctl
from host_agent.console import support_bundle
from host_agent.console.masking import Masks, secrets

PASSWORD, BUS, TOKEN = "pa55-of-placement", "pa55-of-the-bus", "t0ken-of-prometheus"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's configuration with secrets in it, which have got into its journal and log, too."""
    monkeypatch.setattr(
        support_bundle, "_doctor", lambda _conf: [{"check": "all", "level": "good"}]
    )
    monkeypatch.setattr(support_bundle, "_log", lambda: f"connects to rabbit with {BUS}\n")
    monkeypatch.setattr(support_bundle, "_status", _no_libvirt)
    state = tmp_path / "state"
    state.mkdir()
    entry = {"action": "decide", "title": "web", "problem": f"401 for {PASSWORD}"}
    (state / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    file = tmp_path / "agent.conf"
    file.write_text(
        f"[agent]\nstate_dir = {state}\ndeny_servers = {tmp_path}/none\n"
        f"[host]\nname = h1\nresctrl = {tmp_path}/resctrl\n"
        f"[placement]\nauth_type = password\npassword = {PASSWORD}\nusername = numa-ext-host-h1\n"
        f"[slo]\nnotify_url = rabbit://openstack:{BUS}@controller:5672/\n"
        f"[site]\nprometheus-token = {TOKEN}\n"
    )
    return file


def _no_libvirt(_conf: object) -> list[dict[str, str]]:
    raise OSError("libvirt does not answer")


def made(config: Path, folder: Path) -> dict[str, str]:
    file = folder / "bundle.tar.gz"
    assert ctl.main([f"--config-file={config}", "support-bundle", "--output", str(file)]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as bundle:
        parts = {}
        for member in bundle.getmembers():
            content = bundle.extractfile(member)
            assert content is not None
            parts[member.name.removeprefix("bundle/")] = content.read().decode()
    return parts


def test_no_part_holds_a_secret_wherever_it_stands(config: Path, tmp_path: Path) -> None:
    parts = made(config, tmp_path)
    whole = "".join(parts.values())
    assert [secret for secret in (PASSWORD, BUS, TOKEN) if secret in whole] == []
    assert "password = ***" in parts["configuration/agent.conf"]
    assert "rabbit://openstack:***@controller:5672/" in parts["configuration/agent.conf"]
    assert "prometheus-token = ***" in parts["configuration/agent.conf"]
    assert "401 for ***" in parts["state/journal.jsonl"]
    assert parts["log.txt"] == "connects to rabbit with ***\n"


def test_what_helps_is_there(config: Path, tmp_path: Path) -> None:
    parts = made(config, tmp_path)
    assert "username = numa-ext-host-h1" in parts["configuration/agent.conf"]
    assert "oslo.config" in parts["versions.txt"]
    assert json.loads(parts["doctor.json"]) == [{"check": "all", "level": "good"}]
    assert {"topology.json", "proc/meminfo", "sys/devices/system/cpu/online"} <= parts.keys()


def test_what_cannot_be_had_is_a_sentence(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = made(config, tmp_path)
    assert parts["status.json"] == "libvirt does not answer\n"
    assert "No such file or directory" in parts["configuration/none"]
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(maxsplit=1) for row in rows if row.startswith("status.json")] == [
        ["status.json", "libvirt does not answer"]
    ]


def test_what_the_agents_user_links_to_is_not_sent_away(config: Path, tmp_path: Path) -> None:
    """Root makes bundles, and the state folder is another user's."""
    roots = tmp_path / "shadow"
    roots.write_text("root:$6$salt$hash:20000::::::\n")
    (tmp_path / "state/notes.json").symlink_to(roots)
    parts = made(config, tmp_path)
    assert "$6$salt$hash" not in "".join(parts.values())
    assert "symbolic link" in parts["state/notes.json"]


def test_of_a_long_journal_the_end_is_there(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support_bundle, "_LONGEST", 8)
    (tmp_path / "state/journal.jsonl.1").write_text("0123456789abcdef")
    assert made(config, tmp_path)["state/journal.jsonl.1"] == "89abcdef"


def test_no_file_is_written_over(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "there"
    file.write_text("mine")
    assert ctl.main([f"--config-file={config}", "support-bundle", "-o", str(file)]) == 1
    assert capsys.readouterr().err.endswith("a file to make (File exists)\n")
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('{"password": "x y", "a": 1}', '{"password": ***, "a": 1}'),
        ("X-Auth-Token: gAAAA", "X-Auth-Token: ***"),
        ("os_password=abc, next", "os_password=***, next"),
        ("http://user:pw@host/path", "http://user:***@host/path"),
        ("http://host:9090/path", "http://host:9090/path"),
        ("no secret here", "no secret here"),
    ],
)
def test_what_looks_like_a_secret_is_masked_without_being_known(text: str, masked: str) -> None:
    assert Masks(()).text(text) == masked


def test_the_longer_of_two_secrets_leaves_nothing_behind() -> None:
    assert Masks(("abcd", "abcdef")).text("abcdef abcd") == "*** ***"


def test_a_secret_option_is_one_by_its_declaration() -> None:
    text = "[slo]\nnotify_url = rabbit://host/\ncolour = blue\n"
    assert secrets([text], {"notify_url"}) == {"rabbit://host/"}
