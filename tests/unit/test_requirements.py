# SPDX-License-Identifier: Apache-2.0
"""Each wing imports only what its own installation brings, and nothing is installed that nobody imports."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"placement_traits", "nova_numa_ext", "host_agent", "emulation"}
# Parts of the product -> extras of which each may be there; () is requirements.txt alone.
PARTS: dict[str, tuple[str, ...]] = {
    "placement_traits": (),
    "host_agent": ("agent", "notify", "nvidia", "pqos"),
    "nova_numa_ext/scheduler": ("scheduler",),
    "nova_numa_ext/policy": (),
    "nova_numa_ext/cli": ("client", "scheduler"),
    "nova_numa_ext/orchestrator": ("jobs",),
    "nova_numa_ext/learning": ("elastic",),
    "nova_numa_ext/rally": ("rally",),
    "nova_numa_ext/simulator": ("sim",),
    "nova_numa_ext/flow": ("flow",),
    "nova_numa_ext": ("scheduler", "metrics"),
}
# Imported by name only, or where the package's name is not the import's.
BY_STRING = {"nvidia-ml-py": "pynvml"}
IMPORTS = {
    "keystoneauth1": "keystoneauth1",
    "libvirt-python": "libvirt",
    "nova": "nova",
    "oslo.config": "oslo_config",
    "pqos": "pqos",
    "PyYAML": "yaml",
    "scikit-learn": "sklearn",
    "Flask": "flask",
    "SQLAlchemy": "sqlalchemy",
    "python-novaclient": "novaclient",
    "Werkzeug": "werkzeug",
    "python-openstackclient": "openstackclient",
    "openstacksdk": "openstack",
}
# Load our commands by their entry points, and the API of jobs by its name.
NOT_IMPORTED = {"gunicorn", "python-openstackclient"}


def names(lines: str) -> set[str]:
    """Distributions of the lines of a requirements file."""
    found = (re.match(r"[A-Za-z0-9._-]+", line.strip()) for line in lines.splitlines())
    return {match[0] for match in found if match}


def requirements() -> set[str]:
    """What every installation has."""
    return names((ROOT / "requirements.txt").read_text())


def extra(name: str) -> set[str]:
    """What an extra adds."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return names(config["extras"][name])


def module(distribution: str) -> str:
    """Top-level module of a distribution."""
    known = BY_STRING | IMPORTS
    return known.get(distribution, distribution.replace("-", "_").replace(".", "_"))


@functools.cache
def imported(file: Path) -> frozenset[str]:
    """Top-level modules that a file imports, those of functions and of type checking, too."""
    return frozenset(_imported(file))


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def files(part: str) -> list[Path]:
    """Modules of a part, without those of a part below it."""
    below = [other for other in PARTS if other.startswith(f"{part}/")]
    return [
        file
        for file in sorted((ROOT / part).rglob("*.py"))
        if not any(file.is_relative_to(ROOT / other) for other in below)
    ]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_only_what_its_installation_brings(part: str) -> None:
    brought = requirements().union(*map(extra, PARTS[part]))
    allowed = {module(distribution) for distribution in brought} | OURS
    foreign = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files(part)
        for name in imported(file)
        if name not in allowed and name not in sys.stdlib_module_names
    }
    assert foreign == set()


def test_what_is_required_is_imported() -> None:
    used = {name for part in PARTS for file in files(part) for name in imported(file)}
    text = "".join(file.read_text() for file in files("host_agent"))
    used |= {name for name in BY_STRING.values() if f'"{name}"' in text}
    extras = {name for parts in PARTS.values() for name in parts}
    declared = requirements().union(*map(extra, extras)) - NOT_IMPORTED
    assert {one for one in declared if module(one) not in used} == set()


def test_a_requirement_of_every_installation_is_needed_in_both_wings() -> None:
    shared = {name for file in files("placement_traits") for name in imported(file)}
    agent = {name for file in files("host_agent") for name in imported(file)}
    scheduler = {
        name
        for part in PARTS
        if part.startswith("nova_numa_ext")
        for file in files(part)
        for name in imported(file)
    }
    one_wing = {one for one in requirements() if module(one) not in shared | (agent & scheduler)}
    assert one_wing == set()


def test_the_names_of_modules_here_are_those_that_are_installed() -> None:
    """A distribution whose module has another name would pass unseen."""
    installed = packages_distributions()
    for distribution in requirements():
        found = [one.lower() for one in installed.get(module(distribution), [])]
        assert distribution.lower().replace(".", "-") in {
            one.replace("_", "-").replace(".", "-") for one in found
        }


def test_the_page_of_packages_says_of_each_extra_what_it_is_for() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    page = (ROOT / "doc/source/operator/deployments.rst").read_text()
    table = page.partition("   * - extra\n     - for\n")[2].partition("\n\n")[0]
    shown = re.findall(r"^   \* - ``(\w+)``$", table, re.M)
    assert sorted(shown) == sorted(set(config["extras"]) - {"test", "docs", "bench"})


def test_the_page_installs_all_that_the_debian_packages_are_built_with() -> None:
    control = (ROOT / "debian/control").read_text()
    (needed,) = re.findall(r"(?m)^Build-Depends:\n((?: .+\n)+)", control)
    page = (ROOT / "doc/source/operator/deployments.rst").read_text().replace("\\\n", "")
    (installed,) = re.findall(r"(?m)^    apt-get install ([^.]+)$\n    dpkg-buildpackage", page)
    names = {re.split(r"[ (,]", line.strip())[0] for line in needed.splitlines()}
    assert {name.removesuffix("-compat") for name in names} == set(installed.split())
