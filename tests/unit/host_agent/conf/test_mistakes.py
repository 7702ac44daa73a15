# SPDX-License-Identifier: Apache-2.0
"""A wrong configuration is reported in one sentence, by the agent and by its command."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from host_agent.cmd import agent, ctl
from host_agent.conf import configuration
from host_agent.conf.options import Options
from host_agent.console import doctor, support_bundle
from placement_traits import unknown_options
from placement_traits.findings import Level
from placement_traits.oslo_options import ConfigurationError

BOTH = pytest.mark.parametrize(
    "run", [agent.main, lambda words: ctl.main([*words, "journal"])], ids=["agent", "ctl"]
)
Run = Callable[[list[str]], int]


def one_sentence(run: Run, file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    status = os.EX_CONFIG if run is agent.main else 1  # 78: systemd does not try again
    assert run([f"--config-file={file}"]) == status
    output = capsys.readouterr().err
    assert output.removesuffix("\n").isprintable()
    return output


@BOTH
def test_a_missing_file_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "/nope" in one_sentence(run, Path("/nope"), capsys)


@BOTH
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[agent]\ninterval_s = abc\n", ["[agent]interval_s", "'abc'"]),
        ("[rdt]\nbackend = foo\n", ["[rdt]backend", "resctrl"]),
        ("[host]\nname = h1\n[pinning]\nenabled = perhaps\n", ["[pinning]enabled", "perhaps"]),
        ("[agent]\ngarbage\n", ["garbage", ":2"]),
        ("[host]\nname = any=$name\n", ["[host]name = any=$name", "refers to itself"]),
        ("[bwap]\ndrop = 10\n", ["[bwap]drop", "0 to 9"]),
        ("[slo]\nat_risk_slack_percent = 40\n", ["[slo]at_risk_slack_percent", "(40.0, 20.0)"]),
        ("[slo]\nat_risk_slack_percent =\n", ["[slo]at_risk_slack_percent", "no value"]),
        ("[agent]\nresync_s =\n", ["[agent]resync_s", "no value"]),
        ("[rdt]\nverify_s = 1\n  \x1b[2J\n", ["[rdt]verify_s", r"1\n\x1b[2J"]),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    run: Run, text: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(text)
    output = one_sentence(run, file, capsys)
    assert [word for word in (str(file), *words) if word not in output] == []


MISSPELT = "[agent]\nintervall_s = 5\ninterval_s = 5\n[agnet]\nresync_s = 9\n"


def load(tmp_path: Path, text: str) -> configuration.Configuration:
    (tmp_path / "agent.conf").write_text(text)
    return configuration.load([f"--config-file={tmp_path}/agent.conf"])


def test_keys_that_nobody_reads_are_told_with_what_was_meant(tmp_path: Path) -> None:
    assert configuration.unknown_keys(load(tmp_path, MISSPELT)) == [
        f"[agent]intervall_s (interval_s was meant?) in {tmp_path}/agent.conf",
        f"[agnet] (agent was meant?) in {tmp_path}/agent.conf",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[DEFAULT]\ndebug = true\ndry_run = true\n",
        "[placement]\nauth_type = password\nusername = nova\nuser_domain_name = Default\n"
        "region_name = R\ntimeout = 9\ncell_packing = spread\n",
        "[placement]\nauth_type = v3applicationcredential\napplication_credential_id = 1\n",
        "[placement]\nauth_section = shared\n[shared]\nauth_type = password\npassword = x\n",
        "[oslo_messaging_rabbit]\nssl = true\n",
    ],
)
def test_keys_of_libraries_are_known(text: str, tmp_path: Path) -> None:
    assert configuration.unknown_keys(load(tmp_path, text)) == []


def test_a_key_with_hyphens_is_not_read_and_named(tmp_path: Path) -> None:
    """oslo.config looks for underscores alone; what keystoneauth knows by an earlier name has its hyphens."""
    text = "[agent]\ninterval-s = 7\n[placement]\nauth_type = password\nuser-name = nova\nauth-url = x\n"
    conf = load(tmp_path, text)
    assert conf.agent.interval_s == 2
    assert configuration.unknown_keys(conf) == [
        f"[agent]interval-s (interval_s was meant?) in {tmp_path}/agent.conf",
        f"[placement]auth-url (auth_url was meant?) in {tmp_path}/agent.conf",
    ]


def test_a_plugin_that_refers_to_no_option_is_one_sentence(tmp_path: Path) -> None:
    conf = load(tmp_path, "[placement]\nauth_type = $password\n")
    with pytest.raises(ConfigurationError, match=r"write \$\$ for a \$") as caught:
        configuration.unknown_keys(conf)
    (finding,) = doctor._configuration(conf)
    assert (finding.level, finding.detail) == (Level.BROKEN, str(caught.value))


def test_every_option_of_the_sample_is_known(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(
        "".join(
            f"[{group.name}]\n" + "".join(f"{option.dest} = 1\n" for option in options)
            for group, options in configuration.list_opts()
        )
    )
    known = {group.name: options for group, options in configuration.list_opts()}
    assert list(unknown_options.keys([str(file)], known)) == []


def test_the_doctor_and_the_log_of_the_start_tell_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{MISSPELT}[libvirt_host]\nuri = test:///default\n[host]\nproc = {tmp_path}\n"
    (tmp_path / "file").write_text("")
    blocked = text.replace("[agent]\n", f"[agent]\nstate_dir = {tmp_path}/file/state\n")
    (finding,) = doctor._configuration(load(tmp_path, blocked))
    assert finding.level is Level.DEGRADED
    assert "intervall_s" in finding.detail
    assert agent.main([f"--config-file={tmp_path}/agent.conf"]) == 1  # no state folder
    assert "unknown in the configuration: [agent]intervall_s" in capsys.readouterr().err


def test_every_file_that_is_read_is_looked_at(tmp_path: Path) -> None:
    """Its keys, who may read it, and its secrets."""
    (tmp_path / "more").mkdir()
    (tmp_path / "agent.conf").write_text("")
    drop_in = tmp_path / "more/site.conf"
    drop_in.write_text("[agent]\nintervall_s = 5\ninterval_s = 7\n[placement]\npassword = s3cret\n")
    conf = configuration.load(
        [f"--config-file={tmp_path}/agent.conf", f"--config-dir={tmp_path}/more"]
    )
    assert conf.agent.interval_s == 7
    (named,) = configuration.unknown_keys(conf)
    assert named == f"[agent]intervall_s (interval_s was meant?) in {drop_in}"
    (readable,) = doctor._secrets(conf)
    assert readable.level is Level.DEGRADED
    assert str(drop_in) in readable.detail
    bundle = tmp_path / "bundle.tar.gz"
    assert "configuration/site.conf" in [row["part"] for row in support_bundle.write(conf, bundle)]
    with tarfile.open(bundle) as parts:
        member = parts.extractfile("bundle/configuration/site.conf")
        assert member is not None
        assert b"s3cret" not in member.read()
    with pytest.raises(ConfigurationError, match=f"= 0 in {tmp_path}/agent.conf, {drop_in}"):
        drop_in.write_text("[agent]\ninterval_s = 0\n")
        configuration.load(
            [f"--config-file={tmp_path}/agent.conf", f"--config-dir={tmp_path}/more"]
        )


def test_a_folder_that_programs_would_read_differently_is_read_by_none_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oslo.config has the file win where the unit names it, and the folder where the console does not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".numa-host-agent/numa-host-agent.conf.d"
    folder.mkdir(parents=True)
    (folder / "site.conf").write_text("[agent]\ninterval_s = 7\n")
    conf = load(tmp_path, "")
    assert conf.agent.interval_s != 7
    (told,) = configuration.unknown_keys(conf)
    assert told.startswith(str(folder))


def test_what_must_work_in_spite_of_mistakes_takes_defaults_for_them(tmp_path: Path) -> None:
    """The absence of an agent that does not start for them, for example."""
    file = tmp_path / "agent.conf"
    file.write_text("[agent]\ninterval_s = abc\nresync_s = 7\n[slo]\nat_risk_slack_percent = 40\n")
    mistakes: list[str] = []
    conf = configuration.load(
        [f"--config-file={file}"], mistake=lambda error: mistakes.append(str(error))
    )
    assert (conf.agent.interval_s, conf.agent.resync_s) == (2.0, 7.0)
    assert conf.slo == Options().slo
    assert [text.split(" ")[0] for text in mistakes] == [
        "[agent]interval_s",
        "[slo]at_risk_slack_percent,",
    ]
