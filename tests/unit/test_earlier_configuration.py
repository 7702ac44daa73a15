# SPDX-License-Identifier: Apache-2.0
"""Configuration files of the release before this one: every option is read, or a sentence says what takes its place."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from host_agent.conf import configuration
from host_agent.console import doctor
from nova_numa_ext import conf as scheduler_conf
from nova_numa_ext.cli import status_command
from nova_numa_ext.orchestrator import conf as jobs_conf
from placement_traits import oslo_options
from placement_traits.errors import NumaExtError
from placement_traits.findings import Level
from placement_traits.options import declared
from tests.support.old_release import OldRelease

ROOT = Path(__file__).parents[2]
_LIST = """
import json, sys, importlib
listed = importlib.import_module(sys.argv[1]).list_opts()
print(json.dumps({
    str(group): {option.dest: option.default for option in options}
    for group, options in listed
}))
"""
_SPELT = {True: "true", False: "false"}

Given = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> OldRelease:
    """The release before this one."""
    return OldRelease(tmp_path_factory.mktemp("old"))


def written(old: OldRelease, module: str, file: Path) -> Given:
    """Write a file that gives each option of the old code its old default; return what is in it."""
    listed: Given = json.loads(old.run(_LIST, module))
    given = {
        section: {name: value for name, value in options.items() if value not in (None, [])}
        for section, options in listed.items()
    }
    lines = [
        line
        for section, options in given.items()
        for line in (
            f"[{section}]",
            *(f"{name} = {_text(value)}" for name, value in options.items()),
        )
    ]
    file.write_text("\n".join(lines))
    return given


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return _SPELT[value]
    if isinstance(value, dict):
        return ",".join(f"{key}:{each}" for key, each in value.items())
    return ",".join(value) if isinstance(value, list) else str(value)


def test_every_option_of_the_agent_is_read_or_its_place_is_named(
    old: OldRelease, tmp_path: Path
) -> None:
    file = tmp_path / "agent.conf"
    given = written(old, "host_agent.conf", file)
    conf = configuration.load([f"--config-file={file}"])
    gone = "gone: numa-ext-heal on a controller moves allocations"
    assert configuration.unknown_keys(conf) == [
        f"[placement]rehome ({gone}) in {file}",
        f"[placement]rehome_after_s ({gone}) in {file}",
    ]
    today = {
        "[placement]pressure_s": "reserved_bandwidth_interval_s",
        "[placement]pressure_dead_band_percent": "reserved_bandwidth_dead_band_percent",
        "[slo]yellow_percent": "at_risk_slack_percent",
        "[slo]green_percent": "ample_slack_percent",
    }
    assert configuration.renamed_keys(conf) == [
        f"{key} (now {name}) in {file}" for key, name in today.items()
    ]
    (finding,) = doctor._configuration(conf)
    assert finding.level is Level.DEGRADED
    assert "; renamed: [placement]pressure_s (now reserved" in finding.detail
    ours = {
        (name, option)
        for name, section in configuration.SECTIONS.items()
        for each in declared(section)
        for option in (each.name, each.option.formerly)
    }
    read = {
        (section, name): conf.oslo[section][today.get(f"[{section}]{name}", name)]
        for section, options in given.items()
        for name in options
        if (section, name) in ours
    }
    assert len(read) > 50
    assert {key: given[key[0]][key[1]] for key in read} == read


def test_a_renamed_option_keeps_the_value_that_was_given(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text("[placement]\npressure_s = 7\n[slo]\nyellow_percent = 3\ngreen_percent = 30\n")
    conf = configuration.load([f"--config-file={file}"])
    assert conf.placement.reserved_bandwidth_interval_s == 7
    slo = conf.oslo.slo
    assert (slo.at_risk_slack_percent, slo.ample_slack_percent) == (3, 30)
    assert configuration.unknown_keys(conf) == []


def test_todays_name_counts_where_both_are_given(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text("[slo]\nyellow_percent = 3\nat_risk_slack_percent = 4\n")
    assert configuration.load([f"--config-file={file}"]).oslo.slo.at_risk_slack_percent == 4


def test_the_upgrade_page_lists_every_option_that_is_read_by_an_earlier_name() -> None:
    page = (ROOT / "doc/source/operator/upgrade.rst").read_text()
    listed = re.findall(r"\* - ``\[(\w+)\](\w+)``\n     - ``(\w+)``", page)
    of_agent = {
        (name, each.option.formerly, each.name)
        for name, section in configuration.SECTIONS.items()
        for each in declared(section)
        if each.option.formerly
    }
    earlier = {
        (tuple(option.deprecated_opts), option.name)
        for _, options in [*scheduler_conf.list_opts(), *jobs_conf.list_opts()]
        for option in options
        if option.deprecated_opts
    }
    assert (set(listed), earlier) == (of_agent, set())


def test_a_mistake_below_an_earlier_name_is_shown_with_its_value(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text("[slo]\nyellow_percent = 51\n")
    with pytest.raises(NumaExtError, match=r"\[slo\]at_risk_slack_percent = 51 in .*agent.conf: "):
        configuration.load([f"--config-file={file}"])


def test_every_option_of_the_scheduler_is_read(old: OldRelease, tmp_path: Path) -> None:
    file = tmp_path / "nova.conf"
    given = written(old, "nova_numa_ext.conf", file)
    conf = cfg.ConfigOpts()
    scheduler_conf.register_opts(conf)
    conf([f"--config-file={file}"])
    scheduler_conf.read(conf)
    known = dict(scheduler_conf.list_opts())
    assert status_command._of_earlier_releases(conf, known) == ""
    assert oslo_options.files(conf) == [str(file)]
    assert {name: conf.numa_ext[name] for name in given["numa_ext"]} == given["numa_ext"]


def test_the_upgrade_check_names_both_kinds_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "nova.conf"
    file.write_text("[numa_ext]\nshort = 1\ndropped = 2\n")
    conf = cfg.ConfigOpts()
    conf([f"--config-file={file}"])
    known = {"numa_ext": [cfg.IntOpt("longer", deprecated_name="short")]}
    assert status_command._of_earlier_releases(conf, known) == (
        f"this release does not read [numa_ext]dropped in {file}: see the release notes; "
        f"read by the name of an earlier release: [numa_ext]short (now longer) in {file}"
    )
