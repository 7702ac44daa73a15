# SPDX-License-Identifier: Apache-2.0
"""Where a lab's things are, and how they are moved."""

import stat
from pathlib import Path

import pytest
from numa_lab.errors import LabError
from numa_lab.settings import JOB_ENGINES, PORT_SPAN, Ports, Settings

CHECKOUT = Path("/somewhere/checkout")


def test_by_default_everything_is_in_the_checkout_and_the_users_cache() -> None:
    settings = Settings.from_environment(CHECKOUT, {"HOME": "/home/me"})

    assert settings.lab == CHECKOUT / ".lab"
    assert settings.venv == CHECKOUT / ".lab" / "venv"
    assert settings.owns_venv
    assert settings.plugin
    assert settings.cache == Path("/home/me/.cache/nova-numa-ext")
    inside = (settings.etc, settings.state, settings.log, settings.run, settings.hosts)
    assert all(folder.parent == settings.lab for folder in inside)


def test_variables_move_the_lab_and_name_a_foreign_environment() -> None:
    settings = Settings.from_environment(
        CHECKOUT,
        {
            "NUMA_EXT_LAB": "/tmp/other",
            "XDG_CACHE_HOME": "/var/cache",
            "NUMA_EXT_VENV": "/opt/venv",
            "NUMA_EXT_PLUGIN": "0",
            "NUMA_EXT_PORT_BASE": "40000",
        },
    )

    assert settings.lab == Path("/tmp/other")
    assert settings.cache == Path("/var/cache/nova-numa-ext")
    assert (settings.venv, settings.owns_venv) == (Path("/opt/venv"), False)
    assert not settings.plugin
    assert settings.url(settings.ports.keystone, "/v3") == "http://127.0.0.1:40000/v3"


def test_a_lab_that_was_made_plain_stays_so(tmp_path: Path) -> None:
    environment = {"NUMA_EXT_LAB": str(tmp_path / "lab")}
    made = Settings.from_environment(CHECKOUT, environment).become_plain()
    assert (made.plain, made.plugin) == (True, False)
    (made.lab / "openrc").touch()
    again = Settings.from_environment(CHECKOUT, environment)
    assert again == made == again.become_plain()


def test_a_lab_with_all_of_ours_does_not_become_plain(tmp_path: Path) -> None:
    made = Settings.from_environment(CHECKOUT, {"NUMA_EXT_LAB": str(tmp_path)})
    (tmp_path / "openrc").touch()
    with pytest.raises(LabError, match="lab reset, then devstack/lab/lab up --plain"):
        made.become_plain()
    assert [file.name for file in tmp_path.iterdir()] == ["openrc"]


@pytest.mark.parametrize("text", ["80", "65500", "a number", "-1"])
def test_an_impossible_port_base_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(LabError, match="a number from 1024 to"):
        Settings.from_environment(CHECKOUT, {"NUMA_EXT_PORT_BASE": text})


def test_no_two_services_share_a_port_and_all_stay_in_the_labs_range() -> None:
    ports = Ports(30000)
    names = [name for name, value in vars(Ports).items() if isinstance(value, property)]
    used = [getattr(ports, name) for name in names]
    used += [ports.emulated(index, which) for index in range(8) for which in range(10)]
    used += [ports.engine_metrics(engine) for engine in range(JOB_ENGINES)]

    assert len(used) == len(set(used))
    assert all(ports.base <= port < ports.base + PORT_SPAN for port in used)


@pytest.mark.parametrize(("index", "which"), [(8, 0), (0, 10), (-1, 0)])
def test_ports_beyond_the_range_are_refused(index: int, which: int) -> None:
    with pytest.raises(LabError, match="no port is set aside"):
        Ports(30000).emulated(index, which)


def test_an_engine_that_the_lab_does_not_have_has_no_port() -> None:
    with pytest.raises(LabError, match="no port is set aside for engine 2"):
        Ports(30000).engine_metrics(2)


def test_the_key_of_job_hints_is_one_for_a_lab_and_another_for_the_next(
    settings: Settings, tmp_path: Path
) -> None:
    other = Settings.from_environment(CHECKOUT, {"NUMA_EXT_LAB": str(tmp_path / "other")})
    assert settings.job_hint_key() == settings.job_hint_key() != other.job_hint_key()
    assert settings.passwords().service not in settings.job_hint_key()


def test_passwords_are_made_once_differ_and_are_for_root_only(settings: Settings) -> None:
    first = settings.passwords()

    assert settings.passwords() == first
    assert len({first.admin, first.service, first.database, first.rabbitmq}) == 4
    file = settings.lab / "passwords.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
