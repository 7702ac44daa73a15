# SPDX-License-Identifier: Apache-2.0
"""Options, settings and rights."""

from pathlib import Path

import pytest

from host_agent.conf import configuration
from host_agent.conf.options import Options
from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged.rights import has_rights
from placement_traits.errors import InvalidValueError

ROOT = Path(__file__).parents[4]


def load(tmp_path: Path, text: str = "", *arguments: str) -> configuration.Configuration:
    (tmp_path / "agent.conf").write_text(text)
    return configuration.load([f"--config-file={tmp_path}/agent.conf", *arguments])


def test_defaults_of_options_and_of_settings_are_the_same(tmp_path: Path) -> None:
    conf = load(tmp_path)
    assert configuration.read(conf.oslo) == Options()
    assert conf.paths == HostPaths()


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    conf = load(
        tmp_path, "[rdt]\nbe_mba_percent = 30\n[memory]\ndead_band_percent = 5\n", "--dry-run"
    )
    assert (conf.rdt.be_mba_percent, conf.memory.dead_band) == (30, 0.05)
    assert conf.dry_run
    assert not conf.once


def test_the_environment_names_the_file_and_the_command_line_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.conf").write_text("[host]\nname = other\n")
    monkeypatch.setenv(configuration.CONFIG_VARIABLE, str(tmp_path / "other.conf"))
    assert configuration.load([]).host.name == "other"
    assert load(tmp_path, "[host]\nname = given\n").host.name == "given"


def test_sockets_are_put_into_server_nodes(tmp_path: Path) -> None:
    conf = load(tmp_path, "[host]\nchassis = 0:0,1:0,2:1,3:1\n")
    assert conf.host.server_node_of_socket == {0: 0, 1: 0, 2: 1, 3: 1}
    with pytest.raises(InvalidValueError, match=r"\[host\]chassis, a socket in .*: 'zero'"):
        load(tmp_path, "[host]\nchassis = zero:1\n")


def test_a_bad_value_is_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="be_mba_percent"):
        load(tmp_path, "[rdt]\nbe_mba_percent = 300\n")


def test_every_option_is_offered_to_the_sample_configuration() -> None:
    groups = {
        group.name: {option.dest for option in options}
        for group, options in configuration.list_opts()
    }
    assert {"auth_type", "auth_url", "password", "cell_packing"} <= groups["placement"]
    assert {"agent", "libvirt_host", "host", "pinning", "memory", "rdt"} <= set(groups)


@pytest.mark.parametrize(
    ("effective", "enough"),
    [
        ("000001ffffffffff", True),
        ("0000000000000000", False),
        ("0000000000880000", True),
        ("0000004000080002", False),
    ],
)
def test_rights_are_read_from_the_kernel(effective: str, enough: bool) -> None:
    assert has_rights(f"Name:\tpython\nUid:\t0\t0\t0\t0\nCapEff:\t{effective}\n") is enough


def test_the_unit_and_the_commands_read_the_same_file() -> None:
    """Else ctl reads other state than the running agent writes."""
    unit = Path(__file__).parents[4] / "etc/systemd/numa-host-agent.service"
    assert f"--config-file {configuration.CONFIG_FILE}\n" in unit.read_text()


def test_the_usual_file_is_read_when_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "usual.conf"
    usual.write_text("[rdt]\nbe_mba_percent = 30\n")
    monkeypatch.setattr(configuration, "CONFIG_FILE", usual)
    assert configuration.load([]).rdt.be_mba_percent == 30


def test_a_slow_loop_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    conf = load(tmp_path, "[agent]\ninterval_s = 40\n[rdt]\nrelease_after_s = 5\n")
    assert conf.release_after_s == 120.0


def test_a_slow_machine_may_give_its_page_moves_more_time(tmp_path: Path) -> None:
    conf = load(tmp_path, "[slo]\nstuck_s = 60\n")
    assert conf.slo.balm.stuck_s == 60.0
