# SPDX-License-Identifier: Apache-2.0
"""What people type at the lab: slips are answered by what was meant, and arguments of other programs are theirs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from numa_lab import cli, show
from numa_lab.settings import Settings

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture
def lab(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The command line finds the lab of the test."""
    monkeypatch.setenv("NUMA_EXT_LAB", str(settings.lab))
    monkeypatch.setenv("NUMA_EXT_CACHE", str(settings.cache))
    return settings


@pytest.mark.parametrize("words", [["--flavor", "lc.small"], ["lc1", "-f", "json"], ["--help"]])
def test_explain_passes_all_its_arguments_on(
    words: list[str], lab: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    conf = lab.etc / "nova" / "nova.conf"
    conf.parent.mkdir(parents=True)
    conf.touch()
    program = lab.venv / "bin" / "numa-ext-explain"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)

    assert cli.main(CHECKOUT, ["explain", *words]) == 0

    assert json.loads(capfd.readouterr().out) == [f"--config-file={conf}", *words]


def test_explain_before_the_cloud_is_up_says_what_to_wait_for(
    lab: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(CHECKOUT, ["explain", "lc1"]) == 1
    assert "is not up yet" in capsys.readouterr().err


def test_the_show_is_for_a_cloud_with_our_flavors(
    lab: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.become_plain()
    assert cli.main(CHECKOUT, ["show"]) == 1
    assert "is plain: it has none of our flavors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "said"),
    [("stauts", "did you mean status?"), ("frobnicate", "lab --help lists them")],
)
def test_a_misspelt_command_is_answered_by_the_near_one(
    word: str, said: str, lab: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(CHECKOUT, [word])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"lab: there is no command {word}: {said}\n"


@pytest.mark.parametrize(
    "words",
    [["shell", "h9", "true"], ["logs", "nova-schedular"], ["restart", "nova-schedular"]],
)
def test_what_names_nothing_is_not_to_be_tried_again(
    words: list[str], lab: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(CHECKOUT, words) == 1
    said = capsys.readouterr().err
    kind = {"shell": "host", "logs": "log", "restart": "service"}[words[0]]
    assert f"there is no {kind} {words[1]}" in said
    assert "to try again" not in said


def test_the_show_ends_with_commands_of_the_readme_for_this_lab(lab: Settings) -> None:
    said = show.next_steps(lab).splitlines()
    assert said[0].startswith("Some commands to start with")
    assert f". {lab.lab}/openrc && export PATH={lab.lab}/venv/bin:$PATH" in said
    assert any(line.startswith("openstack numa ") for line in said)
    shown = subprocess.run(["sh", "-n"], input="\n".join(said[1:]), text=True, check=False)
    assert shown.returncode == 0
