# SPDX-License-Identifier: Apache-2.0
"""Every command knows its version, refuses numbers out of bounds, and says in a sentence what is not installed."""

import importlib
import os
import re
import sys
from argparse import Action
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest
from openstackclient.shell import OpenStackShell

from host_agent.cmd import agent, ctl, supervisor
from host_agent.report.metrics import Metrics
from nova_numa_ext.cli import heal_command
from nova_numa_ext.orchestrator import manage
from placement_traits.command_line import version

ROOT = Path(__file__).parents[2]
SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
SCRIPTS = dict(
    line.split(" = ") for line in SETUP["entry_points"]["console_scripts"].strip().splitlines()
)

Main = Callable[[list[str]], int]


def main_of(script: str) -> Main:
    module, _, name = SCRIPTS[script].partition(":")
    found: Main = getattr(importlib.import_module(module), name)
    return found


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_command_shows_the_version_that_is_installed(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main_of(script)(["--version"])
    except SystemExit as ended:  # as argparse does it
        code = int(ended.code or 0)
    assert (code, capsys.readouterr().out) == (0, f"{version()}\n")


def test_the_page_of_commands_lists_every_one() -> None:
    page = (ROOT / "doc/source/cli/index.rst").read_text()
    entries = SETUP["entry_points"]["openstack.numa.v1"].strip().splitlines()
    numa = {"openstack " + entry.split(" = ")[0].replace("_", " ") for entry in entries}
    listed = set(re.findall(r"^   \* - ``([\w -]+)``$", page, re.M))
    compiled = {"numa-ext-rgpu", "numa-rgpu-bench"}
    assert listed == numa | set(SCRIPTS) | compiled


def options_of(command: str) -> set[str]:
    """Long options of an ``openstack`` command, by its entry point."""
    module, _, name = command.partition(":")
    parser = getattr(importlib.import_module(module), name)(None, None).get_parser("")
    words = {word for action in parser._actions for word in action.option_strings}
    return {word for word in words if word.startswith("--")} - {"--help"}


def arguments_of(command: str) -> list[Action]:
    """What an ``openstack`` command of ours takes, but for what every command of ``openstack`` takes."""
    module, _, name = command.partition(":")
    parser = getattr(importlib.import_module(module), name)(None, None).get_parser("")
    groups = (parser._positionals, parser._optionals, *parser._mutually_exclusive_groups)
    of_all = {"--help", "--sort-column", "--sort-ascending", "--sort-descending"}
    return [
        each
        for each in parser._actions
        if any(each in group._group_actions for group in groups)
        and not of_all & set(each.option_strings)
    ]


@pytest.mark.parametrize("entry", SETUP["entry_points"]["openstack.numa.v1"].strip().splitlines())
def test_help_is_of_one_style(entry: str) -> None:
    """Each argument is explained, with its default in brackets; a value that is chosen freely is a word in <>."""
    for argument in arguments_of(entry.split(" = ")[1]):
        what = f"{argument.option_strings or argument.dest}: {argument.help}"
        assert argument.help, what
        assert argument.help[0].isupper() or argument.help.split(":")[0] in argument.choices, what
        assert not argument.help.endswith("."), what
        assert "default: " not in argument.help.lower().replace("(default: ", ""), what
        free = argument.nargs != 0 and not argument.choices
        assert not free or re.match(r"<[^>]+>", str(argument.metavar)), what


def test_no_option_begins_as_one_of_openstack_itself() -> None:
    """``openstack`` reads its own options first, wherever they are, and takes an option's beginning for the option."""
    openstack = OpenStackShell().build_option_parser("", "")
    entries = SETUP["entry_points"]["openstack.numa.v1"].strip().splitlines()
    options = set[str]().union(*(options_of(entry.split(" = ")[1]) for entry in entries))
    assert "--dry-run" in options
    taken = {word for word in options if openstack.parse_known_args([f"{word}=1"])[1] == []}
    assert taken == set()


@pytest.mark.parametrize(
    ("main", "words", "option", "allowed"),
    [
        (ctl.main, ["journal", "-n", "-5"], "-n/--lines: -5", "a whole number from 1 to 1000000"),
        (ctl.main, ["journal", "-n", "many"], "-n/--lines: many", "a whole number from 1"),
        (ctl.main, ["calibrate", "--seconds", "-1"], "--seconds: -1", "a number from 0.1 to 600"),
        (ctl.main, ["calibrate", "--seconds", "nan"], "--seconds: nan", "a number from 0.1 to 600"),
        (ctl.main, ["calibrate", "--megabytes", "-1"], "--megabytes: -1", "from 0 to 1048576"),
        (
            ctl.main,
            ["calibrate", "--cpus-per-node", "-2"],
            "--cpus-per-node: -2",
            "from 0 to 65536",
        ),
        (supervisor.main, ["--watchdog", "-1"], "--watchdog: -1", "a number from 0.1 to 86400"),
        (supervisor.main, ["--restart-after", "inf"], "--restart-after: inf", "from 0.1 to 86400"),
        (heal_command.main, ["--every", "0"], "--every: 0", "a number from 1 to 86400"),
        (manage.main, ["purge", "--older-than", "-1"], "--older-than: -1", "from 0 to 36525"),
    ],
)
def test_a_number_out_of_bounds_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], main: Main, words: list[str], option: str, allowed: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert option in sentence
    assert allowed in sentence


@pytest.fixture
def without_libvirt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment without libvirt's binding, and the agent's configuration there."""
    monkeypatch.setitem(sys.modules, "libvirt", None)
    file = tmp_path / "agent.conf"
    file.write_text(
        f"[agent]\nstate_dir = {tmp_path}/state\nmetrics_port = 0\n[host]\nresctrl = {tmp_path}/none\n"
        f"[helper]\nsocket = {tmp_path}/none\nstate_dir = {tmp_path}/helper\n[placement]\nenabled = false\n"
    )
    return f"--config-file={file}"


def test_status_without_libvirts_binding_is_a_sentence(
    without_libvirt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main([without_libvirt, "status"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(
        "libvirt's Python binding is not installed: install nova-numa-ext[agent]"
    )


def test_the_doctor_goes_on_without_libvirts_binding(
    without_libvirt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main([without_libvirt, "doctor"]) == 1
    output = capsys.readouterr()
    assert "libvirt's Python binding is not installed" in output.out
    assert "huge pages" in output.out, "the checks after it are made"


def test_reset_without_libvirts_binding_undoes_the_rest(
    without_libvirt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main([without_libvirt, "reset"]) == 1
    assert "libvirt's Python binding is not installed" in capsys.readouterr().out


def test_an_agent_without_libvirts_binding_is_not_started_again(
    without_libvirt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agent.main([without_libvirt]) == os.EX_CONFIG
    assert "libvirt's Python binding is not installed" in capsys.readouterr().err


def test_an_agent_without_an_exporter_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    agent._expose(Metrics(), "127.0.0.1", 1)
    assert caplog.messages == [
        "no metrics: prometheus_client is not installed (nova-numa-ext[agent])"
    ]
