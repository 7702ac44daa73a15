# SPDX-License-Identifier: Apache-2.0
"""``lab status --json`` and the refusals that come before any work."""

import json
import os
import socket
from pathlib import Path

import pytest
from numa_lab import cli, configuration, controlplane
from numa_lab.settings import Settings

from placement_traits.request import concerns_us, parse

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture
def environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The command line finds the lab of the test."""
    monkeypatch.setenv("NUMA_EXT_LAB", str(settings.lab))
    monkeypatch.setenv("NUMA_EXT_CACHE", str(settings.cache))
    monkeypatch.setenv("NUMA_EXT_PORT_BASE", str(settings.ports.base))
    return settings


def test_a_lab_that_does_not_run_says_so_in_json(
    environment: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(CHECKOUT, ["status", "--json"])

    told = json.loads(capsys.readouterr().out)
    assert status == 1
    assert told["lab"] == str(environment.lab)
    assert told["hypervisors"] is None
    assert told["hosts"] == []
    assert told["memory_mb"] == 0
    names = [row["name"] for row in told["services"]]
    assert {"mariadb", "rabbitmq", "keystone", "placement", "nova-scheduler"} <= set(names)
    jobs = {"numa-ext-jobs-api", "numa-ext-engine-0", "numa-ext-engine-1"}
    assert jobs <= set(names)
    assert all(row["pid"] is None and row["serves"] is False for row in told["services"])


def test_down_and_clean_of_nothing_are_no_errors(
    environment: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(CHECKOUT, ["down"]) == 0
    assert cli.main(CHECKOUT, ["clean", "--cache"]) == 0
    assert not environment.lab.exists()
    assert not environment.cache.exists()
    assert cli.main(CHECKOUT, ["clean"]) == 0


def test_asking_for_the_status_of_a_lab_that_is_not_there_makes_nothing(
    environment: Settings,
) -> None:
    assert cli.main(CHECKOUT, ["clean"]) == 0

    assert cli.main(CHECKOUT, ["status"]) == 1

    assert not environment.lab.exists()


def test_reset_keeps_the_virtual_environment_and_drops_state_and_passwords(
    environment: Settings,
) -> None:
    environment.venv.mkdir()
    passwords = environment.passwords()
    (environment.state / "mysql").mkdir()

    assert cli.main(CHECKOUT, ["reset"]) == 0

    assert environment.venv.is_dir()
    assert not environment.state.exists()
    assert environment.passwords() != passwords


def test_two_commands_at_once_are_kept_apart(
    environment: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    holder = os.open(environment.lab, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        assert cli.main(CHECKOUT, ["down"]) == 1
    finally:
        os.close(holder)
    told = capsys.readouterr().err
    assert "another lab command is at work" in told
    assert "to try again: devstack/lab/lab down" in told


def test_an_unknown_host_is_refused_with_the_known_ones(
    environment: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(CHECKOUT, ["shell", "h9", "true"]) == 1
    assert "there is no host h9: the lab has local" in capsys.readouterr().err


def test_logs_are_listed_and_shown_by_name(
    environment: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    (environment.log / "nova-api.log").write_text("one\ntwo\nthree\n")

    assert cli.main(CHECKOUT, ["logs"]) == 0
    assert "nova-api.log" in capsys.readouterr().out
    assert cli.main(CHECKOUT, ["logs", "nova-api", "-n", "2"]) == 0
    assert capsys.readouterr().out == "two\nthree\n"
    assert cli.main(CHECKOUT, ["logs", "nonsense"]) == 1


def test_ports_of_strangers_are_seen(settings: Settings) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", settings.ports.glance))
        stranger.listen()
        assert controlplane.ports_in_use(settings) == [settings.ports.glance]
    assert controlplane.ports_in_use(settings) == []


def test_example_flavors_of_the_lab_are_what_the_design_calls_them() -> None:
    flavors = json.loads((CHECKOUT / "devstack/lab/flavors.json").read_text())
    specs = {flavor["name"]: flavor["extra_specs"] for flavor in flavors}

    assert specs["lc.small"]["hw:cpu_policy"] == "dedicated"
    assert specs["lc.small"]["resources:CUSTOM_RDT_CLOS"] == "1"
    assert "hw:numa_nodes" not in specs["be.small"], "its memory may be spread"
    strict = {
        flavor["name"]: parse(
            flavor["extra_specs"], vcpus=flavor["vcpus"], memory_mb=flavor["ram"]
        ).strict
        for flavor in flavors
        if concerns_us(flavor["extra_specs"])
    }
    assert {name for name, counted in strict.items() if counted} == {"lc.quiet", "be.noisy"}
    alias, count = specs["be.gpu"]["pci_passthrough:alias"].split(":")
    assert (alias, count) == (configuration.PCI_ALIAS["name"], "1")
