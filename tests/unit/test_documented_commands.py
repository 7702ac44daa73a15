# SPDX-License-Identifier: Apache-2.0
"""What the documentation says to type could be typed: every command is read by the parser that would read it.

Nothing is run here. What README.md offers is run on the lab by ``tests/integration/test_readme.py``.
"""

from pathlib import Path

import pytest

from host_agent.cmd import ctl
from nova_numa_ext.cli.flavor import check as flavor_check
from tests.support.documented_commands import (
    CHECKS,
    HISTORY,
    NOT_OURS,
    PAGES,
    PARSERS,
    ROOT,
    Command,
    WrongCommandError,
    check,
    commands,
    flavor_of,
    mentioned,
)

NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
SHOWN = [command for page in PAGES for command in commands(page)]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_shows_no_command_that_would_be_refused(page: Path) -> None:
    wrong = []
    for command in (*commands(page), *(mentioned(page) if page != HISTORY else ())):
        try:
            check(command)
        except WrongCommandError as error:
            wrong.append(f"{command}: {error}")
    assert wrong == []


def test_the_programs_of_others_are_those_that_pages_show() -> None:
    """Each with why it is not run; who shows another one adds it, who shows it no more takes it out."""
    shown = {command.program for command in SHOWN}
    assert shown - PARSERS.keys() - CHECKS.keys() == NOT_OURS.keys()


def test_the_commands_of_the_operators_guide_are_among_them() -> None:
    """The search itself works: these stand in blocks with comments, prompts, continued lines and pipes."""
    words = {command.words for command in SHOWN}
    assert ("openstack", "numa", "host", "undrain", "compute1") in words
    assert ("numa-host-agent-ctl", "explain", "lc1") in words
    assert ("numa-ext-explain", "--journal", "-", "lc1") in words
    assert ("make", "cloud") in words
    assert any(len(each) > 20 and each[:3] == ("openstack", "flavor", "create") for each in words)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("openstack numa host lst", "there is no command openstack numa host lst"),
        ("openstack numa host drain", "required"),
        ("openstack numa host list --mode observe", "unrecognized arguments: --mode"),
        ("openstack server create --flavour lc.small x", "--flavor"),
        ("openstack resource provider delete", "required"),
        ("numa-host-agent-ctl calibrate levles", "invalid choice: 'levles'"),
        ("numa-host-agent-ctl journal -n 0", "0 is not allowed"),
        ("numa-host-agent --onec", "unrecognized arguments: --onec"),
        ("numa-ext-status upgarde check", "invalid choice: 'upgarde'"),
        ("numa-ext-heal --dryrun", "unrecognized arguments: --dryrun"),
        ("numa-host-agent-supervisor --user numa-host-agent --watchdgo 1", "unrecognized"),
        ("make clod", "the Makefile knows no clod"),
        ("make bench-scheduler JSO=x", "the Makefile knows no JSO"),
        ("devstack/lab/lab shell h1 numa-host-agent-ctl stats", "invalid choice: 'stats'"),
        ("/opt/x/bin/pip install .[agnet]", "setup.cfg has no extra agnet"),
        ("python -m nova_numa_ext.simulato", "there is no module"),
        ("cp etc/systemd/numa-agent.service /etc/", "is not in the repository"),
        ("systemctl start numa-agent", "there is no unit numa-agent.service"),
        ("numactl --hardware", "neither ours nor listed"),
    ],
)
def test_a_slip_is_found(line: str, why: str) -> None:
    with pytest.raises(WrongCommandError, match=why.replace("[", r"\[")):
        check(Command("page", tuple(line.split())))


def test_in_a_sentence_arguments_may_be_missing_but_not_wrong() -> None:
    check(Command("page", ("openstack", "numa", "host", "drain"), inline=True))
    with pytest.raises(WrongCommandError):
        check(Command("page", ("openstack", "numa", "host", "drain", "--al"), inline=True))


def test_the_page_of_commands_says_who_may_call_each_of_the_console() -> None:
    """It says so of each openstack command and each program, too: tests/unit/test_command_lines.py."""
    (choices,) = (
        action.choices for action in ctl._parser()._actions if action.dest == "==SUPPRESS=="
    )
    page = (ROOT / "doc/source/cli/index.rst").read_text()
    row = page[page.index("* - ``numa-host-agent-ctl``") :]
    assert [name for name in choices if f"``{name}``" not in row] == []


FLAVORS = [each for each in SHOWN if each.words[:3] == ("openstack", "flavor", "create")]
SLIPS = {"lc.big"}  # shown with nova's refusal


@pytest.mark.parametrize("command", FLAVORS, ids=lambda command: command.where)
def test_a_flavor_is_accepted_by_the_check(command: Command) -> None:
    flavor = flavor_of(command)
    found = {result for result, _ in flavor_check(flavor, {"hw_qemu_guest_agent": "yes"})}
    assert found == ({"wrong"} if flavor.name in SLIPS else {"ok"})


def test_the_cookbook_has_a_flavor_for_each_load() -> None:
    made = [flavor_of(each).name for each in FLAVORS if "cookbook" in each.where]
    assert made == [
        "store.lc",
        "batch.be",
        "train.four",
        "stream.spread",
        "stream.nodes",
        "noisy.be",
        "quiet.lc",
    ]
