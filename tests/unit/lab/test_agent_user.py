# SPDX-License-Identifier: Apache-2.0
"""The agent of the lab's compute hosts is not root, and has what its user needs and no more."""

import os
import pwd
import stat
from pathlib import Path

import pytest
from numa_lab import agent_user, configuration
from numa_lab.emulated import EmulatedHost
from numa_lab.localcompute import LocalCompute
from numa_lab.settings import Settings

from host_agent.conf.helper import HelperOptions

root = pytest.mark.root


def owned(path: Path) -> tuple[int, int, int]:
    """User, group and mode of a file."""
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def test_it_is_the_user_that_helpers_serve_by_default() -> None:
    assert HelperOptions().agent_user == agent_user.NAME


def test_its_id_belongs_to_no_other_user() -> None:
    try:
        assert pwd.getpwuid(agent_user.user_id()).pw_name == agent_user.NAME
    except KeyError:
        assert agent_user.user_id() > 1000


def test_users_of_this_machine_stay_and_the_agents_is_added_once(tmp_path: Path) -> None:
    binds = agent_user.write_accounts(tmp_path)
    assert binds == {
        tmp_path / "group": Path("/etc/group"),
        tmp_path / "passwd": Path("/etc/passwd"),
    }
    for own, system in binds.items():
        lines = own.read_text().splitlines()
        assert set(system.read_text().splitlines()) <= set(lines)
        assert [line.split(":")[0] for line in lines].count(agent_user.NAME) == 1
        assert stat.S_IMODE(own.stat().st_mode) == 0o644


@root
def test_only_root_writes_its_configuration_and_no_other_user_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "etc" / "agent.conf"
    for text in ("password = a", "password = b"):
        agent_user.write_configuration(file, text)
        assert file.read_text() == text
        assert owned(file) == (0, agent_user.user_id(), 0o640)


@root
def test_what_an_agent_as_root_has_left_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "slo.json").write_text("{}")
    (folder / "link").symlink_to("/etc/passwd")
    before = owned(Path("/etc/passwd"))
    agent_user.give_folder(folder)
    number = agent_user.user_id()
    assert owned(folder) == (number, number, 0o750)
    assert owned(folder / "slo.json")[:2] == (number, number)
    assert (folder / "link").lstat().st_uid == number
    assert owned(Path("/etc/passwd")) == before
    agent_user.give_folder(folder, 0)
    assert owned(folder / "slo.json")[:2] == (0, 0)


def test_it_gets_to_what_is_open_all_the_way(tmp_path: Path) -> None:
    assert agent_user.gets_to(Path("/usr/bin"))
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    assert not agent_user.gets_to(place / "missing")
    (tmp_path / "a").chmod(0o700)
    assert not agent_user.gets_to(place)
    link = Path("/tmp") / f"numa-ext-{os.getpid()}"
    link.symlink_to(place)
    try:
        assert not agent_user.gets_to(link)
    finally:
        link.unlink()


@root
def test_an_emulated_host_runs_it_as_its_user(settings: Settings) -> None:
    host = EmulatedHost(settings, 0)
    host.configure_agent(Path("/run/helper"))
    number = agent_user.user_id()
    assert owned(host.agent_conf) == (0, number, 0o640)
    description = host.service("numa-host-agent").description
    assert f"--user={agent_user.NAME}" in description.argv
    for folder in (
        host.config.state / "numa-host-agent",
        Path(dict(description.environment)["XDG_CACHE_HOME"]),
    ):
        assert owned(folder)[:2] == (number, number)


def test_the_local_compute_runs_it_as_its_user_where_that_gets_to_the_code(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> list[str]:
        return [str(word) for word in LocalCompute(settings)._agent().argv]

    monkeypatch.setattr(agent_user, "gets_to", lambda _path: True)
    assert f"--user={agent_user.NAME}" in command()
    assert "--config-file=/run/numa-lab/etc/numa-host-agent.conf" in command()
    monkeypatch.setattr(agent_user, "gets_to", lambda path: path != settings.checkout)
    assert not any(word.startswith("--user") for word in command())


def test_guests_have_its_group_and_libvirts_write_socket_is_roots(settings: Settings) -> None:
    configuration.write_libvirt(settings)
    folder = settings.etc / "libvirt"
    assert f'group = "{agent_user.NAME}"' in (folder / "qemu.conf").read_text()
    assert 'unix_sock_rw_perms = "0700"' in (folder / "libvirtd.conf").read_text()
