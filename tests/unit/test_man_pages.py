# SPDX-License-Identifier: Apache-2.0
"""Each command has a man page that names all that it takes."""

import argparse
import re
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
from docutils.core import publish_string
from docutils.writers import manpage

from host_agent.cmd import ctl, lanes, leases, supervisor
from nova_numa_ext.cli import explain_command, heal_command
from nova_numa_ext.orchestrator import manage, service

ROOT = Path(__file__).parents[2]
PAGES = {file.stem: file for file in (ROOT / "doc/source/cli").glob("numa-*.rst")}
# The others read their options with oslo.config.
PARSERS = {
    "numa-host-agent-ctl": ctl._parser,
    "numa-host-agent-lanes": lanes._parser,
    "numa-host-agent-leases": leases._parser,
    "numa-host-agent-supervisor": supervisor._parser,
    "numa-ext-engine": service._parser,
    "numa-ext-explain": explain_command._parser,
    "numa-ext-heal": heal_command._parser,
    "numa-ext-manage": manage._parser,
}


LINK = "numa-ext-rgpu"
"""In Go."""

BENCH = "numa-rgpu-bench"
"""In C."""


def test_every_command_has_a_page_and_no_page_is_left_over() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    scripts = config["entry_points"]["console_scripts"].split("\n")
    assert {line.partition(" =")[0] for line in scripts if line} | {LINK, BENCH} == set(PAGES)


def test_the_page_of_the_link_names_all_its_options() -> None:
    sources = (ROOT / "host_agent/remote_gpu/link").glob("*.go")
    text = "\n".join(file.read_text() for file in sources)
    options = set(
        re.findall(r"set\.(?:String|U?[Ii]nt(?:64)?|Bool)(?:Var\(&[\w.]+, |\()\"(\w+)\"", text)
    )
    named = set(re.findall(r"^``-(\w+)``(?: |$)", PAGES[LINK].read_text(), re.M))
    assert options == named


def test_the_page_of_the_bench_names_all_its_options() -> None:
    source = (ROOT / "host_agent/remote_gpu/opencl/numa-rgpu-bench.c").read_text()
    (options,) = re.findall(r'getopt\(count, words, "([a-z:]+)"\)', source)
    heads = [line for line in PAGES[BENCH].read_text().splitlines() if line.startswith("``-")]
    assert set(options) - {":"} == set(re.findall(r"``-(\w)``", " ".join(heads)))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_one_for_man(name: str) -> None:
    """``--strict``: what docutils warns of is an error."""
    made = publish_string(
        PAGES[name].read_text(), writer=manpage.Writer(), settings_overrides={"halt_level": 2}
    ).decode()
    assert re.search(rf'^\.TH "?{name}"? ', made, re.M | re.I)
    shown = re.search(r"^\.SH Name\n(.*)$", made, re.M | re.I)
    assert shown, "what `man -k` finds it by"
    assert shown[1].startswith(f"{name} \\- ")
    assert ".SH SYNOPSIS" in made.upper()


def taken(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Options and commands that a parser takes, those of its commands, too."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield name
                yield from taken(command)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_a_page_names_all_that_its_command_takes(name: str) -> None:
    words = set(re.findall(r"[\w-]+", PAGES[name].read_text()))
    assert [word for word in taken(PARSERS[name]()) if word not in words] == []
