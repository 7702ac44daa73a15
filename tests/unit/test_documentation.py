# SPDX-License-Identifier: Apache-2.0
"""What users type is in the documentation, each thing under its own name."""

import re
from pathlib import Path

import pytest

from host_agent.conf import configuration
from host_agent.conf.configuration import SECTIONS as AGENT_SECTIONS
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.orchestrator.conf import JobsOptions
from placement_traits.names import Key
from placement_traits.options import Section, declared
from placement_traits.request import EXTRA_SPECS, InvalidRequestError, parse

REPOSITORY = Path(__file__).parents[2]
USER_GUIDE = REPOSITORY / "doc/source/user"
SOURCE = REPOSITORY / "doc/source"
ARCHITECTURE = (REPOSITORY / "doc/source/contributor/architecture.rst").read_text()
PAGE = (USER_GUIDE / "extra-specs.rst").read_text()
SECTIONS = dict(re.findall(r"^``(numa_ext:\w+)``\n=+\n(.*?)(?=^``numa_ext:|\Z)", PAGE, re.M | re.S))


def test_every_extra_spec_has_a_section() -> None:
    """Issue 3: user page per extra spec with an example."""
    assert set(SECTIONS) == set(Key)


@pytest.mark.parametrize("key", sorted(Key))
def test_every_example_holds_its_key_and_no_value_that_is_refused(key: Key) -> None:
    (example,) = re.findall(r"^\.\. code-block:: text\n\n((?:    .*\n)+)", SECTIONS[key], re.M)
    specs = dict(word.split("=", 1) for word in example.split())
    assert key in specs
    try:
        parse(specs, vcpus=2, memory_mb=512)
    except InvalidRequestError as error:
        pytest.fail(str(error))


def table_of_keys() -> str:
    """The table of all keys as the user guide shows it: plain text, readable where the page is not built."""
    rows = [("key", "allowed", "default", "meaning")]
    rows += [
        (f"``{key}``", spec.allowed, spec.default, spec.description)
        for key, spec in EXTRA_SPECS.items()
    ]
    items = "".join("   * - " + "\n     - ".join(row) + "\n" for row in rows)
    return f".. list-table::\n   :header-rows: 1\n   :widths: 25 25 20 30\n\n{items}"


def test_the_table_of_keys_is_current() -> None:
    """A key, value or default that changes in the code changes there: print ``table_of_keys()`` into the page."""
    page = (USER_GUIDE / "flavors.rst").read_text()
    (shown,) = re.findall(r"^\.\. list-table::\n(?:(?:   .*)?\n)*?(?=\n\S)", page, re.M)
    assert shown == table_of_keys()


def test_every_file_that_the_architecture_page_names_is_there() -> None:
    """The page is where a newcomer looks first: a file that has moved must move there, too."""
    packages = ("placement_traits", "nova_numa_ext", "host_agent", "emulation")
    files = [
        f"/{f.relative_to(REPOSITORY)}" for p in packages for f in (REPOSITORY / p).rglob("*.py")
    ]
    named = set(re.findall(r"``([\w/]+\.py)``", ARCHITECTURE))
    assert {"host_agent/decide/modes.py", "session.py"} <= named
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []


def test_every_package_of_both_wings_is_in_the_pictures() -> None:
    pictures = "".join(
        re.findall(r"^\.\. code-block:: text\n\n((?:  .*\n|\n)+)", ARCHITECTURE, re.M)
    )
    wings = (REPOSITORY / "host_agent", REPOSITORY / "nova_numa_ext")
    parts = {
        f.stem
        for wing in wings
        for f in wing.iterdir()
        if f.suffix in (".py", "") and f.stem[0] != "_"
    }
    assert [part for part in sorted(parts) if not re.search(rf"\b{part}\b", pictures)] == []


def test_twenty_questions_have_one_file_each() -> None:
    rows = re.findall(r"^   \* - (.+\?)\n     - (.*)$", ARCHITECTURE, re.M)
    assert len(rows) >= 20
    files = [re.fullmatch(r"``([\w/]+\.py)``", answer) for _, answer in rows]
    assert all(files), rows
    assert len({question for question, _ in rows}) == len(rows)


# Sections that are nova's or Placement's, too: there an option need not be ours.
SHARED = {"placement", "DEFAULT"}


def test_every_option_that_a_page_names_is_declared() -> None:
    sections: tuple[type[Section], ...] = (*AGENT_SECTIONS.values(), SchedulerOptions)
    known = {f"[{section.section}]{one.name}" for section in sections for one in declared(section)}
    earlier = {
        f"operator/upgrade.rst: [{section.section}]{one.option.formerly}"
        for section in sections
        for one in declared(section)
    }
    ours = {name.partition("]")[0][1:] for name in known} - SHARED
    pattern = re.compile(rf"\[(?:{'|'.join(sorted(ours))})\]\w+")
    unknown = {
        f"{page.relative_to(SOURCE)}: {name}"
        for page in SOURCE.rglob("*.rst")
        if page.name != "release-notes.rst"  # which names options that are gone, too
        for name in pattern.findall(page.read_text())
        if name not in known and not name.endswith("_")  # families: [numa_ext]view_…
    }
    assert unknown <= earlier


SIZING = (SOURCE / "operator/sizing.rst").read_text()
SIZES = re.findall(r"^   \* - (.+)\n     - (.+)\n     - (.+)$", SIZING, re.M)[1:]


@pytest.mark.parametrize(("what", "figure", "where"), [row for row in SIZES if row[1] != "Figure"])
def test_a_figure_of_the_sizing_page_is_that_of_its_source(
    what: str, figure: str, where: str
) -> None:
    """Measured or by arithmetic, from a result that is committed: nothing is said here that stands nowhere else."""
    assert where.startswith(("measured", "by arithmetic", "modelled")), what
    names = re.findall(r":doc:`([\w/-]+)`", where)
    files = [
        SOURCE / f"{name.strip('/') if '/' in name else f'operator/{name}'}.rst" for name in names
    ]
    files += [SOURCE / "contributor" / name for name in re.findall(r"``([\w-]+\.json)``", where)]
    text = "".join(file.read_text() for file in files)
    number = figure.partition(" ")[0]
    assert re.search(rf"(?<![\d.]){re.escape(number)}|(?<!\d){number.replace(',', '')}\.0", text)


def test_who_reads_of_security_finds_all_secrets() -> None:
    """Those of our options, and of libraries' sections in our files."""
    (secrets,) = re.findall(r"(?ms)^## Secrets$(.*?)^## ", (REPOSITORY / "SECURITY.md").read_text())
    controllers: tuple[type[Section], ...] = (SchedulerOptions, JobsOptions)
    assert set(re.findall(r"`\[(\w+)\](\w+)`", secrets)) == {
        (group.name, option.dest)
        for group, options in configuration.list_opts()
        for option in options
        if option.secret
    } | {
        (kind.section, each.name)
        for kind in controllers
        for each in declared(kind)
        if each.option.secret
    } | {("database", "connection")}


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md"])
def test_every_link_of_a_page_without_a_build_leads_to_a_file(name: str) -> None:
    links = re.findall(r"\]\(([^):#]+)\)", (REPOSITORY / name).read_text())
    assert links
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
